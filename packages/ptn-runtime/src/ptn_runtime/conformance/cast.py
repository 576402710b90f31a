"""Cases of the family `cast`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from ptn_format.dtypes import ScalarType as T

from ptn_runtime.conformance.case import Case, floats, integers

OP = "aten._to_copy.default"
DTYPES = (T.FLOAT, T.HALF, T.BFLOAT16, T.DOUBLE, T.LONG, T.INT, T.SHORT, T.CHAR, T.BYTE, T.BOOL)


def cases() -> Iterator[Case]:
    """Every case of the family."""
    values = np.array([-2.7, 0.0, 300.5], np.float32)
    for target in (T.FLOAT, T.HALF, T.DOUBLE, T.LONG, T.INT, T.BOOL):
        name = target.torch_name
        yield Case("aten.to.dtype", name, {"self": values, "dtype": target})
        yield Case("aten.to.dtype_layout", name, {"self": values, "dtype": target})
        yield Case("aten.to.device", name, {"self": values, "device": "cpu", "dtype": target})
        other = np.zeros(1, target.numpy)
        yield Case("aten.type_as.default", name, {"self": values, "other": other})
        yield Case("aten.copy.default", name, {"self": np.zeros((2, 3), target.numpy), "src": values})
    for source in DTYPES:
        make = floats if source.is_floating_point else integers
        x = make(3, 7, dtype=source, low=0, high=5)
        for target in DTYPES:
            yield Case(OP, f"{source.torch_name} to {target.torch_name}", {"self": x, "dtype": target})
    signed = np.array([-2.7, -0.5, 0.5, 2.7, 0.0], np.float32)
    yield Case(OP, "towards zero", {"self": signed, "dtype": T.LONG}, (np.array([-2, 0, 0, 2, 0]),))
    odd = np.array([np.nan, np.inf, -np.inf, 0.0, 1e-40], np.float32)
    yield Case(
        OP, "anything but zero is true", {"self": odd, "dtype": T.BOOL}, (np.array([True, True, True, False, True]),)
    )
    yield Case(
        OP,
        "float32 rounds to even bfloat16",
        {"self": np.array([1.00390625, 1.01171875], np.float32), "dtype": T.BFLOAT16},
    )
    yield Case(OP, "float32 overflows float16", {"self": np.array([65504, 65520, 1e9], np.float32), "dtype": T.HALF})
    yield Case(OP, "int64 beyond 2^53 to float64", {"self": np.array([2**53 + 1]), "dtype": T.DOUBLE})
    yield Case(OP, "int64 wraps to int32", {"self": np.array([2**31, -(2**31) - 1]), "dtype": T.INT})
    yield Case(OP, "0-d", {"self": np.array(2.5, np.float32), "dtype": T.INT})
