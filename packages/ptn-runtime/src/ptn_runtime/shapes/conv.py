"""Shape rules of the family `conv`: convolutions of one to three spatial axes and their patch forms."""

from __future__ import annotations

from collections.abc import Sequence

from ptn_runtime.shapes import Tensor, TensorSpec, shape_rule
from ptn_runtime.shapes._broadcast import element_count, per_axis, require

Sizes = tuple[int, ...]


def window_count(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """How many windows of a kernel fit on a padded axis."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def _convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int] | int,
    padding: Sequence[int] | int,
    dilation: Sequence[int] | int,
    transposed: bool,
    output_padding: Sequence[int] | int,
    groups: int,
) -> TensorSpec:
    rank = len(weight.shape) - 2
    if rank not in (1, 2, 3):
        raise ValueError(f"weight must have 3 to 5 axes, got {list(weight.shape)}")
    batched = len(input.shape) == rank + 2
    if not (batched or len(input.shape) == rank + 1):
        raise ValueError(f"{list(input.shape)} does not go with weight {list(weight.shape)}")
    if input.dtype is not weight.dtype:
        raise ValueError(f"input is {input.dtype.torch_name}, weight is {weight.dtype.torch_name}")
    strides = per_axis(stride, rank, "stride")
    paddings = per_axis(padding, rank, "padding")
    dilations = per_axis(dilation, rank, "dilation")
    require(groups > 0 and min(strides) > 0 and min(dilations) > 0, "stride, dilation and groups must be positive")
    channels, *sizes = input.shape[1:] if batched else input.shape
    kernel = weight.shape[2:]
    if transposed:
        extra = per_axis(output_padding, rank, "output_padding")
        if channels != weight.shape[0]:
            raise ValueError(f"input has {channels} channels, weight takes {weight.shape[0]}")
        out_channels = weight.shape[1] * groups
        spatial = tuple(
            (size - 1) * s - 2 * p + d * (k - 1) + e + 1
            for size, k, s, p, d, e in zip(sizes, kernel, strides, paddings, dilations, extra, strict=True)
        )
    else:
        takes = weight.shape[1] * groups
        if channels != takes:
            raise ValueError(f"input has {channels} channels, weight takes {takes} in {groups} group(s)")
        out_channels = weight.shape[0]
        if out_channels % groups != 0:
            raise ValueError(f"{out_channels} output channels do not divide into {groups} groups")
        spatial = tuple(
            window_count(size, k, s, p, d)
            for size, k, s, p, d in zip(sizes, kernel, strides, paddings, dilations, strict=True)
        )
    if not (min(spatial) >= 0 or element_count(sizes) == 0):
        raise ValueError(f"kernel {list(kernel)} is larger than input {sizes}")
    if bias is not None and bias.shape != (out_channels,):
        raise ValueError(f"bias must be [{out_channels}], got {list(bias.shape)}")
    head = (input.shape[0], out_channels) if batched else (out_channels,)
    return TensorSpec(input.dtype, (*head, *spatial))


@shape_rule("aten.convolution.default")
def convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
) -> TensorSpec:
    return _convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)


@shape_rule("aten.convolution_backward.default")
def convolution_backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    bias_sizes: Sizes | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
    output_mask: tuple[bool, ...],
) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    """Gradients of input, weight and bias; those that `output_mask` leaves out have no elements."""
    forward = _convolution(input, weight, None, stride, padding, dilation, transposed, output_padding, groups)
    if len(input.shape) != len(weight.shape):
        raise ValueError(f"input must have a batch axis, got {list(input.shape)}")
    if grad_output.shape != forward.shape or grad_output.dtype is not forward.dtype:
        raise ValueError(
            f"grad_output must be {forward.dtype.torch_name}{list(forward.shape)}, "
            f"got {grad_output.dtype.torch_name}{list(grad_output.shape)}"
        )
    shapes = (input.shape, weight.shape, forward.shape[1:2])
    first, second, third = (
        TensorSpec(input.dtype, shape if wanted else (0,)) for shape, wanted in zip(shapes, output_mask, strict=True)
    )
    return first, second, third


@shape_rule("aten.conv1d.default")
def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = (1,),
    padding: Sizes = (0,),
    dilation: Sizes = (1,),
    groups: int = 1,
) -> TensorSpec:
    return _convolution(input, weight, bias, stride, padding, dilation, False, 0, groups)


@shape_rule("aten.conv2d.default")
def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = (1, 1),
    padding: Sizes = (0, 0),
    dilation: Sizes = (1, 1),
    groups: int = 1,
) -> TensorSpec:
    return _convolution(input, weight, bias, stride, padding, dilation, False, 0, groups)


@shape_rule("aten.conv3d.default")
def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = (1, 1, 1),
    padding: Sizes = (0, 0, 0),
    dilation: Sizes = (1, 1, 1),
    groups: int = 1,
) -> TensorSpec:
    return _convolution(input, weight, bias, stride, padding, dilation, False, 0, groups)


@shape_rule("aten.conv_transpose1d.default")
def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = (1,),
    padding: Sizes = (0,),
    output_padding: Sizes = (0,),
    groups: int = 1,
    dilation: Sizes = (1,),
) -> TensorSpec:
    return _convolution(input, weight, bias, stride, padding, dilation, True, output_padding, groups)


@shape_rule("aten.conv_transpose2d.input")
def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = (1, 1),
    padding: Sizes = (0, 0),
    output_padding: Sizes = (0, 0),
    groups: int = 1,
    dilation: Sizes = (1, 1),
) -> TensorSpec:
    return _convolution(input, weight, bias, stride, padding, dilation, True, output_padding, groups)


@shape_rule("aten.conv_transpose3d.input")
def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = (1, 1, 1),
    padding: Sizes = (0, 0, 0),
    output_padding: Sizes = (0, 0, 0),
    groups: int = 1,
    dilation: Sizes = (1, 1, 1),
) -> TensorSpec:
    return _convolution(input, weight, bias, stride, padding, dilation, True, output_padding, groups)


@shape_rule("aten.im2col.default")
def im2col(self: Tensor, kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes) -> TensorSpec:
    if len(self.shape) not in (3, 4):
        raise ValueError(f"expected [N, C, H, W] or [C, H, W], got {list(self.shape)}")
    windows = patch_grid(self.shape[-2:], kernel_size, dilation, padding, stride)
    if min(windows) <= 0:
        raise ValueError(f"no window of {list(kernel_size)} fits into {list(self.shape)}")
    column = self.shape[-3] * element_count(per_axis(kernel_size, 2, "kernel_size"))
    return TensorSpec(self.dtype, (*self.shape[:-3], column, element_count(windows)))


@shape_rule("aten.col2im.default")
def col2im(
    self: Tensor, output_size: Sizes, kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes
) -> TensorSpec:
    if len(self.shape) not in (2, 3):
        raise ValueError(f"expected [N, C*kernel, L] or [C*kernel, L], got {list(self.shape)}")
    taps = element_count(per_axis(kernel_size, 2, "kernel_size"))
    if self.shape[-2] % taps != 0:
        raise ValueError(f"{self.shape[-2]} rows do not divide into kernels of {taps}")
    windows = element_count(patch_grid(output_size, kernel_size, dilation, padding, stride))
    if self.shape[-1] != windows:
        raise ValueError(f"expected {windows} columns, got {self.shape[-1]}")
    return TensorSpec(self.dtype, (*self.shape[:-2], self.shape[-2] // taps, *output_size))


def patch_grid(sizes: Sizes, kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes) -> Sizes:
    """How many windows fit along both axes of an image."""
    return tuple(
        window_count(size, k, s, p, d)
        for size, k, d, p, s in zip(
            sizes,
            per_axis(kernel_size, 2, "kernel_size"),
            per_axis(dilation, 2, "dilation"),
            per_axis(padding, 2, "padding"),
            per_axis(stride, 2, "stride"),
            strict=True,
        )
    )
