"""Fits the polynomials of `native/kernels/math.h` and prints them as C++ constants with their largest errors.

Run it by hand where an interval or a degree changes: `python tools/fit_math.py`. Needs numpy alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
Function = Callable[[Array], Array]

LN2 = math.log(2.0)
ERF = np.vectorize(math.erf)
ERFC = np.vectorize(math.erfc)


def fit(function: Function, low: float, high: float, degree: int, weight: Function) -> tuple[Array, float]:
    """A polynomial whose weighted error is nearly minimax: least squares, reweighted where the error is large.

    Returns:
        Coefficients from the constant on, and the largest weighted error.
    """
    x = np.cos(np.pi * (np.arange(4000) + 0.5) / 4000) * (high - low) / 2 + (low + high) / 2
    powers, values, wanted = np.vander(x, degree + 1, increasing=True), function(x), weight(x)
    emphasis = np.ones_like(x)
    best, best_error = np.zeros(degree + 1), math.inf
    for _ in range(80):
        scale = wanted * np.sqrt(emphasis)
        coefficients = np.linalg.lstsq(powers * scale[:, None], values * scale, rcond=None)[0]
        error = np.abs((powers @ coefficients - values) * wanted)
        if error.max() < best_error:
            best, best_error = coefficients, float(error.max())
        emphasis *= error / error.max() + 1e-3
        emphasis /= emphasis.sum()
    return best, best_error


def exp_tail(r: Array) -> Array:
    """(exp(r) - 1 - r) / r^2, by its series, which does not cancel."""
    return sum(r**k / math.factorial(k + 2) for k in range(14))  # type: ignore[return-value]


def log_tail(t: Array) -> Array:
    """(atanh(s) / s - 1) / s^2 of t = s^2."""
    return sum(t**k / (2 * k + 3) for k in range(24))  # type: ignore[return-value]


def sin_tail(t: Array) -> Array:
    """(sin(r) / r - 1) / r^2 of t = r^2."""
    return sum((-1) ** (k + 1) * t**k / math.factorial(2 * k + 3) for k in range(10))  # type: ignore[return-value]


def cos_tail(t: Array) -> Array:
    """(cos(r) - 1) / r^2 of t = r^2."""
    return sum((-1) ** (k + 1) * t**k / math.factorial(2 * k + 2) for k in range(10))  # type: ignore[return-value]


def erf_near(t: Array) -> Array:
    """erf(x) / x of t = x^2."""
    x = np.sqrt(t)
    return np.asarray(ERF(x) / x)


def erf_far(x: Array) -> Array:
    """-log(erfc(x))."""
    return -np.log(ERFC(x))


def main() -> None:
    """Prints every polynomial."""
    quarter = (math.pi / 4) ** 2
    log_end = ((math.sqrt(2) - 1) / (math.sqrt(2) + 1)) ** 2
    fits = {
        "kExp": fit(exp_tail, -LN2 / 2, LN2 / 2, 5, lambda r: r * r / np.exp(r)),
        "kLog": fit(log_tail, 0.0, log_end, 3, lambda t: t),
        "kSin": fit(sin_tail, 0.0, quarter, 3, lambda t: t),
        "kCos": fit(cos_tail, 0.0, quarter, 4, lambda t: t),
        "kErfNear": fit(erf_near, 1e-9, 1.0, 7, lambda t: np.sqrt(t) / ERF(np.sqrt(t))),
        "kErfFar": fit(erf_far, 0.95, 4.0, 8, lambda x: ERFC(x) / ERF(x)),
    }
    for name, (coefficients, error) in fits.items():
        numbers = ", ".join(f"{value!r}" for value in coefficients.tolist())
        print(f"// largest relative error {error:.1e}\nconstexpr double {name}[] = {{{numbers}}};")


if __name__ == "__main__":
    main()
