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
    "celu": (-3, 3), "deg2rad": (-200, 200), "digamma": (0.3, 5), "erfc": (-3, 3), "erfinv": (-0.95, 0.95),
    "exp2": (-4, 4), "frac": (-3, 3), "hardshrink": (-2, 2), "hardsigmoid": (-5, 5), "hardswish": (-5, 5),
    "isfinite": (-3, 3), "isneginf": (-3, 3), "isposinf": (-3, 3), "lgamma": (0.2, 6), "log_sigmoid": (-6, 6),
    "logit": (0.05, 0.95), "mish": (-4, 4), "nan_to_num": (-3, 3), "positive": (-3, 3), "rad2deg": (-4, 4),
    "relu6": (-2, 8), "selu": (-3, 3), "sgn": (-3, 3), "signbit": (-3, 3), "silu": (-6, 6), "sinc": (-3, 3),
    "softplus": (-6, 6), "softshrink": (-2, 2), "special_entr": (0, 3), "special_expm1": (-2, 2),
    "special_logit": (0.05, 0.95), "square": (-3, 3),
}  # fmt: skip
ON_INTEGERS = (
    "abs", "ceil", "deg2rad", "erfc", "exp", "exp2", "floor", "isfinite", "isneginf", "isposinf", "lgamma",
    "logical_not", "nan_to_num", "neg", "positive", "relu", "relu6", "round", "sgn", "sign", "signbit", "sin", "sinc",
    "sqrt", "square", "tanh", "trunc",
)  # fmt: skip
EXACT_ON_SPECIAL = (
    "abs", "ceil", "floor", "isinf", "isnan", "logical_not", "neg", "reciprocal", "relu", "round", "rsqrt", "sign",
    "sqrt", "trunc", "sigmoid", "tanh", "exp", "log", "erf", "celu", "deg2rad", "erfc", "exp2", "hardshrink",
    "hardsigmoid", "hardswish", "isfinite", "isneginf", "isposinf", "lgamma", "log_sigmoid", "nan_to_num", "positive",
    "relu6", "selu", "sgn", "signbit", "silu", "softplus", "softshrink", "special_entr", "square",
)  # fmt: skip
BINARY = ("add", "sub", "mul")
ENDS = (
    *("mish", "gelu", "silu", "softplus", "elu", "selu", "celu", "hardswish", "hardsigmoid", "hardtanh", "relu6"),
    *("sigmoid", "tanh", "log1p", "expm1", "erf", "sinc", "rsqrt", "reciprocal", "sinh", "cosh", "asinh", "atanh"),
    *("acosh", "softshrink", "hardshrink", "leaky_relu", "exp2", "frac"),
)
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


def ends() -> Iterator[Case]:
    """What curves give at the ends of the number line, which faster formulas often miss: mish(-inf) is NaN."""
    x = array([INF, -INF, NAN, 0.0, -0.0, 3e38, -3e38, 88.0, -88.0])
    for name in ENDS:
        for dtype in (T.FLOAT, T.HALF):
            if name not in EXACT_ON_SPECIAL or dtype is T.HALF:
                with np.errstate(over="ignore"):
                    yield Case(f"aten.{name}.default", f"ends of {dtype.torch_name}", {"self": x.astype(dtype.numpy)})
    steep = array([-1.0, 0.0, 2.0, 30.0, 200.0, INF, -INF, NAN])
    for beta in (1.0, 0.5, INF):
        for threshold in (NAN, INF, -INF, 20.0):
            args = {"self": steep, "beta": beta, "threshold": threshold}
            yield Case("aten.softplus.default", f"beta {beta}, threshold {threshold}", args)
    for alpha in (NAN, INF, -1.0):
        yield Case("aten.elu.default", f"alpha {alpha}", {"self": x, "alpha": alpha})
        yield Case("aten.leaky_relu.default", f"slope {alpha}", {"self": x, "negative_slope": alpha})
        yield Case("aten.threshold.default", f"threshold {alpha}", {"self": x, "threshold": alpha, "value": 7.0})


def more_unary() -> Iterator[Case]:
    edges = array([0.0, 1.0, -0.1, 1.1, 0.5])
    for name in ("logit", "special_logit"):
        op = f"aten.{name}.default"
        yield Case(op, "edges", {"self": edges}, (array([-INF, INF, NAN, NAN, 0.0]),))
        yield Case(op, "eps", {"self": edges, "eps": 0.1})
    yield Case("aten.erfinv.default", "edges", {"self": array([-1, 1, 0, 1.5])}, (array([-INF, INF, 0, NAN]),))
    yield Case("aten.digamma.default", "poles", {"self": array([0.0, -0.0, -1.0, -1.5, -10.3, 100.0])})
    yield Case("aten.i0.default", "large", {"self": array([0.0, -3.5, 50.0, 90.0, INF, NAN])})
    for dtype in (T.FLOAT, T.HALF, T.BFLOAT16, T.DOUBLE):
        parts = {"self": array([0.0, -0.0, 1.0, -3.5, 1e-7, 6e4], dtype)}
        yield Case("aten.frexp.Tensor", dtype.torch_name, parts)
    yield Case("aten.lgamma.default", "poles", {"self": array([0.0, -1.0, -1.5, 1.0, 2.0, 100.0])})
    yield Case("aten.sinc.default", "zero", {"self": array([0.0, -0.0, 1.0])}, (array([1, 1, 0]),), atol=1e-6)
    yield Case("aten.signbit.default", "zeros", {"self": array([0.0, -0.0])}, (array([False, True], T.BOOL),))
    replaced = {"self": array([NAN, INF, -INF, 2]), "nan": 1.5, "posinf": 7.0, "neginf": -7.0}
    yield Case("aten.nan_to_num.default", "given", replaced, (array([1.5, 7, -7, 2]),))
    x = floats(3, 7, low=-30, high=30)
    for decimals in (0, 2, -1):
        yield Case("aten.round.decimals", f"{decimals}", {"self": x, "decimals": decimals})
    yield Case("aten.celu.default", "alpha", {"self": floats(20), "alpha": 0.5})
    yield Case("aten.softplus.default", "beta", {"self": x, "beta": 2.0, "threshold": 5.0})
    yield Case("aten.threshold.default", "float32", {"self": x, "threshold": 1.0, "value": -5.0})
    yield Case("aten.threshold.default", "nan stays", {"self": array([NAN, -1, 2]), "threshold": 0, "value": 9})
    yield Case("aten.threshold.default", "int64", {"self": integers(9), "threshold": 1, "value": -5})
    for name in ("hardshrink", "softshrink"):
        yield Case(f"aten.{name}.default", "lambda", {"self": floats(20), "lambd": 1.5})
    for name in ("prelu", "_prelu_kernel"):
        op = f"aten.{name}.default"
        one = floats(1) if name == "prelu" else floats(1, 1, 1)
        each = floats(3, seed=1) if name == "prelu" else floats(1, 3, 1, seed=1)
        yield Case(op, "one slope", {"self": floats(2, 3, 5), "weight": one}, constants=frozenset({"weight"}))
        yield Case(op, "a slope per channel", {"self": floats(2, 3, 5), "weight": each})
    for dim in (0, 1, -1):
        yield Case("aten.glu.default", f"dim {dim}", {"self": floats(4, 2, 6), "dim": dim})
    yield Case("aten.glu.default", "float16", {"self": floats(4, 6, dtype=T.HALF), "dim": -1})
    yield Case("aten.log_sigmoid_forward.default", "float32", {"self": floats(4, 6, low=-9, high=9)})


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


def more_division() -> Iterator[Case]:
    left = array([7, -7, 7, -7, 0], T.LONG)
    right = array([2, 2, -2, -2, 5], T.LONG)
    op = "aten.floor_divide.default"
    for dtype in (T.LONG, T.INT, T.CHAR, T.FLOAT, T.HALF):
        pair = {"self": left.astype(dtype.numpy), "other": right.astype(dtype.numpy)}
        yield Case(op, dtype.torch_name, pair, (array([3, -4, -4, 3, 0], dtype),))
    yield Case(op, "by zero", {"self": array([1, -1, 0]), "other": array([0, 0, 0])}, (array([INF, -INF, NAN]),))
    yield Case("aten.floor_divide.Scalar", "int64", {"self": left, "other": -2}, (array([-4, 3, -4, 3, 0], T.LONG),))
    yield Case("aten.floor_divide.Scalar", "float32", {"self": floats(9), "other": 0.7})
    yield Case(
        "aten.remainder.Scalar_Tensor", "int64", {"self": 7, "other": right}, (array([1, 1, -1, -1, 2], T.LONG),)
    )
    yield Case("aten.remainder.Scalar_Tensor", "float32", {"self": 2.5, "other": floats(9)})
    for dtype in (T.FLOAT, T.LONG):
        pair = {"self": left.astype(dtype.numpy), "other": right.astype(dtype.numpy)}
        yield Case("aten.true_divide.Tensor", dtype.torch_name, pair, (array([3.5, -3.5, -3.5, 3.5, 0.0]),))
        yield Case("aten.rsub.Tensor", dtype.torch_name, {**pair, "alpha": 2})
        yield Case("aten.rsub.Scalar", dtype.torch_name, {"self": pair["self"], "other": 3, "alpha": 2})
    for name in ("gcd", "lcm"):
        for dtype in INTEGRAL:
            low = 0 if dtype is T.BYTE else -9
            pair = {"self": integers(9, dtype=dtype, low=low), "other": integers(9, dtype=dtype, low=low, seed=1)}
            yield Case(f"aten.{name}.default", dtype.torch_name, pair)


def mixtures() -> Iterator[Case]:
    """Functions of two or three tensors beyond arithmetic."""
    pairs = {
        "copysign.Tensor": (-3, 3), "fmax.default": (-3, 3), "fmin.default": (-3, 3), "hypot.default": (-3, 3),
        "ldexp.Tensor": (-3, 3), "logaddexp.default": (-3, 3), "logaddexp2.default": (-3, 3), "xlogy.Tensor": (0.1, 3),
    }  # fmt: skip
    odd = {"self": array([NAN, 1, INF, -INF, -INF, 0.0, -0.0]), "other": array([1, NAN, INF, -INF, INF, -0.0, 0.0])}
    for name, (low, high) in pairs.items():
        op = f"aten.{name}"
        for dtype in (T.FLOAT, T.BFLOAT16, T.DOUBLE):
            left = floats(3, 4, dtype=dtype, low=low, high=high)
            yield Case(
                op, dtype.torch_name, {"self": left, "other": floats(4, dtype=dtype, low=low, high=high, seed=1)}
            )
        yield Case(op, "nan and inf", odd)
    yield Case("aten.fmax.default", "a number beats nan", {"self": array([NAN, 1]), "other": array([2, NAN])},
               (array([2, 1]),))  # fmt: skip
    yield Case("aten.xlogy.Tensor", "zero", {"self": array([0, 0, 0]), "other": array([0, NAN, INF])},
               (array([0, NAN, 0]),))  # fmt: skip
    yield Case("aten.ldexp.Tensor", "int64 exponents", {"self": floats(5), "other": integers(5)})
    yield Case("aten.copysign.Scalar", "minus zero", {"self": floats(5), "other": -0.0})
    yield Case("aten.copysign.Tensor", "int64", {"self": integers(5), "other": integers(5, seed=1)})
    neighbours = {"self": array([1, 0, -0.0, INF, NAN, 2]), "other": array([2, 1, -1, 0, 1, 2])}
    yield Case("aten.nextafter.default", "float32", neighbours, rtol=0, atol=0)
    yield Case("aten.heaviside.default", "float32", {"self": array([-1, 0, -0.0, 2, NAN]), "values": array(0.5)})
    for name in ("Scalar", "Tensor"):
        weight = 0.3 if name == "Scalar" else floats(4, low=0, high=1, seed=2)
        for dtype in (T.FLOAT, T.HALF):
            typed = weight if isinstance(weight, float) else weight.astype(dtype.numpy)
            ends = {"self": floats(3, 4, dtype=dtype), "end": floats(4, dtype=dtype, seed=1)}
            yield Case(f"aten.lerp.{name}", dtype.torch_name, {**ends, "weight": typed})
        infinite = {"self": array([1, INF]), "end": array([INF, 1])}
        far = 0.75 if name == "Scalar" else array([0.75, 0.75])
        yield Case(f"aten.lerp.{name}", "inf", {**infinite, "weight": far})
    for name in ("addcmul", "addcdiv"):
        args = {"self": floats(3, 4), "tensor1": floats(4, seed=1), "tensor2": floats(3, 1, low=0.5, seed=2)}
        yield Case(f"aten.{name}.default", "float32", args)
        yield Case(f"aten.{name}.default", "value", {**args, "value": 0.5})
        half = {key: value.astype(np.float16) for key, value in args.items()}
        yield Case(f"aten.{name}.default", "float16", half)
    close = {"self": array([1, 1, NAN, INF]), "other": array([1.000001, 1.1, NAN, INF])}
    yield Case("aten.isclose.default", "float32", close)
    yield Case("aten.isclose.default", "nan is equal", {**close, "equal_nan": True})
    yield Case("aten.isclose.default", "int64", {"self": array([1, 9], T.LONG), "other": array([2, 9], T.LONG)})
    for invert in (False, True):
        found = {"elements": integers(3, 4), "test_elements": array([1, -2, 5], T.LONG)}
        yield Case("aten.isin.Tensor_Tensor", "inverted" if invert else "int64", {**found, "invert": invert})
    nothing = {"elements": floats(4), "test_elements": array(np.zeros(0))}
    yield Case("aten.isin.Tensor_Tensor", "nothing to find", nothing)


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


def bounds() -> Iterator[Case]:
    for name, bound in (("clamp_min", "min"), ("clamp_max", "max")):
        for dtype in (T.FLOAT, T.HALF, T.LONG):
            make = floats if dtype.is_floating_point else integers
            x = make(3, 4, dtype=dtype)
            yield Case(f"aten.{name}.default", dtype.torch_name, {"self": x, bound: 1})
            yield Case(f"aten.{name}.Tensor", dtype.torch_name, {"self": x, bound: make(4, dtype=dtype, seed=1)})
        yield Case(f"aten.{name}.default", "nan stays", {"self": array([NAN, -9, 9]), bound: 0.5})
        yield Case(f"aten.{name}.Tensor", "nan wins", {"self": array([NAN, 1]), bound: array([1, NAN])})


def shifts() -> Iterator[Case]:
    for name, way in (("bitwise_left_shift", "left"), ("bitwise_right_shift", "right")):
        alias = f"__{way[0]}shift__"
        for dtype in (T.LONG, T.INT, T.BYTE):
            low = 0 if dtype is T.BYTE else -50
            x, by = integers(3, 5, dtype=dtype, low=low, high=99), integers(5, dtype=dtype, low=0, high=4, seed=1)
            for op in (f"aten.{name}.Tensor", f"aten.{alias}.Tensor"):
                yield Case(op, dtype.torch_name, {"self": x, "other": by})
            for op in (f"aten.{name}.Tensor_Scalar", f"aten.{alias}.Scalar"):
                yield Case(op, dtype.torch_name, {"self": x, "other": 2})


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
    yield Case("aten.where.Scalar", "floats", {"condition": condition, "self": 1.5, "other": -2.0})
    yield Case("aten.where.Scalar", "integers", {"condition": condition, "self": 1, "other": 0})
    yield Case("aten.where.ScalarSelf", "float32", {"condition": pick, "self": 2, "other": floats(3)})
    yield Case("aten.where.ScalarOther", "float16", {"condition": pick, "self": floats(3, dtype=T.HALF), "other": 0.5})
    yield Case("aten.where.ScalarOther", "promotes", {"condition": pick, "self": integers(3), "other": 0.5})
    for dtype in (T.FLOAT, T.HALF, T.LONG, T.BOOL):
        make = floats if dtype.is_floating_point else integers
        x, mask = make(3, 4, dtype=dtype), integers(4, dtype=T.BOOL)
        yield Case("aten.masked_fill.Scalar", dtype.torch_name, {"self": x, "mask": mask, "value": 1})
        yield Case("aten.masked_fill.Tensor", dtype.torch_name, {"self": x, "mask": mask, "value": array(1, dtype)})
    yield Case("aten.masked_fill.Scalar", "-inf", {"self": floats(4), "mask": integers(4, dtype=T.BOOL), "value": -INF})


def cases() -> Iterator[Case]:
    """Every case of the family."""
    yield from unary()
    yield from ends()
    yield from more_unary()
    yield from binary()
    yield from division()
    yield from more_division()
    yield from mixtures()
    yield from powers()
    yield from extremes()
    yield from bounds()
    yield from shifts()
    yield from comparisons()
    yield from logic()
