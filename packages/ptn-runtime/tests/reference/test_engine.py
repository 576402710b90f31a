"""The reference engine on static graphs made by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ptn_format import quant
from ptn_format.dtypes import ScalarType
from ptn_format.graph import AffineGroup
from ptn_runtime.engine import EngineContext, RunResult
from ptn_runtime.errors import ClosedError, ExecutionError, IndexOutOfRangeError, InputError, StateError
from ptn_runtime.lowering.program import StateSpec
from ptn_runtime.lowering.static import StateUpdate, StaticGraph, StaticNode, Value, ValueKind
from ptn_runtime.reference.engine import ReferenceEngine
from ptn_runtime.shapes import OPERATORS, infer

FLOAT, LONG = ScalarType.FLOAT, ScalarType.LONG
ENGINE = ReferenceEngine()
(CPU,) = ENGINE.devices()


@dataclass
class Graph:
    """Builds a static graph, inferring results."""

    ids: Iterator[int] = field(default_factory=lambda: iter(range(1000)))
    inputs: list[Value] = field(default_factory=list)
    constants: list[Value] = field(default_factory=list)
    states: list[Value] = field(default_factory=list)
    nodes: list[StaticNode] = field(default_factory=list)

    def value(self, kind: ValueKind, dtype: ScalarType, shape: tuple[int, ...], **more: Any) -> Value:
        number = next(self.ids)
        value = Value(number, f"v{number}", dtype, shape, kind, **more)
        {ValueKind.INPUT: self.inputs, ValueKind.CONSTANT: self.constants, ValueKind.STATE: self.states}.get(
            kind, []
        ).append(value)
        return value

    def input(self, *shape: int, dtype: ScalarType = FLOAT) -> Value:
        return self.value(ValueKind.INPUT, dtype, shape)

    def constant(self, key: str, *shape: int) -> Value:
        return self.value(ValueKind.CONSTANT, FLOAT, shape, key=key)

    def literal(self, array: np.ndarray) -> Value:
        return self.value(ValueKind.CONSTANT, ScalarType.from_numpy(array.dtype), array.shape, data=array)

    def state(self, key: str, *shape: int) -> Value:
        return self.value(ValueKind.STATE, FLOAT, shape, key=key)

    def call(self, op: str, source: str | None = None, /, **args: Any) -> Any:
        bound = {**OPERATORS[op].defaults, **args}
        outputs = tuple(self.value(ValueKind.NODE, spec.dtype, spec.shape) for spec in infer(op, bound))
        self.nodes.append(StaticNode(f"n{len(self.nodes)}", op, bound, outputs, source))
        return outputs[0] if len(outputs) == 1 else outputs

    def finish(self, *outputs: Value, updates: Any = (), input_updates: Any = (), name: str = "forward") -> StaticGraph:
        return StaticGraph(
            name,
            tuple(self.inputs),
            tuple(self.constants),
            tuple(self.states),
            tuple(self.nodes),
            outputs,
            outputs,
            tuple(StateUpdate(old, new, False) for old, new in updates),
            tuple(input_updates),
        )


def context(
    constants: Mapping[str, np.ndarray] | None = None, states: Mapping[str, StateSpec] | None = None, **options: Any
) -> Any:
    """A context over a package that is only a dict."""
    reads: list[str] = []

    def constant(key: str) -> np.ndarray:
        reads.append(key)
        array = (constants or {})[key].view()
        array.flags.writeable = False
        return array

    package = SimpleNamespace(constant=constant, reads=reads)
    program = SimpleNamespace(states=states or {})
    return ENGINE.create_host(CPU, **options).create_context(program, package)  # type: ignore[arg-type]


def run(graph: StaticGraph, *inputs: np.ndarray, on: EngineContext | None = None) -> RunResult:
    return (on or context()).build(graph).run(inputs)


def f32(*values: Any) -> np.ndarray:
    return np.array(values, np.float32)


def test_a_graph_with_constants_and_lists() -> None:
    g = Graph()
    x = g.input(2)
    total = g.call("aten.add.Tensor", self=x, other=g.constant("w", 2), alpha=2)
    joined = g.call("aten.cat.default", tensors=(total, x, g.literal(f32(9))))
    result = run(g.finish(joined), f32(1, 2), on=context({"w": f32(10, 20)}))
    np.testing.assert_array_equal(result.outputs[0], f32(21, 42, 1, 2, 9))


def test_several_results_and_optional_tensors() -> None:
    g = Graph()
    x = g.input(3, 2)
    values, index = g.call("aten.topk.default", self=x, k=1, dim=0)
    picked = g.call("aten.index.Tensor", self=x, indices=(None, g.literal(np.array([1]))))
    result = run(g.finish(values, index, picked), f32([1, 5], [3, 2], [2, 9]))
    assert [output.tolist() for output in result.outputs] == [[[3, 9]], [[1, 2]], [[5], [2], [9]]]


def test_a_number_known_only_at_run_time() -> None:
    g = Graph()
    x, n = g.input(2, dtype=ScalarType.INT), g.input(dtype=LONG)
    result = run(g.finish(g.call("aten.mul.Scalar", self=x, other=n)), np.array([1, 2], np.int32), np.array(5))
    assert result.outputs[0].dtype == np.int32
    assert result.outputs[0].tolist() == [5, 10]


def test_outputs_belong_to_the_caller() -> None:
    g = Graph()
    x, w, s = g.input(2, 3), g.constant("w", 2, 3), g.state("s", 2, 3)
    view = g.call("aten.view.default", self=x, size=(6,))
    fresh = g.call("aten.neg.default", self=x)
    turned = g.call("aten.permute.default", self=fresh, dims=(1, 0))
    wide = g.call("aten.expand.default", self=g.call("aten.sum.dim_IntList", self=x, dim=(0, 1)), size=(4,))
    on = context({"w": np.ones((2, 3), np.float32)}, {"s": StateSpec("s", FLOAT, (2, 3), False)})
    given = np.arange(6, dtype=np.float32).reshape(2, 3)
    outputs = run(g.finish(x, view, w, s, fresh, fresh, turned, wide), given, on=on).outputs
    for output in outputs:
        assert output.flags.c_contiguous
        assert output.flags.writeable
        assert not np.shares_memory(output, given)
        assert sum(np.shares_memory(output, other) for other in outputs) == 1
        output[...] = 77  # whoever gets it may do what he likes
    again = run(g.finish(x, view, w, s, fresh, fresh, turned, wide), given, on=on).outputs
    assert again[2].tolist() == [[1, 1, 1], [1, 1, 1]]
    assert again[3].tolist() == [[0, 0, 0], [0, 0, 0]]
    assert given.tolist() == [[0, 1, 2], [3, 4, 5]]


def counter() -> StaticGraph:
    g = Graph()
    x, s = g.input(2), g.state("s", 2)
    new = g.call("aten.add.Tensor", self=s, other=x)
    return g.finish(s, new, updates=[(s, new)])


def test_state_is_read_written_reset_and_not_shared_with_outputs() -> None:
    on = context({"s": f32(1, 1)}, {"s": StateSpec("s", FLOAT, (2,), True)})
    build = on.build(counter())
    old, new = build.run([f32(1, 2)]).outputs
    assert (old.tolist(), new.tolist()) == ([1, 1], [2, 3])
    new[...] = 100
    assert build.run([f32(0, 0)]).outputs[0].tolist() == [2, 3]
    on.read_state("s")[...] = 100
    assert on.read_state("s").tolist() == [2, 3]
    on.write_state("s", f32(7, 8))
    assert build.run([f32(1, 1)]).outputs[1].tolist() == [8, 9]
    on.reset_state()
    assert on.read_state("s").tolist() == [1, 1]
    with pytest.raises(StateError, match="there is no state 'q'; the program has s"):
        on.read_state("q")


def test_forks_share_constants_but_no_state() -> None:
    g = Graph()
    x = g.input(2)
    graph = g.finish(g.call("aten.mul.Tensor", self=x, other=g.constant("w", 2)))
    on = context({"w": f32(2, 3)}, {"s": StateSpec("s", FLOAT, (2,), False)})
    run(graph, f32(1, 1), on=on)
    fork = on.fork()
    on.write_state("s", f32(5, 5))
    assert fork.read_state("s").tolist() == [0, 0]
    assert run(graph, f32(1, 1), on=fork).outputs[0].tolist() == [2, 3]
    assert on.package.reads == ["w"]
    on.close()
    assert run(graph, f32(1, 1), on=fork).outputs[0].tolist() == [2, 3]
    with pytest.raises(ClosedError):
        on.build(graph)


def test_input_updates() -> None:
    g = Graph()
    x = g.input(2)
    y = g.call("aten.neg.default", self=x)
    result = run(g.finish(y, input_updates=[(x, y)]), f32(1, 2))
    assert result.input_updates[0].tolist() == [-1, -2]
    assert not np.shares_memory(result.input_updates[0], result.outputs[0])


def test_trace_keeps_every_result_and_no_state() -> None:
    on = context({"s": f32(1, 1)}, {"s": StateSpec("s", FLOAT, (2,), True)})
    graph = counter()
    values = on.build(graph).trace([f32(4, 5)])
    assert {key: value.tolist() for key, value in values.items()} == {graph.nodes[0].outputs[0].id: [5, 6]}
    assert on.read_state("s").tolist() == [1, 1]


def test_errors_name_the_node_and_where_the_user_wrote_it() -> None:
    g = Graph()
    w, i = g.input(4, 2), g.input(1, dtype=LONG)
    graph = g.finish(g.call("aten.embedding.default", "model.py:12", weight=w, indices=i))
    with pytest.raises(IndexOutOfRangeError) as caught:
        run(graph, np.zeros((4, 2), np.float32), np.array([9]))
    assert str(caught.value) == (
        "node 'n0' (aten.embedding.default) from model.py:12: "
        "index 9 is out of range for axis 0 of 4 elements; allowed 0..3"
    )
    g = Graph()
    a = g.input(1, dtype=LONG)
    graph = g.finish(g.call("aten.remainder.Tensor", self=a, other=a))
    with pytest.raises(ExecutionError, match=r"^node 'n0' \(aten\.remainder\.Tensor\) failed: an integer is divided"):
        run(graph, np.array([0]))


def test_a_failed_run_leaves_the_state_alone() -> None:
    g = Graph()
    s, i = g.state("s", 2), g.input(1, dtype=LONG)
    new = g.call("aten.neg.default", self=s)
    picked = g.call("aten.index_select.default", self=new, dim=0, index=i)
    on = context(states={"s": StateSpec("s", FLOAT, (2,), False)})
    on.write_state("s", f32(1, 2))
    build = on.build(g.finish(picked, updates=[(s, new)]))
    with pytest.raises(IndexOutOfRangeError):
        build.run([np.array([5])])
    assert on.read_state("s").tolist() == [1, 2]


def branch(op: str, ids: Iterator[int], **more: Any) -> StaticGraph:
    g = Graph(ids)
    return g.finish(g.call(op, self=g.input(2), **more), name=op)


def test_a_condition_runs_one_branch() -> None:
    g = Graph()
    p, x = g.input(dtype=ScalarType.BOOL), g.input(2)
    args = {"true_fn": branch("aten.neg.default", g.ids), "false_fn": branch("aten.abs.default", g.ids)}
    graph = g.finish(g.call("control.cond", pred=p, operands=(x,), **args))
    assert run(graph, np.array(True), f32(1, -2)).outputs[0].tolist() == [-1, 2]
    assert run(graph, np.array(False), f32(1, -2)).outputs[0].tolist() == [1, 2]


def test_a_loop_carries_its_values() -> None:
    g = Graph()
    count, x = g.input(dtype=LONG), g.input(2)
    test, body = Graph(g.ids), Graph(g.ids)
    n, _, limit = test.input(dtype=LONG), test.input(2), test.input(dtype=LONG)
    test_graph = test.finish(test.call("aten.lt.Tensor", self=n, other=limit))
    n, y, _ = body.input(dtype=LONG), body.input(2), body.input(dtype=LONG)
    more = body.call("aten.add.Scalar", self=n, other=1)
    body_graph = body.finish(more, body.call("aten.mul.Scalar", self=y, other=2))
    limit = g.literal(np.array(3))
    results = g.call(
        "control.while_loop",
        cond_fn=test_graph,
        body_fn=body_graph,
        carried_inputs=(count, x),
        additional_inputs=(limit,),
    )
    outputs = run(g.finish(*results), np.array(0), f32(1, 5)).outputs
    assert [output.tolist() for output in outputs] == [3, [8, 40]]
    outputs = run(g.finish(*results), np.array(7), f32(1, 5)).outputs
    assert [output.tolist() for output in outputs] == [7, [1, 5]]


def test_a_map_runs_once_per_row() -> None:
    g = Graph()
    xs, y = g.input(3, 2), g.input(2)
    body = Graph(g.ids)
    graph = body.finish(body.call("aten.add.Tensor", self=body.input(2), other=body.input(2)))
    result = g.call("control.map", f=graph, xs=(xs,), pos_args=(y,))
    outputs = run(g.finish(result), np.arange(6, dtype=np.float32).reshape(3, 2), f32(10, 20)).outputs
    assert outputs[0].tolist() == [[10, 21], [12, 23], [14, 25]]


def test_errors_in_nested_graphs_name_the_inner_node() -> None:
    g = Graph()
    p, x = g.input(dtype=ScalarType.BOOL), g.input(2)
    inner = Graph(g.ids)
    value = inner.input(2)
    index = inner.literal(np.array([4]))
    graph = inner.finish(inner.call("aten.gather.default", "loop.py:3", self=value, dim=0, index=index))
    args = {"true_fn": graph, "false_fn": graph}
    built = g.finish(g.call("control.cond", pred=p, operands=(x,), **args))
    with pytest.raises(IndexOutOfRangeError, match=r"^node 'n0' \(aten\.gather\.default\) from loop\.py:3: index 4"):
        run(built, np.array(True), f32(1, 2))


def test_assertions_on_data() -> None:
    g = Graph()
    p = g.input(dtype=ScalarType.BOOL)
    g.nodes.append(StaticNode("check", "aten._assert_async.msg", {"self": p, "assert_msg": "too long"}, ()))
    graph = g.finish(p)
    assert run(graph, np.array(True)).outputs[0].tolist() is True
    with pytest.raises(InputError, match="an assertion of the program does not hold: too long"):
        run(graph, np.array(False))


def test_support_says_precisely_what_is_missing() -> None:
    node = StaticNode("n", "aten.relu.default", {}, ())
    assert ENGINE.supports(node, CPU).ok
    assert ENGINE.supports(StaticNode("n", "control.cond", {}, ()), CPU).ok
    refused = ENGINE.supports(StaticNode("n", "mine.op.default", {}, ()), CPU)
    assert not refused.ok
    assert refused.reason == (
        "mine.op.default is not in the catalogue of operators; add a shape rule and a kernel for it"
    )


def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match="the reference engine has no option threads"):
        ENGINE.create_host(CPU, threads=3)


@pytest.mark.parametrize("decode_once", [False, True])
def test_quantised_constants_are_decoded_once_where_asked(monkeypatch: pytest.MonkeyPatch, decode_once: bool) -> None:
    """Two builds and a fork read one constant with two ranges; results are the same, and nobody can write to them."""
    decoded = []
    original = quant.unpack_affine

    def count(packed: np.ndarray, scheme: AffineGroup, sizes: tuple[int, ...]) -> np.ndarray:
        decoded.append(scheme.quant_min)
        return original(packed, scheme, sizes)

    monkeypatch.setattr(quant, "unpack_affine", count)
    g = Graph()
    packed = g.value(ValueKind.CONSTANT, ScalarType.BYTE, (2,), key="packed")
    results = [
        g.call("ptn.unpack_affine.default", packed=packed, scheme=AffineGroup("s", FLOAT, low, low + 15), sizes=(4,))
        for low in (-8, 0)
    ]
    graph = g.finish(*results)
    first = context({"packed": np.array([0x10, 0xFE], np.uint8)}, decode_once=decode_once)
    for on in (first, first, first.fork()):
        outputs = run(graph, on=on).outputs
        assert [output.tolist() for output in outputs] == [[-8, -7, 6, 7], [0, 1, 14, 15]]
        outputs[0][:] = 99
    assert decoded == [-8, 0] * (1 if decode_once else 3)


def test_intermediate_arrays_are_freed() -> None:
    g = Graph()
    value = g.input(1000)
    for _ in range(5):
        value = g.call("aten.neg.default", self=value)
    unused = g.call("aten.abs.default", self=value)
    build = context().build(g.finish(value))
    frees = [step.frees for step in build._plan.steps]
    assert [len(slots) for slots in frees] == [0, 1, 1, 1, 1, 1]
    assert frees[-1] == (build._plan.slot(unused),)


@pytest.mark.parametrize("wrong", [lambda: np.float32(1), lambda: np.zeros(2), lambda: (f32(1, 2), f32(1, 2))])
def test_a_kernel_that_breaks_its_word_is_found_out(monkeypatch: pytest.MonkeyPatch, wrong: Any) -> None:
    g = Graph()
    build = context().build(g.finish(g.call("aten.neg.default", self=g.input(2))))
    monkeypatch.setattr(build._plan.steps[0], "call", lambda out, **args: wrong())
    with pytest.raises(
        ExecutionError, match=r"node 'n0' \(aten\.neg\.default\) failed: the kernel of aten\.neg\.default"
    ):
        build.run([f32(1, 2)])
