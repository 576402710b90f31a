"""Quantised constants become explicit nodes."""

from __future__ import annotations

import numpy as np
import pytest
from lowering_graphs import GraphBuilder, dims, lower, ops, run
from ptn_format.dtypes import ScalarType
from ptn_format.graph import AffineGroup, PackedQuant, TensorMeta
from ptn_format.quant import pack_affine
from ptn_runtime.lowering.static import ValueKind

F32, CHAR, BF16 = ScalarType.FLOAT, ScalarType.CHAR, ScalarType.BFLOAT16
SCHEME = AffineGroup("w.scale", F32, -8, 7, 4, "w.zero", CHAR)


@pytest.fixture
def weights():
    rng = np.random.default_rng(0)
    integers = rng.integers(-8, 8, (3, 8)).astype(np.int8)
    return integers, {
        "w": pack_affine(integers, SCHEME),
        "w.scale": rng.random((3, 2), np.float32),
        "w.zero": rng.integers(-2, 3, (3, 2)).astype(np.int8),
    }


def decoded(integers, constants):
    scale, zero = (np.repeat(constants[key], 4, axis=1) for key in ("w.scale", "w.zero"))
    return (integers.astype(np.float32) - zero) * scale


def test_read_by_dequantize_affine(weights):
    integers, constants = weights
    g = GraphBuilder()
    w = g.constant("p_w", constants["w"], "w", sizes=(3, 8), quant=SCHEME)
    scale, zero = g.constant("p_s", constants["w.scale"], "w.scale"), g.constant("p_z", constants["w.zero"], "w.zero")
    x = g.input("x", F32, 2, 8)
    values = g.call("torch.ops.torchao.dequantize_affine.default", w, [1, 4], scale, zero, CHAR, -8, 7)
    graph = lower(g.build(g.call("torch.ops.aten.linear.default", x, values)), constants).specialize(((2, 8),))
    assert [node.op for node in graph.nodes] == [
        "ptn.unpack_affine.default",
        "torchao.dequantize_affine.default",
        "aten.linear.default",
    ]
    unpack, dequantize, _ = graph.nodes
    assert unpack.args["scheme"] is SCHEME
    assert unpack.args["packed"].key == "w"
    assert (unpack.args["packed"].dtype, unpack.args["packed"].shape) == (ScalarType.BYTE, constants["w"].shape)
    assert (unpack.output.dtype, unpack.output.shape) == (CHAR, (3, 8))
    assert dequantize.args["output_dtype"] is F32
    data = np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)
    (got,) = run(graph, data, constants=constants)
    np.testing.assert_allclose(got, data @ decoded(integers, constants).T, rtol=1e-5, atol=1e-6)


def test_read_directly(weights):
    integers, constants = weights
    g = GraphBuilder()
    w = g.constant("p_w", constants["w"], "w", sizes=(3, 8), quant=SCHEME)  # scale and zero point are not bound
    tied = g.constant("p_tied", constants["w"], "tied", sizes=(3, 8), quant=SCHEME)
    x = g.input("x", F32, 2, 8)
    ids = g.input("ids", ScalarType.LONG, 2)
    linear = g.call("torch.ops.aten.linear.default", x, w, meta=TensorMeta(F32, dims((2, 3))))
    rows = g.call("torch.ops.aten.embedding.default", tied, ids, meta=TensorMeta(F32, dims((2, 8))))
    lowered = lower(g.build(linear, rows), constants, aliases={"tied": "w"})
    graph = lowered.specialize(((2, 8), (2,)))
    assert [node.op for node in graph.nodes] == [
        "ptn.dequantize_packed.default",
        "aten.linear.default",
        "aten.embedding.default",
    ]
    values = graph.nodes[0]
    assert [values.args[name].key for name in ("packed", "scale", "zero_point")] == ["w", "w.scale", "w.zero"]
    assert (values.output.dtype, values.output.shape) == (F32, (3, 8))
    data = np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)
    got = run(graph, data, np.array([2, 0]), constants=constants)
    want = decoded(integers, constants)
    np.testing.assert_allclose(got[0], data @ want.T, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got[1], want[[2, 0]], rtol=1e-6)


def test_values_are_decoded_to_the_type_of_the_result(weights):
    _, constants = weights
    g = GraphBuilder()
    w = g.constant("p_w", constants["w"], "w", sizes=(3, 8), quant=SCHEME)
    x = g.input("x", BF16, 2, 8)
    y = g.call("torch.ops.aten.linear.default", x, w, meta=TensorMeta(BF16, dims((2, 3))))
    graph = lower(g.build(y), constants).specialize(((2, 8),))
    assert graph.nodes[0].output.dtype is BF16


def test_blocks_and_size_of_a_packed_constant():
    raw = np.zeros((2, 144), np.uint8)
    g = GraphBuilder()
    w = g.constant("p_w", raw, "w", sizes=(2, 256), quant=PackedQuant("gguf:q4_k"))
    x = g.input("x", F32, 1, 256)
    width = g.scalar("torch.ops.aten.sym_size.int", w, 1)
    y = g.call("torch.ops.aten.linear.default", x, w)
    graph = lower(g.build(y, width), {"w": raw}).specialize(((1, 256),))
    assert ops(graph) == ["ptn.dequantize_packed.default", "linear.default"]
    assert graph.results[1] == 256
    (constant,) = graph.constants
    assert (constant.kind, constant.key, constant.shape) == (ValueKind.CONSTANT, "w", (2, 144))
    assert graph.nodes[0].args["scale"] is None
