"""Complex tensors, which the format has no element type for.

A complex tensor is a real one with one axis more, the last, whose two elements are the real and the imaginary part;
the file's entry for it, where there is one, describes that real tensor. So `view_as_real` and `view_as_complex` change
nothing, and operators that move whole elements along axes do the same to pairs. All others would take the parts for
elements: a node that gives them a complex tensor is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ptn_format.graph import Argument, IntArg, IntListArg, NamedArgument, Node, TensorArg

from ptn_runtime.lowering.arguments import BindError, names_read
from ptn_runtime.lowering.names import NO_OPS

__all__ = ["ComplexValues"]

_RESULTS = frozenset({"aten._fft_c2c.default", "aten._fft_r2c.default", "aten.view_as_complex.default"})
"""Operators that give complex tensors."""

_ARGUMENTS = frozenset({"aten._fft_c2c.default", "aten._fft_c2r.default", "aten.view_as_real.default"})
"""Operators whose first argument is a complex tensor."""

_MOVES: Mapping[str, tuple[str, ...]] = {
    "aten.alias.default": ("self",),
    "aten.clone.default": ("self",),
    "aten.detach.default": ("self",),
    "aten.permute.default": ("self", "dims"),
    "aten.select.int": ("self", "dim"),
    "aten.slice.Tensor": ("self", "dim"),
    "aten.squeeze.dim": ("self", "dim"),
    "aten.transpose.int": ("self", "dim0", "dim1"),
    "aten.unsqueeze.default": ("self", "dim"),
}
"""Operators that move whole elements: the tensor, and the parameters after it, which name axes."""


class ComplexValues:
    """The complex tensors of one graph body."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def refuse(self, name: str) -> None:
        """Raises `BindError` where a complex tensor is a result of its graph, or stands for a number."""
        if name in self._names:
            raise BindError(f"takes '{name}', which is complex: the format has no such element type; use view_as_real")

    def rewritten(self, node: Node) -> Node:
        """The node as it is on the real tensors in place of complex ones; notes which of its results are complex.

        Raises:
            BindError: it has no such form.
        """
        base, _, overload = (node.target or "").removeprefix("torch.ops.").rpartition(".")
        op = f"{base.removesuffix('_copy')}.{overload}"
        read = [name for item in node.inputs for name in names_read(item.arg) if name in self._names]
        if op in _ARGUMENTS:
            first = node.inputs[0].arg if node.inputs else None
            if not isinstance(first, TensorArg) or first.name not in self._names:
                raise BindError("takes a complex tensor, got a real one")
        elif read and op not in NO_OPS:
            if op not in _MOVES:
                raise BindError(f"has no form for complex tensors such as '{read[0]}'; compute on view_as_real of it")
            node = replace(node, inputs=tuple(_moved(op, index, item) for index, item in enumerate(node.inputs)))
        if op in _RESULTS or (read and op in _MOVES):
            self._names.update(output.name for output in node.outputs)
        return node


def _moved(op: str, index: int, item: NamedArgument) -> NamedArgument:
    """An argument of an operator in `_MOVES` as it is with the axis of parts behind the others."""
    parameters = _MOVES[op]
    name = item.name or (parameters[index] if index < len(parameters) else "")
    return replace(item, arg=_before_parts(item.arg)) if name in parameters[1:] else item


def _before_parts(argument: Argument) -> Argument:
    """Axis numbers that count from the end skip the axis of parts, which stays the last one."""
    match argument:
        case IntArg(value=axis, ref=None):
            return IntArg(axis if axis >= 0 else axis - 1)
        case IntListArg(values=axes) if not argument.refs:
            return IntListArg((*(axis if axis >= 0 else axis - 1 for axis in axes), -1))
        case _:
            raise BindError("names axes of a complex tensor by values that are not in the file")
