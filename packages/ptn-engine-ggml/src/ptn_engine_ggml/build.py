"""One static graph for one context, ready to execute: in one native call, unless it holds control flow."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from ptn_runtime.engine import Array, EngineBuild, RunResult, StaticGraph, StaticNode, Value
from ptn_runtime.errors import ClosedError, ExecutionError, IndexOutOfRangeError
from ptn_runtime.lowering.static import TensorSpec, ValueKind
from ptn_runtime.reference.control import OPERATORS as CONTROL_OPERATORS
from ptn_runtime.reference.registry import KERNELS as REFERENCE_KERNELS
from ptn_runtime.reference.registry import Outputs as HostOutputs

from ptn_engine_ggml import _native
from ptn_engine_ggml.graph import GraphLowering
from ptn_engine_ggml.lower.registry import HOST_OPERATORS

if TYPE_CHECKING:
    from ptn_engine_ggml._native import Executor
    from ptn_engine_ggml.engine import GgmlContext

__all__ = ["GgmlBuild"]

_STORED = (ValueKind.CONSTANT, ValueKind.STATE)


class GgmlBuild(EngineBuild):
    """One static graph, ready to execute on a context's stream."""

    def __init__(self, context: GgmlContext, graph: StaticGraph) -> None:
        self._context = context
        self._graph = graph
        self._num_outputs = len(graph.outputs)
        wanted = [*graph.outputs, *(new for _, new in graph.input_updates)]
        self._runner: Runner | None = Runner(context, graph, wanted)

    def run(self, inputs: Sequence[Array]) -> RunResult:
        """Runs once; see `EngineBuild.run`."""
        if self._runner is None:
            raise ClosedError("this build was closed")
        arrays = self._runner.run(inputs)
        if self._num_outputs == len(arrays):
            return RunResult(arrays)
        return RunResult(arrays[: self._num_outputs], arrays[self._num_outputs :])

    def trace(self, inputs: Sequence[Array]) -> Mapping[int, Array]:
        """Runs once on a build that keeps every node's results and leaves state alone."""
        values = [value for node in self._graph.nodes for value in node.outputs]
        arrays = Runner(self._context, self._graph, values, update_state=False).run(inputs)
        return {value.id: array for value, array in zip(values, arrays, strict=True)}

    def profile(self, inputs: Sequence[Array]) -> Mapping[int, float]:
        """Runs once, node by node, on the memory of `run`; state is put back.

        A copy for a result, or of a new value into the state, counts for the node that made it.
        """
        if self._runner is None:
            raise ClosedError("this build was closed")
        keys = [update.old.key for update in self._graph.state_updates if update.old.key is not None]
        saved = {key: self._context.read_state(key) for key in keys}
        seconds: dict[int, float] = {}
        try:
            self._runner.run(inputs, seconds)
        finally:
            for key, array in saved.items():
                self._context.write_state(key, array)
        return seconds

    def close(self) -> None:
        """Frees the graph's memory."""
        self._runner = None


def execute(
    executor: Executor,
    inputs: Sequence[Array],
    nodes: Sequence[StaticNode],
    seconds: dict[int, float] | None = None,
    start: int = 0,
) -> list[Array]:
    """Runs an executor made of `nodes`, with native errors as those of the runtime.

    Args:
        executor: what to run.
        inputs: its inputs.
        nodes: the nodes, for messages.
        seconds: takes the time of each node by its place, where times are wanted.
        start: the place of the first node.
    """
    try:
        if seconds is None:
            return executor.run(inputs)
        arrays, times = executor.profile(inputs)
        seconds.update((start + number, value) for number, value in times.items())
        return arrays
    except _native.IndexOutOfRangeError as error:
        raise IndexOutOfRangeError(_located(str(error), nodes)) from None
    except RuntimeError as error:
        raise ExecutionError(f"ggml failed: {error}") from error


def _located(text: str, nodes: Sequence[StaticNode]) -> str:
    """A native message, `operator: what is wrong`, with the nodes that it can come from."""
    op, _, rest = text.partition(": ")
    places = [node.describe() for node in nodes if node.op == op]
    if not places:
        return text
    return f"{places[0]}: {rest}" if len(places) == 1 else f"one of {', '.join(places)}: {rest}"


@dataclass(slots=True)
class NativeStep:
    """Nodes that run in one native call: values by id go in and come out."""

    start: int
    nodes: Sequence[StaticNode]
    executor: Executor
    feeds: tuple[int, ...]
    results: tuple[int, ...]

    def run(self, values: dict[int, Array], seconds: dict[int, float] | None = None) -> None:
        """Runs, and adds the results to `values`, and times to `seconds`."""
        arrays = execute(self.executor, [values[i] for i in self.feeds], self.nodes, seconds, self.start)
        values.update(zip(self.results, arrays, strict=True))


@dataclass(slots=True)
class HostStep:
    """A node that decides on the host what runs: control flow, and assertions on data."""

    place: int
    node: StaticNode
    function: Callable[[dict[int, Array]], tuple[Array, ...]]

    def run(self, values: dict[int, Array], seconds: dict[int, float] | None = None) -> None:
        """Runs, and adds the results to `values`, and its time to `seconds`."""
        began = time.perf_counter()
        results = self.function(values)
        if seconds is not None:
            seconds[self.place] = time.perf_counter() - began
        values.update((value.id, array) for value, array in zip(self.node.outputs, results, strict=True))


class Runner:
    """A static graph as native steps with host steps between them; almost always one native step.

    Between steps values live in arrays on the host. State is written by the last step.
    """

    def __init__(
        self, context: GgmlContext, graph: StaticGraph, wanted: Sequence[Value], *, update_state: bool = True
    ) -> None:
        self._context = context
        self._graph = graph
        self._wanted = tuple(value.id for value in wanted)
        cuts = [i for i, node in enumerate(graph.nodes) if node.op in HOST_OPERATORS]
        self._single: Executor | None = None
        self._steps: list[NativeStep | HostStep] = []
        if not cuts:
            lowering = GraphLowering(context, graph, update_state=update_state)
            self._single = lowering.executor(wanted)
        else:
            self._plan(cuts, list(wanted), update_state)

    def run(self, inputs: Sequence[Array], seconds: dict[int, float] | None = None) -> list[Array]:
        """Runs once: one array per input of the graph in, one per wanted value out.

        Args:
            inputs: the inputs.
            seconds: takes the time of each node by its place in the graph, where times are wanted.
        """
        if self._single is not None:
            return execute(self._single, inputs, self._graph.nodes, seconds)
        values = {value.id: array for value, array in zip(self._graph.inputs, inputs, strict=True)}
        for step in self._steps:
            step.run(values, seconds)
        return [values[i] for i in self._wanted]

    def _plan(self, cuts: list[int], wanted: list[Value], update_state: bool) -> None:
        graph = self._graph
        at_end = {value.id: value for value in wanted}
        if update_state:
            at_end.update((update.new.id, update.new) for update in graph.state_updates)
        known = {value.id: value for value in graph.inputs}
        start = 0
        for cut in cuts:
            later = dict(at_end)
            for node in graph.nodes[cut:]:
                # Native steps read constants and state themselves; what they were fed, they could not update.
                on_host = node.op in HOST_OPERATORS
                later.update((v.id, v) for v in node.inputs() if on_host or v.kind not in _STORED)
            self._add_native(start, cut, known, later, final=False)
            node = graph.nodes[cut]
            self._steps.append(HostStep(cut, node, self._host_function(node)))
            known.update((value.id, value) for value in node.outputs)
            start = cut + 1
        self._add_native(start, len(graph.nodes), known, at_end, final=update_state)

    def _add_native(
        self, start: int, stop: int, known: dict[int, Value], later: Mapping[int, Value], *, final: bool
    ) -> None:
        nodes = self._graph.nodes[start:stop]
        made = {value.id for node in nodes for value in node.outputs}
        # Constants and state that a host step or the caller wants come through a native step, too.
        results = [v for v in later.values() if v.id in made or (v.kind in _STORED and v.id not in known)]
        used = {value.id for node in nodes for value in node.inputs()}
        if final:
            used.update(update.new.id for update in self._graph.state_updates)
        feeds = [value for value in known.values() if value.id in used and value.kind not in _STORED]
        if not results and not (final and self._graph.state_updates):
            return
        lowering = GraphLowering(self._context, self._graph, nodes=nodes, feeds=feeds, update_state=final)
        executor = lowering.executor(results)
        self._steps.append(NativeStep(start, nodes, executor, tuple(v.id for v in feeds), tuple(v.id for v in results)))
        known.update((value.id, value) for value in results)

    def _host_function(self, node: StaticNode) -> Callable[[dict[int, Array]], tuple[Array, ...]]:
        out = HostOutputs(TensorSpec(value.dtype, value.shape) for value in node.outputs)
        nested = {
            name: Runner(self._context, arg, list(arg.outputs), update_state=False).run_nested
            for name, arg in node.args.items()
            if isinstance(arg, StaticGraph)
        }
        function = CONTROL_OPERATORS.get(node.op) or REFERENCE_KERNELS[node.op]
        return partial(_call_host, function, out, node, nested)

    def run_nested(self, operands: Sequence[Array]) -> tuple[Array, ...]:
        """As `run`, for operators of the host, whose operands may have any strides."""
        return tuple(self.run([np.ascontiguousarray(x).reshape(x.shape) for x in operands]))


def _call_host(
    function: Callable[..., Array | tuple[Array, ...]],
    out: HostOutputs,
    node: StaticNode,
    nested: Mapping[str, Callable[..., tuple[Array, ...]]],
    values: dict[int, Array],
) -> tuple[Array, ...]:
    arguments: dict[str, object] = {}
    for name, arg in node.args.items():
        if isinstance(arg, Value):
            arguments[name] = values[arg.id]
        elif isinstance(arg, tuple):
            arguments[name] = tuple(values[item.id] if isinstance(item, Value) else item for item in arg)
        else:
            arguments[name] = nested.get(name, arg)
    results = function(out, **arguments)
    return results if isinstance(results, tuple) else (results,)
