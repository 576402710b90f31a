"""Cases of the family `layout`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from ptn_format.dtypes import ScalarType as T

from ptn_runtime.conformance.case import Array, Case, floats, integers

DTYPES = (T.FLOAT, T.HALF, T.BFLOAT16, T.DOUBLE, T.LONG, T.INT, T.SHORT, T.CHAR, T.BYTE, T.BOOL)
END = 2**63 - 1


def make(*shape: int, dtype: T, seed: int = 0) -> Array:
    if dtype.is_floating_point:
        return floats(*shape, dtype=dtype, seed=seed)
    return integers(*shape, dtype=dtype, low=0, seed=seed)


def of_every_dtype(dtype: T) -> Iterator[Case]:
    x = make(2, 3, 4, dtype=dtype)
    name = dtype.torch_name
    yield Case("aten.view.default", name, {"self": x, "size": (6, 4)})
    yield Case("aten.permute.default", name, {"self": x, "dims": (2, 0, 1)})
    yield Case("aten.expand.default", name, {"self": x[:, :1], "size": (2, 5, 4)})
    yield Case("aten.slice.Tensor", name, {"self": x, "dim": 1, "start": 1, "end": 3})
    yield Case("aten.select.int", name, {"self": x, "dim": 1, "index": -1})
    yield Case("aten.cat.default", name, {"tensors": (x, make(2, 1, 4, dtype=dtype, seed=1)), "dim": 1})
    yield Case("aten.flip.default", name, {"self": x, "dims": (0, 2)})
    yield Case("aten.repeat.default", name, {"self": x, "repeats": (2, 1, 3)})
    yield Case("aten.constant_pad_nd.default", name, {"self": x, "pad": (1, 2), "value": 1})
    yield Case("aten.clone.default", name, {"self": x})


def views() -> Iterator[Case]:
    x = floats(2, 3, 4, 5)
    for size in ((-1,), (6, -1), (2, 3, 20), (1, 2, 3, 1, 4, 5), (2, 12, 5)):
        yield Case("aten.view.default", f"to {list(size)}", {"self": x, "size": size})
    yield Case("aten.view.default", "to 0-d", {"self": floats(1, 1), "size": ()})
    for dims in ((0, 1, 3, 2), (0, 2, 1, 3), (3, 2, 1, 0), (0, 2, 3, 1), (-1, 0, 1, 2)):
        yield Case("aten.permute.default", f"{list(dims)}", {"self": x, "dims": dims})
    yield Case("aten.permute.default", "rank 6", {"self": floats(2, 1, 3, 2, 2, 3), "dims": (5, 0, 3, 1, 4, 2)})
    yield Case("aten.expand.default", "new axes", {"self": floats(3, 1), "size": (2, 4, -1, 5)})
    yield Case("aten.expand.default", "from 0-d", {"self": floats(), "size": (2, 3)})
    for dim in (0, 2, -1):
        yield Case("aten.unsqueeze.default", f"dim {dim}", {"self": floats(2, 3), "dim": dim})
    yield Case("aten.squeeze.dim", "one", {"self": floats(2, 1, 3), "dim": 1})
    yield Case("aten.squeeze.dim", "not one", {"self": floats(2, 1, 3), "dim": 0})
    yield Case("aten.squeeze.dims", "two", {"self": floats(1, 2, 1, 3), "dim": (0, 2)})
    slices = {
        "start": (1, 2, END, 1),
        "end": (1, 0, 2, 1),
        "negative": (1, -2, -1, 1),
        "beyond": (1, -100, 100, 1),
        "step": (1, 0, END, 2),
        "step, last axis": (3, 1, END, 2),
        "step, first axis": (0, 0, 2, 3),
        "nothing": (2, 3, 1, 1),
    }
    for name, (dim, start, end, step) in slices.items():
        yield Case("aten.slice.Tensor", name, {"self": x, "dim": dim, "start": start, "end": end, "step": step})
    yield Case("aten.slice.Tensor", "no bounds", {"self": x, "dim": 0, "start": None, "end": None, "step": 1})
    for dim, index in ((0, 1), (3, 0), (-2, -4)):
        yield Case("aten.select.int", f"dim {dim}, index {index}", {"self": x, "dim": dim, "index": index})
    yield Case("aten.diagonal.default", "plain", {"self": floats(3, 4)})
    yield Case("aten.diagonal.default", "offset", {"self": x, "offset": 1, "dim1": 1, "dim2": 3})
    yield Case(
        "aten.as_strided.default",
        "overlapping",
        {"self": floats(10), "size": (3, 4), "stride": (2, 1), "storage_offset": 1},
    )
    yield Case("aten.split_with_sizes.default", "three", {"self": x, "split_sizes": (1, 2, 1), "dim": 2})
    yield Case("aten.alias.default", "float32", {"self": x})


def copies() -> Iterator[Case]:
    x = floats(2, 3, 4, 5)
    yield Case("aten.cat.default", "five", {"tensors": tuple(floats(2, 2, seed=i) for i in range(5)), "dim": 0})
    yield Case("aten.cat.default", "last axis", {"tensors": (x, floats(2, 3, 4, 1)), "dim": -1})
    yield Case("aten.cat.default", "with an empty one", {"tensors": (np.zeros((0,), np.float32), floats(3)), "dim": 0})
    yield Case("aten.cat.default", "promotes", {"tensors": (integers(3), floats(3)), "dim": 0})
    yield Case("aten.cat.default", "one", {"tensors": (x,), "dim": 1})
    yield Case("aten.repeat.default", "more axes", {"self": floats(2, 3), "repeats": (2, 1, 2)})
    yield Case("aten.repeat.default", "none", {"self": floats(2, 3), "repeats": (1, 0)})
    for pad in ((1, 1), (0, 2, 1, 0), (-1, 2), (1, 0, 0, 1, 2, 0), (-1, -1, -1, -1)):
        yield Case("aten.constant_pad_nd.default", f"{list(pad)}", {"self": x, "pad": pad, "value": 0.0})
    yield Case("aten.constant_pad_nd.default", "-inf", {"self": x, "pad": (1, 2), "value": float("-inf")})
    yield Case("aten.reflection_pad1d.default", "float32", {"self": floats(2, 3, 6), "padding": (2, 3)})
    yield Case("aten.reflection_pad2d.default", "float32", {"self": x, "padding": (2, 1, 3, 0)})
    yield Case("aten.replication_pad2d.default", "float32", {"self": x, "padding": (2, 1, 3, 0)})
    yield Case(
        "aten.replication_pad3d.default", "float32", {"self": floats(1, 2, 3, 3, 3), "padding": (1, 1, 0, 2, 1, 0)}
    )


def cases() -> Iterator[Case]:
    """Every case of the family."""
    for dtype in DTYPES:
        yield from of_every_dtype(dtype)
    yield from views()
    yield from copies()
