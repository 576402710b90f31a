"""What happens to the scores of attention between the product of query and key and the softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch import fx
from torch.utils import _pytree as pytree

from ptn_export.dims import expression_of, same_size
from ptn_export.passes._graph import (
    Context,
    argument,
    dtype_of,
    insert,
    is_call,
    number,
    operand,
    operands,
    same_shape,
    shape_of,
    sizes_of,
    tensor_of,
)

__all__ = ["PRODUCTS", "Scores", "mask_of", "read_scores", "regrouped", "through_views", "without_factors"]

_aten = torch.ops.aten
PRODUCTS = (_aten.matmul.default, _aten.bmm.default, _aten.mm.default)
_VIEWS = (_aten.view.default, _aten._unsafe_view.default, _aten.reshape.default)
_FACTORS = (_aten.mul.Scalar, _aten.div.Scalar, _aten.mul.Tensor, _aten.div.Tensor)
_LARGEST_FILL = -1e4
"""A score that fills masked places must be so low that its weight is zero next to any other."""
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True, slots=True)
class _Mask:
    """A mask: what is added to the scores, or a condition for keeping them.

    Attributes:
        node: the tensor.
        shape: the scores' own shape where it applies, to which the mask broadcasts.
        factor: what it is multiplied by on the way to the softmax.
        fill: None for an added mask; else the score at masked places.
        inverted: the condition says where scores are not kept.
    """

    node: fx.Node
    shape: tuple[Any, ...]
    factor: float = 1.0
    fill: float | None = None
    inverted: bool = False


@dataclass(slots=True)
class Scores:
    """The way of the scores.

    Attributes:
        product: query @ key^T.
        shape: the shape of the scores that the operator shall have: where masks for single heads or items apply.
        scale: the factor of the product.
        masks: all masks, the last applied first.
        batch: the leading sizes of `shape` as arguments, where a view has regrouped those of the product.
    """

    product: fx.Node
    shape: tuple[Any, ...]
    scale: float = 1.0
    masks: list[_Mask] = field(default_factory=list)
    batch: list[Any] | None = None


def read_scores(softmax: fx.Node, context: Context) -> Scores | None:
    """Takes scale, masks, casts and views off the scores, from the softmax back to the product."""
    found = Scores(softmax, shape_of(softmax))
    views: list[fx.Node] = []
    node = operand(softmax, 0)
    while isinstance(node, fx.Node) and len(node.users) == 1:
        if is_call(node, *PRODUCTS):
            found.product = node
            return found if _choose_shape(found, views) else None
        if is_call(node, _aten._to_copy.default) and dtype_of(node) is torch.float32:
            node = operand(node, 0)
        elif regrouped(node):
            views.append(node)
            node = operand(node, 0)
        elif is_call(node, _aten.add.Tensor, _aten.where.self):
            mask, node = _added(node) if is_call(node, _aten.add.Tensor) else _filled(node, found.scale, context)
            if mask is None:
                return None
            found.masks.append(_Mask(mask.node, mask.shape, found.scale, mask.fill, mask.inverted))
        else:
            node, factor = _without_factor(node, context)
            found.scale *= factor
    return None


def _choose_shape(scores: Scores, views: list[fx.Node]) -> bool:
    """Decides which of the shapes that scores have on their way the operator gets; False if it cannot be named."""
    particular = [mask.shape for mask in scores.masks if not all(map(_is_one, shape_of(mask.node)[:-2]))]
    scores.shape = particular[0] if particular else scores.shape
    if same_shape(scores.shape, shape_of(scores.product)):
        return True
    view = next((view for view in views if same_shape(scores.shape, shape_of(view))), None)
    scores.batch = _batch_arguments(view) if view is not None else None
    return scores.batch is not None


def regrouped(node: Any) -> bool:
    """Whether `node` is a view that changes leading axes only."""
    if not is_call(node, *_VIEWS):
        return False
    before, after = shape_of(operand(node, 0)), shape_of(node)
    return min(len(before), len(after)) >= 2 and same_shape(before[-2:], after[-2:])


def through_views(node: Any) -> Any:
    """What is behind views that change leading axes only."""
    while regrouped(node) and len(node.users) == 1:
        node = operand(node, 0)
    return node


def _batch_arguments(view: fx.Node) -> list[Any] | None:
    """The leading sizes of a view as arguments; None where one is left to be inferred."""
    sizes = []
    for given, size in zip(operand(view, 1), shape_of(view), strict=True):
        sizes.append(size if isinstance(size, int) else given)
    return None if any(isinstance(size, int) and size < 0 for size in sizes) else sizes[:-2]


def _added(node: fx.Node) -> tuple[_Mask | None, Any]:
    """Mask and scores of a sum: the scores have its shape and lead to a product."""
    if argument(node, "alpha") != 1:
        return None, None
    for scores, mask in (operands(node), operands(node)[::-1]):
        if not isinstance(scores, fx.Node) or not isinstance(mask, fx.Node) or not _leads_to_product(scores):
            continue
        if same_shape(shape_of(scores), shape_of(node)) and dtype_of(mask) in _FLOATS:
            return _Mask(mask, shape_of(node)), scores
    return None, None


def _filled(node: fx.Node, scale: float, context: Context) -> tuple[_Mask | None, Any]:
    """Mask and scores of a `where`, one side of which is a very low number."""
    condition, yes, no = operands(node)
    for scores, other, inverted in ((yes, no, False), (no, yes, True)):
        fill = number(other, context)
        if fill is not None and fill * scale <= _LARGEST_FILL and same_shape(shape_of(scores), shape_of(node)):
            return _Mask(condition, shape_of(node), fill=fill * scale, inverted=inverted), scores
    return None, None


def _leads_to_product(node: Any) -> bool:
    while is_call(node, _aten._to_copy.default, _aten.add.Tensor, _aten.where.self, *_FACTORS) or regrouped(node):
        if is_call(node, _aten.add.Tensor):
            return any(_leads_to_product(item) for item in operands(node))
        if is_call(node, _aten.where.self):
            return any(_leads_to_product(item) for item in operands(node)[1:])
        node = operand(node, 0)
    return is_call(node, *PRODUCTS)


def without_factors(node: Any, context: Context) -> tuple[Any, float]:
    """The tensor that positive numbers are multiplied to, and their product."""
    factor = 1.0
    while is_call(node, *_FACTORS):
        source, by = _without_factor(node, context)
        if not isinstance(source, fx.Node) or not same_shape(shape_of(source), shape_of(node)):
            break
        if dtype_of(source) != dtype_of(node):
            break
        node, factor = source, factor * by
    return node, factor


def _without_factor(node: fx.Node, context: Context) -> tuple[Any, float]:
    """The tensor that `node` multiplies by a positive number, and the number; `(None, 1)` where it does not."""
    if is_call(node, *_FACTORS):
        factor = number(operand(node, 1), context)
        if factor is not None and factor > 0:
            return operand(node, 0), 1 / factor if is_call(node, _aten.div.Scalar, _aten.div.Tensor) else float(factor)
        factor = number(operand(node, 0), context)
        if factor is not None and factor > 0 and is_call(node, _aten.mul.Tensor):
            return operand(node, 1), float(factor)
    return None, 1.0


# Masks


def mask_of(
    scores: Scores, dtype: torch.dtype, before: fx.Node, context: Context
) -> tuple[fx.Node | None, bool] | None:
    """The operator's mask, and whether the scores are masked causally instead; None where it cannot express them."""
    if not scores.masks:
        return None, False
    if len(scores.masks) == 1 and _is_triangle(scores.masks[0], scores.shape[-2:], context):
        return None, True
    nodes = [_at_operator(mask, scores, before) for mask in scores.masks]
    conditions = [i for i, mask in enumerate(scores.masks) if mask.fill is not None]
    if any(node is None for node in nodes) or len(conditions) > 1:
        return None
    added = [_scaled(node, mask.factor, before) for node, mask in zip(nodes, scores.masks, strict=True)
             if node is not None and mask.fill is None]  # fmt: skip
    total = _as_taken(added[0], dtype, before) if added else None
    for other in added[1:]:
        assert total is not None
        total = insert(before, _aten.add.Tensor, total, _as_taken(other, dtype, before))
    if not conditions:
        return total, False
    (place,) = conditions
    condition = nodes[place]
    assert condition is not None
    return _conditional(scores.masks[place], condition, total, place == 0, dtype, before)


def _conditional(
    mask: _Mask, condition: fx.Node, added: fx.Node | None, is_last: bool, dtype: torch.dtype, before: fx.Node
) -> tuple[fx.Node | None, bool] | None:
    """One condition and what is added besides."""
    if mask.fill == -math.inf and added is None:
        return (insert(before, _aten.logical_not.default, condition) if mask.inverted else condition), False
    if mask.fill != -math.inf and not is_last:
        return None  # what is added behind a finite fill changes it
    # A finite fill stays finite, so that a row without any kept score still averages all values: any score added to
    # the lowest number is the lowest number.
    wide = dtype if dtype is torch.float64 else torch.float32
    lowest = -math.inf if mask.fill == -math.inf else torch.finfo(torch.float32).min
    yes = insert(before, _aten.full.default, [], 0.0, dtype=wide) if added is None else added
    no = insert(before, _aten.full.default, [], lowest, dtype=wide)
    yes, no = (no, yes) if mask.inverted else (yes, no)
    return insert(before, _aten.where.self, condition, yes, no), False


def _at_operator(mask: _Mask, scores: Scores, before: fx.Node) -> fx.Node | None:
    """The mask in the shape that it has for the operator; None where it has none, or would widen the scores."""
    node, target = mask.node, scores.shape
    shape = shape_of(node)
    if not 2 <= len(shape) <= len(mask.shape):
        return None
    pairs = zip(reversed(shape), reversed(mask.shape), strict=False)
    if not all(_is_one(a) or same_size(a, b) for a, b in pairs):
        return None
    if same_shape(mask.shape, target) or len(shape) == 2:
        return node
    if all(map(_is_one, shape[:-2])):
        return insert(before, _aten.view.default, node, sizes_of(node, before)[-2:])
    if scores.batch is None or len(shape) != 3 or len(mask.shape) != 3:
        return None
    return insert(before, _aten.view.default, node, [*scores.batch, *sizes_of(node, before)[1:]])


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


def _scaled(mask: fx.Node, factor: float, before: fx.Node) -> fx.Node:
    if factor == 1.0:
        return mask
    return insert(before, _aten.mul.Tensor, mask, insert(before, _aten.full.default, [], factor, dtype=dtype_of(mask)))


def _as_taken(mask: fx.Node, dtype: torch.dtype, before: fx.Node) -> fx.Node:
    """An added mask in an element type that the operator takes: that of the query, or float32."""
    source = operand(mask, 0) if is_call(mask, _aten._to_copy.default) else None
    if isinstance(source, fx.Node) and dtype_of(source) == dtype:
        return source
    if dtype_of(mask) not in (dtype, torch.float32):
        return insert(before, _aten._to_copy.default, mask, dtype=dtype)
    return mask


# Causal masks


def _is_triangle(mask: _Mask, sizes: Sequence[Any], context: Context) -> bool:
    """Whether the mask keeps exactly the keys up to each query's own position, whatever the inputs are.

    It must be made from constants and from the number of positions only. Where that varies, it is looked at for small
    numbers, for numbers beyond the reach of every literal in it, such as the width of a window, and for the largest.
    """
    rows, columns = sizes
    if mask.factor <= 0 or not same_size(rows, columns):
        return False
    expression = expression_of(rows)
    if expression is None:
        return _is_triangle_for(mask, int(rows), {}, context)
    bounds = context.program.range_constraints.get(expression)
    if not isinstance(expression, sympy.Symbol) or bounds is None:
        return False
    largest = int(bounds.upper) if bounds.upper.is_finite and bounds.upper <= _LARGEST_SAMPLE else None
    reach = _reach(mask.node, context, is_bounded=largest is not None)
    if reach is None:
        return False
    counts = {*range(max(int(bounds.lower), 1), 9), reach + 2, 2 * reach + 21, largest or 1}
    return all(
        _is_triangle_for(mask, count, {expression: count}, context)
        for count in sorted(counts)
        if largest is None or count <= largest
    )


_LARGEST_SAMPLE = 2048
_NO_END = 1 << 62


def _reach(mask: fx.Node, context: Context, is_bounded: bool) -> int | None:
    """The sum of all numbers that a mask is made with; None if it is too large to look beyond it.

    Where the number of positions is bounded by what can be looked at, a literal needs no looking beyond it.
    """
    seen, stack, total = {mask}, [mask], 0.0
    while stack:
        node = stack.pop()
        data = context.constant(node)
        if data is not None and data.dim() and not is_bounded:
            return None  # a table
        literals = [*pytree.tree_leaves((list(node.args), dict(node.kwargs))), number(node, context)]
        for item in literals:
            is_number = isinstance(item, int | float) and math.isfinite(item) and item < _NO_END
            total += abs(item) if is_number and item > _LARGEST_FILL else 0  # lower ones fill masked places
        stack += [source for source in node.all_input_nodes if source not in seen]
        seen.update(node.all_input_nodes)
    if 2 * total + 21 <= _LARGEST_SAMPLE:
        return int(total)
    return 0 if is_bounded else None


def _is_triangle_for(mask: _Mask, count: int, symbols: dict[Any, int], context: Context) -> bool:
    if not count:
        return False
    try:
        data = _evaluate(mask.node, symbols, {}, context)
    except (_DependsOnInputError, RuntimeError, IndexError):
        return False
    if not isinstance(data, torch.Tensor) or data.dim() < 2 or data.shape[-2:] != (count, count) or not data.numel():
        return False
    triangle = torch.ones(count, count, dtype=torch.bool).tril().expand(data.shape)
    if mask.fill is not None:
        return data.dtype is torch.bool and bool(((~data if mask.inverted else data) == triangle).all())
    return bool((data[triangle] == 0).all()) and bool((data[~triangle] * mask.factor <= _LARGEST_FILL).all())


class _DependsOnInputError(Exception):
    """A value is not made from constants and sizes."""


def _evaluate(node: fx.Node, symbols: dict[Any, int], known: dict[fx.Node, Any], context: Context) -> Any:
    """The value of a node for some sizes."""
    if node not in known:
        value = node.meta.get("val")
        constant = context.constant(node)
        if constant is not None:
            known[node] = constant.detach()
        elif (expression := expression_of(value)) is not None:
            if not expression.free_symbols <= set(symbols):
                raise _DependsOnInputError
            known[node] = int(expression.subs(symbols))
        elif not _is_evaluable(node) or not set(_symbols(value)) <= set(symbols):
            raise _DependsOnInputError
        else:
            arguments, options = pytree.tree_map_only(
                fx.Node, lambda item: _evaluate(item, symbols, known, context), (list(node.args), dict(node.kwargs))
            )
            target: Any = _aten.reshape.default if node.target is _aten.view.default else node.target
            known[node] = target(*arguments, **options)
    return known[node]


def _is_evaluable(node: fx.Node) -> bool:
    target = node.target
    is_operator = isinstance(target, torch._ops.OpOverload) and target.namespace == "aten"
    return is_operator and tensor_of(node) is not None and torch.Tag.nondeterministic_seeded not in target.tags  # type: ignore[union-attr]


def _symbols(value: Any) -> set[Any]:
    """The symbols in the sizes of a tensor."""
    return set().union(*(getattr(expression_of(size), "free_symbols", set()) for size in value.shape))
