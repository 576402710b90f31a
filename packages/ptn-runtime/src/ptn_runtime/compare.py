"""Two engines side by side on one program: do their numbers agree, and if not, where do they part?"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
from ptn_format.dtypes import ScalarType

from ptn_runtime.arrays import Binder
from ptn_runtime.describe import MethodInfo, describe_method

if TYPE_CHECKING:
    from ptn_runtime.engine import EngineContext, Prepared
    from ptn_runtime.hosts import HostLease
    from ptn_runtime.lowering.static import StaticGraph, StaticNode, Value

__all__ = ["Difference", "Outcome", "Pair", "difference"]

Array = npt.NDArray[Any]

RELATIVE_TOLERANCE = {
    ScalarType.DOUBLE: 1e-9,
    ScalarType.FLOAT: 1e-3,
    ScalarType.HALF: 1e-2,
    ScalarType.BFLOAT16: 5e-2,
}
"""What engines may differ by through rounding and order of summation; other element types must be equal."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How far two arrays are apart.

    Attributes:
        name: what the arrays are.
        kind: element type and shape.
        largest: largest absolute difference; infinite where one is NaN or infinite and the other is not.
        allowed: what the tolerance allows at that place.
        place: index of the element that exceeds its allowance most.
        values: the two elements there: tested, baseline.
    """

    name: str
    kind: str
    largest: float
    allowed: float
    place: tuple[int, ...]
    values: tuple[Any, Any]
    ok: bool

    @property
    def verdict(self) -> str:
        """`ok`, or where it differs."""
        if self.ok:
            return "ok"
        tested, baseline = self.values
        return f"DIFFERS at {list(self.place)}: {tested} against {baseline}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The comparison of one call.

    Attributes:
        results: one entry per result and state.
        explanation: where they differ, the first node that does.
    """

    results: tuple[Difference, ...]
    explanation: str = ""

    @property
    def agree(self) -> bool:
        """Whether everything lies within its tolerance."""
        return all(item.ok for item in self.results)


def difference(
    name: str, tested: Array, baseline: Array, rtol: float | None = None, atol: float | None = None
) -> Difference:
    """Compares two arrays of one dtype and shape.

    Args:
        name: for the report.
        tested: one array.
        baseline: the other.
        rtol: relative tolerance; None takes that of the element type (0 for integers and bools).
        atol: absolute tolerance; None takes `rtol` times the largest finite value of `baseline`.
    """
    kind = f"{baseline.dtype}{list(baseline.shape)}"
    if tested.shape != baseline.shape or tested.dtype != baseline.dtype:
        other = f"{tested.dtype}{list(tested.shape)}"
        return Difference(name, kind, float("inf"), 0.0, (), (other, kind), ok=False)
    if rtol is None:
        rtol = RELATIVE_TOLERANCE.get(ScalarType.from_numpy(baseline.dtype), 0.0)
    if not baseline.size:
        return Difference(name, kind, 0.0, 0.0, (), (None, None), ok=True)
    left, right = tested.astype(np.float64), baseline.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.abs(left - right)
    if baseline.dtype.kind in "iu":
        apart = np.maximum(apart, 1.0)  # float64 rounds large integers
    same = (tested == baseline) | (np.isnan(left) & np.isnan(right))
    apart = np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))
    finite = np.abs(right[np.isfinite(right)])
    if atol is None:
        atol = rtol * float(finite.max(initial=0.0))
    allowed = atol + rtol * np.where(np.isfinite(right), np.abs(right), 0.0)
    place = tuple(int(i) for i in np.unravel_index(int(np.argmax(apart - allowed)), apart.shape))
    ok = bool((apart <= allowed).all())
    return Difference(
        name, kind, float(apart.max()), float(allowed[place]), place, (tested[place], baseline[place]), ok
    )


class Pair:
    """A program on two engines, lowered once, so that both run the very same static graph."""

    def __init__(
        self,
        source: str | os.PathLike[str] | bytes,
        engine: str | None,
        device: str | None,
        baseline: str,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Opens the program on both; raises as `ptn_runtime.load` does. `options` are for the tested engine."""
        from ptn_format.package import open_package

        from ptn_runtime.lowering.program import LoweredProgram
        from ptn_runtime.registry import registry
        from ptn_runtime.survey import Survey

        self._leases: list[HostLease] = []
        self._contexts: list[EngineContext] = []
        self._package = open_package(source)
        try:
            self._program = LoweredProgram(self._package)
            survey = Survey(self._program, registry())
            for name, where, chosen in ((engine, device, options or {}), (baseline, None, {})):
                picked = survey.pick(name, where, chosen)
                self._leases.append(picked.lease)
                with picked.lease.lock:
                    self._contexts.append(picked.lease.host.create_context(self._program, self._package))
        except BaseException:
            self.close()
            raise

    @property
    def tested(self) -> str:
        """The name of the engine that is examined."""
        return self._contexts[0].host.name

    @property
    def baseline(self) -> str:
        """The name of the engine that it is compared with."""
        return self._contexts[1].host.name

    @property
    def methods(self) -> tuple[str, ...]:
        """The program's methods."""
        return tuple(self._program.methods)

    def describe(self, method: str) -> MethodInfo:
        """What `method` takes and gives."""
        lowered = self._program.method(method)
        return describe_method(self._package.method(method), lowered)

    def compare(
        self, method: str, inputs: Mapping[str, Any], rtol: float | None = None, atol: float | None = None
    ) -> Outcome:
        """Runs `method` on both engines from the file's state and compares results, mutated inputs and state."""
        lowered = self._program.method(method)
        binder = Binder(method, lowered.inputs, lowered.signature)
        arrays, _ = binder.bind((), dict(inputs))
        shapes = tuple(array.shape for array in arrays)
        prepared: list[Prepared] = []
        values: list[list[Array]] = []
        for context in self._contexts:
            context.reset_state()
            prepared.append(context.compile(method).prepare(shapes))
            result = prepared[-1].build.run(arrays)
            states = [context.read_state(update.old.key or "") for update in prepared[-1].graph.state_updates]
            values.append([*result.outputs, *result.input_updates, *states])
        graph = prepared[1].graph
        names = [f"result {i} ({value.name})" for i, value in enumerate(graph.outputs)]
        names += [f"input {old.name}" for old, _ in graph.input_updates]
        names += [f"state {update.old.key}" for update in graph.state_updates]
        results = tuple(difference(name, one, two, rtol, atol) for name, one, two in zip(names, *values, strict=True))
        outcome = Outcome(results)
        if outcome.agree:
            return outcome
        return Outcome(results, self._explain(prepared, arrays, rtol, atol))

    def _explain(
        self, prepared: Sequence[Prepared], arrays: Sequence[Array], rtol: float | None, atol: float | None
    ) -> str:
        """Which node differs first."""
        traces = []
        for context, item in zip(self._contexts, prepared, strict=True):
            context.reset_state()
            try:
                traces.append(item.build.trace(arrays))
            except NotImplementedError as error:
                return f"Where they part is not known: engine '{context.host.name}': {error}."
        graph = prepared[1].graph
        found = first_difference(graph, traces[0], traces[1], rtol, atol)
        if found is None:
            return "No single node differs by more than the tolerance: the differences add up on the way."
        node, value, apart = found
        compared = sum(v.id in traces[0] and v.id in traces[1] for n in graph.nodes for v in n.outputs)
        inputs = [f"    {name} = {_argument(arg)}" for name, arg in node.args.items()]
        return "\n".join(
            [
                f"The first node that differs is {node.describe()}:",
                f"    {value}: largest difference {apart.largest:.3g}, allowed {apart.allowed:.3g}",
                f"    at {list(apart.place)}: {self.tested} {apart.values[0]}, {self.baseline} {apart.values[1]}",
                "  with the arguments",
                *inputs,
                f"  ({compared} intermediate values were compared)",
            ]
        )

    def close(self) -> None:
        """Frees both engines and closes the package. Idempotent."""
        for context in self._contexts:
            context.close()
        for lease in self._leases:
            lease.release()
        self._package.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def first_difference(
    graph: StaticGraph,
    tested: Mapping[int, Array],
    baseline: Mapping[int, Array],
    rtol: float | None = None,
    atol: float | None = None,
) -> tuple[StaticNode, Value, Difference] | None:
    """The first node, in execution order, of whose results both traces have one that differs; None where none does."""
    for node in graph.nodes:
        for value in node.outputs:
            if value.id in tested and value.id in baseline:
                found = difference(value.name, tested[value.id], baseline[value.id], rtol, atol)
                if not found.ok:
                    return node, value, found
    return None


def _argument(arg: Any) -> str:
    if isinstance(arg, tuple):
        return f"({', '.join(_argument(item) for item in arg)})"
    text = str(arg)
    return text if len(text) <= 80 else text[:77] + "..."
