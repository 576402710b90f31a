"""The errors of one specialisation: what went wrong at a step, in the caller's terms."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ptn_runtime.errors import InputError, LoweringError, PtnRuntimeError
from ptn_runtime.lowering.plan import Assertion, CanonicalGraph, Step, describe
from ptn_runtime.lowering.stages import NeedError
from ptn_runtime.lowering.static import TensorSpec, Value
from ptn_runtime.shapes import DataDependentError

__all__ = ["Messages", "condition_of"]


class Messages:
    """Makes the errors of one specialisation."""

    def __init__(
        self, graph: CanonicalGraph, inputs: Sequence[TensorSpec], names: Mapping[str, str], dynamic: bool
    ) -> None:
        self.method = graph.name
        self.dynamic = dynamic
        self.found: tuple[str, ...] = ()  # what the data gave at the cuts so far
        self.inputs = {
            name: (names.get(name, name), spec.shape) for (_, name), spec in zip(graph.inputs, inputs, strict=True)
        }

    def after(self, fact: str) -> Messages:
        """The messages of the stage after a cut: sizes depend on what the data gave, so a misfit is the caller's."""
        later = copy.copy(self)
        later.dynamic = True
        later.found = (*self.found, fact)
        return later

    def raise_for(self, step: Step, error: Exception, shapes: str) -> NoReturn:
        """Raises what `error` at `step` means for the caller."""
        where = f"method '{self.method}', {describe(step)}"
        if isinstance(error, DataDependentError | NeedError):
            raise LoweringError(f"{where}: {error}") from error
        if isinstance(error, LoweringError):
            raise LoweringError(f"{where}: {error}") from error
        if isinstance(error, ValueError) and not isinstance(error, PtnRuntimeError):
            if self.dynamic:
                raise InputError(f"{where} cannot run on {shapes}: {error}. Input shapes: {self.listed()}") from error
            raise LoweringError(f"{where} cannot run on {shapes}: {error}") from error
        raise LoweringError(f"{where}: internal error, {type(error).__name__}: {error}") from error

    def raise_assertion(self, step: Assertion, values: tuple[Any, ...]) -> NoReturn:
        """Raises for an assertion of the program that does not hold."""
        parts = []
        for name, axis in step.origins:
            if name in self.inputs:
                shown, shape = self.inputs[name]
                parts.append(f"input '{shown}' has size {shape[axis]} on axis {axis % len(shape)}")
        about = "; ".join([*parts, *self.found]) if parts else f"input shapes: {self.listed()}"
        condition = condition_of(step, values)
        where = f" from {step.source}" if step.source else ""
        raise InputError(
            f"method '{self.method}': an assertion of the program{where} does not hold: {condition} ({about})"
        )

    def listed(self) -> str:
        """The input shapes for messages."""
        shapes = ", ".join(f"{name}{list(shape)}" for name, shape in self.inputs.values()) or "none"
        return f"{shapes}; from the data: {', '.join(self.found)}" if self.found else shapes


def condition_of(step: Assertion, values: tuple[Any, ...]) -> str:
    """What an assertion of the program demands: the program's own text, or one made of the arguments' values."""
    if step.message:
        return step.message
    value, *limits = (f"'{value.name}'" if isinstance(value, Value) else value for value in values)
    if not limits:
        return f"{value} must be true"
    low, high = ("" if limit is None else limit for limit in (*limits, None)[:2])
    return f"{value} must lie in {low}..{high}"
