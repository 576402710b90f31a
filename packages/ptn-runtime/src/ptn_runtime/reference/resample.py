"""Numpy kernels of the family `resample`: each axis has source places and weights of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from ptn_format.dtypes import ScalarType

from ptn_runtime.reference._numerics import at, finish, widen
from ptn_runtime.reference.registry import Array, Outputs, kernel

Sizes = tuple[int, ...]
Scales = tuple[float, ...]


# --- nearest ----------------------------------------------------------------------------------------------------


def _step(size: int, count: int, scale: float | None) -> np.float32:
    """Source elements per result element: from the user's scale where one was given."""
    if scale is not None and scale > 0:
        return np.float32(1.0 / scale)
    return np.float32(np.float32(size) / np.float32(count)) if count else np.float32(0)


def _nearest(out: Outputs, x: Array, scales: Sequence[float | None], exact: bool) -> Array:
    for axis, scale in enumerate(scales, 2):
        size, count = x.shape[axis], out.shape[axis]
        at = np.arange(count, dtype=np.float32)
        step = _step(size, count, scale)
        places = np.floor((at + np.float32(0.5)) * step if exact else at * step)
        x = x.take(np.minimum(places.astype(np.int64), size - 1), axis=axis)
    return x


def _given(scales: Scales | None, rank: int) -> list[float | None]:
    return list(scales) if scales is not None else [None] * rank


def _register_nearest(rank: int, exact: bool) -> None:
    name = f"aten._upsample_nearest_exact{rank}d" if exact else f"aten.upsample_nearest{rank}d"

    @kernel(f"{name}.vec")
    def upsample_nearest_vec(
        out: Outputs, input: Array, output_size: Sizes | None, scale_factors: Scales | None
    ) -> Array:
        return _nearest(out, input, _given(scale_factors, rank), exact)

    @kernel(f"{name}.default")
    def upsample_nearest(out: Outputs, self: Array, output_size: Sizes, **scales: float | None) -> Array:
        return _nearest(out, self, _named(scales, rank), exact)


def _named(scales: dict[str, float | None], rank: int) -> list[float | None]:
    """The scales of a plain operator, which names them by axis, first axis first."""
    names = ("scales",) if rank == 1 else ("scales_d", "scales_h", "scales_w")[-rank:]
    return [scales.get(name) for name in names]


for _rank in (1, 2, 3):
    _register_nearest(_rank, exact=False)
    _register_nearest(_rank, exact=True)


# --- linear and cubic -------------------------------------------------------------------------------------------


def _source_places(size: int, count: int, align_corners: bool, scale: float | None, dtype: Any) -> Array:
    """Where each result element lies on the source axis; may be negative or beyond the end."""
    at = np.arange(count, dtype=dtype)
    if align_corners:
        return np.asarray(at * dtype.type((size - 1) / (count - 1) if count > 1 else 0))
    step = dtype.type(1.0 / scale) if scale is not None and scale > 0 else dtype.type(size) / dtype.type(count)
    return np.asarray(step * (at + dtype.type(0.5)) - dtype.type(0.5))


def _mix(x: Array, axis: int, places: Sequence[Array], weights: Sequence[Array]) -> Array:
    """The weighted sum of elements along one axis."""
    shape = [1] * x.ndim
    shape[axis] = -1
    total: Array | None = None
    for place, weight in zip(places, weights, strict=True):
        term = x.take(place, axis=axis) * weight.reshape(shape)
        total = term if total is None else total + term
    assert total is not None
    return total


def _linear(x: Array, axis: int, count: int, align_corners: bool, scale: float | None) -> Array:
    size = x.shape[axis]
    if size == count:  # whatever the scale
        return x
    where = np.maximum(_source_places(size, count, align_corners, scale, x.dtype), 0)
    low = np.minimum(where.astype(np.int64), size - 1)
    weight = np.minimum(np.maximum(where - low.astype(x.dtype), 0), 1).astype(x.dtype)
    return _mix(x, axis, (low, np.minimum(low + 1, size - 1)), (1 - weight, weight))


def cubic_weights(t: Array) -> tuple[Array, Array, Array, Array]:
    """Weights of the four neighbours for the fraction `t`: Keys' kernel with a = -0.75, as PyTorch uses."""
    a = t.dtype.type(-0.75)

    def near(d: Array) -> Array:
        return np.asarray(((a + 2) * d - (a + 3)) * d * d + 1)

    def far(d: Array) -> Array:
        return np.asarray(((a * d - 5 * a) * d + 8 * a) * d - 4 * a)

    return far(t + 1), near(t), near(1 - t), far(2 - t)


def _cubic(x: Array, axis: int, count: int, align_corners: bool, scale: float | None) -> Array:
    size = x.shape[axis]
    if size == count and (align_corners or scale is None or scale == 1):
        return x
    where = _source_places(size, count, align_corners, scale, x.dtype)
    low = np.floor(where)
    base = low.astype(np.int64)
    places = [np.clip(base + shift, 0, size - 1) for shift in (-1, 0, 1, 2)]
    return _mix(x, axis, places, cubic_weights(where - low))


def _antialiased_weights(
    size: int, count: int, align_corners: bool, scale: float | None, support: int, filter_: Callable[[Array], Array]
) -> Array:
    """A matrix [count, size] of weights: the filter widens where the image shrinks, as in Pillow."""
    step = _exact_step(size, count, align_corners, scale)
    reach = support * max(step, 1.0)
    inverse = 1.0 / step if step >= 1.0 else 1.0
    weights = np.zeros((count, size), np.float64)
    for row in range(count):
        centre = step * (row + 0.5)
        first = max(int(centre - reach + 0.5), 0)
        last = min(int(centre + reach + 0.5), size)
        values = filter_((np.arange(first, last) - centre + 0.5) * inverse)
        total = values.sum()
        weights[row, first:last] = values / total if total else values
    return weights


def _neighbour_weights(
    size: int, count: int, align_corners: bool, scale: float | None, support: int, filter_: Callable[[Array], Array]
) -> Array:
    """A matrix [count, size] of weights of the `2 * support` nearest elements; beyond the ends stand the last ones."""
    step = _exact_step(size, count, align_corners, scale)
    at = np.arange(count, dtype=np.float64)
    where = at * step if align_corners else step * (at + 0.5) - 0.5
    if support == 1:
        where = np.maximum(where, 0)
    low = np.minimum(np.floor(where), size - 1)
    fraction = np.clip(where - low, 0, 1)
    weights = np.zeros((count, size), np.float64)
    for shift in range(1 - support, support + 1):
        places = np.clip(low.astype(np.int64) + shift, 0, size - 1)
        np.add.at(weights, (np.arange(count), places), filter_(shift - fraction))
    return weights


def _exact_step(size: int, count: int, align_corners: bool, scale: float | None) -> float:
    """Source elements per result element in float64."""
    if align_corners:
        return (size - 1) / (count - 1) if count > 1 else 0.0
    return 1.0 / scale if scale is not None and scale > 0 else size / count


def _antialiased(support: int, filter_: Callable[[Array], Array]) -> Callable[..., Array]:
    """An axis function over `_antialiased_weights`."""

    def resize(x: Array, axis: int, count: int, align_corners: bool, scale: float | None) -> Array:
        if x.shape[axis] == count:
            return x
        weights = _antialiased_weights(x.shape[axis], count, align_corners, scale, support, filter_)
        return np.moveaxis(np.tensordot(weights.astype(x.dtype), x, axes=(1, axis)), 0, axis)

    return resize


def _fixed_point(weigh: Callable[..., Array], support: int, filter_: Callable[[Array], Array]) -> Callable[..., Array]:
    """An axis function for uint8: weights of at most 15 bits, each axis rounded to uint8, as PyTorch and Pillow do.

    Sums are at most 2**31, so float64 holds them exactly.
    """

    def resize(x: Array, axis: int, count: int, align_corners: bool, scale: float | None) -> Array:
        size = x.shape[axis]
        if size == count:
            return x
        weights = weigh(size, count, align_corners, scale, support, filter_)
        bits, largest = 0, weights.max()
        while bits < 22 and int(0.5 + largest * 2.0 ** (bits + 1)) < 2**15:
            bits += 1
        whole = np.trunc(weights * 2.0**bits + np.where(weights < 0, -0.5, 0.5))
        sums = np.tensordot(whole, x.astype(np.float64), axes=(1, axis))
        rounded = np.floor((sums + 2.0 ** (bits - 1)) / 2.0**bits)
        return np.moveaxis(np.clip(rounded, 0, 255).astype(np.uint8), 0, axis)

    return resize


def _triangle(d: Array) -> Array:
    return np.asarray(np.maximum(1 - np.abs(d), 0))


def _keys(a: float) -> Callable[[Array], Array]:
    """Keys' kernel over two elements to either side."""

    def weight(d: Array) -> Array:
        d = np.abs(d)
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = (((d - 5) * d + 8) * d - 4) * a
        return np.where(d < 1, near, np.where(d < 2, far, 0))

    return weight


def _register_smooth(
    name: str, rank: int, resize: Callable[..., Array], resize_bytes: Callable[..., Array] | None = None
) -> None:
    def run(out: Outputs, x: Array, align_corners: bool, scales: Sequence[float | None]) -> Array:
        along = resize
        if out.dtype is ScalarType.BYTE and resize_bytes is not None:
            along = resize_bytes
        else:
            x = widen(x)
        for axis in range(x.ndim - 1, 1, -1):
            x = along(x, axis, out.shape[axis], align_corners, scales[axis - 2])
        return finish(np.ascontiguousarray(x), out.dtype)

    @kernel(f"aten.{name}.vec")
    def upsample_vec(
        out: Outputs, input: Array, output_size: Sizes | None, align_corners: bool, scale_factors: Scales | None
    ) -> Array:
        return run(out, input, align_corners, _given(scale_factors, rank))

    @kernel(f"aten.{name}.default")
    def upsample(out: Outputs, self: Array, output_size: Sizes, align_corners: bool, **scales: float | None) -> Array:
        return run(out, self, align_corners, _named(scales, rank))


# PyTorch takes a = -0.75 as other libraries do, Pillow's -0.5 where it antialiases as Pillow does.
_SMOOTH, _PILLOW = _keys(-0.75), _keys(-0.5)

_register_smooth("upsample_linear1d", 1, _linear)
_register_smooth("upsample_bilinear2d", 2, _linear, _fixed_point(_neighbour_weights, 1, _triangle))
_register_smooth("upsample_trilinear3d", 3, _linear)
_register_smooth("upsample_bicubic2d", 2, _cubic, _fixed_point(_neighbour_weights, 2, _SMOOTH))
_register_smooth(
    "_upsample_bilinear2d_aa", 2, _antialiased(1, _triangle), _fixed_point(_antialiased_weights, 1, _triangle)
)
_register_smooth("_upsample_bicubic2d_aa", 2, _antialiased(2, _PILLOW), _fixed_point(_antialiased_weights, 2, _PILLOW))


# --- sampling at given places -----------------------------------------------------------------------------------


def _unnormalized(at: Array, size: int, align_corners: bool) -> Array:
    """From -1..1 to elements."""
    if align_corners:
        return (at + 1) / 2 * (size - 1)
    return ((at + 1) * size - 1) / 2


def _reflected(at: Array, low: float, high: float) -> Array:
    """Mirrors places at `low` and `high` until they lie between."""
    span = high - low
    if span <= 0:
        return np.zeros_like(at)
    distance = np.abs(at - low)
    extra = np.fmod(distance, span)
    flips = np.floor(distance / span)
    return np.where(flips % 2 == 0, extra + low, span - extra + low)


def _folded(at: Array, low: float, high: float) -> Array:
    """What `_reflected` does, in the steps of PyTorch's vector code: places far away come out otherwise."""
    span = high - low
    if span <= 0:
        return np.zeros_like(at)
    twice = at.dtype.type(2 * span)
    distance = np.abs(at - at.dtype.type(low))
    extra = distance - np.trunc(distance / twice) * twice
    return np.asarray(np.minimum(extra, twice - extra) + at.dtype.type(low))


def _placed(at: Array, size: int, padding_mode: int, align_corners: bool, rank: int) -> Array:
    """Applies border (1) or reflection (2) padding to places.

    PyTorch has vector code for two axes and scalar code for three, which put NaN and infinities to other places.
    """
    if padding_mode == 2:
        low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
        at = _folded(at, low, high) if rank == 2 else _reflected(at, low, high)
    if padding_mode and rank == 2:
        at = np.minimum(np.fmax(at, 0), size - 1)  # NaN is the first
    elif padding_mode:
        at = np.fmin(np.maximum(at, 0), size - 1)  # NaN is the last
    if rank == 3:  # what no int can hold lies outside
        at = np.where(np.abs(at) < 2**31 - 1, at, at.dtype.type(-100))
    return at


def _sampled(input: Array, places: Sequence[Array]) -> Array:
    """Elements at integer places [N, *grid] as [N, C, *grid]; zero outside."""
    inside = np.ones(places[0].shape, np.bool_)
    safe = []
    for place, size in zip(places, input.shape[2:], strict=True):
        inside &= (place >= 0) & (place < size)
        safe.append(np.where((place >= 0) & (place < size), place, 0).astype(np.int64))
    batch = np.arange(input.shape[0]).reshape(-1, *(1,) * (places[0].ndim - 1))
    values = np.moveaxis(input[at(batch, slice(None), *safe)], -1, 1)
    return np.where(inside[:, None], values, np.zeros((), input.dtype))


def _bicubic_sample(x: Array, at: Sequence[Array], padding_mode: int, align_corners: bool) -> Array:
    """Two axes; padding applies to each of the sixteen neighbours."""
    lows = [np.floor(place) for place in at]
    weights = [cubic_weights(place - low) for place, low in zip(at, lows, strict=True)]
    total: Any = 0
    for i in range(4):
        row = _placed(lows[0] + (i - 1), x.shape[2], padding_mode, align_corners, 2)
        for j in range(4):
            column = _placed(lows[1] + (j - 1), x.shape[3], padding_mode, align_corners, 2)
            total = total + _sampled(x, (row, column)) * (weights[0][i] * weights[1][j])[:, None]
    return np.asarray(total)


@kernel("aten.grid_sampler_2d.default", "aten.grid_sampler_3d.default", "aten.grid_sampler.default")
def grid_sampler(
    out: Outputs, input: Array, grid: Array, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Array:
    x, places = widen(input), widen(grid)
    sizes = x.shape[2:]
    # The grid names the innermost axis first.
    at = [_unnormalized(places[..., -1 - axis], size, align_corners) for axis, size in enumerate(sizes)]
    if interpolation_mode == 2:
        return finish(_bicubic_sample(x, at, padding_mode, align_corners), out.dtype)
    at = [_placed(place, size, padding_mode, align_corners, len(sizes)) for place, size in zip(at, sizes, strict=True)]
    if interpolation_mode == 1:
        return finish(_sampled(x, [np.rint(place) for place in at]), out.dtype)
    lows = [np.floor(place) for place in at]
    total: Any = 0
    for corner in range(2 ** len(sizes)):
        shifts = [corner >> axis & 1 for axis in range(len(sizes))]
        weight = math.prod(
            place - low if shift else low + 1 - place for place, low, shift in zip(at, lows, shifts, strict=True)
        )
        values = _sampled(x, [low + shift for low, shift in zip(lows, shifts, strict=True)])
        total = total + values * np.asarray(weight)[:, None]
    return finish(np.asarray(total), out.dtype)


@kernel("aten.affine_grid_generator.default")
def affine_grid_generator(out: Outputs, theta: Array, size: Sizes, align_corners: bool) -> Array:
    matrix = widen(theta)
    axes = []
    for count in size[2:]:
        line = np.linspace(-1, 1, count, dtype=matrix.dtype) if count > 1 else np.zeros(count, matrix.dtype)
        axes.append(line if align_corners else line * matrix.dtype.type((count - 1) / count))
    mesh = np.meshgrid(*axes, indexing="ij")
    base = np.stack([*mesh[::-1], np.ones_like(mesh[0])], axis=-1)
    flat = base.reshape(1, -1, base.shape[-1])
    return finish(np.matmul(flat, matrix.swapaxes(1, 2)), out.dtype).reshape(out.shape)
