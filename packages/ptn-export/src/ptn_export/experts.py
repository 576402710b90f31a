"""Mixtures of experts as `transformers` exports them: products of groups of rows, each with the matrix of its expert.

PyTorch has an operator for that, `aten._grouped_mm`, whose form for tracing takes bfloat16 only. For other types the
library therefore calls an operator of its own, which nobody else knows. Both compute the same, so packages have
PyTorch's. (What a group does not reach is 0 in the one and undefined in the other; engines give 0.)
"""

from __future__ import annotations

import torch
from torch import fx

__all__ = ["name_grouped_products"]


def name_grouped_products(module: fx.GraphModule) -> None:
    """Gives the products of groups their one name, in the graph and in all nested ones."""
    library = getattr(torch.ops.transformers, "grouped_mm_fallback", None)  # there once the library is imported
    if library is None:
        return
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            for node in part.graph.nodes:
                if node.op == "call_function" and node.target is library.default:
                    arguments = dict(zip(("input", "weight", "offs"), node.args, strict=False)) | node.kwargs
                    node.args, node.kwargs = tuple(arguments[name] for name in ("input", "weight", "offs")), {}
                    node.target = torch.ops.aten._grouped_mm.default
