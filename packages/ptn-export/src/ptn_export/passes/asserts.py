"""Drops run-time assertions that the declared ranges already imply, and range hints.

An assertion on sizes of inputs is checked by the runtime through the shape range of each input. One on a number
that comes out of tensor data (`item()`) carries information: it stays.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch import fx
from torch.utils._sympy.symbol import SymT, symbol_is_type

from ptn_export.dims import Ranges, expression_of, is_static_true

__all__ = ["run"]

_aten = torch.ops.aten
_HINTS = frozenset(
    {
        _aten._assert_tensor_metadata.default,  # element types are static in a package
        _aten.sym_constrain_range.default,
        _aten.sym_constrain_range_for_size.default,
    }
)


def run(module: fx.GraphModule, ranges: Ranges) -> None:
    """Removes from `module` what need not be checked while it runs."""
    from_data = _symbols_from_data(module)
    for node in list(module.graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in _HINTS or (node.target is _aten._assert_scalar.default and _implied(node, from_data, ranges)):
            module.graph.erase_node(node)


def _symbols_from_data(module: fx.GraphModule) -> set[Any]:
    """Symbols that stand for numbers read from tensors."""
    symbols: set[Any] = set()
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target in (_aten._local_scalar_dense.default, _aten.item.default):
            expression = expression_of(node.meta.get("val"))
            symbols |= expression.free_symbols if expression is not None else set()
    return symbols


def _implied(node: fx.Node, from_data: set[Any], ranges: Ranges) -> bool:
    """Whether an `_assert_scalar` always holds."""
    condition = node.args[0]
    value = condition.meta.get("val") if isinstance(condition, fx.Node) else condition
    expression = expression_of(value)
    if expression is None:
        return bool(value)
    if expression.free_symbols & from_data:
        return False
    # A size that only the data decides is a range of its own: all that is known of it was asserted, bar its sign.
    unbacked = {symbol for symbol in expression.free_symbols if symbol_is_type(symbol, SymT.UNBACKED_INT)}
    known: dict[Any, Any] = {symbol: bounds for symbol, bounds in ranges.items() if symbol not in unbacked}
    known.update({symbol: _any_size() for symbol in unbacked})
    return is_static_true(value, known)


def _any_size() -> Any:
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.value_ranges import ValueRanges

    return ValueRanges(sympy.Integer(0), int_oo)
