"""Structural rules of one graph body: names, order, references, aliases, metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ptn_format.dtypes import ScalarType
from ptn_format.graph import (
    Argument,
    BoolArg,
    FloatArg,
    Graph,
    GraphArg,
    InputKind,
    IntArg,
    IntListArg,
    NamedArgument,
    NamedTensorRef,
    Node,
    OpKind,
    OptionalTensorListArg,
    Output,
    OutputValueKind,
    TensorArg,
    TensorListArg,
    TensorMeta,
)
from ptn_format.limits import MAX_GRAPH_DEPTH

__all__ = ["Say", "Scope", "check_graph", "check_meta"]

Say = Callable[[str, str, str], None]
"""Takes a problem's place, message and hint."""

_HIGHER_ORDER = "torch.ops.higher_order."
_EXPORT_AGAIN = "the file is damaged or its exporter is at fault; export the model again"


@dataclass(slots=True)
class Scope:
    """What surrounds a graph body.

    Attributes:
        constants: what the method binds to placeholders, by the value's name; nothing in a nested graph, all of
            whose placeholders are inputs.
        buffers: names of placeholders bound to buffers that start as zeros.
        depth: how many bodies lie within each other, counting this one: 1 for a method's own.
        quantised: filled by the walk: place and metadata of each quantised value that is not itself a constant.
            Such are constants that a nested graph takes as operands.
    """

    constants: Mapping[str, NamedTensorRef] = field(default_factory=dict)
    buffers: frozenset[str] = frozenset()
    depth: int = 1
    quantised: list[tuple[str, TensorMeta]] = field(default_factory=list)


def check_graph(graph: Graph, place: str, say: Say, scope: Scope) -> None:
    """Reports every problem of a graph and of the graphs nested in it.

    Args:
        graph: the body.
        place: where it is, for messages.
        say: called with each problem.
        scope: what surrounds the body.
    """
    if scope.depth > MAX_GRAPH_DEPTH:
        say(place, f"more than {MAX_GRAPH_DEPTH} graphs lie within each other", "flatten the control flow")
    else:
        _Body(graph, place, say, scope).check()


def check_meta(meta: TensorMeta, place: str, say: Say) -> None:
    """Reports the problems of a tensor's metadata that need nothing else to be seen."""
    rank = len(meta.sizes)
    for axis, dim in enumerate(meta.sizes):
        if dim.min < 0 or dim.max < -1 or 0 <= dim.max < dim.min:
            say(
                place,
                f"axis {axis} ranges over {dim.min}..{dim.max}",
                "0 <= min <= max must hold, or max be -1 for no bound",
            )
    if meta.dim_order is not None and sorted(meta.dim_order) != list(range(rank)):
        say(
            place,
            f"dim_order {list(meta.dim_order)} is no permutation of the tensor's {rank} axes",
            "list each axis once, from outermost to innermost in memory, or leave it out",
        )
    if meta.quant is not None and meta.dtype is not ScalarType.BYTE:
        say(
            place,
            f"a quantised tensor has dtype {meta.dtype.name}",
            "its bytes are packed, so its dtype is BYTE",
        )


class _Body:
    """Walks one graph body in order; `kinds` holds the values that exist so far."""

    def __init__(self, graph: Graph, place: str, say: Say, scope: Scope) -> None:
        self.graph = graph
        self.place = place
        self.say = say
        self.scope = scope
        self.nested = scope.depth > 1
        self.kinds: dict[str, OutputValueKind] = {}
        self.roots: dict[str, str] = {}
        self.placeholders: list[str] = []
        self.without_meta: set[str] = set()

    def check(self) -> None:
        graph = self.graph
        names: set[str] = set()
        started = False
        for index, node in enumerate(graph.nodes):
            place = f"{self.place}, node '{node.name}'"
            if not node.name:
                self.say(f"{self.place}, node {index}", "the node has no name", _EXPORT_AGAIN)
            elif node.name in names:
                self.say(place, "two nodes have this name", "names are unique within a graph")
            names.add(node.name)
            if node.op_kind is OpKind.CALL_FUNCTION:
                started = True
                self._call(node, place)
            elif node.op_kind is OpKind.PLACEHOLDER:
                if started:
                    self.say(place, "the placeholder comes after calls", "placeholders come first")
                self._placeholder(node, place)
            else:
                self._output_node(node, place, is_last=index == len(graph.nodes) - 1)
        if not graph.nodes or graph.nodes[-1].op_kind is not OpKind.OUTPUT:
            self.say(self.place, "the graph does not end with an output node", _EXPORT_AGAIN)
            self._known_outputs()
        self._inputs()
        self._metas()

    # ---------------------------------------------------------------------------------------------- nodes

    def _placeholder(self, node: Node, place: str) -> None:
        if node.target or node.inputs:
            self.say(place, "a placeholder has a target or arguments", "it only introduces a value")
        if len(node.outputs) > 1:
            self.say(place, f"a placeholder has {len(node.outputs)} outputs", "it introduces exactly one value")
        for output in node.outputs or (Output(node.name),):
            self._define(output, place)
            if output.alias_of is not None:
                self.say(place, f"a placeholder aliases '{output.alias_of}'", "only results of calls alias")
            if output.kind is OutputValueKind.TENSOR_LIST:
                self.say(place, "a placeholder is a list of tensors", "give each tensor a placeholder of its own")
            self.placeholders.append(output.name)

    def _call(self, node: Node, place: str) -> None:
        if not node.target:
            self.say(place, "the call names no operator", _EXPORT_AGAIN)
        lenient = (node.target or "").startswith(_HIGHER_ORDER)
        for argument in node.inputs:
            self._argument(argument, place, lenient)
        if node.target and lenient:
            self._operands(node, place)
        if any(output.alias_of is not None for output in node.outputs):
            self._aliases(node, place)
        for output in node.outputs:
            self._define(output, place)

    def _output_node(self, node: Node, place: str, is_last: bool) -> None:
        if not is_last:
            self.say(place, "an output node stands before other nodes", "a graph has one, at its end")
        if node.outputs or node.target:
            self.say(place, "the output node has a target or outputs", "it only lists the graph's results")
        tensors: list[str] = []
        for argument in node.inputs:
            self._argument(argument, place, lenient=False)
            if argument.mutated:
                self.say(place, "the output node writes to an argument", "only calls write")
            tensors += _tensor_names(argument.arg)
        if is_last and tuple(tensors) != self.graph.outputs:
            self.say(
                place,
                f"the tensors of the output node are {_list(tensors)}, but the graph's outputs "
                f"{_list(self.graph.outputs)}",
                "both list the same names in the same order",
            )

    def _define(self, output: Output, place: str) -> None:
        is_list = output.kind is OutputValueKind.TENSOR_LIST
        if output.names and not is_list:
            self.say(place, f"output '{output.name}' has elements but is no TENSOR_LIST", _EXPORT_AGAIN)
        names = output.names if is_list else (output.name,)
        kind = OutputValueKind.TENSOR if is_list else output.kind
        for name in names:
            if not name:
                self.say(place, "an output has no name", "every value needs one")
            elif name in self.kinds:
                self.say(place, f"the value '{name}' exists already", "value names are unique within a graph")
            else:
                self.kinds[name] = kind

    def _aliases(self, node: Node, place: str) -> None:
        arguments = {name for argument in node.inputs for name in _tensor_names(argument.arg)}
        hint = "an output can only alias a tensor argument of its node"
        for output in node.outputs:
            base = output.alias_of
            names = output.names or (output.name,)
            if base is None:
                continue
            if base in names:
                self.say(place, f"output '{base}' aliases itself", hint)
            elif base not in arguments:
                self.say(place, f"output '{names[0]}' aliases '{base}', which is no argument of the node", hint)
            elif output.kind not in (OutputValueKind.TENSOR, OutputValueKind.TENSOR_LIST):
                self.say(place, f"output '{names[0]}' aliases '{base}' but is {output.kind.name}", hint)
            else:
                root = self.roots.get(base, base)
                self.roots.update(dict.fromkeys(names, root))

    # ------------------------------------------------------------------------------------------ arguments

    def _argument(self, named: NamedArgument, place: str, lenient: bool) -> None:
        arg = named.arg
        if isinstance(arg, TensorArg):
            self._use_tensor(arg.name, place, lenient=False)
        elif isinstance(arg, IntArg | FloatArg | BoolArg):
            if arg.ref:
                self._use_scalar(arg.ref, place)
        elif isinstance(arg, IntListArg):
            if arg.refs and len(arg.refs) != len(arg.values):
                self._lengths(named, place, "values", len(arg.values), "refs", len(arg.refs))
            for ref in filter(None, arg.refs):
                self._use_scalar(ref, place)
        elif isinstance(arg, TensorListArg):
            for name in arg.names:
                self._use_tensor(name, place, lenient)
        elif isinstance(arg, OptionalTensorListArg):
            if len(arg.names) != len(arg.has_value):
                self._lengths(named, place, "names", len(arg.names), "has_value", len(arg.has_value))
            for name in _tensor_names(arg):
                self._use_tensor(name, place, lenient)
        elif isinstance(arg, GraphArg):
            inner = Scope(depth=self.scope.depth + 1, quantised=self.scope.quantised)
            check_graph(arg.graph, f"{place}, graph '{arg.name}'", self.say, inner)
        if named.mutated:
            self._write(named, place)

    def _lengths(self, named: NamedArgument, place: str, first: str, m: int, second: str, n: int) -> None:
        self.say(place, f"argument '{named.name or ''}' has {m} {first} but {n} {second}", "both have the same length")

    def _use_tensor(self, name: str, place: str, lenient: bool) -> None:
        kind = self._use(name, place)
        if kind is None or (lenient and kind is not OutputValueKind.TENSOR):
            return
        if kind is not OutputValueKind.TENSOR:
            self.say(place, f"'{name}' is used as a tensor but is {kind.name}", _EXPORT_AGAIN)
        elif not lenient and not self._has_meta(name) and name not in self.without_meta:
            self.without_meta.add(name)
            self.say(
                f"{self.place}, tensor '{name}'",
                f"the graph does not say its dtype and shape, which {place.rpartition(', ')[2]} needs",
                "every tensor is listed in tensor_values, or is a constant",
            )

    def _use_scalar(self, name: str, place: str) -> None:
        kind = self._use(name, place)
        if kind is OutputValueKind.TENSOR and self._has_meta(name):
            self.say(place, f"'{name}' is used as a number but is a tensor", "read its element with item() first")

    def _use(self, name: str, place: str) -> OutputValueKind | None:
        kind = self.kinds.get(name)
        if kind is None:
            self.say(place, f"it uses '{name}', which no earlier node makes", "nodes are listed in order of execution")
        return kind

    def _has_meta(self, name: str) -> bool:
        return name in self.graph.tensor_values or name in self.scope.constants

    def _write(self, named: NamedArgument, place: str) -> None:
        names = _tensor_names(named.arg)
        if not names:
            self.say(place, f"argument '{named.name or ''}' is written to but holds no tensor", _EXPORT_AGAIN)
        for name in names:
            root = self.roots.get(name, name)
            ref = self.scope.constants.get(root)
            if ref is None or (ref.kind is InputKind.BUFFER and ref.mutated):
                continue
            what = f"the {ref.kind.name} '{ref.data_key}'"
            if ref.kind is InputKind.BUFFER:
                hint = "a buffer that is written to is marked as mutated"
            else:
                hint = "parameters and constants are read-only; register it as a buffer"
            self.say(place, f"it writes to '{name}', which is {what}", hint)

    def _operands(self, node: Node, place: str) -> None:
        """A branch or body takes exactly the operands it is called with."""
        operands = [argument.arg for argument in node.inputs if isinstance(argument.arg, TensorListArg)]
        given = sum(len(operand.names) for operand in operands)
        name = (node.target or "").removeprefix(_HIGHER_ORDER)
        if name not in ("cond", "map_impl", "scan", "while_loop") or not operands:
            return
        for argument in node.inputs:
            if isinstance(argument.arg, GraphArg) and len(argument.arg.graph.inputs) != given:
                self.say(
                    f"{place}, graph '{argument.arg.name}'",
                    f"it takes {len(argument.arg.graph.inputs)} inputs but is called with {given} operands",
                    "each operand is one input",
                )

    # --------------------------------------------------------------------------- inputs, outputs, metadata

    def _inputs(self) -> None:
        graph = self.graph
        scope = self.scope
        expected = [name for name in self.placeholders if name not in scope.constants and name not in scope.buffers]
        if list(graph.inputs) != expected:
            listed, known = set(graph.inputs), set(self.placeholders)
            missing = [name for name in expected if name not in listed]
            unknown = [name for name in graph.inputs if name not in known]
            taken = [name for name in graph.inputs if name in scope.constants or name in scope.buffers]
            if unknown:
                self.say(self.place, f"the inputs {_list(unknown)} have no placeholder", _EXPORT_AGAIN)
            if taken:
                self.say(self.place, f"the inputs {_list(taken)} are bound to constants or buffers", _EXPORT_AGAIN)
            if missing:
                self.say(
                    self.place,
                    f"the placeholders {_list(missing)} are neither inputs nor bound to a constant or buffer",
                    "list them among the inputs or bind them",
                )
            if not (unknown or taken or missing):
                self.say(
                    self.place,
                    f"the inputs {_list(graph.inputs)} are not in the order of their placeholders {_list(expected)}",
                    "list each input once, in that order",
                )
        for name in graph.inputs:
            kind = self.kinds.get(name, OutputValueKind.TENSOR)
            if not self.nested and kind is not OutputValueKind.TENSOR:
                self.say(self.place, f"the input '{name}' is {kind.name}", "a method's inputs are tensors")
            elif not self.nested and not self._has_meta(name) and name not in self.without_meta:
                self._needs_meta(name, "input")
        for name in sorted(scope.buffers):
            if name in self.kinds and not self._has_meta(name) and name not in self.without_meta:
                self._needs_meta(name, "buffer")

    def _needs_meta(self, name: str, what: str) -> None:
        self.say(
            f"{self.place}, tensor '{name}'",
            f"the graph does not say the {what}'s dtype and shape",
            "every tensor is listed in tensor_values, or is a constant",
        )

    def _known_outputs(self) -> None:
        for name in self.graph.outputs:
            if name not in self.kinds:
                self.say(self.place, f"the output '{name}' is made by no node", _EXPORT_AGAIN)

    def _metas(self) -> None:
        for name, meta in self.graph.tensor_values.items():
            if name in self.scope.constants and not _same_meta(meta, self.scope.constants[name].meta):
                self.say(
                    f"{self.place}, tensor '{name}'",
                    "the graph and the binding of the constant say different things of it",
                    _EXPORT_AGAIN,
                )
            if meta.quant is not None and name not in self.scope.constants:
                self.scope.quantised.append((f"{self.place}, tensor '{name}'", meta))
            if meta.quant is not None or not _plain(meta):
                check_meta(meta, f"{self.place}, tensor '{name}'", self.say)


def _plain(meta: TensorMeta) -> bool:
    """Whether nothing can be wrong with a tensor's sizes and order: the usual case, decided fast."""
    for dim in meta.sizes:
        if dim.min < 0 or (dim.max != dim.min and (dim.max < -1 or 0 <= dim.max < dim.min)):
            return False
    order = meta.dim_order
    return order is None or order == tuple(range(len(meta.sizes)))


def _same_meta(a: TensorMeta, b: TensorMeta) -> bool:
    identity = tuple(range(len(a.sizes)))
    return (a.dtype, a.sizes, a.quant, a.dim_order or identity) == (b.dtype, b.sizes, b.quant, b.dim_order or identity)


def _tensor_names(arg: Argument) -> tuple[str, ...]:
    if isinstance(arg, TensorArg):
        return (arg.name,)
    if isinstance(arg, TensorListArg):
        return arg.names
    if isinstance(arg, OptionalTensorListArg):
        return tuple(name for name, present in zip(arg.names, arg.has_value, strict=False) if present)
    return ()


def _list(names: Iterable[str]) -> str:
    """The names for a message; long lists are cut."""
    shown = list(names)
    text = ", ".join(f"'{name}'" for name in shown[:8])
    return f"[{text}, ... {len(shown) - 8} more]" if len(shown) > 8 else f"[{text}]"
