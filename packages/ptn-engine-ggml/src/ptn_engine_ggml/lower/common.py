"""What several families use: calls of our own kernels, and float32 arithmetic on half-precision values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ptn_format.dtypes import ScalarType

if TYPE_CHECKING:
    from ptn_engine_ggml._native import Builder, Tensor
    from ptn_engine_ggml.lower.registry import Outputs

__all__ = ["axes_of", "axis_of", "call", "float32", "rounded", "scalar_parameters"]


def call(
    b: Builder,
    name: str,
    inputs: Sequence[Tensor],
    out: Outputs | Sequence[Any],
    ints: Sequence[int] = (),
    floats: Sequence[float] = (),
) -> Any:
    """Calls the kernel `name` of `native/kernels/`.

    Args:
        b: the builder.
        name: the kernel's name, such as `index.gather`.
        inputs: its tensors; strided ones are made contiguous first.
        out: a `dtype` and `shape` per result.
        ints: its integer parameters.
        floats: its float parameters.

    Returns:
        One tensor where `out` has one entry, else a tuple.
    """
    results = b.custom(name, inputs, [(spec.dtype, spec.shape) for spec in out], ints, floats)
    return results[0] if len(results) == 1 else results


def float32(b: Builder, x: Tensor) -> Tensor:
    """`x` as float32, which holds every float16 and bfloat16 value exactly."""
    return x if x.dtype == ScalarType.FLOAT else b.cast(x, ScalarType.FLOAT)


def rounded(b: Builder, x: Tensor, dtype: ScalarType) -> Tensor:
    """A float32 result as `dtype`, rounded to nearest even."""
    return x if x.dtype == dtype else b.cast(x, dtype)


def axis_of(dim: int, rank: int) -> int:
    """A non-negative axis; the shape rule has checked the range."""
    return dim + rank if dim < 0 else dim


def axes_of(dims: Sequence[int], rank: int) -> list[int]:
    """Non-negative axes."""
    return [dim + rank if dim < 0 else dim for dim in dims]


def scalar_parameters(dtype: ScalarType, value: float) -> tuple[list[int], list[float]]:
    """A scalar as a kernel's integers and floats: among the floats where `dtype` is a floating-point type."""
    if dtype.is_floating_point:
        return [], [float(value)]
    return [int(value)], []
