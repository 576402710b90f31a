"""Fuses the spellings of RMSNorm into `aten.rms_norm`.

Model code writes the norm as five or more operators, each of which reads or writes the whole activation; engines have
one kernel that reads it once. Recognised is `x * rsqrt(mean(x * x) + eps)` over the last axes, with `pow(-0.5)`,
`1 / sqrt` or a division by the root in the place of `rsqrt`, and an optional weight over the same axes, which may
itself be computed (Gemma's `1 + weight`). Casts of half types around the norm are taken in: `rms_norm` accumulates in
float32; the product with the weight is then rounded once instead of twice. A norm that squares and averages in a half
type is left alone: it rounds where the operator does not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ptn_export.passes._graph import (
    Context,
    argument,
    dtype_of,
    insert,
    is_call,
    number,
    operand,
    replace,
    shape_of,
    tensor_of,
)

__all__ = ["run"]

_aten = torch.ops.aten
_WIDE = (torch.float32, torch.float64)
_HALF = (torch.float16, torch.bfloat16)


def run(module: fx.GraphModule, context: Context) -> None:
    """Fuses every RMSNorm of `module`."""
    for node in list(module.graph.nodes):
        match = _normalised(node, context)
        if match is not None:
            _fuse(node, *match)
            context.counts["rms_norm"] += 1


def _normalised(node: fx.Node, context: Context) -> tuple[fx.Node, list[int], float] | None:
    """The operand, normalised shape and epsilon where `node` is a norm without its weight."""
    if is_call(node, _aten.mul.Tensor):
        pairs = [(operand(node, 0), operand(node, 1)), (operand(node, 1), operand(node, 0))]
        root = _mean_of_reciprocal
    elif is_call(node, _aten.div.Tensor):
        pairs, root = [(operand(node, 0), operand(node, 1))], _mean_of_root
    else:
        return None
    for x, factor in pairs:
        value = tensor_of(x)
        if value is None or value.dtype not in _WIDE or not isinstance(factor, fx.Node) or len(factor.users) != 1:
            continue
        found = root(factor, context)
        shape = _mean_of_squares(found[0], x) if found is not None else None
        if found is not None and shape is not None and isinstance(x, fx.Node):
            return x, shape, found[1]
    return None


def _mean_of_reciprocal(node: fx.Node, context: Context) -> tuple[Any, float] | None:
    """What stands in `rsqrt(... + eps)`, in any spelling, and the epsilon."""
    if is_call(node, _aten.rsqrt.default):
        return _plus_epsilon(operand(node, 0), context)
    if is_call(node, _aten.pow.Tensor_Scalar) and operand(node, 1) == -0.5:
        return _plus_epsilon(operand(node, 0), context)
    if is_call(node, _aten.reciprocal.default):
        return _mean_of_root(operand(node, 0), context)
    if is_call(node, _aten.div.Tensor) and number(operand(node, 0), context) == 1:
        return _mean_of_root(operand(node, 1), context)
    return None


def _mean_of_root(node: Any, context: Context) -> tuple[Any, float] | None:
    """What stands in `sqrt(... + eps)`, and the epsilon."""
    if is_call(node, _aten.sqrt.default) or (is_call(node, _aten.pow.Tensor_Scalar) and operand(node, 1) == 0.5):
        return _plus_epsilon(operand(node, 0), context) if len(node.users) == 1 else None
    return None


def _plus_epsilon(node: Any, context: Context) -> tuple[Any, float] | None:
    if not is_call(node, _aten.add.Scalar, _aten.add.Tensor) or argument(node, "alpha") != 1 or len(node.users) != 1:
        return None
    for mean, epsilon in ((operand(node, 0), operand(node, 1)), (operand(node, 1), operand(node, 0))):
        value = number(epsilon, context)
        if value is not None and value >= 0 and isinstance(mean, fx.Node):
            return mean, float(value)
    return None


def _mean_of_squares(mean: Any, x: Any) -> list[int] | None:
    """The normalised shape where `mean` averages the squares of `x` over its last axes."""
    if not is_call(mean, _aten.mean.dim) or not argument(mean, "keepdim") or len(mean.users) != 1:
        return None
    if argument(mean, "dtype") not in (None, dtype_of(x)):
        return None
    square = operand(mean, 0)
    is_square = (is_call(square, _aten.pow.Tensor_Scalar) and operand(square, 1) == 2 and operand(square, 0) is x) or (
        is_call(square, _aten.mul.Tensor) and operand(square, 0) is x and operand(square, 1) is x
    )
    shape, dims = shape_of(x), argument(mean, "dim")
    if not is_square or not dims or not shape:
        return None
    axes = sorted(dim % len(shape) for dim in dims)
    if axes != list(range(len(shape) - len(axes), len(shape))):
        return None
    sizes = [shape[axis] for axis in axes]
    return sizes if all(isinstance(size, int) for size in sizes) else None


def _fuse(node: fx.Node, x: Any, shape: list[int], epsilon: float) -> None:
    """Puts `rms_norm` in the place of `node`, together with casts and weight as far as they belong to it."""
    narrow = operand(x, 0) if is_call(x, _aten._to_copy.default) else None
    cast = _only_user(node)
    takes_in_casts = (
        dtype_of(narrow) in _HALF
        and dtype_of(x) is torch.float32
        and is_call(cast, _aten._to_copy.default)
        and dtype_of(cast) == dtype_of(narrow)
    )
    if takes_in_casts and cast is not None:  # half -> float32 -> norm -> half [-> weight]
        node, x = cast, narrow
    last, weight = _weighted(node, shape)
    _replace(last, x, shape, weight, epsilon)


def _replace(last: fx.Node, x: Any, shape: list[int], weight: fx.Node | None, epsilon: float) -> None:
    replace(last, insert(last, _aten.rms_norm.default, x, shape, weight, epsilon))


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _weighted(node: fx.Node, shape: list[int]) -> tuple[fx.Node, fx.Node | None]:
    """The product with a weight over the normalised axes, if that is all that `node` is used for; else `node`."""
    product = _only_user(node)
    if product is None or not is_call(product, _aten.mul.Tensor):
        return node, None
    others = [item for item in product.args if item is not node]
    if len(others) == 1 and dtype_of(others[0]) == dtype_of(node) and list(shape_of(others[0])) == shape:
        assert isinstance(others[0], fx.Node)
        return product, others[0]
    return node, None
