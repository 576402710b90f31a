"""Quantisation against the reference engine and ptn_format's own packing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ptn_format.dtypes import ScalarType
from ptn_format.graph import AffineGroup
from ptn_format.quant import GGUF_TYPES, dequantize_affine, pack_affine
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


def product(x: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return (x.astype(np.float64) @ values.astype(np.float64).T).astype(np.float32)


@pytest.mark.parametrize("name", sorted(GGUF_TYPES))
@pytest.mark.parametrize("value_dtype", REALS, ids=lambda t: t.torch_name)
def test_products_with_blocks(run: Any, name: str, value_dtype: ScalarType) -> None:
    """Rows are those that decoding all of the matrix gives; products differ by the order of their sums only."""
    kind = GGUF_TYPES[name]
    n, k = 37, 512
    rng = np.random.default_rng(1)
    blocks = rng.integers(0, 32, kind.packed_shape((n, k)), np.uint8)  # small bytes: no large exponents
    (values,) = run("quant.dequantize_blocks", [blocks], [(value_dtype, (n, k))], [kind.ggml_type, k])
    ints = [n, k, int(value_dtype), 0, kind.ggml_type]
    indices = np.array([[6, 0, 3], [3, 3, 1]], np.int32)
    (rows,) = run("quant.rows", [indices, blocks], [(value_dtype, (2, 3, k))], ints, threads=2)
    np.testing.assert_array_equal(rows.view(np.uint8), values[indices].view(np.uint8))
    for count in (1, 3, 8, 20):  # more rows than that are multiplied with several tiles at once
        x = rng.normal(size=(count, k)).astype(np.float32)
        (found,) = run("quant.linear", [x, blocks], [(FLOAT, (count, n))], ints, threads=2)
        expected = product(x, values)
        assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("bits", [*range(1, 9), 0])
@pytest.mark.parametrize(("k", "group"), [(48, 48), (48, 4), (48, 16), (45, 45), (45, 9), (64, 32)])
@pytest.mark.parametrize("value_dtype", REALS, ids=lambda t: t.torch_name)
def test_products_with_groups(run: Any, bits: int, k: int, group: int, value_dtype: ScalarType) -> None:
    """`bits` 0 stands for plain int8."""
    n, low = 5, -(1 << ((bits or 8) - 1))
    scheme = AffineGroup("scale", FLOAT, low, -low - 1, group, "zero")
    rng = np.random.default_rng(bits)
    integers = rng.integers(low, -low, (n, k)).astype(np.int8)
    packed = pack_affine(integers, scheme) if bits else integers
    scale = rng.uniform(0.01, 1, (n, k // group)).astype(value_dtype.numpy)
    zero = rng.integers(-3, 4, scale.shape).astype(np.int8)
    kind = [1, bits, low] if bits else [2]
    for zero_points in ([], [zero]):
        inputs = [integers, scale, *zero_points]
        has_zero = int(bool(zero_points))
        (values,) = run("quant.dequantize", inputs, [(value_dtype, (n, k))], [has_zero, 1, group])
        ints = [n, k, int(value_dtype), *kind, group, has_zero]
        indices = np.array([4, 0, 2, 2])
        (rows,) = run("quant.rows", [indices, packed, scale, *zero_points], [(value_dtype, (4, k))], ints, threads=2)
        np.testing.assert_array_equal(rows, values[indices])
        for count in (1, 4):
            x = rng.normal(size=(count, k)).astype(np.float32)
            inputs = [x, packed, scale, *zero_points]
            (found,) = run("quant.linear", inputs, [(FLOAT, (count, n))], ints, threads=2)
            expected = product(x, values)
            assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def test_rows_out_of_range(run: Any) -> None:
    scale = np.ones((3, 1), np.float32)
    for index in (-1, 3):
        inputs = [np.array([0, index]), np.zeros((3, 8), np.int8), scale]
        with pytest.raises(IndexError, match=rf"index {index} is out of range for axis 0 of size 3 \(allowed 0..2\)"):
            run("quant.rows", inputs, [(FLOAT, (2, 8))], [3, 8, int(FLOAT), 2, 8, 0])
