"""Conversions between every pair of dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ptn_format.dtypes import ScalarType

INTEGERS = [
    ScalarType.BYTE,
    ScalarType.CHAR,
    ScalarType.SHORT,
    ScalarType.INT,
    ScalarType.LONG,
    ScalarType.UINT16,
    ScalarType.UINT32,
    ScalarType.UINT64,
]
FLOATS = [ScalarType.HALF, ScalarType.BFLOAT16, ScalarType.FLOAT, ScalarType.DOUBLE]


@pytest.mark.parametrize("source", list(ScalarType), ids=lambda t: t.torch_name)
@pytest.mark.parametrize("target", list(ScalarType), ids=lambda t: t.torch_name)
def test_small_values_convert_exactly(run: Any, source: ScalarType, target: ScalarType) -> None:
    values = np.arange(100).astype(source.numpy).reshape(4, 25)
    (found,) = run("cast.to", [values], [(target, values.shape)], threads=2)
    np.testing.assert_array_equal(found, values.astype(target.numpy))


@pytest.mark.parametrize("target", INTEGERS, ids=lambda t: t.torch_name)
def test_integers_keep_their_low_bits(run: Any, target: ScalarType) -> None:
    values = np.array([-1, 255, 256, -129, 2**31, -(2**31) - 1, 2**40 + 3, -(2**63), 2**63 - 1], np.int64)
    (found,) = run("cast.to", [values], [(target, values.shape)])
    np.testing.assert_array_equal(found, values.astype(target.numpy))


@pytest.mark.parametrize("source", FLOATS, ids=lambda t: t.torch_name)
@pytest.mark.parametrize("target", INTEGERS, ids=lambda t: t.torch_name)
def test_floats_truncate_towards_zero(run: Any, source: ScalarType, target: ScalarType) -> None:
    values = np.array([0.5, 1.5, 2.99, 100.75, 126.9], np.float64).astype(source.numpy)
    (found,) = run("cast.to", [values], [(target, values.shape)])
    np.testing.assert_array_equal(found, np.trunc(values.astype(np.float64)).astype(target.numpy))


@pytest.mark.parametrize("source", FLOATS, ids=lambda t: t.torch_name)
def test_everything_but_zero_is_true(run: Any, source: ScalarType) -> None:
    values = np.array([0.0, -0.0, 0.25, -1.0, np.nan, np.inf], np.float32).astype(source.numpy)
    (found,) = run("cast.to", [values], [(ScalarType.BOOL, values.shape)])
    assert found.tolist() == [False, False, True, True, True, True]


def test_all_half_values_survive_float(run: Any) -> None:
    values = np.arange(2**16, dtype=np.uint16).view(np.float16)
    (wide,) = run("cast.to", [values], [(ScalarType.FLOAT, values.shape)])
    np.testing.assert_array_equal(wide, values.astype(np.float32))
    (back,) = run("cast.to", [wide], [(ScalarType.HALF, values.shape)])
    finite = ~np.isnan(values)
    np.testing.assert_array_equal(back.view(np.uint16)[finite], values.view(np.uint16)[finite])
    assert np.isnan(back[~finite]).all()


@pytest.mark.parametrize("target", [ScalarType.HALF, ScalarType.BFLOAT16], ids=lambda t: t.torch_name)
def test_rounding_to_half_types_is_to_nearest_even(run: Any, target: ScalarType) -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 200_000, dtype=np.uint32)
    values = bits.view(np.float32)
    # Ties, and the neighbours of the largest finite and smallest normal numbers.
    edges = np.array([65504, 65519.996, 65520, 65535, 6.1035e-5, 5.96e-8, 2.98e-8, 2.99e-8, 1e-10, 3.4e38], np.float32)
    values = np.concatenate([values[~np.isnan(values)], edges, -edges])
    with np.errstate(over="ignore"):
        expected = values.astype(target.numpy)
    (found,) = run("cast.to", [values], [(target, values.shape)])
    np.testing.assert_array_equal(found.view(np.uint16), expected.view(np.uint16))


def test_floats_outside_an_integer_give_its_smallest_value(run: Any) -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1e30], np.float32)
    for target in (ScalarType.INT, ScalarType.LONG):
        (found,) = run("cast.to", [values], [(target, values.shape)])
        assert found.tolist() == [np.iinfo(target.numpy).min] * 4
