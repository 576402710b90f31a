"""Lets attention share key and value heads itself instead of copying them (`repeat_kv` -> `enable_gqa`).

Models with fewer key than query heads copy each key and value head next to itself until the numbers agree. For a cache
of thousands of positions that copy is most of the traffic of a decoding step; the operator's `enable_gqa` means the
same without it. Recognised is unsqueeze, expand, view on both key and value: in front of the axis of positions
([B, H, T, D]), or of the last axis with a swap of axes afterwards ([B, T, H, D]). Repeating in the other order
(`repeat`, heads a b a b) means something else and stays.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ptn_export.passes._graph import (
    Context,
    argument,
    insert,
    is_call,
    operand,
    replace,
    same_shape,
    shape_of,
)

__all__ = ["run"]

_aten = torch.ops.aten
_VIEWS = (_aten.view.default, _aten.reshape.default, _aten._unsafe_view.default)
_ATTENTION = _aten.scaled_dot_product_attention.default


def run(module: fx.GraphModule, context: Context) -> None:
    """Drops the copies of key and value heads in front of every attention of `module`."""
    for node in list(module.graph.nodes):
        if not is_call(node, _ATTENTION) or argument(node, "enable_gqa") or len(shape_of(operand(node, 0))) < 3:
            continue
        key, value = (_before_repeat(operand(node, i), node) for i in (1, 2))
        if key is None or value is None or not _shares(operand(node, 0), operand(node, 1), key, value):
            continue
        arguments = [argument(node, name) for name in ("attn_mask", "dropout_p", "is_causal")]
        options = {"scale": argument(node, "scale"), "enable_gqa": True}
        replace(node, insert(node, _ATTENTION, operand(node, 0), key, value, *arguments, **options))
        context.counts["gqa"] += 1


def _shares(query: Any, repeated: Any, key: fx.Node, value: fx.Node) -> bool:
    """Whether the query has one head per repeated head, and key and value agree."""
    heads = shape_of(query)[:-2]
    return same_shape(heads, shape_of(repeated)[:-2]) and same_shape(shape_of(key)[:-2], shape_of(value)[:-2])


def _before_repeat(node: Any, before: fx.Node) -> fx.Node | None:
    """The tensor whose heads `node` repeats; None where it does not."""
    if is_call(node, *_VIEWS):
        return _repeated(node, len(shape_of(node)) - 3)
    if not is_call(node, _aten.permute.default):
        return None
    rank = len(shape_of(node))
    order = [axis % rank for axis in operand(node, 1)]
    source = operand(node, 0)
    if not is_call(source, *_VIEWS):
        return None
    original = _repeated(source, order[rank - 3])
    if original is None or len(shape_of(original)) != rank:
        return None
    return insert(before, _aten.permute.default, original, order)


def _repeated(view: fx.Node, axis: int) -> fx.Node | None:
    """The tensor that `view` shows with each index of `axis` several times in a row."""
    expand = operand(view, 0)
    unsqueeze = operand(expand, 0) if is_call(expand, _aten.expand.default) else None
    if not is_call(unsqueeze, _aten.unsqueeze.default):
        return None
    assert isinstance(unsqueeze, fx.Node)
    original = operand(unsqueeze, 0)
    before, wide, after = shape_of(original), shape_of(expand), shape_of(view)
    if int(argument(unsqueeze, "dim")) % len(wide) != axis + 1 or len(after) != len(before):
        return None
    heads, times = before[axis], wide[axis + 1]
    if not isinstance(heads, int) or not isinstance(times, int) or not isinstance(after[axis], int):
        return None
    untouched = same_shape((*before[: axis + 1], *before[axis + 1 :]), (*wide[: axis + 1], *wide[axis + 2 :]))
    others = same_shape((*before[:axis], *before[axis + 1 :]), (*after[:axis], *after[axis + 1 :]))
    if untouched and others and after[axis] == heads * times and isinstance(original, fx.Node):
        return original
    return None
