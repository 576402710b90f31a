"""Cases of the family `reduction`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from ptn_format.dtypes import ScalarType as T

from ptn_runtime.conformance.case import Case, floats, integers, permutation

NAN, INF = float("nan"), float("inf")
FLOATING = (T.FLOAT, T.HALF, T.BFLOAT16, T.DOUBLE)


def sums() -> Iterator[Case]:
    x = floats(2, 3, 4, 5)
    for op in ("aten.sum.dim_IntList", "aten.mean.dim"):
        for dims in ((0,), (1,), (3,), (-1, -2), (0, 2), (0, 1, 2, 3)):
            for keepdim in (False, True):
                name = f"dims {list(dims)}{' kept' if keepdim else ''}"
                yield Case(op, name, {"self": x, "dim": dims, "keepdim": keepdim, "dtype": None})
        yield Case(op, "no dims", {"self": x, "dim": (), "keepdim": False, "dtype": None})
        yield Case(op, "dim is none", {"self": x, "dim": None, "keepdim": False, "dtype": None})
        for dtype in FLOATING:
            yield Case(
                op, dtype.torch_name, {"self": floats(3, 65, dtype=dtype), "dim": (1,), "keepdim": False, "dtype": None}
            )
        yield Case(op, "float16 to float32", {"self": floats(3, 65, dtype=T.HALF), "dim": (1,), "dtype": T.FLOAT})
        yield Case(op, "rank 6", {"self": floats(2, 1, 2, 3, 1, 4), "dim": (2, 5)})
        yield Case(op, "empty axis", {"self": np.zeros((3, 0), np.float32), "dim": (1,)})
        yield Case(op, "0-d", {"self": floats(), "dim": ()})
    yield Case("aten.sum.dim_IntList", "many", {"self": floats(1, 100_000, low=0, high=1), "dim": (1,)}, rtol=1e-5)
    for dtype in (T.INT, T.BYTE, T.BOOL, T.LONG):
        yield Case(
            "aten.sum.dim_IntList",
            f"{dtype.torch_name} gives int64",
            {"self": integers(3, 9, dtype=dtype, low=0), "dim": (1,)},
        )
    yield Case("aten.mean.default", "float32", {"self": x})
    for correction in (0, 1, None):
        yield Case(
            "aten.var.correction",
            f"correction {correction}",
            {"self": x, "dim": (1, 3), "correction": correction, "keepdim": True},
        )
    yield Case("aten.prod.default", "float32", {"self": floats(7)})
    yield Case("aten.prod.dim_int", "float32", {"self": x, "dim": 2, "keepdim": True})
    yield Case("aten.prod.dim_int", "int64", {"self": integers(3, 5), "dim": 1})
    for dim in (0, 1, -1):
        yield Case("aten.cumsum.default", f"dim {dim}", {"self": x, "dim": dim})
    yield Case("aten.cumsum.default", "int32 gives int64", {"self": integers(3, 5, dtype=T.INT), "dim": 1})
    yield Case("aten.cumsum.default", "float16", {"self": floats(3, 65, dtype=T.HALF), "dim": 1}, atol=2e-2)


def extremes() -> Iterator[Case]:
    x = permutation(2, 3, 4, 5)
    ties = np.array([[3, 3, 1, 3], [0, 0, 0, 0]], np.float32)
    nans = np.array([[1, NAN, 3, NAN]], np.float32)
    for name in ("amax", "amin"):
        op = f"aten.{name}.default"
        for dims in ((0,), (1, 2), (-1,), ()):
            yield Case(op, f"dims {list(dims)}", {"self": x, "dim": dims, "keepdim": True})
        yield Case(op, "nan wins", {"self": nans, "dim": (1,)}, (np.array([NAN], np.float32),))
        for dtype in (T.HALF, T.BFLOAT16, T.LONG, T.INT, T.BYTE, T.BOOL):
            make = floats if dtype.is_floating_point else integers
            yield Case(op, dtype.torch_name, {"self": make(3, 9, dtype=dtype, low=0), "dim": (1,)})
    for name in ("argmax", "argmin"):
        op = f"aten.{name}.default"
        for dim in (0, 1, -1):
            yield Case(op, f"dim {dim}", {"self": x, "dim": dim, "keepdim": False})
        yield Case(op, "flat", {"self": x, "dim": None, "keepdim": False})
        yield Case(op, "kept", {"self": x, "dim": 2, "keepdim": True})
        yield Case(
            op, "ties take the first", {"self": ties, "dim": 1}, None if name == "argmin" else (np.array([0, 0]),)
        )
        yield Case(op, "nan wins", {"self": nans, "dim": 1}, (np.array([1]),))
        yield Case(op, "int64", {"self": integers(3, 9, low=-100, high=100), "dim": 1})
        yield Case(op, "wide", {"self": permutation(2, 5000), "dim": 1})
    for name in ("max", "min"):
        op = f"aten.{name}.dim"
        for dim in (0, -1):
            yield Case(op, f"dim {dim}", {"self": x, "dim": dim, "keepdim": False})
        yield Case(op, "kept", {"self": x, "dim": 1, "keepdim": True})
        yield Case(op, "nan wins", {"self": nans, "dim": 1})
        yield Case(op, "int64", {"self": integers(3, 9, low=-100, high=100), "dim": 1})


def truths() -> Iterator[Case]:
    x = integers(2, 3, 4, dtype=T.BOOL)
    yield Case("aten.any.default", "bool", {"self": x})
    yield Case("aten.any.dim", "bool", {"self": x, "dim": 1, "keepdim": True})
    yield Case("aten.any.dims", "bool", {"self": x, "dim": (0, 2)})
    yield Case("aten.any.dim", "float32, nan is true", {"self": np.array([[0, NAN], [0, 0]], np.float32), "dim": 1})
    yield Case("aten.any.dim", "empty axis", {"self": np.zeros((2, 0), np.bool_), "dim": 1})
    every: dict[str, dict[str, Any]] = {"default": {}, "dim": {"dim": 1, "keepdim": True}, "dims": {"dim": (0, 2)}}
    for name in every:
        op = f"aten.all.{name}"
        dim = every[name]
        yield Case(op, "bool", {"self": x, **dim})
        yield Case(op, "true", {"self": np.ones((2, 3, 4), np.bool_), **dim})
        yield Case(op, "float32, nan is true", {"self": np.full((2, 3, 4), NAN, np.float32), **dim})
        yield Case(op, "uint8 stays uint8", {"self": integers(2, 3, 4, dtype=T.BYTE, low=0, high=3), **dim})
        yield Case(op, "empty", {"self": np.zeros((0, 3, 0), np.bool_), **dim})
    odd = np.array([[0, NAN, -0.0], [1, 2, 0]], np.float32)
    yield Case("aten.count_nonzero.default", "float32", {"self": odd}, (np.array(3),))
    yield Case("aten.count_nonzero.default", "dim 1", {"self": odd, "dim": 1}, (np.array([1, 2]),))
    yield Case("aten.count_nonzero.dim_IntList", "dims 0 and 2", {"self": x, "dim": (0, 2)})


def statistics() -> Iterator[Case]:
    x = floats(2, 3, 4)
    for dtype in (*FLOATING, T.LONG, T.BOOL):
        make = floats if dtype.is_floating_point else integers
        yield Case("aten.sum.default", dtype.torch_name, {"self": make(3, 9, dtype=dtype)}, atol=2e-2)
    yield Case("aten.sum.default", "to float64", {"self": x, "dtype": T.DOUBLE})
    holes = np.array([[1, NAN, 3], [NAN, NAN, NAN]], np.float32)
    yield Case("aten.nansum.default", "dim 1", {"self": holes, "dim": (1,)}, (np.array([4, 0], np.float32),))
    yield Case("aten.nansum.default", "all", {"self": holes, "dim": None})
    yield Case("aten.nansum.default", "int32 gives int64", {"self": integers(5, dtype=T.INT), "dim": None})
    for name in ("var", "std"):
        yield Case(f"aten.{name}.default", "unbiased", {"self": x})
        yield Case(f"aten.{name}.default", "biased", {"self": x, "unbiased": False})
        yield Case(f"aten.{name}.dim", "dims 0 and 2", {"self": x, "dim": (0, 2), "unbiased": False})
        yield Case(f"aten.{name}.dim", "float16", {"self": floats(3, 9, dtype=T.HALF), "dim": (1,), "keepdim": True})
        yield Case(f"aten.{name}_mean.correction", "kept", {"self": x, "dim": (1,), "correction": 0, "keepdim": True})
        yield Case(f"aten.{name}_mean.correction", "all", {"self": x, "dim": None})
    for correction in (0, 1, 2.5):
        yield Case(
            "aten.std.correction", f"correction {correction}", {"self": x, "dim": (1, 2), "correction": correction}
        )
    yield Case("aten.var.correction", "one element gives nan", {"self": floats(3, 1), "dim": (1,), "correction": 1})
    rows = np.array([[-INF, -INF], [INF, 0], [NAN, 0], [1000, 1000]], np.float32)
    yield Case("aten.logsumexp.default", "inf, nan and large", {"self": rows, "dim": (1,)})
    yield Case("aten.logsumexp.default", "two axes, kept", {"self": x, "dim": (0, 2), "keepdim": True})
    yield Case("aten.logsumexp.default", "int64", {"self": integers(3, 4), "dim": (1,)})
    for order in (0, 1, 2, 3, INF, -INF, 0.5):
        yield Case("aten.linalg_vector_norm.default", f"order {order}", {"self": x, "ord": order, "dim": (1,)})
    huge = np.array([[3e38, 1e30], [1e20, 2e20], [INF, 1], [NAN, 0], [1e-30, 1e-25], [0, 0]], np.float32)
    for order in (0, 1, 2, 3, 0.5, -2, INF, -INF):
        odd = {"self": huge, "ord": order, "dim": (1,)}
        yield Case("aten.linalg_vector_norm.default", f"order {order}, odd numbers", odd)
    yield Case("aten.linalg_vector_norm.default", "all, kept", {"self": x, "ord": 2, "dim": None, "keepdim": True})
    half = {"self": floats(3, 9, dtype=T.HALF), "ord": 2, "dim": (1,), "dtype": T.FLOAT}
    yield Case("aten.linalg_vector_norm.default", "float16 to float32", half)
    for p in (1, 2, INF):
        yield Case("aten.norm.Scalar", f"p {p}", {"self": x, "p": p})
        yield Case("aten.norm.ScalarOpt_dim", f"p {p}", {"self": x, "p": p, "dim": (0, 1), "keepdim": True})
    yield Case("aten.norm.ScalarOpt_dim", "p is none", {"self": x, "p": None, "dim": (1,)})


def more_extremes() -> Iterator[Case]:
    x = permutation(2, 3, 5)
    odd = np.array([1, NAN, 3], np.float32)
    for name in ("max", "min", "median"):
        op = f"aten.{name}.default"
        for dtype in (T.FLOAT, T.HALF, T.LONG, T.BYTE):
            make = floats if dtype.is_floating_point else integers
            yield Case(op, dtype.torch_name, {"self": make(3, 9, dtype=dtype, low=0)})
        yield Case(op, "nan wins", {"self": odd}, (np.array(NAN, np.float32),))
    yield Case("aten.median.default", "even count takes the lower", {"self": permutation(8)})
    for dim in (0, -1):
        yield Case("aten.median.dim", f"dim {dim}", {"self": x, "dim": dim, "keepdim": True})
    yield Case("aten.median.dim", "nan wins", {"self": odd, "dim": 0}, (np.array(NAN, np.float32), np.array(1)))
    gaps = np.array([[NAN, 3, 1, NAN], [4, 2, 8, 6], [NAN, NAN, 5, NAN]], np.float32)
    yield Case("aten.nanmedian.default", "skips nan", {"self": gaps}, (np.array(4, np.float32),))
    yield Case("aten.nanmedian.default", "nothing but nan", {"self": np.full(3, NAN, np.float32)})
    yield Case("aten.nanmedian.default", "int64", {"self": integers(3, 5)})
    for dim in (0, 1):
        yield Case("aten.nanmedian.dim", f"dim {dim}", {"self": gaps, "dim": dim, "keepdim": True})
    yield Case("aten.aminmax.default", "all", {"self": x})
    yield Case("aten.aminmax.default", "dim 1", {"self": x, "dim": 1, "keepdim": True})
    yield Case("aten.aminmax.default", "nan wins", {"self": odd})
    waves = np.array([[1, 3, 3, 2, NAN, 5], [2, 2, 1, 1, 0, 4]], np.float32)
    for name in ("cummax", "cummin"):
        yield Case(f"aten.{name}.default", "ties take the last, nan stays", {"self": waves, "dim": 1})
        yield Case(f"aten.{name}.default", "int64", {"self": integers(3, 5), "dim": 0})
    yield Case("aten.cumprod.default", "float32", {"self": floats(3, 5), "dim": 1})
    yield Case("aten.cumprod.default", "int32 gives int64", {"self": integers(3, 5, dtype=T.INT), "dim": -1})
    yield Case("aten.cumprod.default", "to float64", {"self": floats(5), "dim": 0, "dtype": T.DOUBLE})
    yield Case("aten.logcumsumexp.default", "float32", {"self": floats(3, 5), "dim": 1})
    infinite = np.array([-INF, -INF, 0, 1000, INF, NAN], np.float32)
    yield Case("aten.logcumsumexp.default", "inf and nan", {"self": infinite, "dim": 0})


def cases() -> Iterator[Case]:
    """Every case of the family."""
    yield from statistics()
    yield from more_extremes()
    yield from sums()
    yield from extremes()
    yield from truths()
