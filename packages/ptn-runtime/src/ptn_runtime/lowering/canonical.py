"""From the file's graph to the canonical graph, once per method: functional, bound to the catalogue, shapes open."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ptn_format.dtypes import ScalarType
from ptn_format.graph import (
    AffineGroup,
    BoolArg,
    FloatArg,
    Graph,
    GraphArg,
    InputKind,
    IntArg,
    IntListArg,
    Method,
    NamedArgument,
    Node,
    NoneArg,
    OpKind,
    OutputKind,
    OutputValueKind,
    StringArg,
    TensorArg,
    TensorListArg,
    TensorMeta,
)
from ptn_format.signature import SOURCE_KEY

from ptn_runtime.errors import LoweringError
from ptn_runtime.lowering import names
from ptn_runtime.lowering.aliasing import Handle, Tracker
from ptn_runtime.lowering.arguments import BindError, bind, literal_or_ref, names_read
from ptn_runtime.lowering.assertions import ASSERTIONS, Origins
from ptn_runtime.lowering.liveness import check_known, drop_dead, mark_shape_free
from ptn_runtime.lowering.packed import PackedConstants
from ptn_runtime.lowering.plan import (
    Assertion,
    Binding,
    Call,
    CanonicalGraph,
    Control,
    Item,
    Ref,
    ScalarCall,
    Settle,
    Step,
    Unknown,
)
from ptn_runtime.lowering.views import INVERSES
from ptn_runtime.shapes import OPERATORS
from ptn_runtime.shapes.symint import SCALAR_FUNCTIONS, SIZE_FUNCTIONS

__all__ = ["canonicalize"]

_SCALAR_KINDS = (OutputValueKind.INT, OutputValueKind.BOOL, OutputValueKind.FLOAT)
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


@dataclass(slots=True)
class _Context:
    """What a node handler needs of the node."""

    node: Node
    op: str
    source: str | None


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
        self.inputs: list[tuple[int, str]] = []
        self.input_handles: dict[str, Handle] = {}
        self.output: Node | None = None

    def new_slot(self) -> int:
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
                self.handles[ref.name] = self.tracker.root(slot, label, writable=False)
        for buffer in method.mutable_buffers:
            self._bind_state(buffer.name, buffer.fqn, self.graph.tensor_values[buffer.name])
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
                self._take(node)
        order = {name: index for index, name in enumerate(self.graph.inputs)}
        self.inputs.sort(key=lambda item: order.get(item[1], len(order)))

    def _bind_input(self, name: str, node: Node) -> None:
        slot = self.new_slot()
        self.inputs.append((slot, name))
        if node.outputs and node.outputs[0].kind in _SCALAR_KINDS:
            self.scalars[name] = slot
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

    # Nodes.

    def _take(self, node: Node) -> None:
        target = node.target or ""
        context = _Context(node, names.canonical_name(target), node.metadata.get(SOURCE_KEY))
        try:
            self._handler(context)(context)
        except BindError as error:
            self._take_unknown(context, str(error))

    def _handler(self, context: _Context) -> Callable[[_Context], None]:
        op = context.op
        if op in names.NO_OPS:
            return lambda context: None
        if op in SCALAR_FUNCTIONS or op in SIZE_FUNCTIONS:
            return self._take_scalar
        if op == "aten._local_scalar_dense.default":
            return self._take_item
        if op in ASSERTIONS:
            return self._take_assertion
        if op.startswith("control."):
            return self._take_control
        if names.is_in_place(op):
            return self._take_in_place
        return self._take_call

    def _take_unknown(self, context: _Context, reason: str) -> None:
        slots = []
        for item in context.node.inputs:
            for name in names_read(item.arg):
                handle = self.handles.get(name)
                slot = self.scalars.get(name) if handle is None else self.tracker.read(handle)
                if slot is not None:
                    slots.append(slot)
        outputs = []
        for name, kind in _output_names(context.node):
            slot = self.new_slot()
            outputs.append(slot)
            if kind in _SCALAR_KINDS:
                self.scalars[name] = slot
            else:
                self.define(name, slot)
        # What writes to its arguments, or gives nothing back, is there for its effect.
        effect = not outputs or any(item.mutated for item in context.node.inputs)
        self.steps.append(
            Unknown(context.node.name, context.op, reason, tuple(slots), tuple(outputs), effect, context.source)
        )

    def _take_call(self, context: _Context) -> None:
        node = context.node
        mutated = [item.name or "?" for item in node.inputs if item.mutated]
        if mutated:
            raise BindError(f"writes to its argument(s) {', '.join(mutated)}, which has no functional form")
        call = self._call(context, context.op, node.inputs)
        self.steps.append(call)
        shares = context.op in INVERSES and not names.is_view_copy(node.target or "")
        for index, (name, slot) in enumerate(zip(call.names, call.outputs, strict=True)):
            base = self._handle_of(node.inputs[0]) if shares and node.inputs else None
            if base is None:
                self.define(name, slot)
            else:
                self.handles[name] = self.tracker.view(base, slot, call, index)

    def _call(self, context: _Context, op: str, inputs: Iterable[NamedArgument]) -> Call:
        operator = OPERATORS.get(op)
        if operator is None:
            raise BindError("has no shape rule")
        outputs = _output_names(context.node)
        result = self.meta(outputs[0][0]) if outputs else None

        def slot_of(name: str) -> int:
            return self.packed.slot(name, op, result) if name in self.packed else self.slot_of(name)

        bound = bind(operator, inputs, slot_of)
        return Call(
            name=context.node.name,
            operator=operator,
            args=bound.args,
            tensors=bound.tensors,
            scalars=bound.scalars,
            lists=bound.lists,
            outputs=tuple(self.new_slot() for _ in outputs),
            names=tuple(name for name, _ in outputs),
            metas=tuple(self.meta(name) for name, _ in outputs),
            foldable=operator.deterministic and operator.family not in ("quant", "control"),
            effect=op.startswith("aten._assert_async."),
            source=context.source,
        )

    def _handle_of(self, item: NamedArgument) -> Handle | None:
        return self.handles.get(item.arg.name) if isinstance(item.arg, TensorArg) else None

    def _take_in_place(self, context: _Context) -> None:
        node = context.node
        base = context.op.rpartition(".")[0]
        if base in names.IN_PLACE_VIEWS:
            raise BindError("changes the shape or storage of its argument in place")
        target = self._handle_of(node.inputs[0]) if node.inputs else None
        if target is None:
            raise BindError("writes to something that is no tensor")
        others = [item.name or "?" for item in node.inputs[1:] if item.mutated]
        if others:
            raise BindError(f"writes to its argument(s) {', '.join(others)}, which has no functional form")
        if not target.storage.writable:
            raise BindError(f"writes to {target.storage.label}, which is read-only")
        inputs = node.inputs
        op = names.functional_name(context.op)
        if op == "aten.zero.default":
            op = "aten.fill.Scalar"
            inputs = (node.inputs[0], NamedArgument("value", IntArg(0)))
        old = self.tracker.read(target)
        call = self._call(context, op, inputs)
        if not call.outputs:  # the file may leave out the result of an in-place operator
            call.outputs, call.names, call.metas = (self.new_slot(),), (node.name,), (None,)
        self.steps.append(call)
        settled = self.new_slot()
        self.steps.append(Settle(node.name, op, old, call.outputs[0], settled, context.source))
        call.metas = (None,)  # the file's entry describes the settled value
        self.tracker.write(target, settled)
        for name in call.names:
            self.handles[name] = target

    def _take_scalar(self, context: _Context) -> None:
        node, op = context.node, context.op
        takes_tensors = op in SIZE_FUNCTIONS
        function = SIZE_FUNCTIONS[op] if takes_tensors else SCALAR_FUNCTIONS[op]
        args = tuple(self._scalar(item) for item in node.inputs)
        output = self.new_slot()
        name = node.outputs[0].name if node.outputs else node.name
        self.scalars[name] = output
        self.steps.append(ScalarCall(node.name, op, function, args, output, takes_tensors, context.source))
        self.origins.add(node, op, name)

    def _scalar(self, item: NamedArgument) -> Any:
        arg = item.arg
        match arg:
            case IntArg() | FloatArg() | BoolArg():
                return literal_or_ref(arg, self.slot_of)
            case TensorArg(name=name):
                return Ref(self.slot_of(name))
            case IntListArg(values=values, refs=refs):
                if not refs:
                    return values
                return tuple(Ref(self.slot_of(r)) if r else v for v, r in zip(values, refs, strict=True))
            case StringArg(value=value):
                return value
            case NoneArg():
                return None
            case _:
                raise BindError(f"takes a {type(arg).__name__}")

    def _take_item(self, context: _Context) -> None:
        node = context.node
        (item,) = node.inputs
        tensor = self._scalar(item)
        if type(tensor) is not Ref:
            raise BindError("takes no tensor")
        output = self.new_slot()
        self.scalars[node.outputs[0].name] = output
        self.steps.append(Item(node.name, tensor.slot, output, context.source))

    def _take_assertion(self, context: _Context) -> None:
        node = context.node
        rule = ASSERTIONS[context.op]
        given = {item.name or rule.parameters[index]: item for index, item in enumerate(node.inputs)}
        args = tuple(self._scalar(given[name]) if name in given else None for name in rule.parameters)
        message = given["assert_msg"].arg if "assert_msg" in given else None
        self.steps.append(
            Assertion(
                name=node.name,
                op=context.op,
                holds=rule.holds,
                args=args,
                message=message.value if isinstance(message, StringArg) else "",
                origins=self.origins.of(node),
                source=context.source,
            )
        )

    def _take_control(self, context: _Context) -> None:
        node = context.node
        graphs: list[CanonicalGraph] = []
        operands: list[tuple[Any, ...]] = []
        predicate: Any = None
        for item in node.inputs:
            match item.arg:
                case GraphArg(name=name, graph=graph):
                    graphs.append(self._nested(f"{self.name}.{node.name}.{name}", graph))
                case TensorListArg(names=values):
                    operands.append(tuple(Ref(self.slot_of(value)) for value in values))
                case IntListArg():
                    operands.append(self._scalar(item))
                case _ if not graphs:
                    predicate = self._scalar(item)
                case _:
                    raise BindError(f"takes a {type(item.arg).__name__} after its graphs")
        wanted = 1 if context.op == "control.map" else 2
        if len(graphs) != wanted:
            raise BindError(f"takes {wanted} nested graph(s), has {len(graphs)}")
        outputs = _output_names(node)
        slots = tuple(self.new_slot() for _ in outputs)
        for (name, kind), slot in zip(outputs, slots, strict=True):
            if kind in _SCALAR_KINDS:
                self.scalars[name] = slot
            else:
                self.define(name, slot)
        self.steps.append(
            Control(
                name=node.name,
                op=context.op,
                graphs=tuple(graphs),
                predicate=predicate,
                operands=tuple(operands),
                outputs=slots,
                names=tuple(name for name, _ in outputs),
                source=context.source,
            )
        )

    def _nested(self, name: str, graph: Graph) -> CanonicalGraph:
        body = Body(graph, name, self.constants, self.depth + 1)
        body.take_nodes()
        for input_name, handle in body.input_handles.items():
            if handle.storage.version:
                raise BindError(f"nested graph '{name}' writes to its operand '{input_name}'")
        return body.finish(tuple(body.results(())))

    # The end.

    def results(self, mutations: Iterable[str]) -> Iterable[Any]:
        """The user's results: the output node's arguments without the leading `mutations`."""
        skipped = list(mutations)
        for item in self.output.inputs if self.output is not None else ():
            arg = item.arg
            if skipped and isinstance(arg, TensorArg):
                if arg.name != skipped[0]:
                    raise LoweringError(
                        f"graph '{self.name}': output '{arg.name}' stands where the mutation '{skipped[0]}' is due"
                    )
                skipped.pop(0)
                continue
            match arg:
                case TensorArg(name=name):
                    yield Ref(self.slot_of(name))
                case TensorListArg(names=values):
                    for value in values:
                        yield Ref(self.slot_of(value))
                case _:
                    yield self._scalar(item)

    def finish_method(self, method: Method) -> CanonicalGraph:
        """Adds results and updates."""
        mutations: list[str] = []
        state_slots: dict[str, int] = {}
        input_slots: dict[str, int] = {}
        try:
            for spec in method.output_specs:
                if spec.kind is OutputKind.USER_OUTPUT:
                    continue
                mutations.append(spec.name)
                slots = state_slots if spec.kind is OutputKind.BUFFER_MUTATION else input_slots
                slots[spec.target or ""] = self.slot_of(spec.name)
            results = tuple(self.results(mutations))
        except BindError as error:
            raise LoweringError(f"method '{self.name}': its output cannot be lowered: {error}") from error
        state_updates = self._updates(self.state_handles, state_slots)
        input_updates = self._updates(self.input_handles, input_slots)
        return self.finish(results, state_updates, input_updates)

    def _updates(self, handles: Mapping[str, Handle], stated: Mapping[str, int]) -> tuple[tuple[int, int], ...]:
        unknown = sorted(set(stated) - set(handles))
        if unknown:
            raise LoweringError(f"method '{self.name}' changes {', '.join(unknown)}, which it does not bind")
        updates = []
        for key, handle in handles.items():
            if key in stated:
                updates.append((self._initial[id(handle)], stated[key]))
            elif handle.storage.version:
                updates.append((self._initial[id(handle)], self.tracker.read(handle)))
        return tuple(updates)

    @property
    def _initial(self) -> Mapping[int, int]:
        """For the handle of each state and input the slot with its contents at the start."""
        slots = {id(self.state_handles[state.key]): state.slot for state in self.states}
        slots.update((id(self.input_handles[name]), slot) for slot, name in self.inputs if name in self.input_handles)
        return slots

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


def _output_names(node: Node) -> list[tuple[str, OutputValueKind]]:
    outputs: list[tuple[str, OutputValueKind]] = []
    for output in node.outputs:
        if output.kind is OutputValueKind.TENSOR_LIST:
            outputs.extend((name, OutputValueKind.TENSOR) for name in output.names)
        else:
            outputs.append((output.name, output.kind))
    return outputs
