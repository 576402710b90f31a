"""Cases of the family `index`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from ptn_format.dtypes import ScalarType as T

from ptn_runtime.conformance.case import Array, Case, floats, integers

DTYPES = (T.FLOAT, T.HALF, T.BFLOAT16, T.DOUBLE, T.LONG, T.INT, T.CHAR, T.BYTE, T.BOOL)
RANGE = "IndexOutOfRangeError"


def make(*shape: int, dtype: T = T.FLOAT, seed: int = 0) -> Array:
    if dtype.is_floating_point:
        return floats(*shape, dtype=dtype, seed=seed)
    return integers(*shape, dtype=dtype, low=0, seed=seed)


def indices(*values: Any) -> Array:
    return np.array(values, np.int64)


def embeddings() -> Iterator[Case]:
    op = "aten.embedding.default"
    table = frozenset({"weight"})
    ids = indices([1, 0, 6], [6, 6, 2])
    for dtype in (T.FLOAT, T.HALF, T.BFLOAT16, T.DOUBLE):
        yield Case(op, dtype.torch_name, {"weight": make(7, 16, dtype=dtype), "indices": ids}, constants=table)
    yield Case(op, "int32 ids", {"weight": make(7, 16), "indices": ids.astype(np.int32)}, constants=table)
    yield Case(op, "0-d id", {"weight": make(7, 5), "indices": np.array(3)}, constants=table)
    yield Case(op, "rank 3 ids", {"weight": make(7, 5), "indices": integers(2, 3, 2, low=0, high=7)}, constants=table)
    yield Case(op, "no ids", {"weight": make(7, 5), "indices": np.zeros((0,), np.int64)}, constants=table)
    yield Case(op, "table is an input", {"weight": make(7, 5), "indices": ids})
    for bad in (7, -1, 2**40):
        yield Case(op, f"id {bad}", {"weight": make(7, 5), "indices": indices(1, bad)}, constants=table, raises=RANGE)


def selection() -> Iterator[Case]:
    x = floats(3, 4, 5)
    for dtype in DTYPES:
        yield Case(
            "aten.index_select.default",
            dtype.torch_name,
            {"self": make(3, 4, dtype=dtype), "dim": 0, "index": indices(2, 0, 2)},
        )
        yield Case(
            "aten.gather.default",
            dtype.torch_name,
            {"self": make(3, 4, dtype=dtype), "dim": 1, "index": indices([0, 3], [1, 1], [2, 0])},
        )
    for dim in (1, -1):
        yield Case("aten.index_select.default", f"dim {dim}", {"self": x, "dim": dim, "index": indices(3, 1)})
        yield Case(
            "aten.gather.default", f"dim {dim}", {"self": x, "dim": dim, "index": integers(3, 2, 5, low=0, high=4)}
        )
    yield Case("aten.gather.default", "dim 0", {"self": x, "dim": 0, "index": integers(5, 2, 3, low=0, high=3)})
    yield Case("aten.index_select.default", "out of range", {"self": x, "dim": 0, "index": indices(0, 3)}, raises=RANGE)
    yield Case("aten.gather.default", "out of range", {"self": x, "dim": 0, "index": indices([[5]])}, raises=RANGE)
    first, second = indices(0, 2, 1), indices(3, 0, 3)
    forms: dict[str, tuple[Array | None, ...]] = {
        "first axis": (first,),
        "second axis": (None, second),
        "last axis": (None, None, first),
        "two axes": (first, second),
        "two axes apart": (first, None, second),
        "broadcast": (indices([0], [2]), indices(1, 3, 0)),
        "negative": (indices(-1, -3),),
        "matrix": (indices([0, 1], [2, 2]),),
        "0-d": (np.array(1),),
    }
    for name, given in forms.items():
        yield Case("aten.index.Tensor", name, {"self": x, "indices": given})
    for dtype in DTYPES:
        yield Case("aten.index.Tensor", dtype.torch_name, {"self": make(3, 4, dtype=dtype), "indices": (None, second)})
    for bad in (3, -4):
        yield Case("aten.index.Tensor", f"index {bad}", {"self": x, "indices": (indices(0, bad),)}, raises=RANGE)


def writing() -> Iterator[Case]:
    x = floats(3, 4, 5)
    put = "aten.index_put.default"
    yield Case(put, "first axis", {"self": x, "indices": (indices(2, 0),), "values": floats(2, 4, 5, seed=1)})
    yield Case(put, "second axis", {"self": x, "indices": (None, indices(3, 1)), "values": floats(3, 2, 5, seed=1)})
    yield Case(
        put,
        "third axis of four",
        {"self": floats(1, 2, 6, 4), "indices": (None, None, indices(4, 5)), "values": floats(1, 2, 2, 4, seed=1)},
    )
    yield Case(put, "two axes", {"self": x, "indices": (indices(2, 0), indices(1, 3)), "values": floats(2, 5, seed=1)})
    yield Case(put, "broadcast value", {"self": x, "indices": (indices(-1, 0),), "values": np.array(7, np.float32)})
    yield Case(
        put,
        "accumulate",
        {"self": x, "indices": (indices(1, 1, 0),), "values": floats(3, 4, 5, seed=1), "accumulate": True},
    )
    yield Case(put, "int64", {"self": integers(4, 3), "indices": (indices(1, 3),), "values": integers(2, 3, seed=1)})
    yield Case(
        put, "bool", {"self": integers(5, dtype=T.BOOL), "indices": (indices(0, 4),), "values": np.array([True, True])}
    )
    yield Case(put, "out of range", {"self": x, "indices": (indices(3),), "values": floats(1, 4, 5)}, raises=RANGE)
    index = indices([0, 2, 1], [2, 0, 1])
    yield Case(
        "aten.scatter.src", "dim 1", {"self": floats(2, 4), "dim": 1, "index": index, "src": floats(2, 3, seed=1)}
    )
    yield Case("aten.scatter.value", "dim 1", {"self": floats(2, 4), "dim": 1, "index": index, "value": 2.5})
    twice = indices([0, 0, 2], [1, 1, 1])
    yield Case(
        "aten.scatter_add.default",
        "duplicates",
        {"self": floats(2, 4), "dim": 1, "index": twice, "src": floats(2, 3, seed=1)},
    )
    for reduce in ("sum", "prod", "amax", "amin", "mean"):
        for include in (True, False):
            name = f"{reduce}{'' if include else ', self left out'}"
            args = {"self": floats(2, 4), "dim": 1, "index": twice, "src": floats(2, 3, seed=1), "reduce": reduce}
            yield Case("aten.scatter_reduce.two", name, {**args, "include_self": include})
    yield Case(
        "aten.scatter.src",
        "out of range",
        {"self": floats(2, 4), "dim": 1, "index": indices([4]), "src": floats(1, 1)},
        raises=RANGE,
    )
    yield Case("aten.select_scatter.default", "dim 1", {"self": x, "src": floats(3, 5, seed=1), "dim": 1, "index": -1})
    yield Case(
        "aten.slice_scatter.default",
        "step 2",
        {"self": x, "src": floats(3, 2, 5, seed=1), "dim": 1, "start": 0, "end": 4, "step": 2},
    )
    yield Case("aten.slice_scatter.default", "whole", {"self": x, "src": floats(3, 4, 5, seed=1), "dim": 1})
    mask = integers(3, 4, 5, dtype=T.BOOL)
    yield Case("aten.masked_scatter.default", "float32", {"self": x, "mask": mask, "source": floats(60, seed=1)})


def table_gradients() -> Iterator[Case]:
    op = "aten.embedding_dense_backward.default"
    args = {"grad_output": floats(2, 3, 4), "indices": indices(1, 0, 6, 1, 6, 1).reshape(2, 3), "num_weights": 7}
    for name, padding, scale in (("plain", -1, False), ("padding", 6, False), ("by frequency", -1, True)):
        yield Case(op, name, {**args, "padding_idx": padding, "scale_grad_by_freq": scale})


def bags() -> Iterator[Case]:
    op = "aten._embedding_bag.default"
    free = frozenset({1, 2, 3})  # notes for the backward pass, which differ between PyTorch's own ways to compute it
    table, ids = floats(7, 5), indices(1, 0, 6, 2, 6, 3)
    base = {"weight": table, "indices": ids, "offsets": indices(0, 2, 2)}
    for mode, name in ((0, "sum"), (1, "mean"), (2, "max")):
        yield Case(op, name, {**base, "mode": mode}, free_results=free)
        yield Case(op, f"{name}, padding", {**base, "mode": mode, "padding_idx": 6}, free_results=free)
    weights = floats(6, seed=1)
    yield Case(op, "weights", {**base, "mode": 0, "per_sample_weights": weights}, free_results=free)
    ends = {**base, "offsets": indices(0, 2, 6), "include_last_offset": True}
    yield Case(op, "last offset", {**ends, "mode": 0}, free_results=free)
    yield Case(op, "out of range", {**base, "indices": indices(1, 0, 7, 2, 6, 3)}, raises=RANGE)


def axes_of_indices() -> Iterator[Case]:
    """Indices along one axis: what is added, copied, reduced or filled there."""
    x, twice, source = floats(4, 3, 2), indices(2, 0, 2), floats(3, 3, 2, seed=1)
    once = indices(3, 0, 1)
    yield Case("aten.index_add.default", "duplicates", {"self": x, "dim": 0, "index": twice, "source": source})
    yield Case("aten.index_add.default", "alpha", {"self": x, "dim": 0, "index": twice, "source": source, "alpha": 2})
    yield Case(
        "aten.index_add.default",
        "int64, dim 1",
        {"self": integers(2, 4), "dim": -1, "index": indices(1, 1, 3), "source": integers(2, 3, seed=1)},
    )
    yield Case("aten.index_copy.default", "dim 0", {"self": x, "dim": 0, "index": once, "source": source})
    for reduce in ("prod", "mean", "amax", "amin"):
        for include in (True, False):
            name = f"{reduce}{'' if include else ', self left out'}"
            args = {"self": x, "dim": 0, "index": twice, "source": source, "reduce": reduce, "include_self": include}
            yield Case("aten.index_reduce.default", name, args)
    for dtype in (T.FLOAT, T.HALF, T.LONG, T.BOOL):
        args = {"self": make(4, 3, dtype=dtype), "dim": 0, "index": indices(3, 1)}
        yield Case("aten.index_fill.int_Scalar", dtype.torch_name, {**args, "value": 1})
        yield Case("aten.index_fill.int_Tensor", dtype.torch_name, {**args, "value": np.array(1, dtype.numpy)})
    beyond = {"self": x, "dim": 0, "index": indices(1, 4)}
    yield Case("aten.index_fill.int_Scalar", "out of range", {**beyond, "value": 1}, raises=RANGE)
    yield Case("aten.index_add.default", "out of range", {**beyond, "source": source[:2]}, raises=RANGE)
    yield Case("aten.index_copy.default", "out of range", {**beyond, "source": source[:2]}, raises=RANGE)


def other_writing() -> Iterator[Case]:
    x = floats(2, 4)
    twice = indices([0, 0, 2], [1, 1, 1])
    for reduce in ("add", "multiply"):
        pair = {"self": x, "dim": 1, "index": twice, "reduce": reduce}
        yield Case("aten.scatter.reduce", reduce, {**pair, "src": floats(2, 3, seed=1)})
        yield Case("aten.scatter.value_reduce", reduce, {**pair, "value": 2.5})
    flat = indices([7, 0], [-1, 3])
    yield Case("aten.take.default", "float32", {"self": x, "index": flat})
    yield Case("aten.take.default", "out of range", {"self": x, "index": indices(8)}, raises=RANGE)
    yield Case("aten.put.default", "float32", {"self": x, "index": indices(7, 0, 3), "source": floats(3, seed=1)})
    adding = {"index": indices(5, 5, 0), "source": floats(3, seed=1), "accumulate": True}
    yield Case("aten.put.default", "accumulate", {"self": x, **adding})
    yield Case("aten._unsafe_index.Tensor", "two axes", {"self": x, "indices": (indices(1, 0), indices(3, 2))})
    put = {"self": x, "indices": (None, indices(3, 1)), "values": floats(2, 2, seed=1)}
    yield Case("aten._unsafe_index_put.default", "second axis", put)
    for offset in (0, 1, -1):
        args = {"self": floats(3, 4), "src": floats(3 if offset >= 0 else 2, seed=1), "offset": offset}
        yield Case("aten.diagonal_scatter.default", f"offset {offset}", args)
    strided = {"src": floats(2, 2, seed=1), "size": (2, 2), "stride": (4, 1), "storage_offset": 1}
    yield Case("aten.as_strided_scatter.default", "float32", {"self": floats(3, 4), **strided})


def selected_by_data() -> Iterator[Case]:
    """Results whose number depends on the data."""
    odd = np.array([[0, np.nan, -0.0], [1, 0, 2]], np.float32)
    table = floats(5, 4)
    for kind in (1.0, 2.0, float("inf")):
        args = {"self": table, "indices": np.array([[3, 0], [3, 4]]), "max_norm": 1.5, "norm_type": kind}
        yield Case("aten.embedding_renorm.default", f"norm {kind}", args)
    beyond = {"self": table, "indices": np.array([5]), "max_norm": 1.0, "norm_type": 2.0}
    yield Case("aten.embedding_renorm.default", "out of range", beyond, raises="IndexOutOfRangeError")
    for size in (0, 2, 9):
        yield Case("aten.nonzero_static.default", f"{size}", {"self": odd, "size": size})
    yield Case("aten.nonzero_static.default", "filled", {"self": odd, "size": 9, "fill_value": 7})
    bins = np.array([1, 4, 1, 0, 1])
    weighted = {"self": bins, "weights": floats(5)}
    yield Case("aten.bincount.default", "counts", {"self": bins}, (np.array([1, 3, 0, 0, 1]),), data_dependent=True)
    yield Case("aten.bincount.default", "more bins", {"self": bins, "minlength": 7}, data_dependent=True)
    yield Case("aten.bincount.default", "float32 weights", weighted, data_dependent=True)
    whole = {"self": bins.astype(np.int32), "weights": integers(5)}
    yield Case("aten.bincount.default", "int64 weights", whole, data_dependent=True)
    yield Case("aten.nonzero.default", "float32", {"self": odd}, data_dependent=True)
    yield Case("aten.nonzero.default", "nothing", {"self": np.zeros((2, 3), np.int64)}, data_dependent=True)
    yield Case("aten.nonzero.default", "0-d", {"self": np.array(True)}, data_dependent=True)
    mask = integers(4, dtype=T.BOOL)
    yield Case("aten.masked_select.default", "broadcast", {"self": floats(3, 4), "mask": mask}, data_dependent=True)
    yield Case("aten.index.Tensor", "mask", {"self": floats(4, 3), "indices": (mask,)}, data_dependent=True)
    put = {"self": floats(4, 3), "indices": (mask,), "values": np.array(7, np.float32)}
    yield Case("aten.index_put.default", "mask, one value", put)


def masks() -> Iterator[Case]:
    """Masks among the indices: where they stand, beside others, and what is written where they are true."""
    op, put = "aten.index.Tensor", "aten.index_put.default"
    x = floats(3, 4, 5)
    rows, row, cells = np.array([True, False, True]), np.array([1, 0]), integers(4, 5, dtype=T.BOOL)
    for name, chosen in {
        "mask of two axes": (None, cells),
        "two masks": (rows, np.array([True, False, False, True])),
        "mask beside an index": (row, None, np.array([True, False, True, False, False])),
        "mask that chooses nothing": (np.zeros((3, 4), np.bool_),),
    }.items():
        yield Case(op, name, {"self": x, "indices": chosen}, data_dependent=True)
    for name, chosen, values in (
        ("mask, a row", (rows,), floats(5, seed=1)),
        ("mask, an axis of 1", (rows,), floats(1, 4, 1, seed=1)),
        ("mask of two axes, a column", (None, cells), floats(3, 1, seed=1)),
    ):
        for accumulate in (False, True):
            args = {"self": x, "indices": chosen, "values": values, "accumulate": accumulate}
            yield Case(put, f"{name}{', accumulate' if accumulate else ''}", args)
    many = {"self": x, "indices": (rows,), "values": floats(2, 4, 5, seed=1)}
    yield Case(put, "mask, as many values", many, data_dependent=True)
    yield Case(put, "mask, as many values, accumulate", {**many, "accumulate": True}, data_dependent=True)


def cases() -> Iterator[Case]:
    """Every case of the family."""
    yield from table_gradients()
    yield from bags()
    yield from axes_of_indices()
    yield from other_writing()
    yield from selected_by_data()
    yield from masks()
    yield from embeddings()
    yield from selection()
    yield from writing()
