"""Completes a static graph: drops dead nodes, numbers values, marks updates that may happen in place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ptn_runtime.errors import LoweringError
from ptn_runtime.lowering.static import StateUpdate, StaticGraph, StaticNode, Value, ValueKind
from ptn_runtime.lowering.views import INVERSES

__all__ = ["finish"]

Pair = tuple[Value, Value]
Result = Value | bool | int | float | None


def finish(
    method: str,
    *,
    inputs: tuple[Value, ...],
    states: Sequence[Value],
    nodes: Sequence[StaticNode],
    results: tuple[Result, ...],
    state_updates: Sequence[Pair],
    input_updates: Sequence[Pair],
) -> StaticGraph:
    """Makes the graph out of its parts.

    Args:
        method: the method's name.
        inputs: user inputs.
        states: the states that may be read or written; those that are not are left out.
        nodes: calls in execution order, dead ones included.
        results: user results.
        state_updates: pairs (state, its new contents); those that change nothing are left out.
        input_updates: pairs (input, its new contents); likewise.
    """
    state_updates = [(old, new) for old, new in state_updates if new is not old]
    input_updates = [(old, new) for old, new in input_updates if new is not old]
    for old, new in (*state_updates, *input_updates):
        if new.dtype is not old.dtype or new.shape != old.shape:
            raise LoweringError(f"method '{method}' writes {new} to {old}: both must be the same")
    outputs = tuple(result for result in results if isinstance(result, Value))
    roots = [*outputs, *(new for _, new in state_updates), *(new for _, new in input_updates)]
    live = _live(nodes, roots)
    read: dict[int, Value] = {id(value): value for node in live for value in node.inputs()}
    read.update((id(value), value) for value in roots)
    written = {id(old) for old, _ in state_updates}
    graph = StaticGraph(
        method=method,
        inputs=inputs,
        constants=tuple(value for value in read.values() if value.kind is ValueKind.CONSTANT),
        states=tuple(value for value in states if id(value) in read or id(value) in written),
        nodes=tuple(live),
        outputs=outputs,
        results=results,
        state_updates=_updates(live, outputs, state_updates, input_updates),
        input_updates=tuple(input_updates),
    )
    _number(graph, 0)
    return graph


def _live(nodes: Sequence[StaticNode], roots: Iterable[Value]) -> list[StaticNode]:
    wanted = {id(value) for value in roots}
    kept: list[StaticNode] = []
    for node in reversed(nodes):
        # A node without results is an assertion.
        if not node.outputs or any(id(value) in wanted for value in node.outputs):
            kept.append(node)
            for value in node.inputs():
                wanted.add(id(value))
    kept.reverse()
    return kept


def _number(graph: StaticGraph, next_id: int) -> int:
    """Gives every value its id; nested graphs go on where their parent's node stands."""
    for value in (*graph.inputs, *graph.constants, *graph.states):
        value.id = next_id
        next_id += 1
    for node in graph.nodes:
        for nested in node.subgraphs():
            next_id = _number(nested, next_id)
        for value in node.outputs:
            value.id = next_id
            next_id += 1
    return next_id


def _updates(
    nodes: Sequence[StaticNode],
    outputs: Sequence[Value],
    state_updates: Sequence[Pair],
    input_updates: Sequence[Pair],
) -> tuple[StateUpdate, ...]:
    if not state_updates:
        return ()
    # Engines may let the result of a view share its argument's memory, so a read of the view reads the base.
    base: dict[int, int] = {}
    producer: dict[int, int] = {}
    last_read: dict[int, int] = {}
    for index, node in enumerate(nodes):
        for value in node.inputs():
            last_read[base.get(id(value), id(value))] = index
        for value in node.outputs:
            producer[id(value)] = index
        if node.op in INVERSES:
            source = next(node.inputs())
            root = base.get(id(source), id(source))
            base.update((id(value), root) for value in node.outputs)
    kept = [*outputs, *(new for _, new in state_updates), *(new for _, new in input_updates)]
    kept_bases = {base.get(id(value), id(value)) for value in kept}
    taken: set[int] = set()
    updates = []
    for old, new in state_updates:
        made = producer.get(id(new))
        in_place = (
            made is not None
            and last_read.get(id(old), -1) <= made
            and id(old) not in kept_bases
            and id(new) not in base
            and id(new) not in taken
        )
        if in_place:
            taken.add(id(new))
        updates.append(StateUpdate(old, new, in_place))
    return tuple(updates)
