"""Cases of the family `sort`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from ptn_format.dtypes import ScalarType as T

from ptn_runtime.conformance.case import Case, floats, permutation

NAN = float("nan")


def cases() -> Iterator[Case]:
    """Every case of the family."""
    sort, topk = "aten.sort.default", "aten.topk.default"
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
    big = permutation(5, dtype=T.LONG) + 2**60
    best = (np.array([big.max()]), np.array([int(big.argmax())]))
    args = {"self": big, "k": 1, "dim": 0, "largest": True, "sorted": True}
    yield Case(topk, "int64 beyond 2^53", args, best)
