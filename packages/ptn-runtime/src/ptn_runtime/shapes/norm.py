"""Shape rules of the family `norm`: normalisation over axes, softmax included."""

from __future__ import annotations

from ptn_format.dtypes import ScalarType

from ptn_runtime.shapes import Tensor, TensorSpec, shape_rule
from ptn_runtime.shapes._broadcast import element_count, normalize_axis, require

Sizes = tuple[int, ...]


def _float_input(input: Tensor) -> TensorSpec:
    if not (input.dtype.is_floating_point):
        raise ValueError(f"expected a floating-point tensor, got {input.dtype.torch_name}")
    return TensorSpec(input.dtype, input.shape)


# --- softmax ----------------------------------------------------------------------------------------------------


@shape_rule("aten._softmax.default", "aten._log_softmax.default")
def softmax_core(self: Tensor, dim: int, half_to_float: bool) -> TensorSpec:
    normalize_axis(dim, len(self.shape))
    result = _float_input(self)
    if half_to_float:
        if self.dtype is not ScalarType.HALF:
            raise ValueError(f"half_to_float takes half, got {self.dtype.torch_name}")
        return TensorSpec(ScalarType.FLOAT, self.shape)
    return result


@shape_rule("aten.softmax.int", "aten.log_softmax.int", "aten._safe_softmax.default")
def softmax(self: Tensor, dim: int, dtype: ScalarType | None = None) -> TensorSpec:
    normalize_axis(dim, len(self.shape))
    if dtype is None:
        return _float_input(self)
    if not (dtype.is_floating_point):
        raise ValueError(f"the result must be floating point, got {dtype.torch_name}")
    return TensorSpec(dtype, self.shape)


# --- over the last axes -----------------------------------------------------------------------------------------


def _trailing(input: Tensor, normalized_shape: Sizes, *parameters: Tensor | None) -> TensorSpec:
    count = len(normalized_shape)
    require(count > 0, "normalized_shape must name at least one axis")
    if not (len(input.shape) >= count and input.shape[-count:] == tuple(normalized_shape)):
        raise ValueError(f"input {list(input.shape)} does not end in normalized_shape {list(normalized_shape)}")
    for parameter in parameters:
        if parameter is not None and parameter.shape != tuple(normalized_shape):
            raise ValueError(f"weight and bias must be {list(normalized_shape)}, got {list(parameter.shape)}")
    return _float_input(input)


@shape_rule("aten.native_layer_norm.default")
def native_layer_norm(
    input: Tensor, normalized_shape: Sizes, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    result = _trailing(input, normalized_shape, weight, bias)
    count = len(normalized_shape)
    statistics = TensorSpec(result.dtype, (*input.shape[:-count], *(1,) * count))
    return result, statistics, statistics


@shape_rule("aten.layer_norm.default")
def layer_norm(
    input: Tensor,
    normalized_shape: Sizes,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-05,
    cudnn_enable: bool = True,
) -> TensorSpec:
    return _trailing(input, normalized_shape, weight, bias)


@shape_rule("aten.rms_norm.default")
def rms_norm(
    input: Tensor, normalized_shape: Sizes, weight: Tensor | None = None, eps: float | None = None
) -> TensorSpec:
    return _trailing(input, normalized_shape, weight)


@shape_rule("aten._fused_rms_norm.default")
def fused_rms_norm(
    input: Tensor, normalized_shape: Sizes, weight: Tensor | None, eps: float | None
) -> tuple[TensorSpec, TensorSpec]:
    result = _trailing(input, normalized_shape, weight)
    count = len(normalized_shape)
    return result, TensorSpec(result.dtype, (*input.shape[:-count], *(1,) * count))


# --- per channel ------------------------------------------------------------------------------------------------


def _per_channel(input: Tensor, *parameters: Tensor | None) -> TensorSpec:
    if len(input.shape) < 2:
        raise ValueError(f"expected [N, C, ...], got {list(input.shape)}")
    channels = input.shape[1]
    for parameter in parameters:
        if parameter is not None and element_count(parameter.shape) != channels:
            raise ValueError(f"input has {channels} channels, a parameter has shape {list(parameter.shape)}")
    return _float_input(input)


@shape_rule("aten._native_batch_norm_legit_no_training.default")
def batch_norm_no_training(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    result = _per_channel(input, weight, bias, running_mean, running_var)
    saved = TensorSpec(result.dtype, (0,))
    return result, saved, saved


@shape_rule("aten._native_batch_norm_legit.default")
def batch_norm_legit(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    """In training the running statistics change too: lowering takes the functional form, which returns them."""
    result = _per_channel(input, weight, bias, running_mean, running_var)
    saved = TensorSpec(result.dtype, (input.shape[1],) if training else (0,))
    return result, saved, saved


@shape_rule("aten._native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    result = _per_channel(input, weight, bias)
    saved = TensorSpec(result.dtype, (input.shape[1],))
    return result, saved, saved


@shape_rule("aten._native_batch_norm_legit_functional.default")
def batch_norm_functional(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[TensorSpec, TensorSpec, TensorSpec, TensorSpec, TensorSpec]:
    result = _per_channel(input, weight, bias, running_mean, running_var)
    saved = TensorSpec(result.dtype, (input.shape[1],) if training else (0,))
    mean = TensorSpec(running_mean.dtype, running_mean.shape)
    var = TensorSpec(running_var.dtype, running_var.shape)
    return result, saved, saved, mean, var


@shape_rule("aten.batch_norm.default")
def batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> TensorSpec:
    require(not training or running_mean is None, "batch_norm that updates its statistics is not functional")
    return _per_channel(input, weight, bias, running_mean, running_var)


@shape_rule("aten.instance_norm.default")
def instance_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> TensorSpec:
    require(not use_input_stats or running_mean is None, "instance_norm that updates its statistics is not functional")
    return _per_channel(input, weight, bias, running_mean, running_var)


@shape_rule("aten.native_group_norm.default")
def native_group_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, N: int, C: int, HxW: int, group: int, eps: float
) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    if element_count(input.shape) != N * C * HxW:
        raise ValueError(f"input {list(input.shape)} does not hold {N} x {C} x {HxW} elements")
    if not (group > 0 and C % group == 0):
        raise ValueError(f"{C} channels do not divide into {group} groups")
    result = _per_channel(input, weight, bias)
    statistics = TensorSpec(result.dtype, (N, group))
    return result, statistics, statistics


@shape_rule("aten.group_norm.default")
def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-05,
    cudnn_enabled: bool = True,
) -> TensorSpec:
    result = _per_channel(input, weight, bias)
    if not (num_groups > 0 and input.shape[1] % num_groups == 0):
        raise ValueError(f"{input.shape[1]} channels do not divide into {num_groups} groups")
    return result


# --- backward ---------------------------------------------------------------------------------------------------


def _gradients(
    input: Tensor, parameter: Tensor | None, shape: Sizes, wanted: tuple[bool, ...]
) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    """Gradients of input, weight and bias; those that are not wanted have no elements."""
    kind = input.dtype if parameter is None else parameter.dtype
    shapes = ((input.dtype, input.shape), (kind, shape), (kind, shape))
    first, second, third = (
        TensorSpec(dtype, sizes if asked else (0,)) for (dtype, sizes), asked in zip(shapes, wanted, strict=True)
    )
    return first, second, third


def _require_shape(name: str, tensor: Tensor, shape: Sizes) -> None:
    if tensor.shape != shape:
        raise ValueError(f"{name} must be {list(shape)}, got {list(tensor.shape)}")


@shape_rule("aten.native_layer_norm_backward.default")
def native_layer_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sizes,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: tuple[bool, ...],
) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    result = _trailing(input, normalized_shape, weight, bias)
    count = len(normalized_shape)
    statistics = (*input.shape[:-count], *(1,) * count)
    _require_shape("grad_out", grad_out, result.shape)
    _require_shape("mean", mean, statistics)
    _require_shape("rstd", rstd, statistics)
    # Parameters that are not there have no gradient.
    wanted = (output_mask[0], output_mask[1] and weight is not None, output_mask[2] and bias is not None)
    return _gradients(input, weight if weight is not None else bias, tuple(normalized_shape), wanted)


@shape_rule("aten.native_group_norm_backward.default")
def native_group_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: tuple[bool, ...],
) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    result = native_group_norm(input, weight, None, N, C, HxW, group, 0.0)[0]
    _require_shape("grad_out", grad_out, result.shape)
    _require_shape("mean", mean, (N, group))
    _require_shape("rstd", rstd, (N, group))
    return _gradients(input, weight, (C,), output_mask)


# --- dropout ----------------------------------------------------------------------------------------------------


@shape_rule("aten.native_dropout.default", deterministic=False)
def native_dropout(input: Tensor, p: float, train: bool | None) -> tuple[TensorSpec, TensorSpec]:
    return TensorSpec(input.dtype, input.shape), TensorSpec(ScalarType.BOOL, input.shape)
