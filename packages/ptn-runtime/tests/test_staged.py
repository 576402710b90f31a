"""Methods whose sizes depend on data, run in stages: caches, state, errors, sessions, and what tools see of them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import ptn_runtime
import pytest
from ptn_format.dtypes import ScalarType
from ptn_format.graph import (
    Dim,
    GraphArg,
    IntArg,
    IntListArg,
    Method,
    NamedArgument,
    Node,
    OpKind,
    OutputValueKind,
    TensorArg,
    TensorListArg,
    TensorMeta,
)
from ptn_format.package import open_package
from ptn_format.signature import SOURCE_KEY
from ptn_runtime import engine as engine_module
from ptn_runtime.compare import Pair
from ptn_runtime.conformance.programs import MethodBuilder, pack
from ptn_runtime.engine import Device, EngineBuild, EngineContext, EngineHost, RunResult, StaticGraph, Support
from ptn_runtime.errors import (
    ClosedError,
    ExecutionError,
    IndexOutOfRangeError,
    InputError,
    UnsupportedMethodError,
)
from ptn_runtime.lowering.program import LoweredProgram
from ptn_runtime.reference.engine import ReferenceContext, ReferenceEngine, ReferenceHost
from ptn_runtime.registry import registry
from ptn_runtime.survey import Survey

F32, I64, BOOL = ScalarType.FLOAT, ScalarType.LONG, ScalarType.BOOL
ITEM = "aten._local_scalar_dense.default"


def meta(*sizes: int | tuple[int, int], dtype: ScalarType = F32) -> TensorMeta:
    return TensorMeta(dtype, tuple(Dim(*size) if isinstance(size, tuple) else Dim(size, size) for size in sizes))


def selected(method: MethodBuilder, name: str, source: str, count: tuple[int, int] = (0, -1)) -> str:
    """`source[source > 0]`, by way of `nonzero`."""
    size = method.metas[source].sizes[0].max
    method.call(f"{name}_mask", "aten.gt.Scalar", meta((0, size), dtype=BOOL), self=source, other=0)
    method.call(f"{name}_at", "aten.nonzero.default", meta(count, 1, dtype=I64), self=f"{name}_mask")
    method.call(f"{name}_i", "aten.view.default", meta(count, dtype=I64), self=f"{name}_at", size=IntListArg((-1,)))
    return method.call(name, "aten.index_select.default", meta(count), self=source, dim=0, index=f"{name}_i")


def located(method: MethodBuilder, node: str, place: str) -> None:
    """Gives a node a source line."""
    (index,) = [index for index, item in enumerate(method.nodes) if item.name == node]
    old = method.nodes[index]
    method.nodes[index] = Node(old.name, old.op_kind, old.target, old.inputs, old.outputs, {SOURCE_KEY: place})


def positive(limit: tuple[int, int] = (0, -1)) -> Method:
    """`y = x[x > 0]`."""
    method = MethodBuilder("forward")
    method.input("x", (1, 8))
    method.result(selected(method, "y", "x", limit))
    return method.build()


def tracker() -> bytes:
    """Picks `found = x[x > 0]`, then `table[found]`; counts calls, adds to `total`, writes the sum to `log`."""
    table = np.arange(10, 15, dtype=np.float32)
    method = MethodBuilder("forward")
    method.constant("table", table)
    method.state("calls", np.zeros(1, np.float32), has_data=False)
    method.state("total", np.full(1, 100, np.float32), has_data=True)
    method.input("x", (1, 8))
    method.input("log", 1)
    method.call("next", "aten.add.Scalar", meta(1), self="calls", other=1)
    found = selected(method, "found", "x")
    located(method, "found_at", "model.py:5")
    method.call("index", "aten._to_copy.default", meta((0, -1), dtype=I64), self=found, dtype=IntArg(4))
    method.call("rows", "aten.index_select.default", meta((0, -1)), self="table", dim=0, index="index")
    located(method, "rows", "model.py:7")
    method.call("above", "aten.gt.Scalar", meta((0, -1), dtype=BOOL), self="rows", other=11)
    method.call("large", "aten.masked_select.default", meta((0, -1)), self="rows", mask="above")
    method.call("sum", "aten.sum.dim_IntList", meta(1), self="rows", dim=IntListArg((0,)), keepdim=IntArg(1))
    method.call("sums", "aten.add.Tensor", meta(1), self="total", other="sum")
    method.update("calls", "next")
    method.update("total", "sums")
    written = (NamedArgument("self", TensorArg("log"), mutated=True), NamedArgument("src", TensorArg("sum")))
    method.nodes.append(Node("written", OpKind.CALL_FUNCTION, "torch.ops.aten.copy_.default", written))
    method.result("large")
    return pack([method.build()], {"table": table, "total": np.full(1, 100, np.float32)})


class Recorder(ReferenceEngine):
    """The reference engine that counts builds and refuses some operators."""

    def __init__(self, refuses: Sequence[str] = ()) -> None:
        self.refuses = refuses
        self.builds: list[RecordedBuild] = []

    def supports(self, node: Any, device: Device) -> Support:
        return Support.no("it is not for this") if node.op in self.refuses else super().supports(node, device)

    def create_host(self, device: Device, **options: Any) -> EngineHost:
        return RecordedHost(self, device)

    @property
    def open(self) -> list[RecordedBuild]:
        return [build for build in self.builds if not build.closed]


class RecordedHost(ReferenceHost):
    def create_context(self, program: Any, package: Any) -> EngineContext:
        return RecordedContext(self, program, package, {})


class RecordedContext(ReferenceContext):
    def build(self, graph: StaticGraph) -> EngineBuild:
        build = RecordedBuild(super().build(graph), graph)
        self.host.engine.builds.append(build)  # type: ignore[attr-defined]
        return build


class RecordedBuild(EngineBuild):
    def __init__(self, inner: EngineBuild, graph: StaticGraph) -> None:
        self.inner = inner
        self.graph = graph
        self.closed = False

    def run(self, inputs: Sequence[Any]) -> RunResult:
        assert not self.closed
        for value, array in zip(self.graph.inputs, inputs, strict=True):
            assert (array.dtype, array.shape) == (value.dtype.numpy, value.shape)
            assert array.flags.c_contiguous
        return self.inner.run(inputs)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def model(recorder: Recorder) -> Iterator[ptn_runtime.Model]:
    with ptn_runtime.load(pack([positive()], {}), engine=recorder) as loaded:
        yield loaded


def floats(*values: float) -> Any:
    return np.array(values, np.float32)


def test_results_follow_the_data(model: ptn_runtime.Model) -> None:
    assert model(floats(1, -2, 3)).tolist() == [1, 3]
    assert model(floats(-1, -2, -3)).tolist() == []
    assert model(floats(-1, -2, 3)).tolist() == [3]
    assert model(floats(5, 6, 7, 8, -1)).tolist() == [5, 6, 7, 8]


def test_stages_are_built_once_per_size(model: ptn_runtime.Model, recorder: Recorder) -> None:
    model(floats(1, -2, 3))
    assert [build.graph.cut is None for build in recorder.builds] == [False, True]
    model(floats(-2, 4, 5))
    assert len(recorder.builds) == 2
    model(floats(4, 4, 4))  # the first stage is the same
    assert len(recorder.builds) == 3
    model(floats(4, 4))
    assert len(recorder.builds) == 5


def test_the_least_recently_used_way_goes(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "MAX_BUILDS", 2)
    with ptn_runtime.load(pack([positive()], {}), engine=recorder) as model:
        for values in ((1, -1, -1), (1, 1, -1), (1, -1, -1), (1, 1, 1)):
            model(floats(*values))
        assert [build.closed for build in recorder.builds] == [False, False, True, False]
        model(floats(1, 1, -1))
        assert len(recorder.builds) == 5
    assert recorder.open == []


def test_runs_that_fail_do_not_pile_up_builds(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "MAX_BUILDS", 2)
    method = MethodBuilder("forward")
    method.input("x", (1, 8))
    selected(method, "y", "x")
    method.result(
        method.call("z", "aten.view.default", meta(7), self=selected(method, "w", "y"), size=IntListArg((7,)))
    )
    with ptn_runtime.load(pack([method.build()], {}), engine=recorder) as model:
        for count in range(1, 7):
            with pytest.raises(InputError, match=f"'w_at' gives int64\\[{count}, 1\\]"):
                model(np.where(np.arange(8) < count, 1, -1).astype(np.float32))
        assert len(recorder.open) == 3
        assert model(floats(1, 1, 1, 1, 1, 1, 1, -1)).tolist() == [1] * 7


def test_closing(recorder: Recorder) -> None:
    model = ptn_runtime.load(pack([positive()], {}), engine=recorder)
    model(floats(1, -2, 3))
    session = model.session()
    session(floats(1, -2, 3))
    session.close()
    assert len(recorder.open) == 2
    model.close()
    assert recorder.open == []
    with pytest.raises(ClosedError):
        model(floats(1, -2, 3))


def test_nothing_is_left_after_closing(tmp_path: Any) -> None:
    """Neither the builds nor the package's memory, though the host was given a constant."""
    table = np.arange(6, dtype=np.float32)
    method = MethodBuilder("forward")
    method.constant("table", table)
    method.input("mask", 6, dtype=BOOL)
    method.call("chosen", "aten.masked_select.default", meta((0, 6)), self="table", mask="mask")
    method.result(method.call("y", "aten.neg.default", meta((0, 6)), self="chosen"))
    path = tmp_path / "model.ptn"
    path.write_bytes(pack([method.build()], {"table": table}))
    gc.collect()
    gc.disable()
    try:
        with ptn_runtime.load(path, engine="reference") as model:
            assert model(table > 3).tolist() == [-4, -5]
            build = weakref.ref(model._context.compile("forward").build(((6,),)))
            package = model._core.package
        assert build() is None
        with pytest.raises(ValueError, match="closed"):
            package.constant("table")
    finally:
        gc.enable()


def test_state_and_inputs_change_at_the_end() -> None:
    with ptn_runtime.load(tracker(), engine="reference") as model:
        log = floats(0)
        np.testing.assert_array_equal(model(floats(1, -1, 3), log), [13])
        assert (log[0], model.state["total"][0], model.state["calls"][0]) == (24, 124, 1)
        np.testing.assert_array_equal(model(floats(2, 1), log), [12])
        assert (log[0], model.state["total"][0], model.state["calls"][0]) == (23, 147, 2)


def test_a_run_that_fails_on_its_way_changes_nothing() -> None:
    with ptn_runtime.load(tracker(), engine="reference") as model:
        log = floats(7)
        model(floats(1), log)
        before = {name: array.copy() for name, array in model.state.items()}
        log[0] = 7
        with pytest.raises(IndexOutOfRangeError, match=r"node 'rows' \(aten.index_select.default\) from model.py:7"):
            model(floats(1, 9), log)
        assert log[0] == 7
        assert {name: array.tolist() for name, array in model.state.items()} == {
            name: array.tolist() for name, array in before.items()
        }


def test_sessions_run_side_by_side(in_threads: Any) -> None:
    with ptn_runtime.load(tracker(), engine="reference") as model:
        sessions = [model.session() for _ in range(3)]

        def work(session: Any, values: Any) -> Any:
            for _ in range(10):
                session(values, floats(0))
            return session.state["total"][0]

        data = (floats(1), floats(1, 2), floats(1, 2, 3))
        totals = in_threads(*(lambda s=s, v=v: work(s, v) for s, v in zip(sessions, data, strict=True)))
        assert totals == [100 + 10 * n for n in (11, 23, 36)]
        assert model.state["total"][0] == 100


def test_one_session_in_threads_keeps_results_and_graphs_together(model: ptn_runtime.Model, in_threads: Any) -> None:
    def work(count: int) -> None:
        for _ in range(20):
            assert model(np.where(np.arange(8) < count, 1, -1).astype(np.float32)).shape == (count,)

    in_threads(*(lambda c=c: work(c) for c in (1, 3, 5)))


def windows(name: str = "forward") -> MethodBuilder:
    """`x[:n]`, `n` and `zeros(n, 2)` for an item of a tensor."""
    method = MethodBuilder(name)
    method.input("x", (1, 8))
    method.input("at", 1, dtype=I64)
    method.scalar("n", ITEM, OutputValueKind.INT, self="at")
    arguments = {"self": "x", "dim": 0, "start": 0, "end": IntArg(ref="n")}
    method.result(method.call("y", "aten.slice.Tensor", meta((0, 8)), **arguments))
    method.result(method.call("z", "aten.zeros.default", meta((0, 8), 2), size=IntListArg((0, 2), ("n", ""))))
    return method


def test_items_as_sizes(recorder: Recorder) -> None:
    with ptn_runtime.load(pack([windows().build()], {}), engine=recorder) as model:
        x = np.arange(6, dtype=np.float32)
        for n in (0, 2, 6, 2):
            y, z = model(x, np.array([n]))
            assert (y.tolist(), z.shape) == (list(range(n)), (n, 2))
        assert all(build.graph.cut is None for build in recorder.builds)  # nothing runs before the number is read
        assert len(recorder.builds) == 3


def test_the_executable_before_and_after_a_run(recorder: Recorder) -> None:
    host = recorder.create_host(recorder.devices()[0])
    with open_package(pack([positive()], {})) as package:
        context = host.create_context(LoweredProgram(package), package)
        executable = context.compile("forward")
        assert (executable.num_outputs, executable.output_sizes(0), executable.input_sizes(0)) == (1, (8,), (8,))
        with pytest.raises(ExecutionError, match="execute"):
            executable.get_output(0)
        executable.build(((5,),))
        assert (executable.output_sizes(0), executable.input_sizes(0)) == ((8,), (5,))
        executable.resize_input(0, (3,))
        executable.set_input(0, floats(1, -1, 2))
        executable.execute()
        assert (executable.output_sizes(0), executable.get_output(0).tolist()) == ((2,), [1, 2])
        assert [node.op for node in executable.graph.nodes if node.on_host] == ["aten.nonzero.default"]
        executable.set_input(0, floats(-1, -1, -1))
        executable.execute()
        assert executable.output_sizes(0) == (0,)
        context.close()


def test_refusals_behind_a_cut_are_told_at_load() -> None:
    with pytest.raises(UnsupportedMethodError) as error:
        ptn_runtime.load(pack([positive()], {}), engine=Recorder(refuses=["aten.index_select.default"]))
    (node,) = error.value.nodes
    assert (node.name, node.op, node.reason) == ("y", "aten.index_select.default", "it is not for this")


def test_what_the_host_computes_is_not_asked_about() -> None:
    refuses = ["aten.nonzero.default", "aten.masked_select.default", ITEM]
    with ptn_runtime.load(tracker(), engine=Recorder(refuses)) as model:
        assert model(floats(1, -1, 3), floats(0)).tolist() == [13]
    with ptn_runtime.load(pack([windows().build()], {}), engine=Recorder(refuses)) as model:
        assert model(floats(1, 2), np.array([1]))[0].tolist() == [1]


def test_refusals_that_only_data_show() -> None:
    """A size that cannot be guessed hides the nodes behind it until it is there."""
    method = MethodBuilder("forward")
    method.input("x", (1, 99))
    y = selected(method, "y", "x")
    viewed = method.call("z", "aten.view.default", meta(7, 11), self=y, size=IntListArg((7, 11)))
    method.result(method.call("w", "aten.erf.default", meta(7, 11), self=viewed))
    model = ptn_runtime.load(pack([method.build()], {}), engine=Recorder(refuses=["aten.erf.default"]))
    with model, pytest.raises(UnsupportedMethodError, match="erf"):
        model(np.ones(77, np.float32))


def test_the_survey_counts_nodes_once() -> None:
    with open_package(pack([positive()], {})) as package:
        survey = Survey(LoweredProgram(package), registry())
        device = Device("cpu", "cpu", "")
        assert survey.refused(ReferenceEngine(), device) == ()
        refused = survey.refused(Recorder(refuses=["aten.gt.Scalar", "aten.view.default"]), device)
        assert [node.name for node in refused] == ["y_mask", "y_i"]


def branches() -> bytes:
    """`abs(f(-x))`, where `f` sums the positive ones of `-x` in one branch, and `exp(x)` in the other."""
    method = MethodBuilder("forward")
    method.input("x", 2)
    method.input("flag", dtype=BOOL)
    method.call("before", "aten.neg.default", meta(2), self="x")
    graphs = []
    for name, op in (("then", "aten.neg.default"), ("otherwise", "aten.exp.default")):
        branch = MethodBuilder(name)
        branch.input("a", 2)
        branch.call(name, op, meta(2), self="a")
        last = selected(branch, "chosen", name) if name == "then" else name
        arguments = {"self": last, "dim": IntListArg((0,)), "keepdim": IntArg(1)}
        branch.result(branch.call("sum", "aten.sum.dim_IntList", meta(1), **arguments))
        graphs.append(GraphArg(name, branch.graph()))
    functions = dict(zip(("true_fn", "false_fn"), graphs, strict=True))
    method.call("y", "higher_order.cond", meta(1), pred="flag", **functions, operands=TensorListArg(("before",)))
    method.result(method.call("behind", "aten.abs.default", meta(1), self="y"))
    return pack([method.build()], {})


def test_ways_that_part_are_asked_about_once() -> None:
    """Both branches are asked about; what stands before and behind them is named once."""
    engine = Recorder(refuses=["aten.neg.default", "aten.exp.default", "aten.abs.default"])
    with open_package(branches()) as package:
        refused = Survey(LoweredProgram(package), registry()).refused(engine, Device("cpu", "cpu", ""))
        assert [node.name for node in refused] == ["before", "then", "behind", "otherwise"]
    with ptn_runtime.load(branches(), engine="reference") as model:
        assert model(floats(1, -2), np.array(True)).tolist() == [1]
        np.testing.assert_allclose(model(floats(1, -2), np.array(False)), [np.exp(-1) + np.exp(2)], rtol=1e-6)


def test_the_host_names_the_node_that_fails() -> None:
    method = MethodBuilder("forward")
    method.input("x", 3)
    method.input("i", 2, dtype=I64)
    method.input("mask", 2, dtype=BOOL)
    method.input("rows", 3, 2)
    method.call("y", "aten.index.Tensor", meta((0, 2)), self="rows", indices=TensorListArg(("i", "mask")))
    located(method, "y", "model.py:11")
    method.result("y")
    with ptn_runtime.load(pack([method.build()], {}), engine="reference") as model:
        rows = np.arange(6, dtype=np.float32).reshape(3, 2)
        mask = np.array([True, True])
        assert model(floats(1, 2, 3), np.array([0, 2]), mask, rows).tolist() == [0, 5]
        with pytest.raises(IndexOutOfRangeError, match=r"node 'y' \(aten.index.Tensor\) from model.py:11: .*3"):
            model(floats(1, 2, 3), np.array([0, 3]), mask, rows)


def test_profiles_have_the_nodes_of_all_stages() -> None:
    with ptn_runtime.load(pack([positive()], {}), engine="reference") as model:
        nodes = model.profile("forward", floats(1, -1, 2), repeat=2).nodes
        assert [node.name for node in nodes] == ["y_mask", "y_at", "y_i", "y"]
        assert [node.shape for node in nodes] == [(3,), (2, 1), (2,), (2,)]
        assert all(node.seconds > 0 for node in nodes)


class Wrong(Recorder):
    """Gives 1 more wherever `op` runs."""

    name = "wrong"
    op = ""

    def create_host(self, device: Device, **options: Any) -> EngineHost:
        return WrongHost(self, device)


class WrongHost(ReferenceHost):
    def create_context(self, program: Any, package: Any) -> EngineContext:
        return WrongContext(self, program, package, {})


class WrongContext(ReferenceContext):
    def kernel(self, node: Any) -> Any:
        kernel = super().kernel(node)
        if node.op != self.host.engine.op:  # type: ignore[attr-defined]
            return kernel
        return lambda out, **args: (
            np.asarray(kernel(out, **args)) ^ True if out.dtype is BOOL else kernel(out, **args) + 1
        )


@pytest.mark.parametrize(
    ("op", "node"), [("aten.gt.Scalar", "y_mask"), ("aten.index_select.default", "y"), ("nothing", None)]
)
def test_two_engines_are_compared_stage_by_stage(op: str, node: str | None, tmp_path: Any) -> None:
    path = tmp_path / "model.ptn"
    path.write_bytes(pack([positive()], {}))
    engine = Wrong()
    engine.op = op
    with Pair(path, engine, None, "reference") as pair:  # type: ignore[arg-type]
        outcome = pair.compare("forward", {"x": floats(1, -1, 2)})
    assert outcome.agree == (node is None)
    if node is not None:
        assert f"node '{node}'" in outcome.explanation
