"""Reads and writes of windows whose place is a number from data, and whose size is known."""

from __future__ import annotations

import numpy as np
import pytest
from lowering_graphs import GraphBuilder, lower, ops, run
from ptn_format.dtypes import ScalarType
from ptn_format.graph import Dim, OutputValueKind, TensorMeta
from ptn_runtime.errors import IndexOutOfRangeError

F32, I64, I32 = ScalarType.FLOAT, ScalarType.LONG, ScalarType.INT
BOOLEAN = OutputValueKind.BOOL
ITEM = "torch.ops.aten._local_scalar_dense.default"
RANGE = "torch.ops.aten.sym_constrain_range.default"
DATA = np.arange(24, dtype=np.float32).reshape(6, 4)


def static(*sizes: int) -> TensorMeta:
    return TensorMeta(F32, tuple(Dim(size, size) for size in sizes))


def graph_of(g: GraphBuilder, *results):
    return lower(g.build(*results)).specialize(tuple(tuple(d.max for d in g.values[name].sizes) for name in g.inputs))


def start(*, least: int | None = 0, dtype: ScalarType = I64):
    g = GraphBuilder()
    x = g.input("x", F32, 6, 4)
    n = g.scalar(ITEM, g.input("n", dtype))
    if least is not None:
        g.effect(RANGE, n, min=least, max=9)
    return g, x, n


@pytest.mark.parametrize(("first", "last"), [(0, 1), (0, 3), (1, 3), (-1, 1)])
def test_a_slice_of_known_size(first, last):
    g, x, n = start(least=1)
    low = n if first == 0 else g.scalar("_operator.add", n, first)
    high = g.scalar("_operator.add", last, n)
    size = last - first
    window = g.call("torch.ops.aten.slice.Tensor", x, 0, low, high, meta=static(size, 4))
    graph = graph_of(g, window)
    assert graph.cut is None
    assert "index_select.default" in ops(graph)
    for place in (1, 2):
        np.testing.assert_array_equal(run(graph, DATA, np.array(place))[0], DATA[place + first : place + last])


def test_the_last_axis_and_a_difference():
    g, x, n = start(least=2)
    low = g.scalar("_operator.sub", n, 2)
    window = g.call("torch.ops.aten.slice.Tensor", x, -1, low, n, meta=static(6, 2))
    graph = graph_of(g, window)
    np.testing.assert_array_equal(run(graph, DATA, np.array(3))[0], DATA[:, 1:3])


@pytest.mark.parametrize("dtype", [I64, I32])
def test_a_row(dtype):
    g, x, n = start(dtype=dtype)
    graph = graph_of(g, g.call("torch.ops.aten.select.int", x, 1, n))
    assert graph.cut is None
    np.testing.assert_array_equal(run(graph, DATA, np.array(2, dtype.numpy))[0], DATA[:, 2])
    with pytest.raises(IndexOutOfRangeError):
        run(graph, DATA, np.array(4, dtype.numpy))


def test_writes():
    g, x, n = start()
    high = g.scalar("_operator.add", n, 2)
    rows, row = g.input("rows", F32, 2, 4), g.input("row", F32, 4)
    one = g.call("torch.ops.aten.slice_scatter.default", x, rows, 0, n, high)
    two = g.call("torch.ops.aten.select_scatter.default", one, row, 0, n)
    graph = graph_of(g, two)
    assert [op for op in ops(graph) if op.startswith("index")] == ["index_copy.default"] * 2
    wanted = DATA.copy()
    wanted[3:5] = 7
    wanted[3] = 8
    got = run(graph, DATA, np.array(3), np.full((2, 4), 7, np.float32), np.full(4, 8, np.float32))
    np.testing.assert_array_equal(got[0], wanted)


@pytest.mark.parametrize("least", [None, -1])
def test_a_number_that_may_be_negative_is_read(least):
    g, x, n = start(least=least)
    graph = graph_of(g, g.call("torch.ops.aten.select.int", x, 0, n))
    assert graph.cut.is_number
    assert ops(graph.cut.resume(np.array(-1).tobytes())) == ["select.int"]


def test_an_assertion_by_comparison_is_a_bound():
    g, x, n = start(least=None)
    g.effect("torch.ops.aten._assert_scalar.default", g.scalar("_operator.gt", n, -1, kind=BOOLEAN), "n > -1")
    assert graph_of(g, g.call("torch.ops.aten.select.int", x, 0, n)).cut is None


def test_windows_of_other_sizes_are_cut():
    for end, meta in ((4, None), (4, static(2, 4)), (None, static(6, 4))):
        g, x, n = start()
        window = g.call("torch.ops.aten.slice.Tensor", x, 0, n, end, **({"meta": meta} if meta else {}))
        assert graph_of(g, window).cut.is_number
    g, x, n = start()
    other = g.scalar("_operator.add", g.scalar(ITEM, g.input("m", I64)), 2)
    assert graph_of(g, g.call("torch.ops.aten.slice.Tensor", x, 0, n, other, meta=static(2, 4))).cut.is_number


def test_a_number_that_is_a_size_elsewhere_is_read():
    g, x, n = start()
    row = g.call("torch.ops.aten.select.int", x, 0, n)
    zeros = g.call("torch.ops.aten.full.default", [n], 0.0)
    graph = graph_of(g, row, zeros)
    assert graph.cut.is_number
    last = graph.cut.resume(np.array(3).tobytes())
    assert ops(last) == ["select.int"]
    assert last.nodes[0].args["index"] == 3


def test_a_write_through_a_view_is_read():
    g, x, n = start()
    row = g.call("torch.ops.aten.select.int", x, 0, n)
    g.call("torch.ops.aten.mul_.Scalar", row, 2.0)
    graph = graph_of(g, g.call("torch.ops.aten.neg.default", x))
    assert graph.cut.is_number
    last = graph.cut.resume(np.array(3).tobytes())
    assert ops(last) == ["select.int", "mul.Scalar", "select_scatter.default", "neg.default"]
