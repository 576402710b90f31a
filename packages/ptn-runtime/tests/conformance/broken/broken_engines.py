"""Engines with one fault each: the reference engine, spoilt. What the fault is, the class names and docstrings say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from ptn_format.package import Package
from ptn_runtime.engine import Array, Device, EngineBuild, EngineContext, EngineHost, RunResult, Support
from ptn_runtime.errors import ExecutionError
from ptn_runtime.lowering.program import LoweredProgram
from ptn_runtime.lowering.static import StaticGraph, StaticNode
from ptn_runtime.reference.engine import ReferenceBuild, ReferenceContext, ReferenceEngine, ReferenceHost

Kernel = Callable[..., Any]


class Build(ReferenceBuild):
    """Runs the reference engine's plan with some kernels exchanged."""

    def __init__(self, context: Context, graph: StaticGraph) -> None:
        super().__init__(context, graph)
        for step in self._plan.steps:
            spoil = context.engine.spoilt.get(step.node.op)
            if spoil is not None:
                step.call = spoil(step.call)


class Context(ReferenceContext):
    """Makes builds of the engine's own class."""

    @property
    def engine(self) -> Correct:
        assert isinstance(self.host.engine, Correct)
        return self.host.engine

    def build(self, graph: StaticGraph) -> EngineBuild:
        return self.engine.build_class(self, graph)

    def fork(self) -> EngineContext:
        return type(self)(self.host, self.program, self.package, self.constants)


class Host(ReferenceHost):
    """Makes contexts of the engine's own class."""

    def create_context(self, program: LoweredProgram, package: Package) -> EngineContext:
        assert isinstance(self.engine, Correct)
        return self.engine.context_class(self, program, package, {})


class Correct(ReferenceEngine):
    """No fault: the suite must pass."""

    name = "correct"
    build_class: ClassVar[type[Build]] = Build
    context_class: ClassVar[type[Context]] = Context
    spoilt: ClassVar[dict[str, Callable[[Kernel], Kernel]]] = {}

    def create_host(self, device: Device, **options: Any) -> EngineHost:
        return Host(self, device)


class Modest(Correct):
    """No fault either: refuses an operator that it could not run."""

    name = "modest"

    def supports(self, node: StaticNode, device: Device) -> Support:
        if node.op == "aten.cumsum.default":
            return Support.no("sums along an axis are not written yet")
        return super().supports(node, device)


def _last_of_ties(right: Kernel) -> Kernel:
    def argmax(out: Any, self: Array, dim: int | None = None, keepdim: bool = False) -> Array:
        if dim is None:
            return right(out, self, dim, keepdim)
        last = self.shape[dim] - 1 - np.argmax(np.flip(self, dim), axis=dim, keepdims=keepdim)
        return np.asarray(last, np.int64)

    return argmax


class WrongTies(Correct):
    """Of equal elements argmax names the last."""

    name = "wrong-ties"
    spoilt: ClassVar = {"aten.argmax.default": _last_of_ties}


class WrongNan(Correct):
    """The maximum of NaN and a number is the number."""

    name = "wrong-nan"
    spoilt: ClassVar = {"aten.maximum.default": lambda right: lambda out, self, other: np.fmax(self, other)}


class SwallowedIndexError(Correct):
    """An embedding clips identifiers that are out of range."""

    name = "swallowed-index-error"
    spoilt: ClassVar = {
        "aten.embedding.default": lambda right: (
            lambda out, weight, indices, **_: weight[np.clip(indices, 0, weight.shape[0] - 1)]
        )
    }


def _not_written(right: Kernel) -> Kernel:
    def fail(out: Any, **arguments: Any) -> Array:
        raise ExecutionError("there is no such kernel")

    return fail


class LyingSupports(Correct):
    """Says yes to what it cannot run."""

    name = "lying-supports"
    spoilt: ClassVar = {"aten.cumsum.default": _not_written}


class WrongDtype(Correct):
    """Gives positions as int32."""

    name = "wrong-dtype"

    class NarrowBuild(Build):
        def run(self, inputs: Sequence[Array]) -> RunResult:
            result = super().run(inputs)
            narrow = {node.output.id for node in self._plan.graph.nodes if node.op == "aten.argmax.default"}
            for index, value in enumerate(self._plan.graph.outputs):
                if value.id in narrow:
                    result.outputs[index] = result.outputs[index].astype(np.int32)
            return result

    build_class: ClassVar = NarrowBuild


class LeakedState(Correct):
    """All contexts write to one state."""

    name = "leaked-state"

    class OneState(Context):
        everybodys: ClassVar[dict[str, Array]] = {}

        def reset_state(self) -> None:
            super().reset_state()
            self.everybodys.update(self.state)
            self.state = self.everybodys

        def close(self) -> None:
            self.state = {}
            super().close()

    context_class: ClassVar = OneState


class SharedOutput(Correct):
    """Where a result is an input, gives the caller's own array back."""

    name = "shared-output"

    class SharingBuild(Build):
        def run(self, inputs: Sequence[Array]) -> RunResult:
            result = super().run(inputs)
            places = {value.id: index for index, value in enumerate(self._plan.graph.inputs)}
            for index, value in enumerate(self._plan.graph.outputs):
                if value.id in places:
                    result.outputs[index] = inputs[places[value.id]]
            return result

    build_class: ClassVar = SharingBuild


class ReusedBuffer(Correct):
    """Writes every result of one shape into the same memory."""

    name = "reused-buffer"

    class ReusingBuild(Build):
        buffers: ClassVar[dict[int, Array]] = {}

        def run(self, inputs: Sequence[Array]) -> RunResult:
            result = super().run(inputs)
            for index, array in enumerate(result.outputs):
                kept = self.buffers.setdefault(index, np.empty((64, *array.shape[1:]), array.dtype))
                if kept.dtype == array.dtype and kept.shape[1:] == array.shape[1:] and array.ndim:
                    kept[: array.shape[0]] = array
                    result.outputs[index] = kept[: array.shape[0]]
            return result

    build_class: ClassVar = ReusingBuild


class ForgottenInput(Correct):
    """Gives an input that the program changes back as it was."""

    name = "forgotten-input"

    class ForgetfulBuild(Build):
        def run(self, inputs: Sequence[Array]) -> RunResult:
            before = [np.array(array) for array in inputs]
            result = super().run(inputs)
            places = {value.id: index for index, value in enumerate(self._plan.graph.inputs)}
            result.input_updates = [before[places[old.id]] for old, _ in self._plan.graph.input_updates]
            return result

    build_class: ClassVar = ForgetfulBuild


class FrozenShape(Correct):
    """Runs every shape with what was planned for the first one."""

    name = "frozen-shape"

    class FirstContext(Context):
        first: EngineBuild | None = None

        def build(self, graph: StaticGraph) -> EngineBuild:
            if self.first is None:
                self.first = super().build(graph)
            return self.first

    context_class: ClassVar = FirstContext


class KeptStateArray(Correct):
    """Hands out the very array that holds a state."""

    name = "kept-state-array"

    class Sharing(Context):
        def read_state(self, key: str) -> Array:
            super().read_state(key)
            return self.state[key]

    context_class: ClassVar = Sharing


class GrowingMemory(Correct):
    """Keeps something of every context for ever."""

    name = "growing-memory"

    class Hoarder(Context):
        hoard: ClassVar[list[Array]] = []

        def close(self) -> None:
            self.hoard.append(np.ones(1 << 13))
            super().close()

    context_class: ClassVar = Hoarder


class DeafToClose(Correct):
    """A context goes on after it was closed."""

    name = "deaf-to-close"

    class Immortal(Context):
        def close(self) -> None:
            return

    context_class: ClassVar = Immortal
