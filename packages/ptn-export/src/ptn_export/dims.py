"""Element types and shape ranges: from PyTorch's fake tensors and symbolic sizes to the file's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy
import torch
from ptn_format.dtypes import ScalarType
from ptn_format.graph import Dim, TensorMeta
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

__all__ = [
    "SCALAR_TYPES",
    "Ranges",
    "dim_of",
    "expression_of",
    "is_static_true",
    "number_range",
    "same_size",
    "tensor_meta",
]

Ranges = Mapping[Any, Any]
"""The declared range of each symbol and of each derived axis: what `ExportedProgram.range_constraints` holds."""

_LARGEST_DIM = 2**31 - 1

SCALAR_TYPES: dict[torch.dtype, ScalarType] = {
    torch.uint8: ScalarType.BYTE,
    torch.int8: ScalarType.CHAR,
    torch.int16: ScalarType.SHORT,
    torch.int32: ScalarType.INT,
    torch.int64: ScalarType.LONG,
    torch.float16: ScalarType.HALF,
    torch.float32: ScalarType.FLOAT,
    torch.float64: ScalarType.DOUBLE,
    torch.bool: ScalarType.BOOL,
    torch.bfloat16: ScalarType.BFLOAT16,
    torch.uint16: ScalarType.UINT16,
    torch.uint32: ScalarType.UINT32,
    torch.uint64: ScalarType.UINT64,
}
"""Every element type that the format has."""


def expression_of(value: Any) -> sympy.Basic | None:
    """The sympy expression behind a symbolic scalar, or None for plain numbers."""
    return value.node.expr if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) else None


def dim_of(size: int | torch.SymInt, ranges: Ranges) -> Dim:
    """The inclusive range of one axis; derived sizes such as `2*b + 1` get derived ranges.

    Args:
        size: a number or a symbolic size.
        ranges: declared range of each symbol, and of axes declared as derived from one. A symbol without one has no
            bounds.
    """
    expression = expression_of(size)
    if expression is None:
        return Dim(int(size), int(size))
    known = _with_roots(ranges)
    bounds = known[expression] if expression in known else bound_sympy(expression, known)
    lower, upper = _finite(bounds.lower), _finite(bounds.upper)
    lower = max(lower or 0, 0)
    if upper is None or upper > _LARGEST_DIM:
        return Dim(min(lower, _LARGEST_DIM), -1)
    return Dim(lower, max(upper, lower))


def number_range(value: torch.SymInt, ranges: Ranges) -> tuple[int | None, int | None]:
    """The least and the largest value of an integer that is an input; None where it has no bound."""
    expression = expression_of(value)
    bounds = ranges.get(expression)
    if bounds is None:
        return None, None
    lower, upper = _finite(bounds.lower), _finite(bounds.upper)
    return (
        None if lower is None or lower < -_LARGEST_DIM else lower,
        None if upper is None or upper > _LARGEST_DIM else upper,
    )


def _with_roots(ranges: Ranges) -> dict[Any, Any]:
    """`ranges`, where a symbol may take every value that the declared range of an axis derived from it allows.

    For an axis declared as `2 * Dim("h", min=1, max=8)` PyTorch notes `2*s: 2..16`, as declared, but `s: 2..8`,
    because it never lets a symbol of its own be 1.
    """
    known = dict(ranges)
    for expression, declared in ranges.items():
        symbols = expression.free_symbols
        if expression.is_Symbol or len(symbols) != 1:
            continue
        (symbol,) = symbols
        offset, slope = expression.subs(symbol, 0), expression.coeff(symbol)
        if not slope.is_positive or sympy.expand(slope * symbol + offset - expression) != 0:
            continue  # a derived axis is `a * symbol + b`
        lower, upper = declared.lower, declared.upper
        allowed = ValueRanges(
            sympy.ceiling((lower - offset) / slope) if lower.is_finite else lower,
            sympy.floor((upper - offset) / slope) if upper.is_finite else upper,
        )
        known[symbol] = known[symbol] | allowed if symbol in known else allowed
    return known


def tensor_meta(tensor: torch.Tensor, ranges: Ranges) -> TensorMeta:
    """Type and shape range of a (fake) tensor. Values are always contiguous: memory layout is the engine's affair.

    A complex tensor, which exists around Fourier transforms only, is described as the real one with a last axis of 2.

    Raises:
        KeyError: the format lacks the element type.
    """
    sizes = tuple(dim_of(size, ranges) for size in tensor.shape)
    if tensor.dtype.is_complex:
        return TensorMeta(SCALAR_TYPES[tensor.dtype.to_real()], (*sizes, Dim(2, 2)))
    return TensorMeta(SCALAR_TYPES[tensor.dtype], sizes)


def same_size(left: int | torch.SymInt, right: int | torch.SymInt) -> bool:
    """Whether two sizes are provably equal, without adding a guard."""
    a, b = expression_of(left), expression_of(right)
    if a is None or b is None:
        return a is None and b is None and int(left) == int(right)
    return bool(a == b)


def is_static_true(condition: Any, ranges: Ranges) -> bool:
    """Whether a (symbolic) bool holds for every size within `ranges`."""
    expression = expression_of(condition)
    if expression is None:
        return bool(condition)
    if expression in (sympy.true, sympy.false):
        return expression is sympy.true
    bounds: ValueRanges[Any] = bound_sympy(expression, _with_roots(ranges))
    return bool(bounds.lower == sympy.true)


def _finite(bound: Any) -> int | None:
    """A bound as an int; None for infinities."""
    return int(bound) if isinstance(bound, int | sympy.Integer) else None
