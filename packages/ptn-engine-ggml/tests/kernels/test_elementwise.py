"""Element-wise kernels: broadcasting, dtypes, threads, and what PyTorch does at the edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ptn_format.dtypes import ScalarType
from ptn_runtime.reference import evaluate

NUMBERS = [dtype for dtype in ScalarType if dtype is not ScalarType.BOOL]
FLOAT, LONG, BOOL = ScalarType.FLOAT, ScalarType.LONG, ScalarType.BOOL


def values(dtype: ScalarType, shape: tuple[int, ...], seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    if dtype.is_floating_point:
        return rng.normal(size=shape).astype(dtype.numpy)
    low = 0 if np.dtype(dtype.numpy).kind == "u" else -20
    return rng.integers(low, 20, shape).astype(dtype.numpy)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3, 4), (3, 4)),
        ((3, 1), (1, 4)),
        ((2, 3, 4), (4,)),
        ((4,), (2, 3, 4)),
        ((), (5,)),
        ((), ()),
        ((7, 1, 5, 1), (6, 1, 1000)),
        ((1, 2, 1, 2, 1, 2, 1), (2, 1, 2, 1, 2, 1, 2)),
        ((0, 3), (1, 3)),
        ((300, 1), (300, 3)),
    ],
)
@pytest.mark.parametrize("threads", [1, 3])
def test_broadcasting(run: Any, left: tuple[int, ...], right: tuple[int, ...], threads: int) -> None:
    a, b = values(FLOAT, left), values(FLOAT, right, 1)
    shape = np.broadcast_shapes(left, right)
    (found,) = run("elementwise.sub", [a, b], [(FLOAT, shape)], [int(FLOAT), 0], threads=threads)
    np.testing.assert_array_equal(found, a - b)


@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda t: t.torch_name)
@pytest.mark.parametrize("op", ["add", "sub", "mul", "maximum", "minimum"])
def test_arithmetic_of_all_types(run: Any, op: str, dtype: ScalarType) -> None:
    a, b = values(dtype, (50, 41)), values(dtype, (41,), 1)
    name = f"aten.{op}.Tensor" if op in ("add", "sub", "mul") else f"aten.{op}.default"
    (expected,) = evaluate(name, {"self": a, "other": b})
    (found,) = run(f"elementwise.{op}", [a, b], [(dtype, a.shape)], [int(dtype), 0])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda t: t.torch_name)
@pytest.mark.parametrize("op", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons_of_all_types(run: Any, op: str, dtype: ScalarType) -> None:
    a, b = values(dtype, (1, 700)), values(dtype, (3, 700), 1)
    (expected,) = evaluate(f"aten.{op}.Tensor", {"self": a, "other": b})
    (found,) = run(f"elementwise.{op}", [a, b], [(BOOL, b.shape)], [int(dtype), 0])
    np.testing.assert_array_equal(found, expected)


def test_operands_convert_to_the_computed_type(run: Any) -> None:
    a, b = values(ScalarType.CHAR, (9, 8)), values(ScalarType.HALF, (8,))
    (found,) = run("elementwise.add", [a, b], [(FLOAT, a.shape)], [int(FLOAT), 0])
    np.testing.assert_array_equal(found, a.astype(np.float32) + b.astype(np.float32))


@pytest.mark.parametrize("dtype", [FLOAT, LONG], ids=lambda t: t.torch_name)
def test_scalars_stand_in_for_any_operand(run: Any, dtype: ScalarType) -> None:
    x = values(dtype, (5, 6))
    floats, ints = ([2.0], []) if dtype is FLOAT else ([], [2])
    (left,) = run("elementwise.sub", [x], [(dtype, x.shape)], [int(dtype), 1, *ints], floats)
    np.testing.assert_array_equal(left, (2 - x).astype(dtype.numpy))
    (right,) = run("elementwise.sub", [x], [(dtype, x.shape)], [int(dtype), 2, *ints], floats)
    np.testing.assert_array_equal(right, (x - 2).astype(dtype.numpy))


def test_scalars_of_half_computations_are_not_rounded(run: Any) -> None:
    x = np.full(3, 100.0, np.float16)
    (found,) = run("elementwise.mul", [x], [(ScalarType.HALF, (3,))], [int(ScalarType.HALF), 2], [0.1001])
    np.testing.assert_array_equal(found, np.full(3, np.float32(100) * np.float32(0.1001)).astype(np.float16))


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_share_the_work_without_gaps(run: Any, threads: int) -> None:
    for count in (16383, 16385, 100_001, 262_144):
        x = values(LONG, (count,))
        (found,) = run("elementwise.neg", [x], [(LONG, x.shape)], [int(LONG), 0], threads=threads)
        np.testing.assert_array_equal(found, -x)


def test_in_place(run: Any) -> None:
    a, b = values(FLOAT, (100, 1000)), values(FLOAT, (1000,), 1)
    ints = [int(FLOAT), 0]
    (found,) = run("elementwise.add", [a, b], [(FLOAT, a.shape)], ints, threads=2, in_place=True)
    np.testing.assert_array_equal(found, a + b)


@pytest.mark.parametrize("dtype", [ScalarType.CHAR, ScalarType.INT, LONG], ids=lambda t: t.torch_name)
def test_integer_division_of_all_signs(run: Any, dtype: ScalarType) -> None:
    least = np.iinfo(dtype.numpy).min
    pairs = [(7, 2), (-7, 2), (7, -2), (-7, -2), (6, 3), (-6, -3), (0, 5), (least, -1)]
    a, b = (np.array(column, dtype.numpy) for column in zip(*pairs, strict=True))
    expected = {
        "div_floor": [x // y for x, y in pairs[:-1]],
        "div_trunc": [int(x / y) for x, y in pairs[:-1]],
        "remainder": [x % y for x, y in pairs[:-1]],
        "fmod": [x - int(x / y) * y for x, y in pairs[:-1]],
    }
    for name, numbers in expected.items():
        (found,) = run(f"elementwise.{name}", [a, b], [(dtype, a.shape)], [int(dtype), 0])
        # The quotient of the least integer by -1 wraps to itself.
        assert found.tolist() == [*numbers, least if name.startswith("div") else 0]


def test_integer_division_by_zero_is_an_error(run: Any) -> None:
    a = np.array([1, 2], np.int32)
    with pytest.raises(RuntimeError, match=r"elementwise\.div_floor: integer division by zero"):
        run("elementwise.div_floor", [a, np.array([1, 0], np.int32)], [(ScalarType.INT, (2,))], [3, 0])


def test_nan_passes_through(run: Any) -> None:
    x = np.array([np.nan, 1.0, np.nan], np.float32)
    y = np.array([0.0, np.nan, np.nan], np.float32)
    for name in ("maximum", "minimum"):
        (found,) = run(f"elementwise.{name}", [x, y], [(FLOAT, (3,))], [int(FLOAT), 0])
        assert np.isnan(found).all()
    (clamped,) = run("elementwise.clamp", [x], [(FLOAT, (3,))], [int(FLOAT), 6], [0.0, 0.5])
    np.testing.assert_array_equal(clamped, np.array([np.nan, 0.5, np.nan], np.float32))
    (relu,) = run("elementwise.relu", [x], [(FLOAT, (3,))], [int(FLOAT), 0])
    np.testing.assert_array_equal(relu, x)


def test_round_goes_to_even(run: Any) -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 1e20], np.float32)
    (found,) = run("elementwise.round", [x], [(FLOAT, x.shape)], [int(FLOAT), 0])
    np.testing.assert_array_equal(found, np.array([0, 2, 2, -0.0, -2, 1e20], np.float32))


def test_where_selects_without_computing(run: Any) -> None:
    condition = np.array([True, False, True])
    a, b = np.array([1.0, np.nan, np.inf], np.float32), np.array([np.nan, 2.0, -np.inf], np.float32)
    (found,) = run("elementwise.where", [condition, a, b], [(FLOAT, (3,))], [int(FLOAT), 0])
    np.testing.assert_array_equal(found, np.array([1.0, 2.0, np.inf], np.float32))


def test_powers_of_integers_wrap(run: Any) -> None:
    base, exponent = np.array([3, -2, 2, 1, -1, 5], np.int64), np.array([5, 63, 64, -3, -3, -1], np.int64)
    (found,) = run("elementwise.pow", [base, exponent], [(LONG, base.shape)], [int(LONG), 0])
    assert found.tolist() == [243, -(2**63), 0, 1, -1, 0]


def test_shapes_that_do_not_broadcast_are_refused(run: Any) -> None:
    with pytest.raises(RuntimeError, match="does not broadcast"):
        run("elementwise.add", [np.zeros(3, np.float32), np.zeros(2, np.float32)], [(FLOAT, (3,))], [int(FLOAT), 0])
