"""Numpy kernels of the family `index`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ptn_runtime.errors import IndexOutOfRangeError
from ptn_runtime.reference._numerics import cast, finish, number, widen
from ptn_runtime.reference.registry import Array, Number, Outputs, kernel
from ptn_runtime.shapes._broadcast import normalize_axis

Shape = tuple[int, ...]
Indices = tuple["Array | None", ...]


def checked(index: Array, size: int, axis: int, *, negative: bool) -> Array:
    """`index` counted from the front.

    Args:
        index: int64 or int32 positions on an axis.
        size: elements of the axis.
        axis: for the message.
        negative: whether -1 is the last element, or an error.

    Raises:
        IndexOutOfRangeError: a position lies outside the axis.
    """
    if not index.size:
        return index
    low, high = index.min(), index.max()
    least = -size if negative else 0
    if low < least or high >= size:
        wrong = low if low < least else high
        raise IndexOutOfRangeError(
            f"index {wrong} is out of range for axis {axis} of {size} elements; allowed {least}..{size - 1}"
        )
    return np.where(index < 0, index + size, index) if negative and low < 0 else index


@kernel("aten.embedding.default")
def embedding(
    out: Outputs,
    weight: Array,
    indices: Array,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Array:
    return weight[checked(indices, weight.shape[0], 0, negative=False)].reshape(out.shape)


@kernel("aten.embedding_dense_backward.default")
def embedding_dense_backward(
    out: Outputs,
    grad_output: Array,
    indices: Array,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Array:
    gradient = widen(grad_output).reshape(-1, out.shape[1])
    places = checked(indices, num_weights, 0, negative=False).reshape(-1)
    counted = places != padding_idx
    places, gradient = places[counted], gradient[counted]
    if scale_grad_by_freq:
        gradient = gradient / np.bincount(places, minlength=num_weights)[places, None].astype(gradient.dtype)
    result = np.zeros(out.shape, gradient.dtype)
    np.add.at(result, places, gradient)
    return finish(result, out.dtype)


@kernel("aten._embedding_bag.default")
def embedding_bag(
    out: Outputs,
    weight: Array,
    indices: Array,
    offsets: Array,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Array, ...]:
    bags, width = out.shape
    places = checked(indices, weight.shape[0], 0, negative=False)
    rows = widen(weight[places])
    if per_sample_weights is not None:
        rows = rows * widen(per_sample_weights)[:, None]
    starts = offsets[:bags]
    bag_of = np.searchsorted(starts, np.arange(indices.shape[0]), side="right") - 1
    counted = np.ones(indices.shape[0], np.bool_)
    if padding_idx >= 0:
        counted = indices != padding_idx
    sizes = np.bincount(bag_of[counted], minlength=bags)
    kind = indices.dtype
    where_max = np.zeros(out[3].shape, kind)
    if mode == 2:
        result = np.zeros((bags, width), rows.dtype)
        for bag in range(bags):
            members = np.flatnonzero((bag_of == bag) & counted)
            if members.size:
                best = rows[members].argmax(axis=0)
                result[bag] = rows[members].max(axis=0)
                where_max[bag] = indices[members][best]
    else:
        result = np.zeros((bags, width), rows.dtype)
        np.add.at(result, bag_of[counted], rows[counted])
        if mode == 1:
            result /= np.maximum(sizes, 1)[:, None].astype(rows.dtype)
    offset2bag = bag_of.astype(kind) if out[1].shape[0] else np.zeros(0, kind)
    bag_sizes = sizes.astype(kind) if mode or out[1].shape[0] else np.zeros(bags, kind)
    return finish(result, out.dtype), offset2bag, bag_sizes, where_max


@kernel("aten.index_select.default")
def index_select(out: Outputs, self: Array, dim: int, index: Array) -> Array:
    axis = normalize_axis(dim, self.ndim)
    source = self if self.ndim else self.reshape(1)
    return source.take(checked(index.reshape(-1), source.shape[axis], axis, negative=False), axis=axis).reshape(
        out.shape
    )


def _at_least_1d(*arrays: Array) -> tuple[Array, ...]:
    return tuple(array if array.ndim else array.reshape(1) for array in arrays)


@kernel("aten.gather.default")
def gather(out: Outputs, self: Array, dim: int, index: Array, *, sparse_grad: bool = False) -> Array:
    if not index.size:
        return np.empty(out.shape, self.dtype)
    source, places = _at_least_1d(self, index)
    axis = normalize_axis(dim, source.ndim)
    where = _scatter_places(places, source, axis)
    return source[where].reshape(out.shape)


def _scatter_places(index: Array, target: Array, axis: int) -> tuple[Array, ...]:
    """The index arrays of `target` that gather and scatter address: `index` on `axis`, itself elsewhere."""
    places = checked(index, target.shape[axis], axis, negative=False)
    return tuple(
        places if other == axis else np.arange(size).reshape(-1, *(1,) * (index.ndim - 1 - other))
        for other, size in enumerate(index.shape)
    )


# --- advanced indexing ------------------------------------------------------------------------------------------


def expanded_indices(indices: Indices, shape: Shape) -> tuple[Any, ...]:
    """What numpy needs to index an array of `shape` as PyTorch does: masks as their places, checked positions."""
    result: list[Any] = []
    for index in indices:
        axis = len(result)
        if index is None:
            result.append(slice(None))
        elif index.dtype in (np.bool_, np.uint8):
            if index.shape != shape[axis : axis + index.ndim]:
                raise IndexOutOfRangeError(
                    f"a mask of {list(index.shape)} does not fit axes {axis} and on of {list(shape)}"
                )
            result.extend(np.nonzero(index))
        else:
            result.append(checked(index, shape[axis], axis, negative=True))
    return tuple(result)


@kernel("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index_(out: Outputs, self: Array, indices: Indices) -> Array:
    return np.asarray(self[expanded_indices(indices, self.shape)])


@kernel("aten.index_put.default", "aten._unsafe_index_put.default")
def index_put(out: Outputs, self: Array, indices: Indices, values: Array, accumulate: bool = False) -> Array:
    where = expanded_indices(indices, self.shape)
    if accumulate:
        result = widen(self).copy()
        _accumulate(np.add, result, where, widen(values))
        return finish(result, out.dtype)
    result = self.copy()
    result[where] = values
    return result


def _accumulate(function: Any, target: Array, where: Any, values: Array) -> None:
    """`function.at`, where bools add as `or`."""
    if target.dtype == np.bool_ and function is np.add:
        function = np.logical_or
    elif target.dtype == np.bool_ and function is np.multiply:
        function = np.logical_and
    function.at(target, where, values)


# --- writing along one axis -------------------------------------------------------------------------------------


def _along(axis: int, index: Array) -> tuple[Any, ...]:
    return (*(slice(None),) * axis, index)


def _prepared(self: Array, dim: int, index: Array, negative: bool) -> tuple[Array, tuple[Any, ...]]:
    """A writable copy in the working dtype, with at least one axis, and where `index` points in it."""
    axis = normalize_axis(dim, self.ndim)
    target = widen(self).copy() if widen(self) is self else widen(self)
    if not target.ndim:
        target = target.reshape(1)
    return target, _along(axis, checked(index.reshape(-1), target.shape[axis], axis, negative=negative))


@kernel("aten.index_add.default")
def index_add(out: Outputs, self: Array, dim: int, index: Array, source: Array, *, alpha: Number = 1) -> Array:
    target, where = _prepared(self, dim, index, False)
    values = widen(source)
    if alpha != 1:
        values = values * widen(number(alpha, out.dtype))
    _accumulate(np.add, target, where, values)
    return finish(target, out.dtype).reshape(out.shape)


@kernel("aten.index_copy.default")
def index_copy(out: Outputs, self: Array, dim: int, index: Array, source: Array) -> Array:
    target, where = _prepared(self, dim, index, False)
    target[where] = widen(source)
    return finish(target, out.dtype).reshape(out.shape)


@kernel("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")
def index_fill(out: Outputs, self: Array, dim: int, index: Array, value: Array | Number) -> Array:
    target, where = _prepared(self, dim, index, True)
    one = cast(value, out.dtype.numpy) if isinstance(value, np.ndarray) else number(value, out.dtype)
    target[where] = widen(one)
    return finish(target, out.dtype).reshape(out.shape)


_REDUCTIONS: dict[str, Any] = {
    "sum": np.add,
    "add": np.add,
    "prod": np.multiply,
    "multiply": np.multiply,
    "mean": np.add,
    "amax": np.maximum,
    "amin": np.minimum,
}


def _identity(reduce: str, dtype: np.dtype[Any]) -> Any:
    if reduce in ("sum", "mean", "add"):
        return 0
    if reduce in ("prod", "multiply"):
        return 1
    highest = reduce == "amin"
    if dtype.kind == "f":
        return np.inf if highest else -np.inf
    if dtype.kind == "b":
        return highest
    return np.iinfo(dtype).max if highest else np.iinfo(dtype).min


def _reduced_into(target: Array, where: tuple[Any, ...], values: Array, reduce: str, include_self: bool) -> Array:
    """Reduces `values` into `target` (which is changed) at `where`; untouched places keep their value."""
    if not include_self:
        target[where] = _identity(reduce, target.dtype)
    _accumulate(_REDUCTIONS[reduce], target, where, values)
    if reduce == "mean":
        counts = np.ones(target.shape, np.int64) if include_self else np.zeros(target.shape, np.int64)
        np.add.at(counts, where, 1)
        counts = np.maximum(counts, 1)
        divide = np.divide if target.dtype.kind == "f" else np.floor_divide
        return np.asarray(divide(target, counts.astype(target.dtype)))
    return target


@kernel("aten.index_reduce.default")
def index_reduce(
    out: Outputs, self: Array, dim: int, index: Array, source: Array, reduce: str, *, include_self: bool = True
) -> Array:
    target, where = _prepared(self, dim, index, False)
    return finish(_reduced_into(target, where, widen(source), reduce, include_self), out.dtype).reshape(out.shape)


def _scatter(
    out: Outputs, self: Array, dim: int, index: Array, src: Array | Number, reduce: str | None, include_self: bool
) -> Array:
    if not index.size:
        return self
    target = widen(self).copy() if widen(self) is self else widen(self)
    target, places = _at_least_1d(target, index)
    axis = normalize_axis(dim, target.ndim)
    where = _scatter_places(places, target, axis)
    if isinstance(src, np.ndarray):
        (source,) = _at_least_1d(widen(src))
        values = source[tuple(slice(0, size) for size in places.shape)]
    else:
        values = np.broadcast_to(widen(number(src, out.dtype)), places.shape)
    if reduce is None:
        target[where] = values  # of duplicates the last one stays
    else:
        target = _reduced_into(target, where, values, reduce, include_self)
    return finish(target, out.dtype).reshape(out.shape)


@kernel("aten.scatter.src")
def scatter(out: Outputs, self: Array, dim: int, index: Array, src: Array) -> Array:
    return _scatter(out, self, dim, index, src, None, True)


@kernel("aten.scatter.value")
def scatter_value(out: Outputs, self: Array, dim: int, index: Array, value: Number) -> Array:
    return _scatter(out, self, dim, index, value, None, True)


@kernel("aten.scatter_add.default")
def scatter_add(out: Outputs, self: Array, dim: int, index: Array, src: Array) -> Array:
    return _scatter(out, self, dim, index, src, "sum", True)


@kernel("aten.scatter.reduce")
def scatter_with_reduce(out: Outputs, self: Array, dim: int, index: Array, src: Array, *, reduce: str) -> Array:
    return _scatter(out, self, dim, index, src, reduce, True)


@kernel("aten.scatter.value_reduce")
def scatter_value_reduce(out: Outputs, self: Array, dim: int, index: Array, value: Number, *, reduce: str) -> Array:
    return _scatter(out, self, dim, index, value, reduce, True)


@kernel("aten.scatter_reduce.two")
def scatter_reduce(
    out: Outputs, self: Array, dim: int, index: Array, src: Array, reduce: str, *, include_self: bool = True
) -> Array:
    return _scatter(out, self, dim, index, src, reduce, include_self)


# --- flat places and masks --------------------------------------------------------------------------------------


@kernel("aten.take.default")
def take(out: Outputs, self: Array, index: Array) -> Array:
    return self.reshape(-1).take(checked(index.reshape(-1), self.size, 0, negative=True)).reshape(out.shape)


@kernel("aten.put.default")
def put(out: Outputs, self: Array, index: Array, source: Array, accumulate: bool = False) -> Array:
    flat = widen(self).reshape(-1).copy()
    where = checked(index.reshape(-1), self.size, 0, negative=True)
    if accumulate:
        _accumulate(np.add, flat, where, widen(source).reshape(-1))
    else:
        flat[where] = widen(source).reshape(-1)
    return finish(flat, out.dtype).reshape(out.shape)


@kernel("aten.masked_scatter.default")
def masked_scatter(out: Outputs, self: Array, mask: Array, source: Array) -> Array:
    result = np.broadcast_to(self, out.shape).copy()
    chosen = np.broadcast_to(mask, out.shape)
    count = int(chosen.sum())
    if count > source.size:
        raise IndexOutOfRangeError(f"the mask takes {count} elements but source has {source.size}")
    result[chosen] = source.reshape(-1)[:count]
    return result


@kernel("aten.embedding_renorm.default")
def embedding_renorm(out: Outputs, self: Array, indices: Array, max_norm: float, norm_type: float) -> Array:
    rows = np.unique(checked(indices, self.shape[0], 0, negative=False))
    chosen = widen(self)[rows]
    norms = np.linalg.norm(chosen, norm_type, axis=1)
    scale = np.where(norms > max_norm, max_norm / (norms + 1e-7), 1)
    result = self.copy()
    result[rows] = finish(chosen * scale[:, None].astype(chosen.dtype), out.dtype)
    return result


@kernel("aten.nonzero.default")
def nonzero(out: Outputs, self: Array) -> Array:
    return np.argwhere(widen(self)).astype(np.int64)


@kernel("aten.nonzero_static.default")
def nonzero_static(out: Outputs, self: Array, *, size: int, fill_value: int = -1) -> Array:
    found = np.argwhere(widen(self))[:size]
    result = np.full(out.shape, fill_value, np.int64)
    result[: len(found)] = found
    return result


@kernel("aten.bincount.default")
def bincount(out: Outputs, self: Array, weights: Array | None = None, minlength: int = 0) -> Array:
    if self.size and int(self.min()) < 0:
        raise IndexOutOfRangeError(f"the bin {int(self.min())} is negative")
    bins = self.astype(np.int64)
    if weights is None or not bins.size:  # PyTorch forgets the weights of nothing
        return np.bincount(bins, minlength=minlength).astype(np.int64)
    kind = np.float32 if weights.dtype == np.float32 else np.float64
    return np.bincount(bins, cast(weights, np.dtype(np.float64)), minlength).astype(kind)


@kernel("aten.masked_select.default")
def masked_select(out: Outputs, self: Array, mask: Array) -> Array:
    shape = np.broadcast_shapes(self.shape, mask.shape)
    return np.asarray(np.broadcast_to(self, shape)[np.broadcast_to(mask, shape)])


def _written(self: Array, where: Sequence[Any], src: Array) -> Array:
    result = self.copy()
    result[tuple(where)] = src
    return result


@kernel("aten.select_scatter.default")
def select_scatter(out: Outputs, self: Array, src: Array, dim: int, index: int) -> Array:
    return _written(self, (*(slice(None),) * normalize_axis(dim, self.ndim), index), src)


@kernel("aten.slice_scatter.default")
def slice_scatter(
    out: Outputs,
    self: Array,
    src: Array,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Array:
    return _written(self, (*(slice(None),) * normalize_axis(dim, self.ndim), slice(start, end, step)), src)


def diagonal_places(shape: Shape, offset: int, dim1: int, dim2: int) -> tuple[Any, ...]:
    """Where the diagonal lies."""
    first, second = normalize_axis(dim1, len(shape)), normalize_axis(dim2, len(shape))
    length = min(shape[first] + min(offset, 0), shape[second] - max(offset, 0))
    along = np.arange(max(length, 0))
    where: list[Any] = [slice(None)] * len(shape)
    where[first], where[second] = along - min(offset, 0), along + max(offset, 0)
    return tuple(where)


@kernel("aten.diagonal_scatter.default")
def diagonal_scatter(out: Outputs, self: Array, src: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    result = self.copy()
    # Seen with both axes last, the diagonal is the last axis, as in `src`.
    view = np.moveaxis(result, (dim1, dim2), (-2, -1))
    view[diagonal_places(view.shape, offset, -2, -1)] = src
    return result


@kernel("aten.as_strided_scatter.default")
def as_strided_scatter(
    out: Outputs, self: Array, src: Array, size: Shape, stride: Shape, storage_offset: int | None = None
) -> Array:
    flat = self.reshape(-1).copy()
    places = np.full(size, storage_offset or 0, np.int64)
    for axis, (count, step) in enumerate(zip(size, stride, strict=True)):
        places += (np.arange(count) * step).reshape(-1, *(1,) * (len(size) - 1 - axis))
    flat[checked(places, flat.size, 0, negative=False)] = src
    return flat.reshape(out.shape)
