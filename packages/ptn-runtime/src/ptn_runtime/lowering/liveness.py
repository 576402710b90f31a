"""Which steps of a canonical graph matter, and which matter once for all input shapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ptn_runtime.errors import LoweringError
from ptn_runtime.lowering.plan import (
    Assertion,
    Call,
    CanonicalGraph,
    Control,
    Item,
    Ref,
    ScalarCall,
    Scatter,
    Step,
    Unknown,
)

__all__ = ["check_known", "drop_dead", "mark_shape_free", "mark_sizes"]


def drop_dead(steps: Sequence[Step], roots: Iterable[int]) -> list[Step]:
    """The steps that results, updates or effects depend on, in order."""
    wanted = set(roots)
    kept: list[Step] = []
    for step in reversed(steps):
        if _has_effect(step) or not wanted.isdisjoint(step.outputs):
            kept.append(step)
            wanted.update(step.reads())
    kept.reverse()
    return kept


def mark_shape_free(steps: Iterable[Step], constants: Iterable[int]) -> None:
    """Marks the calls whose results are the same for all input shapes: they read constants only."""
    free = set(constants)
    for step in steps:
        if isinstance(step, Call):
            step.shape_free = all(slot in free for slot in step.reads())
            if step.shape_free:
                free.update(step.outputs)
        elif isinstance(step, ScalarCall) and all(slot in free for slot in step.reads()):
            free.update(step.outputs)


def mark_sizes(steps: Sequence[Step]) -> None:
    """Marks the items of tensors that a size or position is computed from."""
    sizes: set[int] = set()
    for step in reversed(steps):
        if isinstance(step, Call):
            sizes.update(_sizes_of(step))
        elif isinstance(step, Scatter):
            sizes.update(_sizes_of(replace(step.view, window=None)))
        elif isinstance(step, ScalarCall) and step.output in sizes and not step.takes_tensors:
            sizes.update(step.reads())
        elif isinstance(step, Item):
            step.is_size = step.output in sizes


def _sizes_of(step: Call) -> Iterable[int]:
    if step.window is None:
        yield from (slot for _, slot, run_time in step.scalars if not run_time)
    for name, items in step.lists:
        if name in step.operator.numbers:
            yield from (item.slot for item in items if type(item) is Ref)


def check_known(method: str, graph: CanonicalGraph) -> None:
    """Raises `LoweringError` with every node that cannot be lowered, grouped by operator and reason."""
    groups: dict[tuple[str, str], list[Unknown]] = {}
    for step in _unknown_steps(graph):
        groups.setdefault((step.op, step.reason), []).append(step)
    if not groups:
        return
    count = sum(len(group) for group in groups.values())
    lines = [f"method '{method}' cannot be lowered: {count} node(s) cannot be understood."]
    for (op, reason), group in groups.items():
        lines.append(f"  {op} {reason}: {len(group)} node(s)")
        lines += [f"    '{step.name}'" + (f" from {step.source}" if step.source else "") for step in group]
    lines.append("Export the model again with decompositions for these operators, or use a newer ptn-runtime.")
    raise LoweringError("\n".join(lines))


def _unknown_steps(graph: CanonicalGraph) -> Iterable[Unknown]:
    for step in graph.steps:
        if isinstance(step, Unknown):
            yield step
        elif isinstance(step, Control):
            for nested in step.graphs:
                yield from _unknown_steps(nested)


def _has_effect(step: Step) -> bool:
    if isinstance(step, Assertion):
        return True
    return isinstance(step, Call | Unknown) and step.effect
