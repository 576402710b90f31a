"""Replaces `out_dtype` by a call on operands of the wanted element type.

PyTorch writes a product of int8 tensors that is summed in int32 as a higher-order operator around `mm`; quantised
models hold it where they state how integers are computed (PT2E's reference representation, for example). The same
operator on operands that are converted first gives the same integers and is one that every engine knows.
"""

from __future__ import annotations

import torch
from torch import fx

from ptn_export.passes._graph import dtype_of, insert, insert_like, is_call, replace

__all__ = ["run"]


def run(module: fx.GraphModule) -> None:
    """Rewrites every `out_dtype` of `module`."""
    for node in list(module.graph.nodes):
        if is_call(node, torch.ops.higher_order.out_dtype):
            target, dtype, *operands = node.args
            replace(node, insert_like(node, target, *(_converted(node, operand, dtype) for operand in operands)))


def _converted(before: fx.Node, operand: fx.node.Argument, dtype: torch.dtype) -> fx.node.Argument:
    if not isinstance(operand, fx.Node) or dtype_of(operand) in (None, dtype):
        return operand
    return insert(before, torch.ops.aten._to_copy.default, operand, dtype=dtype)
