"""Evaluates what depends on constants only.

Masks, positions, scaled weights and tables that a model computes from its parameters, or from nothing, are the same
in every call. They are computed once, in PyTorch, and stored. So that packages do not grow, a result made from
constants is stored only if it is no larger than they are, and one made from nothing up to 64 KiB; nothing above 1 MiB
is evaluated. A single `full` or `arange` is cheaper to run than to store. Quantised weights stay quantised: their
expansion is larger than they are. Folded constants get keys of their own. Results of the graph are not folded.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from ptn_export.passes._graph import Context, is_call, operand, operands, replace, tensor_of

__all__ = ["run"]

_aten = torch.ops.aten
_LARGEST = 1 << 20
_LARGEST_FROM_NOTHING = 64 << 10
_MAKERS = frozenset(
    {
        _aten.arange.default,
        _aten.arange.start,
        _aten.arange.start_step,
        _aten.eye.default,
        _aten.full.default,
        _aten.ones.default,
        _aten.scalar_tensor.default,
        _aten.zeros.default,
    }
)
_VIEWS = frozenset(
    {
        _aten.expand.default,
        _aten.permute.default,
        _aten.select.int,
        _aten.slice.Tensor,
        _aten.squeeze.dims,
        _aten.unsqueeze.default,
        _aten.view.default,
    }
)


def run(module: fx.GraphModule, context: Context) -> None:
    """Stores the results of constant subgraphs of `module`, which must be the method's own graph."""
    if module is not context.program.graph_module:
        return  # nested graphs have no constants of their own
    values: dict[fx.Node, torch.Tensor] = {}
    sources: dict[fx.Node, frozenset[fx.Node]] = {}
    for node in list(module.graph.nodes):
        data = context.constant(node)
        if data is not None:
            values[node], sources[node] = data.detach(), frozenset([node])
        elif _is_foldable(node, values):
            values[node] = _evaluate(node, values)
            sources[node] = frozenset().union(*(sources[item] for item in node.all_input_nodes))
    for node in list(values):
        users = list(node.users)
        needed = node.op == "call_function" and any(user not in values for user in users)
        needed = needed and not any(user.op == "output" for user in users)
        if needed and not _is_plain(node) and _is_small(values[node], [values[item] for item in sources[node]]):
            names = sorted(context.key(item) for item in sources[node])
            replace(node, context.add_constant(values[node], names[0] if names else node.name, names))
            context.counts["fold"] += 1


def _is_foldable(node: fx.Node, values: dict[fx.Node, torch.Tensor]) -> bool:
    """Whether a call has one small result that only constants decide."""
    target, result = node.target, tensor_of(node)
    if node.op != "call_function" or result is None or not isinstance(target, torch._ops.OpOverload):
        return False
    if result.dtype.is_complex:  # between Fourier transforms: the file has no such constants
        return False
    if target.namespace != "aten" or torch.Tag.nondeterministic_seeded in target.tags or "empty" in target.__name__:
        return False
    if not all(item in values for item in node.all_input_nodes):
        return False
    return all(isinstance(size, int) for size in result.shape) and result.numel() * result.element_size() <= _LARGEST


def _evaluate(node: fx.Node, values: dict[fx.Node, torch.Tensor]) -> torch.Tensor:
    arguments, options = pytree.tree_map_only(fx.Node, values.__getitem__, (list(operands(node)), dict(node.kwargs)))
    target: Any = node.target
    # The graph drops copies, so that views of it may have no counterpart in memory.
    target = _aten.reshape.default if target is _aten.view.default else target
    with torch.no_grad():
        result: torch.Tensor = target(*arguments, **options)
    return result


def _is_plain(node: fx.Node) -> bool:
    """Whether the node is but a view of a constant, or of what one operator makes from nothing."""
    while is_call(node, *_VIEWS):
        node = operand(node, 0)
    return node.op == "placeholder" or is_call(node, *_MAKERS)


def _is_small(result: torch.Tensor, sources: list[torch.Tensor]) -> bool:
    limit = sum(item.numel() * item.element_size() for item in sources) if sources else _LARGEST_FROM_NOTHING
    return result.numel() * result.element_size() <= limit
