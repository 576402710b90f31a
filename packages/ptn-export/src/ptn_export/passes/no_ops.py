"""Drops operators that change nothing under functional semantics.

These are copies, aliases, views to the same shape, and factors of 1.
"""

from __future__ import annotations

import torch
from torch import fx

from ptn_export.dims import same_size

__all__ = ["run"]

_aten = torch.ops.aten
# The graph is functional and has no memory layout, so a copy is its source.
_COPIES = frozenset(
    {
        _aten.alias.default,
        _aten.clone.default,
        _aten.contiguous.default,
        _aten.detach.default,
        _aten.lift.default,
        _aten.lift_fresh.default,
        _aten.lift_fresh_copy.default,
    }
)
# These keep the values where element type and shape stay the same.
_RESHAPES = frozenset(
    {
        _aten._to_copy.default,
        _aten._unsafe_view.default,
        _aten.expand.default,
        _aten.reshape.default,
        _aten.squeeze.dims,
        _aten.slice.Tensor,
        _aten.view.default,
    }
)
# These keep the values where the number is 1 and the element type stays the same.
_FACTORS = frozenset({_aten.mul.Scalar, _aten.div.Scalar, _aten.pow.Tensor_Scalar})


def run(module: fx.GraphModule) -> None:
    """Replaces every no-op of `module` by its operand."""
    for node in list(module.graph.nodes):
        if node.op != "call_function" or not (node.target in _COPIES or node.target in _RESHAPES or _is_factor_1(node)):
            continue
        source = node.args[0]
        if isinstance(source, fx.Node) and (node.target in _COPIES or _same_type(node, source)):
            node.replace_all_uses_with(source)
            module.graph.erase_node(node)


def _is_factor_1(node: fx.Node) -> bool:
    return node.target in _FACTORS and isinstance(node.args[1], int | float) and node.args[1] == 1


def _same_type(node: fx.Node, source: fx.Node) -> bool:
    """Whether both are tensors of one element type and provably one shape."""
    a, b = node.meta.get("val"), source.meta.get("val")
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    return a.dtype == b.dtype and a.dim() == b.dim() and all(map(same_size, a.shape, b.shape))
