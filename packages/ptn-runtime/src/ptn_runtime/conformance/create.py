"""Cases of the family `create`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from ptn_format.dtypes import ScalarType as T

from ptn_runtime.conformance.case import Case, floats, integers

DTYPES = (T.FLOAT, T.HALF, T.BFLOAT16, T.DOUBLE, T.LONG, T.INT, T.BOOL)


def like() -> Iterator[Case]:
    x = integers(2, 3, dtype=T.INT)
    for name, value in (("zeros", 0), ("ones", 1)):
        for dtype in (*DTYPES, None):
            label = "dtype left out" if dtype is None else dtype.torch_name
            plain = (T.FLOAT if dtype is None else dtype).numpy
            expected = (np.full((2, 3), value, plain),)
            yield Case(f"aten.{name}.default", label, {"size": (2, 3), "dtype": dtype}, expected)
            same = (np.full((2, 3), value, np.int32 if dtype is None else dtype.numpy),)
            yield Case(f"aten.{name}_like.default", label, {"self": x, "dtype": dtype}, same)
            new = (np.full((4,), value, np.int32 if dtype is None else dtype.numpy),)
            yield Case(f"aten.new_{name}.default", label, {"self": x, "size": (4,), "dtype": dtype}, new)
    yield Case("aten.new_full.default", "keeps the dtype", {"self": x, "size": (2, 1), "fill_value": 7})
    yield Case("aten.new_full.default", "float16", {"self": x, "size": (), "fill_value": 0.5, "dtype": T.HALF})
    for dtype in (T.FLOAT, T.LONG, T.BOOL):
        three = np.array(3).astype(dtype.numpy)
        yield Case("aten.fill.Tensor", dtype.torch_name, {"self": floats(2, 3).astype(dtype.numpy), "value": three})


def ranges() -> Iterator[Case]:
    for dtype in (T.FLOAT, T.HALF, T.LONG, T.INT, None):
        name = "dtype left out" if dtype is None else dtype.torch_name
        yield Case("aten.arange.default", name, {"end": 5, "dtype": dtype})
        yield Case("aten.arange.start", name, {"start": 2, "end": 7, "dtype": dtype})
        yield Case("aten.linspace.default", name, {"start": 0, "end": 10, "steps": 5, "dtype": dtype})
        yield Case("aten.eye.default", name, {"n": 3, "dtype": dtype})
        yield Case("aten.eye.m", name, {"n": 2, "m": 4, "dtype": dtype})
    yield Case("aten.arange.default", "a float end", {"end": 2.5, "dtype": None})
    yield Case("aten.arange.default", "nothing", {"end": 0, "dtype": None}, (np.zeros(0, np.int64),))
    yield Case("aten.linspace.default", "down", {"start": 1.0, "end": -1.0, "steps": 7, "dtype": T.FLOAT})
    for steps in (0, 1):
        yield Case("aten.linspace.default", f"{steps} steps", {"start": 2.0, "end": 3.0, "steps": steps})
    for name in ("tril", "triu"):
        for offset in (-1, 0, 2):
            args = {"row": 3, "col": 4, "offset": offset}
            yield Case(f"aten.{name}_indices.default", f"offset {offset}", args)


def undefined() -> Iterator[Case]:
    """Random numbers and memory that nothing initialised: only the form is defined, and the range of the numbers."""
    x = floats(2, 3, dtype=T.HALF)
    shape = {"size": (2, 3), "stride": (3, 1)}
    forms: dict[str, dict[str, Any]] = {
        "aten.empty.memory_format": {"size": (2, 3), "dtype": T.INT},
        "aten.empty_strided.default": {**shape, "dtype": T.FLOAT},
        "aten.empty_like.default": {"self": x},
        "aten.new_empty.default": {"self": x, "size": (4,)},
        "aten.new_empty_strided.default": {"self": x, **shape},
    }
    for op, args in forms.items():
        yield Case(op, "form", args, compare="form")
    unit = (0.0, 1.0)
    for dtype in (T.FLOAT, T.HALF, T.DOUBLE):
        name = dtype.torch_name
        yield Case("aten.rand.default", name, {"size": (40, 5), "dtype": dtype}, compare="form", within=unit)
        yield Case("aten.randn.default", name, {"size": (40, 5), "dtype": dtype}, compare="form", within=(-9, 9))
        like = {"self": floats(40, 5, dtype=dtype)}
        yield Case("aten.rand_like.default", name, like, compare="form", within=unit)
        yield Case("aten.randn_like.default", name, like, compare="form", within=(-9, 9))
    without_axes: dict[str, dict[str, Any]] = {
        "aten.rand.default": {},
        "aten.randn.default": {},
        "aten.randint.default": {"high": 3},
        "aten.randint.low": {"low": -2, "high": 3},
        "aten.bernoulli.default": {"self": np.array(0.5, np.float32)},
        "aten.normal.float_float": {"mean": 1.0, "std": 2.0},
    }
    for op, args in without_axes.items():
        size = {} if "self" in args else {"size": ()}
        yield Case(op, "0-d", {**args, **size}, compare="form", within=(-30, 30))
    yield Case("aten.randint.default", "int64", {"high": 3, "size": (40,)}, compare="form", within=(0, 3))
    yield Case("aten.randint.low", "int64", {"low": -2, "high": 3, "size": (40,)}, compare="form", within=(-2, 3))
    yield Case("aten.randint.low", "float32", {"low": 5, "high": 6, "size": (4,), "dtype": T.FLOAT},
               (np.full(4, 5, np.float32),))  # fmt: skip
    yield Case("aten.randperm.default", "int64", {"n": 20}, (np.arange(20),), compare="sorted values")
    yield Case("aten.randperm.default", "int32", {"n": 5, "dtype": T.INT}, compare="sorted values")


def refilled() -> Iterator[Case]:
    """Random numbers in the place of a tensor's; where the range is one number, that is the result."""
    ones = np.ones((40, 5), np.float32)
    for dtype in (T.FLOAT, T.HALF, T.BFLOAT16, T.DOUBLE):
        name = dtype.torch_name
        x = {"self": floats(40, 5, dtype=dtype)}
        ranges: dict[str, tuple[dict[str, Any], tuple[float, float]]] = {
            "aten.uniform.default": ({"from": -2.0, "to": 3.0}, (-2.0, 3.0)),
            "aten.normal_functional.default": ({"mean": 50.0, "std": 1.0}, (40.0, 60.0)),
            "aten.exponential.default": ({"lambd": 2.0}, (1e-38, 30.0)),
            "aten.log_normal.default": ({"mean": 0.0, "std": 0.1}, (0.2, 5.0)),
            "aten.geometric.default": ({"p": 0.5}, (1.0, 80.0)),
            "aten.bernoulli.p": ({"p": 0.5}, (0.0, 1.5)),
            "aten.random.to": ({"to": 4}, (0.0, 4.0)),
            "aten.random.from": ({"from": -3, "to": 4}, (-3.0, 4.0)),
            "aten.random.default": ({}, (0.0, 2.0**54)),
            "aten.randint_like.default": ({"high": 4}, (0.0, 4.0)),
            "aten.randint_like.low_dtype": ({"low": -3, "high": 4}, (-3.0, 4.0)),
        }
        for op, (args, within) in ranges.items():
            yield Case(op, name, {**x, **args}, compare="form", within=within)
            if dtype is T.FLOAT:
                yield Case(op, "0-d", {"self": np.ones((), np.float32), **args}, compare="form", within=within)
        for p in (0.0, 1.0):
            expected = (np.full((40, 5), p, dtype.numpy),)
            yield Case("aten.bernoulli.p", f"{name}, {p}", {**x, "p": p}, expected)
            yield Case("aten.bernoulli.default", f"{name}, {p}", {"self": expected[0]}, expected)
            yield Case("aten.bernoulli.Tensor", f"{name}, {p}", {**x, "p": expected[0][0]}, expected)
        yield Case("aten.uniform.default", f"{name}, one number", {**x, "from": 2.0, "to": 2.0},
                   (np.full((40, 5), 2, dtype.numpy),))  # fmt: skip
    yield Case("aten.cauchy.default", "float32", {"self": ones}, compare="form")
    yield Case("aten.random.from", "int64, to the end", {"self": integers(40), "from": 5, "to": None},
               compare="form", within=(5, 2.0**63))  # fmt: skip
    yield Case("aten.random.default", "uint8", {"self": integers(40, dtype=T.BYTE, low=0)}, compare="form",
               within=(0, 256))  # fmt: skip
    mean, still = floats(40, 5), np.zeros((1, 5), np.float32)
    yield Case("aten.normal.Tensor_Tensor", "no spread", {"mean": mean, "std": still}, (mean,))
    yield Case("aten.normal.Tensor_float", "no spread", {"mean": mean, "std": 0.0}, (mean,))
    yield Case("aten.normal.float_Tensor", "no spread", {"mean": 1.0, "std": np.zeros_like(ones)}, (ones,))
    yield Case("aten.normal.float_float", "no spread", {"mean": 1.0, "std": 0.0, "size": (40, 5)}, (ones,))
    sized = {"size": (40,), "mean": -50.0, "std": 1.0, "dtype": T.HALF}
    yield Case("aten.normal.float_float", "float16", sized, compare="form", within=(-60, -40))
    certain = np.array([[0, 3, 0, 0], [0, 0, 0, 1]], np.float32)
    drawn = (np.array([[1, 1, 1], [3, 3, 3]]),)
    again = {"num_samples": 3, "replacement": True}
    yield Case("aten.multinomial.default", "certain", {"self": certain, **again}, drawn)
    yield Case("aten.multinomial.default", "again and again", {"self": certain + 1, **again}, compare="form",
               within=(0, 4))  # fmt: skip
    each = {"self": np.array([5, 1, 2], np.float32), "num_samples": 3}
    yield Case("aten.multinomial.default", "each once", each, (np.arange(3),), compare="sorted values")
    first = {"self": np.array([0, 1, 0, 2], np.float32), "num_samples": 2}
    yield Case("aten.multinomial.default", "no weight, no sample", first, (np.array([1, 3]),), compare="sorted values")
    yield Case("aten.empty_permuted.default", "form", {"size": (2, 3), "physical_layout": (1, 0), "dtype": T.FLOAT},
               compare="form")  # fmt: skip


def cases() -> Iterator[Case]:
    """Every case of the family."""
    yield from like()
    yield from ranges()
    yield from undefined()
    yield from refilled()
    for dtype in DTYPES:
        name = dtype.torch_name
        yield Case("aten.full.default", name, {"size": (2, 3), "fill_value": 1, "dtype": dtype})
        yield Case("aten.scalar_tensor.default", name, {"s": 1, "dtype": dtype})
        yield Case("aten.full_like.default", name, {"self": floats(2, 3), "fill_value": 1, "dtype": dtype})
        if dtype is not T.BOOL:
            args = {"start": 1, "end": 12, "step": 3, "dtype": dtype}
            yield Case("aten.arange.start_step", name, args)
    yield Case("aten.full.default", "inf", {"size": (2,), "fill_value": float("-inf"), "dtype": T.FLOAT})
    yield Case("aten.full.default", "empty", {"size": (0, 2), "fill_value": 1.0, "dtype": T.FLOAT})
    yield Case("aten.full.default", "0-d", {"size": (), "fill_value": 2.5, "dtype": T.FLOAT})
    yield Case("aten.full.default", "dtype left out", {"size": (2,), "fill_value": 7, "dtype": None})
    yield Case("aten.full_like.default", "keeps the dtype", {"self": integers(2, 3), "fill_value": 3})
    yield Case("aten.arange.start_step", "fractions", {"start": 0.0, "end": 1.0, "step": 0.3, "dtype": T.FLOAT})
    yield Case("aten.arange.start_step", "down", {"start": 5, "end": -3, "step": -2, "dtype": T.LONG})
    yield Case("aten.fill.Scalar", "float32", {"self": floats(2, 3), "value": 2.5})
