"""The lowered program: what `EngineHost.create_context` gets. Methods are decoded and lowered when first used."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ptn_format.archive import PROGRAM
from ptn_format.dtypes import ScalarType
from ptn_format.errors import SignatureError
from ptn_format.graph import (
    Argument,
    BoolArg,
    Dim,
    FloatArg,
    InputKind,
    IntArg,
    Method,
    Node,
    OpKind,
    OutputKind,
    OutputValueKind,
    TensorArg,
    TensorMeta,
)
from ptn_format.signature import NAME_KEY, SIGNATURE_KEY, Signature, leaves

from ptn_runtime.errors import InputError, LoweringError, MethodNotFoundError
from ptn_runtime.lowering.canonical import canonicalize
from ptn_runtime.lowering.fold import Folder
from ptn_runtime.lowering.names import canonical_name, is_in_place, is_view_copy
from ptn_runtime.lowering.plan import CanonicalGraph
from ptn_runtime.lowering.specialize import specialize
from ptn_runtime.lowering.stages import Answer
from ptn_runtime.lowering.static import StaticGraph, TensorSpec
from ptn_runtime.lowering.views import INVERSES

if TYPE_CHECKING:
    from ptn_format.package import Package

MAX_GRAPHS = 64
"""Static graphs that one method keeps; the least recently used goes first."""

MAX_STAGES = 64
"""Stages after the first that one method keeps, for all input shapes and data together; likewise."""

_SCALAR_TYPES = {
    OutputValueKind.INT: ScalarType.LONG,
    OutputValueKind.FLOAT: ScalarType.DOUBLE,
    OutputValueKind.BOOL: ScalarType.BOOL,
}

__all__ = ["InputSpec", "LoweredMethod", "LoweredProgram", "StateSpec", "user_results"]


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One user input of a method.

    Attributes:
        name: what users call it, such as `x` or `batch.ids`.
        dtype: element type.
        dims: allowed sizes per axis.
        mutated: the method writes to it.
    """

    name: str
    dtype: ScalarType
    dims: tuple[Dim, ...]
    mutated: bool = False

    @property
    def initial_shape(self) -> tuple[int, ...]:
        """Upper bounds; an axis without one takes its lower bound."""
        return tuple(dim.max if dim.max >= 0 else dim.min for dim in self.dims)

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raises `InputError` where `shape` does not fit."""
        if len(shape) != len(self.dims):
            raise InputError(
                f"input '{self.name}' takes {len(self.dims)} axes {self.describe_dims()}, "
                f"got {len(shape)}: {list(shape)}"
            )
        for axis, (size, dim) in enumerate(zip(shape, self.dims, strict=True)):
            if not dim.contains(size):
                raise InputError(
                    f"input '{self.name}': size {size} of axis {axis} is out of range; "
                    f"allowed {self.describe_dims()}, got {list(shape)}"
                )

    def describe_dims(self) -> str:
        """The shape range for messages: `[1..8, 384]`."""
        return "[" + ", ".join(str(dim) for dim in self.dims) + "]"


@dataclass(frozen=True, slots=True)
class StateSpec:
    """One mutable buffer, shared by all methods that name its key.

    Attributes:
        key: the buffer's fully qualified name.
        dtype: element type.
        shape: its shape.
        has_data: the package holds the initial value under `key`; else it starts as zeros.
    """

    key: str
    dtype: ScalarType
    shape: tuple[int, ...]
    has_data: bool


class LoweredMethod:
    """One method: its interface, and static graphs for concrete input shapes (cached, safe to call from threads).

    Attributes:
        name: the method's name.
        inputs: the user inputs in the graph's order.
        signature: how users call it and what they get back.
        number_results: positions of the results that are Python numbers. Where a number is known only while the
            graph runs, the engine's result is a tensor of no axes.
    """

    name: str
    inputs: tuple[InputSpec, ...]
    signature: Signature
    number_results: frozenset[int]

    def __init__(self, method: Method, package: Package, state_keys: frozenset[str]) -> None:
        self.name = method.name
        placeholders = _placeholders(method)
        mutated = _mutated_inputs(method)
        self.inputs = tuple(_input_spec(method, name, placeholders.get(name), mutated) for name in method.graph.inputs)
        try:
            self.signature = _signature(method, self.inputs)
        except SignatureError as error:
            error.at(file=package.path, member=PROGRAM, place=f"method '{method.name}'")
            raise
        self.number_results = frozenset(
            i for i, arg in enumerate(user_results(method)) if isinstance(arg, IntArg | FloatArg | BoolArg)
        )
        self._method = method
        self._package = package
        self._state_keys = state_keys
        self._folder = Folder(package)
        self._dynamic = any(not dim.is_static for spec in self.inputs for dim in spec.dims)
        self._lock = threading.RLock()
        self._canonical: CanonicalGraph | None = None
        self._failure: LoweringError | None = None
        self._graphs: OrderedDict[tuple[tuple[int, ...], ...], StaticGraph] = OrderedDict()
        self._stages: OrderedDict[Any, StaticGraph] = OrderedDict()

    @property
    def canonical(self) -> CanonicalGraph:
        """The canonical graph, made on first use.

        Raises:
            LoweringError: results depend on nodes that cannot be lowered; lists all of them.
        """
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._canonical is None:
                try:
                    self._canonical = canonicalize(self._method, self._package, self._state_keys)
                except LoweringError as error:
                    self._failure = error
                    raise
            return self._canonical

    def specialize(self, shapes: tuple[tuple[int, ...], ...]) -> StaticGraph:
        """The static graph for these input shapes; where sizes depend on data, the first stage, with a `cut`.

        Raises:
            InputError: a shape is out of bounds, or an assertion of the program does not hold for it.
            LoweringError: a node has no shape rule, or depends on data in a way that cannot be lowered.
        """
        return self._kept(self._graphs, MAX_GRAPHS, shapes, lambda: self._specialize(shapes))

    def _kept(
        self, kept: OrderedDict[Any, StaticGraph], most: int, key: Any, make: Callable[[], StaticGraph]
    ) -> StaticGraph:
        with self._lock:
            graph = kept.get(key)
            if graph is None:
                graph = kept[key] = make()
                if len(kept) > most:
                    kept.popitem(last=False)
            else:
                kept.move_to_end(key)
            return graph

    def _specialize(self, shapes: tuple[tuple[int, ...], ...]) -> StaticGraph:
        if len(shapes) != len(self.inputs):
            raise InputError(f"method '{self.name}' takes {len(self.inputs)} inputs, got {len(shapes)} shapes")
        for spec, shape in zip(self.inputs, shapes, strict=True):
            spec.check_shape(shape)

        def keep(path: tuple[Answer, ...], make: Callable[[], StaticGraph]) -> StaticGraph:
            return self._kept(self._stages, MAX_STAGES, (shapes, path), make)

        return specialize(
            self.canonical,
            [TensorSpec(spec.dtype, shape) for spec, shape in zip(self.inputs, shapes, strict=True)],
            {name: spec.name for name, spec in zip(self._method.graph.inputs, self.inputs, strict=True)},
            self._folder,
            dynamic=self._dynamic,
            keep=keep,
        )


class LoweredProgram:
    """A package's program. Immutable; shared by all contexts and sessions.

    Attributes:
        methods: names of the methods.
    """

    methods: tuple[str, ...]

    def __init__(self, package: Package) -> None:
        self.package = package
        self.methods = tuple(package.method_names)
        self._lock = threading.RLock()
        self._lowered: dict[str, LoweredMethod] = {}
        self._states: Mapping[str, StateSpec] | None = None

    @property
    def states(self) -> Mapping[str, StateSpec]:
        """Every mutable buffer of the program, by key: all that some method changes or may change."""
        with self._lock:
            if self._states is None:
                self._states = _states([self.package.method(name) for name in self.methods])
            return self._states

    def method(self, name: str) -> LoweredMethod:
        """Returns the method, lowering it on first use.

        Raises:
            MethodNotFoundError: there is none; the text lists those that exist.
        """
        with self._lock:
            method = self._lowered.get(name)
            if method is None:
                if name not in self.methods:
                    raise MethodNotFoundError(f"there is no method '{name}'; the program has {', '.join(self.methods)}")
                method = LoweredMethod(self.package.method(name), self.package, frozenset(self.states))
                self._lowered[name] = method
            return method


def _placeholders(method: Method) -> dict[str, Node]:
    return {
        node.outputs[0].name if node.outputs else node.name: node
        for node in method.graph.nodes
        if node.op_kind is OpKind.PLACEHOLDER
    }


def _input_spec(method: Method, name: str, node: Node | None, mutated: frozenset[str]) -> InputSpec:
    shown = node.metadata.get(NAME_KEY, name) if node is not None else name
    meta = method.graph.tensor_values.get(name)
    if meta is not None:
        dims = meta.sizes if _has_signature(method) else tuple(_declared(dim) for dim in meta.sizes)
        return InputSpec(shown, meta.dtype, dims, name in mutated)
    kind = node.outputs[0].kind if node is not None and node.outputs else OutputValueKind.TENSOR
    if kind not in _SCALAR_TYPES:
        raise LoweringError(f"method '{method.name}': the file does not say what input '{name}' is")
    return InputSpec(shown, _SCALAR_TYPES[kind], ())


def _declared(dim: Dim) -> Dim:
    """The bounds that a user of upstream's exporter declared: 1.5.1 writes a minimum of 1 as 2."""
    return Dim(1, dim.max) if dim.min == 2 and not dim.is_static else dim


def _output_node(method: Method) -> Node | None:
    return next((node for node in reversed(method.graph.nodes) if node.op_kind is OpKind.OUTPUT), None)


def user_results(method: Method) -> list[Argument]:
    """What the output node gives to the user: its arguments without the mutations, which come first."""
    output = _output_node(method)
    mutations = sum(spec.kind is not OutputKind.USER_OUTPUT for spec in method.output_specs)
    return [item.arg for item in output.inputs[mutations:]] if output is not None else []


def _has_signature(method: Method) -> bool:
    """Whether the file comes from an exporter that keeps signatures, and true bounds."""
    output = _output_node(method)
    return output is not None and SIGNATURE_KEY in output.metadata


def _signature(method: Method, inputs: tuple[InputSpec, ...]) -> Signature:
    output = _output_node(method)
    count = len(user_results(method))
    text = output.metadata.get(SIGNATURE_KEY) if output is not None else None
    if text is None:
        return Signature.flat([spec.name for spec in inputs], count)
    signature = Signature.from_json(text)
    in_leaves = sorted(leaf.index for parameter in signature.parameters for leaf in leaves(parameter.tree))
    if in_leaves != list(range(len(inputs))) or any(leaf.index >= count for leaf in leaves(signature.result)):
        raise SignatureError(
            f"the signature does not fit the method's graph, which has {len(inputs)} input(s) and {count} result(s). "
            "Export the model again"
        )
    return signature


def _mutated_inputs(method: Method) -> frozenset[str]:
    stated = {spec.target for spec in method.output_specs if spec.kind is OutputKind.USER_INPUT_MUTATION}
    written = _written(method)
    return frozenset(name for name in method.graph.inputs if name in stated or name in written)


def _written(method: Method) -> set[str]:
    """Names of the values that in-place operators write to, views followed to what they are views of."""
    base: dict[str, str] = {}
    found: set[str] = set()
    for node in method.graph.nodes:
        target = node.target or ""
        op = canonical_name(target)
        first = node.inputs[0].arg if node.inputs else None
        if isinstance(first, TensorArg):
            root = base.get(first.name, first.name)
            if is_in_place(op):
                found.add(root)
            if is_in_place(op) or (op in INVERSES and not is_view_copy(target)):
                base.update((name, root) for output in node.outputs for name in (output.name, *output.names))
        for item in node.inputs:
            if item.mutated and isinstance(item.arg, TensorArg):
                found.add(base.get(item.arg.name, item.arg.name))
    return found


def _states(methods: list[Method]) -> Mapping[str, StateSpec]:
    found: dict[str, StateSpec] = {}
    for method in methods:
        written = _written(method)
        targets = {spec.target for spec in method.output_specs if spec.kind is OutputKind.BUFFER_MUTATION}
        for ref in method.constants:
            changed = ref.mutated or ref.name in written or ref.data_key in targets
            if ref.kind is InputKind.BUFFER and changed:
                found[ref.data_key] = _state(ref.data_key, ref.meta, has_data=True)
        for buffer in method.mutable_buffers:
            meta = method.graph.tensor_values.get(buffer.name)
            if meta is None:
                raise LoweringError(f"method '{method.name}': the file does not say what buffer '{buffer.fqn}' is")
            found.setdefault(buffer.fqn, _state(buffer.fqn, meta, has_data=False))
    return found


def _state(key: str, meta: TensorMeta, *, has_data: bool) -> StateSpec:
    return StateSpec(key, meta.dtype, tuple(dim.min for dim in meta.sizes), has_data)
