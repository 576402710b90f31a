"""Which operators are taken apart before serialisation, and how.

The base is PyTorch's own table for the core ATen set. The rule for departures: an operator stays whole where engines
have a fast or exact kernel for it, and is taken apart where an equal form in core operators exists. What has neither
goes into the package as it is, and engines say by name if they lack it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ptn_export import pt2e
from ptn_export.torchao import is_kept

__all__ = ["decomposition_table"]

_aten = torch.ops.aten

KEPT = (
    # Engines have one fast kernel for each of these.
    _aten.linear.default,
    _aten.matmul.default,
    _aten.addmm.default,
    _aten.scaled_dot_product_attention.default,
    _aten.rms_norm.default,
    _aten._safe_softmax.default,
    # Core operators that PyTorch's table nevertheless takes apart, into index arithmetic that costs far more.
    _aten.reflection_pad1d.default,
    _aten.reflection_pad2d.default,
    _aten.reflection_pad3d.default,
    _aten.replication_pad2d.default,
    _aten.replication_pad3d.default,
    _aten.select_scatter.default,
    # Resizing: PyTorch's forms gather each tap of the filter, and round differently from its kernels.
    _aten.upsample_nearest1d.vec,
    _aten.upsample_nearest3d.vec,
    _aten._upsample_nearest_exact1d.vec,
    _aten._upsample_nearest_exact2d.vec,
    _aten._upsample_nearest_exact3d.vec,
    _aten.upsample_linear1d.vec,
    _aten.upsample_trilinear3d.vec,
    _aten.upsample_bicubic2d.vec,
    _aten._upsample_bilinear2d_aa.vec,
    _aten._upsample_bicubic2d_aa.vec,
)
# Not core; PyTorch knows an equal form in core operators but its table leaves them alone.
_KNOWN_TO_TORCH = (_aten.addmv.default, _aten.linalg_vector_norm.default)

_Rule = Callable[..., Any]
_RULES: dict[Any, _Rule] = {}


def decomposition_table() -> dict[Any, _Rule]:
    """The decompositions that packages are made with."""
    table: dict[Any, _Rule] = torch.export.default_decompositions().materialize()
    for operator in (*KEPT, *filter(is_kept, list(table))):
        table.pop(operator, None)
    for operator in _KNOWN_TO_TORCH:
        table[operator] = torch._decomp.decomposition_table[operator]
    table.update(_RULES)
    table.update(pt2e.rules())
    return table


def _rule(*operators: Any) -> Callable[[_Rule], _Rule]:
    def register(rule: _Rule) -> _Rule:
        for operator in operators:
            _RULES[operator] = rule
        return rule

    return register


@_rule(_aten.round.decimals)
def _round_decimals(self: Tensor, *, decimals: int) -> Tensor:
    if not self.is_floating_point() or decimals == 0:
        return torch.round(self)
    if decimals > 0:
        return torch.round(self * 10.0**decimals) / 10.0**decimals
    return torch.round(self / 10.0**-decimals) * 10.0**-decimals


@_rule(_aten.var_mean.correction)
def _var_mean(
    self: Tensor, dim: list[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    variance = _aten.var.correction(self, dim, correction=correction, keepdim=keepdim)
    return variance, _aten.mean.dim(self, dim, keepdim)


@_rule(_aten.max.default)
def _max(self: Tensor) -> Tensor:
    return torch.amax(self, ())


@_rule(_aten.min.default)
def _min(self: Tensor) -> Tensor:
    return torch.amin(self, ())


@_rule(_aten.fmax.default)
def _fmax(self: Tensor, other: Tensor) -> Tensor:
    return torch.where(torch.isnan(other) | (self >= other), self, other)


@_rule(_aten.fmin.default)
def _fmin(self: Tensor, other: Tensor) -> Tensor:
    return torch.where(torch.isnan(other) | (self <= other), self, other)


@_rule(_aten.exp2.default)
def _exp2(self: Tensor) -> Tensor:
    return torch.pow(2.0, self)


@_rule(_aten.dist.default)
def _dist(self: Tensor, other: Tensor, p: float = 2) -> Any:
    return torch.linalg.vector_norm(self - other, p)


@_rule(_aten.addbmm.default)
def _addbmm(self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = torch.bmm(batch1, batch2).sum(0)
    product = product if alpha == 1 else product * alpha
    return product if beta == 0 else (self if beta == 1 else self * beta) + product


@_rule(_aten.histc.default)
def _histogram(self: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """Counts in `bins` parts of the range, the last of which holds its end too; what is outside does not count."""
    x = self.flatten()
    if min == max and x.numel() > 0:  # then the data's own range
        low, high = torch.amin(x), torch.amax(x)
    else:
        low, high = (torch.full((), bound, dtype=x.dtype) for bound in (min, max))
    same = (low == high).to(x.dtype)
    low, high = low - same, high + same
    inside = (x >= low) & (x <= high)
    places = torch.where(inside, (x - low) * bins / (high - low), 0).to(torch.int64).clamp_max(bins - 1)
    return torch.zeros(bins, dtype=x.dtype).scatter_add(0, places, inside.to(x.dtype))


@_rule(_aten.__rshift__.Scalar)
def _right_shift(self: Tensor, other: int) -> Any:
    return _aten.bitwise_right_shift.Tensor_Scalar(self, other)


@_rule(_aten.__lshift__.Scalar)
def _left_shift(self: Tensor, other: int) -> Any:
    return _aten.bitwise_left_shift.Tensor_Scalar(self, other)


def _number_first(operator: Any, self: float, other: Tensor) -> Any:
    """`operator(number, tensor)` through a 0-d tensor that promotes as the number does."""
    return operator(torch.scalar_tensor(self, dtype=torch.result_type(self, other)), other)


for _scalar_first, _both in (
    (_aten.remainder.Scalar_Tensor, _aten.remainder.Tensor),
    (_aten.bitwise_left_shift.Scalar_Tensor, _aten.bitwise_left_shift.Tensor),
    (_aten.bitwise_right_shift.Scalar_Tensor, _aten.bitwise_right_shift.Tensor),
    (_aten.bitwise_and.Scalar_Tensor, _aten.bitwise_and.Tensor),
    (_aten.bitwise_or.Scalar_Tensor, _aten.bitwise_or.Tensor),
    (_aten.bitwise_xor.Scalar_Tensor, _aten.bitwise_xor.Tensor),
):
    _RULES[_scalar_first] = functools.partial(_number_first, _both)


@_rule(_aten.scatter.reduce)
def _scatter_reduce(self: Tensor, dim: int, index: Tensor, src: Tensor, *, reduce: str) -> Tensor:
    if reduce == "add":
        return torch.scatter_add(self, dim, index, src)
    return torch.scatter_reduce(self, dim, index, src, reduce="prod", include_self=True)


@_rule(_aten.fft_fftfreq.default)
def _fft_frequencies(n: int, d: float = 1.0, **options: Any) -> Tensor:
    whole = torch.arange(n, device=options.get("device"))
    return _frequencies(torch.where(whole < (n + 1) // 2, whole, whole - n), n, d, options)


@_rule(_aten.fft_rfftfreq.default)
def _fft_half_frequencies(n: int, d: float = 1.0, **options: Any) -> Tensor:
    return _frequencies(torch.arange(n // 2 + 1, device=options.get("device")), n, d, options)


def _frequencies(numbers: Tensor, n: int, d: float, options: dict[str, Any]) -> Tensor:
    return numbers.to(options.get("dtype") or torch.get_default_dtype()) * (1.0 / (n * d))


@_rule(_aten.unfold_backward.default)
def _unfold_backward(grad_in: Tensor, input_sizes: list[int], dim: int, size: int, step: int) -> Any:
    """PyTorch's form writes windows that overlap one element at a time: as many calls as a window is long."""
    if not input_sizes:
        return grad_in.squeeze(0)
    dim %= len(input_sizes)
    count = (input_sizes[dim] - size) // step + 1
    grad_in = grad_in.expand([*input_sizes[:dim], count, *input_sizes[dim + 1 :], size])
    source = grad_in.movedim(-1, dim + 1).flatten(dim, dim + 1)
    positions = (torch.arange(count)[:, None] * step + torch.arange(size)).flatten()
    zeros = torch.zeros(input_sizes, dtype=grad_in.dtype)
    return _aten.index_put.default(zeros, [None] * dim + [positions], source, accumulate=True)


@_rule(_aten._int_mm.default)
def _int_mm(self: Tensor, mat2: Tensor) -> Tensor:
    return torch.mm(self.to(torch.int32), mat2.to(torch.int32))


@_rule(_aten._embedding_bag_forward_only.default)
def _embedding_bag(*args: Any, **kwargs: Any) -> Any:
    return _aten._embedding_bag.default(*args, **kwargs)


# PyTorch's forms end with a check that raises, which no package can hold: of a singular matrix it has what comes out.
@_rule(_aten.linalg_inv.default, _aten.inverse.default)
def _inverse(*args: Any) -> Any:
    return _aten.linalg_inv_ex.default(*args)[0]


@_rule(_aten.linalg_cholesky.default)
def _cholesky(*args: Any, **options: Any) -> Any:
    return _aten.linalg_cholesky_ex.default(*args, **options)[0]


@_rule(_aten.linalg_solve.default)
def _solve(*args: Any, **options: Any) -> Any:
    return _aten._linalg_solve_ex.default(*args, **options)[0]


@_rule(_aten.linalg_lu_factor.default)
def _lu_factor(*args: Any, **options: Any) -> Any:
    return _aten.linalg_lu_factor_ex.default(*args, **options)[:2]
