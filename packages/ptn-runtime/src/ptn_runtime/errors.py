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
    "NoEngineError",
    "PtnRuntimeError",
    "Refusal",
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
        op: canonical name of the operator.
        method: the method that the node belongs to.
        name: the node's name in the file.
        source: the user's `file:line`, where the file has it.
    """

    node: str
    reason: str
    engines: tuple[str, ...] = ()
    op: str = ""
    method: str = ""
    name: str = ""
    source: str | None = None

    def __str__(self) -> str:
        text = f"{self.node}: {self.reason.rstrip('.')}."
        if self.engines:
            text += f" Engines that can: {', '.join(self.engines)}."
        return text


_SHOWN_NODES = 20
"""Refused nodes that the text of an error lists; its `nodes` have all."""


class UnsupportedMethodError(EngineError):
    """An engine cannot run a method; knows every node that it refuses.

    Attributes:
        engine: the engine's name.
        method: the method's name; several are separated by commas.
        nodes: every refused node.
    """

    def __init__(self, engine: str, method: str, nodes: Sequence[UnsupportedNode]) -> None:
        self.engine = engine
        self.method = method
        self.nodes = tuple(nodes)
        several = "," in method
        count = "1 node is" if len(self.nodes) == 1 else f"{len(self.nodes)} nodes are"
        lines = [
            f"engine '{engine}' cannot run method{'s' if several else ''} "
            f"{', '.join(repr(name.strip()) for name in method.split(','))}: {count} not supported."
        ]
        shown = self.nodes if len(self.nodes) <= _SHOWN_NODES + 1 else self.nodes[:_SHOWN_NODES]
        lines += [f"  {f'{item.method}: ' if several and item.method else ''}{item}" for item in shown]
        if len(shown) < len(self.nodes):
            lines.append(
                f"  and {len(self.nodes) - len(shown)} more: `nodes` of this error has all, 'ptn check' groups them."
            )
        super().__init__("\n".join(lines))


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an engine was not chosen for a program.

    Attributes:
        engine: the engine's name.
        device: the device that was asked; None where it did not come that far.
        reason: one sentence.
        nodes: every node that the engine refuses, where that is the reason.
    """

    engine: str
    device: str | None
    reason: str
    nodes: tuple[UnsupportedNode, ...] = ()

    def __str__(self) -> str:
        if self.reason.startswith(f"engine '{self.engine}'"):
            return self.reason
        where = f"engine '{self.engine}'" + (f" on {self.device}" if self.device else "")
        return f"{where}: {self.reason}"


class NoEngineError(EngineError):
    """No installed engine runs every method of the program.

    Attributes:
        refused: one entry per engine and device that was tried.
    """

    def __init__(self, message: str, refused: Sequence[Refusal] = ()) -> None:
        super().__init__(message)
        self.refused = tuple(refused)
