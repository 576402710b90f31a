"""Where data decide sizes: what the stages are, before anything runs them."""

from __future__ import annotations

import numpy as np
import pytest
from lowering_graphs import GraphBuilder, T, lower, ops, specialize
from ptn_format.dtypes import ScalarType
from ptn_format.graph import Dim, OutputValueKind, TensorMeta
from ptn_runtime.engine import initial_graph, initial_graphs
from ptn_runtime.errors import InputError, LoweringError
from ptn_runtime.lowering.static import TensorSpec, ValueKind

F32, I64, BOOL = ScalarType.FLOAT, ScalarType.LONG, ScalarType.BOOL
INT, BOOLEAN = OutputValueKind.INT, OutputValueKind.BOOL
ITEM = "torch.ops.aten._local_scalar_dense.default"


def number(value, dtype=np.int64) -> bytes:
    return np.array(value, dtype).tobytes()


def found(count: int, rank: int = 1) -> tuple[TensorSpec, ...]:
    return (TensorSpec(I64, (count, rank)),)


def selection():
    """`neg(x)[nonzero(x > 0)] + count`, where `count` is a state that grows by one, and `log` is written to."""
    g = GraphBuilder()
    count = g.buffer("count", "count", F32, 1)
    x = g.input("x", F32, 4)
    log = g.input("log", F32, 4)
    opposite = g.call("torch.ops.aten.neg.default", x)
    more = g.call("torch.ops.aten.add.Scalar", count, 1)
    mask = g.call("torch.ops.aten.gt.Scalar", x, 0)
    places = g.call("torch.ops.aten.nonzero.default", mask, result="places", location="model.py:3")
    flat = g.call("torch.ops.aten.view.default", places, [-1])
    rows = g.call("torch.ops.aten.index_select.default", opposite, 0, flat)
    total = g.call("torch.ops.aten.add.Tensor", rows, count)
    g.call("torch.ops.aten.copy_.default", log, x)
    return g.build(total, buffers={"count": more})


def test_a_cut_gives_what_is_asked_and_what_is_read_later():
    graph = specialize(selection())
    cut = graph.cut
    assert ops(graph) == ["neg.default", "add.Scalar", "gt.Scalar"]
    assert (cut.node.op, cut.node.source, cut.is_number) == ("aten.nonzero.default", "model.py:3", False)
    mask = graph.nodes[2].output
    assert cut.node.args == {"self": mask}
    names = {value.name: value for value in cut.carried}
    assert set(names) == {"x", "log", "neg_1", "add_2"}
    assert set(graph.outputs) == {mask, names["neg_1"], names["add_2"]}  # inputs are at hand
    assert (graph.state_updates, graph.input_updates) == ((), ())


def test_the_last_stage_changes_state_and_inputs():
    graph = specialize(selection())
    last = graph.cut.resume(found(3))
    assert last.cut is None
    assert ops(last) == ["view.default", "index_select.default", "add.Tensor"]
    assert [value.name for value in last.inputs] == [*(value.name for value in graph.cut.carried), "places"]
    assert last.inputs[-1].shape == (3, 1)
    assert last.outputs[0].shape == (3,)
    (update,) = last.state_updates
    assert (update.old.kind, update.old.key, update.new.name) == (ValueKind.STATE, "count", "add_2")
    ((log, new),) = last.input_updates
    assert (log.name, new.name) == ("log", "x")


def test_stages_are_kept_by_answer(monkeypatch):
    monkeypatch.setattr("ptn_runtime.lowering.program.MAX_STAGES", 2)
    method = lower(selection())
    cut = method.specialize(((4,), (4,))).cut
    one, two = cut.resume(found(1)), cut.resume(found(2))
    assert cut.resume(found(1)) is one
    cut.resume(found(3))
    assert cut.resume(found(1)) is one
    assert cut.resume(found(2)) is not two
    assert method.specialize(((4,), (4,))).cut is cut


def test_stages_do_not_share_values():
    graph = specialize(selection())
    stages = [graph, graph.cut.resume(found(1)), graph.cut.resume(found(2))]
    values = [
        {id(v) for v in (*s.inputs, *s.constants, *s.states, *(o for n in s.nodes for o in n.outputs))} for s in stages
    ]
    assert values[0].isdisjoint(values[1])
    assert values[1].isdisjoint(values[2])


def test_an_item_becomes_a_number_where_a_size_needs_it():
    g = GraphBuilder()
    x = g.input("x", F32, 8)
    n = g.call("torch.ops.aten.add.Scalar", g.input("n", I64), 1)
    item = g.scalar(ITEM, n)
    twice = g.scalar("_operator.mul", item, 2)
    scaled = g.call("torch.ops.aten.mul.Scalar", x, item)
    graph = specialize(g.build(g.call("torch.ops.aten.slice.Tensor", scaled, 0, 0, twice), twice))
    assert (ops(graph), graph.cut.is_number, graph.cut.asked.name) == (["add.Scalar"], True, "add_1")
    last = graph.cut.resume(number(3))
    product, window = last.nodes
    assert (product.args["other"], window.args["end"], last.results[1]) == (3, 6, 6)
    assert [value.name for value in last.inputs] == ["x"]


def test_a_state_and_an_input_that_change_may_be_sizes():
    g = GraphBuilder()
    count = g.buffer("count", "count", I64, 1)
    n = g.input("n", I64)
    a, b = g.scalar(ITEM, count), g.scalar(ITEM, n)
    g.call("torch.ops.aten.add_.Scalar", count, 1, result="more")
    g.call("torch.ops.aten.mul_.Scalar", n, 2, result="twice")
    graph = specialize(g.build(g.call("torch.ops.aten.full.default", [a, b], 1.0)))
    assert (graph.cut.asked.kind, graph.outputs) == (ValueKind.STATE, (graph.cut.asked,))
    last = graph.cut.resume(number([3])).cut.resume(number(2))
    assert last.outputs[0].shape == (3, 2)
    (update,) = last.state_updates
    assert (update.old.kind, update.old.key) == (ValueKind.STATE, "count")
    np.testing.assert_array_equal(update.new.data, [4])  # what is known is computed at once
    ((old, new),) = last.input_updates
    assert (old, new.data) == (last.inputs[0], 4)
    assert [value.name for value in last.inputs] == ["n"]


def test_an_item_that_no_size_needs_stays_in_the_graph():
    g = GraphBuilder()
    x = g.input("x", F32, 8)
    item = g.scalar(ITEM, g.input("n", I64))
    graph = specialize(g.build(g.call("torch.ops.aten.mul.Scalar", x, item)))
    assert graph.cut is None
    assert graph.nodes[0].args["other"] is graph.inputs[1]


def test_an_input_number_as_a_size_needs_no_run():
    g = GraphBuilder()
    n = g.scalar_input("n", INT)
    graph = specialize(g.build(g.call("torch.ops.aten.full.default", [n, 2], 1.0)))
    assert (graph.nodes, graph.outputs, graph.cut.asked) == ((), (), graph.inputs[0])
    assert graph.cut.resume(number(3)).outputs[0].shape == (3, 2)


def test_a_function_of_an_item_without_a_tensor_form():
    g = GraphBuilder()
    item = g.scalar(ITEM, g.input("n", I64))
    root = g.scalar("math.isqrt", item)
    graph = specialize(g.build(g.call("torch.ops.aten.mul.Scalar", g.input("x", F32, 2), root)))
    assert graph.cut.resume(number(17)).nodes[0].args["other"] == 4


def test_the_range_to_an_item():
    g = GraphBuilder()
    item = g.scalar(ITEM, g.input("n", I64, 1))
    graph = specialize(g.build(g.call("torch.ops.aten.arange.start_step", 0, item, 1)))
    assert graph.cut.resume(number([5])).outputs[0].shape == (5,)


def test_an_operator_on_constants_is_evaluated():
    g = GraphBuilder()
    x = g.input("x", F32, 4)
    places = g.call("torch.ops.aten.nonzero.default", g.constant("mask", np.array([1, 0, 1, 1])))
    flat = g.call("torch.ops.aten.view.default", places, [-1])
    method = lower(g.build(g.call("torch.ops.aten.index_select.default", x, 0, flat)), {"mask": np.array([1, 0, 1, 1])})
    graph = method.specialize(((4,),))
    assert (graph.cut, ops(graph)) == (None, ["index_select.default"])
    np.testing.assert_array_equal(graph.nodes[0].args["index"].data, [0, 2, 3])


def assigned(shape, mask, values, *, first=0, accumulate=False):
    g = GraphBuilder()
    x = g.input("x", F32, *shape)
    indices = [None] * first + [g.input("mask", BOOL, *mask)]
    put = g.call("torch.ops.aten.index_put.default", x, indices, g.input("v", F32, *values), accumulate)
    return specialize(g.build(put))


@pytest.mark.parametrize(
    ("values", "first", "shape"),
    [((), 0, ()), ((5,), 0, (5,)), ((1, 5), 0, (1, 1, 5)), ((1,), 0, (1,)), ((3, 1), 1, (3, 1, 1)), ((1, 1), 1, None)],
)
def test_a_write_to_masked_places_is_a_choice(values, first, shape):
    mask = (3, 4) if first == 0 else (4, 5)
    graph = assigned((3, 4, 5), mask, values, first=first)
    assert graph.cut is None
    assert ops(graph)[-1] == "where.self"
    if shape is not None:
        assert graph.nodes[-1].args["self"].shape == shape
    assert graph.outputs[0].shape == (3, 4, 5)


def test_a_write_of_as_many_values_as_the_mask_chooses_is_the_hosts():
    graph = assigned((3, 4), (3,), (2, 4))
    assert (graph.cut.node.op, graph.nodes) == ("aten.index_put.default", ())
    assert graph.cut.resume((TensorSpec(F32, (3, 4)),)).outputs[0].shape == (3, 4)


def test_masks_that_do_not_fit_are_refused():
    with pytest.raises(LoweringError, match=r"the mask \[4\] does not fit \[3, 4\] from axis 0 on"):
        assigned((3, 4), (4,), ())


def branch(target: str, *args) -> object:
    b = GraphBuilder("branch")
    a = b.input("a", F32, 4)
    return b.graph(b.call("torch.ops.aten.sum.default", b.call(target, a, *args)))


def test_a_branch_with_sizes_of_its_own_is_entered():
    g = GraphBuilder()
    x, flag = g.input("x", F32, 4), g.input("flag", BOOL)
    cond = "torch.ops.higher_order.cond"
    yes, no = branch("torch.ops.aten.nonzero.default"), branch("torch.ops.aten.exp.default")
    (result,) = g.multi_call(cond, flag, yes, no, [x], count=1)
    method = lower(g.build(g.call("torch.ops.aten.neg.default", result)))
    cut = method.specialize(((4,), ())).cut
    assert (cut.is_number, cut.asked.name) == (True, "flag")
    assert ops(cut.resume(number(False, np.bool_))) == ["exp.default", "sum.default", "neg.default"]
    inner = cut.resume(number(True, np.bool_))
    assert (inner.nodes, inner.cut.node.op) == ((), "aten.nonzero.default")
    assert ops(inner.cut.resume(found(2))) == ["sum.default", "neg.default"]
    assert [ops(graph) for graph in initial_graphs(method)] == [
        ["_local_scalar_dense.default", "nonzero.default", "sum.default", "neg.default"],
        ["_local_scalar_dense.default", "exp.default", "sum.default", "neg.default"],
    ]


def test_branches_of_different_shapes_are_entered():
    def part(size: int):
        b = GraphBuilder("branch")
        return b.graph(b.call("torch.ops.aten.slice.Tensor", b.input("a", F32, 4), 0, 0, size))

    g = GraphBuilder()
    x, flag = g.input("x", F32, 4), g.input("flag", BOOL)
    (result,) = g.multi_call("torch.ops.higher_order.cond", flag, part(1), part(2), [x], count=1)
    cut = specialize(g.build(result)).cut
    assert [cut.resume(number(flag, np.bool_)).outputs[0].shape for flag in (True, False)] == [(1,), (2,)]


def test_an_operand_of_a_branch_that_is_a_size():
    b = GraphBuilder("branch")
    a, n = b.input("a", F32, 4), b.scalar_input("n", INT)
    part = b.graph(b.call("torch.ops.aten.sum.default", b.call("torch.ops.aten.slice.Tensor", a, 0, 0, n)))
    g = GraphBuilder()
    x, flag = g.input("x", F32, 4), g.input("flag", BOOL)
    item = g.scalar(ITEM, g.input("n", I64))
    cond = g.multi_call("torch.ops.higher_order.cond", flag, part, part, [x, T(item.name)], count=1)
    cut = specialize(g.build(*cond)).cut
    assert cut.asked.name == "n"
    graph = cut.resume(number(3))
    assert (graph.cut, ops(graph)) == (None, ["control.cond"])
    assert [node.args["end"] for node in graph.nodes[0].args["true_fn"].nodes if "end" in node.args] == [3]


def test_bodies_of_loops_are_refused():
    b = GraphBuilder("body")
    row = b.input("row", F32, 3)
    body = b.graph(
        b.call("torch.ops.aten.sum.default", b.call("torch.ops.aten.nonzero.default", row, location="m.py:9"))
    )
    g = GraphBuilder()
    x = g.input("x", F32, 5, 3)
    (result,) = g.multi_call("torch.ops.higher_order.map_impl", body, [x], [], count=1)
    with pytest.raises(LoweringError) as error:
        specialize(g.build(result))
    text = str(error.value)
    assert "node 'higher_order_1' (control.map)" in text
    assert (
        "the body of a loop cannot have sizes that depend on data, as node 'nonzero_1' (aten.nonzero.default)" in text
    )
    assert "from m.py:9" in text


def checked_slice(low: int, high: int):
    g = GraphBuilder()
    x = g.input("x", F32, (1, 8))
    n = g.scalar(ITEM, g.input("n", I64))
    g.effect("torch.ops.aten.sym_constrain_range.default", n, min=low, max=high)
    return g.build(g.call("torch.ops.aten.slice.Tensor", x, 0, 0, n))


def test_assertions_on_a_size_from_data():
    cut = specialize(checked_slice(2, 5)).cut
    assert cut.hints == (5, 2)
    assert cut.resume(number(4)).outputs[0].shape == (4,)
    with pytest.raises(
        InputError, match=r"6 must lie in 2\.\.5 \(input shapes: x\[8\], n\[\]; from the data: 'n' is 6\)"
    ):
        cut.resume(number(6))


def test_sizes_from_data_keep_to_the_bounds_of_the_file():
    g = GraphBuilder()
    meta = TensorMeta(I64, (Dim(0, 2), Dim(1, 1)))
    x = g.input("x", F32, 4)
    cut = specialize(g.build(g.call("torch.ops.aten.nonzero.default", x, meta=meta, result="places"))).cut
    assert cut.resume(found(2)).outputs[0].shape == (2, 1)
    with pytest.raises(InputError, match=r"gives int64\[3, 1\] for these data, but the model was exported for int64"):
        cut.resume(found(3))


def test_a_misfit_behind_a_cut_tells_the_data():
    g = GraphBuilder()
    x = g.input("x", F32, 4)
    places = g.call("torch.ops.aten.nonzero.default", x, result="places")
    cut = specialize(g.build(g.call("torch.ops.aten.view.default", places, [3]))).cut
    assert cut.resume(found(3)).outputs[0].shape == (3,)
    with pytest.raises(InputError, match=r"from the data: 'places' gives int64\[2, 1\]"):
        cut.resume(found(2))


# What engines are asked about before there are data.


def test_upper_bounds_stand_for_sizes_from_data():
    graph = initial_graph(lower(selection()))
    assert [node.op for node in graph.nodes if node.on_host] == ["aten.nonzero.default"]
    assert ops(graph)[-1] == "add.Tensor"
    assert graph.outputs[0].shape == (4,)
    assert [update.old.key for update in graph.state_updates] == ["count"]
    assert [(old.name, new.name) for old, new in graph.input_updates] == [("log", "x")]
    ids = [value.id for node in graph.nodes for value in node.outputs]
    assert len(set(ids)) == len(ids)
    seen = {value.id for value in (*graph.inputs, *graph.constants, *graph.states)}
    for node in graph.nodes:
        assert {value.id for value in node.inputs()} <= seen
        seen.update(value.id for value in node.outputs)


@pytest.mark.parametrize(("low", "high", "size"), [(2, 5, 5), (None, None, 2), (3, None, 3), (None, 1, 1)])
def test_numbers_are_tried_as_the_program_compares_them(low, high, size):
    assert initial_graph(lower(checked_slice(low, high))).outputs[0].shape == (size,)


def test_a_size_that_only_one_number_fits():
    g = GraphBuilder()
    x = g.input("x", F32, 4)
    places = g.call("torch.ops.aten.nonzero.default", x)
    graph = initial_graph(lower(g.build(g.call("torch.ops.aten.view.default", places, [3]))))
    assert graph.outputs[0].shape == (3,)


def test_what_cannot_be_foretold_ends_early():
    g = GraphBuilder()
    x = g.input("x", F32, 99)
    places = g.call("torch.ops.aten.nonzero.default", g.call("torch.ops.aten.abs.default", x))
    graph = initial_graph(lower(g.build(g.call("torch.ops.aten.view.default", places, [77]))))
    assert ops(graph) == ["abs.default"]
    assert graph.results == ()


def test_a_mask_beside_an_index_selects_as_many():
    g = GraphBuilder()
    x = g.input("x", F32, 3, 4, 5)
    indices = [g.input("i", I64, 6, 2), None, g.input("mask", BOOL, 5)]
    graph = initial_graph(lower(g.build(g.call("torch.ops.aten.index.Tensor", x, indices))))
    assert graph.outputs[0].shape == (6, 2, 4)


def test_an_operator_without_a_known_bound_takes_those_of_the_file(monkeypatch):
    monkeypatch.setattr("ptn_runtime.lowering.foresee._selected", lambda *_: None)
    g = GraphBuilder()
    meta = TensorMeta(I64, (Dim(3, 6), Dim(1, 1)))
    graph = initial_graph(lower(g.build(g.call("torch.ops.aten.nonzero.default", g.input("x", I64, 9), meta=meta))))
    assert graph.outputs[0].shape == (6, 1)


def loop_behind(g: GraphBuilder, x: T) -> T:
    """A loop over `x` whose body has a size that depends on data."""
    b = GraphBuilder("body")
    row = b.input("row", F32, 3)
    body = b.graph(b.call("torch.ops.aten.sum.default", b.call("torch.ops.aten.nonzero.default", row)))
    (result,) = g.multi_call("torch.ops.higher_order.map_impl", body, [x], [], count=1)
    return result


def test_what_cannot_be_lowered_behind_a_cut_is_told_at_once():
    g = GraphBuilder()
    x = g.input("x", F32, 5, 3)
    kept = g.call("torch.ops.aten.index.Tensor", x, [g.input("mask", BOOL, 5)])
    with pytest.raises(LoweringError, match="the body of a loop cannot have sizes that depend on data"):
        initial_graph(lower(g.build(loop_behind(g, kept))))


def test_contents_of_a_state_that_do_not_fit_tell_the_data():
    g = GraphBuilder()
    g.buffer("kept", "kept", F32, 3)
    x = g.input("x", F32, 99)
    found_ = g.call("torch.ops.aten.masked_select.default", x, g.input("mask", BOOL, 99), result="found")
    method = lower(g.build(buffers={"kept": found_}))
    cut = method.specialize(((99,), (99,))).cut
    assert cut.resume((TensorSpec(F32, (3,)),)).state_updates[0].new.shape == (3,)
    with pytest.raises(InputError, match=r"both must be the same. .*from the data: 'found' gives float32\[2\]"):
        cut.resume((TensorSpec(F32, (2,)),))
    assert [update.old.key for update in initial_graph(method).state_updates] == ["kept"]
