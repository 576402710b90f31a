"""Cases of the family `matmul`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from ptn_format.dtypes import ScalarType as T

from ptn_runtime.conformance.case import Case, floats, integers

WEIGHT = frozenset({"weight", "bias"})
DTYPES = (T.FLOAT, T.HALF, T.BFLOAT16, T.DOUBLE)


def vectors() -> Iterator[Case]:
    for dtype in DTYPES:
        name, left, right = dtype.torch_name, floats(3, 17, dtype=dtype), floats(17, dtype=dtype, seed=1)
        atol = 5e-2 if dtype in (T.HALF, T.BFLOAT16) else None
        yield Case("aten.mv.default", name, {"self": left, "vec": right}, atol=atol)
        yield Case("aten.dot.default", name, {"self": left[1].copy(), "tensor": right}, atol=atol)
    yield Case("aten.mv.default", "int64", {"self": integers(3, 5), "vec": integers(5, seed=1)})
    yield Case("aten.dot.default", "empty", {"self": floats(0), "tensor": floats(0)}, (np.array(0, np.float32),))
    for dim in (-1, 0):
        pair = {"self": floats(3, 4, 3), "other": floats(3, 4, 3, seed=1)}
        yield Case("aten.linalg_cross.default", f"dim {dim}", {**pair, "dim": dim})
    yield Case("aten.linalg_cross.default", "broadcast", {"self": floats(4, 3), "other": floats(1, 3), "dim": -1})


def sums_of_products() -> Iterator[Case]:
    scaled = {"beta": 0.5, "alpha": 2.0}
    nothing = {"beta": 0}
    batches = {"batch1": floats(2, 3, 4), "batch2": floats(2, 4, 5, seed=1)}
    for op, shape in (("aten.baddbmm.default", (2, 3, 5)), ("aten.addbmm.default", (3, 5))):
        yield Case(op, "plain", {"self": floats(*shape, seed=2), **batches})
        yield Case(op, "alpha and beta", {"self": floats(5, seed=2), **batches, **scaled})
        yield Case(op, "beta 0 hides nan", {"self": np.full(shape, np.nan, np.float32), **batches, **nothing})
    addmv = {"mat": floats(3, 4), "vec": floats(4, seed=1)}
    addr = {"vec1": floats(3), "vec2": floats(4, seed=1)}
    for op, self, args in (
        ("aten.addmv.default", floats(3, seed=2), addmv),
        ("aten.addr.default", floats(3, 4, seed=2), addr),
    ):
        yield Case(op, "plain", {"self": self, **args})
        yield Case(op, "alpha and beta", {"self": self, **args, **scaled})
        yield Case(op, "beta 0 hides nan", {"self": np.full(self.shape, np.nan, np.float32), **args, **nothing})
    typed = {name: array.astype(np.float16) for name, array in batches.items()}
    yield Case("aten.baddbmm.default", "float16", {"self": floats(2, 3, 5, dtype=T.HALF), **typed}, atol=2e-2)


def distances() -> Iterator[Case]:
    left, right = floats(2, 4, 3), floats(2, 5, 3, seed=1)
    for p in (0.0, 1.0, 2.0, 3.0, float("inf")):
        yield Case("aten.cdist.default", f"p {p}", {"x1": left, "x2": right, "p": p, "compute_mode": None})
        args = {"x1": left, "x2": right, "p": p, "compute_mode": None}
        yield Case("aten._cdist_forward.default", f"p {p}", args)
        for op in ("aten.pdist.default", "aten._pdist_forward.default"):
            yield Case(op, f"p {p}", {"self": floats(5, 3), "p": p})
    yield Case("aten.cdist.default", "broadcast", {"x1": floats(3, 1, 2, 4), "x2": floats(2, 3, 4)})
    many = {"x1": floats(40, 6), "x2": floats(30, 6, seed=1), "p": 2.0, "compute_mode": 1}
    yield Case("aten.cdist.default", "through matrix products", many, atol=1e-3)
    yield Case("aten.pdist.default", "one row", {"self": floats(1, 3), "p": 2.0}, (np.zeros(0, np.float32),))


def cases() -> Iterator[Case]:
    """Every case of the family."""
    for dtype in DTYPES:
        name = dtype.torch_name

        def make(*shape: int, seed: int = 0, dtype: T = dtype) -> object:
            return floats(*shape, dtype=dtype, low=-1, high=1, seed=seed)

        yield Case(
            "aten.linear.default",
            name,
            {"input": make(5, 33), "weight": make(7, 33, seed=1), "bias": make(7)},
            constants=WEIGHT,
        )
        yield Case("aten.mm.default", name, {"self": make(3, 17), "mat2": make(17, 5, seed=1)})
        yield Case("aten.bmm.default", name, {"self": make(4, 3, 17), "mat2": make(4, 17, 5, seed=1)})
        yield Case("aten.matmul.default", name, {"self": make(2, 3, 4, 8), "other": make(2, 3, 8, 5, seed=1)})
        yield Case("aten.addmm.default", name, {"self": make(5), "mat1": make(3, 17), "mat2": make(17, 5, seed=1)})
    x = floats(2, 3, 4, 33)
    weight = floats(7, 33, seed=1)
    yield Case("aten.linear.default", "no bias, rank 4", {"input": x, "weight": weight, "bias": None}, constants=WEIGHT)
    yield Case(
        "aten.linear.default", "rank 1", {"input": x[0, 0, 0], "weight": weight, "bias": floats(7)}, constants=WEIGHT
    )
    yield Case("aten.linear.default", "weight is an input", {"input": x, "weight": weight, "bias": floats(7)})
    yield Case(
        "aten.linear.default", "one row", {"input": floats(1, 256), "weight": floats(64, 256, seed=1)}, constants=WEIGHT
    )
    yield Case(
        "aten.linear.default",
        "no rows",
        {"input": np.zeros((0, 8), np.float32), "weight": floats(4, 8), "bias": floats(4)},
        constants=WEIGHT,
    )
    yield Case(
        "aten.linear.default",
        "inner size 0",
        {"input": np.zeros((3, 0), np.float32), "weight": np.zeros((4, 0), np.float32), "bias": floats(4)},
    )
    yield Case(
        "aten.linear.default",
        "rank 6",
        {"input": floats(2, 1, 2, 1, 3, 8), "weight": floats(4, 8, seed=1)},
        constants=WEIGHT,
    )
    shapes = {
        "vector, vector": ((8,), (8,)),
        "vector, matrix": ((8,), (8, 5)),
        "matrix, vector": ((3, 8), (8,)),
        "batch, vector": ((2, 3, 8), (8,)),
        "vector, batch": ((8,), (2, 8, 5)),
        "batch, matrix": ((2, 3, 8), (8, 5)),
        "matrix, batch": ((3, 8), (2, 8, 5)),
        "broadcast batches": ((2, 1, 3, 8), (4, 8, 5)),
        "rank 6": ((2, 1, 2, 1, 3, 8), (1, 3, 1, 2, 8, 5)),
        "1 by 1": ((1, 1), (1, 1)),
    }
    for name, (left, right) in shapes.items():
        yield Case("aten.matmul.default", name, {"self": floats(*left), "other": floats(*right, seed=1)})
    yield Case(
        "aten.matmul.default",
        "weight",
        {"self": floats(2, 3, 8), "other": floats(8, 5)},
        constants=frozenset({"other"}),
    )
    pair = {"mat1": floats(3, 8), "mat2": floats(8, 5, seed=1)}
    yield Case(
        "aten.addmm.default", "alpha and beta", {"self": floats(3, 5, seed=2), **pair, "beta": 0.5, "alpha": 2.0}
    )
    yield Case("aten.addmm.default", "beta 0 hides nan", {"self": np.full(5, np.nan, np.float32), **pair, "beta": 0})
    yield from vectors()
    yield from sums_of_products()
    yield from distances()
    yield Case("aten.mm.default", "int64", {"self": integers(3, 8), "mat2": integers(8, 5, seed=1)})
    yield Case(
        "aten.mm.default", "int32", {"self": integers(3, 8, dtype=T.INT), "mat2": integers(8, 5, dtype=T.INT, seed=1)}
    )
