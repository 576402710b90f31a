"""What can go wrong at run time. Damaged files raise `ptn_format.FormatError` instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "ClosedError",
    "DeviceError",
    "EngineError",
    "EngineLoadError",
    "EngineNotFoundError",
    "EngineVersionError",
    "ExecutionError",
    "IndexOutOfRangeError",
    "InputError",
    "LoweringError",
    "MethodNotFoundError",
    "PtnRuntimeError",
    "StateError",
    "UnsupportedMethodError",
    "UnsupportedNode",
]


class PtnRuntimeError(Exception):
    """Base of everything that this package raises."""


class InputError(PtnRuntimeError, ValueError):
    """An argument of a call does not fit; the text names it and says what is allowed."""


class IndexOutOfRangeError(InputError, IndexError):
    """A value used as an index lies outside the axis that it selects from."""


class StateError(PtnRuntimeError, KeyError):
    """There is no such state, or a value does not fit it."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class MethodNotFoundError(PtnRuntimeError, KeyError):
    """The program has no such method."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ClosedError(PtnRuntimeError):
    """The model, session or engine object was closed before."""


class LoweringError(PtnRuntimeError):
    """The program cannot be turned into a static graph: the text names the node and why."""


class ExecutionError(PtnRuntimeError):
    """The engine failed while it ran."""


class EngineError(PtnRuntimeError):
    """Base of what concerns choosing and loading an engine."""


class EngineNotFoundError(EngineError):
    """No engine of that name is installed."""


class EngineVersionError(EngineError):
    """An engine was written for another engine API."""


class EngineLoadError(EngineError):
    """An installed engine could not be loaded."""


class DeviceError(EngineError):
    """The engine has no such device."""


@dataclass(frozen=True, slots=True)
class UnsupportedNode:
    """One node that an engine refuses.

    Attributes:
        node: the node's description: name, operator, source line.
        reason: why the engine refuses it.
        engines: names of installed engines that can run it.
    """

    node: str
    reason: str
    engines: tuple[str, ...] = ()


class UnsupportedMethodError(EngineError):
    """An engine cannot run a method; lists every node that it refuses."""

    def __init__(self, engine: str, method: str, nodes: Sequence[UnsupportedNode]) -> None:
        self.engine = engine
        self.method = method
        self.nodes = tuple(nodes)
        lines = [f"engine '{engine}' cannot run method '{method}': {len(nodes)} node(s) refused."]
        for item in nodes:
            line = f"  {item.node}: {item.reason}"
            if item.engines:
                line += f" Engines that can: {', '.join(item.engines)}."
            lines.append(line)
        super().__init__("\n".join(lines))
