"""Exact clean-ups: nodes that give back an argument unchanged, and copies that are casts or broadcasts.

`SIMPLIFIERS[op](emit, args, spec)` returns the value that the node's only result equals, or None where the node has
to stay. Each holds bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ptn_format.dtypes import ScalarType

from ptn_runtime.lowering.static import TensorSpec, Value
from ptn_runtime.lowering.views import Emit
from ptn_runtime.shapes import DataDependentError

__all__ = ["SIMPLIFIERS"]

MASK_DTYPES = (ScalarType.BOOL, ScalarType.BYTE)
"""Indices of these types are masks."""

Simplifier = Callable[[Emit, dict[str, Any], TensorSpec], Value | None]


def _itself(emit: Emit, args: dict[str, Any], spec: TensorSpec) -> Value | None:
    value: Value = args["self"]
    return value


def _same_shape(emit: Emit, args: dict[str, Any], spec: TensorSpec) -> Value | None:
    value: Value = args["self"]
    return value if value.shape == spec.shape else None


def _same_type(emit: Emit, args: dict[str, Any], spec: TensorSpec) -> Value | None:
    value: Value = args["self"]
    return value if value.dtype is spec.dtype and value.shape == spec.shape else None


def _permute(emit: Emit, args: dict[str, Any], spec: TensorSpec) -> Value | None:
    value: Value = args["self"]
    rank = len(value.shape)
    dims = args["dims"]
    return value if all(dim % rank == axis for axis, dim in enumerate(dims)) else None


def _dropout(emit: Emit, args: dict[str, Any], spec: TensorSpec) -> Value | None:
    value: Value = args["input"]
    return None if args["train"] and args["p"] != 0 else value


def _copy(emit: Emit, args: dict[str, Any], spec: TensorSpec) -> Value | None:
    source: Value = args["src"]
    if source.dtype is not spec.dtype:
        source = emit("aten._to_copy.default", self=source, dtype=spec.dtype)
    if source.shape != spec.shape:
        source = emit("aten.expand.default", self=source, size=spec.shape)
    return source


def _cat(emit: Emit, args: dict[str, Any], spec: TensorSpec) -> Value | None:
    tensors: tuple[Value, ...] = args["tensors"]
    only = tensors[0] if len(tensors) == 1 else None
    return only if only is not None and only.shape == spec.shape and only.dtype is spec.dtype else None


def _index_put(emit: Emit, args: dict[str, Any], spec: TensorSpec) -> Value | None:
    """A write where a mask says is a choice between old and new, if each place's new value is the same for any mask."""
    indices: tuple[Value | None, ...] = args["indices"]
    places = [place for place, index in enumerate(indices) if index is not None]
    masks = [index for index in indices if index is not None and index.dtype in MASK_DTYPES]
    if not masks:
        return None
    base: Value = args["self"]
    new: Value = args["values"]
    chosen = masks[0]
    first = places[0]
    behind = len(base.shape) - first - len(chosen.shape)  # axes behind those of the mask
    along = len(new.shape) - behind - 1  # the axis of the new values that counts the chosen places
    accumulate = args["accumulate"]
    if len(places) > 1 or behind < 0 or (along >= 0 and new.shape[along] != 1) or (accumulate and _is_bool(base)):
        raise DataDependentError("how many places a mask chooses depends on the data")
    if base.shape[first : first + len(chosen.shape)] != chosen.shape:
        raise ValueError(f"the mask {list(chosen.shape)} does not fit {list(base.shape)} from axis {first} on")
    if not _is_bool(chosen):
        chosen = emit("aten.ne.Scalar", self=chosen, other=0)
    if behind:
        chosen = emit("aten.view.default", self=chosen, size=(*chosen.shape, *(1,) * behind))
    if along >= 0:
        size = (*new.shape[:along], *(1,) * len(masks[0].shape), *new.shape[along + 1 :])
        new = emit("aten.view.default", self=new, size=size)
    if accumulate:
        new = emit("aten.add.Tensor", self=base, other=new)
    return emit("aten.where.self", condition=chosen, self=new, other=base)


def _is_bool(value: Value) -> bool:
    return value.dtype is ScalarType.BOOL


SIMPLIFIERS: Mapping[str, Simplifier] = {
    "aten._to_copy.default": _same_type,
    "aten.alias.default": _itself,
    "aten.cat.default": _cat,
    "aten.clone.default": _itself,
    "aten.contiguous.default": _itself,
    "aten.copy.default": _copy,
    "aten.dropout.default": _dropout,
    "aten.expand.default": _same_shape,
    "aten.flatten.using_ints": _same_shape,
    "aten.index_put.default": _index_put,
    "aten.permute.default": _permute,
    "aten.repeat.default": _same_shape,
    "aten.reshape.default": _same_shape,
    "aten.slice.Tensor": _same_shape,
    "aten.squeeze.default": _same_shape,
    "aten.squeeze.dim": _same_shape,
    "aten.squeeze.dims": _same_shape,
    "aten.to.dtype": _same_type,
    "aten.view.default": _same_shape,
    "aten.view.dtype": _same_type,
    "aten.view_as.default": _same_shape,
}
