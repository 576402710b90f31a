"""Builds graphs for the tests of lowering, and a package that is only in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ptn_format.dtypes import ScalarType
from ptn_format.graph import (
    Argument,
    BoolArg,
    Dim,
    FloatArg,
    FloatListArg,
    Graph,
    GraphArg,
    InputKind,
    IntArg,
    IntListArg,
    Method,
    MutableBufferSpec,
    NamedArgument,
    NamedTensorRef,
    Node,
    NoneArg,
    OpKind,
    OptionalTensorListArg,
    Output,
    OutputKind,
    OutputSpec,
    OutputValueKind,
    ScalarTypeArg,
    StringArg,
    TensorArg,
    TensorListArg,
    TensorMeta,
)
from ptn_runtime.lowering.program import LoweredMethod, LoweredProgram
from ptn_runtime.lowering.static import StaticGraph, Value
from ptn_runtime.reference import evaluate


@dataclass(frozen=True)
class T:
    """A tensor value of the graph being built."""

    name: str


@dataclass(frozen=True)
class S:
    """A scalar value of the graph being built."""

    name: str
    kind: OutputValueKind = OutputValueKind.INT


@dataclass(frozen=True)
class Info:
    dtype: ScalarType
    shape: tuple[int, ...]


class FakePackage:
    """What lowering needs of a package."""

    def __init__(self, *methods: Method, constants: Mapping[str, np.ndarray] | None = None, aliases=None) -> None:
        self.path = "model.ptn"
        self.methods = {method.name: method for method in methods}
        self.method_names = tuple(self.methods)
        self.constants = dict(constants or {})
        self.aliases = dict(aliases or {})
        self.reads: list[str] = []

    def method(self, name: str) -> Method:
        return self.methods[name]

    def owner(self, key: str) -> str:
        return self.aliases.get(key, key)

    def constant_info(self, key: str) -> Info:
        array = self.constants[self.owner(key)]
        return Info(ScalarType.from_numpy(array.dtype), array.shape)

    def constant(self, key: str) -> np.ndarray:
        self.reads.append(key)
        return self.constants[self.owner(key)]


@dataclass
class GraphBuilder:
    """Collects nodes; `build` gives the method."""

    name: str = "forward"
    nodes: list[Node] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    values: dict[str, TensorMeta] = field(default_factory=dict)
    constants: list[NamedTensorRef] = field(default_factory=list)
    buffers: list[MutableBufferSpec] = field(default_factory=list)
    count: int = 0

    def input(self, name: str, dtype: ScalarType, *sizes: int | tuple[int, int], metadata=None) -> T:
        self.values[name] = TensorMeta(dtype, dims(sizes))
        self.inputs.append(name)
        self._placeholder(name, metadata)
        return T(name)

    def scalar_input(self, name: str, kind: OutputValueKind) -> S:
        self.inputs.append(name)
        self.nodes.append(Node(name, OpKind.PLACEHOLDER, outputs=(Output(name, kind),)))
        return S(name, kind)

    def constant(self, name: str, array: np.ndarray, key: str | None = None, kind=InputKind.PARAMETER, **meta) -> T:
        dtype = ScalarType.from_numpy(array.dtype)
        sizes = meta.pop("sizes", array.shape)
        ref = NamedTensorRef(name, key or name, TensorMeta(dtype, dims(sizes), **meta), kind)
        self.constants.append(ref)
        self._placeholder(name)
        return T(name)

    def buffer(self, name: str, key: str, dtype: ScalarType, *sizes: int, mutated: bool = True) -> T:
        meta = TensorMeta(dtype, dims(sizes))
        self.constants.append(NamedTensorRef(name, key, meta, InputKind.BUFFER, mutated))
        self._placeholder(name)
        return T(name)

    def zero_buffer(self, name: str, key: str, dtype: ScalarType, *sizes: int) -> T:
        self.values[name] = TensorMeta(dtype, dims(sizes))
        self.buffers.append(MutableBufferSpec(name, key))
        self._placeholder(name)
        return T(name)

    def _placeholder(self, name: str, metadata=None) -> None:
        self.nodes.append(Node(name, OpKind.PLACEHOLDER, outputs=(Output(name),), metadata=metadata or {}))

    def call(
        self, target: str, /, *args: Any, result: str | None = None, meta=None, mutated=(), location=None, **named
    ) -> T:
        """A node with one tensor result."""
        name = result or self.fresh(target)
        if meta is not None:
            self.values[name] = meta
        self._node(name, target, args, named, (Output(name),), mutated, location)
        return T(name)

    def list_call(self, target: str, /, *args: Any, count: int, **named) -> list[T]:
        """A node with one result that is a list of `count` tensors."""
        name = self.fresh(target)
        names = tuple(f"{name}_{i}" for i in range(count))
        self._node(name, target, args, named, (Output("", OutputValueKind.TENSOR_LIST, names=names),), (), None)
        return [T(item) for item in names]

    def multi_call(self, target: str, /, *args: Any, count: int, mutated=(), **named) -> list[T]:
        """A node with `count` tensor results."""
        name = self.fresh(target)
        names = tuple(f"{name}_{i}" for i in range(count))
        self._node(name, target, args, named, tuple(Output(item) for item in names), mutated, None)
        return [T(item) for item in names]

    def scalar(self, target: str, /, *args: Any, kind=OutputValueKind.INT, **named) -> S:
        """A node with a scalar result."""
        name = self.fresh(target)
        self._node(name, target, args, named, (Output(name, kind),), (), None)
        return S(name, kind)

    def effect(self, target: str, /, *args: Any, location=None, **named) -> None:
        """A node without results."""
        self._node(self.fresh(target), target, args, named, (), (), location)

    def fresh(self, target: str) -> str:
        self.count += 1
        return f"{target.split('.')[-2]}_{self.count}"

    def _node(self, name, target, args, named, outputs, mutated, location) -> None:
        inputs = [NamedArgument(None, argument(arg)) for arg in args]
        inputs += [NamedArgument(key, argument(arg), key in mutated) for key, arg in named.items()]
        metadata = {"ptn.source": location} if location else {}
        self.nodes.append(Node(name, OpKind.CALL_FUNCTION, target, tuple(inputs), outputs, metadata))

    def build(
        self,
        *results: Any,
        buffers: Mapping[str, T] | None = None,
        inputs: Mapping[str, T] | None = None,
        metadata=None,
    ) -> Method:
        """The method with these user results and stated mutations."""
        specs = [OutputSpec(v.name, OutputKind.BUFFER_MUTATION, key) for key, v in (buffers or {}).items()]
        specs += [OutputSpec(v.name, OutputKind.USER_INPUT_MUTATION, key) for key, v in (inputs or {}).items()]
        mutations = [T(spec.name) for spec in specs]
        specs += [OutputSpec(value.name) for value in results if isinstance(value, T)]
        graph = self.graph(*mutations, *results, metadata=metadata)
        return Method(self.name, graph, tuple(self.constants), tuple(specs), tuple(self.buffers))

    def graph(self, *results: Any, metadata=None) -> Graph:
        output = Node(
            "output",
            OpKind.OUTPUT,
            inputs=tuple(NamedArgument(None, argument(value)) for value in results),
            metadata=metadata or {},
        )
        names = tuple(value.name for value in results if isinstance(value, T))
        return Graph((*self.nodes, output), tuple(self.inputs), names, self.values)


def dims(sizes: Sequence[int | tuple[int, int]]) -> tuple[Dim, ...]:
    return tuple(Dim(*size) if isinstance(size, tuple) else Dim(size, size) for size in sizes)


def argument(value: Any) -> Argument:
    """The file's argument for a Python value."""
    match value:
        case T(name=name):
            return TensorArg(name)
        case S(name=name, kind=OutputValueKind.INT):
            return IntArg(0, name)
        case S(name=name, kind=OutputValueKind.BOOL):
            return BoolArg(False, name)
        case S(name=name):
            return FloatArg(0.0, name)
        case None:
            return NoneArg()
        case ScalarType():
            return ScalarTypeArg(value)
        case bool():
            return BoolArg(value)
        case int():
            return IntArg(value)
        case float():
            return FloatArg(value)
        case str():
            return StringArg(value)
        case Graph():
            return GraphArg("body", value)
        case [*items] if any(isinstance(item, T) for item in items):
            if all(isinstance(item, T) for item in items):
                return TensorListArg(tuple(item.name for item in items))
            return OptionalTensorListArg(
                tuple(item.name if item else "" for item in items), tuple(item is not None for item in items)
            )
        case [*items] if any(isinstance(item, float) for item in items):
            return FloatListArg(tuple(items))
        case [*items] if any(isinstance(item, S) for item in items):
            return IntListArg(
                tuple(0 if isinstance(item, S) else item for item in items),
                tuple(item.name if isinstance(item, S) else "" for item in items),
            )
        case [*items]:
            return IntListArg(tuple(items))
    return value


def lower(method: Method, constants=None, aliases=None) -> LoweredMethod:
    """The lowered method of a package that has only this one."""
    return LoweredProgram(FakePackage(method, constants=constants, aliases=aliases)).method(method.name)


def specialize(method: Method, *shapes: Sequence[int], constants=None) -> StaticGraph:
    """The static graph for input shapes; without any, for the upper bounds."""
    lowered = lower(method, constants)
    chosen = tuple(tuple(shape) for shape in shapes) or tuple(spec.initial_shape for spec in lowered.inputs)
    return lowered.specialize(chosen)


def ops(graph: StaticGraph) -> list[str]:
    """The operators of a graph in order, `aten.` dropped."""
    return [node.op.removeprefix("aten.") for node in graph.nodes]


def run(
    graph: StaticGraph,
    *inputs: np.ndarray,
    states: dict[str, np.ndarray] | None = None,
    constants=None,
    write_early: bool = False,
):
    """Runs a static graph node by node.

    With `write_early`, states are overwritten as early as an engine may that lets views share memory.

    Returns:
        The results; `states` and `inputs` get their new contents, as a program that mutates them would leave them.
    """
    values: dict[int, Any] = {value.id: np.copy(array) for value, array in zip(graph.inputs, inputs, strict=True)}
    for value in graph.constants:
        values[value.id] = value.data if value.key is None else constants[value.key]
    for value in graph.states:
        values[value.id] = np.copy(states[value.key])
    for node in graph.nodes:
        args = {name: _resolved(arg, values) for name, arg in node.args.items()}
        results = evaluate(node.op, args, node.outputs)
        for value, array in zip(node.outputs, results, strict=True):
            assert array.dtype == value.dtype.numpy, node.describe()
            assert array.shape == value.shape, node.describe()
            values[value.id] = array
        for update in graph.state_updates if write_early else ():
            if update.in_place and update.new in node.outputs:
                values[update.new.id] = np.copy(values[update.new.id])
                values[update.old.id][...] = values[update.new.id]
    results = tuple(values[item.id] if isinstance(item, Value) else item for item in graph.results)
    for update in graph.state_updates:
        states[update.old.key] = np.copy(values[update.new.id])
    for old, new in graph.input_updates:
        np.copyto(inputs[graph.inputs.index(old)], values[new.id])
    return tuple(np.copy(item) if isinstance(item, np.ndarray) else item for item in results)


def _resolved(arg: Any, values: dict[int, Any]) -> Any:
    if isinstance(arg, Value):
        return values[arg.id]
    if isinstance(arg, tuple):
        return tuple(_resolved(item, values) for item in arg)
    return arg
