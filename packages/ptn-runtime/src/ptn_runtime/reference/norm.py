"""Numpy kernels of the family `norm`."""

from __future__ import annotations

import math

import numpy as np
from ptn_format.dtypes import ScalarType

from ptn_runtime.reference._numerics import finish, operand, widen
from ptn_runtime.reference.registry import Array, Outputs, kernel

Sizes = tuple[int, ...]


# --- softmax ----------------------------------------------------------------------------------------------------


def softmax_of(x: Array, axis: int) -> Array:
    """Softmax in the dtype of `x`; a row of -inf gives NaN."""
    if not x.size:
        return x
    powers = np.exp(x - x.max(axis=axis, keepdims=True))
    powers /= powers.sum(axis=axis, keepdims=True)
    return np.asarray(powers)


def _last(x: Array, dim: int) -> tuple[Array, int]:
    """A 0-d tensor is one row of one element."""
    return (x, dim) if x.ndim else (x.reshape(1), 0)


@kernel("aten._softmax.default")
def softmax_core(out: Outputs, self: Array, dim: int, half_to_float: bool) -> Array:
    x, axis = _last(widen(self), dim)
    return finish(softmax_of(x, axis), out.dtype).reshape(out.shape)


@kernel("aten.softmax.int")
def softmax(out: Outputs, self: Array, dim: int, dtype: ScalarType | None = None) -> Array:
    x, axis = _last(operand(self, out.dtype), dim)
    return finish(softmax_of(x, axis), out.dtype).reshape(out.shape)


@kernel("aten._safe_softmax.default")
def safe_softmax(out: Outputs, self: Array, dim: int, dtype: ScalarType | None = None) -> Array:
    x, axis = _last(operand(self, out.dtype), dim)
    if not x.size:
        return finish(x, out.dtype).reshape(out.shape)
    masked = (x == -np.inf).all(axis=axis, keepdims=True)
    result = np.where(masked, np.zeros((), x.dtype), softmax_of(x, axis))
    return finish(result, out.dtype).reshape(out.shape)


def _log_softmax_of(x: Array, axis: int) -> Array:
    if not x.size:
        return x
    shifted = x - x.max(axis=axis, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)))


@kernel("aten._log_softmax.default")
def log_softmax_core(out: Outputs, self: Array, dim: int, half_to_float: bool) -> Array:
    x, axis = _last(widen(self), dim)
    return finish(_log_softmax_of(x, axis), out.dtype).reshape(out.shape)


@kernel("aten.log_softmax.int")
def log_softmax(out: Outputs, self: Array, dim: int, dtype: ScalarType | None = None) -> Array:
    x, axis = _last(operand(self, out.dtype), dim)
    return finish(_log_softmax_of(x, axis), out.dtype).reshape(out.shape)


# --- over the last axes -----------------------------------------------------------------------------------------


def _standardized(rows: Array, eps: float) -> tuple[Array, Array, Array]:
    """Each row minus its mean over its deviation; also mean and reciprocal deviation, as [rows, 1]."""
    count = rows.shape[1]
    mean = rows.sum(axis=1, keepdims=True) / count
    centred = rows - mean
    variance = np.einsum("ij,ij->i", centred, centred)[:, None] / count
    reciprocal = 1 / np.sqrt(variance + rows.dtype.type(eps))
    return centred * reciprocal, mean, reciprocal


def _scaled(result: Array, weight: Array | None, bias: Array | None) -> Array:
    if weight is not None:
        result = result * widen(weight)
    if bias is not None:
        result = result + widen(bias)
    return result


@kernel("aten.native_layer_norm.default")
def native_layer_norm(
    out: Outputs, input: Array, normalized_shape: Sizes, weight: Array | None, bias: Array | None, eps: float
) -> tuple[Array, Array, Array]:
    x = widen(input)
    count = math.prod(normalized_shape)
    rows = x.reshape(math.prod(x.shape[: x.ndim - len(normalized_shape)]), count)
    result, mean, reciprocal = _standardized(rows, eps)
    return (
        finish(_scaled(result.reshape(x.shape), weight, bias), out[0].dtype),
        finish(mean, out[1].dtype).reshape(out[1].shape),
        finish(reciprocal, out[2].dtype).reshape(out[2].shape),
    )


@kernel("aten.layer_norm.default")
def layer_norm(
    out: Outputs,
    input: Array,
    normalized_shape: Sizes,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-05,
    cudnn_enable: bool = True,
) -> Array:
    x = widen(input)
    rows = x.reshape(math.prod(x.shape[: x.ndim - len(normalized_shape)]), math.prod(normalized_shape))
    result = _standardized(rows, eps)[0].reshape(x.shape)
    return finish(_scaled(result, weight, bias), out.dtype)


def _rms(input: Array, normalized_shape: Sizes, eps: float | None) -> tuple[Array, Array]:
    """`input` in its working dtype, and the reciprocal root mean square of its last axes, as [..., 1, ...]."""
    x = widen(input)
    if eps is None:
        # PyTorch takes the epsilon of the dtype in which it computes.
        eps = float(np.finfo(x.dtype).eps)
    axes = tuple(range(-len(normalized_shape), 0))
    square = (x * x).mean(axis=axes, keepdims=True, dtype=x.dtype)
    return x, np.asarray(1 / np.sqrt(square + x.dtype.type(eps)))


@kernel("aten.rms_norm.default")
def rms_norm(
    out: Outputs, input: Array, normalized_shape: Sizes, weight: Array | None = None, eps: float | None = None
) -> Array:
    x, reciprocal = _rms(input, normalized_shape, eps)
    return finish(_scaled(x * reciprocal, weight, None), out.dtype)


@kernel("aten._fused_rms_norm.default")
def fused_rms_norm(
    out: Outputs, input: Array, normalized_shape: Sizes, weight: Array | None, eps: float | None
) -> tuple[Array, Array]:
    x, reciprocal = _rms(input, normalized_shape, eps)
    return finish(_scaled(x * reciprocal, weight, None), out.dtype), finish(reciprocal, out[1].dtype)


# --- per channel ------------------------------------------------------------------------------------------------


def _channels(parameter: Array, x: Array) -> Array:
    return widen(parameter).astype(x.dtype, copy=False).reshape(1, -1, *(1,) * (x.ndim - 2))


def _with_statistics(
    x: Array, weight: Array | None, bias: Array | None, mean: Array, variance: Array, eps: float
) -> Array:
    """Batch norm with given statistics, as one product and one sum per channel."""
    scale = 1 / np.sqrt(widen(variance) + np.asarray(eps, widen(variance).dtype))
    if weight is not None:
        scale = scale * widen(weight)
    shift = -widen(mean) * scale
    if bias is not None:
        shift = shift + widen(bias)
    result = x * _channels(scale, x)
    result += _channels(shift, x)
    return result


def _batch_statistics(x: Array) -> tuple[Array, Array]:
    """Mean and (biased) variance of each channel."""
    rows = np.ascontiguousarray(np.moveaxis(x, 1, 0)).reshape(x.shape[1], -1).astype(np.float64)
    return np.asarray(rows.mean(axis=1)), np.asarray(rows.var(axis=1))


@kernel("aten._native_batch_norm_legit_no_training.default")
def batch_norm_no_training(
    out: Outputs,
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    momentum: float,
    eps: float,
) -> tuple[Array, Array, Array]:
    result = _with_statistics(widen(input), weight, bias, running_mean, running_var, eps)
    empty = np.zeros((0,), out[1].dtype.numpy)
    return finish(result, out.dtype), empty, empty


@kernel("aten._native_batch_norm_legit.default")
def batch_norm_legit(
    out: Outputs,
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Array, Array, Array]:
    if not training:
        return batch_norm_no_training(out, input, weight, bias, running_mean, running_var, momentum, eps)
    result, mean, _, reciprocal = _train(input, weight, bias, eps)
    return finish(result, out.dtype), finish(mean, out[1].dtype), finish(reciprocal, out[2].dtype)


def _train(input: Array, weight: Array | None, bias: Array | None, eps: float) -> tuple[Array, Array, Array, Array]:
    """The result, and each channel's mean, variance and reciprocal deviation."""
    x = widen(input)
    mean, variance = _batch_statistics(x)
    result = _with_statistics(x, weight, bias, mean, variance, eps)
    return result, mean, variance, 1 / np.sqrt(variance + eps)


@kernel("aten._native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    out: Outputs,
    input: Array,
    weight: Array | None,
    bias: Array | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Array, Array, Array]:
    result, mean, _, reciprocal = _train(input, weight, bias, eps)
    return finish(result, out.dtype), finish(mean, out[1].dtype), finish(reciprocal, out[2].dtype)


@kernel("aten._native_batch_norm_legit_functional.default")
def batch_norm_functional(
    out: Outputs,
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Array, ...]:
    if not training:
        unchanged = batch_norm_no_training(out, input, weight, bias, running_mean, running_var, momentum, eps)
        return (*unchanged, running_mean, running_var)
    result, mean, variance, reciprocal = _train(input, weight, bias, eps)
    count = input.size // input.shape[1]
    unbiased = variance * count / max(count - 1, 1)
    new_mean = widen(running_mean) * (1 - momentum) + mean * momentum
    new_var = widen(running_var) * (1 - momentum) + unbiased * momentum
    return (
        finish(result, out.dtype),
        finish(mean, out[1].dtype),
        finish(reciprocal, out[2].dtype),
        finish(new_mean, out[3].dtype),
        finish(new_var, out[4].dtype),
    )


@kernel("aten.batch_norm.default")
def batch_norm(
    out: Outputs,
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Array:
    if training or running_mean is None or running_var is None:
        return finish(_train(input, weight, bias, eps)[0], out.dtype)
    return finish(_with_statistics(widen(input), weight, bias, running_mean, running_var, eps), out.dtype)


@kernel("aten.instance_norm.default")
def instance_norm(
    out: Outputs,
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Array:
    x = widen(input)
    if not use_input_stats and running_mean is not None and running_var is not None:
        return finish(_with_statistics(x, weight, bias, running_mean, running_var, eps), out.dtype)
    rows = x.reshape(x.shape[0] * x.shape[1], math.prod(x.shape[2:]))
    result = _standardized(rows, eps)[0].reshape(x.shape)
    return finish(_per_channel(result, weight, bias), out.dtype)


def _per_channel(result: Array, weight: Array | None, bias: Array | None) -> Array:
    if weight is not None:
        result = result * _channels(weight, result)
    if bias is not None:
        result = result + _channels(bias, result)
    return result


@kernel("aten.native_group_norm.default")
def native_group_norm(
    out: Outputs,
    input: Array,
    weight: Array | None,
    bias: Array | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> tuple[Array, Array, Array]:
    x = widen(input)
    rows = x.reshape(N * group, C // group * HxW)
    result, mean, reciprocal = _standardized(rows, eps)
    return (
        finish(_per_channel(result.reshape(x.shape), weight, bias), out.dtype),
        finish(mean, out[1].dtype).reshape(out[1].shape),
        finish(reciprocal, out[2].dtype).reshape(out[2].shape),
    )


@kernel("aten.group_norm.default")
def group_norm(
    out: Outputs,
    input: Array,
    num_groups: int,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-05,
    cudnn_enabled: bool = True,
) -> Array:
    x = widen(input)
    rows = x.reshape(x.shape[0] * num_groups, x.shape[1] // num_groups * math.prod(x.shape[2:]))
    result = _standardized(rows, eps)[0].reshape(x.shape)
    return finish(_per_channel(result, weight, bias), out.dtype)


# --- backward ---------------------------------------------------------------------------------------------------


def _input_gradient(gradient: Array, normal: Array, reciprocal: Array) -> Array:
    """Takes the gradient of [rows, count] standardised elements back to what they were made of.

    Args:
        gradient: gradient of the standardised elements.
        normal: the standardised elements.
        reciprocal: reciprocal deviation of each row, [rows, 1].
    """
    count = max(gradient.shape[1], 1)
    total = gradient.sum(axis=1, keepdims=True) / count
    along = np.einsum("ij,ij->i", gradient, normal)[:, None] / count
    return np.asarray((gradient - total - normal * along) * reciprocal)


def _chosen(out: Outputs, output_mask: tuple[bool, ...], *results: Array) -> tuple[Array, Array, Array]:
    """Results in their dtypes and shapes; those without elements are not asked for."""
    first, second, third = (
        finish(result, spec.dtype).reshape(spec.shape)
        if asked and spec.shape != (0,)
        else np.zeros(spec.shape, spec.dtype.numpy)
        for result, spec, asked in zip(results, out, output_mask, strict=True)
    )
    return first, second, third


@kernel("aten.native_layer_norm_backward.default")
def native_layer_norm_backward(
    out: Outputs,
    grad_out: Array,
    input: Array,
    normalized_shape: Sizes,
    mean: Array,
    rstd: Array,
    weight: Array | None,
    bias: Array | None,
    output_mask: tuple[bool, ...],
) -> tuple[Array, Array, Array]:
    x, gradient = widen(input), widen(grad_out)
    rows = (math.prod(x.shape[: x.ndim - len(normalized_shape)]), math.prod(normalized_shape))
    reciprocal = widen(rstd).reshape(-1, 1)
    normal = (x.reshape(rows) - widen(mean).reshape(-1, 1)) * reciprocal
    scaled = gradient if weight is None else gradient * widen(weight)
    gradient = gradient.reshape(rows)
    return _chosen(
        out,
        output_mask,
        _input_gradient(scaled.reshape(rows), normal, reciprocal),
        (gradient * normal).sum(axis=0),
        gradient.sum(axis=0),
    )


@kernel("aten.native_group_norm_backward.default")
def native_group_norm_backward(
    out: Outputs,
    grad_out: Array,
    input: Array,
    mean: Array,
    rstd: Array,
    weight: Array | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: tuple[bool, ...],
) -> tuple[Array, Array, Array]:
    rows = (N * group, C // group * HxW)
    gradient = widen(grad_out).reshape(N, C, HxW)
    reciprocal = widen(rstd).reshape(-1, 1)
    normal = (widen(input).reshape(rows) - widen(mean).reshape(-1, 1)) * reciprocal
    scaled = gradient if weight is None else gradient * widen(weight)[:, None]
    return _chosen(
        out,
        output_mask,
        _input_gradient(scaled.reshape(rows), normal, reciprocal),
        (gradient * normal.reshape(gradient.shape)).sum(axis=(0, 2)),
        gradient.sum(axis=(0, 2)),
    )


# --- dropout ----------------------------------------------------------------------------------------------------


@kernel("aten.native_dropout.default")
def native_dropout(out: Outputs, input: Array, p: float, train: bool | None) -> tuple[Array, Array]:
    if train is False or p == 0:
        return input, np.ones(input.shape, np.bool_)
    keep = np.random.default_rng().random(input.shape) >= p
    scale = 1 / (1 - p) if p < 1 else 0.0
    return finish(widen(input) * keep * np.float32(scale), out.dtype), keep
