"""Numpy kernels of the family `matmul` that factor matrices: inverses, determinants, systems of equations.

Batches are worked on as a whole; loops go over the columns of the matrices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import numpy as np

from ptn_runtime.reference._numerics import cast
from ptn_runtime.reference.registry import Array, Outputs, kernel

_Results = TypeVar("_Results", bound=tuple[Array, ...])


def _factored(a: Array, *, pivot: bool = True) -> tuple[Array, Array, Array]:
    """LU with partial pivoting: both factors in one matrix, the rows swapped in each step from 1, and LAPACK's info."""
    lu = a.copy()
    steps = min(a.shape[-2:])
    pivots = np.empty((*a.shape[:-2], steps), np.int32)
    info = np.zeros(a.shape[:-2], np.int32)
    for k in range(steps):
        row = k + np.argmax(np.abs(lu[..., k:, k]), axis=-1) if pivot else np.full(a.shape[:-2], k)
        pivots[..., k] = row + 1
        _swap(lu, k, row)
        diagonal = lu[..., k, k]
        zero = diagonal == 0
        info = np.where((info == 0) & zero, np.int32(k + 1), info)
        lu[..., k + 1 :, k] /= np.where(zero, lu.dtype.type(1), diagonal)[..., None]
        lu[..., k + 1 :, k + 1 :] -= lu[..., k + 1 :, k, None] * lu[..., k, None, k + 1 :]
    return lu, pivots, info


def _swap(x: Array, k: int, row: Array) -> None:
    """Swaps row `k` of each matrix with its `row`."""
    index = np.broadcast_to(np.asarray(row)[..., None, None], (*x.shape[:-2], 1, x.shape[-1]))
    other = np.take_along_axis(x, index, -2)
    np.put_along_axis(x, index, x[..., k, None, :].copy(), -2)
    x[..., k, None, :] = other


def _permuted(b: Array, pivots: Array, *, backwards: bool = False) -> Array:
    """The rows of `b` after the swaps that `pivots` tells of."""
    x = b.copy()
    steps = range(pivots.shape[-1])
    for k in reversed(steps) if backwards else steps:
        _swap(x, k, np.broadcast_to(pivots[..., k] - 1, x.shape[:-2]))
    return x


def _triangular(a: Array, b: Array, *, upper: bool, unit: bool = False) -> Array:
    """The solution of `a @ x = b` by substitution; only one triangle of `a` is read."""
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    x = np.array(np.broadcast_to(b, (*batch, *b.shape[-2:])), order="C")
    count = a.shape[-1]
    for i in reversed(range(count)) if upper else range(count):
        known = slice(i + 1, count) if upper else slice(0, i)
        row = a[..., i, None, known]
        x[..., i, :] -= np.matmul(row, x[..., known, :])[..., 0, :]
        if not unit:
            x[..., i, :] /= a[..., i, i, None]
    return x


def _solved(lu: Array, pivots: Array, b: Array) -> Array:
    batch = np.broadcast_shapes(lu.shape[:-2], b.shape[:-2])
    wide = np.broadcast_to(b, (*batch, *b.shape[-2:]))
    lower = _triangular(lu, _permuted(wide, pivots), upper=False, unit=True)
    return _triangular(lu, lower, upper=True)


def _solved_transposed(lu: Array, pivots: Array, b: Array) -> Array:
    """The solution of `a.T @ x = b`."""
    turned = lu.swapaxes(-1, -2)
    lower = _triangular(turned, b, upper=False)
    return _permuted(_triangular(turned, lower, upper=True, unit=True), pivots, backwards=True)


def _from_the_right(solve: Callable[[Array], Array], b: Array) -> Array:
    return solve(b.swapaxes(-1, -2)).swapaxes(-1, -2)


@kernel("aten.linalg_lu_factor_ex.default")
def linalg_lu_factor_ex(
    out: Outputs, A: Array, *, pivot: bool = True, check_errors: bool = False
) -> tuple[Array, Array, Array]:
    return _checked(_factored(A, pivot=pivot), check_errors)


def _checked(results: _Results, check_errors: bool) -> _Results:
    """The results, of which the last is LAPACK's info: an error where one is not 0 and errors are asked for."""
    info = results[-1]
    if check_errors and info.any():
        raise ValueError(f"a matrix cannot be factored: step {int(info[info != 0].reshape(-1)[0])} meets a pivot of 0")
    return results


@kernel("aten.linalg_inv_ex.default")
def linalg_inv_ex(out: Outputs, A: Array, *, check_errors: bool = False) -> tuple[Array, Array]:
    lu, pivots, info = _factored(A)
    inverse = _solved(lu, pivots, np.broadcast_to(np.eye(A.shape[-1], dtype=A.dtype), A.shape))
    return _checked((inverse, info), check_errors)


@kernel("aten._linalg_det.default")
def linalg_det(out: Outputs, A: Array) -> tuple[Array, Array, Array]:
    lu, pivots, _ = _factored(A)
    diagonal = np.diagonal(lu, axis1=-2, axis2=-1)
    return np.asarray(_parity(pivots, A.dtype) * diagonal.prod(-1), A.dtype), lu, pivots


def _parity(pivots: Array, dtype: np.dtype[Any]) -> Array:
    """1 where an even number of rows was swapped, else -1."""
    moved = np.count_nonzero(pivots != np.arange(1, pivots.shape[-1] + 1), axis=-1)
    return np.asarray(1 - 2 * (moved % 2), dtype)


@kernel("aten._linalg_slogdet.default")
def linalg_slogdet(out: Outputs, A: Array) -> tuple[Array, Array, Array, Array]:
    lu, pivots, _ = _factored(A)
    diagonal = np.diagonal(lu, axis1=-2, axis2=-1)
    sign = np.asarray(_parity(pivots, A.dtype) * np.sign(diagonal).prod(-1), A.dtype)
    return sign, np.asarray(np.log(np.abs(diagonal)).sum(-1), A.dtype), lu, pivots


@kernel("aten._linalg_solve_ex.default")
def linalg_solve_ex(
    out: Outputs, A: Array, B: Array, *, left: bool = True, check_errors: bool = False
) -> tuple[Array, Array, Array, Array]:
    lu, pivots, info = _factored(A)
    columns = B[..., None] if len(out.shape) < max(A.ndim, B.ndim) or B.ndim < 2 else B
    if left:
        result = _solved(lu, pivots, columns)
    else:
        result = _from_the_right(lambda b: _solved_transposed(lu, pivots, b), columns)
    return _checked((np.ascontiguousarray(result).reshape(out.shape), lu, pivots, info), check_errors)


@kernel("aten.linalg_lu_solve.default")
def linalg_lu_solve(
    out: Outputs, LU: Array, pivots: Array, B: Array, *, left: bool = True, adjoint: bool = False
) -> Array:
    solve = _solved if left != adjoint else _solved_transposed
    if left:
        return solve(LU, pivots, B)
    return np.ascontiguousarray(_from_the_right(lambda b: solve(LU, pivots, b), B))


@kernel("aten.linalg_solve_triangular.default")
def linalg_solve_triangular(
    out: Outputs, self: Array, B: Array, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Array:
    if left:
        return _triangular(self, B, upper=upper, unit=unitriangular)
    turned = self.swapaxes(-1, -2)
    solved = _from_the_right(lambda b: _triangular(turned, b, upper=not upper, unit=unitriangular), B)
    return np.ascontiguousarray(solved)


@kernel("aten.triangular_solve.default")
def triangular_solve(
    out: Outputs, self: Array, A: Array, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Array, Array]:
    matrix = A.swapaxes(-1, -2) if transpose else A
    solution = _triangular(matrix, self, upper=upper != transpose, unit=unitriangular)
    return solution, np.array(np.broadcast_to(A, out[1].shape))


# --- Cholesky ---------------------------------------------------------------------------------------------------


def _cholesky(a: Array, upper: bool) -> tuple[Array, Array]:
    """The factor and LAPACK's info: the step that meets a matrix that is not positive definite, or 0."""
    source = a.swapaxes(-1, -2) if upper else a
    lower = np.zeros_like(source)
    info = np.zeros(a.shape[:-2], np.int32)
    for k in range(a.shape[-1]):
        row = lower[..., k, :k]
        diagonal = source[..., k, k] - (row * row).sum(-1)
        info = np.where((info == 0) & ~(diagonal > 0), np.int32(k + 1), info)
        lower[..., k, k] = np.sqrt(diagonal)
        below = source[..., k + 1 :, k] - np.matmul(lower[..., k + 1 :, :k], row[..., None])[..., 0]
        lower[..., k + 1 :, k] = below / lower[..., k, k, None]
    return np.ascontiguousarray(lower.swapaxes(-1, -2)) if upper else lower, info


@kernel("aten.linalg_cholesky_ex.default")
def linalg_cholesky_ex(
    out: Outputs, self: Array, *, upper: bool = False, check_errors: bool = False
) -> tuple[Array, Array]:
    return _checked(_cholesky(self, upper), check_errors)


@kernel("aten.cholesky.default")
def cholesky(out: Outputs, self: Array, upper: bool = False) -> Array:
    factor, info = _cholesky(self, upper)
    if info.any():
        step = int(info[info != 0].reshape(-1)[0])
        raise ValueError(f"a matrix is not positive definite: its leading minor of order {step} is not")
    return factor


def _solved_by_cholesky(factor: Array, b: Array, upper: bool) -> Array:
    lower = factor.swapaxes(-1, -2) if upper else factor
    return _triangular(lower.swapaxes(-1, -2), _triangular(lower, b, upper=False), upper=True)


@kernel("aten.cholesky_solve.default")
def cholesky_solve(out: Outputs, self: Array, input2: Array, upper: bool = False) -> Array:
    return _solved_by_cholesky(input2, self, upper)


@kernel("aten.cholesky_inverse.default")
def cholesky_inverse(out: Outputs, self: Array, upper: bool = False) -> Array:
    return _solved_by_cholesky(self, np.broadcast_to(np.eye(self.shape[-1], dtype=self.dtype), self.shape), upper)


# --- orthogonal factors -----------------------------------------------------------------------------------------


@kernel("aten.linalg_qr.default")
def linalg_qr(out: Outputs, A: Array, mode: str = "reduced") -> tuple[Array, Array]:
    if not A.size:
        q = np.zeros(out.shape, A.dtype)
        q += np.eye(*out.shape[-2:], dtype=A.dtype) if mode != "r" else 0
        return q, np.zeros(out[1].shape, A.dtype)
    if mode == "r":
        return np.zeros((0,), A.dtype), np.asarray(np.linalg.qr(A, mode="r"))
    q, r = np.linalg.qr(A, "complete" if mode == "complete" else "reduced")
    return q, r


@kernel("aten._linalg_svd.default")
def linalg_svd(
    out: Outputs, A: Array, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Array, Array, Array]:
    if not compute_uv:
        nothing = np.zeros((0,), A.dtype)
        return nothing, np.linalg.svd(A, compute_uv=False), nothing
    u, s, vh = np.linalg.svd(A, full_matrices)
    return u, s, vh


@kernel("aten._linalg_eigh.default")
def linalg_eigh(out: Outputs, A: Array, UPLO: str = "L", compute_v: bool = True) -> tuple[Array, Array]:
    side: Literal["L", "U"] = "U" if UPLO.upper() == "U" else "L"
    if not compute_v:
        return np.linalg.eigvalsh(A, side), np.zeros((0,), A.dtype)
    values, vectors = np.linalg.eigh(A, side)
    return values, vectors


@kernel("aten.linalg_pinv.atol_rtol_tensor")
def linalg_pinv(
    out: Outputs, self: Array, *, atol: Array | None = None, rtol: Array | None = None, hermitian: bool = False
) -> Array:
    if not self.size:
        return np.zeros(out.shape, self.dtype)
    matrix = np.tril(self) + np.tril(self, -1).swapaxes(-1, -2) if hermitian else self
    u, s, vh = np.linalg.svd(matrix, full_matrices=False)
    absolute = np.zeros((), self.dtype) if atol is None else cast(atol, self.dtype)
    default = np.asarray(np.finfo(self.dtype).eps * max(self.shape[-2:]), self.dtype)
    relative = np.where(absolute > 0, 0, default) if rtol is None else cast(rtol, self.dtype)
    least = np.maximum(absolute, relative * s[..., 0])[..., None]
    inverse = np.where(s > least, 1 / s, 0).astype(self.dtype)
    return np.asarray(np.matmul(vh.swapaxes(-1, -2) * inverse[..., None, :], u.swapaxes(-1, -2)))
