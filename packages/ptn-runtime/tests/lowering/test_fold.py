"""Folding of constants."""

from __future__ import annotations

import numpy as np
from lowering_graphs import FakePackage, GraphBuilder, lower, ops, specialize
from ptn_format.dtypes import ScalarType
from ptn_runtime.lowering.program import LoweredProgram

F32, I64 = ScalarType.FLOAT, ScalarType.LONG


def mask(g: GraphBuilder, size: int):
    row = g.call("torch.ops.aten.arange.start_step", 0, size)
    column = g.call("torch.ops.aten.unsqueeze.default", row, 1)
    return g.call("torch.ops.aten.le.Tensor", row, column)


def test_causal_mask_is_a_constant():
    g = GraphBuilder()
    x = g.input("x", F32, 5, 5)
    method = g.build(g.call("torch.ops.aten.where.self", mask(g, 5), x, 0.0))
    graph = specialize(method)
    assert ops(graph) == ["where.self"]
    (constant,) = graph.constants
    np.testing.assert_array_equal(constant.data, np.tri(5, dtype=bool))
    assert constant.key is None
    assert not constant.data.flags.writeable


def test_folded_array_is_shared_between_shapes():
    g = GraphBuilder()
    x = g.input("x", F32, (1, 8), 5)
    lifted = g.constant("c_one", np.array(1), "one")
    one = g.call("torch.ops.aten._to_copy.default", lifted, dtype=F32)
    rows = g.call("torch.ops.aten.where.self", mask(g, 5), x, one)
    size = g.scalar("torch.ops.aten.sym_size.int", x, 0)
    ramp = g.call("torch.ops.aten.arange.start_step", 0, size)
    package = FakePackage(g.build(rows, ramp), constants={"one": np.array(1)})
    lowered = LoweredProgram(package).method("forward")
    first, second = lowered.specialize(((5, 5),)), lowered.specialize(((1, 5),))
    by_name = {value.name: value.data for value in first.constants}
    assert len(first.constants) == 3
    for value in second.constants:
        assert (value.data is by_name[value.name]) == (value.name != ramp.name)
    assert package.reads == ["one"]  # read once
    assert first.results[1].shape == (5,)
    assert second.results[1].shape == (1,)


def test_random_operators_are_never_folded():
    g = GraphBuilder()
    x = g.input("x", F32, 4)
    noise = g.call("torch.ops.aten.rand.default", [4])
    graph = specialize(g.build(g.call("torch.ops.aten.add.Tensor", x, noise)))
    assert ops(graph) == ["rand.default", "add.Tensor"]


def test_large_results_stay_nodes():
    g = GraphBuilder()
    x = g.input("x", F32, 1)
    big = g.call("torch.ops.aten.full.default", [1 << 19], 1.0)
    graph = specialize(g.build(g.call("torch.ops.aten.add.Tensor", x, big)))
    assert ops(graph) == ["full.default", "add.Tensor"]


def test_masks_may_be_larger_than_what_they_are_made_of():
    g = GraphBuilder()
    x = g.input("x", F32, 512, 512)
    assert ops(specialize(g.build(g.call("torch.ops.aten.where.self", mask(g, 512), x, 0.0)))) == ["where.self"]


def test_weights_are_not_blown_up_behind_a_view():
    weight = np.zeros((512, 256), np.int8)
    g = GraphBuilder()
    x = g.input("x", F32, 2, 256)
    w = g.constant("p_w", weight, "w")
    turned = g.call("torch.ops.aten.permute.default", w, [1, 0])
    cast = g.call("torch.ops.aten._to_copy.default", turned, dtype=F32)
    graph = specialize(g.build(g.call("torch.ops.aten.mm.default", x, cast)), constants={"w": weight})
    assert ops(graph) == ["_to_copy.default", "mm.default"]


def test_weights_are_not_blown_up():
    weight = np.zeros((512, 256), np.int8)
    g = GraphBuilder()
    x = g.input("x", F32, 2, 512)
    w = g.constant("p_w", weight, "w")
    cast = g.call("torch.ops.aten._to_copy.default", w, dtype=F32)
    graph = specialize(g.build(g.call("torch.ops.aten.mm.default", x, cast)), constants={"w": weight})
    assert ops(graph) == ["_to_copy.default", "mm.default"]


def test_states_are_not_constant():
    g = GraphBuilder()
    count = g.buffer("b_count", "count", F32, 1)
    graph = specialize(g.build(g.call("torch.ops.aten.neg.default", count)))
    assert ops(graph) == ["neg.default"]


def test_index_out_of_range_is_left_to_the_engine():
    g = GraphBuilder()
    table = g.constant("p_t", np.zeros((3, 2), np.float32), "t")
    index = g.constant("c_i", np.array([5]), "i")
    method = g.build(g.call("torch.ops.aten.embedding.default", table, index))
    graph = lower(method, {"t": np.zeros((3, 2), np.float32), "i": np.array([5])}).specialize(())
    assert ops(graph) == ["embedding.default"]


def test_cond_on_a_constant_picks_its_branch():
    from ptn_format.graph import Graph

    def branch(target: str) -> Graph:
        inner = GraphBuilder("branch")
        return inner.graph(inner.call(target, inner.input("a", F32, 4)))

    g = GraphBuilder()
    x = g.input("x", F32, 4)
    flag = g.constant("c_flag", np.array(True), "flag")
    branches = [branch("torch.ops.aten.exp.default"), branch("torch.ops.aten.neg.default")]
    (result,) = g.multi_call("torch.ops.higher_order.cond", flag, *branches, [x], count=1)
    assert ops(specialize(g.build(result), constants={"flag": np.array(True)})) == ["exp.default"]
