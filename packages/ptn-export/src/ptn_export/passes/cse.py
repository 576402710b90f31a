"""Computes equal things once (common subexpression elimination).

Layers of a model repeat what they share: the same mask, the same positions, the same cast, traced once per layer. Two
calls are equal if operator and arguments are; operators that draw random numbers, write to memory or assert are left
out, as are those outside `aten` and Python arithmetic on sizes, which mean what their library says. Results of the
graph keep nodes of their own.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable
from typing import Any

import torch
from torch import fx

from ptn_export.passes._graph import Context, operands

__all__ = ["run"]

_NOT_PURE = {
    torch.Tag.nondeterministic_seeded,
    # PyTorch gives what is read from data a symbol of its own each time, with ranges of its own.
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
}
_SCALAR_MODULES = ("_operator", "math")


def run(module: fx.GraphModule, context: Context) -> None:
    """Lets the first of several equal calls of `module` stand for all."""
    results = set(module.graph.output_node().all_input_nodes)
    # What is taken out of several results has no node of its own in the file: the call that gives it must stay.
    results |= {source for node in results if node.target is operator.getitem for source in node.all_input_nodes}
    known: dict[Hashable, fx.Node] = {}
    for node in list(module.graph.nodes):
        if node.op != "call_function" or not _is_pure(node.target):
            continue
        first = known.setdefault((node.target, _key(operands(node)), _key(dict(node.kwargs))), node)
        if first is not node and node not in results:
            node.replace_all_uses_with(first)
            module.graph.erase_node(node)
            context.counts["cse"] += 1


def _is_pure(target: Any) -> bool:
    if not isinstance(target, torch._ops.OpOverload):
        return getattr(target, "__module__", "") in _SCALAR_MODULES
    if target.namespace != "aten" or _NOT_PURE & set(target.tags):
        return False
    schema = target._schema
    writes = any(item.alias_info is not None and item.alias_info.is_write for item in schema.arguments)
    return bool(schema.returns) and not writes and "empty" not in target.__name__


def _key(value: Any) -> Hashable:
    """What tells arguments apart: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    if isinstance(value, list | tuple):
        return ("list", *map(_key, value))
    if isinstance(value, dict):
        return ("dict", *((name, _key(value[name])) for name in sorted(value)))
    if isinstance(value, fx.Node):
        return value
    return (type(value).__name__, repr(value))
