"""Normalisation and softmax.

float32 over the last axes goes to ggml's `norm`, `rms_norm` and `soft_max`; everything else to our kernels.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
from ptn_format.dtypes import ScalarType
from ptn_runtime.engine import StaticNode

from ptn_engine_ggml._native import Builder, Tensor
from ptn_engine_ggml.lower.common import axis_of, call, call_all, float32, promoted, rounded, scalar_tensor
from ptn_engine_ggml.lower.elementwise import kernel
from ptn_engine_ggml.lower.registry import FLOATS, Outputs, lower

Sizes = tuple[int, ...]
FLOAT = ScalarType.FLOAT


def _present(*tensors: Tensor | None) -> list[Tensor]:
    return [x for x in tensors if x is not None]


def _flags(*tensors: Tensor | None) -> list[int]:
    return [int(x is not None) for x in tensors]


# --- over the last axes ---


@lower("aten.layer_norm.default")
def layer_norm(
    b: Builder,
    out: Outputs,
    input: Tensor,
    normalized_shape: Sizes,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-05,
    cudnn_enable: bool = True,
) -> Tensor:
    inner = math.prod(normalized_shape)
    if input.dtype in FLOATS and eps >= 0:  # ggml aborts on a negative one
        x = b.view(float32(b, input), (input.numel // inner, inner))
        return b.view(rounded(b, _affine(b, b.norm(x, eps), weight, bias, inner), out.dtype), out.shape)
    inputs = (input, *_present(weight, bias))
    return call(b, "norm.layer", inputs, out, (inner, *_flags(weight, bias)), (eps,))


def _affine(b: Builder, x: Tensor, weight: Tensor | None, bias: Tensor | None, inner: int) -> Tensor:
    if weight is not None:
        x = b.mul(x, b.view(float32(b, weight), (inner,)))
    if bias is not None:
        x = b.add(x, b.view(float32(b, bias), (inner,)))
    return x


@lower("aten.native_layer_norm.default")
def native_layer_norm(
    b: Builder,
    out: Outputs,
    input: Tensor,
    normalized_shape: Sizes,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, ...]:
    ints = (math.prod(normalized_shape), *_flags(weight, bias))
    return call_all(b, "norm.layer", (input, *_present(weight, bias)), out, ints, (eps,))


def _epsilon(eps: float | None, dtype: ScalarType) -> float:
    return float(ml_dtypes.finfo(dtype.numpy).eps) if eps is None else eps


@lower("aten.rms_norm.default")
def rms_norm(
    b: Builder,
    out: Outputs,
    input: Tensor,
    normalized_shape: Sizes,
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    inner = math.prod(normalized_shape)
    eps = _epsilon(eps, input.dtype)
    if input.dtype in FLOATS and eps >= 0:  # ggml aborts on a negative one
        x = b.view(float32(b, input), (input.numel // inner, inner))
        return b.view(rounded(b, _affine(b, b.rms_norm(x, eps), weight, None, inner), out.dtype), out.shape)
    inputs = (input, *_present(weight))
    return call(b, "norm.rms", inputs, out, (inner, *_flags(weight)), (eps,))


@lower("aten._fused_rms_norm.default")
def fused_rms_norm(
    b: Builder, out: Outputs, input: Tensor, normalized_shape: Sizes, weight: Tensor | None, eps: float | None
) -> tuple[Tensor, ...]:
    ints = (math.prod(normalized_shape), *_flags(weight))
    inputs = (input, *_present(weight))
    return call_all(b, "norm.rms", inputs, out, ints, (_epsilon(eps, input.dtype),))


# --- per channel ---


def _training_check(node: StaticNode) -> str | None:
    if node.args.get("training"):
        return "batch norm in training mode updates its statistics; export the model in eval mode."
    return None


def _batch(
    b: Builder, out: Any, input: Tensor, weight: Any, bias: Any, running_mean: Any, running_var: Any, eps: float
) -> tuple[Tensor, ...]:
    statistics = running_mean is not None and running_var is not None
    inputs = _present(input, weight, bias, *((running_mean, running_var) if statistics else ()))
    return call_all(b, "norm.batch", inputs, out, (*_flags(weight, bias), int(statistics)), (eps,))


@lower("aten._native_batch_norm_legit_no_training.default", "aten._native_batch_norm_legit.default")
def batch_norm_no_training(
    b: Builder,
    out: Outputs,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
    training: bool = False,
) -> tuple[Tensor, ...]:
    (result,) = _batch(b, out[:1], input, weight, bias, running_mean, running_var, eps)
    return (result, *(b.empty(int(value.dtype), value.shape) for value in out[1:]))


@lower("aten.batch_norm.default", check=_training_check)
def batch_norm(
    b: Builder,
    out: Outputs,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    return _batch(b, out, input, weight, bias, running_mean, running_var, eps)[0]


@lower("aten._native_batch_norm_legit_functional.default")
def batch_norm_functional(
    b: Builder,
    out: Outputs,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    """The last two results are the statistics as they are afterwards."""
    if not training:
        unchanged = batch_norm_no_training(
            b, Outputs(out[:3]), input, weight, bias, running_mean, running_var, momentum, eps
        )
        return (*unchanged, running_mean, running_var)
    y, mean, rstd = _batch(b, out[:3], input, weight, bias, None, None, eps)
    axes = [axis for axis in range(input.rank) if axis != 1]
    count = input.numel // input.shape[1]
    wide = ScalarType.DOUBLE if input.dtype is ScalarType.DOUBLE else FLOAT
    spec = [(int(wide), mean.shape)]
    correction = 1.0 if count > 1 else 0.0
    (variance,) = b.custom("reduction.var", (promoted(b, input, wide),), spec, [len(axes), *axes], [correction])
    moved = []
    for old, new in ((running_mean, mean), (running_var, variance)):
        kept = kernel(b, "mul", wide, old.shape, wide, old, 1 - momentum)
        total = kernel(b, "add_scaled", wide, old.shape, wide, kept, new, momentum)
        moved.append(promoted(b, total, old.dtype))
    return (y, mean, rstd, *moved)


@lower("aten._native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    b: Builder,
    out: Outputs,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    return _batch(b, out, input, weight, bias, None, None, eps)


@lower("aten.group_norm.default")
def group_norm(
    b: Builder,
    out: Outputs,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-05,
    cudnn_enabled: bool = True,
) -> Tensor:
    ints = (num_groups, *_flags(weight, bias))
    return call(b, "norm.group", (input, *_present(weight, bias)), out, ints, (eps,))


@lower("aten.native_group_norm.default")
def native_group_norm(
    b: Builder,
    out: Outputs,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> tuple[Tensor, ...]:
    x = b.view(input, (N, C, HxW))
    specs = [(int(out[0].dtype), x.shape), *((int(value.dtype), value.shape) for value in out[1:])]
    ints = [group, *_flags(weight, bias)]
    y, mean, rstd = b.custom("norm.group", [x, *_present(weight, bias)], specs, ints, [eps])
    return b.view(y, out.shape), mean, rstd


@lower("aten.instance_norm.default")
def instance_norm(
    b: Builder,
    out: Outputs,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    if not use_input_stats:
        return _batch(b, out, input, weight, bias, running_mean, running_var, eps)[0]
    ints = (input.shape[1], *_flags(weight, bias))
    return call(b, "norm.group", (input, *_present(weight, bias)), out, ints, (eps,))


# --- softmax ---


def _softmax(b: Builder, out: Outputs, x: Tensor, dim: int) -> Tensor:
    axis = axis_of(dim, x.rank) if x.rank else 0
    if out.dtype in FLOATS and x.dtype in FLOATS and x.rank and axis == x.rank - 1:
        return rounded(b, b.soft_max(float32(b, x)), out.dtype)
    return call(b, "reduction.softmax", (x,), out, (axis,))


@lower("aten._softmax.default")
def softmax_core(b: Builder, out: Outputs, self: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return _softmax(b, out, self, dim)


@lower("aten.softmax.int")
def softmax(b: Builder, out: Outputs, self: Tensor, dim: int, dtype: ScalarType | None = None) -> Tensor:
    return _softmax(b, out, self, dim)


@lower("aten._log_softmax.default", "aten.log_softmax.int")
def log_softmax(b: Builder, out: Outputs, self: Tensor, dim: int, **_: Any) -> Tensor:
    axis = axis_of(dim, self.rank) if self.rank else 0
    return call(b, "reduction.log_softmax", (self,), out, (axis,))


@lower("aten._safe_softmax.default")
def safe_softmax(b: Builder, out: Outputs, self: Tensor, dim: int, dtype: ScalarType | None = None) -> Tensor:
    return zero_masked_rows(b, out, self, _softmax(b, out, self, dim), dim)


def zero_masked_rows(b: Builder, out: Outputs, self: Tensor, y: Tensor, dim: int) -> Tensor:
    """`y`, but zeros where the whole row of `self` is -inf."""
    axis = axis_of(dim, self.rank) if self.rank else 0
    minus_inf = kernel(b, "eq", ScalarType.BOOL, self.shape, self.dtype, self, -math.inf)
    shape = tuple(1 if i == axis else size for i, size in enumerate(self.shape))
    (masked,) = b.custom("reduction.all", (minus_inf,), [(int(ScalarType.BOOL), shape)], [1, axis], ())
    return kernel(b, "where", out.dtype, out.shape, out.dtype, masked, 0.0, y)


def _dropout_check(node: StaticNode) -> str | None:
    if node.args.get("train") is False or node.args.get("p") == 0:
        return None
    return "dropout in training mode is random; export the model in eval mode."


@lower("aten.native_dropout.default", check=_dropout_check)
def native_dropout(b: Builder, out: Outputs, input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    return input, scalar_tensor(b, ScalarType.BOOL, True).expand(out[1].shape)
