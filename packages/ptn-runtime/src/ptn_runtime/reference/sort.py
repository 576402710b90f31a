"""Numpy kernels of the family `sort`. All sorting is stable, and NaN is larger than every number."""

from __future__ import annotations

import math

import numpy as np

from ptn_runtime.reference._numerics import common_type, finish, operand, widen
from ptn_runtime.reference.registry import Array, Number, Outputs, kernel
from ptn_runtime.shapes.sort import flattens


def order(x: Array, axis: int, descending: bool) -> Array:
    """The places of the elements in sorted order; equal ones keep theirs."""
    if not descending:
        return np.asarray(np.argsort(x, axis=axis, kind="stable"))
    backwards = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
    return np.asarray(x.shape[axis] - 1 - np.flip(backwards, axis))


def _sorted(self: Array, dim: int, descending: bool) -> tuple[Array, Array]:
    if not self.ndim:
        return self, np.zeros((), np.int64)
    index = order(widen(self), dim, descending).astype(np.int64)
    return np.take_along_axis(self, index, dim), index


@kernel("aten.sort.default", "aten.sort.stable")
def sort(
    out: Outputs, self: Array, dim: int = -1, descending: bool = False, stable: bool | None = None
) -> tuple[Array, Array]:
    return _sorted(self, dim, descending)


@kernel("aten.argsort.default", "aten.argsort.stable")
def argsort(out: Outputs, self: Array, dim: int = -1, descending: bool = False, stable: bool | None = None) -> Array:
    return _sorted(self, dim, descending)[1]


@kernel("aten.topk.default")
def topk(
    out: Outputs, self: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Array, Array]:
    if not self.ndim:
        return self, np.zeros((), np.int64)
    index = order(widen(self), dim, largest).take(range(k), axis=dim).astype(np.int64)
    return np.take_along_axis(self, index, dim), index


@kernel("aten.kthvalue.default")
def kthvalue(out: Outputs, self: Array, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Array, Array]:
    if not self.ndim:
        return self, np.zeros((), np.int64)
    index = order(widen(self), dim, False).take([k - 1], axis=dim).astype(np.int64)
    return np.take_along_axis(self, index, dim).reshape(out.shape), index.reshape(out.shape)


@kernel("aten.mode.default")
def mode(out: Outputs, self: Array, dim: int = -1, keepdim: bool = False) -> tuple[Array, Array]:
    if not self.ndim:
        return self, np.zeros((), np.int64)
    rows = np.moveaxis(widen(self), dim, -1)
    index = order(rows, -1, False)
    ordered = np.take_along_axis(rows, index, -1)
    new = np.ones(ordered.shape, np.bool_)
    new[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    # How many of its kind an element is preceded by: the first that is preceded by the most is the smallest such value.
    place = np.arange(rows.shape[-1])
    preceded = place - np.maximum.accumulate(np.where(new, place, 0), axis=-1)
    last = np.argmax(preceded, axis=-1)[..., None]
    found = np.take_along_axis(index, last, -1).astype(np.int64)
    values = np.take_along_axis(np.moveaxis(self, dim, -1), found, -1)
    return values.reshape(out.shape), found.reshape(out.shape)


def _searched(sequence: Array, values: Array, right: bool, dtype: np.dtype[np.signedinteger]) -> Array:
    """Where each of `values` belongs in the (last axis of the) sorted `sequence`."""
    side = "right" if right else "left"
    if sequence.ndim <= 1:
        return np.asarray(np.searchsorted(sequence, values, side=side)).astype(dtype)  # type: ignore[call-overload]
    count = math.prod(sequence.shape[:-1])
    rows = sequence.reshape(count, sequence.shape[-1])
    wanted = values.reshape(count, values.shape[-1])
    found = np.empty(wanted.shape, dtype)
    for row in range(rows.shape[0]):
        found[row] = np.searchsorted(rows[row], wanted[row], side=side)  # type: ignore[call-overload]
    return found.reshape(values.shape)


@kernel("aten.bucketize.Tensor", "aten.bucketize.Scalar")
def bucketize(
    out: Outputs, self: Array | Number, boundaries: Array, *, out_int32: bool = False, right: bool = False
) -> Array:
    dtype = common_type(self, boundaries)
    return _searched(operand(boundaries, dtype), operand(self, dtype), right, out.dtype.numpy)


@kernel("aten.searchsorted.Tensor", "aten.searchsorted.Scalar")
def searchsorted(
    out: Outputs,
    sorted_sequence: Array,
    self: Array | Number,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Array | None = None,
) -> Array:
    sequence = sorted_sequence if sorter is None else np.take_along_axis(sorted_sequence, sorter, -1)
    dtype = common_type(self, sequence)
    return _searched(operand(sequence, dtype), operand(self, dtype), right or side == "right", out.dtype.numpy)


@kernel("aten._unique2.default")
def unique2(
    out: Outputs, self: Array, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Array, Array, Array]:
    values, inverse, counts = np.unique(widen(self), return_inverse=True, return_counts=True, equal_nan=False)
    empty = np.zeros((0,), np.int64)
    return (
        finish(values, common_type(self)),
        inverse.reshape(self.shape) if return_inverse else empty,
        counts if return_counts else empty,
    )


@kernel("aten.unique_dim.default")
def unique_dim(
    out: Outputs,
    self: Array,
    dim: int,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[Array, Array, Array]:
    slices = _slices(self, dim)
    # A stable sort by one column after the other, the first one last, is the lexicographic order.
    order_of = np.lexsort(slices.T[::-1]) if slices.shape[1] else np.arange(len(slices))
    starts, run_of = _runs(slices[order_of])
    inverse = np.empty(len(slices), np.int64)
    inverse[order_of] = run_of
    return self.take(order_of[starts], axis=dim), inverse, np.diff(starts, append=len(slices))


@kernel("aten.unique_consecutive.default")
def unique_consecutive(
    out: Outputs, self: Array, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[Array, Array, Array]:
    flat = flattens(self.ndim, dim)
    slices = widen(self).reshape(-1, 1) if flat else _slices(self, dim or 0)
    starts, run_of = _runs(slices)
    counts = np.diff(starts, append=len(slices))
    if not flat:
        return self.take(starts, axis=dim), run_of, counts
    empty = np.zeros((0,), np.int64)
    inverse = run_of.reshape(self.shape) if return_inverse else empty
    return self.reshape(-1)[starts], inverse, counts if return_counts else empty


def _slices(self: Array, dim: int) -> Array:
    """Each slice along `dim` as a row."""
    moved = np.moveaxis(widen(self), dim, 0)
    return moved.reshape(moved.shape[0], math.prod(moved.shape[1:]))


def _runs(rows: Array) -> tuple[Array, Array]:
    """Where each run of equal rows starts, and the number of each row's run."""
    new = np.ones(len(rows), np.bool_)
    new[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    return np.flatnonzero(new), np.cumsum(new) - 1
