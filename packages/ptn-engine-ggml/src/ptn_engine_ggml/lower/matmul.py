"""Matrix products. float32 and the 16-bit types go to ggml's `mul_mat`, which sums in float32; the rest is a kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from ptn_format.dtypes import ScalarType
from ptn_runtime.engine import StaticNode, Value

from ptn_engine_ggml.lower.common import axis_of, constant, float32, promoted, rounded
from ptn_engine_ggml.lower.elementwise import arithmetic, kernel
from ptn_engine_ggml.lower.packed import PackedWeight, packed_linear
from ptn_engine_ggml.lower.registry import FLOATS, INTEGERS, REALS, Outputs, lower

if TYPE_CHECKING:
    from ptn_engine_ggml._native import Builder, Tensor


def product(b: Builder, x: Tensor, w: Tensor) -> Tensor:
    """`x @ w.T` over the last axes, batches broadcast: x [..., M, K], w [..., N, K] -> [..., M, N].

    float32 for the floating-point types up to float32 (the caller rounds), else of the operands' own dtype.
    """
    if x.dtype not in FLOATS:
        return _exact_product(b, x, w)
    if x.shape[-1] == 0:
        return zeros(b, ScalarType.FLOAT, (*_batch(x, w), x.shape[-2], w.shape[-2]))
    if x.dtype != w.dtype:
        x, w = float32(b, x), float32(b, w)
    return b.mul_mat(w, x)


def _batch(x: Tensor, w: Tensor) -> tuple[int, ...]:
    rank = max(x.rank, w.rank) - 2
    left = (1,) * (rank - x.rank + 2) + x.shape[:-2]
    right = (1,) * (rank - w.rank + 2) + w.shape[:-2]
    return tuple(n if m == 1 else m for m, n in zip(left, right, strict=True))


def _exact_product(b: Builder, x: Tensor, w: Tensor) -> Tensor:
    """Integers, bool and float64."""
    batch = _batch(x, w)
    m, n, k = x.shape[-2], w.shape[-2], x.shape[-1]
    if k == 0:
        return zeros(b, ScalarType(x.dtype), (*batch, m, n))
    (result,) = b.custom("matmul.matmul", (x, w.transpose(-1, -2)), [(x.dtype, (*batch, m, n))], (), ())
    return result


def zeros(b: Builder, dtype: ScalarType, shape: tuple[int, ...]) -> Tensor:
    """A tensor of zeros that takes the memory of one element."""
    return b.literal(int(dtype), (), np.zeros((), dtype.numpy)).expand(shape)


@lower("aten.mm.default", "aten.bmm.default", empty=True)
def mm(b: Builder, out: Outputs, self: Tensor, mat2: Tensor) -> Tensor:
    return rounded(b, product(b, self, mat2.transpose(-1, -2)), out.dtype)


@lower("aten.matmul.default", empty=True)
def matmul(b: Builder, out: Outputs, self: Tensor, other: Tensor) -> Tensor:
    left = self if self.rank > 1 else b.view(self, (1, *self.shape))
    right = other if other.rank > 1 else b.view(other, (*other.shape, 1))
    result = product(b, left, right.transpose(-1, -2))
    return b.view(rounded(b, result, out.dtype), out.shape)


@lower("aten.mv.default", empty=True)
def mv(b: Builder, out: Outputs, self: Tensor, vec: Tensor) -> Tensor:
    result = product(b, b.view(vec, (1, *vec.shape)), self)
    return b.view(rounded(b, result, out.dtype), out.shape)


@lower("aten.dot.default", empty=True)
def dot(b: Builder, out: Outputs, self: Tensor, tensor: Tensor) -> Tensor:
    result = product(b, b.view(self, (1, *self.shape)), b.view(tensor, (1, *tensor.shape)))
    return b.view(rounded(b, result, out.dtype), ())


@lower("aten.linear.default", empty=True)
def linear(
    b: Builder,
    out: Outputs,
    input: Tensor,
    weight: Tensor | tuple[PackedWeight, Sequence[Tensor]],
    bias: Tensor | None = None,
) -> Tensor:
    if isinstance(weight, tuple):
        y = packed_linear(b, input, weight)
        return rounded(b, y if bias is None else plus(b, y, bias), out.dtype)
    x = input if input.rank > 1 else b.view(input, (1, *input.shape))
    w = weight if weight.rank > 1 else b.view(weight, (1, *weight.shape))
    y = b.view(product(b, x, w), out.shape)
    return rounded(b, y if bias is None else plus(b, y, bias), out.dtype)


def plus(b: Builder, y: Tensor, bias: Tensor) -> Tensor:
    """A product plus what is added to it, before it is rounded."""
    if y.dtype == ScalarType.FLOAT:
        return b.add(y, float32(b, bias))
    return arithmetic(b, "add", y, bias)


def _number_check(node: StaticNode) -> str | None:
    for name in ("beta", "alpha"):
        if isinstance(node.args.get(name), Value):
            return f"'{name}' is a tensor, which is known only while the graph runs."
    return None


def _add_to_product(b: Builder, out: Outputs, self: Tensor, y: Tensor, beta: Any, alpha: Any) -> Tensor:
    """Gives `beta * self + alpha * y`; self is ignored where beta is 0, as in PyTorch."""
    if not out.dtype.is_floating_point:
        alpha, beta = _as_integer(alpha, out.dtype), _as_integer(beta, out.dtype)
    if alpha != 1:
        y = scaled(b, y, alpha)
    if beta == 0:
        return rounded(b, b.contiguous(y), out.dtype)
    bias = self if beta == 1 else scaled(b, float32(b, self) if self.dtype in FLOATS else self, beta)
    y = plus(b, y, bias)
    return rounded(b, y, out.dtype)


def _as_integer(factor: Any, dtype: ScalarType) -> int | bool:
    """A factor of integers or bools, which PyTorch converts to their type."""
    return bool(factor) if dtype is ScalarType.BOOL else int(factor)


def scaled(b: Builder, x: Tensor, factor: Any) -> Tensor:
    """`x * factor`, for numbers of any kind."""
    if x.dtype == ScalarType.FLOAT:
        return b.scale(b.contiguous(x), float(factor))
    return arithmetic(b, "mul", x, factor)


@lower("aten.addmm.default", empty=True, check=_number_check)
def addmm(b: Builder, out: Outputs, self: Tensor, mat1: Tensor, mat2: Tensor, beta: Any = 1, alpha: Any = 1) -> Tensor:
    return _add_to_product(b, out, self, product(b, mat1, mat2.transpose(0, 1)), beta, alpha)


@lower("aten.baddbmm.default", empty=True, check=_number_check)
def baddbmm(
    b: Builder, out: Outputs, self: Tensor, batch1: Tensor, batch2: Tensor, beta: Any = 1, alpha: Any = 1
) -> Tensor:
    return _add_to_product(b, out, self, product(b, batch1, batch2.transpose(1, 2)), beta, alpha)


@lower("aten.addbmm.default", empty=True, check=_number_check)
def addbmm(
    b: Builder, out: Outputs, self: Tensor, batch1: Tensor, batch2: Tensor, beta: Any = 1, alpha: Any = 1
) -> Tensor:
    """The sum over the batch is one product over batch and inner axis together."""
    count, m, k = batch1.shape
    left = b.view(batch1.transpose(0, 1), (m, count * k))
    right = b.view(batch2, (count * k, batch2.shape[2]))
    return _add_to_product(b, out, self, product(b, left, right.transpose(0, 1)), beta, alpha)


@lower("aten.addmv.default", empty=True, check=_number_check)
def addmv(b: Builder, out: Outputs, self: Tensor, mat: Tensor, vec: Tensor, beta: Any = 1, alpha: Any = 1) -> Tensor:
    y = b.view(product(b, b.view(vec, (1, *vec.shape)), mat), out.shape)
    return _add_to_product(b, out, self, y, beta, alpha)


@lower("aten.addr.default", check=_number_check)
def addr(b: Builder, out: Outputs, self: Tensor, vec1: Tensor, vec2: Tensor, beta: Any = 1, alpha: Any = 1) -> Tensor:
    y = product(b, b.view(vec1, (vec1.numel, 1)), b.view(vec2, (vec2.numel, 1)))
    return _add_to_product(b, out, self, y, beta, alpha)


def _grouped_check(node: StaticNode) -> str | None:
    mat2 = node.args["mat2"]
    if isinstance(mat2, Value) and len(mat2.shape) == 3:  # then it is rows, or whole batches
        return None
    return "only rows are grouped, not columns and not what is summed over."


@lower("aten._grouped_mm.default", dtypes=REALS | INTEGERS, empty=True, check=_grouped_check)
def grouped_mm(
    b: Builder,
    out: Outputs,
    self: Tensor,
    mat2: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: ScalarType | None = None,
) -> Tensor:
    """Rows that meet the matrix of their group: experts. Their weights lie as those of `linear` do, mostly."""
    if offs is None:
        return rounded(b, product(b, self, mat2.transpose(1, 2)), out.dtype)
    if self.shape[1] == 0:
        return zeros(b, out.dtype, out.shape)
    inputs = (self, mat2.transpose(1, 2), promoted(b, offs, ScalarType.LONG))
    (result,) = b.custom("matmul.grouped", inputs, [(int(out.dtype), out.shape)], (), ())
    return result


# --- distances and cross products ---


def _distances(b: Builder, difference: Tensor, p: float, dtype: ScalarType, shape: tuple[int, ...]) -> Tensor:
    axis = difference.rank - 1
    if p == 0:  # a sum of ones, but NaN stays NaN
        computed = ScalarType(difference.dtype)
        whole = kernel(b, "ceil", computed, difference.shape, computed, _size(b, difference))
        difference = kernel(b, "minimum", computed, difference.shape, computed, whole, 1)
        p = 1.0
    (result,) = b.custom("reduction.norm", (difference,), [(int(dtype), shape)], [1, axis], [float(p)])
    return result


def _size(b: Builder, x: Tensor) -> Tensor:
    dtype = ScalarType(x.dtype)
    return kernel(b, "abs", dtype, x.shape, dtype, x)


def _difference(b: Builder, x: Tensor, y: Tensor, shape: tuple[int, ...]) -> Tensor:
    dtype = ScalarType(x.dtype)
    wide = ScalarType.FLOAT if dtype in FLOATS else dtype
    return kernel(b, "sub", wide, shape, wide, x, y)


@lower("aten._cdist_forward.default", "aten.cdist.default", empty=True)
def cdist(b: Builder, out: Outputs, x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: int | None = None) -> Tensor:
    """Norms of the differences of all pairs of rows."""
    width = x1.shape[-1]
    if width == 0:
        return zeros(b, out.dtype, out.shape)
    left = b.view(x1, (*x1.shape[:-1], 1, width))
    right = b.view(x2, (*x2.shape[:-2], 1, *x2.shape[-2:]))
    difference = _difference(b, left, right, (*out.shape, width))
    if math.isinf(p):  # unlike pdist, PyTorch passes over NaN here
        dtype = ScalarType(difference.dtype)
        difference = kernel(b, "fmax", dtype, difference.shape, dtype, _size(b, difference), 0)
    return _distances(b, difference, p, out.dtype, out.shape)


@lower("aten._pdist_forward.default", "aten.pdist.default", empty=True)
def pdist(b: Builder, out: Outputs, self: Tensor, p: float = 2.0) -> Tensor:
    """Norms of the differences of the pairs of rows i < j."""
    if self.shape[1] == 0:
        return zeros(b, out.dtype, out.shape)
    pairs = []
    for axis in np.triu_indices(self.shape[0], 1):
        shape = (len(axis), self.shape[1])
        pairs.append(b.custom("index.select", (self, constant(b, axis)), [(int(self.dtype), shape)], [0], ())[0])
    return _distances(b, _difference(b, pairs[0], pairs[1], pairs[0].shape), p, out.dtype, out.shape)


@lower("aten.linalg_cross.default")
def linalg_cross(b: Builder, out: Outputs, self: Tensor, other: Tensor, dim: int = -1) -> Tensor:
    axis = axis_of(dim, len(out.shape))
    shape = tuple(1 if i == axis else size for i, size in enumerate(out.shape))
    dtype = ScalarType.FLOAT if out.dtype in FLOATS else out.dtype
    x, y = (promoted(b, t.expand(out.shape), dtype) for t in (self, other))
    parts = []
    for first, second in ((1, 2), (2, 0), (0, 1)):
        left = kernel(b, "mul", dtype, shape, dtype, x.slice(axis, first, 1, 1), y.slice(axis, second, 1, 1))
        right = kernel(b, "mul", dtype, shape, dtype, x.slice(axis, second, 1, 1), y.slice(axis, first, 1, 1))
        parts.append(kernel(b, "sub", dtype, shape, dtype, left, right))
    return promoted(b, b.cat(parts, axis), out.dtype)
