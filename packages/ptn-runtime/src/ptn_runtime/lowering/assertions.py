"""Assertions on sizes: what they check, and which input sizes they are about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ptn_format.graph import IntArg, Node, TensorArg

from ptn_runtime.lowering.arguments import names_read

__all__ = ["ASSERTIONS", "AssertionRule", "Origins"]


@dataclass(frozen=True, slots=True)
class AssertionRule:
    """An assertion operator.

    Attributes:
        parameters: names of the operator's arguments; `assert_msg` is the text, `holds` takes the others.
        holds: whether the condition holds.
    """

    parameters: tuple[str, ...]
    holds: Callable[..., bool]


def _in_range(size: int, min: int | None = None, max: int | None = None) -> bool:  # ATen's names
    return (min is None or size >= min) and (max is None or size <= max)


def _is_true(self: Any) -> bool:
    return bool(self)


ASSERTIONS: Mapping[str, AssertionRule] = {
    "aten._assert_scalar.default": AssertionRule(("self", "assert_msg"), _is_true),
    "aten.sym_constrain_range.default": AssertionRule(("size", "min", "max"), _in_range),
    "aten.sym_constrain_range_for_size.default": AssertionRule(("size", "min", "max"), _in_range),
}
"""Assertions on scalars by canonical name."""


@dataclass(slots=True)
class Origins:
    """Remembers for each scalar which input sizes it is computed from, so that messages can name them."""

    _known: dict[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)

    def add(self, node: Node, op: str, name: str) -> None:
        """Enters the scalar `name`, which `node` computes."""
        if op == "aten.sym_size.int" and len(node.inputs) == 2:
            tensor, dim = node.inputs[0].arg, node.inputs[1].arg
            if isinstance(tensor, TensorArg) and isinstance(dim, IntArg) and dim.ref is None:
                self._known[name] = ((tensor.name, dim.value),)
                return
        self._known[name] = self.of(node)

    def of(self, node: Node) -> tuple[tuple[str, int], ...]:
        """The sizes that the scalar arguments of `node` are computed from: (tensor name, axis)."""
        found: dict[tuple[str, int], None] = {}
        for item in node.inputs:
            for name in names_read(item.arg):
                found.update(dict.fromkeys(self._known.get(name, ())))
        return tuple(found)
