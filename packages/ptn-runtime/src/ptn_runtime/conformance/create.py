"""Cases of the family `create`."""

from __future__ import annotations

from collections.abc import Iterator

from ptn_format.dtypes import ScalarType as T

from ptn_runtime.conformance.case import Case, floats, integers

DTYPES = (T.FLOAT, T.HALF, T.BFLOAT16, T.DOUBLE, T.LONG, T.INT, T.BOOL)


def cases() -> Iterator[Case]:
    """Every case of the family."""
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
