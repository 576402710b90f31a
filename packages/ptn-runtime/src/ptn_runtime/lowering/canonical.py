"""From the file's graph to the canonical graph, once per method: functional, bound to the catalogue, shapes open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from ptn_format.dtypes import ScalarType
from ptn_format.graph import (
    Graph,
    InputKind,
    Method,
    Node,
    OpKind,
    OutputKind,
    OutputSpec,
    TensorArg,
    TensorMeta,
)

from ptn_runtime.errors import LoweringError
from ptn_runtime.lowering.aliasing import Handle, Tracker
from ptn_runtime.lowering.arguments import BindError
from ptn_runtime.lowering.assertions import Origins
from ptn_runtime.lowering.liveness import check_known, drop_dead, mark_shape_free, mark_sizes
from ptn_runtime.lowering.nodes import SCALAR_KINDS, NodeReader
from ptn_runtime.lowering.packed import PackedConstants
from ptn_runtime.lowering.plan import Binding, CanonicalGraph, Item, Ref, Step
from ptn_runtime.lowering.windows import mark_windows

__all__ = ["canonicalize"]

_MAX_NESTING = 64


class ConstantInfo(Protocol):
    """What is known of a constant without reading it."""

    @property
    def dtype(self) -> ScalarType: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


class Constants(Protocol):
    """What lowering needs of a package."""

    def owner(self, key: str) -> str:
        """The key that holds the data of `key`."""

    def constant_info(self, key: str) -> ConstantInfo:
        """Dtype and physical shape of a constant."""

    def constant(self, key: str) -> Any:
        """Its array."""


def canonicalize(method: Method, constants: Constants, state_keys: frozenset[str]) -> CanonicalGraph:
    """Brings a method into canonical form.

    Args:
        method: the decoded method.
        constants: the package.
        state_keys: keys of all buffers that some method of the program changes.

    Raises:
        LoweringError: a result depends on nodes that cannot be lowered; the text lists all of them.
    """
    body = Body(method.graph, method.name, constants)
    body.bind_method(method, state_keys)
    graph = body.finish_method(method)
    check_known(method.name, graph)
    return graph


class Body:
    """Canonicalises one graph body; `canonicalize` is the way in."""

    def __init__(self, graph: Graph, name: str, constants: Constants, depth: int = 0) -> None:
        if depth > _MAX_NESTING:
            raise LoweringError(f"graph '{name}' is nested more than {_MAX_NESTING} levels deep")
        self.graph = graph
        self.name = name
        self.constants = constants
        self.depth = depth
        self.steps: list[Step] = []
        self.num_slots = 0
        self.tracker = Tracker(self.steps, self.new_slot)
        self.handles: dict[str, Handle] = {}
        self.scalars: dict[str, int] = {}
        self.origins = Origins()
        self.bindings: dict[str, Binding] = {}
        self.states: list[Binding] = []
        self.state_handles: dict[str, Handle] = {}
        self.packed = PackedConstants(self)
        self.reader = NodeReader(self)
        self.inputs: list[tuple[int, str]] = []
        self.input_handles: dict[str, Handle] = {}
        self.output: Node | None = None

    def new_slot(self) -> int:
        """A slot that nothing fills yet."""
        self.num_slots += 1
        return self.num_slots - 1

    # Bindings.

    def bind_method(self, method: Method, state_keys: frozenset[str]) -> None:
        """Gives slots to constants, states and user inputs, then takes the nodes in order."""
        for ref in method.constants:
            if ref.kind is InputKind.BUFFER and (ref.mutated or ref.data_key in state_keys):
                if ref.meta.quant is not None:
                    raise LoweringError(f"method '{self.name}': buffer '{ref.data_key}' is quantised and mutable")
                self._bind_state(ref.name, ref.data_key, ref.meta)
            elif ref.meta.quant is not None:
                self.packed.add(ref.name, self.constant_slot(ref.name, ref.data_key), ref.meta)
            else:
                slot = self.constant_slot(ref.name, ref.data_key)
                label = f"constant '{ref.data_key}'"
                self.handles[ref.name] = self.tracker.root(slot, label, "which is read-only")
        for buffer in method.mutable_buffers:
            meta = self.graph.tensor_values.get(buffer.name)
            if meta is None:
                raise LoweringError(f"method '{self.name}': the file does not say what buffer '{buffer.fqn}' is")
            self._bind_state(buffer.name, buffer.fqn, meta)
        self.take_nodes()

    def constant_slot(self, name: str, key: str) -> int:
        """The slot of a constant of the package; keys that share data share a slot."""
        owner = self.constants.owner(key)
        binding = self.bindings.get(owner)
        if binding is None:
            info = self.constants.constant_info(owner)
            binding = Binding(self.new_slot(), name, owner, info.dtype, tuple(info.shape))
            self.bindings[owner] = binding
        return binding.slot

    def _bind_state(self, name: str, key: str, meta: TensorMeta) -> None:
        shape = tuple(dim.min for dim in meta.sizes)
        binding = Binding(self.new_slot(), name, key, meta.dtype, shape)
        self.states.append(binding)
        handle = self.tracker.root(binding.slot, f"buffer '{key}'")
        self.handles[name] = handle
        self.state_handles[key] = handle

    def take_nodes(self) -> None:
        """Adds the steps of every node."""
        bound = set(self.handles)
        for node in self.graph.nodes:
            if node.op_kind is OpKind.PLACEHOLDER:
                name = node.outputs[0].name if node.outputs else node.name
                if name not in bound and name not in self.packed:
                    self._bind_input(name, node)
            elif node.op_kind is OpKind.OUTPUT:
                self.output = node
            else:
                self.reader.take(node)
        order = {name: index for index, name in enumerate(self.graph.inputs)}
        if sorted(order) != sorted(name for _, name in self.inputs):
            raise LoweringError(
                f"graph '{self.name}': its inputs are ({', '.join(order)}), "
                f"its unbound placeholders ({', '.join(name for _, name in self.inputs)})"
            )
        self.inputs.sort(key=lambda item: order[item[1]])

    def _bind_input(self, name: str, node: Node) -> None:
        slot = self.new_slot()
        self.inputs.append((slot, name))
        if node.outputs and node.outputs[0].kind in SCALAR_KINDS:
            # A number at run time; which of the two ways to take it depends on what it is used for.
            self.scalars[name] = self.new_slot()
            self.steps.append(Item(name, slot, self.scalars[name]))
            return
        handle = self.tracker.root(slot, f"input '{name}'")
        self.handles[name] = handle
        self.input_handles[name] = handle

    # Values.

    def slot_of(self, name: str) -> int:
        """The slot with the current contents of a value.

        Raises:
            BindError: there is no such value before this point.
        """
        handle = self.handles.get(name)
        if handle is not None:
            return self.tracker.read(handle)
        if name in self.scalars:
            return self.scalars[name]
        if name in self.packed:
            return self.packed.slot(name)
        raise BindError(f"value '{name}' is not defined before it is used")

    def meta(self, name: str) -> TensorMeta | None:
        """What the file says of a value."""
        return self.graph.tensor_values.get(name)

    def define(self, name: str, slot: int) -> None:
        """Enters a tensor that shares its storage with nothing."""
        self.handles[name] = self.tracker.root(slot, f"value '{name}'")

    def nested(self, name: str, graph: Graph) -> CanonicalGraph:
        """The canonical form of a nested graph of this one.

        Raises:
            BindError: it writes to its operands.
        """
        body = Body(graph, f"{self.name}.{name}", self.constants, self.depth + 1)
        body.take_nodes()
        for input_name, handle in body.input_handles.items():
            if handle.storage.version:
                raise BindError(f"nested graph '{name}' writes to its operand '{input_name}'")
        return body.finish(tuple(body._results(())))

    # The end.

    def _results(self, specs: Iterable[OutputSpec]) -> Iterable[Any]:
        """The user's results: the output node's arguments without the mutations among `specs`."""
        tensor_specs = iter(specs)
        for item in self.output.inputs if self.output is not None else ():
            spec = next(tensor_specs, None) if isinstance(item.arg, TensorArg) else None
            if spec is None or spec.kind is OutputKind.USER_OUTPUT:
                yield self.reader.scalar(item)

    def finish_method(self, method: Method) -> CanonicalGraph:
        """Adds results and updates."""
        state_slots: dict[str, int] = {}
        input_slots: dict[str, int] = {}
        try:
            for spec in method.output_specs:
                if spec.kind is OutputKind.USER_OUTPUT:
                    continue
                if spec.name in self.scalars:
                    raise BindError(f"'{spec.name}' is a number, and cannot be the new value of '{spec.target}'")
                slots = state_slots if spec.kind is OutputKind.BUFFER_MUTATION else input_slots
                slots[spec.target or ""] = self.slot_of(spec.name)
            results = tuple(self._results(method.output_specs))
        except BindError as error:
            raise LoweringError(f"method '{self.name}': its output cannot be lowered: {error}") from error
        state_slot = {state.key: state.slot for state in self.states}
        input_slot = {name: slot for slot, name in self.inputs}
        state_updates = self._updates(self.state_handles, state_slot, state_slots)
        input_updates = self._updates(self.input_handles, input_slot, input_slots)
        return self.finish(results, state_updates, input_updates)

    def _updates(
        self, handles: Mapping[str, Handle], initial: Mapping[str, int], stated: Mapping[str, int]
    ) -> tuple[tuple[int, int], ...]:
        """Pairs of slots (contents at the start, contents at the end), as the file states or as writes left them."""
        unknown = sorted(set(stated) - set(handles))
        if unknown:
            raise LoweringError(f"method '{self.name}' changes {', '.join(unknown)}, which it does not bind")
        updates = []
        for key, handle in handles.items():
            if key in stated:
                updates.append((initial[key], stated[key]))
            elif handle.storage.version:
                updates.append((initial[key], self.tracker.read(handle)))
        return tuple(updates)

    def finish(
        self,
        results: tuple[Any, ...],
        state_updates: tuple[tuple[int, int], ...] = (),
        input_updates: tuple[tuple[int, int], ...] = (),
    ) -> CanonicalGraph:
        """Drops dead steps and marks those that no input shape matters to."""
        roots = [result.slot for result in results if type(result) is Ref]
        roots += [new for _, new in (*state_updates, *input_updates)]
        steps = drop_dead(self.steps, roots)
        constants = tuple(self.bindings.values())
        mark_windows(steps)
        mark_sizes(steps)
        mark_shape_free(steps, [binding.slot for binding in constants])
        return CanonicalGraph(
            name=self.name,
            num_slots=self.num_slots,
            inputs=tuple(self.inputs),
            constants=constants,
            states=tuple(self.states),
            steps=tuple(steps),
            results=results,
            state_updates=state_updates,
            input_updates=input_updates,
        )
