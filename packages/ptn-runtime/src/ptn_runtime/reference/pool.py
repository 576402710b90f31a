"""Numpy kernels of the family `pool`: one strided slice per kernel place shows the windows of all outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ptn_runtime.reference._numerics import at, finish, lowest, widen
from ptn_runtime.reference.conv import taps
from ptn_runtime.reference.index import checked
from ptn_runtime.reference.registry import Array, Outputs, kernel
from ptn_runtime.shapes._broadcast import per_axis

Sizes = tuple[int, ...]


def _windows(
    rank: int, kernel_size: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes = (1,)
) -> tuple[Sizes, Sizes, Sizes, Sizes]:
    kernels = per_axis(kernel_size, rank, "kernel_size")
    strides = per_axis(stride, rank, "stride") if stride else kernels
    return kernels, strides, per_axis(padding, rank, "padding"), per_axis(dilation, rank, "dilation")


def _reached(kernels: Sizes, sizes: Sizes, padding: Sizes, dilation: Sizes) -> Sizes:
    """How far kernels reach into the axes: with ceil_mode a window may hang over by any size."""
    return tuple(min(k, max(1, -(-(n + p) // d))) for k, n, p, d in zip(kernels, sizes, padding, dilation, strict=True))


def _room(
    x: Array, kernels: Sizes, windows: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, fill: float
) -> Array:
    """`x` padded so that every window fits, those that hang over with ceil_mode too."""
    lead = x.ndim - len(kernels)
    sizes = x.shape[lead:]
    full = [
        max((count - 1) * s + (k - 1) * d + 1, n + p)
        for count, s, k, d, n, p in zip(windows, stride, kernels, dilation, sizes, padding, strict=True)
    ]
    grown = np.full((*x.shape[:lead], *full), fill, x.dtype)
    grown[at(..., *[slice(p, p + n) for n, p in zip(sizes, padding, strict=True)])] = x
    return grown


# --- averages ---------------------------------------------------------------------------------------------------


def _counts(size: int, count: int, kernel: int, stride: int, padding: int, include_pad: bool) -> Array:
    """How many elements of an axis each window covers; with `include_pad` the padding counts, an overhang does not."""
    start = np.arange(count) * stride - padding
    end = np.minimum(start + kernel, size + padding)
    if include_pad:
        return np.asarray(end - start)
    return np.asarray(np.minimum(end, size) - np.maximum(start, 0))


def _divisor(
    sizes: Sizes,
    windows: Sizes,
    kernels: Sizes,
    strides: Sizes,
    padding: Sizes,
    include_pad: bool,
    override: int | None,
) -> Array:
    """What the sum of each window is divided by, as [*windows], or a 0-d array."""
    if override is not None:
        return np.asarray(override)
    divisor = np.asarray(1)
    for size, count, k, s, p in zip(sizes, windows, kernels, strides, padding, strict=True):
        divisor = divisor[..., None] * _counts(size, count, k, s, p, include_pad)
    return divisor


def _avg_pool(
    out: Outputs,
    self: Array,
    rank: int,
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Array:
    kernels, strides, pads, ones = _windows(rank, kernel_size, stride, padding)
    windows = out.shape[-rank:]
    reached = _reached(kernels, self.shape[-rank:], pads, ones)
    x = _room(widen(self), reached, windows, strides, pads, ones, 0)
    total = np.zeros(out.shape, x.dtype)
    for _, where in taps(reached, windows, strides, ones):
        total += x[at(..., *where)]
    divisor = _divisor(self.shape[-rank:], windows, kernels, strides, pads, count_include_pad, divisor_override)
    if out.dtype.is_floating_point:
        return finish(total / divisor.astype(total.dtype), out.dtype)
    quotient = np.abs(total) // np.abs(divisor)  # integers round towards zero
    return finish(quotient * np.sign(total) * np.sign(divisor), out.dtype)


@kernel("aten.avg_pool1d.default")
def avg_pool1d(
    out: Outputs,
    self: Array,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Array:
    return _avg_pool(out, self, 1, kernel_size, stride, padding, count_include_pad, None)


@kernel("aten.avg_pool2d.default")
def avg_pool2d(
    out: Outputs,
    self: Array,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes = (0, 0),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Array:
    return _avg_pool(out, self, 2, kernel_size, stride, padding, count_include_pad, divisor_override)


@kernel("aten.avg_pool3d.default")
def avg_pool3d(
    out: Outputs,
    self: Array,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes = (0, 0, 0),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Array:
    return _avg_pool(out, self, 3, kernel_size, stride, padding, count_include_pad, divisor_override)


# --- maxima -----------------------------------------------------------------------------------------------------


def _max_pool(
    self: Array, rank: int, windows: Sizes, kernel_size: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes
) -> tuple[Array, Array]:
    """The largest element of each window and its index in the flattened spatial axes.

    As in PyTorch a later element replaces an earlier one only where it is larger, or NaN.
    """
    kernels, strides, pads, spreads = _windows(rank, kernel_size, stride, padding, dilation)
    x = widen(self)
    sizes = x.shape[-rank:]
    fill = lowest(x.dtype)
    kernels = _reached(kernels, sizes, pads, spreads)
    room = _room(x, kernels, windows, strides, pads, spreads, fill)
    flat = np.arange(math.prod(sizes)).reshape(sizes)
    positions = _room(flat, kernels, windows, strides, pads, spreads, -1)
    shape = (*x.shape[:-rank], *windows)
    best = np.full(shape, fill, x.dtype)
    index = np.full(shape, -1, np.int64)
    for _, where in taps(kernels, windows, strides, spreads):
        value, place = room[at(..., *where)], positions[where]
        better = (value > best) | (value != value) | (index < 0)
        better &= place >= 0
        best = np.where(better, value, best)
        index = np.where(better, place, index)
    return best, index


def _max_values(
    out: Outputs, self: Array, rank: int, kernel_size: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes
) -> Array:
    """The largest element of each window, without the bookkeeping of indices."""
    kernels, strides, pads, spreads = _windows(rank, kernel_size, stride, padding, dilation)
    windows = out.shape[-rank:]
    x = widen(self)
    kernels = _reached(kernels, x.shape[-rank:], pads, spreads)
    room = _room(x, kernels, windows, strides, pads, spreads, lowest(x.dtype))
    best: Array | None = None
    for _, where in taps(kernels, windows, strides, spreads):
        value = room[at(..., *where)]
        best = value if best is None else np.maximum(best, value)
    assert best is not None
    return np.ascontiguousarray(finish(best, out.dtype))


@kernel("aten.max_pool1d.default")
def max_pool1d(
    out: Outputs,
    self: Array,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes = (0,),
    dilation: Sizes = (1,),
    ceil_mode: bool = False,
) -> Array:
    return _max_values(out, self, 1, kernel_size, stride, padding, dilation)


@kernel("aten.max_pool2d.default")
def max_pool2d(
    out: Outputs,
    self: Array,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes = (0, 0),
    dilation: Sizes = (1, 1),
    ceil_mode: bool = False,
) -> Array:
    return _max_values(out, self, 2, kernel_size, stride, padding, dilation)


@kernel("aten.max_pool3d.default")
def max_pool3d(
    out: Outputs,
    self: Array,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes = (0, 0, 0),
    dilation: Sizes = (1, 1, 1),
    ceil_mode: bool = False,
) -> Array:
    return _max_values(out, self, 3, kernel_size, stride, padding, dilation)


def _register_with_indices(rank: int) -> None:
    @kernel(f"aten.max_pool{rank}d_with_indices.default")
    def max_pool_with_indices(
        out: Outputs,
        self: Array,
        kernel_size: Sizes,
        stride: Sizes = (),
        padding: Sizes = (0,),
        dilation: Sizes = (1,),
        ceil_mode: bool = False,
    ) -> tuple[Array, Array]:
        best, index = _max_pool(self, rank, out.shape[-rank:], kernel_size, stride, padding, dilation)
        return finish(best, out.dtype), index


for _rank in (1, 2, 3):
    _register_with_indices(_rank)


# --- adaptive ---------------------------------------------------------------------------------------------------


def _bounds(size: int, count: int) -> tuple[Array, Array]:
    """Where each of `count` windows over an axis starts and ends."""
    index = np.arange(count)
    return index * size // count, -(-(index + 1) * size // count)


def _average_axis(x: Array, axis: int, count: int) -> Array:
    """Averages of `count` windows along one axis."""
    size = x.shape[axis]
    if count and size % count == 0:
        split = x.reshape(*x.shape[:axis], count, size // count, *x.shape[axis + 1 :])
        return np.asarray(split.mean(axis=axis + 1))
    weights = _adaptive_weights(size, count, x.dtype)
    return np.moveaxis(np.tensordot(weights, x, axes=(1, axis)), 0, axis)


def _adaptive_weights(size: int, count: int, dtype: np.dtype[Any]) -> Array:
    """What each element of an axis adds to each of `count` averages, as [count, size]."""
    start, end = _bounds(size, count)
    place = np.arange(size)
    inside = (place >= start[:, None]) & (place < end[:, None])
    return np.asarray(inside / (end - start)[:, None]).astype(dtype)


def _register_adaptive_average(rank: int, *names: str) -> None:
    @kernel(*names)
    def adaptive_avg_pool(out: Outputs, self: Array, output_size: Sizes) -> Array:
        x = widen(self)
        for axis in range(x.ndim - rank, x.ndim):
            x = _average_axis(x, axis, out.shape[axis])
        return finish(np.ascontiguousarray(x), out.dtype)


_register_adaptive_average(1, "aten.adaptive_avg_pool1d.default")
_register_adaptive_average(2, "aten._adaptive_avg_pool2d.default", "aten.adaptive_avg_pool2d.default")
_register_adaptive_average(3, "aten._adaptive_avg_pool3d.default", "aten.adaptive_avg_pool3d.default")


def _max_windows(x: Array, sizes: Sequence[int]) -> tuple[Array, Array]:
    """Maxima and flat indices over adaptive windows: each output place looks at its own, equally large part."""
    rank = len(sizes)
    spatial = x.shape[-rank:]
    flat = np.arange(math.prod(spatial)).reshape(spatial)
    index_lists = []
    for size, count in zip(spatial, sizes, strict=True):
        start, end = _bounds(size, count)
        longest = int((end - start).max(initial=0))
        # Short windows repeat their last element, which never beats itself.
        index_lists.append(np.minimum(start[:, None] + np.arange(longest), end[:, None] - 1))
    grid = []
    for axis, places in enumerate(index_lists):
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = places.shape
        grid.append(places.reshape(shape))
    values = x[at(..., *grid)].reshape(*x.shape[:-rank], *sizes, -1)
    where = np.broadcast_to(flat[tuple(grid)].reshape(*sizes, -1), values.shape)
    best = values.argmax(axis=-1)
    missing = values != values
    if missing.any():  # the last NaN of a window counts
        last = values.shape[-1] - 1 - missing[..., ::-1].argmax(axis=-1)
        best = np.where(missing.any(axis=-1), last, best)
    chosen = best[..., None]
    return np.take_along_axis(values, chosen, -1)[..., 0], np.take_along_axis(where, chosen, -1)[..., 0]


def _register_adaptive_max(rank: int) -> None:
    @kernel(f"aten.adaptive_max_pool{rank}d.default")
    def adaptive_max_pool(out: Outputs, self: Array, output_size: Sizes) -> tuple[Array, Array]:
        if not all(out.shape):
            return np.zeros(out.shape, self.dtype), np.zeros(out.shape, np.int64)
        values, where = _max_windows(widen(self), out.shape[-rank:])
        return finish(values, out.dtype), where


for _rank in (1, 2, 3):
    _register_adaptive_max(_rank)


# --- backward ---------------------------------------------------------------------------------------------------


@kernel("aten._adaptive_avg_pool2d_backward.default")
def adaptive_avg_pool2d_backward(out: Outputs, grad_output: Array, self: Array) -> Array:
    gradient = widen(grad_output)
    for axis in (gradient.ndim - 2, gradient.ndim - 1):
        weights = _adaptive_weights(out.shape[axis], gradient.shape[axis], gradient.dtype)
        gradient = np.moveaxis(np.tensordot(weights, gradient, axes=(0, axis)), 0, axis)
    return finish(np.ascontiguousarray(gradient), out.dtype)


@kernel("aten.avg_pool2d_backward.default")
def avg_pool2d_backward(
    out: Outputs,
    grad_output: Array,
    self: Array,
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Array:
    kernels, strides, pads, ones = _windows(2, kernel_size, stride, padding)
    sizes, windows = self.shape[-2:], grad_output.shape[-2:]
    gradient = widen(grad_output)
    divisor = _divisor(sizes, windows, kernels, strides, pads, count_include_pad, divisor_override)
    share = gradient / divisor.astype(gradient.dtype)
    reached = _reached(kernels, sizes, pads, ones)
    room = _room(np.zeros(self.shape, gradient.dtype), reached, windows, strides, pads, ones, 0)
    for _, where in taps(reached, windows, strides, ones):
        room[at(..., *where)] += share
    inner = at(..., *[slice(p, p + n) for p, n in zip(pads, sizes, strict=True)])
    return finish(np.ascontiguousarray(room[inner]), out.dtype)


@kernel("aten.max_pool2d_with_indices_backward.default")
def max_pool2d_with_indices_backward(
    out: Outputs,
    grad_output: Array,
    self: Array,
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    ceil_mode: bool,
    indices: Array,
) -> Array:
    size = math.prod(self.shape[-2:])
    planes = math.prod(self.shape[:-2])
    gradient = widen(grad_output).reshape(planes, -1)
    places = checked(indices, size, self.ndim - 1, negative=False).reshape(planes, -1)
    result = np.zeros((planes, size), gradient.dtype)
    np.add.at(result, (np.arange(planes)[:, None], places), gradient)
    return finish(result, out.dtype).reshape(out.shape)
