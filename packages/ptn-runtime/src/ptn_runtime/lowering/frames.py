"""Where a specialisation stands: a graph body, its values, the next step; and what the rest of the program reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ptn_runtime.lowering.plan import Assertion, CanonicalGraph, Ref, ScalarCall
from ptn_runtime.lowering.static import Value, ValueKind

__all__ = ["Frame", "copied", "hints", "is_computed", "live_values"]

_UPPER = {"_operator.le": 0, "_operator.lt": -1}
_LOWER = {"_operator.ge": 0, "_operator.gt": 1}


@dataclass(eq=False, slots=True)
class Frame:
    """One graph body that is being specialised. Above it on the stack stands the branch that its step has entered.

    Attributes:
        graph: the body.
        env: its values by slot.
        position: index of the step that is next, or that has entered a branch.
    """

    graph: CanonicalGraph
    env: list[Any]
    position: int = 0


def _live_slots(frame: Frame, start: int) -> Iterator[int]:
    """The slots that steps from `start` on read, and what the body gives; later ones first, with repetitions."""
    graph = frame.graph
    for old, new in (*graph.state_updates, *graph.input_updates):
        yield old
        yield new
    for item in graph.results:
        if type(item) is Ref:
            yield item.slot
    for step in graph.steps[start:]:
        yield from step.reads()


def _starts(frames: Sequence[Frame], start: int) -> Iterator[tuple[Frame, int]]:
    """Each frame with the first step that is still to be read; `start` is that of the innermost one."""
    for frame in frames[:-1]:
        yield frame, frame.position + 1
    yield frames[-1], start


def live_values(frames: Sequence[Frame], start: int) -> list[Value]:
    """The values, each once, that the rest of the program reads.

    Args:
        frames: the stack, outermost first.
        start: the innermost frame's first step of the rest.
    """
    found: dict[int, Value] = {}
    for frame, first in _starts(frames, start):
        for slot in _live_slots(frame, first):
            value = frame.env[slot]
            if type(value) is Value:
                found[id(value)] = value
    return list(found.values())


def copied(frames: Sequence[Frame], start: int, new: Callable[[Value], Value]) -> list[Frame]:
    """The stack with every live value replaced by what `new` gives for it, once per value; the innermost goes on at
    `start`.
    """
    known: dict[int, Value] = {}
    stack = []
    for frame, first in _starts(frames, start):
        env: list[Any] = [None] * len(frame.env)
        for slot in _live_slots(frame, first):
            value = frame.env[slot]
            if type(value) is Value:
                if id(value) not in known:
                    known[id(value)] = new(value)
                value = known[id(value)]
            env[slot] = value
        stack.append(Frame(frame.graph, env, start if frame is frames[-1] else frame.position))
    return stack


def hints(frames: Sequence[Frame], number: Value) -> tuple[int, ...]:
    """The numbers that the rest of the program compares `number` with: upper bounds, then lower ones."""
    upper: list[int] = []
    lower: list[int] = []
    for frame in frames:
        slots = {slot for slot, value in enumerate(frame.env) if value is number}
        # The step that asks for a number often is what fills its slot.
        if frame is frames[-1] and frame.position < len(frame.graph.steps):
            slots.update(frame.graph.steps[frame.position].outputs)
        for step in frame.graph.steps[frame.position :]:
            args = step.args if isinstance(step, Assertion | ScalarCall) else ()
            if len(args) < 2 or type(args[0]) is not Ref or args[0].slot not in slots:
                continue
            if isinstance(step, Assertion):
                lower += [arg for arg in args[1:2] if isinstance(arg, int)]
                upper += [arg for arg in args[2:3] if isinstance(arg, int)]
            elif isinstance(args[1], int):
                upper += [args[1] + _UPPER[step.op]] if step.op in _UPPER else []
                lower += [args[1] + _LOWER[step.op]] if step.op in _LOWER else []
    return (*sorted(upper), *sorted(lower, reverse=True))


def is_computed(value: Value) -> bool:
    """Whether a value must be handed on between stages: what is constant or state, each stage reads by itself."""
    return value.kind in (ValueKind.NODE, ValueKind.INPUT)
