"""Turns attention spelled as matmul, softmax, matmul into `aten.scaled_dot_product_attention`.

Spelled out, attention writes its scores to memory several times over and hides from engines what it is; the operator
lets them keep scores on the chip and in float32. Recognised is `softmax(query @ key^T [* scale] [+ mask]) @ value` of
any rank, by `matmul`, `bmm`, `baddbmm` or `einsum`; the scale on the scores, the query or the key; masks added or
filled in with `where`, before or behind the scale; views that merge and split batch and heads in between; the softmax
in float32 with casts around it or not. A mask that is the triangle of the scores' own size, whatever the inputs are,
becomes `is_causal`. In half types the scores are no longer rounded between the steps. A row whose mask lets nothing
through, with -inf as the fill, gives zeros where the spelled-out form gives NaN: that is the operator's meaning in
PyTorch too.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from ptn_export.passes._attention_scores import (
    PRODUCTS,
    Scores,
    mask_of,
    read_scores,
    through_views,
    without_factors,
)
from ptn_export.passes._graph import (
    Context,
    argument,
    dtype_of,
    insert,
    is_call,
    operand,
    operands,
    replace,
    same_shape,
    shape_of,
    sizes_of,
    tensor_of,
)

__all__ = ["run"]

_aten = torch.ops.aten
_SOFTMAX = (_aten._softmax.default, _aten._safe_softmax.default)
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def run(module: fx.GraphModule, context: Context) -> None:
    """Fuses every attention of `module`."""
    for node in list(module.graph.nodes):
        if is_call(node, *PRODUCTS) and _fuse(node, context):
            context.counts["attention"] += 1


def _fuse(node: fx.Node, context: Context) -> bool:
    probabilities, value = operands(node)
    softmax = _softmax(probabilities)
    scores = read_scores(softmax, context) if softmax is not None else None
    if scores is None or not isinstance(value, fx.Node):
        return False
    query, key = operands(scores.product)
    if not _fits(node, scores, query, key, value):
        return False
    dtype = dtype_of(query)
    assert dtype is not None
    mask = mask_of(scores, dtype, node, context)
    if mask is None:
        return False
    query, by_query = without_factors(query, context)
    key, by_key = _key(key, scores.batch, node, context)
    fused = _attention(node, scores, query, key, value, mask, scores.scale * by_query * by_key)
    replace(node, fused)
    return True


def _attention(
    node: fx.Node,
    scores: Scores,
    query: fx.Node,
    key: fx.Node,
    value: fx.Node,
    mask: tuple[fx.Node | None, bool],
    scale: float,
) -> fx.Node:
    """The operator on the batch axes of its masks, and a view of its result where the last product has others."""
    width = shape_of(query)[-1]
    is_default = isinstance(width, int) and math.isclose(scale, 1 / math.sqrt(width), rel_tol=1e-7)
    is_regrouped = not same_shape(shape_of(node)[:-2], scores.shape[:-2])
    batch = scores.batch if scores.batch is not None else sizes_of(query, node)[:-2] if is_regrouped else []
    outer = [*sizes_of(value, node)[:-2], sizes_of(query, node)[-2], sizes_of(value, node)[-1]] if is_regrouped else []
    if scores.batch is not None:
        query = _with_batch(query, batch, node)
    if is_regrouped:
        value = _with_batch(value, batch, node)
    attention = _aten.scaled_dot_product_attention.default
    result = insert(node, attention, query, key, value, mask[0], 0.0, mask[1], scale=None if is_default else scale)
    return insert(node, _aten.view.default, result, outer) if is_regrouped else result


def _with_batch(tensor: fx.Node, batch: list[Any], before: fx.Node) -> fx.Node:
    return insert(before, _aten.view.default, tensor, [*batch, *sizes_of(tensor, before)[-2:]])


def _softmax(node: Any) -> fx.Node | None:
    """The softmax over the last axis behind `node`, through views and a cast back from float32."""
    node = through_views(node)
    if is_call(node, _aten._to_copy.default) and len(node.users) == 1:
        node = operand(node, 0) if dtype_of(operand(node, 0)) is torch.float32 else None
    node = through_views(node)
    if not is_call(node, *_SOFTMAX) or len(node.users) != 1:
        return None
    if is_call(node, _aten._safe_softmax.default) and argument(node, "dtype") not in (None, dtype_of(node)):
        return None
    return node if argument(node, "dim") in (-1, len(shape_of(node)) - 1) else None


def _key(key: fx.Node, batch: list[Any] | None, before: fx.Node, context: Context) -> tuple[fx.Node, float]:
    """The key before its last two axes were swapped, with the leading sizes `batch`, and its factor."""
    key, outer = without_factors(key, context)
    if _is_swap(key):
        key, inner = without_factors(_source(key), context)
        return _with_batch(key, batch, before) if batch is not None else key, outer * inner
    if batch is not None:  # first, because it may undo a view behind a permutation of all axes
        key = _with_batch(key, batch, before)
    rank = len(shape_of(key))
    return insert(before, _aten.permute.default, key, [*range(rank - 2), rank - 1, rank - 2]), outer


def _is_swap(node: fx.Node) -> bool:
    """Whether the node swaps the last two axes."""
    rank = len(shape_of(node))
    if is_call(node, _aten.permute.default):
        return [axis % rank for axis in operand(node, 1)] == [*range(rank - 2), rank - 1, rank - 2]
    return is_call(node, _aten.transpose.int) and {axis % rank for axis in operands(node)[1:]} == {rank - 1, rank - 2}


def _source(node: fx.Node) -> fx.Node:
    source = operand(node, 0)
    assert isinstance(source, fx.Node)
    return source


def _fits(node: fx.Node, scores: Scores, query: Any, key: Any, value: fx.Node) -> bool:
    """Whether the operator takes these: one element type, and one batch shape but for views of it."""
    tensors = [tensor_of(item) for item in (query, key, scores.product, operand(node, 0), value, node)]
    if any(tensor is None or tensor.dim() < 2 or tensor.dtype not in _FLOATS for tensor in tensors):
        return False
    first, *rest = [tensor for tensor in tensors if tensor is not None]
    if any(tensor.dtype != first.dtype for tensor in rest):
        return False
    batches = [tensor.shape[:-2] for tensor in (first, *rest)]
    # Scores and weights may have different ones, with views in between.
    return all(same_shape(batch, batches[0]) for batch in batches[:3]) and all(
        same_shape(batch, batches[3]) for batch in batches[4:]
    )
