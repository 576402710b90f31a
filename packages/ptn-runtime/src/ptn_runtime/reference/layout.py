"""Numpy kernels of the family `layout`; most give views."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from ptn_format.dtypes import ScalarType

from ptn_runtime.errors import IndexOutOfRangeError
from ptn_runtime.reference._numerics import cast, number
from ptn_runtime.reference.registry import Array, Number, Outputs, kernel
from ptn_runtime.shapes._broadcast import normalize_axes, normalize_axis
from ptn_runtime.shapes.layout import moved_axes

Shape = tuple[int, ...]


# --- the same elements ------------------------------------------------------------------------------------------


@kernel(
    "aten.alias.default",
    "aten.detach.default",
    "aten.lift_fresh.default",
    "aten.clone.default",
    "aten.contiguous.default",
)
def alias(out: Outputs, self: Array, memory_format: str | None = None) -> Array:
    return self


@kernel(
    "aten.view.default",
    "aten._unsafe_view.default",
    "aten.reshape.default",
    "aten._reshape_alias.default",
    "aten.view_as.default",
    "aten.flatten.using_ints",
    "aten.unflatten.int",
    "aten.squeeze.default",
    "aten.squeeze.dim",
    "aten.squeeze.dims",
    "aten.unsqueeze.default",
)
def view(out: Outputs, self: Array, **_: Any) -> Array:
    return self.reshape(out.shape)


@kernel("aten.view.dtype")
def view_dtype(out: Outputs, self: Array, dtype: ScalarType) -> Array:
    return np.ascontiguousarray(self).view(dtype.numpy).reshape(out.shape)


# --- order of axes ----------------------------------------------------------------------------------------------


@kernel("aten.permute.default")
def permute(out: Outputs, self: Array, dims: Shape) -> Array:
    return self.transpose(dims)


@kernel("aten.transpose.int")
def transpose(out: Outputs, self: Array, dim0: int, dim1: int) -> Array:
    return self.swapaxes(dim0, dim1) if self.ndim else self


@kernel("aten.t.default")
def t(out: Outputs, self: Array) -> Array:
    return self.T


@kernel("aten.movedim.intlist")
def movedim(out: Outputs, self: Array, source: Shape, destination: Shape) -> Array:
    return self.transpose(moved_axes(self.ndim, source, destination))


@kernel("aten.movedim.int")
def movedim_int(out: Outputs, self: Array, source: int, destination: int) -> Array:
    return movedim(out, self, (source,), (destination,)) if self.ndim else self


@kernel("aten.flip.default")
def flip(out: Outputs, self: Array, dims: Shape) -> Array:
    return np.flip(self, normalize_axes(dims, self.ndim, empty_is_all=False)) if self.ndim else self


@kernel("aten.roll.default")
def roll(out: Outputs, self: Array, shifts: Shape, dims: Shape = ()) -> Array:
    return np.roll(self, shifts, dims) if dims else np.roll(self, shifts[0])


@kernel("aten.rot90.default")
def rot90(out: Outputs, self: Array, k: int = 1, dims: Shape = (0, 1)) -> Array:
    first, second = dims
    return np.rot90(self, k, (first, second))


# --- parts ------------------------------------------------------------------------------------------------------


def _at(array: Array, axis: int, what: Any) -> Array:
    """`array` indexed on one axis, as an array even where one element is left."""
    return np.asarray(array[(*(slice(None),) * axis, what, ...)])


@kernel("aten.select.int")
def select(out: Outputs, self: Array, dim: int, index: int) -> Array:
    axis = normalize_axis(dim, self.ndim)
    if not -self.shape[axis] <= index < self.shape[axis]:
        raise IndexOutOfRangeError(f"index {index} is out of range for axis {axis} of {self.shape[axis]} elements")
    return _at(self, axis, index)


@kernel("aten.slice.Tensor")
def slice_(
    out: Outputs, self: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Array:
    return _at(self, normalize_axis(dim, self.ndim), slice(start, end, step))


@kernel("aten.narrow.default")
def narrow(out: Outputs, self: Array, dim: int, start: int, length: int) -> Array:
    axis = normalize_axis(dim, self.ndim)
    first = start + self.shape[axis] if start < 0 else start
    return _at(self, axis, slice(first, first + length))


@kernel(
    "aten.split.Tensor",
    "aten.unsafe_split.Tensor",
    "aten.chunk.default",
    "aten.tensor_split.sections",
    "aten.split_with_sizes.default",
    "aten.unsafe_split_with_sizes.default",
)
def split(out: Outputs, self: Array, dim: int = 0, **_: Any) -> tuple[Array, ...]:
    axis = normalize_axis(dim, self.ndim)
    pieces = []
    start = 0
    for spec in out:
        pieces.append(_at(self, axis, slice(start, start + spec.shape[axis])))
        start += spec.shape[axis]
    return tuple(pieces)


@kernel("aten.unbind.int")
def unbind(out: Outputs, self: Array, dim: int = 0) -> tuple[Array, ...]:
    axis = normalize_axis(dim, self.ndim)
    return tuple(_at(self, axis, index) for index in range(self.shape[axis]))


@kernel("aten.diagonal.default")
def diagonal(out: Outputs, self: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    return self.diagonal(offset, dim1, dim2)


@kernel("aten.as_strided.default")
def as_strided(out: Outputs, self: Array, size: Shape, stride: Shape, storage_offset: int | None = None) -> Array:
    flat = np.ascontiguousarray(self).reshape(-1)[storage_offset or 0 :]
    return np.lib.stride_tricks.as_strided(flat, size, [step * flat.itemsize for step in stride], writeable=False)


@kernel("aten.resize.default")
def resize(out: Outputs, self: Array, size: Shape, *, memory_format: str | None = None) -> Array:
    count = math.prod(size)
    flat = np.ascontiguousarray(self).reshape(-1)
    if count > flat.size:
        flat = np.concatenate((flat, np.zeros(count - flat.size, flat.dtype)))
    return flat[:count].reshape(size)


@kernel("aten.unfold.default")
def unfold(out: Outputs, self: Array, dimension: int, size: int, step: int) -> Array:
    if not self.ndim:
        return np.broadcast_to(self, out.shape)
    axis = normalize_axis(dimension, self.ndim)
    if not all(out.shape):
        return np.empty(out.shape, self.dtype)
    windows = np.lib.stride_tricks.sliding_window_view(self, size, axis=axis)
    return _at(windows, axis, slice(None, None, step))


@kernel("aten.tril.default")
def tril(out: Outputs, self: Array, diagonal: int = 0) -> Array:
    keep = np.tri(self.shape[-2], self.shape[-1], diagonal, np.bool_)
    return np.where(keep, self, np.zeros((), self.dtype))


@kernel("aten.triu.default")
def triu(out: Outputs, self: Array, diagonal: int = 0) -> Array:
    drop = np.tri(self.shape[-2], self.shape[-1], diagonal - 1, np.bool_)
    return np.where(drop, np.zeros((), self.dtype), self)


# --- more elements ----------------------------------------------------------------------------------------------


@kernel("aten.expand.default", "aten.broadcast_to.default", "aten.expand_as.default")
def expand(out: Outputs, self: Array, **_: Any) -> Array:
    return np.broadcast_to(self, out.shape)


@kernel("aten.repeat.default")
def repeat(out: Outputs, self: Array, repeats: Shape) -> Array:
    return np.tile(self, repeats)


@kernel("aten.tile.default")
def tile(out: Outputs, self: Array, dims: Shape) -> Array:
    return np.tile(self, dims)


@kernel("aten.repeat_interleave.self_int")
def repeat_interleave(
    out: Outputs, self: Array, repeats: int, dim: int | None = None, *, output_size: int | None = None
) -> Array:
    return np.repeat(self, repeats, axis=dim)


@kernel("aten.repeat_interleave.Tensor")
def repeat_interleave_indices(out: Outputs, repeats: Array, *, output_size: int | None = None) -> Array:
    if repeats.size and repeats.min() < 0:
        raise IndexOutOfRangeError(f"repeats must not be negative, got {repeats.min()}")
    if output_size is not None and int(repeats.sum()) != output_size:
        raise IndexOutOfRangeError(f"repeats add up to {int(repeats.sum())}, output_size says {output_size}")
    return np.repeat(np.arange(repeats.size, dtype=repeats.dtype), repeats)


@kernel("aten.cat.default")
def cat(out: Outputs, tensors: tuple[Array, ...], dim: int = 0) -> Array:
    parts = [cast(tensor, out.dtype.numpy) for tensor in tensors if tensor.shape != (0,)]
    return np.concatenate(parts, axis=dim) if parts else np.empty(out.shape, out.dtype.numpy)


@kernel("aten.stack.default")
def stack(out: Outputs, tensors: tuple[Array, ...], dim: int = 0) -> Array:
    return np.stack([cast(tensor, out.dtype.numpy) for tensor in tensors], axis=dim)


@kernel("aten.meshgrid.default")
def meshgrid(out: Outputs, tensors: tuple[Array, ...]) -> tuple[Array, ...]:
    return tuple(np.meshgrid(*(tensor.reshape(-1) for tensor in tensors), indexing="ij"))


@kernel("aten.diag_embed.default")
def diag_embed(out: Outputs, self: Array, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Array:
    result = np.zeros(out.shape, self.dtype)
    view = np.moveaxis(result, (dim1, dim2), (-2, -1))
    along = np.arange(self.shape[-1])
    view[..., along - min(offset, 0), along + max(offset, 0)] = self
    return result


# --- padding ----------------------------------------------------------------------------------------------------


def _pairs(pad: Shape, rank: int) -> list[tuple[int, int]]:
    """(before, after) for every axis from the first one on."""
    named = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
    return [(0, 0)] * (rank - len(named)) + named[::-1]


@kernel("aten.constant_pad_nd.default")
def constant_pad_nd(out: Outputs, self: Array, pad: Shape, value: Number = 0) -> Array:
    pairs = _pairs(pad, self.ndim)
    result = np.full(out.shape, number(value, out.dtype), self.dtype)
    target = tuple(
        slice(max(before, 0), size - max(after, 0)) for size, (before, after) in zip(out.shape, pairs, strict=True)
    )
    source = tuple(
        slice(max(-before, 0), size - max(-after, 0)) for size, (before, after) in zip(self.shape, pairs, strict=True)
    )
    result[target] = self[source]
    return result


def _source_places(size: int, before: int, after: int, mode: str) -> Array:
    """Which element of an axis each place of the padded axis shows; negative padding crops."""
    places = np.arange(-before, size + after)
    if mode == "replicate":
        return np.clip(places, 0, size - 1)
    if mode == "circular":  # what is left after cropping repeats
        first, last = max(-before, 0), size - max(-after, 0)
        return first + (np.arange(-max(before, 0), last - first + max(after, 0)) % (last - first))
    places = np.abs(places)
    return np.where(places >= size, 2 * (size - 1) - places, places)


def _padded(self: Array, padding: Shape, mode: str) -> Array:
    for axis, (before, after) in enumerate(_pairs(padding, self.ndim)):
        if before or after:
            self = self.take(_source_places(self.shape[axis], before, after, mode), axis=axis)
    return self


@kernel("aten.reflection_pad1d.default", "aten.reflection_pad2d.default", "aten.reflection_pad3d.default")
def reflection_pad(out: Outputs, self: Array, padding: Shape) -> Array:
    return _padded(self, padding, "reflect")


@kernel("aten.replication_pad1d.default", "aten.replication_pad2d.default", "aten.replication_pad3d.default")
def replication_pad(out: Outputs, self: Array, padding: Shape) -> Array:
    return _padded(self, padding, "replicate")


@kernel("aten.pad.default")
def pad_(out: Outputs, self: Array, pad: Shape, mode: str = "constant", value: float | None = None) -> Array:
    if mode == "constant":
        return constant_pad_nd(out, self, pad, 0 if value is None else value)
    return _padded(self, pad, mode)


# --- channels and pixels ----------------------------------------------------------------------------------------


@kernel("aten.pixel_shuffle.default")
def pixel_shuffle(out: Outputs, self: Array, upscale_factor: int) -> Array:
    r = upscale_factor
    *batch, channels, height, width = self.shape
    rank = len(batch)
    blocks = self.reshape(*batch, channels // r**2, r, r, height, width)
    order = (*range(rank), rank, rank + 3, rank + 1, rank + 4, rank + 2)
    return blocks.transpose(order).reshape(out.shape)


@kernel("aten.pixel_unshuffle.default")
def pixel_unshuffle(out: Outputs, self: Array, downscale_factor: int) -> Array:
    r = downscale_factor
    *batch, channels, height, width = self.shape
    rank = len(batch)
    blocks = self.reshape(*batch, channels, height // r, r, width // r, r)
    order = (*range(rank), rank, rank + 2, rank + 4, rank + 1, rank + 3)
    return blocks.transpose(order).reshape(out.shape)


@kernel("aten.channel_shuffle.default")
def channel_shuffle(out: Outputs, self: Array, groups: int) -> Array:
    split = self.reshape(self.shape[0], groups, self.shape[1] // groups, *self.shape[2:])
    return split.swapaxes(1, 2).reshape(out.shape)
