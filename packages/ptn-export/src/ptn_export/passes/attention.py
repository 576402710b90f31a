"""Turns attention spelled as matmul, softmax, matmul into `aten.scaled_dot_product_attention`.

Spelled out, attention writes its scores to memory several times over and hides from engines what it is; the operator
lets them keep scores on the chip and in float32. Recognised is `softmax(query @ key^T [* scale] [+ mask]) @ value` of
any rank, the mask added or filled in with `where`, the softmax in float32 with casts around it or not. A scale of the
query alone stays where it is. A mask that is a constant triangle of the scores' own size becomes `is_causal`. In half
types the scores are no longer rounded between the steps. A row whose mask lets nothing through, with -inf as the fill,
gives zeros where the spelled-out form gives NaN: that is the operator's meaning in PyTorch too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ptn_export.dims import same_size
from ptn_export.passes._graph import (
    Context,
    argument,
    dtype_of,
    insert,
    is_call,
    number,
    operand,
    operands,
    replace,
    same_shape,
    shape_of,
    tensor_of,
)

__all__ = ["run"]

_aten = torch.ops.aten
_PRODUCTS = (_aten.matmul.default, _aten.bmm.default, _aten.mm.default)
_LARGEST_FILL = -1e4
"""A score that fills masked places must be so low that its weight is zero next to any other."""
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(slots=True)
class _Scores:
    """What happens between the product of query and key and the softmax.

    Attributes:
        product: query @ key^T.
        scale: the factor of the product.
        mask: what is added to it, or, if `keep` is set, where scores are kept; None if there is no mask.
        fill: None for an added mask; else the score at masked places.
        inverted: the mask says where scores are not kept.
    """

    product: fx.Node
    scale: float = 1.0
    mask: fx.Node | None = None
    fill: float | None = None
    inverted: bool = False


def run(module: fx.GraphModule, context: Context) -> None:
    """Fuses every attention of `module`."""
    for node in list(module.graph.nodes):
        if is_call(node, *_PRODUCTS) and _fuse(node, context):
            context.counts["attention"] += 1


def _fuse(node: fx.Node, context: Context) -> bool:
    probabilities, value = operands(node)
    softmax = _softmax(probabilities)
    scores = _scores(operand(softmax, 0), context) if softmax is not None else None
    if scores is None or not isinstance(value, fx.Node):
        return False
    query, key = operands(scores.product)
    transposed = _transposed(key)
    if not isinstance(query, fx.Node) or transposed is None or not _fits(node, query, transposed, value):
        return False
    mask, is_causal = _mask(scores, node, query, context)
    if mask is not None and not _mask_fits(mask, scores.product):
        return False
    default = 1 / math.sqrt(shape_of(query)[-1]) if isinstance(shape_of(query)[-1], int) else None
    scale = None if default is not None and math.isclose(scores.scale, default, rel_tol=1e-7) else scores.scale
    fused = insert(
        node,
        _aten.scaled_dot_product_attention.default,
        query,
        transposed if isinstance(transposed, fx.Node) else _turned(key, node),
        value,
        mask,
        0.0,
        is_causal,
        scale=scale,
    )
    replace(node, fused)
    return True


def _softmax(node: Any) -> fx.Node | None:
    """The softmax over the last axis behind `node`, through a cast back from float32."""
    if is_call(node, _aten._to_copy.default) and len(node.users) == 1:
        node = operand(node, 0) if dtype_of(operand(node, 0)) is torch.float32 else None
    if not is_call(node, _aten._softmax.default) or len(node.users) != 1:
        return None
    return node if argument(node, "dim") in (-1, len(shape_of(node)) - 1) else None


def _scores(node: Any, context: Context) -> _Scores | None:
    """Takes scale, mask and cast off the scores, from the softmax back to the product."""
    mask: fx.Node | None = None
    fill: float | None = None
    inverted = False
    scale = 1.0
    while isinstance(node, fx.Node) and len(node.users) == 1:
        if is_call(node, *_PRODUCTS):
            return _Scores(node, scale, mask, fill, inverted)
        if is_call(node, _aten._to_copy.default) and dtype_of(node) is torch.float32:
            node = operand(node, 0)
        elif mask is None and scale == 1.0 and is_call(node, _aten.add.Tensor) and argument(node, "alpha") == 1:
            node, mask = _operands(node)
            if node is None:
                return None
        elif mask is None and scale == 1.0 and is_call(node, _aten.where.self):
            mask, yes, no = operands(node)
            fill, inverted = number(no, context), False
            if fill is None:
                yes, fill, inverted = no, number(yes, context), True
            if fill is None or fill > _LARGEST_FILL:
                return None
            node = yes
        else:
            node, factor = _without_factor(node, context)
            scale *= factor
    return None


def _operands(node: fx.Node) -> tuple[fx.Node | None, fx.Node | None]:
    """Scores and mask of a sum: the scores have its shape and lead to a product."""
    for scores, mask in (operands(node), operands(node)[::-1]):
        if not isinstance(scores, fx.Node) or not isinstance(mask, fx.Node) or not _leads_to_product(scores):
            continue
        if same_shape(shape_of(scores), shape_of(node)) and dtype_of(mask) in _FLOATS:
            return scores, mask
    return None, None


def _leads_to_product(node: Any) -> bool:
    while is_call(node, _aten._to_copy.default, _aten.mul.Scalar, _aten.div.Scalar, _aten.mul.Tensor, _aten.div.Tensor):
        node = operand(node, 0)
    return is_call(node, *_PRODUCTS)


def _without_factor(node: fx.Node, context: Context) -> tuple[Any, float]:
    """The tensor that `node` multiplies by a positive number, and the number; `(None, 1)` where it does not."""
    if is_call(node, _aten.mul.Scalar, _aten.mul.Tensor, _aten.div.Scalar, _aten.div.Tensor):
        factor = number(operand(node, 1), context)
        if factor is not None and factor > 0:
            return operand(node, 0), 1 / factor if is_call(node, _aten.div.Scalar, _aten.div.Tensor) else float(factor)
        factor = number(operand(node, 0), context)
        if factor is not None and factor > 0 and is_call(node, _aten.mul.Tensor):
            return operand(node, 1), float(factor)
    return None, 1.0


def _transposed(key: Any) -> Any:
    """The key before its last two axes were swapped; True where it must be swapped back; None if it is no tensor."""
    if not isinstance(key, fx.Node) or tensor_of(key) is None:
        return None
    rank = len(shape_of(key))
    if is_call(key, _aten.permute.default):
        swapped = [*range(rank - 2), rank - 1, rank - 2]
        order = [axis % rank for axis in operand(key, 1)]
        if order == swapped:
            assert isinstance(operand(key, 0), fx.Node)
            return operand(key, 0)
    if is_call(key, _aten.transpose.int) and {axis % rank for axis in operands(key)[1:]} == {rank - 1, rank - 2}:
        assert isinstance(operand(key, 0), fx.Node)
        return operand(key, 0)
    return True


def _turned(key: fx.Node, before: fx.Node) -> fx.Node:
    rank = len(shape_of(key))
    return insert(before, _aten.permute.default, key, [*range(rank - 2), rank - 1, rank - 2])


def _fits(node: fx.Node, query: fx.Node, key: fx.Node | bool, value: fx.Node) -> bool:
    """Whether the operator takes these: one element type, one rank, one batch shape."""
    other = key if isinstance(key, fx.Node) else query
    tensors = [tensor_of(item) for item in (node, query, other, value)]
    if any(tensor is None or tensor.dim() < 2 or tensor.dtype not in _FLOATS for tensor in tensors):
        return False
    first, *rest = [tensor for tensor in tensors if tensor is not None]
    return all(t.dtype == first.dtype and same_shape(t.shape[:-2], first.shape[:-2]) for t in rest)


def _mask(scores: _Scores, node: fx.Node, query: fx.Node, context: Context) -> tuple[fx.Node | None, bool]:
    """The operator's mask, and whether the scores are masked causally instead."""
    mask, fill = scores.mask, scores.fill
    if mask is None:
        return None, False
    if _is_triangle(scores, context):
        return None, True
    dtype = dtype_of(query)
    if fill is None:
        source = operand(mask, 0) if is_call(mask, _aten._to_copy.default) else None
        if isinstance(source, fx.Node) and dtype_of(source) == dtype:
            return source, False
        if dtype_of(mask) not in (dtype, torch.float32):
            mask = insert(node, _aten._to_copy.default, mask, dtype=dtype)
        return mask, False
    if fill == -math.inf:
        return (insert(node, _aten.logical_not.default, mask) if scores.inverted else mask), False
    # A finite fill stays finite, so that a row without any kept score still averages all values: any score added to
    # the lowest number is the lowest number.
    wide = dtype if dtype is torch.float64 else torch.float32
    numbers = [insert(node, _aten.full.default, [], x, dtype=wide) for x in (0.0, torch.finfo(torch.float32).min)]
    yes, no = reversed(numbers) if scores.inverted else numbers
    return insert(node, _aten.where.self, mask, yes, no), False


def _is_triangle(scores: _Scores, context: Context) -> bool:
    """Whether the mask is a constant that keeps exactly the keys up to each query's own position."""
    data = context.constant(scores.mask)
    rows, columns = shape_of(scores.product)[-2:]
    if data is None or not isinstance(rows, int) or not isinstance(columns, int) or data.dim() < 2:
        return False
    if data.shape[-2:] != (rows, columns) or not data.numel():
        return False
    triangle = torch.ones(rows, columns, dtype=torch.bool).tril().expand(data.shape)
    if scores.fill is not None:
        kept = ~data if scores.inverted else data
        return data.dtype is torch.bool and bool((kept == triangle).all())
    low = torch.finfo(data.dtype).min if data.dtype.is_floating_point else 0
    return bool((data[triangle] == 0).all()) and bool(((data == -math.inf) | (data == low))[~triangle].all())


def _mask_fits(mask: fx.Node, product: fx.Node) -> bool:
    """Whether the mask broadcasts to the scores without widening them."""
    shape, scores = shape_of(mask), shape_of(product)
    if not 2 <= len(shape) <= len(scores):
        return False
    pairs = zip(reversed(shape), reversed(scores), strict=False)
    return all((isinstance(a, int) and a == 1) or same_size(a, b) for a, b in pairs)
