"""Numpy kernels of the family `create`."""

from __future__ import annotations

from typing import Any

import numpy as np
from ml_dtypes import finfo

from ptn_runtime.reference._numerics import cast, finish, number, working_dtype
from ptn_runtime.reference.registry import Array, Number, Outputs, kernel

Sizes = tuple[int, ...]


def _filled(out: Outputs, value: Array | Number) -> Array:
    one = cast(value, out.dtype.numpy) if isinstance(value, np.ndarray) else number(value, out.dtype)
    return np.full(out.shape, one, out.dtype.numpy)


@kernel("aten.full.default", "aten.full_like.default", "aten.new_full.default")
def full(out: Outputs, *, fill_value: Number, **_: Any) -> Array:
    return _filled(out, fill_value)


@kernel("aten.fill.Scalar", "aten.fill.Tensor")
def fill(out: Outputs, self: Array, value: Array | Number) -> Array:
    return _filled(out, value)


@kernel("aten.scalar_tensor.default")
def scalar_tensor(out: Outputs, s: Number, **_: Any) -> Array:
    return _filled(out, s)


@kernel(
    "aten.zeros.default",
    "aten.zeros_like.default",
    "aten.new_zeros.default",
    # PyTorch leaves these uninitialised; zeros at least are the same in every run.
    "aten.empty.memory_format",
    "aten.empty_like.default",
    "aten.empty_strided.default",
    "aten.new_empty.default",
    "aten.new_empty_strided.default",
)
def zeros(out: Outputs, **_: Any) -> Array:
    return np.zeros(out.shape, out.dtype.numpy)


@kernel("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default")
def ones(out: Outputs, **_: Any) -> Array:
    return np.ones(out.shape, out.dtype.numpy)


def _range(out: Outputs, start: Number, step: Number) -> Array:
    (count,) = out.shape
    if out.dtype.is_floating_point:
        return finish(float(start) + np.arange(count, dtype=np.float64) * float(step), out.dtype)
    return cast(int(start) + np.arange(count, dtype=np.int64) * int(step), out.dtype.numpy)


@kernel("aten.arange.start_step", "aten.arange.start")
def arange_start_step(out: Outputs, start: Number, end: Number, step: Number = 1, **_: Any) -> Array:
    return _range(out, start, step)


@kernel("aten.arange.default")
def arange(out: Outputs, end: Number, **_: Any) -> Array:
    return _range(out, 0, 1)


@kernel("aten.linspace.default")
def linspace(out: Outputs, start: Number, end: Number, steps: int, **_: Any) -> Array:
    if steps == 1:
        return _filled(out, start)
    kind = working_dtype(out.dtype)
    wide = kind
    if kind.kind != "f":  # integers cut the ends off first, then step in float64
        wide, start, end = np.dtype(np.float64), int(start), int(end)
    first, last = wide.type(float(start)), wide.type(float(end))
    step = (last - first) / wide.type(steps - 1)
    index = np.arange(steps).astype(wide)
    # Both halves start from their own end, so that both ends are exact.
    values = np.where(index < steps // 2, first + step * index, last - step * (steps - 1 - index))
    return finish(values, out.dtype)


@kernel("aten.eye.default", "aten.eye.m")
def eye(out: Outputs, n: int, **_: Any) -> Array:
    return np.eye(*out.shape, dtype=out.dtype.numpy)


@kernel("aten.tril_indices.default")
def tril_indices(out: Outputs, row: int, col: int, offset: int = 0, **_: Any) -> Array:
    return cast(np.stack(np.tril_indices(row, offset, col)), out.dtype.numpy)


@kernel("aten.triu_indices.default")
def triu_indices(out: Outputs, row: int, col: int, offset: int = 0, **_: Any) -> Array:
    return cast(np.stack(np.triu_indices(row, offset, col)), out.dtype.numpy)


@kernel("aten.rand.default", "aten.rand_like.default")
def rand(out: Outputs, **_: Any) -> Array:
    # Whole numbers of the last place below 1, as PyTorch takes them: rounding to a narrow dtype could give 1 itself.
    steps = 2 ** (finfo(out.dtype.numpy).nmant + 1)
    return cast(np.random.default_rng().integers(0, steps, out.shape) / steps, out.dtype.numpy)


@kernel("aten.randn.default", "aten.randn_like.default")
def randn(out: Outputs, **_: Any) -> Array:
    return finish(np.random.default_rng().standard_normal(out.shape, np.float32), out.dtype)


@kernel("aten.randperm.default")
def randperm(out: Outputs, n: int, **_: Any) -> Array:
    return cast(np.random.default_rng().permutation(n), out.dtype.numpy)


@kernel("aten.randint.default")
def randint(out: Outputs, high: int, **_: Any) -> Array:
    return cast(np.random.default_rng().integers(0, high, out.shape), out.dtype.numpy)


@kernel("aten.randint.low")
def randint_low(out: Outputs, low: int, high: int, **_: Any) -> Array:
    return cast(np.random.default_rng().integers(low, high, out.shape), out.dtype.numpy)
