"""Cases of the family `sort`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from ptn_format.dtypes import ScalarType as T

from ptn_runtime.conformance.case import Case, floats, integers, permutation

NAN = float("nan")


def further() -> Iterator[Case]:
    tied = np.array([[2, 1, 2, 1, 0], [3, 3, 3, 3, 3]], np.float32)
    order = {False: [[4, 1, 3, 0, 2], [0, 1, 2, 3, 4]], True: [[0, 2, 1, 3, 4], [0, 1, 2, 3, 4]]}
    odd = np.array([2, NAN, -1, float("inf")], np.float32)
    for descending, indices in order.items():
        name = "descending" if descending else "ascending"
        expected = np.array(indices)
        values = np.take_along_axis(tied, expected, 1)
        args = {"self": tied, "stable": True, "dim": 1, "descending": descending}
        yield Case("aten.sort.stable", f"{name}, ties keep their order", args, (values, expected))
        yield Case("aten.argsort.stable", f"{name}, ties keep their order", args, (expected,))
        for dim in (0, -1):
            plain = {"self": permutation(3, 4, 5), "dim": dim, "descending": descending}
            yield Case("aten.argsort.default", f"{name}, dim {dim}", plain)
            yield Case("aten.sort.stable", f"{name}, dim {dim}", {**plain, "stable": True})
        nan_first = {"self": odd, "stable": True, "dim": 0, "descending": descending}
        yield Case("aten.sort.stable", f"{name}, nan is the largest", nan_first)
    for dtype in (T.HALF, T.LONG, T.INT):
        yield Case("aten.argsort.default", dtype.torch_name, {"self": permutation(3, 9, dtype=dtype), "dim": 1})
    for k in (1, 3, 5):
        yield Case("aten.kthvalue.default", f"{k}", {"self": permutation(3, 5), "k": k, "dim": -1})
    yield Case("aten.kthvalue.default", "kept", {"self": permutation(3, 5, 2), "k": 2, "dim": 1, "keepdim": True})
    yield Case("aten.kthvalue.default", "nan is the largest", {"self": odd, "k": 4, "dim": 0})
    yield Case("aten.kthvalue.default", "int64", {"self": permutation(9, dtype=T.LONG), "k": 4, "dim": 0})
    for dim in (0, 1):  # which of equal elements the index names is open
        frequent = {"self": integers(6, 7, low=0, high=3), "dim": dim, "keepdim": bool(dim)}
        yield Case("aten.mode.default", f"dim {dim}", frequent, free_results=frozenset({1}))
    alike = {"self": tied, "dim": 1}
    most = (np.array([1, 3], np.float32), np.array([3, 4]))
    yield Case("aten.mode.default", "the smallest of the most frequent", alike, most, free_results=frozenset({1}))
    edges = np.array([-1, 0, 0, 2], np.float32)
    found = np.array([[-2, -1, 0], [1, 2, 3]], np.float32)
    for right in (False, True):
        name = "right" if right else "left"
        yield Case("aten.bucketize.Tensor", name, {"self": found, "boundaries": edges, "right": right})
        yield Case("aten.bucketize.Scalar", name, {"self": 0.0, "boundaries": edges, "right": right})
        args = {"sorted_sequence": edges, "self": found, "right": right}
        yield Case("aten.searchsorted.Tensor", name, args)
        yield Case("aten.searchsorted.Tensor", f"{name}, rows", {**args, "sorted_sequence": np.stack([edges, edges])})
        yield Case("aten.searchsorted.Scalar", name, {"sorted_sequence": edges, "self": 0.0, "right": right})
    odd_row = np.array([NAN, 5], np.float32)
    yield Case("aten.bucketize.Tensor", "int32, nan", {"self": odd_row, "boundaries": edges, "out_int32": True})
    yield Case("aten.bucketize.Tensor", "int64", {"self": integers(5), "boundaries": np.array([-2, 0, 3])})
    sorter = {"sorted_sequence": np.array([2, -1, 0], np.float32), "self": found, "sorter": np.array([1, 2, 0])}
    yield Case("aten.searchsorted.Tensor", "sorter", sorter)
    yield Case("aten.searchsorted.Tensor", "side", {"sorted_sequence": edges, "self": found, "side": "right"})
    rows = np.array([[1, 2], [1, 2], [0, 5], [1, 2], [0, 5]], np.float32)
    for name, options in {"": {}, ", inverse and counts": {"return_inverse": True, "return_counts": True}}.items():
        for dim in (0, 1):
            args = {"self": rows, "dim": dim, **options}
            yield Case("aten.unique_dim.default", f"dim {dim}{name}", args, data_dependent=True)
            yield Case("aten.unique_consecutive.default", f"dim {dim}{name}", args, data_dependent=True)
        flat = {"self": np.array([[3, 3, 1], [1, 3, 3]]), **options}
        yield Case("aten.unique_consecutive.default", f"flat{name}", flat, data_dependent=True)
        line = {"self": np.array([3, 3, 1]), "dim": 0, **options}
        yield Case("aten.unique_consecutive.default", f"one axis{name}", line, data_dependent=True)
    repeated = np.array([3, 1, 3, 2, 1])
    for name, options in {
        "values": {},
        "inverse": {"return_inverse": True},
        "inverse and counts": {"return_inverse": True, "return_counts": True},
    }.items():
        yield Case("aten._unique2.default", name, {"self": repeated, **options}, data_dependent=True)
    yield Case("aten._unique2.default", "nan", {"self": odd, "return_counts": True}, data_dependent=True)


def cases() -> Iterator[Case]:
    """Every case of the family."""
    sort, topk = "aten.sort.default", "aten.topk.default"
    missing = np.array([NAN, 2, NAN, 1, float("inf"), NAN, -float("inf"), 2], np.float32)
    for k in (1, 4, 8):
        for largest in (False, True):  # which of equal elements the indices name is open
            args = {"self": missing, "k": k, "dim": 0, "largest": largest, "sorted": True}
            yield Case(topk, f"{k} with NaN, largest {largest}", args, free_results=frozenset({1}))
    for descending in (False, True):
        name = "descending" if descending else "ascending"
        for dim in (0, 1, -1):
            yield Case(sort, f"{name}, dim {dim}", {"self": permutation(3, 4, 5), "dim": dim, "descending": descending})
        yield Case(sort, f"{name}, wide", {"self": permutation(2, 3000), "dim": 1, "descending": descending})
    for dtype in (T.HALF, T.BFLOAT16, T.DOUBLE, T.LONG, T.INT, T.BYTE):
        yield Case(
            sort,
            dtype.torch_name,
            {
                "self": permutation(3, 9, dtype=dtype)
                if dtype is not T.BYTE
                else np.arange(9, dtype=np.uint8)[::-1].copy(),
                "dim": -1,
                "descending": False,
            },
        )
    yield Case(sort, "nan last", {"self": np.array([2, NAN, -1], np.float32), "dim": 0, "descending": False})
    yield Case(sort, "one element", {"self": floats(3, 1), "dim": 1, "descending": False})
    yield Case(sort, "empty", {"self": np.zeros((0,), np.float32), "dim": 0, "descending": False})
    for largest in (True, False):
        name = "largest" if largest else "smallest"
        for k in (0, 1, 3, 5):
            yield Case(
                topk,
                f"{name} {k}",
                {"self": permutation(3, 4, 5), "k": k, "dim": -1, "largest": largest, "sorted": True},
            )
        yield Case(
            topk, f"{name}, dim 1", {"self": permutation(3, 4, 5), "k": 2, "dim": 1, "largest": largest, "sorted": True}
        )
        yield Case(
            topk, f"{name}, wide", {"self": permutation(2, 5000), "k": 40, "dim": 1, "largest": largest, "sorted": True}
        )
    yield Case(
        topk, "int64", {"self": permutation(30, dtype=T.LONG), "k": 7, "dim": 0, "largest": True, "sorted": True}
    )
    yield Case(
        topk, "float16", {"self": permutation(30, dtype=T.HALF), "k": 7, "dim": 0, "largest": True, "sorted": True}
    )
    yield from further()
    big = permutation(5, dtype=T.LONG) + 2**60
    best = (np.array([big.max()]), np.array([int(big.argmax())]))
    args = {"self": big, "k": 1, "dim": 0, "largest": True, "sorted": True}
    yield Case(topk, "int64 beyond 2^53", args, best)
