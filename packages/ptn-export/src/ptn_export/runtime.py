"""What the runtime says of a package, where ptn-runtime is installed: does an engine run it, are its numbers right?

The exporter works without the runtime; nothing else in this package imports it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from ptn_format.dtypes import ScalarType
from ptn_format.graph import Method, Program
from ptn_format.weights import ConstantInfo
from torch.utils import _pytree as pytree

from ptn_export.constants import Constant

if TYPE_CHECKING:
    from ptn_runtime.compare import Difference
    from ptn_runtime.survey import Answer

__all__ = ["Call", "CheckError", "CheckedMethod", "EngineAnswer", "RuntimeMissingError", "check", "survey"]

_SHOWN_REASONS = 3


class RuntimeMissingError(ImportError):
    """ptn-runtime is not installed; the text says how to install it."""


class CheckError(Exception):
    """The reference engine cannot run the package; the text says why."""


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """What an installed engine says about a program on one of its devices.

    Attributes:
        engine: the engine's name.
        device: the device; empty where the engine has none or cannot be loaded.
        runs: whether it runs every method.
        reason: why it does not; empty where it runs.
    """

    engine: str
    device: str
    runs: bool
    reason: str = ""

    def __str__(self) -> str:
        where = f"{self.engine} on {self.device}" if self.device else self.engine
        return f"{where}: {'runs it' if self.runs else self.reason}"


@dataclass(frozen=True, slots=True)
class Call:
    """A method of a package, and the PyTorch code that it must agree with.

    Attributes:
        method: the method's name.
        eager: what to call with the inputs.
        args: inputs by position.
        kwargs: inputs by name.
        tensors: the buffers that `eager` may write to; they are set back after the call.
    """

    method: str
    eager: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    tensors: tuple[torch.Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckedMethod:
    """How far a method of a package is from PyTorch.

    Attributes:
        method: the method's name.
        results: one entry for each result, and for each input that the call changes.
    """

    method: str
    results: tuple[Difference, ...]

    @property
    def agrees(self) -> bool:
        """Whether every result is within its tolerance."""
        return all(item.ok for item in self.results)

    def __str__(self) -> str:
        lines = [f"method {self.method}: {'agrees' if self.agrees else 'DIFFERS'} on the reference engine"]
        for item in self.results:
            verdict = f", {item.verdict}" if not item.ok else ""
            largest = f"largest difference {item.largest:.3g}, allowed {item.allowed:.3g}"
            lines.append(f"  {item.name} {item.kind}: {largest}{verdict}")
        return "\n".join(lines)


def survey(program: Program, constants: Mapping[str, Any]) -> tuple[EngineAnswer, ...]:
    """Asks every installed engine whether it runs a program, best first.

    Args:
        program: the program.
        constants: its data by key, in stored form.

    Raises:
        RuntimeMissingError: ptn-runtime is not installed.
    """
    _need_runtime()
    from ptn_runtime.errors import LoweringError
    from ptn_runtime.lowering.program import LoweredProgram
    from ptn_runtime.registry import registry
    from ptn_runtime.survey import Survey

    package: Any = _Package(program, constants)
    try:
        return tuple(map(_answer, Survey(LoweredProgram(package), registry()).answers()))
    except LoweringError as error:
        return (EngineAnswer("every engine", "", False, f"the program cannot be lowered: {error}"),)


def _answer(answer: Answer) -> EngineAnswer:
    device = answer.device.id if answer.device is not None else ""
    if answer.refusal is None:
        return EngineAnswer(answer.engine, device, True)
    nodes = answer.refusal.nodes
    if not nodes:
        return EngineAnswer(answer.engine, device, False, answer.refusal.reason)
    operators: dict[tuple[str, str], list[str]] = {}
    for node in nodes:
        operators.setdefault((node.op, node.reason), []).append(node.source or f"'{node.name}'")
    parts = [
        f"{op} ({len(places)} times, first at {places[0]}): {reason}"
        if len(places) > 1
        else f"{op} ({places[0]}): {reason}"
        for (op, reason), places in list(operators.items())[:_SHOWN_REASONS]
    ]
    if len(operators) > _SHOWN_REASONS:
        parts.append(f"{len(operators) - _SHOWN_REASONS} more operators")
    return EngineAnswer(answer.engine, device, False, "refuses " + "; ".join(parts))


class _Package:
    """A native program in the shape in which the runtime takes a package, without writing it."""

    path = None

    def __init__(self, program: Program, constants: Mapping[str, Any]) -> None:
        self._methods = {method.name: method for method in program.methods}
        self._constants = constants
        self.version = program.version
        self.method_names = tuple(self._methods)

    def method(self, name: str) -> Method:
        return self._methods[name]

    def owner(self, key: str) -> str:
        return key

    def constant_info(self, key: str) -> ConstantInfo:
        constant = self._constants[key]
        return ConstantInfo(
            key, ScalarType.from_numpy(np.dtype(constant.dtype)), tuple(constant.shape), constant.nbytes, 0
        )

    def constant(self, key: str) -> np.ndarray[Any, Any]:
        return np.asarray(self._constants[key])


def check(path: str | os.PathLike[str], calls: Sequence[Call]) -> Iterator[CheckedMethod]:
    """Runs methods of a package on the reference engine and compares them with PyTorch.

    Every call starts from the state in the file. What may be apart is what `ptn verify` allows between engines:
    0.001 of the largest value and of each value in float32, 1e-9 in float64, 0.01 in float16, 0.05 in bfloat16;
    integers and bools must be equal.

    Args:
        path: the package.
        calls: what to compare; one at a time.

    Raises:
        RuntimeMissingError: ptn-runtime is not installed.
        CheckError: the reference engine cannot run the package.
    """
    _need_runtime()
    import ptn_runtime

    try:
        with ptn_runtime.load(path, engine="reference") as model:
            for call in calls:
                with model.session() as session:
                    yield _check_call(session, call)
    except ptn_runtime.PtnRuntimeError as error:
        raise CheckError(f"the reference engine cannot run the package: {error}") from error


def _check_call(session: Any, call: Call) -> CheckedMethod:
    from ptn_runtime.compare import difference

    expected, changed = _run_eager(call)
    args, kwargs = pytree.tree_map_only(torch.Tensor, _array, (call.args, dict(call.kwargs)))
    before = pytree.tree_map_only(np.ndarray, np.copy, (args, kwargs))
    actual = session.run(call.method, *args, **kwargs)
    results = []
    theirs, ours = pytree.tree_leaves_with_path(expected), pytree.tree_leaves(actual)
    if len(theirs) != len(ours):
        raise AssertionError(f"method '{call.method}' gives {len(ours)} results, PyTorch {len(theirs)}")
    for (place, right), left in zip(theirs, ours, strict=True):
        if isinstance(right, torch.Tensor | int | float):  # what else there is was fixed by the export
            results.append(difference(f"result{pytree.keystr(place)}", _plain(left), _plain(right)))
    inputs = zip(
        pytree.tree_leaves_with_path((args, kwargs)),
        pytree.tree_leaves(changed),
        pytree.tree_leaves(before),
        strict=True,
    )
    for (place, left), right, old in inputs:
        if isinstance(left, np.ndarray) and not _same(old, _plain(right)):
            results.append(difference(f"input{pytree.keystr(place)}", left, _plain(right)))
    return CheckedMethod(call.method, tuple(results))


def _run_eager(call: Call) -> tuple[Any, Any]:
    """PyTorch's results, and the inputs as they are after the call; the buffers are as they were before."""
    saved = [tensor.detach().clone() for tensor in call.tensors]
    args, kwargs = pytree.tree_map_only(torch.Tensor, lambda x: x.detach().clone(), (call.args, dict(call.kwargs)))
    try:
        with torch.no_grad():
            result = call.eager(*args, **kwargs)
            result = pytree.tree_map_only(torch.Tensor, lambda x: x.detach().clone(), result)
    finally:
        with torch.no_grad():
            for tensor, old in zip(call.tensors, saved, strict=True):
                tensor.copy_(old)
    return result, (args, kwargs)


def _array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    return np.array(np.asarray(Constant(tensor)))


def _plain(value: Any) -> np.ndarray[Any, Any]:
    return _array(value) if isinstance(value, torch.Tensor) else np.asarray(value)


def _same(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> bool:
    return left.dtype == right.dtype and left.tobytes() == right.tobytes()


def _need_runtime() -> None:
    try:
        import ptn_runtime  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "ptn_runtime":
            raise
        raise RuntimeMissingError(
            "this needs the runtime, which is not installed. Install it: pip install 'ptn-export[check]'"
        ) from None
