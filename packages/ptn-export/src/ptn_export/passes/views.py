"""Shortens chains of views and casts.

Decomposed models reshape, transpose and cast there and back. Each view is free in an engine that can stride and a copy
in one that cannot, so chains are cut: a permutation of a permutation is one permutation, a reshape of a reshape is the
last one, an expansion of an expansion likewise, and what ends in the shape that it began with is dropped. A cast to a
wider type and back is the value itself; one to a narrower type and back is not, and stays.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ptn_export.dims import SCALAR_TYPES, same_size
from ptn_export.passes._graph import (
    Context,
    dtype_of,
    has_value_type,
    insert_like,
    is_call,
    operand,
    place,
    replace,
    shape_of,
    sizes_of,
    tensor_of,
)

__all__ = ["run"]

_aten = torch.ops.aten
_RESHAPES = (_aten.view.default, _aten.reshape.default, _aten._unsafe_view.default)
# All of these keep the order of elements.
_IN_ORDER = (
    *_RESHAPES,
    _aten.squeeze.default,
    _aten.squeeze.dim,
    _aten.squeeze.dims,
    _aten.unsqueeze.default,
)


def run(module: fx.GraphModule, context: Context) -> None:
    """Shortens every chain of `module`."""
    for node in list(module.graph.nodes):
        if node.op == "call_function" and node.users and _shorten(node):
            context.counts["views"] += 1
    module.graph.eliminate_dead_code()


def _shorten(node: fx.Node) -> bool:
    shorter = _shorter(node)
    if shorter is None:
        return False
    replace(node, shorter)
    return True


def _shorter(node: fx.Node) -> fx.Node | None:
    """A node with the same value and fewer views in front of it."""
    if is_call(node, *_IN_ORDER):
        return _same_order(node)
    if is_call(node, _aten.permute.default):
        return _permuted(node)
    source = operand(node, 0) if node.args else None
    if is_call(node, _aten.expand.default) and is_call(source, _aten.expand.default):
        sizes = operand(node, 1)
        if len(sizes) == len(shape_of(source)) and not any(isinstance(size, int) and size == -1 for size in sizes):
            return insert_like(node, _aten.expand.default, operand(source, 0), sizes)
    if is_call(node, _aten._to_copy.default) and is_call(source, _aten._to_copy.default):
        return _cast_back(node, operand(source, 0), source)
    return None


def _same_order(node: fx.Node) -> fx.Node | None:
    inner = source = operand(node, 0)
    while is_call(source, *_IN_ORDER) or _keeps_order(source):
        source = operand(source, 0)
        if has_value_type(source, node):
            return source if isinstance(source, fx.Node) else None
    if is_call(node, *_RESHAPES) and source is not inner and isinstance(source, fx.Node):
        return insert_like(node, _aten.view.default, source, operand(node, 1))
    return None


def _keeps_order(node: Any) -> bool:
    """Whether the node is a permutation that moves only axes of size 1."""
    if not is_call(node, _aten.permute.default):
        return False
    shape = shape_of(node)
    order = [axis % len(shape) for axis, size in zip(operand(node, 1), shape, strict=True) if not _is_one(size)]
    return order == sorted(order)


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


def _permuted(node: fx.Node) -> fx.Node | None:
    rank = len(shape_of(node))
    order = [axis % rank for axis in operand(node, 1)]
    source: Any = operand(node, 0)
    if order == list(range(rank)):
        return source if isinstance(source, fx.Node) else None
    if is_call(source, *_IN_ORDER) and all(is_call(user, *_RESHAPES) for user in node.users):
        shorter = _before_new_axes(node, source, order)
        if shorter is not None:
            return shorter
    if not is_call(source, _aten.permute.default):
        return None
    first = [axis % rank for axis in operand(source, 1)]
    both = [first[axis] for axis in order]
    origin = operand(source, 0)
    if both == list(range(rank)):
        return origin if isinstance(origin, fx.Node) else None
    return insert_like(node, _aten.permute.default, origin, both)


def _before_new_axes(node: fx.Node, view: fx.Node, order: list[int]) -> fx.Node | None:
    """The permutation of what gets axes of size 1 from `view`, and then these axes, where a reshape takes them in."""
    origin = operand(view, 0)
    value = tensor_of(origin)
    old = _old_axes(view, origin)
    if value is None or not isinstance(origin, fx.Node) or old is None:
        return None
    rest = [old[axis] for axis in order if axis in old]
    permuted = place(node, value.permute(rest), _aten.permute.default, origin, rest)
    known = iter(sizes_of(permuted, node))
    return insert_like(node, _aten.view.default, permuted, [next(known) if axis in old else 1 for axis in order])


def _old_axes(view: fx.Node, origin: Any) -> dict[int, int] | None:
    """By axis of `view` that is no new one, the axis of `origin`; None if it does more than to add axes of size 1."""
    before, after = shape_of(origin), shape_of(view)
    old: dict[int, int] = {}
    for axis, size in enumerate(after):
        if len(old) < len(before) and same_size(size, before[len(old)]):
            old[axis] = len(old)
        elif not _is_one(size):
            return None
    return old if len(old) == len(before) < len(after) else None


def _cast_back(node: fx.Node, origin: Any, between: Any) -> fx.Node | None:
    narrow, wide = dtype_of(origin), dtype_of(between)
    if narrow is None or wide is None or dtype_of(node) != narrow or not isinstance(origin, fx.Node):
        return None
    is_known = {narrow, wide} <= SCALAR_TYPES.keys() and narrow.is_floating_point and wide.is_floating_point
    exact = is_known and torch.promote_types(narrow, wide) == wide  # which PyTorch refuses to say of float8
    return origin if exact else None
