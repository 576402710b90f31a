"""Decomposes a program by taking apart each different call once.

`ExportedProgram.run_decompositions` traces the whole program twice, operator by operator, which costs more than the
export did. Most of that work has no effect: the graph of a model consists of operators that stay as they are, and of a
few different calls, repeated in every layer. So a small program is made of the different calls, PyTorch decomposes
that, and the results are put in the place of every call.

What needs more than that goes the long way: control flow, side effects, tensor subclasses, sizes that depend on data,
and tensors that are changed in place while other views of them are alive.
"""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch._higher_order_ops.effects import has_effects
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from ptn_export.dims import expression_of

__all__ = ["NotSimpleError", "decompose_repeats"]

_aten = torch.ops.aten
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_STATE = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_SIZE_MODULES = ("_operator", "builtins", "math", "torch", "torch.fx.experimental.sym_node")


class NotSimpleError(Exception):
    """The program must be decomposed as a whole; the text says why."""


def decompose_repeats(
    program: ExportedProgram, table: dict[Any, Callable[..., Any]], kept: Sequence[Any]
) -> ExportedProgram:
    """The decomposed program.

    Args:
        program: a program of one's own, with plain tensors. It is not changed.
        table: the decompositions.
        kept: operators that are not in `table` and stay whole although PyTorch could take them apart.

    Raises:
        NotSimpleError: it must be decomposed as a whole.
    """
    _check_simple(program)
    whole = frozenset(kept)
    functional, mutated = _Functional(program, whole).run()
    calls = _Calls(functional, table, whole)
    if calls.examples:
        calls.decompose(table)
    inliner = _Inliner(functional, calls)
    inliner.run()
    return _finished(program, inliner.graph, {name: inliner.values[node] for name, node in mutated.items()})


def _check_simple(program: ExportedProgram) -> None:
    """Raises where a program has anything that this module does not know."""
    for data in (*program.state_dict.values(), *program.constants.values()):
        if type(data) not in _PLAIN:
            raise NotSimpleError(f"a constant is a {type(data).__name__}")
    signature = program.graph_signature
    for spec in signature.input_specs:
        if spec.kind not in (*_STATE, InputKind.USER_INPUT) or not isinstance(
            spec.arg, TensorArgument | ConstantArgument
        ):
            raise NotSimpleError(f"an input is a {spec.kind.name.lower()} of type {type(spec.arg).__name__}")
    if any(spec.kind is not OutputKind.USER_OUTPUT for spec in signature.output_specs):
        raise NotSimpleError("the program is functional already, and changes its state")
    for node in program.graph.nodes:
        if node.op not in ("placeholder", "call_function", "output"):
            raise NotSimpleError(f"a node is a {node.op}")
        if node.op == "call_function" and not _is_known(node.target):
            raise NotSimpleError(f"it calls {node.target}")
        for value in pytree.tree_leaves(node.meta.get("val")):
            if isinstance(value, torch.SymFloat | torch.SymBool):
                raise NotSimpleError(f"'{node.name}' is a symbolic {type(value).__name__}")
            if isinstance(value, torch.Tensor | torch.SymInt) and free_unbacked_symbols(value):
                raise NotSimpleError(f"'{node.name}' depends on data")


def _is_known(target: Any) -> bool:
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace != "inductor" and not has_effects(target)
    return getattr(target, "__module__", "") in _SIZE_MODULES and not isinstance(target, torch._ops.OperatorBase)


# Without changes in place


class _Functional:
    """Copies a graph, with a new value in the place of each change of a tensor."""

    def __init__(self, program: ExportedProgram, whole: frozenset[Any]) -> None:
        self._program = program
        self._whole = whole
        self._graph = fx.Graph()
        self._values: dict[fx.Node, fx.Node] = {}
        self._owner: dict[fx.Node, fx.Node] = {}
        self._aliases: dict[fx.Node, list[fx.Node]] = {}
        self._place = {node: i for i, node in enumerate(program.graph.nodes)}
        self._last_use = {node: max((self._place[user] for user in node.users), default=-1) for node in self._place}
        self._results: dict[fx.Node, list[fx.Node]] = {}
        self._mutated: dict[fx.Node, None] = {}

    def run(self) -> tuple[fx.Graph, dict[str, fx.Node]]:
        """The graph, and by placeholder that the program changes, its new value."""
        for node in self._program.graph.nodes:
            if node.op == "output":
                self._graph.output(pytree.tree_map_only(fx.Node, self._values.__getitem__, node.args[0]))
            elif _has_schema(node) and node.target._schema.is_mutable:
                self._change(node)
            else:
                self._values[node] = self._graph.node_copy(node, self._values.__getitem__)
                self._note_alias(node)
        return self._graph, {node.name: self._values[node] for node in self._mutated if node.op == "placeholder"}

    def _note_alias(self, node: fx.Node) -> None:
        """Notes what `node` may share its memory with."""
        if node.op != "call_function" or node.target in self._whole or not _may_alias(node):
            return
        for source in node.all_input_nodes:
            owner = self._owner.get(source, source)
            self._owner[node] = owner  # with several owners the last; each of them lists the node
            self._aliases.setdefault(owner, []).append(node)

    def _change(self, node: fx.Node) -> None:
        """Puts the functional form of an operator in the place of one that changes its first argument."""
        subject = node.args[0] if node.args else None
        functional = _functional_form(node.target)
        if functional is None or not isinstance(subject, fx.Node):
            raise NotSimpleError(f"it calls {node.target}")
        owner = self._owner.get(subject, subject)
        same = self._results.setdefault(owner, [owner])
        others = [item for item in self._aliases.get(owner, ()) if item not in same]
        if subject not in same or any(self._last_use[item] > self._place[node] for item in others):
            raise NotSimpleError(f"'{node.name}' changes a tensor of which there are views")
        if node.target is not _aten.detach_.default:
            before = self._values[subject].meta["val"]
            is_copy = node.target is _aten.copy_.default
            new = self._copied(node, before) if is_copy else self._new_value(node, functional, before)
            for item in same:
                self._values[item] = new
            self._mutated[owner] = None
        self._values[node] = self._values[subject]
        self._owner[node] = owner
        same.append(node)

    def _copied(self, node: fx.Node, before: torch.Tensor) -> fx.Node:
        """What `copy_` leaves: its source, in the type and shape of what it is copied to."""
        source = node.args[1]
        assert isinstance(source, fx.Node)
        new = self._values[source]
        if new.meta["val"].dtype != before.dtype:
            new = self._call(node, _aten._to_copy.default, (new,), {"dtype": before.dtype})
        if tuple(map(str, new.meta["val"].shape)) != tuple(map(str, before.shape)):
            if not all(isinstance(size, int) for size in before.shape):
                raise NotSimpleError(f"'{node.name}' expands its source")
            new = self._call(node, _aten.expand.default, (new, list(before.shape)), {})
        return new

    def _new_value(self, node: fx.Node, functional: Any, before: torch.Tensor) -> fx.Node:
        """What the changed tensor holds."""
        args, kwargs = pytree.tree_map_only(fx.Node, self._values.__getitem__, (node.args, node.kwargs))
        new = self._call(node, functional, tuple(args), kwargs)
        after = new.meta["val"]
        if after.dtype != before.dtype or tuple(map(str, after.shape)) != tuple(map(str, before.shape)):
            raise NotSimpleError(f"'{node.name}' converts its result")
        return new

    def _call(self, node: fx.Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        """A call in the place of `node`, with the value that PyTorch infers."""
        values = pytree.tree_map_only(fx.Node, lambda item: item.meta["val"], (args, kwargs))
        mode = detect_fake_mode(_tensors(values))
        if mode is None:
            raise NotSimpleError(f"'{node.name}' has no tensor")
        with mode:
            value = target(*values[0], **values[1])
        new = self._graph.call_function(target, args, kwargs)
        new.meta = {**node.meta, "val": value}
        return new


def _has_schema(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload)


def _may_alias(node: fx.Node) -> bool:
    """Whether a result may share memory with an argument."""
    if not _has_schema(node):
        return node.target is operator.getitem
    target: Any = node.target
    return any(item.alias_info is not None for item in target._schema.returns) or _is_composite(target)


def _is_composite(target: Any) -> bool:
    """Whether PyTorch takes the operator apart before autograd, so that its schema does not tell what it does."""
    found: bool = torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd")
    return found


def _functional_form(target: Any) -> Any:
    """The operator that gives the new value where `target` changes its first argument; None where there is none."""
    if target is _aten.detach_.default:
        return _aten.detach.default
    if target.namespace != "aten" or torch.Tag.inplace_view in target.tags or not target._opname.endswith("_"):
        return None
    writes = [
        item.name for item in target._schema.arguments if item.alias_info is not None and item.alias_info.is_write
    ]
    packet = getattr(_aten, target._opname.removesuffix("_"), None)
    found = getattr(packet, target._overloadname, None) if packet is not None else None
    if found is None or writes != [target._schema.arguments[0].name] or found._schema.is_mutable:
        return None
    return found if len(found._schema.arguments) == len(target._schema.arguments) else None


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


# The different calls


class _Calls:
    """The calls of a graph that PyTorch takes apart, each different one once.

    Attributes:
        keys: by node, which of the different calls it is.
        examples: by key, the first such node.
        bodies: by key, its decomposition.
    """

    def __init__(self, graph: fx.Graph, table: dict[Any, Any], kept: frozenset[Any]) -> None:
        self.keys: dict[fx.Node, Hashable] = {}
        self.examples: dict[Hashable, fx.Node] = {}
        self.bodies: dict[Hashable, _Decomposition] = {}
        for node in graph.nodes:
            if not _has_schema(node) or _is_number(node) or (node.target not in table and node.target in kept):
                continue
            if node.target in table or _is_composite(node.target) or node.target._opname.startswith("lift_fresh"):
                self.keys[node] = key = _key(node)
                self.examples.setdefault(key, node)

    def decompose(self, table: dict[Any, Any]) -> None:
        """Lets PyTorch decompose the examples."""
        mode = detect_fake_mode([value for node in self.examples.values() for value in _tensors(node.meta["val"])])
        if mode is None:
            raise NotSimpleError("there are no tensors without data")
        small = _SmallProgram(self.examples, mode)
        try:
            program = small.program.run_decompositions(table)
        except Exception as error:  # the whole program tells the user more about what PyTorch does not like
            raise NotSimpleError(f"PyTorch does not decompose the calls: {error}") from error
        if any(spec.kind is not OutputKind.USER_OUTPUT for spec in program.graph_signature.output_specs):
            raise NotSimpleError("an operator changes its arguments")
        placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
        if len(placeholders) != len(small.inputs):
            raise NotSimpleError("a decomposition needs constants")
        results: list[Any] = list(program.graph.output_node().args[0])
        names = dict(zip(placeholders, small.inputs, strict=True))
        for key, count in small.counts.items():
            self.bodies[key] = _Decomposition(results[:count], names, program.graph)
            del results[:count]


class _Decomposition:
    """What one call becomes.

    Attributes:
        results: nodes of the small program and plain values.
        nodes: the nodes between its inputs and its results, in order.
        inputs: by placeholder, position of the argument among the call's tensors.
    """

    def __init__(self, results: Sequence[Any], inputs: dict[fx.Node, int], graph: fx.Graph) -> None:
        self.results = results
        self.inputs = inputs
        needed: set[fx.Node] = set()
        todo = [item for item in results if isinstance(item, fx.Node)]
        while todo:
            node = todo.pop()
            if node not in needed:
                needed.add(node)
                if not _is_number(node):  # sizes are found by what they are
                    todo += node.all_input_nodes
        self.nodes = [node for node in graph.nodes if node in needed and node.op == "call_function"]


def _key(node: fx.Node) -> Hashable:
    """What decides how a call is taken apart: equal keys mean equal decompositions."""
    leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
    return (node.target, str(spec), tuple(map(_leaf_key, leaves)))


def _leaf_key(leaf: Any) -> Hashable:
    value = leaf.meta.get("val") if isinstance(leaf, fx.Node) else leaf
    if isinstance(value, torch.Tensor):
        sizes = tuple(map(str, value.shape)), tuple(map(str, value.stride()))
        return "tensor", value.dtype, *sizes, str(value.device), value.layout
    if isinstance(leaf, fx.Node):
        return "size", str(value)
    return type(leaf).__name__, repr(leaf)


@dataclasses.dataclass(frozen=True, slots=True)
class _Size:
    """A symbolic size that is an argument: an input of one axis has it."""

    carrier: fx.Node
    value: torch.SymInt


class _SmallProgram:
    """A program of the different calls, over inputs of their own.

    Attributes:
        program: the program.
        inputs: for each of its inputs, which tensor of its call it is; -1 for carriers of sizes.
        counts: by key, how many results it has.
    """

    def __init__(self, examples: dict[Hashable, fx.Node], mode: FakeTensorMode) -> None:
        self.inputs: list[int] = []
        self.counts: dict[Hashable, int] = {}
        self._mode = mode
        self._graph = fx.Graph()
        self._specs: list[InputSpec] = []
        results: list[Any] = []
        calls = []
        for key, node in examples.items():  # all placeholders come first
            leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
            calls.append((key, node, list(self._arguments(leaves)), spec))
        for key, node, leaves, spec in calls:
            leaves = [self._read(leaf) if isinstance(leaf, _Size) else leaf for leaf in leaves]
            args, kwargs = pytree.tree_unflatten(leaves, spec)
            target: Any = node.target
            call = self._graph.call_function(target, tuple(args), kwargs)
            call.meta = {"val": node.meta["val"]}
            parts = self._parts(call)
            results += parts
            self.counts[key] = len(parts)
        self._graph.output(tuple(results))
        self.program = self._made(results)

    def _arguments(self, leaves: Sequence[Any]) -> Iterator[Any]:
        """The arguments of a call: placeholders for tensors, carriers for sizes."""
        count = 0
        for leaf in leaves:
            value = leaf.meta.get("val") if isinstance(leaf, fx.Node) else leaf
            if isinstance(value, torch.Tensor):
                yield self._input(value, count)
                count += 1
            elif isinstance(value, torch.SymInt):
                yield self._size(value)
            elif isinstance(leaf, fx.Node):
                raise NotSimpleError(f"an argument is the {type(value).__name__} '{leaf.name}'")
            else:
                yield leaf

    def _input(self, value: torch.Tensor, position: int) -> fx.Node:
        node = self._graph.placeholder(f"input_{len(self.inputs)}")
        with self._mode:  # a tensor of its own: PyTorch would take one and the same for one input
            fresh = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        node.meta = {"val": fresh}
        self.inputs.append(position)
        self._specs.append(InputSpec(InputKind.USER_INPUT, TensorArgument(node.name), None))
        return node

    def _size(self, value: torch.SymInt) -> _Size:
        with self._mode:
            carrier = torch.empty((value,), device="cpu")
        return _Size(self._input(carrier, -1), value)

    def _read(self, size: _Size) -> fx.Node:
        node = self._graph.call_function(_aten.sym_size.int, (size.carrier, 0))
        node.meta = {"val": size.value}
        return node

    def _parts(self, call: fx.Node) -> list[Any]:
        value = call.meta["val"]
        if not all(isinstance(item, torch.Tensor) for item in (value if isinstance(value, list | tuple) else [value])):
            raise NotSimpleError(f"{call.target} gives something else than tensors")
        if not isinstance(value, list | tuple):
            return [call]
        parts = []
        for i, item in enumerate(value):
            part = self._graph.call_function(operator.getitem, (call, i))
            part.meta = {"val": item}
            parts.append(part)
        return parts

    def _made(self, results: Sequence[fx.Node]) -> ExportedProgram:
        outputs = [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in results]
        inputs = tuple(node.meta["val"] for node in self._graph.nodes if node.op == "placeholder")
        call = ModuleCallSignature(
            [],
            [],
            pytree.tree_structure((inputs, {})),
            pytree.tree_structure(tuple(results)),
            [spec.arg.name for spec in self._specs],
        )
        return ExportedProgram(
            root=fx.GraphModule({}, self._graph),
            graph=self._graph,
            graph_signature=ExportGraphSignature(self._specs, outputs),
            state_dict={},
            range_constraints={},
            module_call_graph=[ModuleCallEntry("", call)],
            constants={},
        )


# Putting the results in


class _Inliner:
    """Copies a graph, with decompositions in the place of calls.

    Attributes:
        graph: the copy.
        values: by node of the old graph, the node of the copy.
    """

    def __init__(self, graph: fx.Graph, calls: _Calls) -> None:
        self.graph = fx.Graph()
        self.values: dict[fx.Node, fx.Node] = {}
        self._old = graph
        self._calls = calls
        self._several: dict[fx.Node, list[fx.Node]] = {}
        self._sizes: dict[Any, fx.Node] = {}

    def run(self) -> None:
        """Makes the copy."""
        for node in self._old.nodes:
            key = self._calls.keys.get(node)
            if key is not None:
                self._inline(node, self._calls.bodies[key])
            elif node.target is operator.getitem and node.args[0] in self._several:
                self.values[node] = self._several[node.args[0]][node.args[1]]
            elif any(source in self._several for source in node.all_input_nodes):
                raise NotSimpleError(f"'{node.name}' takes a list of results")
            else:
                self._place(node, self.graph.node_copy(node, self.values.__getitem__))

    def _place(self, node: fx.Node, new: fx.Node) -> None:
        self.values[node] = new
        expression = expression_of(new.meta.get("val"))
        if expression is not None:
            self._sizes.setdefault(expression, new)

    def _inline(self, node: fx.Node, body: _Decomposition) -> None:
        """Puts the decomposition of a call in its place."""
        leaves = pytree.tree_leaves((node.args, node.kwargs))
        nodes = [leaf for leaf in leaves if isinstance(leaf, fx.Node)]
        tensors = [self.values[leaf] for leaf in nodes if isinstance(leaf.meta["val"], torch.Tensor)]
        local = {placeholder: tensors[place] for placeholder, place in body.inputs.items() if 0 <= place < len(tensors)}
        for inner in body.nodes:
            if _is_number(inner):
                local[inner] = self._size(inner, tensors, local)
            else:
                local[inner] = new = self.graph.node_copy(inner, local.__getitem__)
                new.meta = {**node.meta, "val": inner.meta["val"]}
        results = [local[item] for item in body.results]
        if isinstance(node.meta["val"], list | tuple):
            self._several[node] = results
        else:
            self.values[node] = results[0]

    def _size(self, node: fx.Node, tensors: Sequence[fx.Node], local: dict[fx.Node, fx.Node]) -> fx.Node:
        """A node of the copy with the value of a symbolic size of the small program."""
        value = node.meta["val"]
        expression = expression_of(value)
        known = self._sizes.get(expression)
        if known is not None:
            return known
        placeholders = [item for item in self.graph.nodes if item.op == "placeholder"]
        for tensor in (*tensors, *placeholders):
            shape = getattr(tensor.meta.get("val"), "shape", ())
            for axis, size in enumerate(shape):
                if expression_of(size) == expression and expression is not None:
                    new = self.graph.call_function(_aten.sym_size.int, (tensor, axis))
                    new.meta = {"val": value}
                    self._sizes[expression] = new
                    return new
        if node.target is _aten.sym_size.int:
            raise NotSimpleError(f"no tensor has the size {expression}")
        for source in node.all_input_nodes:
            local.setdefault(source, self._size(source, tensors, local))
        new = self.graph.node_copy(node, local.__getitem__)
        self._sizes[expression] = new
        return new


def _is_number(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt)


def _finished(program: ExportedProgram, graph: fx.Graph, mutated: dict[str, fx.Node]) -> ExportedProgram:
    """`program` with the new graph, whose results begin with the new values of what it changes."""
    signature = program.graph_signature
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for node, spec in zip(placeholders, signature.input_specs, strict=True):
        node.name = spec.arg.name  # fx renames what is called as a builtin, such as `input`
    output = graph.output_node()
    results: list[Any] = []
    specs: list[OutputSpec] = []
    kinds = {InputKind.BUFFER: OutputKind.BUFFER_MUTATION, InputKind.USER_INPUT: OutputKind.USER_INPUT_MUTATION}
    for kind, mutation in kinds.items():
        for spec in signature.input_specs:
            if spec.kind is kind and spec.arg.name in mutated:
                node = mutated.pop(spec.arg.name)
                results.append(node)
                target = spec.target if kind is InputKind.BUFFER else spec.arg.name
                specs.append(OutputSpec(mutation, TensorArgument(node.name), target))
    if mutated:
        raise NotSimpleError(f"it changes {', '.join(mutated)}")
    for value, old in zip(output.args[0], signature.output_specs, strict=True):  # type: ignore[arg-type]
        arg = dataclasses.replace(old.arg, name=value.name) if isinstance(value, fx.Node) else old.arg
        results.append(value)
        specs.append(OutputSpec(old.kind, arg, old.target))
    output.args = (tuple(results),)
    result = copy.copy(program)
    result._graph_module = fx.GraphModule(program.graph_module, graph)
    result._graph_module.meta.update(program.graph_module.meta)
    result._graph_signature = ExportGraphSignature(list(signature.input_specs), specs)
    return result
