"""Lowers the nodes of a static graph to the native builder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from ptn_runtime.engine import StaticGraph, StaticNode, Value
from ptn_runtime.errors import ExecutionError, LoweringError
from ptn_runtime.lowering.static import ValueKind

from ptn_engine_ggml import _native
from ptn_engine_ggml.lower.index_checks import WRITERS, fails_otherwise, index_checks
from ptn_engine_ggml.lower.packed import PackedWeight, Plan, plan
from ptn_engine_ggml.lower.registry import Lowering, Outputs, operators

if TYPE_CHECKING:
    from ptn_engine_ggml._native import Builder, Executor, Tensor
    from ptn_engine_ggml.engine import GgmlContext

__all__ = ["GraphLowering"]


class GraphLowering:
    """Lowers the nodes of one graph."""

    def __init__(
        self,
        context: GgmlContext,
        graph: StaticGraph,
        *,
        nodes: Sequence[StaticNode] | None = None,
        feeds: Sequence[Value] | None = None,
        update_state: bool = True,
        decode: bool = False,
    ) -> None:
        """Makes a lowering of a graph, or of a part of it.

        Args:
            context: whose weights, state and stream to use.
            graph: the graph.
            nodes: the part; None for all, which alone may write to state before the end.
            feeds: the values that enter from outside, in order; None for the graph's inputs.
            update_state: append the graph's state updates.
            decode: lower the nodes that decode constants as they stand.
        """
        self._context = context
        self._graph = graph
        self._nodes = graph.nodes if nodes is None else nodes
        self._feeds = graph.inputs if feeds is None else feeds
        self._update_state = update_state
        self._decode = decode
        self._b: Builder = _native.Builder(context.stream, context.weights, context.state)
        self._values: dict[int, Tensor] = {}
        self._plan = Plan({}, {}, ())
        self._by_memory: dict[int, list[int]] = {}
        self._state_keys: dict[int, str | None] = {}
        self._writable: set[str | None] = set()
        self._last_uses: Mapping[int, int] = {}
        self._first_safe = 0
        self._makers: dict[int, int] = {}
        if update_state and nodes is None:
            self._writable = {update.old.key for update in graph.state_updates if update.in_place}
            if self._writable:
                self._last_uses = graph.last_uses()
                self._first_safe = _first_safe(graph)

    def executor(self, wanted: Sequence[Value]) -> Executor:
        """Lowers everything and gives what computes `wanted` and updates the state."""
        b = self._b
        for value in self._feeds:
            self._define(value, b.input(int(value.dtype), value.shape))
        self._define_outside(wanted)
        if not self._decode:
            needed = {value.id for value in wanted}
            needed.update(update.new.id for update in self._graph.state_updates)
            self._plan = plan(self._nodes, self._graph.constants, needed)
        table = operators()
        for index, node in enumerate(self._nodes):
            self._lower(index, node, table)
        outputs = [self._result(value) for value in wanted]
        if self._update_state:
            outputs = self._assign_states(outputs)
        try:
            return _native.Executor(b, outputs, [value.dtype.numpy for value in wanted])
        except RuntimeError as error:
            raise ExecutionError(f"ggml cannot prepare method '{self._graph.method}': {error}") from error

    def _result(self, value: Value) -> Tensor:
        """A value as what can be read after the run: an input that no node reads has no memory of its own."""
        tensor = self._values[value.id]
        self._b.set_op("a result", self._makers.get(value.id, -1))
        return self._b.copy(tensor) if tensor.is_input else self._b.contiguous(tensor)

    def _define_outside(self, wanted: Sequence[Value]) -> None:
        """Constants and state: those that this part reads, or all where it is the whole graph."""
        graph = self._graph
        used: set[int] | None = None
        if self._nodes is not graph.nodes:
            used = {value.id for node in self._nodes for value in node.inputs()}
            used.update(value.id for value in wanted)
            used.update(v.id for update in graph.state_updates for v in (update.old, update.new))
        for value in graph.constants:
            if value.id not in self._values and (used is None or value.id in used):
                self._define(value, self._constant(value))
        for value in graph.states:
            if value.id not in self._values and (used is None or value.id in used):
                assert value.key is not None
                tensor = self._b.state(value.key)
                self._state_keys[tensor.memory] = value.key
                self._define(value, tensor)

    def _define(self, value: Value, tensor: Tensor) -> None:
        self._values[value.id] = tensor
        if tensor.is_state:
            self._by_memory.setdefault(tensor.memory, []).append(value.id)

    def _constant(self, value: Value) -> Tensor:
        if value.key is None:
            assert value.data is not None
            return self._b.literal(int(value.dtype), value.shape, np.ascontiguousarray(value.data, value.dtype.numpy))
        self._context.load_constant(value)
        tensor = self._b.constant(value.key)
        assert tensor is not None
        return tensor

    def _lower(self, index: int, node: StaticNode, table: Mapping[str, Lowering]) -> None:
        b = self._b
        for value in node.outputs[:1]:
            if value.id in self._plan.packed or value.id in self._plan.skipped:
                return
            if value.id in self._plan.once:
                self._define(value, self._decoded(self._plan.once[value.id]))
                return
        empty = all(value.numel == 0 for value in node.outputs)
        if empty or self._writable:
            b.set_op(node.op, index)
            for check in index_checks(node, empty=empty):
                b.require_index(self._values[check.index.id], check.axis, check.size, check.negative)
        if empty:
            for value in node.outputs:
                self._define(value, b.empty(int(value.dtype), value.shape))
            return
        lowering = table[node.op]
        out = Outputs(node.outputs)
        out.in_place = self._may_overwrite(index, node)
        b.set_op(node.op, index)
        values = self._values
        args: dict[str, Any] = {}
        for name, arg in node.args.items():
            if isinstance(arg, Value):
                weight = self._plan.packed.get(arg.id)
                args[name] = values[arg.id] if weight is None else self._with_tensors(weight)
            elif isinstance(arg, tuple) and any(isinstance(item, Value) for item in arg):
                args[name] = tuple([values[item.id] if isinstance(item, Value) else item for item in arg])
            else:
                args[name] = arg
        try:
            result = lowering.function(b, out, **args)
        except (TypeError, ValueError, RuntimeError, ArithmeticError, LookupError, AttributeError) as error:
            raise LoweringError(f"the ggml engine cannot build {node.describe()}: {error}") from error
        results = result if isinstance(result, tuple) else (result,)
        for value, tensor in zip(node.outputs, results, strict=True):
            if tensor.dtype != value.dtype or tensor.shape != value.shape:
                raise LoweringError(
                    f"the ggml engine's lowering of {node.describe()} gave dtype {tensor.dtype}{list(tensor.shape)} "
                    f"for {value}"
                )
            self._define(value, tensor)
            self._makers[value.id] = index

    def _decoded(self, nodes: Sequence[StaticNode]) -> Tensor:
        """What `nodes` compute from constants alone: computed once, then one of the context's constants."""
        weights = self._context.weights
        (value,) = nodes[-1].outputs
        key = "decoded " + "; ".join(_text(node) for node in nodes)
        if key not in weights:
            lowering = GraphLowering(self._context, self._graph, nodes=nodes, feeds=(), update_state=False, decode=True)
            (array,) = lowering.executor([value]).run([])
            weights.add(key, int(value.dtype), value.shape, array)
        tensor = self._b.constant(key)
        assert tensor is not None
        return tensor

    def _with_tensors(self, weight: PackedWeight) -> tuple[PackedWeight, list[Tensor]]:
        return weight, [self._values[id_] for id_ in weight.tensors]

    def _may_overwrite(self, index: int, node: StaticNode) -> bool:
        """Whether the node may write to the memory of its first argument: state that nobody reads afterwards."""
        if not self._writable or index < self._first_safe:
            return False
        first = next(iter(node.args.values()), None)
        if not isinstance(first, Value) or first.id not in self._values:
            return False
        tensor = self._values[first.id]
        if not tensor.is_state or not tensor.is_contiguous or tensor.shape != node.outputs[0].shape:
            return False
        aliases = self._by_memory[tensor.memory]
        if sum(value.id in aliases for value in node.inputs()) > 1:
            return False  # it would read what it writes
        if self._state_keys[tensor.memory] not in self._writable:
            return False
        return all(self._last_uses.get(alias, -1) <= index for alias in aliases)

    def _assign_states(self, outputs: list[Tensor]) -> list[Tensor]:
        """Appends the writes of new state; gives `outputs` with copies of those that the writes would change."""
        b = self._b
        pending: list[tuple[Tensor, Tensor]] = []
        makers: dict[int, int] = {}
        for update in self._graph.state_updates:
            target, new = self._values[update.old.id], self._values[update.new.id]
            if update.old.kind is not ValueKind.STATE:
                raise LoweringError(f"state '{update.old.key}' is updated through {update.old}, which is no state")
            stays = new.is_state and new.memory == target.memory and new.strides == target.strides
            if new.numel == 0 or (stays and new.is_contiguous):
                continue
            pending.append((target, new))
            makers[target.memory] = self._makers.get(update.new.id, -1)
        written = {target.memory for target, _ in pending}
        outputs = [b.copy(x) if x.numel and x.memory in written else x for x in outputs]
        # A new value that lives in another state's memory moves out before anything is written.
        pending = [(target, b.copy(new) if new.is_state else new) for target, new in pending]
        for target, new in pending:
            b.set_op("a state", makers[target.memory])
            b.assign(target, new)
        return outputs


def _first_safe(graph: StaticGraph) -> int:
    """The first node from which on state may be written: no node after it can fail in a way not known before.

    Indices are checked before the first write. That cannot be done where they come from what was written.
    """
    reached = {value.id for value in graph.states}
    written: set[int] = set()
    first = 0
    for place, node in enumerate(graph.nodes):
        inputs = [value.id for value in node.inputs()]
        if fails_otherwise(node) or any(check.index.id in written for check in index_checks(node)):
            first = place + 1
        if not reached.isdisjoint(inputs):
            reached.update(value.id for value in node.outputs)
            if node.op in WRITERS or not written.isdisjoint(inputs):
                written.update(value.id for value in node.outputs)
    return first


def _text(node: StaticNode) -> str:
    """What a node that reads only constants computes."""
    args = ((arg.key or f"{arg.dtype} {arg.shape}") if isinstance(arg, Value) else arg for arg in node.args.values())
    return f"{node.op}({', '.join(map(str, args))}) {node.outputs[0].dtype} {node.outputs[0].shape}"
