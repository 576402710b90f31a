"""Numpy kernels of the family `matmul`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from ptn_format.dtypes import ScalarType

from ptn_runtime.errors import IndexOutOfRangeError
from ptn_runtime.reference import _factorizations as _factorizations  # registers its kernels
from ptn_runtime.reference._numerics import finish, number, widen
from ptn_runtime.reference.registry import Array, Number, Outputs, kernel


def product(a: Array, b: Array) -> Array:
    """`a @ b` in the working dtype; bools multiply as `and`, add as `or`."""
    return np.asarray(np.matmul(widen(a), widen(b)))


@kernel("aten.mm.default", "aten.bmm.default")
def mm(out: Outputs, self: Array, mat2: Array) -> Array:
    return finish(product(self, mat2), out.dtype)


@kernel("aten.mv.default")
def mv(out: Outputs, self: Array, vec: Array) -> Array:
    return finish(product(self, vec), out.dtype)


@kernel("aten.dot.default")
def dot(out: Outputs, self: Array, tensor: Array) -> Array:
    return finish(product(self, tensor), out.dtype)


@kernel("aten.matmul.default")
def matmul(out: Outputs, self: Array, other: Array) -> Array:
    return finish(product(self, other), out.dtype)


@kernel("aten.linear.default")
def linear(out: Outputs, input: Array, weight: Array, bias: Array | None = None) -> Array:
    x, w = widen(input), widen(weight)
    rows = x.reshape(-1, x.shape[-1]) if x.ndim != 2 and x.size else x
    result = np.asarray(rows @ w.T)
    if bias is not None:
        result = result.reshape(*input.shape[:-1], *weight.shape[:-1])
        if result.flags.owndata and bias.ndim <= result.ndim:
            result += widen(bias)
        else:
            result = result + widen(bias)
    return finish(result, out.dtype).reshape(out.shape)


def _plus_product(out: Outputs, self: Array, result: Array, beta: Number, alpha: Number) -> Array:
    if alpha != 1:
        result = result * widen(number(alpha, out.dtype))
    if beta != 0:  # with 0 even NaN in `self` does not count
        addend = widen(self)
        result = result + (addend if beta == 1 else addend * widen(number(beta, out.dtype)))
    return finish(np.broadcast_to(result, out.shape), out.dtype)


@kernel("aten.addmm.default")
def addmm(out: Outputs, self: Array, mat1: Array, mat2: Array, *, beta: Number = 1, alpha: Number = 1) -> Array:
    return _plus_product(out, self, product(mat1, mat2), beta, alpha)


@kernel("aten.baddbmm.default")
def baddbmm(out: Outputs, self: Array, batch1: Array, batch2: Array, *, beta: Number = 1, alpha: Number = 1) -> Array:
    return _plus_product(out, self, product(batch1, batch2), beta, alpha)


@kernel("aten.addbmm.default")
def addbmm(out: Outputs, self: Array, batch1: Array, batch2: Array, *, beta: Number = 1, alpha: Number = 1) -> Array:
    summed = product(batch1, batch2)
    return _plus_product(out, self, np.asarray(summed.sum(axis=0, dtype=summed.dtype)), beta, alpha)


@kernel("aten.addmv.default")
def addmv(out: Outputs, self: Array, mat: Array, vec: Array, *, beta: Number = 1, alpha: Number = 1) -> Array:
    return _plus_product(out, self, product(mat, vec), beta, alpha)


@kernel("aten.addr.default")
def addr(out: Outputs, self: Array, vec1: Array, vec2: Array, *, beta: Number = 1, alpha: Number = 1) -> Array:
    return _plus_product(out, self, np.multiply.outer(widen(vec1), widen(vec2)), beta, alpha)


def group_ends(offs: Array, size: int) -> list[int]:
    """The ends of groups of an axis of `size` elements.

    Raises:
        IndexOutOfRangeError: an end lies outside the axis or before the end of the group before.
    """
    ends: list[int] = offs.tolist()
    for group, (last, end) in enumerate(pairwise([0, *ends])):
        if not last <= end <= size:
            raise IndexOutOfRangeError(
                f"group {group} ends at {end}, which must be from {last}, the end of the group before, to {size}"
            )
    return ends


@kernel("aten._grouped_mm.default")
def grouped_mm(
    out: Outputs,
    self: Array,
    mat2: Array,
    offs: Array | None = None,
    bias: Array | None = None,
    out_dtype: ScalarType | None = None,
) -> Array:
    if offs is None:
        return finish(product(self, mat2), out.dtype)
    a, b = widen(self), widen(mat2)
    result = np.zeros(out.shape, np.result_type(a, b))  # zeros in what no group reaches, where PyTorch gives anything
    of_columns = self.ndim == 3
    ends = group_ends(offs, mat2.shape[1] if of_columns else self.shape[0 if mat2.ndim == 3 else 1])
    for group, part in enumerate(map(slice, [0, *ends], ends)):
        if mat2.ndim == 3:
            result[part] = a[part] @ b[group]
        elif of_columns:
            result[:, part] = a[group] @ b[:, part]
        else:
            result[group] = a[:, part] @ b[part]
    return finish(result, out.dtype)


def _distances(difference: Array, p: float) -> Array:
    """The p-norm over the last axis."""
    size = np.abs(difference)
    if p == 0:
        return np.asarray(np.minimum(np.ceil(size), 1).sum(axis=-1))  # NaN stays NaN
    if p == 1:
        return np.asarray(size.sum(axis=-1))
    if p == 2:
        return np.asarray(np.sqrt((size * size).sum(axis=-1)))
    if np.isinf(p):
        return np.asarray(size.max(axis=-1, initial=0))
    exponent = np.asarray(p, size.dtype)
    return np.asarray(np.power(np.power(size, exponent).sum(axis=-1), 1 / exponent))


@kernel("aten._cdist_forward.default", "aten.cdist.default")
def cdist(out: Outputs, x1: Array, x2: Array, p: float = 2.0, compute_mode: int | None = None) -> Array:
    difference = widen(x1)[..., :, None, :] - widen(x2)[..., None, :, :]
    if np.isinf(p):  # the largest of the numbers: unlike pdist, PyTorch passes over NaN here
        difference = np.where(np.isnan(difference), 0, difference)
    return finish(_distances(difference, p), out.dtype)


@kernel("aten._pdist_forward.default", "aten.pdist.default")
def pdist(out: Outputs, self: Array, p: float = 2.0) -> Array:
    x = widen(self)
    first, second = np.triu_indices(x.shape[0], 1)
    return finish(_distances(x[first] - x[second], p), out.dtype)


@kernel("aten.linalg_cross.default")
def linalg_cross(out: Outputs, self: Array, other: Array, *, dim: int = -1) -> Array:
    a, b = np.broadcast_arrays(widen(self), widen(other))
    a, b = np.moveaxis(a, dim, 0), np.moveaxis(b, dim, 0)
    parts = [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]
    return finish(np.stack(parts, axis=dim), out.dtype)


# --- Fourier transforms -----------------------------------------------------------------------------------------


def _as_complex(pairs: Array) -> Array:
    """[..., 2] as complex128."""
    wide = pairs.astype(np.float64)
    return np.asarray(wide[..., 0] + 1j * wide[..., 1])


def _as_pairs(numbers: Array, out: Outputs) -> Array:
    return finish(np.stack((numbers.real, numbers.imag), axis=-1), out.dtype)


def _scale(shape: Sequence[int], dim: Sequence[int], normalization: int) -> float:
    """The factor of a transform over the axes `dim` of `shape`, the sizes before a real one's last axis is halved."""
    count = math.prod(shape[axis] for axis in dim)
    return (1.0, count**-0.5, 1.0 / count)[normalization]


@kernel("aten._fft_r2c.default")
def fft_r2c(out: Outputs, self: Array, dim: Sequence[int], normalization: int, onesided: bool) -> Array:
    x = self.astype(np.float64)
    result = np.fft.rfftn(x, axes=dim) if onesided else np.fft.fftn(x, axes=dim)
    return _as_pairs(result * _scale(self.shape, dim, normalization), out)


@kernel("aten._fft_c2c.default")
def fft_c2c(out: Outputs, self: Array, dim: Sequence[int], normalization: int, forward: bool) -> Array:
    x = _as_complex(self)
    result = np.fft.fftn(x, axes=dim) if forward else np.fft.ifftn(x, axes=dim, norm="forward")
    return _as_pairs(result * _scale(x.shape, dim, normalization), out)


@kernel("aten._fft_c2r.default")
def fft_c2r(out: Outputs, self: Array, dim: Sequence[int], normalization: int, last_dim_size: int) -> Array:
    x = _as_complex(self)
    if len(dim) > 1:
        x = np.fft.ifftn(x, axes=dim[:-1], norm="forward")
    result = np.fft.irfft(x, last_dim_size, axis=dim[-1], norm="forward")
    return finish(result * _scale(out.shape, dim, normalization), out.dtype)
