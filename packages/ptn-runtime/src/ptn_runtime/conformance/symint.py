"""Cases of the family `symint`: numbers that come out of tensors while a graph runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from ptn_format.dtypes import ScalarType as T
from ptn_format.graph import Dim, FloatArg, IntArg, OutputValueKind, TensorMeta

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


def sized(args: Mapping[str, Any]) -> tuple[bytes, list[Array]]:
    """`x[:number.item()]`: the number is a size."""
    x, number = args["x"], args["number"]
    method = MethodBuilder("forward")
    method.input("x", *x.shape, dtype=T.from_numpy(x.dtype))
    method.input("number", *number.shape, dtype=T.from_numpy(number.dtype))
    method.scalar("item", OP, OutputValueKind.INT, self="number")
    meta = TensorMeta(T.from_numpy(x.dtype), (Dim(0, x.shape[0]), *(Dim(size, size) for size in x.shape[1:])))
    method.call("y", "aten.slice.Tensor", meta, self="x", dim=0, start=0, end=IntArg(ref="item"))
    method.result("y")
    return pack([method.build()], {}), [x, number]


def cases() -> Iterator[Case]:
    """Every case of the family."""
    for count in (0, 2, 3):
        args = {"x": floats(3, 4), "number": np.array(count)}
        yield Case(OP, f"a size of {count}", args, (args["x"][:count],), program=sized)
    for name, x, number in (
        ("float32", floats(3, 4), np.array(1.5, np.float32)),
        ("int64", floats(3, 4), np.array([-3])),
        ("int64 beyond 2^53", np.array([1, -1]), np.array(2**53 + 1)),
    ):
        yield Case(OP, name, {"x": x, "number": number}, ((x * number.item()).astype(x.dtype),), program=program)
