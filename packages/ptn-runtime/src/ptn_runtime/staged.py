"""Runs methods whose sizes depend on data: stage after stage, with what the data tell in between.

Each stage is an ordinary static graph that the engine builds and runs. Between two stages the runtime reads a number
or calls an operator in numpy, and so learns which graph is next. Engines know nothing of it.
"""

from __future__ import annotations

import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ptn_runtime.engine import Array, EngineBuild, EngineContext, Prepared, RunResult
from ptn_runtime.errors import ExecutionError, IndexOutOfRangeError
from ptn_runtime.lowering.join import Joined, join
from ptn_runtime.lowering.stages import Answer, Cut, answer_key
from ptn_runtime.lowering.static import StaticGraph, Value, ValueKind

__all__ = ["Kept", "StagedBuild"]


@dataclass(eq=False, slots=True)
class _Stage:
    """One stage with its build, and the stages that have followed it.

    Attributes:
        graph: the stage's graph.
        build: the engine's; None for a graph that has nothing to run.
        parent: the stage before it.
        answer: what led from there to here.
        places: for each value of the graph that is wanted between stages where its array is: among the inputs, among
            the outputs, or at hand.
        later: the stages after it by answer.
        joined: for a last stage, the whole graph of the way to it.
    """

    graph: StaticGraph
    build: EngineBuild | None
    parent: _Stage | None
    answer: Answer
    places: Mapping[int, tuple[str, Any]]
    later: dict[Answer, _Stage] = field(default_factory=dict)
    joined: Joined | None = None

    def way(self) -> list[_Stage]:
        """The stages from the first to this one."""
        found = [self]
        while found[-1].parent is not None:
            found.append(found[-1].parent)
        return found[::-1]


class Kept:
    """The stages that none follows yet, so each is the end of a way; the least recently used way goes first.

    Args:
        limit: number of ways.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._ends: OrderedDict[int, _Stage] = OrderedDict()

    def add(self, stage: _Stage) -> None:
        """Enters a new stage, the end of a way in the place of the stage before it."""
        self._ends.pop(id(stage.parent), None)
        self._ends[id(stage)] = stage
        while len(self._ends) > self._limit:
            _forget(self._ends.popitem(last=False)[1])

    def touch(self, stage: _Stage) -> None:
        """Notes that a way was used."""
        self._ends.move_to_end(id(stage))

    def drop(self, stages: Sequence[_Stage]) -> None:
        """Takes out stages that are closed."""
        for stage in stages:
            self._ends.pop(id(stage), None)


def _forget(stage: _Stage) -> None:
    """Frees a stage, and those before it that lead nowhere else."""
    current: _Stage | None = stage
    while current is not None and current.parent is not None and not current.later:
        if current.build is not None:
            current.build.close()
        del current.parent.later[current.answer]
        current = current.parent


class StagedBuild(EngineBuild):
    """A method for one set of input shapes, run in stages.

    Args:
        context: builds the stages.
        graph: the first stage.
        check: raises where the engine refuses nodes of a graph.
        kept: the ways through the stages that are kept, shared by all builds of an executable.
    """

    def __init__(
        self,
        context: EngineContext,
        graph: StaticGraph,
        check: Callable[[StaticGraph], None],
        kept: Kept,
    ) -> None:
        self._context = context
        self._check = check
        self._kept = kept
        self._first = self._stage(graph, None, b"")
        self._prepared: weakref.ref[Prepared] | None = None  # weak, as it holds this object

    def prepared(self, before: StaticGraph) -> Prepared:
        """What the executable keeps for these shapes.

        Its graph is the whole of the last run, the nodes of all stages and what the runtime did between them; until
        there was one it is `before`.
        """
        prepared = Prepared(before, self)
        self._prepared = weakref.ref(prepared)
        return prepared

    def run(self, inputs: Sequence[Array]) -> RunResult:
        """Runs every stage; only the last one changes state."""
        stage = self._first
        while stage.graph.cut is not None:
            outputs = stage.build.run(inputs).outputs if stage.build is not None else ()
            stage, inputs = self._next(stage, inputs, outputs)
        assert stage.build is not None
        result = stage.build.run(inputs)
        self._arrived(stage)
        return result

    def trace(self, inputs: Sequence[Array]) -> Mapping[int, Array]:
        """Every node's results by the ids of the whole graph, without updating state."""
        traces: list[Mapping[int, Array]] = []
        answers: list[list[Array]] = []
        stage = self._first
        while True:
            values = stage.build.trace(inputs) if stage.build is not None else {}
            traces.append(values)
            if stage.graph.cut is None:
                break
            results: list[Array] = []  # of the host
            outputs = self._traced(stage, values, inputs)
            stage, inputs = self._next(stage, inputs, outputs, results)
            answers.append(results)
        joined = self._arrived(stage)
        found: dict[int, Array] = {}
        for ids, values in zip(joined.node_ids, traces, strict=True):
            found.update((whole, values[own]) for own, whole in ids.items() if own in values)
        for values_of, results in zip(joined.host_ids, answers, strict=True):
            found.update(zip(values_of, results, strict=True))
        return found

    def profile(self, inputs: Sequence[Array]) -> Mapping[int, float]:
        """Seconds by index in the nodes of the whole graph, without updating state."""
        found: dict[int, float] = {}
        first = 0
        stage = self._first
        while True:
            seconds = stage.build.profile(inputs) if stage.build is not None else {}
            found.update((first + index, taken) for index, taken in seconds.items())
            first += len(stage.graph.nodes)
            if stage.graph.cut is None:
                self._arrived(stage)
                return found
            outputs = stage.build.run(inputs).outputs if stage.build is not None else ()
            start = time.perf_counter()
            stage, inputs = self._next(stage, inputs, outputs)
            found[first] = time.perf_counter() - start
            first += 1

    def close(self) -> None:
        """Frees the builds of all stages. Idempotent."""
        stages = [self._first]
        for stage in stages:
            stages += stage.later.values()
            stage.later, stage.places = {}, {}  # the arrays among the places may belong to the package
            if stage.build is not None:
                stage.build.close()
        self._kept.drop(stages)

    # Stages.

    def _stage(self, graph: StaticGraph, parent: _Stage | None, answer: Answer) -> _Stage:
        self._check(graph)
        idle = graph.cut is not None and not graph.nodes and not graph.outputs
        build = None if idle else self._context.build(graph)
        return _Stage(graph, build, parent, answer, _places(self._context, graph))

    def _next(
        self, stage: _Stage, inputs: Sequence[Array], outputs: Sequence[Array], results: list[Array] | None = None
    ) -> tuple[_Stage, Sequence[Array]]:
        """The stage after `stage` and its inputs; what the host computed is added to `results`."""
        cut = stage.graph.cut
        assert cut is not None
        arrays = {"input": inputs, "output": outputs}
        places = stage.places

        def array(value: Value) -> Array:
            where, place = places[id(value)]
            found: Array = place if where == "constant" else arrays[where][place]
            return found

        answers = [array(cut.asked)] if cut.is_number else _call(cut, array)
        answer = answer_key(cut, answers)
        later = stage.later.get(answer)
        if later is None:
            later = stage.later[answer] = self._stage(cut.resume(answer), stage, answer)
            self._kept.add(later)
        carried = [array(value) for value in cut.carried]
        if cut.is_number:
            return later, carried
        if results is not None:
            results += answers
        return later, [*carried, *answers]

    def _arrived(self, stage: _Stage) -> Joined:
        """Notes that a run has ended at the last stage `stage`."""
        if stage.joined is None:
            stage.joined = join([item.graph for item in stage.way()])
        self._kept.touch(stage)
        prepared = self._prepared() if self._prepared is not None else None
        if prepared is not None:
            prepared.graph = stage.joined.graph
        return stage.joined

    def _traced(self, stage: _Stage, values: Mapping[int, Array], inputs: Sequence[Array]) -> Sequence[Array]:
        """The results of a stage whose values were traced."""
        wanted = stage.graph.outputs
        if stage.build is not None and any(v.kind is ValueKind.NODE and v.id not in values for v in wanted):
            return stage.build.run(inputs).outputs
        return [values[v.id] if v.id in values else self._context.read_state(v.key or "") for v in wanted]


def _places(context: EngineContext, graph: StaticGraph) -> Mapping[int, tuple[str, Any]]:
    """Where the arrays of the values are that `graph.cut` names."""
    cut = graph.cut
    if cut is None:
        return {}
    places: dict[int, tuple[str, Any]] = {}
    for value in cut.node.inputs():
        if value.kind is ValueKind.CONSTANT:
            array = value.data if value.key is None else np.asarray(context.package.constant(value.key))
            places[id(value)] = ("constant", array)
    places.update((id(value), ("input", index)) for index, value in enumerate(graph.inputs))
    places.update((id(value), ("output", index)) for index, value in enumerate(graph.outputs))
    return places


def _call(cut: Cut, array: Callable[[Value], Array]) -> list[Array]:
    """Runs the operator of a cut in numpy."""
    from ptn_runtime.reference import evaluate  # numpy kernels; only these methods need them

    node = cut.node

    def resolved(arg: Any) -> Any:
        if isinstance(arg, Value):
            return array(arg)
        return tuple(resolved(item) for item in arg) if isinstance(arg, tuple) else arg

    try:
        results = evaluate(node.op, {name: resolved(arg) for name, arg in node.args.items()})
    except IndexError as error:
        raise IndexOutOfRangeError(f"{node.describe()}: {error}") from error
    except Exception as error:
        raise ExecutionError(f"{node.describe()} failed, which the runtime computes: {error}") from error
    return [np.ascontiguousarray(result) if result.ndim else np.array(result) for result in results]
