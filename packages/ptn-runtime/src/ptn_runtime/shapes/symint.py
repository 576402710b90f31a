"""The family `symint`: sizes, and arithmetic on Python scalars.

These are evaluated while a method is lowered and never reach an engine; so there are functions here, not shape rules.
Only the item of a tensor has a rule, for engines that want to run it themselves.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from ptn_runtime.shapes import Tensor, TensorSpec, shape_rule

__all__ = ["SCALAR_FUNCTIONS", "SIZE_FUNCTIONS"]


@shape_rule("aten._local_scalar_dense.default")
def local_scalar_dense(self: Tensor) -> TensorSpec:
    if math.prod(self.shape) != 1:
        raise ValueError(f"item() takes a tensor of one element, got {list(self.shape)}")
    return TensorSpec(self.dtype, ())


def sym_size(self: Tensor, dim: int) -> int:
    """The size of one axis.

    Raises:
        ValueError: there is no such axis.
    """
    rank = len(self.shape)
    if not -rank <= dim < rank:
        raise ValueError(f"axis {dim} of a tensor with {rank} axes")
    return self.shape[dim]


def sym_numel(self: Tensor) -> int:
    """The number of elements."""
    return math.prod(self.shape)


def sym_stride(self: Tensor, dim: int) -> int:
    """The step between neighbours along `dim`, in elements: values of a static graph are contiguous."""
    rank = len(self.shape)
    if not -rank <= dim < rank:
        raise ValueError(f"axis {dim} of a tensor with {rank} axes")
    return math.prod(max(size, 1) for size in self.shape[dim % rank + 1 :])


def sym_storage_offset(self: Tensor) -> int:
    """Always 0: values of a static graph are not views."""
    return 0


def sym_is_contiguous(self: Tensor, memory_format: object = None) -> bool:
    """Always True: values of a static graph are contiguous."""
    return True


def _sym_max(a: Any, b: Any) -> Any:
    # As in PyTorch, the result is a float where one argument is.
    return max(float(a), float(b)) if isinstance(a, float) or isinstance(b, float) else max(a, b)


def _sym_min(a: Any, b: Any) -> Any:
    return min(float(a), float(b)) if isinstance(a, float) or isinstance(b, float) else min(a, b)


def _sym_sum(values: tuple[int, ...]) -> int:
    return sum(values)


def _sym_ite(condition: bool, then: Any, otherwise: Any) -> Any:
    return then if condition else otherwise


def _round(value: Any, ndigits: int | None = None) -> Any:
    return round(value, ndigits)


SIZE_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "aten.sym_size.int": sym_size,
    "aten.sym_numel.default": sym_numel,
    "aten.sym_stride.int": sym_stride,
    "aten.sym_storage_offset.default": sym_storage_offset,
    "aten.sym_is_contiguous.default": sym_is_contiguous,
}
"""Functions of a tensor's shape by canonical name."""

_OPERATORS = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "pos", "abs", "lshift", "rshift"),
    *("and_", "or_", "xor", "not_", "invert", "eq", "ne", "lt", "le", "gt", "ge", "index"),
)
_MATH = (
    *("sqrt", "exp", "log", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh"),
    *("atan2", "floor", "ceil", "trunc", "fabs", "pow", "fmod", "gcd", "isqrt", "isnan", "isinf"),
)

SCALAR_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{f"_operator.{name}": getattr(operator, name) for name in _OPERATORS},
    **{f"math.{name}": getattr(math, name) for name in _MATH},
    **{f"torch.sym_{name}": getattr(math, name) for name in _MATH},
    **{f"torch._sym_{name}": getattr(math, name) for name in _MATH},
    "builtins.abs": abs,
    "builtins.bool": bool,
    "builtins.float": float,
    "builtins.int": int,
    "builtins.max": max,
    "builtins.min": min,
    "builtins.pow": pow,
    "builtins.round": _round,
    "torch.sym_float": float,
    "torch.sym_int": int,
    "torch.sym_ite": _sym_ite,
    "torch.sym_max": _sym_max,
    "torch.sym_min": _sym_min,
    "torch.sym_not": operator.not_,
    "torch.sym_sum": _sym_sum,
}
"""Functions of Python scalars, as the file spells them."""
