"""Cases of the family `matmul`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from ptn_format.dtypes import ScalarType as T
from ptn_format.graph import BoolArg, IntListArg

from ptn_runtime.conformance.case import Array, Case, floats, integers
from ptn_runtime.conformance.programs import MethodBuilder, pack, static_meta

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


def groups() -> Iterator[Case]:
    """Rows that meet the matrix of their group, as in a mixture of experts; other axes are grouped too.

    PyTorch wants rows of whole 16 bytes, and says nothing of rows behind the last group.
    """
    op = "aten._grouped_mm.default"
    rest = {"bias": None, "out_dtype": None}
    ends = np.array([3, 3, 4, 8], np.int32)
    for dtype in (T.FLOAT, T.HALF, T.BFLOAT16):
        atol = None if dtype is T.FLOAT else 5e-2
        args = {"self": floats(8, 16, dtype=dtype), "mat2": floats(4, 16, 8, dtype=dtype, seed=1), "offs": ends, **rest}
        yield Case(op, dtype.torch_name, args, atol=atol)
        yield Case(op, f"{dtype.torch_name} weights", args, constants=frozenset({"mat2"}), atol=atol)
    many = np.array([0, 40, 41, 200], np.int32)
    yield Case(op, "many rows", {"self": floats(200, 72), "mat2": floats(4, 72, 36, seed=1), "offs": many, **rest})
    yield Case(op, "columns", {"self": floats(4, 3, 8), "mat2": floats(8, 8, seed=1), "offs": ends, **rest})
    yield Case(op, "what is summed over", {"self": floats(3, 8), "mat2": floats(8, 8, seed=1), "offs": ends, **rest})
    yield Case(op, "batches", {"self": floats(2, 3, 4), "mat2": floats(2, 4, 8, seed=1), "offs": None, **rest})


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


def odd_distances() -> Iterator[Case]:
    """Squares overflow and vanish as they do in the tensor's own type; NaN counts, or not, as in PyTorch."""
    odd = np.array([[3e38, 1e30], [1e20, 2e20], [np.inf, 1], [np.nan, 0], [1e-30, 1e-25], [0, 0]], np.float32)
    for p in (0.0, 1.0, 2.0, 3.0, 0.5, float("inf")):
        args = {"x1": odd, "x2": odd[:4] / 2, "p": p, "compute_mode": None}
        yield Case("aten._cdist_forward.default", f"p {p}, odd numbers", args)
        yield Case("aten._pdist_forward.default", f"p {p}, odd numbers", {"self": odd, "p": p})


def factors() -> Iterator[Case]:
    """Inverses, determinants, systems of equations, and orthogonal factors."""
    for dtype, atol in ((T.FLOAT, 1e-3), (T.DOUBLE, 1e-9)):
        name = dtype.torch_name
        a = floats(2, 4, 4, dtype=dtype) + 4 * np.eye(4, dtype=dtype.numpy)[::-1]
        b, wide = floats(2, 4, 3, dtype=dtype, seed=1), floats(2, 3, 5, dtype=dtype, seed=2)
        definite = np.matmul(a, a.swapaxes(-1, -2)) + np.eye(4, dtype=dtype.numpy)
        lower, upper = np.tril(a) + 5 * np.eye(4, dtype=dtype.numpy), np.triu(definite)
        calls: list[tuple[str, str, dict[str, Any]]] = [
            ("linalg_lu_factor_ex.default", "", {"A": a}),
            ("linalg_lu_factor_ex.default", ", wide", {"A": wide}),
            ("linalg_inv_ex.default", "", {"A": a}),
            ("_linalg_solve_ex.default", "", {"A": a, "B": b}),
            ("_linalg_solve_ex.default", ", vectors", {"A": a, "B": b[..., 0]}),
            ("_linalg_solve_ex.default", ", from the right", {"A": a, "B": b.swapaxes(1, 2).copy(), "left": False}),
            ("linalg_solve_triangular.default", ", lower", {"self": lower, "B": b, "upper": False}),
            ("linalg_solve_triangular.default", ", upper", {"self": upper, "B": b, "upper": True}),
            ("triangular_solve.default", ", transposed", {"self": b, "A": upper, "transpose": True}),
            ("linalg_cholesky_ex.default", ", lower", {"self": definite}),
            ("linalg_cholesky_ex.default", ", upper", {"self": definite, "upper": True}),
            ("cholesky.default", "", {"self": definite}),
            ("cholesky_solve.default", "", {"self": b, "input2": lower}),
            ("cholesky_inverse.default", "", {"self": lower}),
            ("linalg_qr.default", ", reduced", {"A": b}),
            ("linalg_qr.default", ", complete", {"A": b, "mode": "complete"}),
            ("linalg_qr.default", ", r", {"A": b, "mode": "r"}),
            ("linalg_pinv.atol_rtol_tensor", "", {"self": wide}),
        ]
        for op, what, args in calls:
            yield Case(f"aten.{op}", f"{name}{what}", args, atol=atol, rtol=atol)
        # The factors are there for the backward pass, of the matrix or its transpose.
        yield Case("aten._linalg_det.default", name, {"A": a}, atol=atol, rtol=atol, free_results=frozenset({1, 2}))
        yield Case("aten._linalg_slogdet.default", name, {"A": a}, atol=atol, free_results=frozenset({2, 3}))
        signs = frozenset({0, 2})  # of the vectors
        yield Case("aten._linalg_svd.default", name, {"A": b}, atol=atol, free_results=signs)
        yield Case("aten._linalg_svd.default", f"{name}, values", {"A": b, "compute_uv": False}, atol=atol)
        yield Case(
            "aten._linalg_eigh.default", name, {"A": definite}, atol=atol, rtol=atol, free_results=frozenset({1})
        )
        lu = np.array([[[4, 2], [0.5, 3]]], dtype.numpy)
        solved = {"LU": lu, "pivots": np.array([[2, 2]], np.int32), "B": np.array([[[1], [4]]], dtype.numpy)}
        yield Case("aten.linalg_lu_solve.default", f"{name}, literal", solved,
                   (np.array([[[7 / 6], [-1 / 3]]], dtype.numpy),), atol=atol)  # fmt: skip
        for adjoint, left in ((True, True), (False, False), (True, False)):
            args = {**solved, "adjoint": adjoint, "left": left}
            args["B"] = args["B"] if left else args["B"].swapaxes(1, 2).copy()
            label = f"{name}{', transposed' if adjoint else ''}{'' if left else ', from the right'}"
            yield Case("aten.linalg_lu_solve.default", label, args, atol=atol)
    singular = np.array([[1, 2], [2, 4]], np.float32)
    zero = (np.zeros((), np.float32), np.array([[2, 4], [0.5, 0]], np.float32), np.array([2, 2], np.int32))
    yield Case("aten._linalg_det.default", "singular", {"A": singular}, zero)
    yield Case("aten.linalg_inv_ex.default", "singular", {"A": singular}, free_results=frozenset({0}))
    strict = {"A": singular, "check_errors": True}
    yield Case("aten.linalg_inv_ex.default", "singular, checked", strict, raises="ExecutionError")
    indefinite = np.array([[1, 2], [2, 1]], np.float32)
    yield Case("aten.linalg_cholesky_ex.default", "indefinite", {"self": indefinite}, free_results=frozenset({0}))
    yield Case("aten.cholesky.default", "indefinite", {"self": indefinite}, raises="ExecutionError")


def pairs(numbers: Array) -> Array:
    """Complex numbers as real ones with a last axis of 2."""
    return np.stack((numbers.real, numbers.imag), axis=-1)


def transform(args: Mapping[str, Any]) -> tuple[bytes, list[Array]]:
    """A Fourier transform; complex tensors enter and leave a program by views."""
    given = dict(args)
    op, x, result = given.pop("op"), given.pop("x"), static_meta(given.pop("result"))
    literals = {
        name: IntListArg(value) if isinstance(value, tuple) else BoolArg(value) if isinstance(value, bool) else value
        for name, value in given.items()
    }
    method = MethodBuilder("forward")
    method.input("x", *x.shape, dtype=T.from_numpy(x.dtype))
    source = "x" if "r2c" in op else method.call("z", "aten.view_as_complex.default", static_meta(x), self="x")
    y = method.call("y", op, result, self=source, **literals)
    if "c2r" not in op:
        y = method.call("parts", "aten.view_as_real.default", result, self="y")
    method.result(y)
    return pack([method.build()], {}), [x]


def transformed(op: str, name: str, args: Mapping[str, Any], want: Array) -> Case:
    return Case(op, name, args, (want,), rtol=1e-5, atol=1e-4, program=transform)


def transforms() -> Iterator[Case]:
    for dtype in (T.FLOAT, T.DOUBLE):
        kind = dtype.numpy
        real, parts = floats(3, 4, 10, dtype=dtype), floats(3, 4, 6, 2, dtype=dtype)
        wide = parts.astype(np.float64)
        z = wide[..., 0] + 1j * wide[..., 1]
        for dim in ((2,), (1, 2)):
            name = f"{dtype.torch_name}, axes {list(dim)}"
            common = {"dim": dim, "normalization": 0}
            for onesided in (True, False):
                op = "aten._fft_r2c.default"
                result = np.fft.rfftn(real, axes=dim) if onesided else np.fft.fftn(real, axes=dim)
                want = pairs(result).astype(kind)
                args = {"op": op, "x": real, "result": want, **common, "onesided": onesided}
                yield Case(
                    op,
                    f"{name}, {'half' if onesided else 'whole'}",
                    args,
                    (want,),
                    program=transform,
                    rtol=1e-5,
                    atol=1e-4,
                )
            for forward in (True, False):
                op = "aten._fft_c2c.default"
                result = np.fft.fftn(z, axes=dim) if forward else np.fft.ifftn(z, axes=dim, norm="forward")
                want = pairs(result).astype(kind)
                args = {"op": op, "x": parts, "result": want, **common, "forward": forward}
                yield Case(
                    op,
                    f"{name}, {'forward' if forward else 'backward'}",
                    args,
                    (want,),
                    program=transform,
                    rtol=1e-5,
                    atol=1e-4,
                )
            op = "aten._fft_c2r.default"
            for size in (10, 11):
                want = np.fft.irfftn(z, [*z.shape[dim[0] : 2], size], axes=dim).astype(kind)
                args = {"op": op, "x": parts, "result": want, "dim": dim, "normalization": 2, "last_dim_size": size}
                yield transformed(op, f"{name}, {size} elements", args, want)


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
    yield from groups()
    yield from distances()
    yield from odd_distances()
    yield from factors()
    yield from transforms()
    yield Case("aten.mm.default", "int64", {"self": integers(3, 8), "mat2": integers(8, 5, seed=1)})
    yield Case(
        "aten.mm.default", "int32", {"self": integers(3, 8, dtype=T.INT), "mat2": integers(8, 5, dtype=T.INT, seed=1)}
    )
