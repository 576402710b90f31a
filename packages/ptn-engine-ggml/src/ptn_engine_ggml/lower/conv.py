"""Convolutions: windows of the input laid out as rows (im2col), then one matrix product per group.

Depthwise float32 convolutions in two dimensions have an operator of ggml's. A transposed convolution is one with the
flipped kernel over the input spread out with zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ptn_format.dtypes import ScalarType

from ptn_engine_ggml._native import Builder, Tensor
from ptn_engine_ggml.lower.common import float32, rounded
from ptn_engine_ggml.lower.layout import padded
from ptn_engine_ggml.lower.matmul import plus, product
from ptn_engine_ggml.lower.registry import FLOATS, Outputs, lower

Sizes = Sequence[int]
FLOAT = ScalarType.FLOAT


def _per_axis(values: Sizes | int, axes: int) -> list[int]:
    values = [values] if isinstance(values, int) else list(values)
    return values * axes if len(values) == 1 else values


def windows(
    b: Builder, x: Tensor, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes
) -> tuple[Tensor, list[int]]:
    """Every window of x [N, C, *spatial] as a row: [N, windows, C * kernel elements], and the number per axis."""
    n, channels = x.shape[:2]
    axes = len(kernel)
    counts = [
        (size + 2 * p - d * (k - 1) - 1) // s + 1
        for size, k, s, p, d in zip(x.shape[2:], kernel, stride, padding, dilation, strict=True)
    ]
    row = channels * math.prod(kernel)
    if x.dtype is FLOAT and axes <= 2:
        if axes == 1:
            x = b.view(x, (n, channels, 1, x.shape[2]))
            kernel, stride, padding, dilation = [1, *kernel], [1, *stride], [0, *padding], [1, *dilation]
        return b.view(b.im2col(x, kernel, stride, padding, dilation), (n, math.prod(counts), row)), counts
    if any(padding):
        shape = [n, channels, *(size + 2 * p for size, p in zip(x.shape[2:], padding, strict=True))]
        x = padded(b, x, [0, 0, *padding], shape)
    x = b.contiguous(x)
    steps = [step // ScalarType(x.dtype).itemsize for step in x.strides]
    spatial = steps[2:]
    window_steps = [step * s for step, s in zip(spatial, stride, strict=True)]
    element_steps = [step * d for step, d in zip(spatial, dilation, strict=True)]
    view = x.as_strided((n, *counts, channels, *kernel), (steps[0], *window_steps, steps[1], *element_steps), 0)
    return b.view(view, (n, math.prod(counts), row)), counts


def convolve(
    b: Builder,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
) -> Tensor:
    """Convolves x [N, C, *spatial], weight [O, C / groups, *kernel] -> [N, O, *spatial]; in the operands' type."""
    kernel = weight.shape[2:]
    channels, filters = x.shape[1], weight.shape[0]
    if groups == channels and len(kernel) == 2 and x.dtype is FLOAT and filters % channels == 0:
        return _depthwise(b, x, weight, bias, stride, padding, dilation)
    parts = []
    per_group, filters_per_group = channels // groups, filters // groups
    for group in range(groups):
        part = x.slice(1, group * per_group, 1, per_group)
        w = weight.slice(0, group * filters_per_group, 1, filters_per_group)
        own_bias = None if bias is None else bias.slice(0, group * filters_per_group, 1, filters_per_group)
        parts.append(_convolve_group(b, part, w, own_bias, stride, padding, dilation))
    return parts[0] if groups == 1 else b.cat(parts, 1)


def _convolve_group(
    b: Builder, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sizes, padding: Sizes, dilation: Sizes
) -> Tensor:
    kernel = weight.shape[2:]
    n, filters = x.shape[0], weight.shape[0]
    rows, counts = windows(b, x, kernel, stride, padding, dilation)
    w = b.view(weight, (filters, rows.shape[2]))
    if n == 1:  # the windows as the "weights": the result has its channels first at once
        y = product(b, w, b.view(rows, rows.shape[1:]))
        y = y if bias is None else plus(b, y, b.view(bias, (filters, 1)))
        return b.view(y, (1, filters, *counts))
    y = product(b, b.view(rows, (n * rows.shape[1], rows.shape[2])), w)
    y = y if bias is None else plus(b, y, bias)
    return b.view(b.view(y, (n, rows.shape[1], filters)).transpose(1, 2), (n, filters, *counts))


def _depthwise(
    b: Builder, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sizes, padding: Sizes, dilation: Sizes
) -> Tensor:
    n, channels, *spatial = x.shape
    multiplier = weight.shape[0] // channels
    if multiplier > 1:  # each channel as often as it has filters
        wide = b.view(x, (n, channels, 1, *spatial)).expand((n, channels, multiplier, *spatial))
        x = b.view(wide, (n, channels * multiplier, *spatial))
    y = b.conv_2d_depthwise(weight, x, list(stride), list(padding), list(dilation))
    return y if bias is None else plus(b, y, b.view(bias, (weight.shape[0], 1, 1)))


def convolve_transposed(
    b: Builder,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Sizes,
    output_padding: Sizes,
    dilation: Sizes,
    groups: int,
) -> Tensor:
    """Transposed: x [N, C, *spatial], weight [C, O / groups, *kernel] -> [N, O, *spatial]; in the operands' type."""
    axes = x.rank - 2
    channels, per_group, *kernel = weight.shape
    for axis in range(2, axes + 2):  # zeros between the elements
        x = _spread(b, x, axis, stride[axis - 2])
    before = [d * (k - 1) - p for d, k, p in zip(dilation, kernel, padding, strict=True)]
    sizes = [size + 2 * edge + extra for size, edge, extra in zip(x.shape[2:], before, output_padding, strict=True)]
    x = padded(b, x, [0, 0, *before], [*x.shape[:2], *sizes])
    # [C, O / groups] -> [O, C / groups], every kernel back to front
    w = b.view(weight, (groups, channels // groups, per_group, *kernel)).transpose(1, 2)
    for axis in range(3, w.rank):
        w = w.slice(axis, w.shape[axis] - 1, -1, w.shape[axis])
    w = b.contiguous(b.view(b.contiguous(w), (groups * per_group, channels // groups, *kernel)))
    return convolve(b, x, w, bias, [1] * axes, [0] * axes, dilation, groups)


def _spread(b: Builder, x: Tensor, axis: int, step: int) -> Tensor:
    if step == 1:
        return x
    shape = [*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]]
    wide = [*x.shape[: axis + 1], step, *x.shape[axis + 1 :]]
    x = padded(b, b.view(x, shape), [0] * len(shape), wide)
    size = wide[axis]
    merged = [*wide[:axis], size * step, *wide[axis + 2 :]]
    return b.view(x, merged).slice(axis, 0, 1, (size - 1) * step + 1)


def _convolution(
    b: Builder,
    out: Outputs,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes | int,
    padding: Sizes | int,
    dilation: Sizes | int,
    transposed: bool,
    output_padding: Sizes | int,
    groups: int,
) -> Tensor:
    axes = weight.rank - 2
    floats = input.dtype in FLOATS
    x, w = (float32(b, input), float32(b, weight)) if floats else (input, weight)
    addend = float32(b, bias) if bias is not None and floats else bias
    if input.rank == axes + 1:  # without a batch
        x = b.view(x, (1, *x.shape))
    strides, pads, dilations = (_per_axis(v, axes) for v in (stride, padding, dilation))
    if transposed:
        extra = _per_axis(output_padding, axes)
        y = convolve_transposed(b, x, w, addend, strides, pads, extra, dilations, groups)
    else:
        y = convolve(b, x, w, addend, strides, pads, dilations, groups)
    return b.view(rounded(b, y, out.dtype), out.shape)


@lower("aten.convolution.default")
def convolution(
    b: Builder,
    out: Outputs,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
) -> Tensor:
    return _convolution(b, out, input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)


@lower("aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default")
def conv(
    b: Builder,
    out: Outputs,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = (1,),
    padding: Sizes = (0,),
    dilation: Sizes = (1,),
    groups: int = 1,
) -> Tensor:
    return _convolution(b, out, input, weight, bias, stride, padding, dilation, False, (0,), groups)


@lower("aten.conv_transpose1d.default", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input")
def conv_transpose(
    b: Builder,
    out: Outputs,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = (1,),
    padding: Sizes = (0,),
    output_padding: Sizes = (0,),
    groups: int = 1,
    dilation: Sizes = (1,),
) -> Tensor:
    return _convolution(b, out, input, weight, bias, stride, padding, dilation, True, output_padding, groups)


@lower("aten.im2col.default")
def im2col(
    b: Builder, out: Outputs, self: Tensor, kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes
) -> Tensor:
    x = self if self.rank == 4 else b.view(self, (1, *self.shape))
    rows, _ = windows(b, x, *(_per_axis(v, 2) for v in (kernel_size, stride, padding, dilation)))
    return b.view(rows.transpose(1, 2), out.shape)


@lower("aten.col2im.default")
def col2im(
    b: Builder,
    out: Outputs,
    self: Tensor,
    output_size: Sizes,
    kernel_size: Sizes,
    dilation: Sizes,
    padding: Sizes,
    stride: Sizes,
) -> Tensor:
    x = self if self.rank == 3 else b.view(self, (1, *self.shape))
    shape = out.shape if len(out.shape) == 4 else (1, *out.shape)
    ints = [n for values in (kernel_size, dilation, padding, stride) for n in _per_axis(values, 2)]
    return b.view(b.custom("conv.col2im", (x,), [(int(out.dtype), shape)], ints, ())[0], out.shape)
