"""Shape rules of the family `cast`: changes of dtype."""

from __future__ import annotations

from ptn_format.dtypes import ScalarType

from ptn_runtime.shapes import Tensor, TensorSpec, shape_rule
from ptn_runtime.shapes._broadcast import broadcast_shapes


@shape_rule("aten._to_copy.default")
def to_copy(
    self: Tensor,
    *,
    dtype: ScalarType | None = None,
    layout: str | None = None,
    device: str | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: str | None = None,
) -> TensorSpec:
    return TensorSpec(self.dtype if dtype is None else dtype, self.shape)


@shape_rule("aten.to.dtype")
def to_dtype(
    self: Tensor,
    dtype: ScalarType,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: str | None = None,
) -> TensorSpec:
    return TensorSpec(dtype, self.shape)


@shape_rule("aten.to.dtype_layout")
def to_dtype_layout(
    self: Tensor,
    *,
    dtype: ScalarType | None = None,
    layout: str | None = None,
    device: str | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: str | None = None,
) -> TensorSpec:
    return TensorSpec(self.dtype if dtype is None else dtype, self.shape)


@shape_rule("aten.to.device")
def to_device(
    self: Tensor,
    device: str,
    dtype: ScalarType,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: str | None = None,
) -> TensorSpec:
    return TensorSpec(dtype, self.shape)


@shape_rule("aten.type_as.default")
def type_as(self: Tensor, other: Tensor) -> TensorSpec:
    return TensorSpec(other.dtype, self.shape)


@shape_rule("aten.copy.default")
def copy(self: Tensor, src: Tensor, non_blocking: bool = False) -> TensorSpec:
    if broadcast_shapes(src.shape, self.shape) != self.shape:
        raise ValueError(f"src {list(src.shape)} does not broadcast to self {list(self.shape)}")
    return TensorSpec(self.dtype, self.shape)
