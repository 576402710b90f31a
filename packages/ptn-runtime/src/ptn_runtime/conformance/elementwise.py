"""Cases of the family `elementwise`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from ptn_format.dtypes import ScalarType as T

from ptn_runtime.conformance.case import Array, Case, floats, integers

FLOATING = (T.FLOAT, T.HALF, T.BFLOAT16, T.DOUBLE)
INTEGRAL = (T.LONG, T.INT, T.SHORT, T.CHAR, T.BYTE)
NAN, INF = float("nan"), float("inf")
SPECIAL = np.array([NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 3.5, -2.5, 0.5, 1.5, 1e30, -1e30, 1e-30], np.float32)

# operator: the range in which it is defined
UNARY = {
    "abs": (-3, 3), "acos": (-1, 1), "acosh": (1, 5), "asin": (-1, 1), "asinh": (-3, 3), "atan": (-3, 3),
    "atanh": (-0.9, 0.9), "ceil": (-3, 3), "cos": (-9, 9), "cosh": (-3, 3), "erf": (-3, 3), "exp": (-4, 4),
    "expm1": (-2, 2), "floor": (-3, 3), "gelu": (-4, 4), "isinf": (-3, 3), "isnan": (-3, 3), "log": (0.01, 9),
    "log10": (0.01, 9), "log1p": (-0.9, 9), "log2": (0.01, 9), "logical_not": (-3, 3), "neg": (-3, 3),
    "reciprocal": (0.1, 3), "relu": (-3, 3), "round": (-3, 3), "rsqrt": (0.1, 9), "sigmoid": (-6, 6), "sign": (-3, 3),
    "sin": (-9, 9), "sinh": (-3, 3), "sqrt": (0, 9), "tan": (-1.4, 1.4), "tanh": (-4, 4), "trunc": (-3, 3),
}  # fmt: skip
ON_INTEGERS = (
    "abs",
    "ceil",
    "exp",
    "floor",
    "logical_not",
    "neg",
    "relu",
    "round",
    "sign",
    "sin",
    "sqrt",
    "tanh",
    "trunc",
)
EXACT_ON_SPECIAL = (
    "abs", "ceil", "floor", "isinf", "isnan", "logical_not", "neg", "reciprocal", "relu", "round", "rsqrt", "sign",
    "sqrt", "trunc", "sigmoid", "tanh", "exp", "log", "erf",
)  # fmt: skip
BINARY = ("add", "sub", "mul")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
LOGICAL = ("logical_and", "logical_or", "logical_xor")
BITWISE = ("bitwise_and", "bitwise_or", "bitwise_xor")


def array(values: Any, dtype: T = T.FLOAT) -> Array:
    return np.array(values, dtype.numpy)


def unary() -> Iterator[Case]:
    for name, (low, high) in UNARY.items():
        op = f"aten.{name}.default"
        for dtype in FLOATING:
            yield Case(op, dtype.torch_name, {"self": floats(2, 3, 17, dtype=dtype, low=low, high=high)})
        yield Case(op, "0-d", {"self": array((low + high) / 2 + 0.25)})
        yield Case(op, "empty", {"self": array(np.zeros((0, 3)))})
        yield Case(op, "rank 6", {"self": floats(2, 1, 3, 1, 2, 5, low=low, high=high)})
        if name in ON_INTEGERS:
            for dtype in (T.LONG, T.INT, T.CHAR):
                yield Case(op, dtype.torch_name, {"self": integers(4, 5, dtype=dtype, low=0, high=4)})
        if name in EXACT_ON_SPECIAL:
            yield Case(op, "nan and inf", {"self": SPECIAL})
    yield Case("aten.gelu.default", "tanh", {"self": floats(4, 33), "approximate": "tanh"})
    half_way = array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5])
    even = (array([-2.0, -2.0, -0.0, 0.0, 2.0, 2.0, 4.0]),)
    yield Case("aten.round.default", "half to even", {"self": half_way}, even)
    yield Case("aten.relu.default", "nan stays", {"self": array([NAN, -1, 2])}, (array([NAN, 0, 2]),))
    for dtype in INTEGRAL:
        yield Case("aten.bitwise_not.default", dtype.torch_name, {"self": integers(3, 5, dtype=dtype, low=0, high=9)})
    yield Case(
        "aten.bitwise_not.default", "bool", {"self": array([True, False], T.BOOL)}, (array([False, True], T.BOOL),)
    )


def binary() -> Iterator[Case]:
    for name in BINARY:
        op = f"aten.{name}.Tensor"
        for dtype in (*FLOATING, *INTEGRAL):
            make = floats if dtype.is_floating_point else integers
            yield Case(
                op, dtype.torch_name, {"self": make(3, 4, 5, dtype=dtype), "other": make(3, 4, 5, dtype=dtype, seed=1)}
            )
        yield Case(op, "broadcast right", {"self": floats(2, 3, 4), "other": floats(4, seed=1)})
        yield Case(op, "broadcast left", {"self": floats(1, 4), "other": floats(2, 3, 4, seed=1)})
        yield Case(op, "broadcast both", {"self": floats(3, 1, 5), "other": floats(2, 1, 4, 1, seed=1)})
        yield Case(op, "rank 6", {"self": floats(2, 1, 2, 3, 1, 4), "other": floats(2, 2, 2, 1, 3, 1, seed=1)})
        yield Case(op, "0-d and 0-d", {"self": array(2.5), "other": array(-1.5)})
        yield Case(op, "empty", {"self": array(np.zeros((0, 3))), "other": floats(3)})
        yield Case(op, "weight", {"self": floats(4, 8), "other": floats(8, seed=1)}, constants=frozenset({"other"}))
        yield Case(op, "int64 and float32", {"self": integers(3, 4), "other": floats(4, seed=1)})
        yield Case(op, "float16 and 0-d float32", {"self": floats(5, dtype=T.HALF), "other": array(0.5)})
        yield Case(op, "int32 and 0-d int64", {"self": integers(5, dtype=T.INT), "other": array(3, T.LONG)})
        yield Case(
            op, "uint8 and int8", {"self": integers(5, dtype=T.BYTE, low=0), "other": integers(5, dtype=T.CHAR, seed=1)}
        )
        yield Case(f"aten.{name}.Scalar", "float32", {"self": floats(3, 5), "other": 1.5})
        yield Case(f"aten.{name}.Scalar", "int64 with float", {"self": integers(3, 5), "other": 0.5})
        yield Case(f"aten.{name}.Scalar", "int32 with int", {"self": integers(3, 5, dtype=T.INT), "other": 3})
    yield Case("aten.add.Tensor", "alpha", {"self": floats(3, 4), "other": floats(3, 4, seed=1), "alpha": 2.5})
    yield Case("aten.sub.Tensor", "alpha", {"self": integers(3, 4), "other": integers(3, 4, seed=1), "alpha": 3})
    big = array([2**40, -(2**40), 2**62], T.LONG)
    yield Case("aten.add.Tensor", "beyond int32", {"self": big, "other": array([1, 1, 1], T.LONG)}, (big + 1,))
    yield Case("aten.mul.Tensor", "bools", {"self": array([True, False], T.BOOL), "other": array([True, True], T.BOOL)})
    yield Case(
        "aten.add.Tensor", "bool and int64", {"self": array([True, False], T.BOOL), "other": array([5, 6], T.LONG)}
    )


def division() -> Iterator[Case]:
    left = array([7, -7, 7, -7, 0], T.LONG)
    right = array([2, 2, -2, -2, 5], T.LONG)
    quotients = (array([3.5, -3.5, -3.5, 3.5, 0.0]),)
    yield Case("aten.div.Tensor", "integers give float32", {"self": left, "other": right}, quotients)
    yield Case("aten.div.Tensor", "float32", {"self": floats(3, 4), "other": floats(4, low=0.5, seed=1)})
    yield Case(
        "aten.div.Tensor", "by zero", {"self": array([1, -1, 0]), "other": array([0, 0, 0])}, (array([INF, -INF, NAN]),)
    )
    yield Case("aten.div.Scalar", "float32", {"self": floats(3, 4), "other": 3})
    for dtype in (T.LONG, T.INT, T.FLOAT):
        pair = {"self": left.astype(dtype.numpy), "other": right.astype(dtype.numpy)}
        for mode, values in (("floor", [3, -4, -4, 3, 0]), ("trunc", [3, -3, -3, 3, 0])):
            want = (array(values, dtype),)
            name = f"{mode} {dtype.torch_name}"
            if dtype is not T.FLOAT or mode != "trunc":
                yield Case("aten.div.Tensor_mode", name, {**pair, "rounding_mode": mode}, want)
        yield Case("aten.remainder.Tensor", dtype.torch_name, pair, (array([1, 1, -1, -1, 0], dtype),))
        yield Case("aten.fmod.Tensor", dtype.torch_name, pair, (array([1, -1, 1, -1, 0], dtype),))
    yield Case("aten.div.Scalar_mode", "floor", {"self": left, "other": 2, "rounding_mode": "floor"})
    yield Case("aten.remainder.Scalar", "float32", {"self": floats(9), "other": -0.75})
    yield Case("aten.fmod.Scalar", "float32", {"self": floats(9), "other": 0.75})


def powers() -> Iterator[Case]:
    for exponent in (0, 1, 2, 3, -1, 0.5, -0.5, 2.5):
        yield Case(
            "aten.pow.Tensor_Scalar", f"float32 to the {exponent}", {"self": floats(9, low=0.1), "exponent": exponent}
        )
    yield Case("aten.pow.Tensor_Scalar", "negative base", {"self": floats(9), "exponent": 3})
    yield Case("aten.pow.Tensor_Scalar", "negative base, fraction", {"self": array([-2.0, 4.0]), "exponent": 0.5})
    yield Case("aten.pow.Tensor_Scalar", "int64", {"self": integers(9), "exponent": 3})
    yield Case("aten.pow.Tensor_Tensor", "float32", {"self": floats(3, 4, low=0.1), "exponent": floats(4, seed=1)})
    yield Case("aten.pow.Scalar", "float32", {"self": 2.0, "exponent": floats(7)})


def extremes() -> Iterator[Case]:
    left, right = array([NAN, 1, 2, NAN, -0.0]), array([1, NAN, 3, NAN, 0.0])
    nans = {"maximum": [NAN, NAN, 3, NAN], "minimum": [NAN, NAN, 2, NAN]}
    for name, values in nans.items():
        op = f"aten.{name}.default"
        yield Case(op, "nan wins", {"self": left[:4], "other": right[:4]}, (array(values),))
        for dtype in (T.FLOAT, T.HALF, T.BFLOAT16, T.LONG, T.INT, T.BYTE):
            make = floats if dtype.is_floating_point else integers
            low = 0 if dtype is T.BYTE else -5
            yield Case(
                op,
                dtype.torch_name,
                {"self": make(3, 4, dtype=dtype, low=low), "other": make(4, dtype=dtype, low=low, seed=1)},
            )
    yield Case("aten.clamp.default", "both", {"self": SPECIAL, "min": -1.0, "max": 2.0})
    yield Case("aten.clamp.default", "only min", {"self": floats(9), "min": 0.5})
    yield Case("aten.clamp.default", "only max", {"self": floats(9), "max": 0.5})
    yield Case("aten.clamp.default", "min above max", {"self": floats(9), "min": 2.0, "max": 1.0})
    yield Case("aten.clamp.default", "int64", {"self": integers(9), "min": -2, "max": 2})
    yield Case(
        "aten.clamp.Tensor",
        "bounds",
        {"self": floats(3, 4), "min": floats(4, low=-2, high=0), "max": floats(3, 1, low=0, high=2)},
    )
    yield Case("aten.hardtanh.default", "relu6", {"self": floats(20, low=-9, high=9), "min_val": 0.0, "max_val": 6.0})
    yield Case("aten.hardtanh.default", "nan stays", {"self": array([NAN, 9, -9])}, (array([NAN, 1, -1]),))
    yield Case("aten.leaky_relu.default", "slope", {"self": floats(20), "negative_slope": 0.2})
    yield Case("aten.elu.default", "alpha", {"self": floats(20), "alpha": 1.5})
    yield Case("aten.atan2.default", "quadrants", {"self": floats(9), "other": floats(9, seed=1)})


def comparisons() -> Iterator[Case]:
    for name in COMPARISONS:
        op = f"aten.{name}.Tensor"
        pair = {"self": array([1, 2, 3, NAN, INF, -INF]), "other": array([1, 3, 2, NAN, INF, INF])}
        yield Case(op, "nan and inf", pair)
        for dtype in (T.FLOAT, T.HALF, T.LONG, T.INT, T.BYTE):
            make = floats if dtype.is_floating_point else integers
            low = 0 if dtype is T.BYTE else -2
            yield Case(
                op,
                dtype.torch_name,
                {"self": make(5, 6, dtype=dtype, low=low), "other": make(6, dtype=dtype, low=low, seed=1)},
            )
        yield Case(
            op,
            "int64 beyond 2^53",
            {"self": array([2**53, 2**53 + 1], T.LONG), "other": array([2**53 + 1, 2**53 + 1], T.LONG)},
        )
        yield Case(op, "int64 and float32", {"self": integers(9), "other": floats(9, seed=1)})
        yield Case(f"aten.{name}.Scalar", "float32", {"self": floats(9), "other": 0.0})
        yield Case(f"aten.{name}.Scalar", "int64 with float", {"self": integers(9), "other": 0.5})
        yield Case(f"aten.{name}.Scalar", "bool", {"self": integers(9, dtype=T.BOOL), "other": True})


def logic() -> Iterator[Case]:
    for name in LOGICAL:
        op = f"aten.{name}.default"
        yield Case(op, "bool", {"self": integers(7, dtype=T.BOOL), "other": integers(3, 7, dtype=T.BOOL, seed=1)})
        yield Case(op, "float32 and int64", {"self": floats(9).round(), "other": integers(9, low=-1, high=2)})
    for name in BITWISE:
        for dtype in (*INTEGRAL, T.BOOL):
            low = 0 if dtype is T.BYTE else -5
            pair = {"self": integers(7, dtype=dtype, low=low), "other": integers(3, 7, dtype=dtype, low=low, seed=1)}
            yield Case(f"aten.{name}.Tensor", dtype.torch_name, pair)
        yield Case(f"aten.{name}.Scalar", "int64", {"self": integers(7), "other": 3})
    condition = integers(3, 1, dtype=T.BOOL)
    for dtype in (T.FLOAT, T.HALF, T.BFLOAT16, T.DOUBLE, T.LONG, T.INT, T.BOOL):
        make = floats if dtype.is_floating_point else integers
        pair = {"self": make(4, dtype=dtype), "other": make(3, 4, dtype=dtype, seed=1)}
        yield Case("aten.where.self", dtype.torch_name, {"condition": condition, **pair})
    unused = {"self": array([NAN, 1, INF]), "other": array([2, -INF, 3])}
    pick = array([False, True, False], T.BOOL)
    yield Case("aten.where.self", "the other side's nan stays out", {"condition": pick, **unused}, (array([2, 1, 3]),))
    yield Case("aten.where.self", "promotes", {"condition": pick, "self": integers(3), "other": floats(3)})


def cases() -> Iterator[Case]:
    """Every case of the family."""
    yield from unary()
    yield from binary()
    yield from division()
    yield from powers()
    yield from extremes()
    yield from comparisons()
    yield from logic()
