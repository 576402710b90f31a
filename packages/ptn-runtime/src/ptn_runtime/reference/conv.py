"""Numpy kernels of the family `conv`: patches by strided slices, then one matrix product per group."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from ptn_runtime.reference._numerics import at, finish, widen
from ptn_runtime.reference.registry import Array, Outputs, kernel
from ptn_runtime.shapes._broadcast import per_axis
from ptn_runtime.shapes.conv import patch_grid

Sizes = tuple[int, ...]


def taps(
    kernel_size: Sequence[int], windows: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
    """For each place of a kernel the slice of the padded axes that all windows see there."""
    for place in itertools.product(*(range(size) for size in kernel_size)):
        yield (
            place,
            tuple(
                slice(at * d, at * d + (count - 1) * s + 1, s)
                for at, d, count, s in zip(place, dilation, windows, stride, strict=True)
            ),
        )


def padded(x: Array, padding: Sequence[int], value: float = 0) -> Array:
    """`x` with `padding` elements on both sides of its last axes; negative padding crops."""
    if not any(padding):
        return x
    lead = x.ndim - len(padding)
    grown = np.full(
        (*x.shape[:lead], *(n + 2 * p for n, p in zip(x.shape[lead:], padding, strict=True))), value, x.dtype
    )
    inner = tuple(slice(max(p, 0), p + n if p > 0 else None) for n, p in zip(x.shape[lead:], padding, strict=True))
    source = tuple(slice(max(-p, 0), n + p if p < 0 else None) for n, p in zip(x.shape[lead:], padding, strict=True))
    grown[at(..., *inner)] = x[at(..., *source)]
    return grown


def patches(
    x: Array, kernel_size: Sequence[int], windows: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> Array:
    """Gathers windows: padded [N, C, *sizes] gives [N, C, *kernel_size, *windows]."""
    columns = np.empty((*x.shape[:2], *kernel_size, *windows), x.dtype)
    for place, where in taps(kernel_size, windows, stride, dilation):
        columns[at(slice(None), slice(None), *place)] = x[at(..., *where)]
    return columns


def _forward(x: Array, w: Array, windows: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int) -> Array:
    """[N, C, *sizes] and [O, C / groups, *kernel] give [N, O, *windows]."""
    batch, channels = x.shape[:2]
    outputs, per_group, *kernel_size = w.shape
    x = padded(x, padding)
    if per_group == 1 and channels == groups and groups > 1:
        return _depthwise(x, w, windows, stride, dilation)
    pointwise = all(size == 1 for size in kernel_size) and all(step == 1 for step in stride)
    columns = x if pointwise else patches(x, kernel_size, windows, stride, dilation)
    columns = columns.reshape(batch, groups, per_group * math.prod(kernel_size), math.prod(windows))
    rows = w.reshape(groups, outputs // groups, per_group * math.prod(kernel_size))
    return np.asarray(np.matmul(rows, columns)).reshape(batch, outputs, *windows)


def _depthwise(x: Array, w: Array, windows: Sizes, stride: Sizes, dilation: Sizes) -> Array:
    """One input channel per group: products of slices, since the matrices would be single rows."""
    batch, channels = x.shape[:2]
    multiple = w.shape[0] // channels
    kernel_size = w.shape[2:]
    rows = w.reshape(channels, multiple, *kernel_size)
    ones = (1,) * len(windows)
    result = np.zeros((batch, channels, multiple, *windows), x.dtype)
    for place, where in taps(kernel_size, windows, stride, dilation):
        weights = rows[at(slice(None), slice(None), *place)].reshape(channels, multiple, *ones)
        result += x[at(slice(None), slice(None), None, *where)] * weights
    return result.reshape(batch, channels * multiple, *windows)


def _transposed(x: Array, w: Array, sizes: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int) -> Array:
    """[N, C, *windows] and [C, O / groups, *kernel] give [N, O, *sizes]: every input element spreads a kernel."""
    batch, channels, *windows = x.shape
    per_group, *kernel_size = w.shape[1:]
    columns = x.reshape(batch, groups, channels // groups, math.prod(windows))
    rows = w.reshape(groups, channels // groups, per_group * math.prod(kernel_size)).swapaxes(1, 2)
    spread = np.asarray(np.matmul(rows, columns)).reshape(batch, groups * per_group, *kernel_size, *windows)
    full = [
        max(size + 2 * p, (count - 1) * s + (k - 1) * d + 1)
        for size, p, count, s, k, d in zip(sizes, padding, windows, stride, kernel_size, dilation, strict=True)
    ]
    result = np.zeros((batch, groups * per_group, *full), x.dtype)
    if spread.size:
        for place, where in taps(kernel_size, windows, stride, dilation):
            result[at(..., *where)] += spread[at(slice(None), slice(None), *place)]
    inner = at(..., *[slice(p, p + size) for p, size in zip(padding, sizes, strict=True)])
    return np.asarray(result[inner])


def _convolution(
    out: Outputs,
    input: Array,
    weight: Array,
    bias: Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    groups: int,
) -> Array:
    rank = weight.ndim - 2
    batched = input.ndim == rank + 2
    x = widen(input if batched else input[None])
    steps, pads, spreads = (
        per_axis(values, rank, name)
        for values, name in ((stride, "stride"), (padding, "padding"), (dilation, "dilation"))
    )
    run = _transposed if transposed else _forward
    result = run(x, widen(weight), out.shape[-rank:], steps, pads, spreads, groups)
    if bias is not None:
        result = result + widen(bias).reshape(-1, *(1,) * rank)
    return finish(result, out.dtype).reshape(out.shape)


@kernel("aten.convolution.default")
def convolution(
    out: Outputs,
    input: Array,
    weight: Array,
    bias: Array | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
) -> Array:
    return _convolution(out, input, weight, bias, stride, padding, dilation, transposed, groups)


@kernel("aten.convolution_backward.default")
def convolution_backward(
    out: Outputs,
    grad_output: Array,
    input: Array,
    weight: Array,
    bias_sizes: Sizes | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
    output_mask: tuple[bool, ...],
) -> tuple[Array, Array, Array]:
    rank = weight.ndim - 2
    steps, pads, spreads = (
        per_axis(values, rank, name)
        for values, name in ((stride, "stride"), (padding, "padding"), (dilation, "dilation"))
    )
    gradient, x, w = widen(grad_output), widen(input), widen(weight)
    results = [np.zeros((0,), spec.dtype.numpy) for spec in out]
    if output_mask[0]:
        # The gradient of a convolution is a transposed one, and the other way round.
        run = _forward if transposed else _transposed
        results[0] = finish(run(gradient, w, input.shape[2:], steps, pads, spreads, groups), out[0].dtype)
    if output_mask[1]:
        small, large = (x, gradient) if transposed else (gradient, x)
        result = _weight_gradient(small, large, weight.shape[2:], steps, pads, spreads, groups)
        results[1] = finish(result, out[1].dtype).reshape(out[1].shape)
    if output_mask[2]:
        axes = (0, *range(2, gradient.ndim))
        results[2] = finish(gradient.sum(axis=axes, dtype=gradient.dtype), out[2].dtype)
    return results[0], results[1], results[2]


def _weight_gradient(
    small: Array, large: Array, kernel_size: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
) -> Array:
    """[N, A, *windows] and [N, B, *sizes], cut into windows, give [groups, A / groups, B / groups * kernel]."""
    batch, rows, *windows = small.shape
    columns = patches(padded(large, padding), kernel_size, windows, stride, dilation)
    columns = columns.reshape(batch, groups, large.shape[1] // groups * math.prod(kernel_size), math.prod(windows))
    left = small.reshape(batch, groups, rows // groups, math.prod(windows))
    return np.asarray(np.matmul(left, columns.swapaxes(-1, -2)).sum(axis=0))


@kernel("aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default")
def conv(
    out: Outputs,
    input: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Sizes = (1,),
    padding: Sizes = (0,),
    dilation: Sizes = (1,),
    groups: int = 1,
) -> Array:
    return _convolution(out, input, weight, bias, stride, padding, dilation, False, groups)


@kernel("aten.conv_transpose1d.default", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input")
def conv_transpose(
    out: Outputs,
    input: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Sizes = (1,),
    padding: Sizes = (0,),
    output_padding: Sizes = (0,),
    groups: int = 1,
    dilation: Sizes = (1,),
) -> Array:
    return _convolution(out, input, weight, bias, stride, padding, dilation, True, groups)


@kernel("aten.im2col.default")
def im2col(out: Outputs, self: Array, kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes) -> Array:
    x = self if self.ndim == 4 else self[None]
    windows = patch_grid(self.shape[-2:], kernel_size, dilation, padding, stride)
    sizes, steps, pads, spreads = (
        per_axis(values, 2, "each argument") for values in (kernel_size, stride, padding, dilation)
    )
    return patches(padded(x, pads), sizes, windows, steps, spreads).reshape(out.shape)


@kernel("aten.col2im.default")
def col2im(
    out: Outputs,
    self: Array,
    output_size: Sizes,
    kernel_size: Sizes,
    dilation: Sizes,
    padding: Sizes,
    stride: Sizes,
) -> Array:
    windows = patch_grid(output_size, kernel_size, dilation, padding, stride)
    sizes, steps, pads, spreads = (
        per_axis(values, 2, "each argument") for values in (kernel_size, stride, padding, dilation)
    )
    columns = widen(self).reshape(*out.shape[:-2], *sizes, *windows)
    full = tuple(n + 2 * p for n, p in zip(output_size, pads, strict=True))
    result = np.zeros((*out.shape[:-2], *full), columns.dtype)
    for (i, j), where in taps(sizes, windows, steps, spreads):
        result[at(..., *where)] += columns[..., i, j, :, :]
    inner = tuple(slice(p, p + n) for n, p in zip(output_size, pads, strict=True))
    return finish(result[at(..., *inner)], out.dtype)
