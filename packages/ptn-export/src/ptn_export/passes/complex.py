"""Rewrites complex numbers to real arithmetic.

The format has no complex element types, as few engines have them; models use them for rotary embeddings and between
Fourier transforms. So every complex tensor becomes a pair of real ones, or one real tensor with a last axis of 2, which
is what `view_as_real` shows, whichever its readers need. Arithmetic on parts is elementwise and fuses like any other;
what only moves elements does so to both. Complex weights and buffers are stored as real ones with a last axis of 2,
under their own names. Fourier transforms stay operators (`aten._fft_*`), between `view_as_complex` and `view_as_real`.
Complex inputs and results of the model are refused, as is every operator without a rule, all at once.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from ptn_export.passes._complex_rules import PARTWISE, RULES
from ptn_export.passes._complex_values import REAL_TYPES, Complex, NoRealFormError, Writer, as_real_value
from ptn_export.passes._graph import is_call, operands, shape_of, tensor_of

if TYPE_CHECKING:
    from ptn_export.bodies import Problems
    from ptn_export.capture import Captured

__all__ = ["run"]

_aten = torch.ops.aten
_HINT = "write the computation in real numbers: keep real and imaginary parts as separate tensors"


def run(captured: Captured, bodies: Iterable[fx.GraphModule], problems: Problems) -> None:
    """Rewrites all graphs of a program.

    Args:
        captured: a decomposed program of one's own; its graphs and constants change.
        bodies: its graph and every graph nested in it.
        problems: takes what cannot be rewritten. The graphs can still be serialised, to find more problems.
    """
    bodies = list(bodies)
    if not any(_is_complex(node.meta.get("val")) for body in bodies for node in body.graph.nodes):
        return
    _check_signature(captured, problems)
    for body in bodies:
        _Rewriter(body, problems).run()


def _is_complex(value: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) and leaf.dtype.is_complex for leaf in pytree.tree_leaves(value))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check_signature(captured: Captured, problems: Problems) -> None:
    """Stores complex constants as real ones, and refuses complex inputs and results of the model."""
    program = captured.program
    nodes = {node.name: node for node in program.graph.nodes}
    state, constants = dict(program.state_dict), dict(program.constants)
    for spec in program.graph_signature.input_specs:
        value = tensor_of(nodes.get(spec.arg.name))
        if value is None or not value.dtype.is_complex:
            continue
        if spec.kind is InputKind.USER_INPUT:
            problems.add(
                "input",
                f"it is {_name(value.dtype)}, and the format has no complex element types",
                "pass `torch.view_as_real(x)`, and begin the model with `torch.view_as_complex`",
                place=f"'{spec.arg.name}'",
            )
        elif spec.target:
            for holder in (state, constants):
                if isinstance(holder.get(spec.target), torch.Tensor):
                    holder[spec.target] = _stored(holder[spec.target])
    program._state_dict, program._constants = state, constants
    for spec in program.graph_signature.output_specs:
        value = tensor_of(nodes.get(getattr(spec.arg, "name", "")))
        if value is not None and value.dtype.is_complex and spec.kind is OutputKind.USER_OUTPUT:
            problems.add(
                "output",
                f"it is {_name(value.dtype)}, and the format has no complex element types",
                "return `torch.view_as_real(z)`, or `z.real` and `z.imag`",
                nodes[spec.arg.name],
            )


def _stored(data: torch.Tensor) -> torch.Tensor:
    """The real tensor with a last axis of 2, in the same memory where that is possible."""
    is_plain = type(data) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) and data.layout is torch.strided
    if data.is_meta or not is_plain or data.dtype not in REAL_TYPES:
        return data  # refused as any other constant of its kind
    return torch.view_as_real(data.detach().resolve_conj())


class _Rewriter:
    """Rewrites one graph."""

    def __init__(self, module: fx.GraphModule, problems: Problems) -> None:
        self._module = module
        self._problems = problems
        self._values: dict[fx.Node, Complex] = {}
        self._lists: dict[fx.Node, tuple[fx.Node, fx.Node]] = {}
        self._replaced: set[fx.Node] = set()

    def run(self) -> None:
        for node in list(self._module.graph.nodes):
            if node in self._replaced:
                continue
            if node.op in ("placeholder", "get_attr"):
                self._adopt(node)
            elif node.op == "output":
                node.args = self._joint(node, node.args)
            elif self._is_concerned(node):
                self._call(node)
        for node in reversed(list(self._module.graph.nodes)):
            if node in self._replaced:
                self._module.graph.erase_node(node)

    def _is_concerned(self, node: fx.Node) -> bool:
        known = any(item in self._values or item in self._lists for item in node.all_input_nodes)
        return known or _is_complex(node.meta.get("val"))

    def _adopt(self, node: fx.Node) -> None:
        """Takes a node as what gives the joint form of its complex results."""
        value = node.meta.get("val")
        if _is_complex(value):
            node.meta["val"] = as_real_value(value)
            if isinstance(value, torch.Tensor):
                self._values[node] = Complex(value.dtype.to_real(), joint=node)

    def _joint(self, node: fx.Node, items: Any) -> Any:
        """Arguments of a node with complex tensors in their joint form."""
        return fx.map_arg(
            items,
            lambda item: (
                Writer(node, self._values[item].dtype).joint(self._values[item]) if item in self._values else item
            ),
        )

    # Calls

    def _call(self, node: fx.Node) -> None:
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            node.args, node.kwargs = self._joint(node, node.args), self._joint(node, node.kwargs)
            self._adopt(node)
        elif node.target is operator.getitem:
            self._element(node)
        elif is_call(node, _aten._assert_tensor_metadata.default):
            self._replaced.add(node)
        else:
            try:
                result = self._rewritten(node)
            except NoRealFormError as error:
                self._refuse(node, str(error))
            else:
                self._replace(node, result)

    def _element(self, node: fx.Node) -> None:
        """One of several results."""
        source, index = operands(node)
        if source in self._lists:
            writer = Writer(node, self._dtype(node))
            value = tensor_of(node)
            assert value is not None
            part = value.new_empty(value.shape, dtype=writer.dtype)
            first, second = (writer.place(part, operator.getitem, item, index) for item in self._lists[source])
            self._replace(node, Complex(writer.dtype, (first, second)))
        else:
            self._adopt(node)

    def _replace(self, node: fx.Node, result: Complex | fx.Node | tuple[fx.Node, fx.Node]) -> None:
        if isinstance(result, Complex):
            self._values[node] = result
        elif isinstance(result, tuple):
            self._lists[node] = result
        else:
            node.replace_all_uses_with(result)
        self._replaced.add(node)

    def _refuse(self, node: fx.Node, reason: str) -> None:
        """Notes a problem, and lets a real tensor stand for the result, so that later calls can be looked at."""
        self._problems.add(str(node.target), reason, _HINT, node)
        node.target, node.args, node.kwargs = _aten.empty.memory_format, ([],), {}  # which no pass evaluates
        self._adopt(node)

    def _dtype(self, node: fx.Node) -> torch.dtype:
        """Element type of the parts of the result, else of the first complex operand."""
        value = node.meta.get("val")
        leaves = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        for leaf in leaves:
            if leaf.dtype.is_complex:
                if leaf.dtype not in REAL_TYPES:
                    raise NoRealFormError(
                        f"the format has no element type {_name(leaf.dtype)}; complex64 can be rewritten"
                    )
                return REAL_TYPES[leaf.dtype]
        for item in node.all_input_nodes:
            if item in self._values:
                return self._values[item].dtype
        raise AssertionError(f"{node} has nothing complex")

    def _rewritten(self, node: fx.Node) -> Complex | fx.Node | tuple[fx.Node, fx.Node]:
        writer = Writer(node, self._dtype(node))
        target = node.target
        args: Any = pytree.tree_map_only(fx.Node, lambda item: self._values.get(item, item), list(node.args))
        kwargs: Any = pytree.tree_map_only(fx.Node, lambda item: self._values.get(item, item), dict(node.kwargs))
        if is_call(node, _aten.view_as_real.default):
            self._take_parts(writer, args[0])
        if target in _MOVES and not kwargs and isinstance(args[0], Complex) and args[0].parts is None:
            return self._moved(writer, args[0])
        if target in RULES:
            return RULES[target](writer, *args, **kwargs)
        if target in PARTWISE:
            return self._by_parts(writer, args, kwargs)
        dtype = _name(writer.dtype.to_complex())
        raise NoRealFormError(
            f"the format has no element type {dtype}, and there is no rule for this operator in real numbers"
        )

    def _take_parts(self, writer: Writer, z: Complex) -> None:
        """What takes a part out of the joint form gets the part itself."""
        last = len(shape_of(writer.node)) - 1
        for user in list(writer.node.users):
            if is_call(user, _aten.select.int) and operands(user)[1] in (-1, last):
                user.replace_all_uses_with(writer.nodes(z)[operands(user)[2]])
                self._replaced.add(user)

    def _moved(self, writer: Writer, z: Complex) -> Complex:
        """One call that moves both parts of the joint form."""
        node = writer.node
        assert z.joint is not None
        assert isinstance(node.target, torch._ops.OpOverload)
        rest = _with_last_axis(node, len(shape_of(z.joint)) - 1)
        return Complex(z.dtype, joint=writer.place(as_real_value(node.meta["val"]), node.target, z.joint, *rest))

    def _by_parts(self, writer: Writer, args: Any, kwargs: Any) -> Complex | fx.Node | tuple[fx.Node, fx.Node]:
        """The same call on the real parts, and on the imaginary ones."""
        node = writer.node
        assert isinstance(node.target, torch._ops.OpOverload)
        value = node.meta["val"]
        if not _is_complex(value):  # a real tensor that takes in elements of a complex one
            writer = Writer(node, value.dtype)
        names = [formal.name for formal in node.target._schema.arguments][: len(args)]
        positional = [self._split(writer, name, item) for name, item in zip(names, args, strict=True)]
        keywords = {name: self._split(writer, name, item) for name, item in kwargs.items()}

        def real(leaf: torch.Tensor) -> torch.Tensor:
            return leaf.new_empty(leaf.shape, dtype=writer.dtype) if leaf.dtype.is_complex else leaf

        first, second = (
            writer.place(
                pytree.tree_map_only(torch.Tensor, real, value),
                node.target,
                *(pair[i] for pair in positional),
                **{name: pair[i] for name, pair in keywords.items()},
            )
            for i in (0, 1)
        )
        if isinstance(value, list | tuple):
            return first, second
        return Complex(writer.dtype, (first, second)) if _is_complex(value) else first

    def _split(self, writer: Writer, name: str, value: Any) -> tuple[Any, Any]:
        """What an argument is in the call for real parts, and in the one for imaginary ones."""
        if name not in PARTWISE[writer.node.target]:
            is_type = isinstance(value, torch.dtype) and value.is_complex
            return (writer.dtype, writer.dtype) if is_type else (value, value)
        if isinstance(value, list | tuple):
            pairs = [writer.nodes(item) for item in value]
            return [first for first, _ in pairs], [second for _, second in pairs]
        if value is None or isinstance(value, bool | int | float | complex):
            number = value or 0.0
            return number.real, number.imag
        return writer.nodes(value)


_TO_SIZES = (_aten._unsafe_view.default, _aten.expand.default, _aten.reshape.default, _aten.view.default)
"""Operators whose second argument is the new shape."""
_BY_AXIS = {_aten.select.int: 1, _aten.slice.Tensor: 1, _aten.transpose.int: 2, _aten.unsqueeze.default: 1}
"""Operators with axes behind the tensor, and how many."""
_BY_AXES = (_aten.permute.default, _aten.squeeze.dims)
_MOVES = frozenset({*_TO_SIZES, *_BY_AXIS, *_BY_AXES, _aten.index.Tensor})
"""Operators that move whole elements, and do the same to pairs of parts."""


def _with_last_axis(node: fx.Node, rank: int) -> tuple[Any, ...]:
    """The arguments of an operator of `_MOVES` behind its tensor, which has one axis more that shall stay the last."""
    rest: list[Any] = list(operands(node)[1:])
    if node.target in _TO_SIZES:
        rest[0] = [*rest[0], 2]
    elif node.target in _BY_AXES:
        rest[0] = [axis % rank for axis in rest[0]] + ([rank] if node.target is _aten.permute.default else [])
    elif node.target in _BY_AXIS:
        count = rank + 1 if node.target is _aten.unsqueeze.default else rank
        for i in range(_BY_AXIS[node.target]):
            rest[i] %= count
    return tuple(rest)
