"""What several families use: calls of our own kernels, and float32 arithmetic on half-precision values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from ptn_format.dtypes import ScalarType

if TYPE_CHECKING:
    from ptn_engine_ggml._native import Builder, Tensor
    from ptn_engine_ggml.lower.registry import Outputs

__all__ = [
    "axes_of",
    "axis_of",
    "call",
    "call_all",
    "constant",
    "float32",
    "last_element",
    "promoted",
    "rounded",
    "scalar_parameters",
    "scalar_tensor",
]


def call(
    b: Builder,
    name: str,
    inputs: Sequence[Tensor],
    out: Outputs | Sequence[Any],
    ints: Sequence[int] = (),
    floats: Sequence[float] = (),
) -> Tensor:
    """Calls a kernel that gives one result; the arguments are those of `call_all`."""
    (result,) = call_all(b, name, inputs, out, ints, floats)
    return result


def call_all(
    b: Builder,
    name: str,
    inputs: Sequence[Tensor],
    out: Outputs | Sequence[Any],
    ints: Sequence[int] = (),
    floats: Sequence[float] = (),
) -> tuple[Tensor, ...]:
    """Calls the kernel `name` of `native/kernels/`.

    Args:
        b: the builder.
        name: the kernel's name, such as `index.gather`.
        inputs: its tensors; strided ones are made contiguous first.
        out: a `dtype` and `shape` per result.
        ints: its integer parameters.
        floats: its float parameters.

    Returns:
        A tensor for each entry of `out`.
    """
    return b.custom(name, inputs, [(spec.dtype, spec.shape) for spec in out], ints, floats)


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


def promoted(b: Builder, x: Tensor, dtype: ScalarType) -> Tensor:
    """`x` converted to `dtype` as PyTorch's `to` converts."""
    if x.dtype == dtype:
        return x
    return b.custom("cast.to", (x,), [(int(dtype), x.shape)], (), ())[0]


def constant(b: Builder, array: np.ndarray[Any, Any]) -> Tensor:
    """An array that is known while the graph is built."""
    dtype = ScalarType.from_numpy(array.dtype)
    return b.literal(int(dtype), array.shape, np.asarray(array, order="C"))


def scalar_tensor(b: Builder, dtype: ScalarType, value: float) -> Tensor:
    """A number as a 0-d tensor; integers wrap as PyTorch's conversions do."""
    if dtype.is_floating_point or dtype is ScalarType.BOOL:
        return constant(b, np.asarray(value).astype(dtype.numpy))
    return constant(b, np.asarray(int(value) & ((1 << 8 * dtype.itemsize) - 1), np.uint64).astype(dtype.numpy))


def last_element(size: Any, stride: Any) -> int:
    """The element, counted from the first, that a window of these sizes and strides reaches furthest."""
    return sum((n - 1) * step for n, step in zip(size, stride, strict=True))
