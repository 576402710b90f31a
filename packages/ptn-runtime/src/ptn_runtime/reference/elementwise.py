"""Numpy kernels of the family `elementwise`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from ptn_format.dtypes import ScalarType

from ptn_runtime.reference import _activations as _activations  # registers its kernels
from ptn_runtime.reference import _special
from ptn_runtime.reference._numerics import cast, common_type, finish, number, operand, scalar_type, widen
from ptn_runtime.reference.registry import Array, Number, Outputs, kernel

Operand = Array | Number
Function = Callable[..., Any]


# --- one argument -----------------------------------------------------------------------------------------------


def _in_working_precision(function: Function) -> Callable[[Outputs, Array], Array]:
    """A kernel that applies `function` in the working precision of the result's dtype."""

    def run(out: Outputs, self: Array) -> Array:
        return finish(function(operand(self, out.dtype)), out.dtype)

    return run


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _sinc(x: Array) -> Array:
    scaled = x * np.asarray(np.pi, x.dtype)
    return np.where(x == 0, np.asarray(1, x.dtype), np.sin(scaled) / scaled)


def _entropy(x: Array) -> Array:
    return np.where(x > 0, -x * np.log(x), np.where(x == 0, 0, np.where(np.isnan(x), x, -np.inf))).astype(x.dtype)


_FLOAT_FUNCTIONS: dict[str, Function] = {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "cos": np.cos,
    "cosh": np.cosh,
    "deg2rad": np.deg2rad,
    "digamma": _special.digamma,
    "i0": lambda x: np.i0(x).astype(x.dtype).reshape(x.shape),
    "erf": _special.erf,
    "erfc": _special.erfc,
    "erfinv": _special.erfinv,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "lgamma": _special.lgamma,
    "log": np.log,
    "log10": np.log10,
    "log1p": np.log1p,
    "log2": np.log2,
    "rad2deg": np.rad2deg,
    "reciprocal": np.reciprocal,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": _sigmoid,
    "sin": np.sin,
    "sinc": _sinc,
    "sinh": np.sinh,
    "special_entr": _entropy,
    "special_expm1": np.expm1,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
}
for _name, _function in _FLOAT_FUNCTIONS.items():
    kernel(f"aten.{_name}.default")(_in_working_precision(_function))


@kernel("aten.logit.default", "aten.special_logit.default")
def logit(out: Outputs, self: Array, eps: float | None = None) -> Array:
    x = operand(self, out.dtype)
    if eps is not None:
        x = np.clip(x, np.asarray(eps, x.dtype), np.asarray(1 - eps, x.dtype))
    return finish(np.log(x / (1 - x)), out.dtype)


@kernel("aten.abs.default")
def abs_(out: Outputs, self: Array) -> Array:
    return np.asarray(np.abs(self))


@kernel("aten.neg.default")
def neg(out: Outputs, self: Array) -> Array:
    return np.asarray(np.negative(self))


@kernel("aten.positive.default")
def positive(out: Outputs, self: Array) -> Array:
    return self


@kernel("aten.sign.default", "aten.sgn.default")
def sign(out: Outputs, self: Array) -> Array:
    if self.dtype == np.bool_:
        return self
    x = widen(self)
    # Unlike numpy's sign, PyTorch's gives 0 for NaN.
    return finish((x > 0).astype(np.int8) - (x < 0).astype(np.int8), out.dtype)


def _integers_as_they_are(function: Function) -> Callable[[Outputs, Array], Array]:
    def run(out: Outputs, self: Array) -> Array:
        return finish(function(widen(self)), out.dtype) if out.dtype.is_floating_point else self

    return run


for _name, _function in {"ceil": np.ceil, "floor": np.floor, "round": np.rint, "trunc": np.trunc}.items():
    kernel(f"aten.{_name}.default")(_integers_as_they_are(_function))


@kernel("aten.round.decimals")
def round_decimals(out: Outputs, self: Array, *, decimals: int) -> Array:
    if not out.dtype.is_floating_point:
        return self
    x = widen(self)
    factor = np.asarray(10.0 ** abs(decimals), x.dtype)
    scaled = np.rint(x * factor) / factor if decimals >= 0 else np.rint(x / factor) * factor
    return finish(scaled, out.dtype)


@kernel("aten.frac.default")
def frac(out: Outputs, self: Array) -> Array:
    x = widen(self)
    return finish(x - np.trunc(x), out.dtype)


@kernel("aten.square.default")
def square(out: Outputs, self: Array) -> Array:
    x = operand(self, out.dtype)
    return finish(x * x, out.dtype)


@kernel("aten.bitwise_not.default")
def bitwise_not(out: Outputs, self: Array) -> Array:
    return np.asarray(np.invert(self))


@kernel("aten.isnan.default")
def isnan(out: Outputs, self: Array) -> Array:
    return np.asarray(np.isnan(widen(self)))


@kernel("aten.isinf.default")
def isinf(out: Outputs, self: Array) -> Array:
    return np.asarray(np.isinf(widen(self)))


@kernel("aten.isfinite.default")
def isfinite(out: Outputs, self: Array) -> Array:
    return np.asarray(np.isfinite(widen(self)))


@kernel("aten.isposinf.default")
def isposinf(out: Outputs, self: Array) -> Array:
    return np.asarray(widen(self) == np.inf)


@kernel("aten.isneginf.default")
def isneginf(out: Outputs, self: Array) -> Array:
    return np.asarray(widen(self) == -np.inf)


@kernel("aten.signbit.default")
def signbit(out: Outputs, self: Array) -> Array:
    if out.dtype is not ScalarType.BOOL or self.dtype.kind in "bu":
        return np.zeros(out.shape, np.bool_)
    x = widen(self)
    return np.asarray(np.signbit(x) if x.dtype.kind == "f" else x < 0)


@kernel("aten.logical_not.default")
def logical_not(out: Outputs, self: Array) -> Array:
    return np.logical_not(truth(self), out=np.empty(out.shape, np.bool_))


def truth(value: Array) -> Array:
    """Which elements are not zero; NaN is true."""
    return np.asarray(widen(value) != 0)


@kernel("aten.nan_to_num.default")
def nan_to_num(
    out: Outputs, self: Array, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Array:
    if not out.dtype.is_floating_point:
        return self
    kind: Any = self.dtype
    info = np.finfo(np.float16) if kind == np.float16 else _finfo(out.dtype)
    x = widen(self)
    high = float(info.max) if posinf is None else posinf
    low = float(info.min) if neginf is None else neginf
    x = np.where(np.isnan(x), np.asarray(nan or 0.0, x.dtype), x)
    x = np.where(x == np.inf, np.asarray(high, x.dtype), x)
    return finish(np.where(x == -np.inf, np.asarray(low, x.dtype), x), out.dtype)


def _finfo(dtype: ScalarType) -> Any:
    from ml_dtypes import finfo  # knows bfloat16, unlike numpy's

    return finfo(dtype.numpy)


# --- arithmetic -------------------------------------------------------------------------------------------------


def second_operand(value: Operand, dtype: ScalarType) -> Array:
    """The right-hand side of a sum or product.

    With half and bfloat16 PyTorch's CPU kernels take a single number there in float32, unrounded.
    """
    reduced = dtype in (ScalarType.HALF, ScalarType.BFLOAT16)
    if reduced and (not isinstance(value, np.ndarray) or value.ndim == 0):
        return np.asarray(value).astype(np.float32)
    return operand(value, dtype)


def _add(out: Outputs, self: Operand, other: Operand, alpha: Number) -> Array:
    dtype = out.dtype
    if dtype is ScalarType.BOOL:
        right = operand(other, dtype) & operand(bool(alpha), dtype)
        return np.asarray(operand(self, dtype) | right)
    right = second_operand(other, dtype)
    if alpha != 1:
        right = right * np.asarray(number(alpha, dtype if right.dtype.kind != "f" else scalar_type(right)))
    return finish(operand(self, dtype) + right, dtype)


@kernel("aten.add.Tensor", "aten.add.Scalar")
def add(out: Outputs, self: Array, other: Operand, alpha: Number = 1) -> Array:
    return _add(out, self, other, alpha)


@kernel("aten.sub.Tensor", "aten.sub.Scalar")
def sub(out: Outputs, self: Array, other: Operand, alpha: Number = 1) -> Array:
    return _add(out, self, other, -alpha)


@kernel("aten.rsub.Tensor", "aten.rsub.Scalar")
def rsub(out: Outputs, self: Array, other: Operand, alpha: Number = 1) -> Array:
    return _add(out, other, self, -alpha)


@kernel("aten.mul.Tensor", "aten.mul.Scalar")
def mul(out: Outputs, self: Array, other: Operand) -> Array:
    if out.dtype is ScalarType.BOOL:
        return np.asarray(operand(self, out.dtype) & operand(other, out.dtype))
    return finish(operand(self, out.dtype) * second_operand(other, out.dtype), out.dtype)


@kernel("aten.div.Tensor", "aten.div.Scalar", "aten.true_divide.Tensor")
def div(out: Outputs, self: Array, other: Operand) -> Array:
    return finish(operand(self, out.dtype) / second_operand(other, out.dtype), out.dtype)


def _require_divisor(divisor: Array) -> None:
    if not np.all(divisor):
        raise ZeroDivisionError("an integer is divided by zero")


@kernel("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div_mode(out: Outputs, self: Array, other: Operand, *, rounding_mode: str | None) -> Array:
    if rounding_mode is None:
        return div(out, self, other)
    if rounding_mode == "floor":
        return floor_divide(out, self, other)
    a, b = operand(self, out.dtype), second_operand(other, out.dtype)
    if out.dtype.is_floating_point:
        return finish(np.trunc(widen(finish(a / b, out.dtype))), out.dtype)
    _require_divisor(b)
    quotient = a // b
    inexact = (a % b != 0) & ((a < 0) != (b < 0))
    return finish(quotient + inexact.astype(quotient.dtype), out.dtype)


@kernel("aten.floor_divide.default", "aten.floor_divide.Scalar")
def floor_divide(out: Outputs, self: Array, other: Operand) -> Array:
    a, b = operand(self, out.dtype), second_operand(other, out.dtype)
    if not out.dtype.is_floating_point:
        _require_divisor(b)
    return finish(np.floor_divide(a, b), out.dtype)


@kernel("aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor")
def remainder(out: Outputs, self: Operand, other: Operand) -> Array:
    a, b = operand(self, out.dtype), operand(other, out.dtype)
    if not out.dtype.is_floating_point:
        _require_divisor(b)
    return finish(np.remainder(a, b), out.dtype)


@kernel("aten.fmod.Tensor", "aten.fmod.Scalar")
def fmod(out: Outputs, self: Array, other: Operand) -> Array:
    a, b = operand(self, out.dtype), operand(other, out.dtype)
    if not out.dtype.is_floating_point:
        _require_divisor(b)
    return finish(np.fmod(a, b), out.dtype)


def _integer_power(base: Array, exponent: Array) -> Array:
    """Integer powers; a negative exponent gives 0 except for the bases 1 and -1."""
    base, exponent = np.broadcast_arrays(base, exponent)
    if base.dtype == np.bool_:
        return np.asarray(base | ~exponent)
    positive = np.power(base, np.maximum(exponent, 0))
    if exponent.dtype.kind == "u" or not (exponent < 0).any():
        return np.asarray(positive)
    odd = np.where(exponent % 2 == 0, 1, -1)
    reciprocal = np.where(base == 1, 1, np.where(base == -1, odd, 0))
    return np.where(exponent < 0, reciprocal, positive).astype(base.dtype)


@kernel("aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def pow_(out: Outputs, self: Operand, exponent: Operand) -> Array:
    if isinstance(self, np.ndarray) and isinstance(exponent, np.ndarray) and not exponent.ndim and self.ndim:
        return pow_scalar(out, self, exponent.item())
    base, power = operand(self, out.dtype), operand(exponent, out.dtype)
    if not out.dtype.is_floating_point:
        return finish(_integer_power(base, power), out.dtype)
    return finish(np.power(base, power), out.dtype)


@kernel("aten.pow.Tensor_Scalar")
def pow_scalar(out: Outputs, self: Array, exponent: Number) -> Array:
    base = operand(self, out.dtype)
    if not out.dtype.is_floating_point:
        return finish(_integer_power(base, operand(exponent, out.dtype)), out.dtype)
    # PyTorch replaces these powers, which shows in -inf to the power of 0.5 and in speed.
    special: dict[float, Callable[[], Any]] = {
        0.5: lambda: np.sqrt(base),
        2.0: lambda: base * base,
        3.0: lambda: base * base * base,
        -0.5: lambda: 1 / np.sqrt(base),
        -1.0: lambda: 1 / base,
        -2.0: lambda: 1 / (base * base),
    }
    known = special.get(float(exponent))
    if out.dtype is ScalarType.HALF and abs(exponent) == 0.5:
        # For half PyTorch takes the power after all; numpy would turn it into a root by itself.
        return finish(np.where(np.isneginf(base), np.inf if exponent > 0 else 0.0, np.power(base, exponent)), out.dtype)
    return finish(known() if known else np.power(base, operand(exponent, out.dtype)), out.dtype)


def _binary(function: Function) -> Callable[[Outputs, Array, Operand], Array]:
    def run(out: Outputs, self: Array, other: Operand) -> Array:
        return finish(function(operand(self, out.dtype), operand(other, out.dtype)), out.dtype)

    return run


_Named = tuple[tuple[str, ...], Function]


def _xlogy(x: Array, y: Array) -> Array:
    return np.where(np.isnan(y), y, np.where(x == 0, np.zeros((), x.dtype), x * np.log(y)))


_BINARY: tuple[_Named, ...] = (
    (("aten.atan2.default",), np.arctan2),
    (("aten.hypot.default",), np.hypot),
    (("aten.copysign.Tensor", "aten.copysign.Scalar"), np.copysign),
    (("aten.xlogy.Tensor",), _xlogy),
    (("aten.logaddexp.default",), np.logaddexp),
    (("aten.logaddexp2.default",), np.logaddexp2),
    (("aten.maximum.default",), np.maximum),
    (("aten.minimum.default",), np.minimum),
    (("aten.fmax.default",), np.fmax),
    (("aten.fmin.default",), np.fmin),
    (("aten.gcd.default",), np.gcd),
    (("aten.lcm.default",), np.lcm),
)
for _names, _function in _BINARY:
    kernel(*_names)(_binary(_function))


@kernel("aten.nextafter.default")
def nextafter(out: Outputs, self: Array, other: Array) -> Array:
    kind = out.dtype.numpy
    return np.asarray(np.nextafter(cast(self, kind), cast(other, kind)))


@kernel("aten.ldexp.Tensor")
def ldexp(out: Outputs, self: Array, other: Operand) -> Array:
    exponent = operand(other, out.dtype)
    return finish(operand(self, out.dtype) * np.power(np.asarray(2, exponent.dtype), exponent), out.dtype)


@kernel("aten.heaviside.default")
def heaviside(out: Outputs, self: Array, values: Array) -> Array:
    x = widen(self)
    return finish(np.where(x == 0, widen(values), (x > 0).astype(x.dtype)), out.dtype)


@kernel("aten.lerp.Scalar", "aten.lerp.Tensor")
def lerp(out: Outputs, self: Array, end: Array, weight: Operand) -> Array:
    a, b = operand(self, out.dtype), operand(end, out.dtype)
    w = operand(weight, out.dtype) if isinstance(weight, np.ndarray) else np.asarray(weight, a.dtype)
    return finish(np.where(np.abs(w) < 0.5, a + w * (b - a), b - (b - a) * (1 - w)), out.dtype)


@kernel("aten.addcmul.default")
def addcmul(out: Outputs, self: Array, tensor1: Array, tensor2: Array, *, value: Number = 1) -> Array:
    a, b, c = (operand(x, out.dtype) for x in (self, tensor1, tensor2))
    return finish(a + np.asarray(value, a.dtype) * b * c, out.dtype)


@kernel("aten.addcdiv.default")
def addcdiv(out: Outputs, self: Array, tensor1: Array, tensor2: Array, *, value: Number = 1) -> Array:
    a, b, c = (operand(x, out.dtype) for x in (self, tensor1, tensor2))
    return finish(a + np.asarray(value, a.dtype) * b / c, out.dtype)


# --- bits, logic, comparison ------------------------------------------------------------------------------------


def _shift_left(x: Array, count: Array) -> Array:
    outside = (count < 0) | (count >= 8 * x.dtype.itemsize)
    return np.where(outside, np.zeros((), x.dtype), np.left_shift(x, np.where(outside, 0, count).astype(x.dtype)))


def _shift_right(x: Array, count: Array) -> Array:
    bits = 8 * x.dtype.itemsize
    outside = (count < 0) | (count >= bits)
    if x.dtype.kind == "u":
        shifted = np.right_shift(x, np.where(outside, 0, count).astype(x.dtype))
        return np.where(outside, np.zeros((), x.dtype), shifted)
    return np.asarray(np.right_shift(x, np.where(outside, bits - 1, count).astype(x.dtype)))


_BITWISE: tuple[_Named, ...] = (
    (("aten.bitwise_and.Tensor", "aten.bitwise_and.Scalar"), np.bitwise_and),
    (("aten.bitwise_or.Tensor", "aten.bitwise_or.Scalar"), np.bitwise_or),
    (("aten.bitwise_xor.Tensor", "aten.bitwise_xor.Scalar"), np.bitwise_xor),
    (
        (
            "aten.bitwise_left_shift.Tensor",
            "aten.bitwise_left_shift.Tensor_Scalar",
            "aten.__lshift__.Tensor",
            "aten.__lshift__.Scalar",
        ),
        _shift_left,
    ),
    (
        (
            "aten.bitwise_right_shift.Tensor",
            "aten.bitwise_right_shift.Tensor_Scalar",
            "aten.__rshift__.Tensor",
            "aten.__rshift__.Scalar",
        ),
        _shift_right,
    ),
)
for _names, _function in _BITWISE:
    kernel(*_names)(_binary(_function))


def _logical(function: Function) -> Callable[[Outputs, Array, Array], Array]:
    def run(out: Outputs, self: Array, other: Array) -> Array:
        return np.asarray(function(truth(self), truth(other)))

    return run


for _name, _function in {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}.items():
    kernel(f"aten.logical_{_name}.default")(_logical(_function))


def _comparison(function: Function) -> Callable[[Outputs, Array, Operand], Array]:
    def run(out: Outputs, self: Array, other: Operand) -> Array:
        dtype = common_type(self, other)
        return np.asarray(function(operand(self, dtype), operand(other, dtype)))

    return run


for _name, _function in {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}.items():
    kernel(f"aten.{_name}.Tensor", f"aten.{_name}.Scalar")(_comparison(_function))


# --- choice -----------------------------------------------------------------------------------------------------


def clamped(out: Outputs, self: Array, low: Operand | None, high: Operand | None) -> Array:
    """`self` between bounds; NaN in any of them stays, and where low exceeds high, high wins."""
    x = operand(self, out.dtype)
    if low is not None:
        x = np.maximum(x, operand(low, out.dtype))
    if high is not None:
        x = np.minimum(x, operand(high, out.dtype))
    return finish(x, out.dtype)


@kernel("aten.clamp.default", "aten.clamp.Tensor")
def clamp(out: Outputs, self: Array, min: Operand | None = None, max: Operand | None = None) -> Array:
    return clamped(out, self, min, max)


@kernel("aten.clamp_min.default", "aten.clamp_min.Tensor")
def clamp_min(out: Outputs, self: Array, min: Operand) -> Array:
    return clamped(out, self, min, None)


@kernel("aten.clamp_max.default", "aten.clamp_max.Tensor")
def clamp_max(out: Outputs, self: Array, max: Operand) -> Array:
    return clamped(out, self, None, max)


def _exactly(value: Operand, dtype: ScalarType) -> Array:
    """A value that is only moved: cast, but never widened."""
    return cast(value, dtype.numpy) if isinstance(value, np.ndarray) else number(value, dtype)


@kernel("aten.where.self", "aten.where.Scalar", "aten.where.ScalarSelf", "aten.where.ScalarOther")
def where(out: Outputs, condition: Array, self: Operand, other: Operand) -> Array:
    return np.where(cast(condition, np.dtype(np.bool_)), _exactly(self, out.dtype), _exactly(other, out.dtype))


@kernel("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(out: Outputs, self: Array, mask: Array, value: Operand) -> Array:
    return np.where(mask, _exactly(value, out.dtype), self)


@kernel("aten.isin.Tensor_Tensor")
def isin(
    out: Outputs, elements: Array, test_elements: Array, *, assume_unique: bool = False, invert: bool = False
) -> Array:
    dtype = common_type(elements, test_elements)
    return np.asarray(np.isin(operand(elements, dtype), operand(test_elements, dtype), invert=invert))


@kernel("aten.isclose.default")
def isclose(
    out: Outputs, self: Array, other: Array, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Array:
    a, b = widen(self), widen(other)
    close = a == b
    if equal_nan:
        close = close | (np.isnan(a) & np.isnan(b))
    if rtol == 0 and atol == 0:
        return np.asarray(close)
    allowed = atol + np.abs(rtol * b)
    difference = np.abs(a - b)
    return np.asarray(close | (np.isfinite(difference) & (difference <= allowed)))


@kernel("aten.frexp.Tensor")
def frexp(out: Outputs, self: Array) -> tuple[Array, Array]:
    mantissa, exponent = np.frexp(widen(self))
    return finish(np.asarray(mantissa), out.dtype), np.asarray(exponent, np.int32)
