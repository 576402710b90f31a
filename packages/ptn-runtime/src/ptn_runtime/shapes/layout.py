"""Shape rules of the family `layout`: moving elements without computing with them."""

from __future__ import annotations

from ptn_format.dtypes import ScalarType

from ptn_runtime.shapes import DataDependentError, Number, Tensor, TensorSpec, shape_rule
from ptn_runtime.shapes._broadcast import check_window, element_count, normalize_axes, normalize_axis, require
from ptn_runtime.shapes._promotion import promote
from ptn_runtime.shapes.index import diagonal_shape

Shape = tuple[int, ...]

MAX_PIECES = 1 << 16
"""Results that one call may have where the tensor's size does not limit them."""


# --- the same elements ------------------------------------------------------------------------------------------


@shape_rule(
    "aten.alias.default",
    "aten.detach.default",
    "aten.lift_fresh.default",
)
def alias(self: Tensor) -> TensorSpec:
    return TensorSpec(self.dtype, self.shape)


@shape_rule("aten.clone.default")
def clone(self: Tensor, *, memory_format: str | None = None) -> TensorSpec:
    return TensorSpec(self.dtype, self.shape)


@shape_rule("aten.contiguous.default")
def contiguous(self: Tensor, *, memory_format: str = "torch.contiguous_format") -> TensorSpec:
    return TensorSpec(self.dtype, self.shape)


def viewed_shape(shape: Shape, size: Shape) -> Shape:
    """`size` with its -1 filled in.

    Raises:
        ValueError: the number of elements differs.
    """
    count = element_count(shape)
    if -1 in size:
        known = 1
        for one in size:
            if one != -1:
                known *= one
        if size.count(-1) != 1:
            raise ValueError(f"only one size may be -1, got {list(size)}")
        if known == 0:
            raise ValueError(f"-1 is ambiguous in {list(size)} for a tensor without elements")
        if count % known != 0:
            raise ValueError(f"{list(shape)} has {count} elements and cannot become {list(size)}")
        return tuple(count // known if one == -1 else one for one in size)
    if element_count(size) != count:
        raise ValueError(f"{list(shape)} has {count} elements and cannot become {list(size)}")
    return tuple(size)


@shape_rule("aten.view.default", "aten._unsafe_view.default")
def view(self: Tensor, size: Shape) -> TensorSpec:
    return TensorSpec(self.dtype, viewed_shape(self.shape, size))


@shape_rule("aten.reshape.default")
def reshape(self: Tensor, shape: Shape) -> TensorSpec:
    return TensorSpec(self.dtype, viewed_shape(self.shape, shape))


@shape_rule("aten._reshape_alias.default")
def reshape_alias(self: Tensor, size: Shape, stride: Shape) -> TensorSpec:
    return TensorSpec(self.dtype, viewed_shape(self.shape, size))


@shape_rule("aten.view_as.default")
def view_as(self: Tensor, other: Tensor) -> TensorSpec:
    return TensorSpec(self.dtype, viewed_shape(self.shape, other.shape))


@shape_rule("aten.view.dtype")
def view_dtype(self: Tensor, dtype: ScalarType) -> TensorSpec:
    old, new = self.dtype.itemsize, dtype.itemsize
    if old == new:
        return TensorSpec(dtype, self.shape)
    if not self.shape:
        raise ValueError(f"a 0-d tensor cannot be viewed as {dtype.torch_name}: the element sizes differ")
    if self.shape[-1] * old % new != 0:
        raise ValueError(
            f"the last axis of {list(self.shape)} holds {self.shape[-1] * old} bytes, no multiple of {new}"
        )
    return TensorSpec(dtype, (*self.shape[:-1], self.shape[-1] * old // new))


@shape_rule("aten.flatten.using_ints")
def flatten(self: Tensor, start_dim: int = 0, end_dim: int = -1) -> TensorSpec:
    rank = len(self.shape)
    start, end = normalize_axis(start_dim, rank), normalize_axis(end_dim, rank)
    if start > end:
        raise ValueError(f"start_dim {start_dim} comes after end_dim {end_dim}")
    joined = element_count(self.shape[start : end + 1])
    return TensorSpec(self.dtype, (*self.shape[:start], joined, *self.shape[end + 1 :]))


@shape_rule("aten.unflatten.int")
def unflatten(self: Tensor, dim: int, sizes: Shape) -> TensorSpec:
    axis = normalize_axis(dim, len(self.shape))
    parts = viewed_shape((self.shape[axis],), sizes)
    return TensorSpec(self.dtype, (*self.shape[:axis], *parts, *self.shape[axis + 1 :]))


@shape_rule("aten.squeeze.default")
def squeeze(self: Tensor) -> TensorSpec:
    return TensorSpec(self.dtype, tuple(size for size in self.shape if size != 1))


@shape_rule("aten.squeeze.dim", "aten.squeeze.dims")
def squeeze_dims(self: Tensor, dim: int | Shape) -> TensorSpec:
    axes = normalize_axes(dim, len(self.shape), empty_is_all=False)
    kept = tuple(size for axis, size in enumerate(self.shape) if size != 1 or axis not in axes)
    return TensorSpec(self.dtype, kept)


@shape_rule("aten.unsqueeze.default")
def unsqueeze(self: Tensor, dim: int) -> TensorSpec:
    axis = normalize_axis(dim, len(self.shape) + 1)
    return TensorSpec(self.dtype, (*self.shape[:axis], 1, *self.shape[axis:]))


# --- order of axes ----------------------------------------------------------------------------------------------


@shape_rule("aten.permute.default")
def permute(self: Tensor, dims: Shape) -> TensorSpec:
    axes = normalize_axes(dims, len(self.shape), empty_is_all=False)
    if len(axes) != len(self.shape):
        raise ValueError(f"{list(dims)} does not name every axis of {list(self.shape)}")
    return TensorSpec(self.dtype, tuple(self.shape[axis] for axis in axes))


@shape_rule("aten.transpose.int")
def transpose(self: Tensor, dim0: int, dim1: int) -> TensorSpec:
    shape = list(self.shape)
    if not shape:
        return TensorSpec(self.dtype, ())
    a, b = normalize_axis(dim0, len(shape)), normalize_axis(dim1, len(shape))
    shape[a], shape[b] = shape[b], shape[a]
    return TensorSpec(self.dtype, tuple(shape))


@shape_rule("aten.t.default")
def t(self: Tensor) -> TensorSpec:
    if len(self.shape) > 2:
        raise ValueError(f"t() takes at most two axes, got {list(self.shape)}")
    return TensorSpec(self.dtype, self.shape[::-1])


def moved_axes(rank: int, source: Shape, destination: Shape) -> Shape:
    """The permutation that moves each axis of `source` to its place in `destination`."""
    sources = normalize_axes(source, rank, empty_is_all=False)
    places = normalize_axes(destination, rank, empty_is_all=False)
    if len(sources) != len(places):
        raise ValueError(f"{len(sources)} axes cannot go to {len(places)} places")
    target = dict(zip(places, sources, strict=True))
    rest = iter([axis for axis in range(rank) if axis not in sources])
    return tuple(target[place] if place in target else next(rest) for place in range(rank))


@shape_rule("aten.movedim.intlist")
def movedim(self: Tensor, source: Shape, destination: Shape) -> TensorSpec:
    order = moved_axes(len(self.shape), source, destination)
    return TensorSpec(self.dtype, tuple(self.shape[axis] for axis in order))


@shape_rule("aten.movedim.int")
def movedim_int(self: Tensor, source: int, destination: int) -> TensorSpec:
    return movedim(self, (source,), (destination,))


@shape_rule("aten.flip.default")
def flip(self: Tensor, dims: Shape) -> TensorSpec:
    normalize_axes(dims, len(self.shape), empty_is_all=False)
    return TensorSpec(self.dtype, self.shape)


@shape_rule("aten.roll.default")
def roll(self: Tensor, shifts: Shape, dims: Shape = ()) -> TensorSpec:
    if dims:
        if len(shifts) != len(dims):
            raise ValueError(f"{len(shifts)} shifts for {len(dims)} axes")
        for axis in dims:
            normalize_axis(axis, len(self.shape))
    else:
        if len(shifts) != 1:
            raise ValueError(f"without axes there is one shift, got {len(shifts)}")
    return TensorSpec(self.dtype, self.shape)


@shape_rule("aten.rot90.default")
def rot90(self: Tensor, k: int = 1, dims: Shape = (0, 1)) -> TensorSpec:
    if len(dims) != 2:
        raise ValueError(f"rotation takes two axes, got {list(dims)}")
    return TensorSpec(self.dtype, transpose(self, *dims).shape if k % 2 else self.shape)


# --- parts ------------------------------------------------------------------------------------------------------


@shape_rule("aten.select.int")
def select(self: Tensor, dim: int, index: int) -> TensorSpec:
    require(bool(self.shape), "a 0-d tensor has no axis to select from")
    axis = normalize_axis(dim, len(self.shape))
    size = self.shape[axis]
    if not (-size <= index < size):
        raise ValueError(f"index {index} is out of range for axis {axis} of {size} elements")
    return TensorSpec(self.dtype, (*self.shape[:axis], *self.shape[axis + 1 :]))


@shape_rule("aten.slice.Tensor")
def slice_(self: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> TensorSpec:
    require(bool(self.shape), "a 0-d tensor cannot be sliced")
    if step <= 0:
        raise ValueError(f"step must be positive, got {step}")
    axis = normalize_axis(dim, len(self.shape))
    count = len(range(*slice(start, end, step).indices(self.shape[axis])))
    return TensorSpec(self.dtype, (*self.shape[:axis], count, *self.shape[axis + 1 :]))


@shape_rule("aten.narrow.default")
def narrow(self: Tensor, dim: int, start: int, length: int) -> TensorSpec:
    axis = normalize_axis(dim, len(self.shape))
    size = self.shape[axis]
    first = start + size if start < 0 else start
    if not (first >= 0 and length >= 0 and first + length <= size):
        raise ValueError(f"start {start} and length {length} exceed axis {axis} of {size} elements")
    return TensorSpec(self.dtype, (*self.shape[:axis], length, *self.shape[axis + 1 :]))


def _pieces(self: Tensor, axis: int, sizes: list[int]) -> tuple[TensorSpec, ...]:
    head, tail = self.shape[:axis], self.shape[axis + 1 :]
    return tuple(TensorSpec(self.dtype, (*head, size, *tail)) for size in sizes)


def _equal_pieces(size: int, piece: int) -> list[int]:
    if piece == 0:
        require(size == 0, "pieces of 0 elements never cover an axis")
        return [0]
    return [min(piece, size - start) for start in range(0, size, piece)] or [0]


@shape_rule("aten.split.Tensor", "aten.unsafe_split.Tensor")
def split(self: Tensor, split_size: int, dim: int = 0) -> tuple[TensorSpec, ...]:
    if split_size < 0:
        raise ValueError(f"split_size must not be negative, got {split_size}")
    axis = normalize_axis(dim, len(self.shape))
    return _pieces(self, axis, _equal_pieces(self.shape[axis], split_size))


def _check_pieces(count: int) -> None:
    """Refuses counts that only a damaged file has, before their list fills the memory."""
    if count > MAX_PIECES:
        raise ValueError(f"{count} pieces of a tensor are too many; at most {MAX_PIECES}")


@shape_rule("aten.chunk.default")
def chunk(self: Tensor, chunks: int, dim: int = 0) -> tuple[TensorSpec, ...]:
    if chunks <= 0:
        raise ValueError(f"chunks must be positive, got {chunks}")
    axis = normalize_axis(dim, len(self.shape))
    size = self.shape[axis]
    if size == 0:
        _check_pieces(chunks)
        return _pieces(self, axis, [0] * chunks)
    return _pieces(self, axis, _equal_pieces(size, -(-size // chunks)))


@shape_rule("aten.tensor_split.sections")
def tensor_split(self: Tensor, sections: int, dim: int = 0) -> tuple[TensorSpec, ...]:
    if sections <= 0:
        raise ValueError(f"sections must be positive, got {sections}")
    _check_pieces(sections)
    axis = normalize_axis(dim, len(self.shape))
    small, larger = divmod(self.shape[axis], sections)
    return _pieces(self, axis, [small + 1 if i < larger else small for i in range(sections)])


@shape_rule("aten.split_with_sizes.default", "aten.unsafe_split_with_sizes.default")
def split_with_sizes(self: Tensor, split_sizes: Shape, dim: int = 0) -> tuple[TensorSpec, ...]:
    axis = normalize_axis(dim, len(self.shape))
    if not (sum(split_sizes) == self.shape[axis] and min(split_sizes, default=0) >= 0):
        raise ValueError(
            f"pieces of {list(split_sizes)} do not add up to the {self.shape[axis]} elements of axis {axis}"
        )
    return _pieces(self, axis, list(split_sizes))


@shape_rule("aten.unbind.int")
def unbind(self: Tensor, dim: int = 0) -> tuple[TensorSpec, ...]:
    axis = normalize_axis(dim, len(self.shape))
    return (TensorSpec(self.dtype, (*self.shape[:axis], *self.shape[axis + 1 :])),) * self.shape[axis]


@shape_rule("aten.diagonal.default")
def diagonal(self: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> TensorSpec:
    return TensorSpec(self.dtype, diagonal_shape(self.shape, offset, dim1, dim2))


@shape_rule("aten.as_strided.default")
def as_strided(self: Tensor, size: Shape, stride: Shape, storage_offset: int | None = None) -> TensorSpec:
    check_window(self.shape, size, stride, storage_offset or 0)
    return TensorSpec(self.dtype, size)


@shape_rule("aten.resize.default")
def resize(self: Tensor, size: Shape, *, memory_format: str | None = None) -> TensorSpec:
    """The elements in order; what `size` has more of is not initialised."""
    if min(size, default=0) < 0:
        raise ValueError(f"sizes must not be negative, got {list(size)}")
    return TensorSpec(self.dtype, size)


@shape_rule("aten.unfold.default")
def unfold(self: Tensor, dimension: int, size: int, step: int) -> TensorSpec:
    axis = normalize_axis(dimension, len(self.shape))
    length = self.shape[axis] if self.shape else 1
    if not (0 <= size <= length):
        raise ValueError(f"windows of {size} do not fit on an axis of {length} elements")
    if step <= 0:
        raise ValueError(f"step must be positive, got {step}")
    count = (length - size) // step + 1
    middle = (count,) if self.shape else ()
    return TensorSpec(self.dtype, (*self.shape[:axis], *middle, *self.shape[axis + 1 :], size))


@shape_rule("aten.tril.default", "aten.triu.default")
def tril(self: Tensor, diagonal: int = 0) -> TensorSpec:
    if len(self.shape) < 2:
        raise ValueError(f"expected matrices, got {list(self.shape)}")
    return TensorSpec(self.dtype, self.shape)


# --- more elements ----------------------------------------------------------------------------------------------


def expanded_shape(shape: Shape, size: Shape) -> Shape:
    """`size` with -1 replaced by the existing size; only axes of size 1 grow.

    Raises:
        ValueError: the shapes do not fit.
    """
    offset = len(size) - len(shape)
    if offset < 0:
        raise ValueError(f"{list(shape)} has more axes than {list(size)}")
    result = list(size)
    for axis, wanted in enumerate(size):
        if wanted == -1:
            if axis < offset:
                raise ValueError(f"-1 stands for a new axis in {list(size)}")
            result[axis] = shape[axis - offset]
        elif axis >= offset:
            have = shape[axis - offset]
            if have not in (1, wanted):
                raise ValueError(f"{list(shape)} cannot be expanded to {list(size)} on axis {axis}")
    return tuple(result)


@shape_rule("aten.expand.default")
def expand(self: Tensor, size: Shape, *, implicit: bool = False) -> TensorSpec:
    return TensorSpec(self.dtype, expanded_shape(self.shape, size))


@shape_rule("aten.broadcast_to.default")
def broadcast_to(self: Tensor, size: Shape) -> TensorSpec:
    return TensorSpec(self.dtype, expanded_shape(self.shape, size))


@shape_rule("aten.expand_as.default")
def expand_as(self: Tensor, other: Tensor) -> TensorSpec:
    return TensorSpec(self.dtype, expanded_shape(self.shape, other.shape))


@shape_rule("aten.repeat.default")
def repeat(self: Tensor, repeats: Shape) -> TensorSpec:
    extra = len(repeats) - len(self.shape)
    if extra < 0:
        raise ValueError(f"{len(repeats)} repeats for {len(self.shape)} axes")
    if min(repeats, default=0) < 0:
        raise ValueError(f"repeats must not be negative, got {list(repeats)}")
    padded = (*(1,) * extra, *self.shape)
    return TensorSpec(self.dtype, tuple(a * b for a, b in zip(padded, repeats, strict=True)))


@shape_rule("aten.tile.default")
def tile(self: Tensor, dims: Shape) -> TensorSpec:
    return repeat(self, (*(1,) * (len(self.shape) - len(dims)), *dims))


@shape_rule("aten.repeat_interleave.self_int")
def repeat_interleave(
    self: Tensor, repeats: int, dim: int | None = None, *, output_size: int | None = None
) -> TensorSpec:
    if dim is None:
        return TensorSpec(self.dtype, (element_count(self.shape) * repeats,))
    axis = normalize_axis(dim, len(self.shape))
    return TensorSpec(self.dtype, (*self.shape[:axis], self.shape[axis] * repeats, *self.shape[axis + 1 :]))


@shape_rule("aten.repeat_interleave.Tensor")
def repeat_interleave_indices(repeats: Tensor, *, output_size: int | None = None) -> TensorSpec:
    if output_size is None:
        raise DataDependentError("the size of the result is the sum of `repeats`")
    return TensorSpec(repeats.dtype, (output_size,))


@shape_rule("aten.cat.default")
def cat(tensors: tuple[Tensor, ...], dim: int = 0) -> TensorSpec:
    require(bool(tensors), "there is nothing to concatenate")
    dtype = tensors[0].dtype
    for tensor in tensors[1:]:
        dtype = promote(dtype, tensor.dtype)
    # PyTorch leaves out tensors of shape [0], whatever the rank of the others.
    shapes = [tensor.shape for tensor in tensors if tensor.shape != (0,)]
    if not shapes:
        return TensorSpec(dtype, (0,))
    first = shapes[0]
    require(bool(first), "0-d tensors cannot be concatenated; stack them")
    axis = normalize_axis(dim, len(first))
    total = 0
    for shape in shapes:
        fits = len(shape) == len(first) and shape[:axis] == first[:axis] and shape[axis + 1 :] == first[axis + 1 :]
        if not fits:
            raise ValueError(f"{list(first)} and {list(shape)} differ on an axis other than {axis}")
        total += shape[axis]
    return TensorSpec(dtype, (*first[:axis], total, *first[axis + 1 :]))


@shape_rule("aten.stack.default")
def stack(tensors: tuple[Tensor, ...], dim: int = 0) -> TensorSpec:
    require(bool(tensors), "there is nothing to stack")
    shape = tensors[0].shape
    dtype = tensors[0].dtype
    for tensor in tensors[1:]:
        if tensor.shape != shape:
            raise ValueError(f"tensors of different shapes cannot be stacked: {list(shape)}, {list(tensor.shape)}")
        dtype = promote(dtype, tensor.dtype)
    axis = normalize_axis(dim, len(shape) + 1)
    return TensorSpec(dtype, (*shape[:axis], len(tensors), *shape[axis:]))


@shape_rule("aten.meshgrid.default")
def meshgrid(tensors: tuple[Tensor, ...]) -> tuple[TensorSpec, ...]:
    shape = tuple(element_count(tensor.shape) for tensor in tensors)
    return tuple(TensorSpec(tensor.dtype, shape) for tensor in tensors)


@shape_rule("aten.diag_embed.default")
def diag_embed(self: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> TensorSpec:
    rank = len(self.shape) + 1
    first, second = normalize_axis(dim1, rank), normalize_axis(dim2, rank)
    if first == second:
        raise ValueError(f"a diagonal needs two different axes, got {dim1} twice")
    size = self.shape[-1] + abs(offset)
    rest = iter(self.shape[:-1])
    return TensorSpec(self.dtype, tuple(size if axis in (first, second) else next(rest) for axis in range(rank)))


# --- padding ----------------------------------------------------------------------------------------------------


def padded_shape(shape: Shape, pad: Shape) -> Shape:
    """The shape after padding: pairs (before, after) from the last axis on; negative ones crop.

    Raises:
        ValueError: the pairs do not fit.
    """
    if len(pad) % 2 != 0:
        raise ValueError(f"padding comes in pairs, got {list(pad)}")
    if len(pad) // 2 > len(shape):
        raise ValueError(f"{list(pad)} pads more axes than {list(shape)} has")
    sizes = list(shape)
    for pair in range(len(pad) // 2):
        axis = len(shape) - 1 - pair
        sizes[axis] += pad[2 * pair] + pad[2 * pair + 1]
        if sizes[axis] < 0:
            raise ValueError(f"padding {list(pad)} leaves {sizes[axis]} elements of axis {axis} of {list(shape)}")
    return tuple(sizes)


@shape_rule("aten.constant_pad_nd.default")
def constant_pad_nd(self: Tensor, pad: Shape, value: Number = 0) -> TensorSpec:
    return TensorSpec(self.dtype, padded_shape(self.shape, pad))


@shape_rule("aten.pad.default")
def pad(self: Tensor, pad: Shape, mode: str = "constant", value: float | None = None) -> TensorSpec:
    if mode not in ("constant", "reflect", "replicate", "circular"):
        raise ValueError(f"mode must be 'constant', 'reflect', 'replicate' or 'circular', got {mode!r}")
    if mode == "reflect":
        _require_reflectable(self.shape, pad)
    return TensorSpec(self.dtype, padded_shape(self.shape, pad))


def _require_reflectable(shape: Shape, padding: Shape) -> None:
    for pair in range(len(padding) // 2):
        size = shape[len(shape) - 1 - pair]
        if max(padding[2 * pair : 2 * pair + 2]) >= size:
            raise ValueError(f"padding {list(padding)} reflects more than the {size} elements of an axis")


@shape_rule("aten.reflection_pad1d.default", "aten.reflection_pad2d.default", "aten.reflection_pad3d.default")
def reflection_pad(self: Tensor, padding: Shape) -> TensorSpec:
    _require_reflectable(self.shape, padding)
    return TensorSpec(self.dtype, padded_shape(self.shape, padding))


@shape_rule("aten.replication_pad1d.default", "aten.replication_pad2d.default", "aten.replication_pad3d.default")
def replication_pad(self: Tensor, padding: Shape) -> TensorSpec:
    return TensorSpec(self.dtype, padded_shape(self.shape, padding))


# --- channels and pixels ----------------------------------------------------------------------------------------


@shape_rule("aten.pixel_shuffle.default")
def pixel_shuffle(self: Tensor, upscale_factor: int) -> TensorSpec:
    *batch, channels, height, width = self.shape
    square = upscale_factor**2
    if channels % square != 0:
        raise ValueError(f"{channels} channels do not divide by {square}")
    return TensorSpec(self.dtype, (*batch, channels // square, height * upscale_factor, width * upscale_factor))


@shape_rule("aten.pixel_unshuffle.default")
def pixel_unshuffle(self: Tensor, downscale_factor: int) -> TensorSpec:
    *batch, channels, height, width = self.shape
    factor = downscale_factor
    if not (height % factor == 0 and width % factor == 0):
        raise ValueError(f"{height} x {width} does not divide by {factor}")
    return TensorSpec(self.dtype, (*batch, channels * factor**2, height // factor, width // factor))


@shape_rule("aten.channel_shuffle.default")
def channel_shuffle(self: Tensor, groups: int) -> TensorSpec:
    if len(self.shape) <= 2:
        raise ValueError(f"expected [N, C, ...], got {list(self.shape)}")
    if self.shape[1] % groups != 0:
        raise ValueError(f"{self.shape[1]} channels do not divide into {groups} groups")
    return TensorSpec(self.dtype, self.shape)
