"""Ordering: stability, ties and NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ptn_format.dtypes import ScalarType

FLOAT, LONG = ScalarType.FLOAT, ScalarType.LONG


@pytest.mark.parametrize("dtype", list(ScalarType), ids=lambda t: t.torch_name)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("descending", [False, True])
def test_sort_is_stable(run: Any, dtype: ScalarType, axis: int, descending: bool) -> None:
    x = np.random.default_rng(0).integers(0, 9, (60, 70)).astype(dtype.numpy)
    values, places = run("sort.sort", [x], [(dtype, x.shape), (LONG, x.shape)], [axis, int(descending)], threads=2)
    keys = x.astype(np.float64)
    expected = np.argsort(-keys if descending else keys, axis, kind="stable")
    np.testing.assert_array_equal(places, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(x, expected, axis))


def test_nan_is_the_largest(run: Any) -> None:
    x = np.array([2, np.nan, -np.inf, 1, np.nan, np.inf], np.float32)
    specs = [(FLOAT, x.shape), (LONG, x.shape)]
    assert run("sort.sort", [x], specs, [0, 0])[1].tolist() == [2, 3, 0, 5, 1, 4]
    assert run("sort.sort", [x], specs, [0, 1])[1].tolist() == [1, 4, 5, 0, 3, 2]


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("k", [0, 1, 5, 200])
def test_topk(run: Any, largest: bool, k: int) -> None:
    x = np.random.default_rng(0).permutation(30 * 200).reshape(30, 200).astype(np.float32)
    shape = (30, k)
    values, places = run("sort.topk", [x], [(FLOAT, shape), (LONG, shape)], [1, int(largest), 1], threads=2)
    expected = np.argsort(-x if largest else x, 1)[:, :k]
    np.testing.assert_array_equal(places, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(x, expected, 1))


def test_median_is_the_lower_one_and_nan_wins(run: Any) -> None:
    x = np.array([[4, 1, 3, 2], [1, np.nan, 3, np.nan]], np.float32)
    values, places = run("sort.kth", [x], [(FLOAT, (2,)), (LONG, (2,))], [1, -1])
    np.testing.assert_array_equal(values, np.array([2, np.nan], np.float32))
    assert places.tolist() == [3, 1]


@pytest.mark.parametrize("right", [False, True])
def test_search(run: Any, right: bool) -> None:
    sequence = np.sort(np.random.default_rng(0).integers(0, 20, (3, 12)), -1).astype(np.float32)
    values = np.random.default_rng(1).integers(-2, 22, (3, 40)).astype(np.float32)
    (found,) = run("sort.search", [sequence, values], [(LONG, values.shape)], [int(FLOAT), int(right), 0])
    side = "right" if right else "left"
    expected = np.stack([np.searchsorted(a, v, side) for a, v in zip(sequence, values, strict=True)])
    np.testing.assert_array_equal(found, expected)
    order = np.stack([np.random.default_rng(2).permutation(12)] * 3)
    shuffled = np.empty_like(sequence)
    np.put_along_axis(shuffled, order, sequence, -1)
    (by_sorter,) = run("sort.search", [shuffled, values, order], [(LONG, values.shape)], [int(FLOAT), int(right), 1])
    np.testing.assert_array_equal(by_sorter, expected)


@pytest.mark.parametrize("index", [-1, 3, 1 << 40])
def test_a_sorter_that_points_outside_is_an_error(run: Any, index: int) -> None:
    sequence, values, sorter = np.arange(3, dtype=np.float32), np.zeros(2, np.float32), np.array([0, 1, index])
    with pytest.raises(IndexError, match=rf"index {index} is out of range for axis 0 of size 3"):
        run("sort.search", [sequence, values, sorter], [(LONG, (2,))], [int(FLOAT), 0, 1])
