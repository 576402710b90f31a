"""Convolution, pooling, interpolation and normalisation against the reference engine, on threads and odd shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ptn_format.dtypes import ScalarType
from ptn_runtime.reference import evaluate

FLOAT, DOUBLE, HALF, LONG = ScalarType.FLOAT, ScalarType.DOUBLE, ScalarType.HALF, ScalarType.LONG
REALS = [FLOAT, DOUBLE, HALF, ScalarType.BFLOAT16]


def normal(dtype: ScalarType, shape: tuple[int, ...], seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype.numpy)


def close(found: Any, expected: Any, dtype: ScalarType) -> None:
    tolerance = {FLOAT: 2e-5, DOUBLE: 1e-12, HALF: 2e-3, ScalarType.BFLOAT16: 1.6e-2}[dtype]
    wide = expected.astype(np.float64)
    np.testing.assert_allclose(found.astype(np.float64), wide, rtol=tolerance, atol=tolerance * np.abs(wide).max())


CONVOLUTIONS = [
    # spatial size, channels in and out, kernel, stride, padding, dilation, groups
    ((17,), 4, 6, (3,), (2,), (1,), (1,), 1),
    ((9, 11), 3, 5, (3, 2), (2, 1), (1, 0), (1, 2), 1),
    ((9, 11), 6, 6, (3, 3), (1, 1), (1, 1), (1, 1), 6),
    ((8, 8), 4, 8, (2, 2), (3, 3), (0, 1), (2, 1), 2),
    ((5, 6, 7), 2, 4, (2, 3, 1), (1, 2, 1), (1, 1, 0), (1, 1, 1), 2),
]


@pytest.mark.parametrize("geometry", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", REALS, ids=lambda t: t.torch_name)
def test_convolution(run: Any, geometry: tuple[Any, ...], transposed: bool, dtype: ScalarType) -> None:
    size, channels, outputs, kernel, stride, padding, dilation, groups = geometry
    x = normal(dtype, (2, channels, *size))
    weight_shape = (channels, outputs // groups) if transposed else (outputs, channels // groups)
    weight, bias = normal(dtype, (*weight_shape, *kernel), 1), normal(dtype, (outputs,), 2)
    output_padding = tuple(s - 1 for s in stride) if transposed else (0,) * len(size)
    args = {
        "input": x,
        "weight": weight,
        "bias": bias,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "transposed": transposed,
        "output_padding": output_padding,
        "groups": groups,
    }
    (expected,) = evaluate("aten.convolution.default", args)
    name = "conv.transposed" if transposed else "conv.direct"
    ints = [len(size), groups, 1, *stride, *padding, *dilation]
    (found,) = run(name, [x, weight, bias], [(dtype, expected.shape)], ints, threads=3)
    close(found, expected, dtype)


def test_convolution_of_integers_is_exact(run: Any) -> None:
    x = np.random.default_rng(0).integers(-(2**40), 2**40, (1, 2, 6, 6))
    weight = np.random.default_rng(1).integers(-9, 9, (3, 2, 3, 3))
    (found,) = run("conv.direct", [x, weight], [(LONG, (1, 3, 4, 4))], [2, 1, 0, 1, 1, 0, 0, 1, 1])
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))
    np.testing.assert_array_equal(found, np.einsum("nchwij,ocij->nohw", windows, weight))


@pytest.mark.parametrize("dtype", REALS, ids=lambda t: t.torch_name)
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("dilation", [1, 2])
def test_max_pool(run: Any, dtype: ScalarType, ceil_mode: bool, dilation: int) -> None:
    x = normal(dtype, (2, 5, 11, 12))
    x[0, 0, 2, 3], x[1, 1] = np.nan, -np.inf
    args = {
        "self": x,
        "kernel_size": (3, 2),
        "stride": (2, 2),
        "padding": (1, 0),
        "dilation": (dilation, dilation),
        "ceil_mode": ceil_mode,
    }
    values, places = evaluate("aten.max_pool2d_with_indices.default", args)
    ints = [2, 3, 2, 2, 2, 1, 0, dilation, dilation]
    found = run("pool.max", [x], [(dtype, values.shape), (LONG, values.shape)], ints, threads=2)
    np.testing.assert_array_equal(found[0].astype(np.float64), values.astype(np.float64))
    np.testing.assert_array_equal(found[1], places)


@pytest.mark.parametrize("dtype", REALS, ids=lambda t: t.torch_name)
@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("divisor", [None, 5])
def test_avg_pool(run: Any, dtype: ScalarType, include: bool, divisor: int | None) -> None:
    x = normal(dtype, (3, 4, 7, 9))
    args = {
        "self": x,
        "kernel_size": (3, 3),
        "stride": (2, 2),
        "padding": (1, 1),
        "ceil_mode": True,
        "count_include_pad": include,
        "divisor_override": divisor,
    }
    (expected,) = evaluate("aten.avg_pool2d.default", args)
    ints = [2, 3, 3, 2, 2, 1, 1, int(include), divisor or 0]
    (found,) = run("pool.avg", [x], [(dtype, expected.shape)], ints, threads=2)
    close(found, expected, dtype)


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (7, 9), (11, 13)], ids=str)
def test_adaptive_pools(run: Any, size: tuple[int, int]) -> None:
    x = normal(FLOAT, (2, 3, 7, 9))
    (mean,) = evaluate("aten._adaptive_avg_pool2d.default", {"self": x, "output_size": size})
    (found,) = run("pool.adaptive_avg", [x], [(FLOAT, (2, 3, *size))], [2])
    close(found, mean, FLOAT)
    values, places = evaluate("aten.adaptive_max_pool2d.default", {"self": x, "output_size": size})
    both = run("pool.adaptive_max", [x], [(FLOAT, values.shape), (LONG, values.shape)], [2])
    np.testing.assert_array_equal(both[0], values)
    np.testing.assert_array_equal(both[1], places)


@pytest.mark.parametrize("sizes", [((7, 9), (14, 5)), ((4, 4), (1, 1)), ((1, 3), (6, 6)), ((5, 5), (5, 5))], ids=str)
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(("kernel", "op"), [("linear", "upsample_bilinear2d"), ("cubic", "upsample_bicubic2d")])
@pytest.mark.parametrize("dtype", [FLOAT, DOUBLE], ids=lambda t: t.torch_name)
def test_interpolation(
    run: Any, sizes: tuple[Any, Any], align_corners: bool, kernel: str, op: str, dtype: ScalarType
) -> None:
    x = normal(dtype, (2, 3, *sizes[0]))
    args = {"input": x, "output_size": sizes[1], "align_corners": align_corners, "scale_factors": None}
    (expected,) = evaluate(f"aten.{op}.vec", args)
    ints = [2, int(align_corners)]
    (found,) = run(f"resample.{kernel}", [x], [(dtype, expected.shape)], ints, [0.0, 0.0], threads=3)
    close(found, expected, dtype)


def test_nearest_takes_pytorchs_pixels(run: Any) -> None:
    for in_size, out_size in ((2, 82), (3, 7), (50, 13), (199, 200)):
        x = np.arange(in_size, dtype=np.float32).reshape(1, 1, in_size)
        (found,) = run("resample.nearest", [x], [(FLOAT, (1, 1, out_size))], [1, 0], [0.0])
        scale = np.float32(in_size) / np.float32(out_size)
        expected = np.minimum(np.floor(np.arange(out_size, dtype=np.float32) * scale), in_size - 1)
        np.testing.assert_array_equal(found.reshape(-1), expected)


@pytest.mark.parametrize("interpolation", [0, 1, 2])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("align_corners", [False, True])
def test_grid_sample(run: Any, interpolation: int, padding: int, align_corners: bool) -> None:
    x = normal(FLOAT, (2, 3, 6, 5))
    grid = np.random.default_rng(1).uniform(-1.6, 1.6, (2, 7, 8, 2)).astype(np.float32)
    args = {
        "input": x,
        "grid": grid,
        "interpolation_mode": interpolation,
        "padding_mode": padding,
        "align_corners": align_corners,
    }
    (expected,) = evaluate("aten.grid_sampler_2d.default", args)
    ints = [interpolation, padding, int(align_corners)]
    (found,) = run("resample.grid_sample", [x, grid], [(FLOAT, expected.shape)], ints, threads=2)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", REALS, ids=lambda t: t.torch_name)
def test_normalisation(run: Any, dtype: ScalarType) -> None:
    x, weight, bias = normal(dtype, (4, 6, 33)), normal(dtype, (33,), 1), normal(dtype, (33,), 2)
    args = {"input": x, "normalized_shape": (33,), "weight": weight, "bias": bias, "eps": 1e-5}
    expected = evaluate("aten.native_layer_norm.default", args)[0]
    (found,) = run("norm.layer", [x, weight, bias], [(dtype, x.shape)], [33, 1, 1], [1e-5], threads=2)
    close(found, expected, dtype)
    args = {"input": x, "normalized_shape": (33,), "weight": weight, "eps": 1e-6}
    (expected,) = evaluate("aten.rms_norm.default", args)
    (found,) = run("norm.rms", [x, weight], [(dtype, x.shape)], [33, 1], [1e-6], threads=2)
    close(found, expected, dtype)


@pytest.mark.parametrize("dtype", [DOUBLE, LONG, ScalarType.INT, ScalarType.BYTE], ids=lambda t: t.torch_name)
def test_matrix_products(run: Any, dtype: ScalarType) -> None:
    a = np.random.default_rng(0).integers(0, 50, (2, 1, 7, 300)).astype(dtype.numpy)
    b = np.random.default_rng(1).integers(0, 50, (3, 300, 40)).astype(dtype.numpy)
    expected = np.matmul(a.astype(np.int64), b.astype(np.int64)).astype(dtype.numpy)
    (found,) = run("matmul.matmul", [a, b], [(dtype, expected.shape)], threads=3)
    np.testing.assert_array_equal(found, expected)
    weight = np.ascontiguousarray(b[0].T)
    bias = np.arange(40).astype(dtype.numpy)
    (product,) = run("matmul.linear", [a, weight, bias], [(dtype, (2, 1, 7, 40))], [1], threads=2)
    np.testing.assert_array_equal(product, (a.astype(np.int64) @ weight.T.astype(np.int64) + bias).astype(dtype.numpy))
