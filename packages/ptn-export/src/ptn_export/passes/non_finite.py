"""Stores infinities and NaN as constants instead of writing them as literals.

Masks are filled with -inf, as a rule by `scalar_tensor` or `full`. The file can hold such a literal, but executorch's
reader (1.5.1) cannot: it goes through JSON, which has no word for it. A constant of one element says the same to every
reader and costs an engine nothing. Literals of other operators, and those in nested graphs, which have no constants of
their own, stay as they are.
"""

from __future__ import annotations

import math

import torch
from torch import fx

from ptn_export.passes._graph import Context, argument, dtype_of, insert_like, is_call, replace

__all__ = ["run"]

_aten = torch.ops.aten
_LITERAL = {_aten.full.default: "fill_value", _aten.scalar_tensor.default: "s"}


def run(module: fx.GraphModule, context: Context) -> None:
    """Rewrites the fills of `module` that are not finite."""
    if module is not context.program.graph_module:
        return
    for node in list(module.graph.nodes):
        dtype = dtype_of(node)
        if not is_call(node, *_LITERAL) or dtype is None:
            continue
        value = argument(node, _LITERAL[node.target])
        if not isinstance(value, float) or math.isfinite(value):
            continue
        constant = context.add_constant(torch.tensor(value, dtype=dtype), "literal")
        size = argument(node, "size") if node.target is _aten.full.default else ()
        replace(node, insert_like(node, _aten.expand.default, constant, list(size)) if size else constant)
