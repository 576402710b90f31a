"""Exact clean-ups: nodes that give back an argument unchanged, and copies that are casts or broadcasts.

`SIMPLIFIERS[op](emit, args, spec)` returns the value that the node's only result equals, or None where the node has
to stay. Each holds bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ptn_runtime.lowering.static import TensorSpec, Value
from ptn_runtime.lowering.views import Emit

__all__ = ["SIMPLIFIERS"]

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
