"""Quantisation against the reference engine and ptn_format's own packing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ptn_format.dtypes import ScalarType
from ptn_format.graph import AffineGroup
from ptn_format.quant import dequantize_affine, pack_affine
from ptn_runtime.reference import evaluate

FLOAT, CHAR, BYTE = ScalarType.FLOAT, ScalarType.CHAR, ScalarType.BYTE
REALS = [FLOAT, ScalarType.HALF, ScalarType.BFLOAT16]
BLOCKS = [(1, 48), (6, 48), (1, 8), (2, 16), (3, 1), (6, 1)]


@pytest.mark.parametrize("dtype", REALS, ids=lambda t: t.torch_name)
@pytest.mark.parametrize("block", BLOCKS, ids=str)
@pytest.mark.parametrize("mapping", ["SYMMETRIC", "SYMMETRIC_NO_CLIPPING_ERR", "ASYMMETRIC"])
def test_affine_round_trip(run: Any, dtype: ScalarType, block: tuple[int, int], mapping: str) -> None:
    x = np.random.default_rng(0).normal(size=(6, 48)).astype(dtype.numpy)
    choice = {"mapping_type": mapping, "block_size": block, "target_dtype": CHAR, "eps": 1e-6}
    scale, zero_point = evaluate("torchao.choose_qparams_affine.default", {"input": x, **choice})
    specs = [(dtype, scale.shape), (ScalarType.from_numpy(zero_point.dtype), zero_point.shape)]
    ints = [["SYMMETRIC", "SYMMETRIC_NO_CLIPPING_ERR", "ASYMMETRIC"].index(mapping), -128, 127, *block]
    found = run("quant.choose_qparams", [x], specs, ints, [1e-6], threads=2)
    np.testing.assert_array_equal(found[0], scale)
    np.testing.assert_array_equal(found[1], zero_point)
    common = {"block_size": block, "scale": scale, "zero_point": zero_point}
    (q,) = evaluate("torchao.quantize_affine.default", {"input": x, **common, "output_dtype": CHAR})
    (ours,) = run("quant.quantize", [x, scale, zero_point], [(CHAR, x.shape)], [1, 0, -128, 127, *block], threads=2)
    np.testing.assert_array_equal(ours, q)
    (back,) = evaluate(
        "torchao.dequantize_affine.default", {"input": q, **common, "input_dtype": CHAR, "output_dtype": dtype}
    )
    (ours,) = run("quant.dequantize", [q, scale, zero_point], [(dtype, x.shape)], [1, *block], threads=2)
    np.testing.assert_array_equal(ours, back)


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("group", [0, 4, 16])
@pytest.mark.parametrize("zero_points", [False, True])
def test_packed_constants(run: Any, bits: int, group: int, zero_points: bool) -> None:
    low = -(1 << (bits - 1))
    scheme = AffineGroup("scale", FLOAT, low, low + (1 << bits) - 1, group, "zero" if zero_points else None)
    rng = np.random.default_rng(bits)
    values = rng.integers(low, low + (1 << bits), (5, 48)).astype(np.int8)
    packed = pack_affine(values, scheme)
    (unpacked,) = run("quant.unpack", [packed], [(CHAR, values.shape)], [bits, low], threads=2)
    np.testing.assert_array_equal(unpacked, values)
    groups = 48 // (group or 48)
    scale = rng.uniform(0.01, 1, (5, groups)).astype(np.float32)
    zero = rng.integers(-3, 4, (5, groups)).astype(np.int8) if zero_points else None
    expected = dequantize_affine(packed, scheme, values.shape, scale, zero)
    inputs = [packed, scale] + ([] if zero is None else [zero])
    ints = [bits, low, group or 48, int(zero_points)]
    (found,) = run("quant.dequantize_packed", inputs, [(FLOAT, values.shape)], ints, threads=2)
    np.testing.assert_array_equal(found, expected)


def test_too_few_packed_bytes_are_refused(run: Any) -> None:
    with pytest.raises(RuntimeError, match="too short"):
        run("quant.unpack", [np.zeros(3, np.uint8)], [(CHAR, (7,))], [4, -8])


@pytest.mark.parametrize(("name", "number", "nbytes"), [("q4_k", 12, 144), ("q5_k", 13, 176), ("q6_k", 14, 210)])
def test_ggml_blocks(run: Any, name: str, number: int, nbytes: int) -> None:
    blocks = np.random.default_rng(0).integers(0, 256, (3, 2 * nbytes)).astype(np.uint8)
    # Block scales that are small numbers, not whatever random halves are.
    halves = {"q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,)}[name]
    for block in (0, nbytes):
        for place in halves:
            blocks[:, block + place : block + place + 2] = np.array([0.01], np.float16).view(np.uint8)
    args = {"weight": blocks, "ggml_type": name, "output_dtype": FLOAT}
    (expected,) = evaluate("torchao.dequantize_gguf.default", args)
    (found,) = run("quant.dequantize_blocks", [blocks], [(FLOAT, (3, 512))], [number, 512], threads=2)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


def test_int4_and_embedding_layouts_differ(run: Any) -> None:
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, (6, 16)).astype(np.uint8)
    scale, zero = rng.uniform(0.1, 1, (4, 6)).astype(np.float32), rng.integers(0, 16, (4, 6)).astype(np.float32)
    args = {"qdata": data, "scale": scale, "zero_point": zero, "group_size": 8, "output_dtype": FLOAT}
    (expected,) = evaluate("torchao.dequantize_int4_tensor.default", args)
    (found,) = run("quant.dequantize_int4", [data, scale, zero], [(FLOAT, (6, 32))], [8])
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    ids = np.array([[5, 0], [2, 2]], np.int64)
    row_scale = rng.uniform(0.1, 1, (6, 4)).astype(np.float32)
    args = {
        "weight": data,
        "weight_scales": row_scale,
        "weight_zero_points": None,
        "weight_quant_min": -8,
        "weight_quant_max": 7,
        "indices": ids,
    }
    (expected,) = evaluate("quantized_decomposed.embedding_4bit.default", args)
    (found,) = run("quant.embedding_4bit", [data, row_scale, ids], [(FLOAT, (2, 2, 32))], [0])
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    with pytest.raises(IndexError, match="index 6 is out of range"):
        run("quant.embedding_4bit", [data, row_scale, np.array([6])], [(FLOAT, (1, 32))], [0])
