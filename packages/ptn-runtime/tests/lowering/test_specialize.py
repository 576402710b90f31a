"""Shapes, sizes, assertions, control flow and errors of specialisation."""

from __future__ import annotations

import numpy as np
import pytest
from lowering_graphs import GraphBuilder, T, dims, lower, ops, run, specialize
from ptn_format.dtypes import ScalarType
from ptn_format.graph import OutputValueKind, TensorMeta
from ptn_runtime.errors import InputError, LoweringError
from ptn_runtime.lowering.static import ValueKind

F32, F16, I64, BOOL = ScalarType.FLOAT, ScalarType.HALF, ScalarType.LONG, ScalarType.BOOL
INT, FLOAT, BOOLEAN = OutputValueKind.INT, OutputValueKind.FLOAT, OutputValueKind.BOOL


def raised(kind, build, *shapes, constants=None) -> str:
    with pytest.raises(kind) as error:
        specialize(build, *shapes, constants=constants)
    return str(error.value)


def test_sizes_and_scalar_arithmetic():
    g = GraphBuilder()
    x = g.input("x", F32, (1, 8), (2, 16))
    batch = g.scalar("torch.ops.aten.sym_size.int", x, 0)
    length = g.scalar("torch.ops.aten.sym_size.int", x, -1)
    half = g.scalar("_operator.floordiv", length, 2)
    total = g.scalar("_operator.mul", batch, half)
    root = g.scalar("torch._sym_sqrt", g.scalar("torch.sym_float", total, kind=FLOAT), kind=FLOAT)
    view = g.call("torch.ops.aten.view.default", x, [total, 2])
    largest = g.scalar("torch.sym_max", batch, length)
    scaled = g.call("torch.ops.aten.mul.Scalar", view, root)
    graph = specialize(g.build(scaled, largest, None, 3), (3, 6))
    view_node, scale_node = graph.nodes
    assert view_node.args["size"] == (9, 2)
    assert scale_node.args["other"] == 3.0
    assert isinstance(scale_node.args["other"], float)
    assert graph.results == (scale_node.output, 6, None, 3)
    assert graph.outputs == (scale_node.output,)


def test_arguments_by_position_defaults_and_dtype_numbers():
    g = GraphBuilder()
    x = g.input("x", F32, 2, 3)
    cast = g.call("torch.ops.aten._to_copy.default", x, dtype=int(F16), device="cpu", non_blocking=False)
    summed = g.call("torch.ops.aten.sum.dim_IntList", cast, [1])
    graph = specialize(g.build(summed))
    to_copy, total = graph.nodes
    assert to_copy.args["dtype"] is F16
    assert total.args == {"self": to_copy.output, "dim": (1,), "keepdim": False, "dtype": None}
    assert total.output.dtype is F16


def test_tensor_list_for_optional_tensors():
    g = GraphBuilder()
    x = g.input("x", F32, 4, 3)
    index = g.input("index", I64, 2)
    direct = g.call("torch.ops.aten.index.Tensor", x, [index])
    holes = g.call("torch.ops.aten.index.Tensor", x, [None, index])
    graph = specialize(g.build(direct, holes))
    assert [value.shape for value in graph.outputs] == [(2, 3), (4, 2)]
    assert graph.nodes[1].args["indices"] == (None, graph.inputs[1])


@pytest.mark.parametrize(
    ("target", "args"),
    [
        ("torch.ops.aten.alias.default", ()),
        ("torch.ops.aten.detach.default", ()),
        ("torch.ops.aten.lift_fresh_copy.default", ()),
        ("torch.ops.aten.clone.default", ()),
        ("torch.ops.aten.expand_copy.default", ([-1, 3],)),
        ("torch.ops.aten.view.default", ([2, -1],)),
        ("torch.ops.aten.permute.default", ([0, 1],)),
        ("torch.ops.aten._to_copy.default", (F32,)),
        ("torch.ops.aten.slice.Tensor", (1, 0, 9223372036854775807, 1)),
        ("torch.ops.aten.repeat.default", ([1, 1],)),
        ("torch.ops.aten.squeeze.dim", (0,)),
    ],
)
def test_nodes_that_change_nothing_are_gone(target, args):
    g = GraphBuilder()
    x = g.input("x", F32, 2, 3)
    graph = specialize(g.build(g.call(target, x, *args)))
    assert graph.nodes == ()
    assert graph.results == graph.inputs


def test_dead_nodes_are_gone_and_ids_are_dense():
    g = GraphBuilder()
    x = g.input("x", F32, 2)
    w = g.constant("p_w", np.zeros(2, np.float32), "w")
    g.constant("p_unused", np.zeros(2, np.float32), "unused")
    g.call("torch.ops.aten.exp.default", x)
    g.call("torch.ops.made_up.thing.default", x)  # dead, so it need not be known
    kept = g.call("torch.ops.aten.add.Tensor", x, w)
    graph = specialize(g.build(kept), constants={"w": np.zeros(2, np.float32), "unused": np.zeros(2, np.float32)})
    assert ops(graph) == ["add.Tensor"]
    values = [*graph.inputs, *graph.constants, *graph.states, *(v for node in graph.nodes for v in node.outputs)]
    assert [value.id for value in values] == list(range(3))
    assert [value.key for value in graph.constants] == ["w"]


def test_aliased_constants_are_one():
    g = GraphBuilder()
    x = g.input("x", F32, 2)
    a = g.constant("p_a", np.ones(2, np.float32), "a")
    b = g.constant("p_b", np.ones(2, np.float32), "b")
    method = g.build(g.call("torch.ops.aten.add.Tensor", g.call("torch.ops.aten.mul.Tensor", x, a), b))
    lowered = lower(method, {"a": np.ones(2, np.float32)}, aliases={"b": "a"})
    graph = lowered.specialize(((2,),))
    assert [value.key for value in graph.constants] == ["a"]
    assert graph.nodes[0].args["other"] is graph.nodes[1].args["other"]


# Assertions.


def assertion(text="the sizes must be even"):
    g = GraphBuilder()
    x = g.input("x", F32, (1, 9), metadata={"ptn.name": "batch.x"})
    size = g.scalar("torch.ops.aten.sym_size.int", x, 0)
    even = g.scalar("_operator.eq", g.scalar("_operator.mod", size, 2), 0, kind=BOOLEAN)
    g.effect("torch.ops.aten._assert_scalar.default", even, text, location="model.py:3")
    return g.build(g.call("torch.ops.aten.neg.default", x))


def test_assertion_that_holds_is_gone():
    assert ops(specialize(assertion(), (4,))) == ["neg.default"]


def test_assertion_that_fails_names_the_input():
    text = raised(InputError, assertion(), (5,))
    assert text == (
        "method 'forward': an assertion of the program from model.py:3 does not hold: the sizes must be even "
        "(input 'batch.x' has size 5 on axis 0)"
    )


def test_range_assertion():
    g = GraphBuilder()
    x = g.input("x", F32, (1, 9))
    size = g.scalar("torch.ops.aten.sym_size.int", x, 0)
    g.effect("torch.ops.aten.sym_constrain_range_for_size.default", size, min=2, max=4)
    method = g.build(x)
    assert specialize(method, (4,)).nodes == ()
    assert "does not hold: 5 must lie in 2..4" in raised(InputError, method, (5,))


# Errors.


def test_shapes_that_do_not_fit_are_the_callers_fault():
    g = GraphBuilder()
    x = g.input("x", F32, (1, 8), 3)
    y = g.input("y", F32, (1, 8), 3)
    method = g.build(g.call("torch.ops.aten.add.Tensor", x, y, location="model.py:9"))
    text = raised(InputError, method, (2, 3), (4, 3))
    assert "node 'add_1' (aten.add.Tensor) from model.py:9 cannot run on x: float32[2, 3], y: float32[4, 3]" in text
    assert "Input shapes: x[2, 3], y[4, 3]" in text


def test_shapes_that_never_fit_are_the_files_fault():
    g = GraphBuilder()
    x = g.input("x", F32, 2)
    y = g.input("y", F32, 4)
    assert "aten.add.Tensor" in raised(LoweringError, g.build(g.call("torch.ops.aten.add.Tensor", x, y)))


def test_out_of_bounds_input():
    g = GraphBuilder()
    x = g.input("x", F32, (3, 8), 3)
    text = raised(InputError, g.build(x), (9, 3))
    assert text == "input 'x': size 9 of axis 0 is out of range; allowed [3..8, 3], got [9, 3]"


def test_wrong_number_of_shapes():
    g = GraphBuilder()
    x = g.input("x", F32, 2)
    assert "takes 1 inputs, got 2 shapes" in raised(InputError, g.build(x), (2,), (2,))


@pytest.mark.parametrize(
    "meta",
    [TensorMeta(F16, dims((2,))), TensorMeta(F32, dims((3,))), TensorMeta(F32, dims((2, 1)))],
)
def test_file_and_rule_disagree(meta):
    g = GraphBuilder()
    x = g.input("x", F32, 2)
    text = raised(LoweringError, g.build(g.call("torch.ops.aten.neg.default", x, meta=meta)))
    assert "node 'neg_1' (aten.neg.default)" in text
    assert "the file says" in text


def test_all_unknown_operators_are_listed():
    g = GraphBuilder()
    x = g.input("x", F32, 2)
    a = g.call("torch.ops.made_up.thing.default", x, location="model.py:1")
    b = g.call("torch.ops.made_up.thing.default", a, location="model.py:2")
    c = g.call("torch.ops.made_up.other.default", b)
    d = g.call("torch.ops.aten.neg.default", c, made_up=3)
    text = raised(LoweringError, g.build(d))
    assert "4 node(s) cannot be understood" in text
    assert "made_up.thing.default has no shape rule: 2 node(s)\n    'thing_1' from model.py:1\n    'thing_2'" in text
    assert "made_up.other.default has no shape rule: 1 node(s)" in text
    assert "aten.neg.default argument 'made_up' is not one of (self): 1 node(s)" in text


def test_missing_argument():
    g = GraphBuilder()
    x = g.input("x", F32, 2)
    assert "argument 'size' is missing" in raised(LoweringError, g.build(g.call("torch.ops.aten.view.default", x)))


def test_undefined_value():
    g = GraphBuilder()
    g.input("x", F32, 2)
    method = g.build(g.call("torch.ops.aten.neg.default", T("nothing")))
    assert "value 'nothing' is not defined" in raised(LoweringError, method)


def test_malformed_node():
    g = GraphBuilder()
    x = g.input("x", F32, 2)
    number = g.scalar("torch.ops.aten._local_scalar_dense.default", x, x)
    text = raised(LoweringError, g.build(x, number))
    assert "node '_local_scalar_dense_1' (aten._local_scalar_dense.default) is not formed as the format demands" in text


def test_inputs_and_placeholders_must_agree():
    g = GraphBuilder()
    x = g.input("x", F32, 2)
    g.inputs.append("y")
    g.values["y"] = TensorMeta(F32, ())
    assert "its unbound placeholders (x)" in raised(LoweringError, g.build(x))


def test_failure_of_the_canonical_form_is_kept():
    g = GraphBuilder()
    x = g.input("x", F32, 2)
    lowered = lower(g.build(g.call("torch.ops.made_up.thing.default", x)))
    for _ in range(2):
        with pytest.raises(LoweringError, match="made_up"):
            lowered.specialize(((2,),))


# Numbers in tensors.


def test_item_of_a_constant_is_a_number():
    g = GraphBuilder()
    x = g.input("x", F32, 6)
    c = g.constant("c_n", np.array(3), "n")
    number = g.scalar("torch.ops.aten._local_scalar_dense.default", c)
    method = g.build(g.call("torch.ops.aten.view.default", x, [number, -1]))
    assert specialize(method, constants={"n": np.array(3)}).outputs[0].shape == (3, 2)


def test_item_of_data_is_a_tensor_of_no_axes():
    g = GraphBuilder()
    x = g.input("x", F32, 4)
    n = g.input("n", I64, 1)
    item = g.scalar("torch.ops.aten._local_scalar_dense.default", n)
    doubled = g.scalar("_operator.mul", item, 2)
    ratio = g.scalar("_operator.truediv", doubled, 4, kind=FLOAT)
    method = g.build(g.call("torch.ops.aten.add.Tensor", x, doubled), g.call("torch.ops.aten.mul.Scalar", x, ratio))
    graph = specialize(method)
    data = np.arange(4, dtype=np.float32)
    got = run(graph, data, np.array([3]))
    np.testing.assert_array_equal(got[0], data + 6)
    np.testing.assert_array_equal(got[1], data * 1.5)


def test_assertion_on_data_stays():
    g = GraphBuilder()
    n = g.input("n", I64, 1)
    item = g.scalar("torch.ops.aten._local_scalar_dense.default", n)
    positive = g.scalar("_operator.gt", item, 0, kind=BOOLEAN)
    g.effect("torch.ops.aten._assert_scalar.default", positive, "n must be positive")
    graph = specialize(g.build(n))
    assert ops(graph)[-1] == "_assert_async.msg"
    run(graph, np.array([3]))
    with pytest.raises(InputError, match="n must be positive"):
        run(graph, np.array([-3]))


# Nested graphs.


def branch(target: str, *names: str):
    inner = GraphBuilder("branch")
    values = [inner.input(name, F32, (1, 9)) for name in names]
    return inner.graph(inner.call(target, *values))


def test_cond_on_sizes_is_inlined():
    g = GraphBuilder()
    x = g.input("x", F32, (1, 9))
    size = g.scalar("torch.ops.aten.sym_size.int", x, 0)
    large = g.scalar("_operator.gt", size, 4, kind=BOOLEAN)
    (result,) = g.multi_call(
        "torch.ops.higher_order.cond",
        large,
        branch("torch.ops.aten.exp.default", "a"),
        branch("torch.ops.aten.neg.default", "a"),
        [x],
        count=1,
    )
    method = g.build(g.call("torch.ops.aten.abs.default", result))
    assert ops(specialize(method, (3,))) == ["neg.default", "abs.default"]
    assert ops(specialize(method, (5,))) == ["exp.default", "abs.default"]


def test_cond_on_data_stays():
    g = GraphBuilder()
    x = g.input("x", F32, (1, 9))
    flag = g.input("flag", BOOL)
    (result,) = g.multi_call(
        "torch.ops.higher_order.cond",
        flag,
        branch("torch.ops.aten.exp.default", "a"),
        branch("torch.ops.aten.neg.default", "a"),
        [x],
        count=1,
    )
    graph = specialize(g.build(result), (3,), ())
    (node,) = graph.nodes
    assert node.op == "control.cond"
    assert node.output.shape == (3,)
    then, otherwise = node.subgraphs()
    assert (ops(then), ops(otherwise)) == (["exp.default"], ["neg.default"])
    assert [value.shape for value in then.inputs] == [(3,)]
    ids = [value.id for nested in (then, otherwise) for value in (*nested.inputs, *nested.outputs)]
    assert len({*ids, node.output.id, graph.inputs[0].id, graph.inputs[1].id}) == 7


def test_constants_are_built_into_branches():
    weight = np.arange(4, dtype=np.float32)
    g = GraphBuilder()
    w = g.constant("p_w", weight, "w")
    two = g.call("torch.ops.aten.full.default", [4], 2.0)
    x = g.input("x", F32, 4)
    flag = g.input("flag", BOOL)
    branches = [GraphBuilder("then"), GraphBuilder("otherwise")]
    nested = []
    for inner, target in zip(branches, ("torch.ops.aten.mul.Tensor", "torch.ops.aten.add.Tensor"), strict=True):
        a, b, c = (inner.input(name, F32, 4) for name in "abc")
        nested.append(inner.graph(inner.call(target, inner.call("torch.ops.aten.mul.Tensor", b, c), a)))
    (result,) = g.multi_call("torch.ops.higher_order.cond", flag, *nested, [x, w, two], count=1)
    graph = specialize(g.build(result), constants={"w": weight})
    (node,) = graph.nodes
    assert node.args["operands"] == (graph.inputs[0],)
    for branch_graph in node.subgraphs():
        assert len(branch_graph.nodes) == 1  # the product of constants is folded
        (constant,) = branch_graph.constants
        np.testing.assert_array_equal(constant.data, weight * 2)


def test_branches_must_agree():
    g = GraphBuilder()
    x = g.input("x", F32, 4)
    flag = g.input("flag", BOOL)
    (result,) = g.multi_call(
        "torch.ops.higher_order.cond",
        flag,
        branch("torch.ops.aten.exp.default", "a"),
        branch("torch.ops.aten.isnan.default", "a"),
        [x],
        count=1,
    )
    assert "the branches give different results" in raised(LoweringError, g.build(result))


def test_while_loop_and_map_stay():
    g = GraphBuilder()
    x = g.input("x", F32, (1, 9), 2)
    test = GraphBuilder("cond")
    a = test.input("a", F32, (1, 9), 2)
    total = test.call("torch.ops.aten.sum.dim_IntList", a, [0, 1])
    test_graph = test.graph(test.call("torch.ops.aten.lt.Scalar", total, 100))
    body = GraphBuilder("body")
    b = body.input("b", F32, (1, 9), 2)
    body_graph = body.graph(body.call("torch.ops.aten.mul.Tensor", b, 2.0))
    (looped,) = g.multi_call("torch.ops.higher_order.while_loop", test_graph, body_graph, [x], [], count=1)
    row = GraphBuilder("row")
    c = row.input("c", F32, 2)
    d = row.input("d", F32, (1, 9), 2)
    row_graph = row.graph(row.call("torch.ops.aten.add.Tensor", d, c))
    (mapped,) = g.multi_call("torch.ops.higher_order.map_impl", row_graph, [looped], [x], count=1)
    graph = specialize(g.build(mapped), (3, 2))
    assert [node.op for node in graph.nodes] == ["control.while_loop", "control.map"]
    assert graph.outputs[0].shape == (3, 3, 2)


def test_scan_stays_and_builds_constants_in():
    g = GraphBuilder()
    start = g.input("start", F32, 2)
    xs = g.input("xs", F32, (1, 9), 2)
    weight = g.constant("w", np.array([2, 3], np.float32))
    step = GraphBuilder("step")
    a, x, w = step.input("a", F32, 2), step.input("x", F32, 2), step.input("w", F32, 2)
    total = step.call("torch.ops.aten.add.Tensor", a, step.call("torch.ops.aten.mul.Tensor", x, w))
    graph = step.graph(total, step.call("torch.ops.aten.neg.default", total))
    last, rows = g.multi_call("torch.ops.higher_order.scan", graph, [start], [xs], [weight], count=2)
    static = specialize(g.build(last, rows), (2,), (5, 2), constants={"w": np.array([2, 3], np.float32)})
    (node,) = static.nodes
    assert node.op == "control.scan"
    assert [value.shape for value in node.outputs] == [(2,), (5, 2)]
    assert node.args["additional_inputs"] == ()
    (nested,) = node.subgraphs()
    assert [value.name for value in nested.inputs] == ["a", "x"]
    assert [value.key for value in nested.constants] == ["w"]


def test_scan_must_keep_what_it_carries():
    g = GraphBuilder()
    start, xs = g.input("start", F32, 2), g.input("xs", F32, 4, 2)
    step = GraphBuilder("step")
    step.input("a", F32, 2)
    graph = step.graph(step.call("torch.ops.aten.isnan.default", step.input("x", F32, 2)))
    (last,) = g.multi_call("torch.ops.higher_order.scan", graph, [start], [xs], [], count=1)
    assert "a step turns (float32[2]) into (bool[2])" in raised(LoweringError, g.build(last))


def test_nested_graph_must_not_write_to_operands():
    inner = GraphBuilder("branch")
    a = inner.input("a", F32, 4)
    nested = inner.graph(inner.call("torch.ops.aten.add_.Tensor", a, 1.0))
    g = GraphBuilder()
    x = g.input("x", F32, 4)
    flag = g.input("flag", BOOL)
    (result,) = g.multi_call("torch.ops.higher_order.cond", flag, nested, nested, [x], count=1)
    assert "writes to its operand 'a'" in raised(LoweringError, g.build(result))


def test_operators_on_lists_of_tensors_are_refused_with_a_way_out():
    g = GraphBuilder()
    x = g.input("x", F32, 2)
    text = raised(LoweringError, g.build(g.call("torch.ops.aten._foreach_neg_.default", [x])))
    assert "aten._foreach_neg_.default works on a list of tensors at once; call the plain operator for each" in text


def test_unknown_operator_in_a_nested_graph():
    g = GraphBuilder()
    x = g.input("x", F32, 4)
    flag = g.input("flag", BOOL)
    (result,) = g.multi_call(
        "torch.ops.higher_order.cond",
        flag,
        branch("torch.ops.aten.exp.default", "a"),
        branch("torch.ops.made_up.thing.default", "a"),
        [x],
        count=1,
    )
    assert "made_up.thing.default has no shape rule" in raised(LoweringError, g.build(result))


def test_scalar_input_is_a_tensor_of_no_axes():
    g = GraphBuilder()
    x = g.input("x", F32, 4)
    n = g.scalar_input("n", INT)
    method = g.build(g.call("torch.ops.aten.mul.Scalar", x, n))
    lowered = lower(method)
    assert (lowered.inputs[1].dtype, lowered.inputs[1].dims) == (I64, ())
    graph = lowered.specialize(((4,), ()))
    assert graph.nodes[0].args["other"] is graph.inputs[1]
    assert graph.inputs[1].kind is ValueKind.INPUT
