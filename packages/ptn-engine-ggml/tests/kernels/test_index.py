"""Reading and writing by indices: against numpy, in place, on several threads, and what out-of-range indices say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ptn_format.dtypes import ScalarType
from ptn_runtime.reference import evaluate

FLOAT, LONG = ScalarType.FLOAT, ScalarType.LONG
DTYPES = list(ScalarType)


def rows(dtype: ScalarType, shape: tuple[int, ...]) -> Any:
    return np.random.default_rng(0).integers(0, 100, shape).astype(dtype.numpy)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: t.torch_name)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_select(run: Any, dtype: ScalarType, axis: int) -> None:
    x = rows(dtype, (5, 6, 7))
    index = np.array([4, 0, 0, 3, 2], np.int64)
    expected = x.take(index, axis)
    (found,) = run("index.select", [x, index], [(dtype, expected.shape)], [axis], threads=2)
    np.testing.assert_array_equal(found, expected)


def test_embedding_of_many_rows_on_threads(run: Any) -> None:
    table = rows(FLOAT, (1000, 64))
    ids = np.random.default_rng(1).integers(0, 1000, (8, 300)).astype(np.int32)
    (found,) = run("index.select", [table, ids], [(FLOAT, (8, 300, 64))], [0], threads=4)
    np.testing.assert_array_equal(found, table[ids])


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("threads", [1, 3])
def test_gather(run: Any, axis: int, threads: int) -> None:
    x = rows(FLOAT, (8, 9, 2000))
    shape = [8, 9, 2000]
    shape[axis] = 11
    index = np.random.default_rng(1).integers(0, x.shape[axis], shape)
    (found,) = run("index.gather", [x, index], [(FLOAT, index.shape)], [axis], threads=threads)
    np.testing.assert_array_equal(found, np.take_along_axis(x, index, axis))


INDICES: list[list[Any]] = [
    [[1, -1, 0]],
    [None, [2, 0]],
    [None, None, [3, 3, -2]],
    [[0, 2], [1, 1]],
    [[[0], [2]], [1, 0, 2]],
    [[0, 1], None, [2, 1]],
    [None, [1, 2], [0, 3]],
    [None, [[1], [2]], None, [0, 1]],
    [[2], [1], [0], [1]],
]


def as_indices(entries: list[Any]) -> tuple[Any, list[Any], list[int]]:
    arrays = [None if entry is None else np.array(entry, np.int64) for entry in entries]
    key = tuple(slice(None) if array is None else array for array in arrays)
    return key, [a for a in arrays if a is not None], [len(arrays), *(int(a is not None) for a in arrays)]


@pytest.mark.parametrize("entries", INDICES, ids=str)
@pytest.mark.parametrize("dtype", [FLOAT, ScalarType.BOOL, ScalarType.HALF, LONG], ids=lambda t: t.torch_name)
def test_index(run: Any, entries: list[Any], dtype: ScalarType) -> None:
    x = rows(dtype, (3, 3, 4, 2))
    key, tensors, ints = as_indices(entries)
    expected = x[key]
    (found,) = run("index.index", [x, *tensors], [(dtype, expected.shape)], ints, threads=2)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("entries", INDICES, ids=str)
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("values_shape", ["full", "scalar", "last"])
def test_index_put(run: Any, entries: list[Any], in_place: bool, values_shape: str) -> None:
    x = rows(FLOAT, (3, 3, 4, 2))
    key, tensors, ints = as_indices(entries)
    full = x[key].shape
    shape = {"full": full, "scalar": (), "last": full[-1:]}[values_shape]
    values = np.asarray(-1 - np.arange(np.prod(shape), dtype=np.float32).reshape(shape))
    (expected,) = evaluate(
        "aten.index_put.default",
        {"self": x, "indices": tuple(None if e is None else np.array(e) for e in entries), "values": values},
    )
    inputs = [x, values, *tensors]
    (found,) = run("index.index_put", inputs, [(FLOAT, x.shape)], [0, *ints], threads=3, in_place=in_place)
    np.testing.assert_array_equal(found, expected)


def test_index_put_accumulates_duplicates(run: Any) -> None:
    x = np.zeros((4, 300), np.float32)
    index = np.array([1, 1, 3, 1, -1], np.int64)
    values = rows(FLOAT, (5, 300))
    (found,) = run("index.index_put", [x, values, index], [(FLOAT, x.shape)], [1, 1, 1], threads=3)
    expected = x.copy()
    np.add.at(expected, index, values)
    np.testing.assert_array_equal(found, expected)


def test_masks_select_what_they_hold(run: Any) -> None:
    x = rows(FLOAT, (3, 4, 5))
    mask = x[..., 0] > 50
    values = np.float32([-1, -2, -3, -4, -5])
    (found,) = run("index.index_put", [x, values, mask], [(FLOAT, x.shape)], [0, 1, 1])
    expected = x.copy()
    expected[mask] = values
    np.testing.assert_array_equal(found, expected)
    (picked,) = run("index.index", [x, mask], [(FLOAT, (int(mask.sum()), 5))], [1, 1])
    np.testing.assert_array_equal(picked, x[mask])
    with pytest.raises(RuntimeError, match="another number than the result was planned for"):
        run("index.index", [x, mask], [(FLOAT, (int(mask.sum()) + 1, 5))], [1, 1])


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: t.torch_name)
@pytest.mark.parametrize("in_place", [False, True])
def test_scatter_add(run: Any, axis: int, dtype: ScalarType, in_place: bool) -> None:
    x = rows(dtype, (6, 50))
    index = np.random.default_rng(1).integers(0, x.shape[axis], (4, 40))
    source = rows(dtype, (5, 45))
    args = {"self": x, "dim": axis, "index": index, "src": source}
    (expected,) = evaluate("aten.scatter_add.default", args)
    inputs = [x, index, source]
    (found,) = run("index.scatter", inputs, [(dtype, x.shape)], [axis, 1], threads=2, in_place=in_place)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("axis", [0, 1])
def test_scatter_reduce(run: Any, reduce: str, include_self: bool, axis: int) -> None:
    x = np.random.default_rng(2).normal(size=(7, 9)).astype(np.float32)
    index = np.random.default_rng(3).integers(0, x.shape[axis], (6, 8))
    source = np.random.default_rng(4).normal(size=(6, 8)).astype(np.float32)
    args = {"self": x, "dim": axis, "index": index, "src": source, "reduce": reduce, "include_self": include_self}
    (expected,) = evaluate("aten.scatter_reduce.two", args)
    code = {"sum": 1, "prod": 2, "mean": 3, "amax": 4, "amin": 5}[reduce]
    ints = [axis, code, int(include_self)]
    (found,) = run("index.scatter_reduce", [x, index, source], [(FLOAT, x.shape)], ints, threads=2)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("in_place", [False, True])
def test_slices_by_index(run: Any, axis: int, in_place: bool) -> None:
    x = rows(LONG, (4, 5, 600))
    index = np.array([1, 3, 1], np.int64)
    shape = list(x.shape)
    shape[axis] = 3
    source = rows(LONG, tuple(shape)) + 1000
    specs = [(LONG, x.shape)]
    for op, kernel, ints, extra in (
        ("index_add", "index_add", [axis, 2], {"alpha": 2}),
        ("index_copy", "index_copy", [axis], {}),
    ):
        args = {"self": x, "dim": axis, "index": index, "source": source, **extra}
        (expected,) = evaluate(f"aten.{op}.default", args)
        (found,) = run(f"index.{kernel}", [x, index, source], specs, ints, threads=3, in_place=in_place)
        np.testing.assert_array_equal(found, expected)
    value = np.array(-7, np.int64)
    (filled,) = run("index.index_fill", [x, index, value], specs, [axis], threads=3, in_place=in_place)
    expected = np.moveaxis(x, axis, 0).copy()
    expected[index] = -7
    np.testing.assert_array_equal(filled, np.moveaxis(expected, 0, axis))


@pytest.mark.parametrize("in_place", [False, True])
def test_slice_scatter(run: Any, in_place: bool) -> None:
    x, source = rows(FLOAT, (30, 20, 40)), -rows(FLOAT, (30, 6, 40))
    inputs, specs = [x, source], [(FLOAT, x.shape)]
    (found,) = run("index.slice_scatter", inputs, specs, [1, 2, 3, 6], threads=3, in_place=in_place)
    expected = x.copy()
    expected[:, 2:20:3] = source
    np.testing.assert_array_equal(found, expected)


def test_masked_scatter_takes_the_source_in_order(run: Any) -> None:
    x = rows(FLOAT, (3, 4))
    mask = np.array([[1, 0, 1, 0], [0, 0, 0, 1], [1, 1, 0, 0]], bool)
    source = np.arange(6, dtype=np.float32)
    (found,) = run("index.masked_scatter", [x, mask, source], [(FLOAT, x.shape)])
    expected = x.copy()
    expected[mask] = source[: mask.sum()]
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(RuntimeError, match="fewer elements"):
        run("index.masked_scatter", [x, mask, source[:2]], [(FLOAT, x.shape)])


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize(
    ("name", "bad", "ints", "allowed"),
    [
        ("index.select", 5, [0], r"0\.\.4"),
        ("index.select", -1, [0], r"0\.\.4"),
        ("index.index", 5, [1, 1], r"-5\.\.4"),
        ("index.index", -6, [1, 1], r"-5\.\.4"),
    ],
)
def test_an_index_out_of_range_says_which(
    run: Any, name: str, bad: int, ints: list[int], allowed: str, threads: int
) -> None:
    x = rows(FLOAT, (5, 4096))
    index = np.zeros(20, np.int64)
    index[17] = bad
    text = rf"{name}: index {bad} is out of range for axis 0 of size 5 \(allowed {allowed}\)"
    with pytest.raises(IndexError, match=text):
        run(name, [x, index], [(FLOAT, (20, 4096))], ints, threads=threads)
