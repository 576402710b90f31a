"""Puts the stages of one way through a method together: the graph of a whole run, for people and tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ptn_runtime.lowering.stages import Cut
from ptn_runtime.lowering.static import StateUpdate, StaticGraph, StaticNode, Value, ValueKind

__all__ = ["Joined", "join"]


@dataclass(frozen=True, slots=True)
class Joined:
    """The graph of a whole run.

    Attributes:
        graph: the nodes of all stages; between two of them, as a node `on_host`, what the runtime did. Ids are dense
            and the same in all graphs that begin with the same stages; nested graphs keep those of their stage.
        node_ids: for each stage the ids in `graph` of its nodes' results, by their ids in the stage.
        host_ids: for each cut the ids of the operator's results; none where a number is read.
    """

    graph: StaticGraph
    node_ids: tuple[Mapping[int, int], ...]
    host_ids: tuple[tuple[int, ...], ...]


class _Joiner:
    def __init__(self) -> None:
        self.values: dict[int, Value] = {}  # by id() of the stages' values
        self.constants: list[Value] = []
        self.states: dict[str, Value] = {}
        self.nodes: list[StaticNode] = []
        self.next_id = 0

    def new(self, value: Value) -> Value:
        """A value of the whole graph for one of a stage."""
        copy = replace(value, id=self.next_id)
        self.next_id += 1
        self.values[id(value)] = copy
        return copy

    def read(self, graph: StaticGraph) -> None:
        """Enters what a stage reads beside its inputs."""
        for value in graph.constants:
            self.constants.append(self.new(value))
        for value in graph.states:
            key = value.key or ""
            if key in self.states:
                self.values[id(value)] = self.states[key]
            else:
                self.states[key] = self.new(value)

    def of(self, arg: Any) -> Any:
        """An argument in terms of the whole graph."""
        if isinstance(arg, Value):
            return self.values.get(id(arg)) or self._late(arg)
        return tuple(self.of(item) for item in arg) if isinstance(arg, tuple) else arg

    def _late(self, value: Value) -> Value:
        """A constant that only the host reads."""
        copy = self.new(value)
        self.constants.append(copy)
        return copy

    def add(self, node: StaticNode, outputs: tuple[Value, ...]) -> StaticNode:
        """Enters a node of a stage, or of a cut."""
        args = {name: self.of(arg) for name, arg in node.args.items()}
        whole = replace(node, args=args, outputs=tuple(self.new(value) for value in outputs))
        self.nodes.append(whole)
        return whole


def join(graphs: Sequence[StaticGraph]) -> Joined:
    """The graph of a run through these stages.

    Args:
        graphs: the stages in order; the last one may have a cut, where what follows it is not known.
    """
    joiner = _Joiner()
    inputs = tuple(joiner.new(value) for value in graphs[0].inputs)
    node_ids: list[Mapping[int, int]] = []
    host_ids: list[tuple[int, ...]] = []
    for index, graph in enumerate(graphs):
        joiner.read(graph)
        for node in graph.nodes:
            joiner.add(node, node.outputs)
        node_ids.append({value.id: joiner.values[id(value)].id for node in graph.nodes for value in node.outputs})
        if index + 1 < len(graphs):
            assert graph.cut is not None
            host_ids.append(_cross(joiner, graph.cut, graphs[index + 1]))
    last = graphs[-1]
    whole = StaticGraph(
        method=last.method,
        inputs=inputs,
        constants=tuple(joiner.constants),
        states=tuple(joiner.states.values()),
        nodes=tuple(joiner.nodes),
        outputs=() if last.cut is not None else tuple(joiner.of(value) for value in last.outputs),
        results=() if last.cut is not None else tuple(joiner.of(item) for item in last.results),
        state_updates=tuple(
            StateUpdate(joiner.of(update.old), joiner.of(update.new), update.in_place) for update in last.state_updates
        ),
        input_updates=tuple((joiner.of(old), joiner.of(new)) for old, new in last.input_updates),
    )
    return Joined(whole, tuple(node_ids), tuple(host_ids))


def _cross(joiner: _Joiner, cut: Cut, later: StaticGraph) -> tuple[int, ...]:
    """Enters what happens at a cut, and what the inputs of the stage after it are."""
    carried = len(cut.carried)
    for value, given in zip(cut.carried, later.inputs[:carried], strict=True):
        joiner.values[id(given)] = joiner.of(value)
    results = later.inputs[carried:]
    whole = joiner.add(cut.node, results)
    for value in whole.outputs:
        value.kind = ValueKind.NODE
    return tuple(value.id for value in whole.outputs)
