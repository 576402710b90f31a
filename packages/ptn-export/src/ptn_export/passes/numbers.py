"""Puts numbers where the operator's schema allows them.

PyTorch traces `x + 1` as `add.Tensor(x, 1)`, although that overload takes tensors only. The `Scalar` overload says the
same with the same rounding and type promotion; where there is none, the number becomes a 0-d tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

__all__ = ["run"]

_aten = torch.ops.aten
_SCALAR_OVERLOADS = {
    _aten.add.Tensor: _aten.add.Scalar,
    _aten.bitwise_and.Tensor: _aten.bitwise_and.Scalar,
    _aten.bitwise_or.Tensor: _aten.bitwise_or.Scalar,
    _aten.bitwise_xor.Tensor: _aten.bitwise_xor.Scalar,
    _aten.div.Tensor: _aten.div.Scalar,
    _aten.div.Tensor_mode: _aten.div.Scalar_mode,
    _aten.eq.Tensor: _aten.eq.Scalar,
    _aten.fmod.Tensor: _aten.fmod.Scalar,
    _aten.ge.Tensor: _aten.ge.Scalar,
    _aten.gt.Tensor: _aten.gt.Scalar,
    _aten.le.Tensor: _aten.le.Scalar,
    _aten.lt.Tensor: _aten.lt.Scalar,
    _aten.mul.Tensor: _aten.mul.Scalar,
    _aten.ne.Tensor: _aten.ne.Scalar,
    _aten.pow.Tensor_Tensor: _aten.pow.Tensor_Scalar,
    _aten.remainder.Tensor: _aten.remainder.Scalar,
    _aten.sub.Tensor: _aten.sub.Scalar,
}
_SWAPPED = {
    # op(number, tensor) in terms of op'(tensor, number)
    _aten.bitwise_and.Tensor: _aten.bitwise_and.Scalar,
    _aten.bitwise_or.Tensor: _aten.bitwise_or.Scalar,
    _aten.bitwise_xor.Tensor: _aten.bitwise_xor.Scalar,
    _aten.eq.Tensor: _aten.eq.Scalar,
    _aten.ge.Tensor: _aten.le.Scalar,
    _aten.gt.Tensor: _aten.lt.Scalar,
    _aten.le.Tensor: _aten.ge.Scalar,
    _aten.lt.Tensor: _aten.gt.Scalar,
    _aten.mul.Tensor: _aten.mul.Scalar,
    _aten.ne.Tensor: _aten.ne.Scalar,
    _aten.sub.Tensor: _aten.rsub.Scalar,
}


def run(module: fx.GraphModule) -> None:
    """Rewrites every call of `module` that has a number in the place of a tensor."""
    for node in list(module.graph.nodes):
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            _rewrite(module.graph, node)


def _rewrite(graph: fx.Graph, node: fx.Node) -> None:
    places = _numbers_for_tensors(node)
    if not places:
        return
    if places == [1] and node.target in _SCALAR_OVERLOADS:
        node.target = _SCALAR_OVERLOADS[node.target]
        return
    if places == [0] and node.target in _SWAPPED:
        node.target, node.args = _SWAPPED[node.target], (node.args[1], node.args[0], *node.args[2:])
        return
    if places == [0] and node.target is _aten.add.Tensor and len(node.args) == 2 and not node.kwargs:
        node.target, node.args = _aten.add.Scalar, (node.args[1], node.args[0])
        return
    arguments = list(node.args)
    for place in places:
        arguments[place] = _as_tensor(graph, node, arguments[place])
    node.args = tuple(arguments)


def _numbers_for_tensors(node: fx.Node) -> list[int]:
    """Positions of the arguments that are (symbolic) numbers but should be tensors."""
    assert isinstance(node.target, torch._ops.OpOverload)
    schema = node.target._schema.arguments
    return [
        i
        for i, (formal, actual) in enumerate(zip(schema, node.args, strict=False))
        if str(formal.type) in ("Tensor", "Optional[Tensor]") and _is_number(actual)
    ]


def _is_number(argument: Any) -> bool:
    value = argument.meta.get("val") if isinstance(argument, fx.Node) else argument
    return isinstance(value, int | float | torch.SymInt | torch.SymFloat | torch.SymBool)


def _as_tensor(graph: fx.Graph, node: fx.Node, number: Any) -> fx.Node:
    """A 0-d tensor of `number` that promotes as the number itself does in the call `node`."""
    value = number.meta["val"] if isinstance(number, fx.Node) else number
    tensors = [arg.meta["val"] for arg in node.all_input_nodes if isinstance(arg.meta.get("val"), torch.Tensor)]
    common = _common_dtype(tensors)
    if isinstance(value, bool | torch.SymBool):
        dtype = torch.bool
    elif isinstance(value, int | torch.SymInt):
        dtype = torch.int64
    else:
        dtype = torch.float64 if common is torch.float64 else torch.get_default_dtype()
    if common is not None and all(tensor.dim() == 0 for tensor in tensors):
        # Among 0-d tensors a plain number yields to the tensors of its own or a higher category.
        promoted = torch.result_type(torch.empty((), dtype=common), _plain(value))
        dtype = common if promoted == common else dtype
    with graph.inserting_before(node):
        tensor = graph.call_function(_aten.scalar_tensor.default, (number,), {"dtype": dtype})
    tensor.meta = {"val": torch.empty((), dtype=dtype, device="meta"), "stack_trace": node.meta.get("stack_trace")}
    return tensor


def _common_dtype(tensors: Sequence[torch.Tensor]) -> torch.dtype | None:
    """The type that `tensors` promote to."""
    common = None
    for tensor in tensors:
        common = tensor.dtype if common is None else torch.promote_types(common, tensor.dtype)
    return common


def _plain(value: Any) -> bool | int | float:
    """A number of the same Python type."""
    if isinstance(value, bool | torch.SymBool):
        return True
    return 1 if isinstance(value, int | torch.SymInt) else 1.0
