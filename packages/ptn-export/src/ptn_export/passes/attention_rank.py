"""Gives query, key and value of every attention four axes.

PyTorch takes attention over any number of batch axes; kernels, upstream's among them, are written for [B, H, T, D].
Operands of two or three axes get axes of size 1 in front, which the result loses again. These views cost nothing.
Operands with five or more axes are left as they are.
"""

from __future__ import annotations

import torch
from torch import fx

from ptn_export.passes._graph import (
    Context,
    argument,
    insert,
    is_call,
    replace,
    shape_of,
)

__all__ = ["run"]

_aten = torch.ops.aten
_RANK = 4


def run(module: fx.GraphModule, context: Context) -> None:
    """Rewrites every attention of `module` with operands of two or three axes."""
    for node in list(module.graph.nodes):
        if not is_call(node, _aten.scaled_dot_product_attention.default):
            continue
        names = ("query", "key", "value", "attn_mask")
        operands = [argument(node, name) for name in names]
        ranks = [len(shape_of(operand)) for operand in operands[:3]]
        if min(ranks) == _RANK or max(ranks) > _RANK:
            continue
        missing = _RANK - max(ranks)
        for i, operand in enumerate(operands):
            # A mask of two axes broadcasts over all others already.
            if operand is not None and (i < 3 or len(shape_of(operand)) > 2):
                for _ in range(_RANK - len(shape_of(operand))):
                    operand = insert(node, _aten.unsqueeze.default, operand, 0)
                operands[i] = operand
        rest = (argument(node, "dropout_p"), argument(node, "is_causal"))
        options = {"scale": argument(node, "scale"), "enable_gqa": argument(node, "enable_gqa")}
        result = insert(node, _aten.scaled_dot_product_attention.default, *operands, *rest, **options)
        if missing:
            result = insert(node, _aten.squeeze.dims, result, list(range(missing)))
        replace(node, result)
        context.counts["attention_rank"] += 1
