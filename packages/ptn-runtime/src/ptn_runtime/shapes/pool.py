"""Shape rules of the family `pool`: pooling over windows of one to three spatial axes."""

from __future__ import annotations

from collections.abc import Sequence

from ptn_format.dtypes import ScalarType

from ptn_runtime.shapes import Tensor, TensorSpec, shape_rule
from ptn_runtime.shapes._broadcast import per_axis, require

Sizes = tuple[int, ...]


def pooled_size(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    """Windows on an axis; with `ceil_mode` a last window may hang over, but it must start inside the left padding."""
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    count = span // stride + 1
    if ceil_mode:
        count = -(-span // stride) + 1
        if (count - 1) * stride >= size + padding:
            count -= 1
    return count


def _pool(
    self: Tensor,
    rank: int,
    kernel_size: Sequence[int] | int,
    stride: Sequence[int] | int,
    padding: Sequence[int] | int,
    dilation: Sequence[int] | int,
    ceil_mode: bool,
) -> TensorSpec:
    shape = self.shape
    if len(shape) not in (rank + 1, rank + 2):
        raise ValueError(f"expected {rank + 1} or {rank + 2} axes, got {list(shape)}")
    kernels = per_axis(kernel_size, rank, "kernel_size")
    strides = kernels if stride == () else per_axis(stride, rank, "stride")
    paddings = per_axis(padding, rank, "padding")
    dilations = per_axis(dilation, rank, "dilation")
    require(
        min(kernels) > 0 and min(strides) > 0 and min(dilations) > 0, "kernel, stride and dilation must be positive"
    )
    for kernel, pad, spread in zip(kernels, paddings, dilations, strict=True):
        half = ((kernel - 1) * spread + 1) // 2
        if not (0 <= pad <= half):
            raise ValueError(f"padding {pad} must be at most half of the kernel ({half})")
    spatial = tuple(
        pooled_size(size, k, s, p, d, ceil_mode)
        for size, k, s, p, d in zip(shape[-rank:], kernels, strides, paddings, dilations, strict=True)
    )
    if min(spatial) <= 0:
        raise ValueError(f"a window of {list(kernels)} does not fit into {list(shape[-rank:])}")
    return TensorSpec(self.dtype, (*shape[:-rank], *spatial))


@shape_rule("aten.avg_pool1d.default")
def avg_pool1d(
    self: Tensor,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> TensorSpec:
    return _pool(self, 1, kernel_size, stride, padding, 1, ceil_mode)


@shape_rule("aten.avg_pool2d.default")
def avg_pool2d(
    self: Tensor,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes = (0, 0),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> TensorSpec:
    require(divisor_override != 0, "divisor_override must not be 0")
    return _pool(self, 2, kernel_size, stride, padding, 1, ceil_mode)


@shape_rule("aten.avg_pool3d.default")
def avg_pool3d(
    self: Tensor,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes = (0, 0, 0),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> TensorSpec:
    require(divisor_override != 0, "divisor_override must not be 0")
    return _pool(self, 3, kernel_size, stride, padding, 1, ceil_mode)


@shape_rule("aten.max_pool1d.default")
def max_pool1d(
    self: Tensor,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes = (0,),
    dilation: Sizes = (1,),
    ceil_mode: bool = False,
) -> TensorSpec:
    return _pool(self, 1, kernel_size, stride, padding, dilation, ceil_mode)


@shape_rule("aten.max_pool2d.default")
def max_pool2d(
    self: Tensor,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes = (0, 0),
    dilation: Sizes = (1, 1),
    ceil_mode: bool = False,
) -> TensorSpec:
    return _pool(self, 2, kernel_size, stride, padding, dilation, ceil_mode)


@shape_rule("aten.max_pool3d.default")
def max_pool3d(
    self: Tensor,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes = (0, 0, 0),
    dilation: Sizes = (1, 1, 1),
    ceil_mode: bool = False,
) -> TensorSpec:
    return _pool(self, 3, kernel_size, stride, padding, dilation, ceil_mode)


def _with_indices(values: TensorSpec) -> tuple[TensorSpec, TensorSpec]:
    return values, TensorSpec(ScalarType.LONG, values.shape)


@shape_rule("aten.max_pool1d_with_indices.default")
def max_pool1d_with_indices(
    self: Tensor,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes = (0,),
    dilation: Sizes = (1,),
    ceil_mode: bool = False,
) -> tuple[TensorSpec, TensorSpec]:
    return _with_indices(_pool(self, 1, kernel_size, stride, padding, dilation, ceil_mode))


@shape_rule("aten.max_pool2d_with_indices.default")
def max_pool2d_with_indices(
    self: Tensor,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes = (0, 0),
    dilation: Sizes = (1, 1),
    ceil_mode: bool = False,
) -> tuple[TensorSpec, TensorSpec]:
    return _with_indices(_pool(self, 2, kernel_size, stride, padding, dilation, ceil_mode))


@shape_rule("aten.max_pool3d_with_indices.default")
def max_pool3d_with_indices(
    self: Tensor,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes = (0, 0, 0),
    dilation: Sizes = (1, 1, 1),
    ceil_mode: bool = False,
) -> tuple[TensorSpec, TensorSpec]:
    return _with_indices(_pool(self, 3, kernel_size, stride, padding, dilation, ceil_mode))


def _adaptive(self: Tensor, rank: int, output_size: Sizes) -> TensorSpec:
    shape = self.shape
    if len(shape) not in (rank + 1, rank + 2):
        raise ValueError(f"expected {rank + 1} or {rank + 2} axes, got {list(shape)}")
    sizes = per_axis(output_size, rank, "output_size")
    if min(shape[-rank:]) <= 0:
        raise ValueError(f"the pooled axes of {list(shape)} must not be empty")
    return TensorSpec(self.dtype, (*shape[:-rank], *sizes))


@shape_rule("aten.adaptive_avg_pool1d.default")
def adaptive_avg_pool1d(self: Tensor, output_size: Sizes) -> TensorSpec:
    return _adaptive(self, 1, output_size)


@shape_rule("aten._adaptive_avg_pool2d.default", "aten.adaptive_avg_pool2d.default")
def adaptive_avg_pool2d(self: Tensor, output_size: Sizes) -> TensorSpec:
    return _adaptive(self, 2, output_size)


@shape_rule("aten._adaptive_avg_pool3d.default", "aten.adaptive_avg_pool3d.default")
def adaptive_avg_pool3d(self: Tensor, output_size: Sizes) -> TensorSpec:
    return _adaptive(self, 3, output_size)


@shape_rule("aten.adaptive_max_pool1d.default")
def adaptive_max_pool1d(self: Tensor, output_size: Sizes) -> tuple[TensorSpec, TensorSpec]:
    return _with_indices(_adaptive(self, 1, output_size))


@shape_rule("aten.adaptive_max_pool2d.default")
def adaptive_max_pool2d(self: Tensor, output_size: Sizes) -> tuple[TensorSpec, TensorSpec]:
    return _with_indices(_adaptive(self, 2, output_size))


@shape_rule("aten.adaptive_max_pool3d.default")
def adaptive_max_pool3d(self: Tensor, output_size: Sizes) -> tuple[TensorSpec, TensorSpec]:
    return _with_indices(_adaptive(self, 3, output_size))


# --- backward ---------------------------------------------------------------------------------------------------


@shape_rule("aten._adaptive_avg_pool2d_backward.default")
def adaptive_avg_pool2d_backward(grad_output: Tensor, self: Tensor) -> TensorSpec:
    _require_gradient(grad_output, _adaptive(self, 2, grad_output.shape[-2:]))
    return TensorSpec(self.dtype, self.shape)


@shape_rule("aten.avg_pool2d_backward.default")
def avg_pool2d_backward(
    grad_output: Tensor,
    self: Tensor,
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> TensorSpec:
    require(divisor_override != 0, "divisor_override must not be 0")
    _require_gradient(grad_output, _pool(self, 2, kernel_size, stride, padding, 1, ceil_mode))
    return TensorSpec(self.dtype, self.shape)


@shape_rule("aten.max_pool2d_with_indices_backward.default")
def max_pool2d_with_indices_backward(
    grad_output: Tensor,
    self: Tensor,
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    ceil_mode: bool,
    indices: Tensor,
) -> TensorSpec:
    pooled = _pool(self, 2, kernel_size, stride, padding, dilation, ceil_mode)
    _require_gradient(grad_output, pooled)
    if indices.dtype is not ScalarType.LONG or indices.shape != pooled.shape:
        raise ValueError(
            f"indices must be int64{list(pooled.shape)}, got {indices.dtype.torch_name}{list(indices.shape)}"
        )
    return TensorSpec(self.dtype, self.shape)


def _require_gradient(grad_output: Tensor, pooled: TensorSpec) -> None:
    if grad_output.shape != pooled.shape or grad_output.dtype is not pooled.dtype:
        raise ValueError(
            f"grad_output must be like the pooled {pooled.dtype.torch_name}{list(pooled.shape)}, "
            f"got {grad_output.dtype.torch_name}{list(grad_output.shape)}"
        )
