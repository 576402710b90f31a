"""Operators that move elements: almost all are windows on the same memory; the rest are copies of our own kernels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ptn_format.dtypes import ScalarType
from ptn_runtime.engine import StaticNode, Value

from ptn_engine_ggml.lower.common import (
    axes_of,
    axis_of,
    call,
    last_element,
    promoted,
    scalar_parameters,
    scalar_tensor,
)
from ptn_engine_ggml.lower.registry import Outputs, lower

if TYPE_CHECKING:
    from ptn_engine_ggml._native import Builder, Tensor

Sizes = tuple[int, ...]


@lower(
    "aten.alias.default",
    "aten.detach.default",
    "aten.lift_fresh.default",
    "aten.clone.default",
    "aten.contiguous.default",
)
def alias(b: Builder, out: Outputs, self: Tensor, **_: Any) -> Tensor:
    return self


@lower(
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
    "aten._local_scalar_dense.default",
)
def view(b: Builder, out: Outputs, self: Tensor, **_: Any) -> Tensor:
    return b.view(self, out.shape)


@lower("aten.view.dtype")
def view_dtype(b: Builder, out: Outputs, self: Tensor, dtype: ScalarType) -> Tensor:
    if ScalarType(self.dtype).itemsize == dtype.itemsize and ScalarType.BOOL not in (dtype, self.dtype):
        return self.reinterpret(int(dtype))
    result: Tensor = call(b, "cast.view_dtype", (self,), out)
    return result


@lower("aten.expand.default", "aten.broadcast_to.default", "aten.expand_as.default")
def expand(b: Builder, out: Outputs, self: Tensor, **_: Any) -> Tensor:
    return self.expand(out.shape)


@lower("aten.permute.default")
def permute(b: Builder, out: Outputs, self: Tensor, dims: Sizes) -> Tensor:
    return self.permute(axes_of(dims, self.rank))


@lower("aten.transpose.int")
def transpose(b: Builder, out: Outputs, self: Tensor, dim0: int, dim1: int) -> Tensor:
    return self if self.rank == 0 else self.transpose(dim0, dim1)


@lower("aten.t.default")
def t(b: Builder, out: Outputs, self: Tensor) -> Tensor:
    return self if self.rank < 2 else self.transpose(0, 1)


@lower("aten.movedim.int", "aten.movedim.intlist")
def movedim(b: Builder, out: Outputs, self: Tensor, source: int | Sizes, destination: int | Sizes) -> Tensor:
    sources = axes_of((source,) if isinstance(source, int) else source, self.rank)
    targets = axes_of((destination,) if isinstance(destination, int) else destination, self.rank)
    rest = iter(axis for axis in range(self.rank) if axis not in sources)
    place = dict(zip(targets, sources, strict=True))
    return self.permute([place[axis] if axis in place else next(rest) for axis in range(self.rank)])


@lower("aten.flip.default")
def flip(b: Builder, out: Outputs, self: Tensor, dims: Sizes) -> Tensor:
    for dim in axes_of(dims, self.rank):
        self = _reversed(self, dim)
    return self


def _reversed(x: Tensor, dim: int) -> Tensor:
    return x.slice(dim, x.shape[dim] - 1, -1, x.shape[dim])


@lower("aten.rot90.default")
def rot90(b: Builder, out: Outputs, self: Tensor, k: int = 1, dims: Sizes = (0, 1)) -> Tensor:
    first, second = axes_of(dims, self.rank)
    turns = k % 4
    if turns == 2:
        return _reversed(_reversed(self, first), second)
    if turns == 1:
        return _reversed(self, second).transpose(first, second)
    return _reversed(self.transpose(first, second), second) if turns == 3 else self


@lower("aten.roll.default")
def roll(b: Builder, out: Outputs, self: Tensor, shifts: Sizes, dims: Sizes = ()) -> Tensor:
    if not dims:  # over the flattened tensor
        flat = b.view(self, (self.numel,))
        (rolled,) = b.custom("layout.roll", (flat,), [(self.dtype, flat.shape)], tuple(shifts), ())
        return b.view(rolled, out.shape)
    by_axis = [0] * self.rank
    for shift, axis in zip(shifts, axes_of(dims, self.rank), strict=True):
        by_axis[axis] += shift
    result: Tensor = call(b, "layout.roll", (self,), out, by_axis)
    return result


# --- parts ---


@lower("aten.select.int")
def select(b: Builder, out: Outputs, self: Tensor, dim: int, index: int) -> Tensor:
    axis = axis_of(dim, self.rank)
    return self.select(axis, index % self.shape[axis])


@lower("aten.slice.Tensor")
def slice_(
    b: Builder,
    out: Outputs,
    self: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    axis = axis_of(dim, self.rank)
    first, _, _ = slice(start, end, step).indices(self.shape[axis])
    return self.slice(axis, first, step, out.shape[axis])


@lower("aten.narrow.default")
def narrow(b: Builder, out: Outputs, self: Tensor, dim: int, start: int, length: int) -> Tensor:
    axis = axis_of(dim, self.rank)
    return self.slice(axis, start + self.shape[axis] if start < 0 else start, 1, length)


@lower(
    "aten.split.Tensor",
    "aten.split_with_sizes.default",
    "aten.unsafe_split.Tensor",
    "aten.unsafe_split_with_sizes.default",
    "aten.chunk.default",
    "aten.tensor_split.sections",
)
def split(b: Builder, out: Outputs, self: Tensor, *_: Any, dim: int = 0, **__: Any) -> tuple[Tensor, ...]:
    axis = axis_of(dim, self.rank)
    parts, start = [], 0
    for value in out:
        parts.append(self.slice(axis, start, 1, value.shape[axis]))
        start += value.shape[axis]
    return tuple(parts)


@lower("aten.unbind.int")
def unbind(b: Builder, out: Outputs, self: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    axis = axis_of(dim, self.rank)
    return tuple(self.select(axis, i) for i in range(self.shape[axis]))


@lower("aten.diagonal.default")
def diagonal(b: Builder, out: Outputs, self: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    axis1, axis2 = axes_of((dim1, dim2), self.rank)
    if offset >= 0:
        window = self.slice(axis2, offset, 1, self.shape[axis2] - offset)
    else:
        window = self.slice(axis1, -offset, 1, self.shape[axis1] + offset)
    steps = _steps(window)
    rest = [axis for axis in range(self.rank) if axis not in (axis1, axis2)]
    strides = [steps[axis] for axis in rest]
    return window.as_strided(out.shape, [*strides, steps[axis1] + steps[axis2]], 0)


def _steps(x: Tensor) -> list[int]:
    """Strides in elements."""
    size = ScalarType(x.dtype).itemsize
    return [stride // size for stride in x.strides]


def _as_strided_check(node: StaticNode) -> str | None:
    x = node.args["self"]
    assert isinstance(x, Value)
    size, stride = node.args["size"], node.args["stride"]
    start = node.args.get("storage_offset") or 0
    assert isinstance(start, int)
    last = start + last_element(size, stride)
    if start < 0 or last >= x.numel:
        return f"the window reaches elements {start}..{last} of a tensor that has {x.numel}."
    return None


@lower("aten.as_strided.default", check=_as_strided_check)
def as_strided(
    b: Builder, out: Outputs, self: Tensor, size: Sizes, stride: Sizes, storage_offset: int | None = None
) -> Tensor:
    return b.contiguous(self).as_strided(size, stride, storage_offset or 0)


@lower("aten.resize.default", empty=True)
def resize(b: Builder, out: Outputs, self: Tensor, size: Sizes, memory_format: str | None = None) -> Tensor:
    """The elements in order; what there are too few of is zero."""
    count = math.prod(size)
    if self.numel == 0:
        return scalar_tensor(b, out.dtype, 0).expand(out.shape)
    flat = b.view(self, (self.numel,))
    flat = flat.slice(0, 0, 1, count) if count <= self.numel else padded(b, flat, [0], [count])
    return b.view(flat, out.shape)


@lower("aten.unfold.default")
def unfold(b: Builder, out: Outputs, self: Tensor, dimension: int, size: int, step: int) -> Tensor:
    if self.rank == 0:
        return b.view(self, out.shape)
    axis = axis_of(dimension, self.rank)
    steps = _steps(self)
    strides = [*steps[:axis], steps[axis] * step, *steps[axis + 1 :], steps[axis]]
    return self.as_strided(out.shape, strides, 0)


@lower("aten.tril.default")
def tril(b: Builder, out: Outputs, self: Tensor, diagonal: int = 0) -> Tensor:
    return call(b, "layout.triangle", (self,), out, (0, diagonal))


@lower("aten.triu.default")
def triu(b: Builder, out: Outputs, self: Tensor, diagonal: int = 0) -> Tensor:
    return call(b, "layout.triangle", (self,), out, (1, diagonal))


# --- more elements ---


@lower("aten.repeat.default", "aten.tile.default")
def repeat(b: Builder, out: Outputs, self: Tensor, repeats: Sizes | None = None, dims: Sizes | None = None) -> Tensor:
    counts = repeats if repeats is not None else dims
    assert counts is not None
    rank = len(out.shape)
    counts = (1,) * (rank - len(counts)) + tuple(counts)
    sizes = (1,) * (rank - self.rank) + self.shape
    split_shape = [part for size in sizes for part in (1, size)]
    wide_shape = [part for count, size in zip(counts, sizes, strict=True) for part in (count, size)]
    return b.view(b.view(self, split_shape).expand(wide_shape), out.shape)


@lower("aten.repeat_interleave.self_int")
def repeat_interleave(
    b: Builder, out: Outputs, self: Tensor, repeats: int, dim: int | None = None, output_size: int | None = None
) -> Tensor:
    if dim is None:
        self, dim = b.view(self, (self.numel,)), 0
    axis = axis_of(dim, self.rank)
    split_shape = (*self.shape[: axis + 1], 1, *self.shape[axis + 1 :])
    wide_shape = (*self.shape[: axis + 1], repeats, *self.shape[axis + 1 :])
    return b.view(b.view(self, split_shape).expand(wide_shape), out.shape)


@lower("aten.cat.default", empty=True)
def cat(b: Builder, out: Outputs, tensors: tuple[Tensor, ...], dim: int = 0) -> Tensor:
    parts = [promoted(b, x, out.dtype) for x in tensors if x.numel]
    return b.contiguous(b.cat(parts, axis_of(dim, len(out.shape))))


@lower("aten.stack.default")
def stack(b: Builder, out: Outputs, tensors: tuple[Tensor, ...], dim: int = 0) -> Tensor:
    axis = axis_of(dim, len(out.shape))
    parts = []
    for x in tensors:
        shape = (*x.shape[:axis], 1, *x.shape[axis:])
        parts.append(b.view(promoted(b, x, out.dtype), shape))
    return b.cat(parts, axis)


@lower("aten.meshgrid.default")
def meshgrid(b: Builder, out: Outputs, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    rank = len(tensors)
    grids = []
    for i, (x, value) in enumerate(zip(tensors, out, strict=True)):
        shape = [1] * rank
        shape[i] = x.numel
        grids.append(b.view(x, shape).expand(value.shape))
    return tuple(grids)


@lower("aten.diag_embed.default")
def diag_embed(b: Builder, out: Outputs, self: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """The diagonal of each matrix, in the last two axes, is every (columns + 1)-th element of a row of zeros."""
    rank = len(out.shape)
    axis1, axis2 = axis_of(dim1, rank), axis_of(dim2, rank)
    rows = self.shape[-1] + abs(offset)
    batch = self.shape[:-1]
    count = self.shape[-1]
    # Each element followed by `rows` zeros: a matrix [count, rows + 1] read as one row of [count * (rows + 1)].
    spread = padded(b, b.view(self, (*batch, count, 1)), [0] * len(batch) + [0, 0], [*batch, count, rows + 1])
    line = b.view(spread, (*batch, count * (rows + 1)))
    before = offset if offset >= 0 else -offset * rows
    line = padded(b, line, [0] * len(batch) + [before], [*batch, rows * rows])
    matrix = b.view(line, (*batch, rows, rows))
    order = list(range(rank - 2))
    for place, axis in sorted(((axis1, rank - 2), (axis2, rank - 1))):
        order.insert(place, axis)
    return matrix.permute(order)


# --- edges ---

_MODES = {"constant": 0, "reflect": 1, "replicate": 2, "circular": 3}


def padded(b: Builder, x: Tensor, before: list[int], shape: list[int], mode: int = 0, value: Any = 0) -> Tensor:
    """`x` in a larger (or, where numbers are negative, smaller) tensor; see `layout.pad` in native/kernels."""
    ints, floats = scalar_parameters(ScalarType(x.dtype), value)
    return b.custom("layout.pad", (x,), [(x.dtype, tuple(shape))], [mode, *(ints or [0]), *before], floats or [0.0])[0]


def _befores(pad: Sizes, rank: int) -> list[int]:
    before = [0] * rank
    for i in range(len(pad) // 2):
        before[rank - 1 - i] = pad[2 * i]
    return before


@lower("aten.constant_pad_nd.default", empty=True)
def constant_pad_nd(b: Builder, out: Outputs, self: Tensor, pad: Sizes, value: Any = 0) -> Tensor:
    return padded(b, self, _befores(pad, self.rank), list(out.shape), 0, value)


@lower("aten.pad.default")
def pad(
    b: Builder, out: Outputs, self: Tensor, pad: Sizes, mode: str = "constant", value: float | None = None
) -> Tensor:
    return padded(b, self, _befores(pad, self.rank), list(out.shape), _MODES[mode], value or 0)


@lower("aten.reflection_pad1d.default", "aten.reflection_pad2d.default", "aten.reflection_pad3d.default")
def reflection_pad(b: Builder, out: Outputs, self: Tensor, padding: Sizes) -> Tensor:
    return padded(b, self, _befores(padding, self.rank), list(out.shape), _MODES["reflect"])


@lower("aten.replication_pad1d.default", "aten.replication_pad2d.default", "aten.replication_pad3d.default")
def replication_pad(b: Builder, out: Outputs, self: Tensor, padding: Sizes) -> Tensor:
    return padded(b, self, _befores(padding, self.rank), list(out.shape), _MODES["replicate"])


# --- rearrangements of channels ---


@lower("aten.pixel_shuffle.default")
def pixel_shuffle(b: Builder, out: Outputs, self: Tensor, upscale_factor: int) -> Tensor:
    *batch, channels, height, width = self.shape
    r, n = upscale_factor, len(batch)
    split_up = b.view(self, (*batch, channels // (r * r), r, r, height, width))
    return b.view(split_up.permute([*range(n), n, n + 3, n + 1, n + 4, n + 2]), out.shape)


@lower("aten.pixel_unshuffle.default")
def pixel_unshuffle(b: Builder, out: Outputs, self: Tensor, downscale_factor: int) -> Tensor:
    *batch, channels, height, width = self.shape
    r, n = downscale_factor, len(batch)
    split_up = b.view(self, (*batch, channels, height // r, r, width // r, r))
    return b.view(split_up.permute([*range(n), n, n + 2, n + 4, n + 1, n + 3]), out.shape)


@lower("aten.channel_shuffle.default")
def channel_shuffle(b: Builder, out: Outputs, self: Tensor, groups: int) -> Tensor:
    batch, channels, *rest = self.shape
    split_up = b.view(self, (batch, groups, channels // groups, *rest))
    return b.view(split_up.transpose(1, 2), out.shape)
