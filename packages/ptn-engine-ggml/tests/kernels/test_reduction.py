"""Reductions and running results against the reference engine, over every choice of axes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from ptn_format.dtypes import ScalarType
from ptn_runtime.reference import evaluate

FLOAT, LONG, BOOL = ScalarType.FLOAT, ScalarType.LONG, ScalarType.BOOL
SHAPE = (3, 70, 2, 5)
AXES = [axes for count in range(1, 5) for axes in itertools.combinations(range(4), count)]


def kept(axes: tuple[int, ...], shape: tuple[int, ...] = SHAPE) -> tuple[int, ...]:
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)


@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("threads", [1, 3])
def test_axes(run: Any, axes: tuple[int, ...], threads: int) -> None:
    x = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    ints = [len(axes), *axes]
    (total,) = run("reduction.sum", [x], [(FLOAT, kept(axes))], ints, threads=threads)
    np.testing.assert_allclose(total, x.astype(np.float64).sum(axes), rtol=1e-6, atol=1e-6)
    (high,) = run("reduction.amax", [x], [(FLOAT, kept(axes))], ints, threads=threads)
    np.testing.assert_array_equal(high, x.max(axes))
    (spread,) = run("reduction.var", [x], [(FLOAT, kept(axes))], ints, [1.0], threads=threads)
    np.testing.assert_allclose(spread, x.astype(np.float64).var(axes, ddof=1), rtol=1e-6)
    (norm,) = run("reduction.norm", [x], [(FLOAT, kept(axes))], ints, [2.0], threads=threads)
    np.testing.assert_allclose(norm, np.sqrt((x.astype(np.float64) ** 2).sum(axes)), rtol=1e-6)


@pytest.mark.parametrize("dtype", list(ScalarType), ids=lambda t: t.torch_name)
@pytest.mark.parametrize("axis", [0, 1])
def test_every_dtype(run: Any, dtype: ScalarType, axis: int) -> None:
    x = np.random.default_rng(0).integers(0, 3, (90, 80)).astype(dtype.numpy)
    shape = kept((axis,), x.shape)
    result = dtype if dtype.is_floating_point else LONG
    (total,) = run("reduction.sum", [x], [(result, shape)], [1, axis])
    np.testing.assert_array_equal(total, x.astype(np.int64).sum(axis).astype(result.numpy))
    (high,) = run("reduction.amax", [x], [(dtype, shape)], [1, axis])
    np.testing.assert_array_equal(high, x.astype(np.float64).max(axis).astype(dtype.numpy))
    (place,) = run("reduction.argmin", [x], [(LONG, shape)], [1, axis])
    np.testing.assert_array_equal(place, x.astype(np.float64).argmin(axis))
    (truth,) = run("reduction.all", [x], [(BOOL, shape)], [1, axis])
    np.testing.assert_array_equal(truth, x.astype(bool).all(axis))


def test_the_first_of_equals_and_the_first_nan_win(run: Any) -> None:
    x = np.array([[1, 3, 3, 2], [np.nan, 5, np.nan, 9], [-np.inf] * 4], np.float32)
    for axis, rows in ((1, x), (0, np.ascontiguousarray(x.T))):
        (values, places) = run("reduction.max", [rows], [(FLOAT, (3,)), (LONG, (3,))], [1, axis])
        np.testing.assert_array_equal(values, np.array([3, np.nan, -np.inf], np.float32))
        assert places.tolist() == [1, 0, 0]


def test_empty_inputs(run: Any) -> None:
    x = np.zeros((2, 0), np.float32)
    assert run("reduction.sum", [x], [(FLOAT, (2,))], [1, 1])[0].tolist() == [0, 0]
    assert run("reduction.prod", [x], [(FLOAT, (2,))], [1, 1])[0].tolist() == [1, 1]
    assert run("reduction.any", [x], [(BOOL, (2,))], [1, 1])[0].tolist() == [False, False]
    assert run("reduction.all", [x], [(BOOL, (2,))], [1, 1])[0].tolist() == [True, True]
    assert np.isnan(run("reduction.mean", [x], [(FLOAT, (2,))], [1, 1])[0]).all()
    with pytest.raises(RuntimeError, match="no elements"):
        run("reduction.amax", [x], [(FLOAT, (2,))], [1, 1])


def test_long_sums_stay_exact(run: Any) -> None:
    x = np.full(1_000_003, 0.1, np.float32)
    (mean,) = run("reduction.mean", [x], [(FLOAT, ())], [0])
    assert mean == np.float32(0.1)
    (total,) = run("reduction.sum", [np.full(10, 2**62, np.int64)], [(LONG, ())], [0])
    assert total == np.int64((10 * 2**62 + 2**63) % 2**64 - 2**63)


@pytest.mark.parametrize("correction", [0.0, 1.0, 2.0])
def test_variance_of_few_elements(run: Any, correction: float) -> None:
    x = np.array([[1.0], [3.0]], np.float32)
    (one,) = run("reduction.var", [x], [(FLOAT, (2,))], [1, 1], [correction])
    with np.errstate(all="ignore"):
        expected = np.float32(0) / np.float32(max(0.0, 1 - correction))
    np.testing.assert_array_equal(one, np.full(2, expected, np.float32))


RUNNING = [
    (op, dtype)
    for op in ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")
    for dtype in (FLOAT, ScalarType.HALF, ScalarType.DOUBLE, LONG)
    if op != "logcumsumexp" or dtype.is_floating_point
]


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize(("op", "dtype"), RUNNING, ids=str)
def test_running_results(run: Any, axis: int, op: str, dtype: ScalarType) -> None:
    x = np.random.default_rng(0).integers(-2, 3, (4, 600, 3)).astype(dtype.numpy)
    if op == "cumprod":
        x = np.sign(x) + (x == 0).astype(dtype.numpy)
    expected = evaluate(f"aten.{op}.default", {"self": x, "dim": axis})
    specs = [(ScalarType.from_numpy(array.dtype), array.shape) for array in expected]
    found = run(f"reduction.{op}", [x], specs, [axis], threads=2)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours.astype(np.float64), theirs.astype(np.float64), rtol=2e-3)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_softmax(run: Any, axis: int, op: str) -> None:
    x = np.random.default_rng(0).normal(scale=20, size=(5, 70, 90)).astype(np.float32)
    x[0, 3, :4] = -np.inf
    wide = x.astype(np.float64)
    shifted = wide - wide.max(axis, keepdims=True)
    expected = shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))
    (found,) = run(f"reduction.{op}", [x], [(FLOAT, x.shape)], [axis], threads=3)
    if op == "softmax":
        np.testing.assert_allclose(found, np.exp(expected), rtol=1e-5, atol=1e-7)
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    (nothing,) = run("reduction.softmax", [np.full((2, 3), -np.inf, np.float32)], [(FLOAT, (2, 3))], [1])
    assert np.isnan(nothing).all()
