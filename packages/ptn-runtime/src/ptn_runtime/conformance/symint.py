"""Cases of the family `symint`: numbers that come out of tensors while a graph runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from ptn_format.dtypes import ScalarType as T
from ptn_format.graph import FloatArg, IntArg, OutputValueKind

from ptn_runtime.conformance.case import Array, Case, floats
from ptn_runtime.conformance.programs import MethodBuilder, pack, static_meta

OP = "aten._local_scalar_dense.default"


def program(args: Mapping[str, Any]) -> tuple[bytes, list[Array]]:
    """`x * number.item()`."""
    x, number = args["x"], args["number"]
    floating = np.issubdtype(number.dtype, np.floating)
    method = MethodBuilder("forward")
    method.input("x", *x.shape, dtype=T.from_numpy(x.dtype))
    method.input("number", *number.shape, dtype=T.from_numpy(number.dtype))
    method.scalar("item", OP, OutputValueKind.FLOAT if floating else OutputValueKind.INT, self="number")
    other = FloatArg(ref="item") if floating else IntArg(ref="item")
    method.call("y", "aten.mul.Scalar", static_meta(x), self="x", other=other)
    method.result("y")
    return pack([method.build()], {}), [x, number]


def cases() -> Iterator[Case]:
    """Every case of the family."""
    for name, x, number in (
        ("float32", floats(3, 4), np.array(1.5, np.float32)),
        ("int64", floats(3, 4), np.array([-3])),
        ("int64 beyond 2^53", np.array([1, -1]), np.array(2**53 + 1)),
    ):
        yield Case(OP, name, {"x": x, "number": number}, ((x * number.item()).astype(x.dtype),), program=program)
