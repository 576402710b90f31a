"""Functions that numpy lacks: the error function and its kin, the logarithm of the gamma function.

The coefficients were fitted for this module with 40-digit arithmetic: `_ERF_*` is a rational function of x^2 that gives
erf(x)/x on [0, 4] within 7e-9, `_ERF_SERIES` the Chebyshev interpolant of erf(x)/x on [0, 1],
`_ERFCX` that of (1 + 2x) exp(x^2) erfc(x) in the variable (x - 3.75) / (x + 3.75).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ptn_runtime.reference.registry import Array

__all__ = ["digamma", "erf", "erfc", "erfinv", "lgamma"]

_ERF_NUMERATOR = (
    1.1283791746392737,
    0.18474454395624854,
    0.054349904654320554,
    0.0038429806799628696,
    0.00038331922868858035,
    4.794497411535393e-06,
    -1.3734409721817907e-08,
)
_ERF_DENOMINATOR = (
    1.0,
    0.49705908107062935,
    0.11385186342134729,
    0.015461915208881722,
    0.0013111986675737228,
    6.41497046103383e-05,
)
_ERF_SERIES = (
    1.1283791670955126,
    -0.3761263890318375,
    0.11283791670954879,
    -0.026866170645076792,
    0.0052239776248180145,
    -0.000854832698083379,
    0.0001205533111164271,
    -1.4925595266831182e-05,
    1.6461000484121368e-06,
    -1.6350312701054695e-07,
    1.4659775274047436e-08,
    -1.1372848856791674e-09,
    5.957176147748911e-11,
)
_ERFCX = (
    1.1775789345674017,
    -0.004590054580646478,
    -0.08424913336651792,
    0.05920993999819189,
    -0.026658668435305753,
    0.009074997670705265,
    -0.002413163540417608,
    0.0004907758365258086,
    -6.916973302501207e-05,
    4.13902798607301e-06,
    7.74038306619849e-07,
    -2.1886401049234397e-07,
    1.076499946567091e-08,
    4.521959811218287e-09,
    -7.754400208831351e-10,
    -6.318088340886684e-11,
    2.86879501093067e-11,
    1.9455868545777938e-13,
    -9.654696748433504e-13,
    3.2525481481363487e-14,
    3.3478119482752794e-14,
    -1.8645628782428707e-15,
    -1.250795046938718e-15,
    7.418231959528878e-17,
)


def _polynomial(coefficients: Sequence[float], x: Array) -> Array:
    """Horner's scheme, lowest coefficient first; in place, since these arrays are the engine's hot spot."""
    result = np.full(x.shape, coefficients[-1], x.dtype)
    for coefficient in coefficients[-2::-1]:
        result *= x
        result += x.dtype.type(coefficient)
    return result


def _chebyshev(coefficients: Sequence[float], x: Array) -> Array:
    """Clenshaw's recurrence."""
    twice = 2 * x
    high = np.zeros_like(x)
    low = np.zeros_like(x)
    for coefficient in coefficients[:0:-1]:
        high, low = coefficient + twice * high - low, high
    return np.asarray(coefficients[0] + x * high - low)


def _erfc_positive(x: Array) -> Array:
    """Erfc for x >= 0 in double precision, with full relative accuracy in the tail."""
    scaled = _chebyshev(_ERFCX, (x - 3.75) / (x + 3.75)) / (1 + 2 * x)
    # exp(-x^2) from a rounded square would lose digits: split x so that its leading part squares exactly.
    leading = np.trunc(x * 16) / 16
    return np.asarray(np.exp(-leading * leading) * np.exp(-(x - leading) * (x + leading)) * scaled)


def erf(x: Array) -> Array:
    """The error function, in float32 or float64."""
    x = np.asarray(x)
    if x.dtype == np.float32:
        # Evaluated in float64, since 1 + erf(x) loses what float32 would round away.
        bounded = np.minimum(np.maximum(x, np.float32(-4)), np.float32(4)).astype(np.float64)
        square = bounded * bounded
        ratio = bounded * _polynomial(_ERF_NUMERATOR, square) / _polynomial(_ERF_DENOMINATOR, square)
        return np.asarray(np.minimum(np.maximum(ratio, -1), 1)).astype(np.float32)
    small = np.minimum(np.abs(x), 1)
    near = small * _polynomial(_ERF_SERIES, np.asarray(small * small))
    far = 1 - _erfc_positive(np.minimum(np.maximum(np.abs(x), 1), 27))
    return np.asarray(np.copysign(np.where(np.abs(x) < 1, near, far), x))


def erfc(x: Array) -> Array:
    """The complement 1 - erf(x), accurate where it is small."""
    wide = np.asarray(x, np.float64)
    tail = _erfc_positive(np.minimum(np.abs(wide), 28))
    result = np.where(wide > 0.5, tail, np.where(wide < -0.5, 2 - tail, 1 - erf(wide)))
    return result.astype(x.dtype)


def erfinv(x: Array) -> Array:
    """The inverse of erf: Winitzki's approximation, then Newton steps on the smaller tail."""
    wide = np.asarray(x, np.float64)
    size = np.abs(wide)
    log = np.log1p(-size * size)
    half = 2 / (math.pi * 0.147) + log / 2
    y = np.sqrt(np.maximum(np.sqrt(half * half - log / 0.147) - half, 0))
    for _ in range(4):
        # The error of the tail, 1 - |x|, keeps its digits where erf(y) is close to 1.
        error = np.where(size < 0.5, size - erf(y), erfc(y) - (1 - size))
        step = error / (2 / math.sqrt(math.pi)) * np.exp(y * y)
        y = np.where(np.isfinite(step), y + step / (1 - y * step), y)
    result = np.where(size < 1, np.copysign(y, wide), np.where(size == 1, np.copysign(np.inf, wide), np.nan))
    return result.astype(x.dtype)


# Stirling's series: B(2k) / (2k (2k - 1)) for lgamma, B(2k) / 2k for digamma.
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
_ASYMPTOTIC = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
_SHIFT = 12


def _lgamma_positive(x: Array) -> Array:
    """Lgamma for x > 0: the argument is moved beyond 12, where Stirling's series has full precision."""
    product = np.ones_like(x)
    moved = x.copy()
    for _ in range(_SHIFT):
        below = moved < _SHIFT
        product = np.where(below, product * moved, product)
        moved = np.where(below, moved + 1, moved)
    series = _polynomial(_STIRLING, np.asarray(1 / (moved * moved))) / moved
    return np.asarray((moved - 0.5) * np.log(moved) - moved + 0.5 * math.log(2 * math.pi) + series - np.log(product))


def lgamma(x: Array) -> Array:
    """The logarithm of the absolute value of the gamma function."""
    wide = np.asarray(x, np.float64)
    positive = np.where(wide > 0, wide, 1 - wide)
    result = np.asarray(_lgamma_positive(np.where(np.isfinite(positive), positive, 1.0)))
    sine = np.abs(np.sin(math.pi * (wide - np.rint(wide))))
    reflected = math.log(math.pi) - np.log(sine) - result
    pole = (wide <= 0) & (wide == np.trunc(wide))
    result = np.where(pole, np.inf, np.where(wide > 0, result, reflected))
    return np.where(np.isinf(wide), np.inf, np.where(np.isnan(wide), wide, result)).astype(x.dtype)


def digamma(x: Array) -> Array:
    """The derivative of the logarithm of the gamma function; NaN at negative integers."""
    wide = np.asarray(x, np.float64)
    reflect = wide < 0.5
    moved = np.where(reflect, 1 - wide, wide)
    moved = np.where(np.isfinite(moved), moved, 1.0)
    result = np.zeros_like(moved)
    for _ in range(_SHIFT):
        below = moved < _SHIFT
        result = np.where(below, result - 1 / moved, result)
        moved = np.where(below, moved + 1, moved)
    square = 1 / (moved * moved)
    result = result + np.log(moved) - 0.5 / moved - square * _polynomial(_ASYMPTOTIC, np.asarray(square))
    cotangent = math.pi / np.tan(math.pi * (wide - np.rint(wide)))
    result = np.where(reflect, result - cotangent, result)
    result = np.where((wide < 0) & (wide == np.trunc(wide)), np.nan, result)
    result = np.where(wide == 0, np.copysign(np.inf, -wide), result)
    result = np.where(wide == np.inf, np.inf, np.where(np.isfinite(wide), result, np.nan))
    return np.where(wide == np.inf, np.inf, result).astype(x.dtype)
