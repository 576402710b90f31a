"""Cases of the family `reduction`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from ptn_format.dtypes import ScalarType as T

from ptn_runtime.conformance.case import Case, floats, integers, permutation

NAN = float("nan")
FLOATING = (T.FLOAT, T.HALF, T.BFLOAT16, T.DOUBLE)


def sums() -> Iterator[Case]:
    x = floats(2, 3, 4, 5)
    for op in ("aten.sum.dim_IntList", "aten.mean.dim"):
        for dim in ((0,), (1,), (3,), (-1, -2), (0, 2), (0, 1, 2, 3)):
            for keepdim in (False, True):
                name = f"dims {list(dim)}{' kept' if keepdim else ''}"
                yield Case(op, name, {"self": x, "dim": dim, "keepdim": keepdim, "dtype": None})
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
        for dim in ((0,), (1, 2), (-1,), ()):
            yield Case(op, f"dims {list(dim)}", {"self": x, "dim": dim, "keepdim": True})
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


def cases() -> Iterator[Case]:
    """Every case of the family."""
    yield from sums()
    yield from extremes()
    yield from truths()
