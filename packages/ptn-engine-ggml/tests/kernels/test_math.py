"""The vectorised functions of float32: errors in units of the last place over all magnitudes, and special values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ptn_format.dtypes import ScalarType

FLOAT = ScalarType.FLOAT
ERF = np.vectorize(math.erf, otypes=[np.float64])
Function = Callable[[Any], Any]

# Large angles are left to the C library, whose errors are larger.
FUNCTIONS: dict[str, tuple[Function, float]] = {
    "exp": (np.exp, 0.51),
    "exp2": (np.exp2, 0.51),
    "expm1": (np.expm1, 0.51),
    "log": (np.log, 0.51),
    "log2": (np.log2, 0.51),
    "log10": (np.log10, 0.51),
    "log1p": (np.log1p, 0.51),
    "tanh": (np.tanh, 0.51),
    "erf": (ERF, 0.51),
    "sin": (np.sin, 1.0),
    "cos": (np.cos, 1.0),
    "tan": (np.tan, 1.0),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 0.51),
    "silu": (lambda x: x / (1 + np.exp(-x)), 0.51),
    "mish": (lambda x: x * np.tanh(np.log1p(np.exp(np.minimum(x, 700)))), 0.51),
}


def arguments() -> Any:
    """Floats of every magnitude and sign, and many of common size."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 300_000, dtype=np.uint32).view(np.float32)
    return np.concatenate([bits[np.isfinite(bits)], rng.normal(scale=5, size=300_000).astype(np.float32)])


def apply(run: Any, name: str, x: Any) -> Any:
    return run(f"elementwise.{name}", [x], [(FLOAT, x.shape)], [int(FLOAT), 0])[0]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_accuracy(run: Any, name: str) -> None:
    function, limit = FUNCTIONS[name]
    x = arguments()
    with np.errstate(all="ignore"):
        exact = function(x.astype(np.float64))
        rounded = exact.astype(np.float32)
    found = apply(run, name, x)
    comparable = np.isfinite(rounded)
    np.testing.assert_array_equal(found[~comparable], rounded[~comparable])
    exact, found = exact[comparable], found[comparable].astype(np.float64)
    unit = np.spacing(np.maximum(np.abs(rounded[comparable]), np.float32(1.2e-38))).astype(np.float64)
    errors = np.abs(found - exact) / unit
    worst = int(errors.argmax())
    assert errors[worst] <= limit, f"{name}({x[comparable][worst]!r}): {found[worst]!r}, exactly {exact[worst]!r}"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values(run: Any, name: str) -> None:
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3.4e38, -3.4e38], np.float32)
    with np.errstate(all="ignore"):
        if name in ("silu", "mish"):
            expected = np.array([0, 0, np.inf, np.nan, np.nan, 0, 3.4e38, 0], np.float32)
        else:
            expected = FUNCTIONS[name][0](x.astype(np.float64)).astype(np.float32)
    found = apply(run, name, x).copy()
    if name in ("silu", "mish"):
        found[5], found[3] = 0, np.nan
    np.testing.assert_array_equal(found, expected)


def test_powers(run: Any) -> None:
    rng = np.random.default_rng(0)
    base = np.exp(rng.uniform(-80, 80, 200_000)).astype(np.float32)
    exponent = rng.normal(scale=3, size=base.shape).astype(np.float32)
    spec = [(FLOAT, base.shape)]
    (found,) = run("elementwise.pow", [base, exponent], spec, [int(FLOAT), 0])
    with np.errstate(all="ignore"):
        exact = base.astype(np.float64) ** exponent.astype(np.float64)
        expected = exact.astype(np.float32)
    unit = np.spacing(np.minimum(np.maximum(np.abs(expected), np.float32(1.2e-38)), np.float32(3e38)))
    finite = np.isfinite(expected)
    assert (np.abs(found[finite] - exact[finite]) / unit[finite]).max() <= 0.51
    np.testing.assert_array_equal(found[~finite], expected[~finite])


def test_powers_of_other_numbers(run: Any) -> None:
    base = np.array([-2, -2, 0, 0, np.inf, -np.inf, np.nan, 1, 4], np.float32)
    exponent = np.array([3, 0.5, 0, -1, 2, 3, 0, np.nan, np.inf], np.float32)
    (found,) = run("elementwise.pow", [base, exponent], [(FLOAT, base.shape)], [int(FLOAT), 0])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found, base**exponent)


def test_gelu_keeps_its_tails(run: Any) -> None:
    x = np.linspace(-12, 12, 100_001).astype(np.float32)
    wide = x.astype(np.float64)
    exact = 0.5 * wide * (1 + ERF(wide / math.sqrt(2)))
    np.testing.assert_allclose(apply(run, "gelu", x), exact, rtol=1e-6, atol=1e-7)
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    exact = 0.5 * wide * (1 + np.tanh(inner))
    np.testing.assert_allclose(apply(run, "gelu_tanh", x), exact, rtol=1e-6, atol=1e-7)
