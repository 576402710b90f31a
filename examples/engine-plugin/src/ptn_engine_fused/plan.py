"""From a static graph to steps: chains of element-wise operators, nested graphs, and single kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from ptn_runtime.engine import Array, StaticGraph, StaticNode, Value
from ptn_runtime.errors import ExecutionError, IndexOutOfRangeError, InputError, PtnRuntimeError
from ptn_runtime.lowering.static import literal
from ptn_runtime.reference import evaluate

from ptn_engine_fused.chain import Chain, is_fusible

__all__ = ["CONTROL", "Plan"]

CONTROL = frozenset({"control.cond", "control.while_loop", "control.map", "control.scan"})
"""Operators with nested graphs, which have no kernel: the engine runs them itself."""

Values = dict[int, Array]


class Step(Protocol):
    """Something that reads values and adds others."""

    nodes: tuple[StaticNode, ...]

    def run(self, values: Values) -> None:
        """Runs once."""


class Plan:
    """The steps of a graph (or nested graph), and after which step each value is no longer needed."""

    def __init__(self, graph: StaticGraph, constant: Callable[[str], Array], block: int) -> None:
        self.graph = graph
        self._constants = {
            value.id: literal(value) if value.key is None else constant(value.key) for value in graph.constants
        }
        last = graph.last_uses()
        self.steps: list[Step] = []
        self._frees: list[tuple[int, ...]] = []
        start = 0
        while start < len(graph.nodes):
            stop = _end_of_chain(graph.nodes, start)
            nodes = graph.nodes[start:stop]
            if len(nodes) > 1:
                kept = {value.id for node in nodes for value in node.outputs if last.get(value.id, -1) >= stop}
                self.steps.append(Chain(nodes, kept, block))
            else:
                self.steps.append(_Single(nodes[0], constant, block))
            made_and_read = {value.id for node in nodes for value in (*node.inputs(), *node.outputs)}
            # Inputs, constants and states stay: the build compares their memory with that of the results.
            fixed = {value.id for value in (*graph.inputs, *graph.constants, *graph.states)}
            self._frees.append(tuple(i for i in made_and_read - fixed if last.get(i, -1) < stop))
            start = stop

    def run(self, inputs: Sequence[Array], states: Mapping[int, Array]) -> Values:
        """Every value that is still there at the end, by id."""
        values: Values = {**self._constants, **states}
        values.update((value.id, array) for value, array in zip(self.graph.inputs, inputs, strict=True))
        with np.errstate(all="ignore"):
            for step, frees in zip(self.steps, self._frees, strict=True):
                step.run(values)
                for i in frees:
                    values.pop(i, None)
        return values

    def call(self, operands: Sequence[Array]) -> tuple[Array, ...]:
        """Runs a nested graph."""
        values = self.run(operands, {})
        return tuple(values[value.id] for value in self.graph.outputs)


def _end_of_chain(nodes: Sequence[StaticNode], start: int) -> int:
    """The index behind the last of the neighbours that can run as one chain with `nodes[start]`."""
    stop = start + 1
    if is_fusible(nodes[start]):
        first = nodes[start].output
        while stop < len(nodes) and is_fusible(nodes[stop]):
            value = nodes[stop].output
            if (value.shape, value.dtype) != (first.shape, first.dtype):
                break
            stop += 1
    return stop


class _Single:
    """One node: a nested graph, or a kernel of the reference engine."""

    def __init__(self, node: StaticNode, constant: Callable[[str], Array], block: int) -> None:
        self.nodes: tuple[StaticNode, ...] = (node,)
        self._node = node
        self._plans = {
            name: Plan(arg, constant, block) for name, arg in node.args.items() if isinstance(arg, StaticGraph)
        }

    def run(self, values: Values) -> None:
        node = self._node
        args = {name: _resolve(arg, values) for name, arg in node.args.items() if name not in self._plans}
        try:
            results = self._control(args) if node.op in CONTROL else evaluate(node.op, args, node.outputs)
        except PtnRuntimeError as error:
            raise _located(node, error) from error
        except Exception as error:
            raise ExecutionError(f"{node.describe()} failed: {error}") from error
        for value, array in zip(node.outputs, results, strict=True):
            values[value.id] = array

    def _control(self, args: Mapping[str, Any]) -> tuple[Array, ...]:
        plans = self._plans
        if self._node.op == "control.cond":
            return plans["true_fn" if args["pred"].item() else "false_fn"].call(args["operands"])
        if self._node.op == "control.while_loop":
            carried, more = tuple(args["carried_inputs"]), tuple(args["additional_inputs"])
            while plans["cond_fn"].call((*carried, *more))[0].item():
                carried = plans["body_fn"].call((*carried, *more))
            return carried
        if self._node.op == "control.map":
            return self._rows(plans["f"], (), args["xs"], tuple(args["pos_args"]))
        return self._rows(plans["combine_fn"], tuple(args["init"]), args["xs"], tuple(args["additional_inputs"]))

    def _rows(
        self, plan: Plan, carried: tuple[Array, ...], xs: tuple[Array, ...], more: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        """Runs a nested graph on each row of `xs`: what it carries on, then its other results stacked."""
        count = len(carried)
        stacked = tuple(np.empty(value.shape, value.dtype.numpy) for value in self._node.outputs[count:])
        for row in range(xs[0].shape[0]):
            # `...` keeps rows of one axis as 0-d arrays.
            results = plan.call((*carried, *(x[row, ...] for x in xs), *more))
            carried = results[:count]
            for stack, array in zip(stacked, results[count:], strict=True):
                stack[row, ...] = array
        return (*carried, *stacked)


def _resolve(arg: Any, values: Values) -> Any:
    if isinstance(arg, Value):
        return values[arg.id]
    return tuple(_resolve(item, values) for item in arg) if isinstance(arg, tuple) else arg


def _located(node: StaticNode, error: PtnRuntimeError) -> PtnRuntimeError:
    """The error with the node that raised it; one from a nested graph has its own."""
    text = str(error)
    if text.startswith("node '"):
        return error
    kind = type(error) if isinstance(error, IndexOutOfRangeError | InputError) else ExecutionError
    return kind(f"{node.describe()}: {text}")
