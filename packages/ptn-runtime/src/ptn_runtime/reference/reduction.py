"""Numpy kernels of the family `reduction`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from ptn_format.dtypes import ScalarType

from ptn_runtime.reference._numerics import cast, finish, operand, widen
from ptn_runtime.reference.elementwise import truth
from ptn_runtime.reference.registry import Array, Number, Outputs, kernel
from ptn_runtime.shapes._broadcast import normalize_axes

Axes = tuple[int, ...]


def gathered(x: Array, dim: int | Axes | None, *, empty_is_all: bool = True) -> Array:
    """`x` as [kept elements, reduced elements], contiguous: numpy sums pairwise only along the last axis."""
    axes = normalize_axes(dim, x.ndim, empty_is_all=empty_is_all) if x.ndim else ()
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    count = math.prod(x.shape[axis] for axis in axes)
    rows = math.prod(x.shape[axis] for axis in kept)
    return np.ascontiguousarray(x.transpose(*kept, *sorted(axes))).reshape(rows, count)


def _summed(x: Array) -> Array:
    """Row sums in the dtype of `x`."""
    return np.asarray(x.sum(axis=1, dtype=x.dtype))


@kernel("aten.sum.default")
def sum_all(out: Outputs, self: Array, *, dtype: ScalarType | None = None) -> Array:
    return sum_dim(out, self, None)


@kernel("aten.sum.dim_IntList")
def sum_dim(
    out: Outputs, self: Array, dim: Axes | None, keepdim: bool = False, *, dtype: ScalarType | None = None
) -> Array:
    rows = gathered(operand(self, out.dtype), dim)
    if rows.dtype == np.bool_:
        return np.asarray(rows.any(axis=1)).reshape(out.shape)
    return finish(_summed(rows), out.dtype).reshape(out.shape)


@kernel("aten.nansum.default")
def nansum(
    out: Outputs, self: Array, dim: Axes | None = None, keepdim: bool = False, *, dtype: ScalarType | None = None
) -> Array:
    x = operand(self, out.dtype)
    return sum_dim(out, np.where(x != x, np.zeros((), x.dtype), x), dim)


@kernel("aten.prod.default")
def prod_all(out: Outputs, self: Array, *, dtype: ScalarType | None = None) -> Array:
    return _product(out, self, None)


@kernel("aten.prod.dim_int")
def prod_dim(out: Outputs, self: Array, dim: int, keepdim: bool = False, *, dtype: ScalarType | None = None) -> Array:
    return _product(out, self, dim)


def _product(out: Outputs, self: Array, dim: int | None) -> Array:
    rows = gathered(operand(self, out.dtype), dim)
    if rows.dtype == np.bool_:
        return np.asarray(rows.all(axis=1)).reshape(out.shape)
    return finish(rows.prod(axis=1, dtype=rows.dtype), out.dtype).reshape(out.shape)


@kernel("aten.mean.default")
def mean_all(out: Outputs, self: Array, *, dtype: ScalarType | None = None) -> Array:
    return mean_dim(out, self, None)


@kernel("aten.mean.dim")
def mean_dim(
    out: Outputs, self: Array, dim: Axes | None, keepdim: bool = False, *, dtype: ScalarType | None = None
) -> Array:
    rows = gathered(operand(self, out.dtype), dim)
    return finish(_summed(rows) / rows.shape[1], out.dtype).reshape(out.shape)


# --- variance ---------------------------------------------------------------------------------------------------


def _moments(x: Array, dim: int | Axes | None, correction: Number | None) -> tuple[Array, Array]:
    """Variance and mean of each row, in float64."""
    rows = gathered(x, dim).astype(np.float64)
    count = rows.shape[1]
    mean = rows.sum(axis=1) / count
    centred = rows - mean[:, None]
    divisor = max(count - (1 if correction is None else correction), 0)
    return np.asarray((centred * centred).sum(axis=1) / np.float64(divisor)), mean


@kernel("aten.var.correction")
def var_correction(
    out: Outputs, self: Array, dim: Axes | None = None, *, correction: Number | None = None, keepdim: bool = False
) -> Array:
    return finish(_moments(self, dim, correction)[0], out.dtype).reshape(out.shape)


@kernel("aten.std.correction")
def std_correction(
    out: Outputs, self: Array, dim: Axes | None = None, *, correction: Number | None = None, keepdim: bool = False
) -> Array:
    return finish(np.sqrt(_moments(self, dim, correction)[0]), out.dtype).reshape(out.shape)


@kernel("aten.var_mean.correction")
def var_mean(
    out: Outputs, self: Array, dim: Axes | None = None, *, correction: Number | None = None, keepdim: bool = False
) -> tuple[Array, Array]:
    var, mean = _moments(self, dim, correction)
    return finish(var, out.dtype).reshape(out.shape), finish(mean, out.dtype).reshape(out.shape)


@kernel("aten.std_mean.correction")
def std_mean(
    out: Outputs, self: Array, dim: Axes | None = None, *, correction: Number | None = None, keepdim: bool = False
) -> tuple[Array, Array]:
    var, mean = _moments(self, dim, correction)
    return finish(np.sqrt(var), out.dtype).reshape(out.shape), finish(mean, out.dtype).reshape(out.shape)


@kernel("aten.var.dim")
def var_dim(out: Outputs, self: Array, dim: Axes | None, unbiased: bool = True, keepdim: bool = False) -> Array:
    return var_correction(out, self, dim, correction=int(unbiased))


@kernel("aten.std.dim")
def std_dim(out: Outputs, self: Array, dim: Axes | None, unbiased: bool = True, keepdim: bool = False) -> Array:
    return std_correction(out, self, dim, correction=int(unbiased))


@kernel("aten.var.default")
def var_all(out: Outputs, self: Array, unbiased: bool = True) -> Array:
    return var_correction(out, self, None, correction=int(unbiased))


@kernel("aten.std.default")
def std_all(out: Outputs, self: Array, unbiased: bool = True) -> Array:
    return std_correction(out, self, None, correction=int(unbiased))


# --- norms and exponentials -------------------------------------------------------------------------------------


@kernel("aten.linalg_vector_norm.default")
def linalg_vector_norm(
    out: Outputs,
    self: Array,
    ord: Number = 2,
    dim: Axes | None = None,
    keepdim: bool = False,
    *,
    dtype: ScalarType | None = None,
) -> Array:
    size = np.abs(gathered(operand(self, out.dtype), dim))
    if ord == 0:
        result = (size != 0).sum(axis=1).astype(size.dtype)
    elif ord == 1:
        result = size.sum(axis=1)
    elif ord == 2:
        result = np.sqrt((size * size).sum(axis=1))
    elif math.isinf(ord):
        result = size.max(axis=1, initial=0) if ord > 0 else size.min(axis=1, initial=np.inf)
    else:
        exponent = np.asarray(ord, size.dtype)
        result = np.power(np.power(size, exponent).sum(axis=1), 1 / exponent)
    return finish(result, out.dtype).reshape(out.shape)


@kernel("aten.norm.Scalar")
def norm(out: Outputs, self: Array, p: Number = 2) -> Array:
    return linalg_vector_norm(out, self, p)


@kernel("aten.norm.ScalarOpt_dim")
def norm_dim(out: Outputs, self: Array, p: Number | None, dim: Axes, keepdim: bool = False) -> Array:
    return linalg_vector_norm(out, self, 2 if p is None else p, dim)


@kernel("aten.logsumexp.default")
def logsumexp(out: Outputs, self: Array, dim: Axes, keepdim: bool = False) -> Array:
    rows = gathered(operand(self, out.dtype), dim)
    top = rows.max(axis=1, initial=-np.inf)
    base = np.where(np.isfinite(top) | np.isnan(top), top, 0).astype(rows.dtype)
    return finish(np.log(np.exp(rows - base[:, None]).sum(axis=1)) + base, out.dtype).reshape(out.shape)


# --- choosing ---------------------------------------------------------------------------------------------------


def _register_extreme(name: str, reduce: Callable[..., Any], arg: Callable[..., Any]) -> None:
    """Registers the operators on maxima or on minima. NaN is larger and smaller than every number."""

    @kernel(f"aten.a{name}.default")
    def amax(out: Outputs, self: Array, dim: Axes = (), keepdim: bool = False) -> Array:
        return finish(reduce(gathered(widen(self), dim), axis=1), out.dtype).reshape(out.shape)

    @kernel(f"aten.{name}.default")
    def max_all(out: Outputs, self: Array) -> Array:
        return finish(reduce(widen(self)), out.dtype)

    @kernel(f"aten.{name}.dim")
    def max_dim(out: Outputs, self: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
        rows = gathered(widen(self), dim)
        index = np.asarray(arg(rows, axis=1))
        values = np.take_along_axis(rows, index[:, None], 1)
        return finish(values, out.dtype).reshape(out.shape), index.astype(np.int64).reshape(out.shape)

    @kernel(f"aten.arg{name}.default")
    def argmax(out: Outputs, self: Array, dim: int | None = None, keepdim: bool = False) -> Array:
        return np.asarray(arg(gathered(widen(self), dim), axis=1), np.int64).reshape(out.shape)


_register_extreme("max", np.max, np.argmax)
_register_extreme("min", np.min, np.argmin)


@kernel("aten.aminmax.default")
def aminmax(out: Outputs, self: Array, *, dim: int | None = None, keepdim: bool = False) -> tuple[Array, Array]:
    rows = gathered(widen(self), dim)
    return (
        finish(rows.min(axis=1), out.dtype).reshape(out.shape),
        finish(rows.max(axis=1), out.dtype).reshape(out.shape),
    )


def _lower_medians(rows: Array) -> Array:
    """The index of the lower median of each row; of a NaN where there is one."""
    order = rows.argsort(axis=1, kind="stable")
    middle = order[:, (rows.shape[1] - 1) // 2]
    missing = rows != rows
    return np.where(missing.any(axis=1), missing.argmax(axis=1), middle)


@kernel("aten.median.default")
def median_all(out: Outputs, self: Array) -> Array:
    rows = gathered(widen(self), None)
    if not rows.shape[1]:
        return np.full(out.shape, np.nan, self.dtype)
    return finish(rows[0, _lower_medians(rows)[0]], out.dtype)


@kernel("aten.median.dim")
def median_dim(out: Outputs, self: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    rows = gathered(widen(self), dim)
    index = _lower_medians(rows)
    values = np.take_along_axis(rows, index[:, None], 1)
    return finish(values, out.dtype).reshape(out.shape), index.astype(np.int64).reshape(out.shape)


def _lower_medians_of_numbers(rows: Array) -> Array:
    """The index of the lower median of the numbers in each row; of the first element where all are NaN."""
    order = rows.argsort(axis=1, kind="stable")  # NaN last
    numbers = np.count_nonzero(rows == rows, axis=1)
    return np.take_along_axis(order, np.maximum(numbers - 1, 0)[:, None] // 2, 1)[:, 0]


@kernel("aten.nanmedian.default")
def nanmedian_all(out: Outputs, self: Array) -> Array:
    rows = gathered(widen(self), None)
    if not rows.shape[1]:
        return np.full(out.shape, np.nan, self.dtype)
    return finish(rows[0, _lower_medians_of_numbers(rows)[0]], out.dtype)


@kernel("aten.nanmedian.dim")
def nanmedian_dim(out: Outputs, self: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    rows = gathered(widen(self), dim)
    index = _lower_medians_of_numbers(rows)
    values = np.take_along_axis(rows, index[:, None], 1)
    return finish(values, out.dtype).reshape(out.shape), index.astype(np.int64).reshape(out.shape)


@kernel("aten.any.default", "aten.any.dim", "aten.any.dims")
def any_(out: Outputs, self: Array, dim: int | Axes | None = None, keepdim: bool = False) -> Array:
    rows = gathered(truth(self), dim, empty_is_all=False)
    return cast(np.asarray(rows.any(axis=1)), out.dtype.numpy).reshape(out.shape)


@kernel("aten.all.default", "aten.all.dim", "aten.all.dims")
def all_(out: Outputs, self: Array, dim: int | Axes | None = None, keepdim: bool = False) -> Array:
    rows = gathered(truth(self), dim, empty_is_all=False)
    return cast(np.asarray(rows.all(axis=1)), out.dtype.numpy).reshape(out.shape)


@kernel("aten.count_nonzero.default", "aten.count_nonzero.dim_IntList")
def count_nonzero(out: Outputs, self: Array, dim: int | Axes | None = None) -> Array:
    return np.asarray(gathered(truth(self), dim).sum(axis=1), np.int64).reshape(out.shape)


# --- running ----------------------------------------------------------------------------------------------------


@kernel("aten.cumsum.default")
def cumsum(out: Outputs, self: Array, dim: int, *, dtype: ScalarType | None = None) -> Array:
    return _running(out, self, dim, np.cumsum)


@kernel("aten.cumprod.default")
def cumprod(out: Outputs, self: Array, dim: int, *, dtype: ScalarType | None = None) -> Array:
    return _running(out, self, dim, np.cumprod)


def _running(out: Outputs, self: Array, dim: int, function: Callable[..., Any]) -> Array:
    x = operand(self, out.dtype)
    if x.ndim == 0:
        return finish(x, out.dtype)
    if x.dtype.kind == "f":  # PyTorch's CPU kernel accumulates floats in double precision
        return finish(function(x, axis=dim, dtype=np.float64).astype(x.dtype), out.dtype)
    return finish(function(x, axis=dim, dtype=x.dtype), out.dtype)


@kernel("aten.logcumsumexp.default")
def logcumsumexp(out: Outputs, self: Array, dim: int) -> Array:
    x = widen(self)
    return finish(np.logaddexp.accumulate(x, axis=dim) if x.ndim else x, out.dtype)


def _register_running_extreme(name: str, accumulate: Any) -> None:
    @kernel(f"aten.{name}.default")
    def cummax(out: Outputs, self: Array, dim: int) -> tuple[Array, Array]:
        x = widen(self)
        if x.ndim == 0:
            return self, np.zeros((), np.int64)
        x = np.moveaxis(x, dim, -1)
        values = accumulate(x, axis=-1)
        # A place holds the running extreme where the element is it (or is NaN); the last such place counts.
        here = (x == values) | (x != x)
        places = np.where(here, np.arange(x.shape[-1]), 0)
        index = np.maximum.accumulate(places, axis=-1)
        return (
            finish(np.ascontiguousarray(np.moveaxis(values, -1, dim)), out[0].dtype),
            np.ascontiguousarray(np.moveaxis(index, -1, dim)).astype(np.int64),
        )


_register_running_extreme("cummax", np.maximum.accumulate)
_register_running_extreme("cummin", np.minimum.accumulate)
