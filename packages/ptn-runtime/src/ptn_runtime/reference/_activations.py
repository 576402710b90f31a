"""Numpy kernels of the family `elementwise`: activation functions."""

from __future__ import annotations

import math

import numpy as np

from ptn_runtime.reference import _special
from ptn_runtime.reference._numerics import finish, number, widen
from ptn_runtime.reference.registry import Array, Number, Outputs, kernel

__all__: list[str] = []


@kernel("aten.relu.default")
def relu(out: Outputs, self: Array) -> Array:
    if self.dtype == np.bool_:
        return self
    return finish(np.maximum(widen(self), np.zeros((), widen(self).dtype)), out.dtype)


@kernel("aten.relu6.default")
def relu6(out: Outputs, self: Array) -> Array:
    return hardtanh(out, self, 0, 6)


@kernel("aten.hardtanh.default")
def hardtanh(out: Outputs, self: Array, min_val: Number = -1, max_val: Number = 1) -> Array:
    x = widen(self)
    low, high = widen(number(min_val, out.dtype)), widen(number(max_val, out.dtype))
    return finish(np.minimum(np.maximum(x, low), high), out.dtype)


@kernel("aten.silu.default")
def silu(out: Outputs, self: Array) -> Array:
    x = widen(self)
    return finish(x / (1 + np.exp(-x)), out.dtype)


@kernel("aten.gelu.default")
def gelu(out: Outputs, self: Array, *, approximate: str = "none") -> Array:
    x = widen(self)
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))
        return finish(0.5 * x * (1 + np.tanh(inner)), out.dtype)
    return finish(0.5 * x * (1 + _special.erf(x * np.asarray(math.sqrt(0.5), x.dtype))), out.dtype)


@kernel("aten.elu.default")
def elu(out: Outputs, self: Array, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Array:
    x = widen(self)
    negative = np.expm1(np.minimum(x, 0) * float(input_scale)) * float(alpha * scale)
    return finish(np.where(x < 0, negative, x * float(scale)), out.dtype)


@kernel("aten.celu.default")
def celu(out: Outputs, self: Array, alpha: Number = 1.0) -> Array:
    return elu(out, self, alpha, 1, 1 / alpha)


@kernel("aten.selu.default")
def selu(out: Outputs, self: Array) -> Array:
    return elu(out, self, 1.6732632423543772, 1.0507009873554805, 1)


@kernel("aten.leaky_relu.default")
def leaky_relu(out: Outputs, self: Array, negative_slope: Number = 0.01) -> Array:
    x = widen(self)
    return finish(np.where(x > 0, x, x * np.asarray(negative_slope, x.dtype)), out.dtype)


@kernel("aten.prelu.default")
def prelu(out: Outputs, self: Array, weight: Array) -> Array:
    if weight.ndim == 1 and self.ndim >= 2:
        weight = weight.reshape(1, -1, *(1,) * (self.ndim - 2))
    elif weight.ndim == 1:
        weight = weight.reshape(())  # a vector or a number has one channel
    return prelu_kernel(out, self, weight)


@kernel("aten._prelu_kernel.default")
def prelu_kernel(out: Outputs, self: Array, weight: Array) -> Array:
    x = widen(self)
    return finish(np.where(x > 0, x, x * widen(weight)), out.dtype)


@kernel("aten.hardsigmoid.default")
def hardsigmoid(out: Outputs, self: Array) -> Array:
    return finish(_clipped(widen(self)) / 6, out.dtype)


@kernel("aten.hardswish.default")
def hardswish(out: Outputs, self: Array) -> Array:
    x = widen(self)
    return finish(x * _clipped(x) / 6, out.dtype)


def _clipped(x: Array) -> Array:
    return np.asarray(np.minimum(np.maximum(x + 3, 0), 6))


def _softplus(x: Array, beta: float, threshold: float) -> Array:
    scaled = x * np.asarray(beta, x.dtype)
    soft = np.log1p(np.exp(scaled)) / np.asarray(beta, x.dtype)
    return np.where(scaled > threshold, x, soft)


@kernel("aten.softplus.default")
def softplus(out: Outputs, self: Array, beta: Number = 1, threshold: Number = 20) -> Array:
    return finish(_softplus(widen(self), float(beta), float(threshold)), out.dtype)


@kernel("aten.mish.default")
def mish(out: Outputs, self: Array) -> Array:
    x = widen(self)
    return finish(x * np.tanh(np.log1p(np.exp(x))), out.dtype)


def _log_sigmoid(x: Array) -> Array:
    return np.asarray(np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x))))


@kernel("aten.log_sigmoid.default")
def log_sigmoid(out: Outputs, self: Array) -> Array:
    return finish(_log_sigmoid(widen(self)), out.dtype)


@kernel("aten.log_sigmoid_forward.default")
def log_sigmoid_forward(out: Outputs, self: Array) -> tuple[Array, Array]:
    x = widen(self)
    # The second result keeps exp(-|x|) for the backward pass.
    return finish(_log_sigmoid(x), out[0].dtype), finish(np.exp(-np.abs(x)), out[1].dtype)


@kernel("aten.threshold.default")
def threshold(out: Outputs, self: Array, threshold: Number, value: Number) -> Array:
    x = widen(self)
    return finish(np.where(x <= np.asarray(threshold, x.dtype), np.asarray(value, x.dtype), x), out.dtype)


@kernel("aten.hardshrink.default")
def hardshrink(out: Outputs, self: Array, lambd: Number = 0.5) -> Array:
    x = widen(self)
    return finish(np.where((x >= -lambd) & (x <= lambd), np.zeros((), x.dtype), x), out.dtype)


@kernel("aten.softshrink.default")
def softshrink(out: Outputs, self: Array, lambd: Number = 0.5) -> Array:
    x = widen(self)
    step = np.asarray(lambd, x.dtype)
    inside = np.where(np.isnan(x), x, np.zeros((), x.dtype))
    return finish(np.where(x > lambd, x - step, np.where(x < -lambd, x + step, inside)), out.dtype)


@kernel("aten.glu.default")
def glu(out: Outputs, self: Array, dim: int = -1) -> Array:
    first, second = np.split(widen(self), 2, axis=dim)
    return finish(first / (1 + np.exp(-second)), out.dtype)
