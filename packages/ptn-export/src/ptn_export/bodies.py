"""From the nodes of one fx graph to the nodes of one file graph: a method's body, a branch, a loop body."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from ptn_format.dtypes import ScalarType
from ptn_format.graph import (
    Argument,
    Graph,
    GraphArg,
    IntArg,
    NamedArgument,
    Node,
    NoneArg,
    OpKind,
    Output,
    OutputValueKind,
    TensorArg,
    TensorMeta,
)
from ptn_format.signature import SOURCE_KEY
from torch import fx

from ptn_export.arguments import ArgumentError, encode, encode_call
from ptn_export.dims import Ranges, number_range, tensor_meta
from ptn_export.errors import Problem
from ptn_export.source import module_of, place_of, source_of

__all__ = ["Body", "Problems"]

NUMBER_TYPES = {
    OutputValueKind.INT: ScalarType.LONG,
    OutputValueKind.FLOAT: ScalarType.DOUBLE,
    OutputValueKind.BOOL: ScalarType.BOOL,
}
"""The element types of inputs that are numbers."""

_ITEM = "torch.ops.aten._local_scalar_dense.default"
_RANGE = "torch.ops.aten.sym_constrain_range.default"
_SCALAR_MODULES = ("_operator", "builtins", "math", "torch")
_HIGHER_ORDER = ("cond", "map_impl", "scan", "while_loop")


@dataclass
class Problems:
    """Collects what is wrong with one method.

    Attributes:
        method: the method's name.
        found: the problems so far.
        cause: the exception behind one of them, if any.
        source_lines: whether nodes shall carry the user's lines and modules into the package.
    """

    method: str
    found: list[Problem] = field(default_factory=list)
    cause: Exception | None = None
    source_lines: bool = True

    def add(self, subject: str, reason: str, hint: str, node: fx.Node | None = None, place: str = "") -> None:
        """Notes one problem, with the user's line where `node` knows it."""
        source, module = (source_of(node), module_of(node)) if node is not None else (None, None)
        name = place or (f"node '{node.name}'" if node is not None else "")
        self.found.append(Problem(subject, reason, hint, self.method, name, source, module))


class Body:
    """Serialises one fx graph. Problems are collected, so that one run finds them all.

    Attributes:
        nodes: the file's nodes so far.
        tensor_values: type and shape of every tensor value so far.
    """

    def __init__(self, module: fx.GraphModule, ranges: Ranges, problems: Problems) -> None:
        self._module = module
        self._ranges = ranges
        self._problems = problems
        self._taken = {node.name for node in module.graph.nodes}
        self._names: dict[fx.Node, str] = {}
        self._elements: dict[fx.Node, tuple[str, ...]] = {}
        self._numbers: list[fx.Node] = []
        self._without_type: set[fx.Node] = set()
        self.nodes: list[Node] = []
        self.tensor_values: dict[str, TensorMeta] = {}

    def name_of(self, node: fx.Node) -> str:
        """The SSA name of a value.

        Raises:
            ArgumentError: the node is not a single value of this graph.
        """
        if node in self._names:
            return self._names[node]
        if node.op == "get_attr":
            raise ArgumentError(f"'{node.target}' is an attribute that was not lifted to an input")
        raise ArgumentError(f"'{node.name}' is not a single value")

    def placeholder(self, node: fx.Node, metadata: dict[str, str] | None = None, *, constant: bool = False) -> None:
        """Adds an input of the graph.

        Args:
            node: an fx placeholder.
            metadata: the file's metadata of the node.
            constant: the value is bound to a constant, which keeps its meta elsewhere.
        """
        self._names[node] = node.name
        kind = self._kind(node, node.meta.get("val"))
        if not constant:
            self._describe(node, node.name, node.meta.get("val"))
        self.nodes.append(
            Node(node.name, OpKind.PLACEHOLDER, outputs=(Output(node.name, kind),), metadata=metadata or {})
        )

    def number(self, node: fx.Node, metadata: dict[str, str] | None = None) -> None:
        """Adds an input that is a number: a tensor of no axes, whose item the graph reads, within its declared range.

        Args:
            node: an fx placeholder of a symbolic number.
            metadata: the file's metadata of the placeholder.
        """
        kind = self._kind(node, node.meta.get("val"))
        self.nodes.append(Node(node.name, OpKind.PLACEHOLDER, outputs=(Output(node.name),), metadata=metadata or {}))
        self.tensor_values[node.name] = TensorMeta(NUMBER_TYPES[kind], ())
        self._names[node] = self._fresh(f"{node.name}_item")
        self._numbers.append(node)

    def _items(self) -> None:
        """Adds the calls that read inputs which are numbers, and check their ranges."""
        for node in self._numbers:
            value, name = node.meta.get("val"), self._names[node]
            item = (NamedArgument("self", TensorArg(node.name)),)
            output = (Output(name, self._kind(node, value)),)
            self.nodes.append(Node(name, OpKind.CALL_FUNCTION, _ITEM, item, output))
            low, high = number_range(value, self._ranges) if isinstance(value, torch.SymInt) else (None, None)
            if low is None and high is None:
                continue
            arguments = (
                NamedArgument("size", IntArg(ref=name)),
                *(
                    NamedArgument(end, NoneArg() if n is None else IntArg(n))
                    for end, n in (("min", low), ("max", high))
                ),
            )
            self.nodes.append(Node(self._fresh(f"{node.name}_range"), OpKind.CALL_FUNCTION, _RANGE, arguments, ()))

    def calls(self) -> None:
        """Adds every call of the graph in order."""
        self._items()
        for node in self._module.graph.nodes:
            if node.op == "call_function" and not _is_element(node):
                self._call(node)
            elif node.op in ("call_module", "call_method"):
                self._problems.add(
                    f"{node.op} {node.target}",
                    "the graph calls Python code instead of an operator",
                    "export with torch.export.export, which traces modules down to operators",
                    node,
                )

    def output(self, results: Sequence[Any], metadata: dict[str, str] | None = None) -> tuple[str, ...]:
        """Adds the output node.

        Args:
            results: nodes and Python values, mutations first.
            metadata: the file's metadata of the node.

        Returns:
            The names of the tensors among the results.
        """
        arguments: list[NamedArgument] = []
        for i, result in enumerate(results):
            argument = self._encode(result, f"result {i}")
            if argument is not None:
                arguments.append(NamedArgument(None, argument))
        self.nodes.append(Node("output", OpKind.OUTPUT, inputs=tuple(arguments), metadata=metadata or {}))
        return tuple(item.arg.name for item in arguments if isinstance(item.arg, TensorArg))

    def graph(self, inputs: Sequence[str], outputs: Sequence[str]) -> Graph:
        """The finished graph."""
        return Graph(tuple(self.nodes), tuple(inputs), tuple(outputs), self.tensor_values)

    # Calls

    def _call(self, node: fx.Node) -> None:
        """Adds one call, or a problem that says why it cannot be held."""
        target = node.target
        subject = str(target) if isinstance(target, torch._ops.OperatorBase) else _callable_name(target)
        outputs = self._outputs(node)
        try:
            if isinstance(target, torch._ops.OpOverload):
                overload = _view_copy(target)
                inputs = encode_call(node, self.name_of)
                outputs = _with_alias(overload, inputs, outputs)
                self._append(node, f"torch.ops.{overload}", inputs, outputs)
            elif isinstance(target, torch._ops.HigherOrderOperator):
                self._higher_order(node, target, outputs)
            elif callable(target) and subject.rpartition(".")[0] in _SCALAR_MODULES:
                self._append(node, subject, self._plain_arguments(node), outputs)
            else:
                self._problems.add(
                    subject,
                    "it is neither an operator nor arithmetic on sizes",
                    "wrap the function as a custom operator (torch.library.custom_op), or write it in operators",
                    node,
                )
        except ArgumentError as error:
            if not ("element type" in str(error) and node in self._without_type):  # said of its result already
                self._problems.add(subject, str(error), _argument_hint(str(error)), node)

    def _append(
        self, node: fx.Node, target: str, inputs: tuple[NamedArgument, ...], outputs: tuple[Output, ...]
    ) -> None:
        source = place_of(node) if self._problems.source_lines else None
        metadata = {SOURCE_KEY: source} if source else {}
        self.nodes.append(Node(node.name, OpKind.CALL_FUNCTION, target, inputs, outputs, metadata))

    def _plain_arguments(self, node: fx.Node) -> tuple[NamedArgument, ...]:
        """Arguments of a Python function: positional ones have no name."""
        positional = [NamedArgument(None, encode(value, self.name_of)) for value in node.args]
        return (*positional, *(NamedArgument(key, encode(value, self.name_of)) for key, value in node.kwargs.items()))

    def _higher_order(self, node: fx.Node, target: torch._ops.HigherOrderOperator, outputs: tuple[Output, ...]) -> None:
        name = str(target)
        if name.startswith("auto_functionalized"):
            self._problems.add(
                str(node.args[0]),
                "the custom operator changes its arguments, which no operator of a package does",
                "declare it with mutates_args=() and let it return the result",
                node,
            )
            return
        if name == "with_effects":  # its arguments: an ordering token, the operator, the operator's own arguments
            self._problems.add(
                str(node.args[1]),
                "the operator has side effects (it prints, logs, or changes something outside of the graph), "
                "which a package does not have",
                "leave the call out where the model is exported: `if not torch.compiler.is_exporting(): ...`",
                node,
            )
            return
        if name not in _HIGHER_ORDER:
            self._problems.add(
                f"higher_order.{name}",
                "packages hold cond, map, scan and while_loop of the higher-order operators, but not this one",
                "rewrite the model without it",
                node,
            )
            return
        inputs = [NamedArgument(None, self._graph_or_value(argument)) for argument in node.args]
        self._append(node, f"torch.ops.higher_order.{name}", tuple(inputs), outputs)

    def _graph_or_value(self, argument: Any) -> Argument:
        if isinstance(argument, fx.Node) and argument.op == "get_attr":
            child = getattr(self._module, str(argument.target), None)
            if isinstance(child, fx.GraphModule):
                return GraphArg(str(argument.target), self._nested(child))
        # Operands of a higher-order operator are a list of tensors, even where there are none.
        return encode(argument, self.name_of, "List[Tensor]")

    def _nested(self, child: fx.GraphModule) -> Graph:
        body = Body(child, self._ranges, self._problems)
        placeholders = [node for node in child.graph.nodes if node.op == "placeholder"]
        for node in placeholders:
            body.placeholder(node)
        body.calls()
        results = child.graph.output_node().args[0]
        outputs = body.output(results if isinstance(results, list | tuple) else [results])
        return body.graph([node.name for node in placeholders], outputs)

    # Results

    def _outputs(self, node: fx.Node) -> tuple[Output, ...]:
        """Names and describes the results of a call."""
        value = node.meta.get("val")
        if value is None:
            return ()
        if not isinstance(value, list | tuple):
            self._names[node] = node.name
            self._describe(node, node.name, value)
            return (Output(node.name, self._kind(node, value)),)
        names = self._element_names(node, len(value))
        self._elements[node] = names
        for name, item in zip(names, value, strict=True):
            self._describe(node, name, item)
        if _returns_list(node.target):
            return (Output("", OutputValueKind.TENSOR_LIST, names=names),)
        return tuple(Output(name, self._kind(node, item)) for name, item in zip(names, value, strict=True))

    def _element_names(self, node: fx.Node, count: int) -> tuple[str, ...]:
        """Elements are called as the node that takes them out, else after their producer."""
        names = [""] * count
        for user in node.users:
            if _is_element(user):
                index = int(user.args[1])  # type: ignore[arg-type]  # an index into a list of results
                names[index] = names[index] or user.name
                self._names[user] = names[index]
        return tuple(name or self._fresh(f"{node.name}_out{i}") for i, name in enumerate(names))

    def _fresh(self, name: str) -> str:
        """`name`, changed if the graph has it already."""
        fresh, suffix = name, 0
        while fresh in self._taken:
            suffix += 1
            fresh = f"{name}_{suffix}"
        self._taken.add(fresh)
        return fresh

    def _kind(self, node: fx.Node, value: Any) -> OutputValueKind:
        if isinstance(value, torch.Tensor):
            return OutputValueKind.TENSOR
        if isinstance(value, bool | torch.SymBool):
            return OutputValueKind.BOOL
        if isinstance(value, int | torch.SymInt):
            return OutputValueKind.INT
        if isinstance(value, float | torch.SymFloat):
            return OutputValueKind.FLOAT
        if value is not None:
            self._problems.add(
                str(node.target),
                f"a result is a {type(value).__name__}, which the format cannot hold",
                "keep to tensors and numbers",
                node,
            )
        return OutputValueKind.TENSOR

    def _describe(self, node: fx.Node, name: str, value: Any) -> None:
        """Notes type and shape of a tensor."""
        if not isinstance(value, torch.Tensor):
            return
        if value.layout is not torch.strided:
            self._problems.add(
                str(node.target),
                f"a {str(value.layout).removeprefix('torch.')} tensor, which the format cannot hold",
                "use dense tensors (`.to_dense()`)",
                node,
            )
            return
        try:
            self.tensor_values[name] = tensor_meta(value, self._ranges)
        except KeyError:
            self._without_type.add(node)
            dtype = str(value.dtype).removeprefix("torch.")
            self._problems.add(
                str(node.target),
                f"the format has no element type {dtype}",
                dtype_hint(value.dtype),
                node,
            )

    def _encode(self, result: Any, place: str) -> Argument | None:
        try:
            return encode(result, self.name_of)
        except ArgumentError as error:
            self._problems.add("output", str(error), _argument_hint(str(error)), place=place)
            return None


def dtype_hint(dtype: torch.dtype) -> str:
    """What to do about an element type that the format lacks, in a result of an operator or in a constant."""
    if dtype.is_complex:  # the larger ones are rewritten
        return "convert the tensor to complex64, which is stored as pairs of real numbers"
    if "float8" in str(dtype):
        return "dequantise to float16 or bfloat16 before the export, or quantise to int8 or int4 instead"
    return "convert the tensor to one of the types that packages have, such as float32 or int64"


def _argument_hint(reason: str) -> str:
    if "not lifted" in reason:
        return "register the tensor as a buffer of the module instead of creating it outside"
    if "element type" in reason:
        return "convert to one of the types that packages have, such as float32 or int64"
    if "symbolic value" in reason:
        return "compute the size from the shape of an input inside the model"
    return "rewrite this call of the model"


def _callable_name(target: Any) -> str:
    """`_operator.mul`, `torch.sym_max`, `math.ceil`."""
    name = getattr(target, "__name__", str(target))
    if name.startswith("_sym_"):  # PyTorch's own functions are `torch.sym_sqrt`, by another name inside
        name = name.removeprefix("_")
    return f"{getattr(target, '__module__', '?')}.{name}"


def _is_element(node: fx.Node) -> bool:
    """Whether the node takes one element out of several results."""
    if node.op != "call_function" or node.target is not operator.getitem:
        return False
    producer = node.args[0]
    return isinstance(producer, fx.Node) and isinstance(producer.meta.get("val"), list | tuple)


def _returns_list(target: Any) -> bool:
    """Whether an operator has one result of type `Tensor[]`."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    returns = target._schema.returns
    return len(returns) == 1 and "List" in str(returns[0].type)


def _view_copy(target: torch._ops.OpOverload) -> torch._ops.OpOverload:
    """The `_copy` form of a view: the same values and arguments, but no shared memory, as in a functional graph."""
    packet, _, overload = str(target).removeprefix("aten.").partition(".")
    if target.namespace != "aten" or not any(item.alias_info for item in target._schema.returns):
        return target
    copies: Callable[..., Any] | None = getattr(torch.ops.aten, f"{packet}_copy", None)
    return getattr(copies, overload, target)


def _with_alias(
    target: torch._ops.OpOverload, inputs: Sequence[NamedArgument], outputs: tuple[Output, ...]
) -> tuple[Output, ...]:
    """Notes which argument a single result shares memory with, for the few views without a `_copy` form."""
    returns = target._schema.returns
    if len(outputs) != 1 or len(returns) != 1 or returns[0].alias_info is None or not outputs[0].name:
        return outputs
    sets = returns[0].alias_info.before_set
    formals = {formal.name: formal for formal in target._schema.arguments}
    for item in inputs:
        info = formals[item.name].alias_info if item.name in formals else None
        if info is not None and info.before_set & sets and isinstance(item.arg, TensorArg):
            return (Output(outputs[0].name, outputs[0].kind, item.arg.name),)
    return outputs
