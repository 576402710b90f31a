"""Element types and shape ranges: from PyTorch's fake tensors and symbolic sizes to the file's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy
import torch
from ptn_format.dtypes import ScalarType
from ptn_format.graph import Dim, TensorMeta
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

__all__ = ["SCALAR_TYPES", "Ranges", "dim_of", "expression_of", "is_static_true", "same_size", "tensor_meta"]

Ranges = Mapping[Any, Any]
"""The declared range of each symbol: what `ExportedProgram.range_constraints` holds."""

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
        ranges: declared range of each symbol. A symbol without one has no bounds.
    """
    expression = expression_of(size)
    if expression is None:
        return Dim(int(size), int(size))
    bounds = bound_sympy(expression, dict(ranges))
    lower, upper = _finite(bounds.lower), _finite(bounds.upper)
    lower = max(lower or 0, 0)
    if upper is None or upper > _LARGEST_DIM:
        return Dim(min(lower, _LARGEST_DIM), -1)
    return Dim(lower, max(upper, lower))


def tensor_meta(tensor: torch.Tensor, ranges: Ranges) -> TensorMeta:
    """Type and shape range of a (fake) tensor. Values are always contiguous: memory layout is the engine's affair.

    Raises:
        KeyError: the format lacks the element type.
    """
    return TensorMeta(SCALAR_TYPES[tensor.dtype], tuple(dim_of(size, ranges) for size in tensor.shape))


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
    bounds: ValueRanges[Any] = bound_sympy(expression, dict(ranges))
    return bool(bounds.lower == sympy.true)


def _finite(bound: Any) -> int | None:
    """A bound as an int; None for infinities."""
    return int(bound) if isinstance(bound, int | sympy.Integer) else None
