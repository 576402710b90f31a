"""From the file's nodes to steps: which handler takes which node, and what each does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ptn_format.graph import (
    BoolArg,
    FloatArg,
    GraphArg,
    IntArg,
    IntListArg,
    NamedArgument,
    Node,
    NoneArg,
    OutputValueKind,
    StringArg,
    TensorArg,
    TensorListArg,
)
from ptn_format.signature import SOURCE_KEY

from ptn_runtime.errors import LoweringError
from ptn_runtime.lowering import names
from ptn_runtime.lowering.aliasing import Handle
from ptn_runtime.lowering.arguments import BindError, bind, literal_or_ref, names_read
from ptn_runtime.lowering.assertions import ASSERTIONS
from ptn_runtime.lowering.complex import ComplexValues
from ptn_runtime.lowering.plan import (
    Assertion,
    Call,
    CanonicalGraph,
    Control,
    Item,
    Ref,
    ScalarCall,
    Settle,
    Unknown,
)
from ptn_runtime.lowering.views import INVERSES, SOMETIMES_VIEWS
from ptn_runtime.shapes import OPERATORS
from ptn_runtime.shapes.symint import SCALAR_FUNCTIONS, SIZE_FUNCTIONS

if TYPE_CHECKING:
    from ptn_runtime.lowering.canonical import Body

__all__ = ["SCALAR_KINDS", "NodeReader"]

SCALAR_KINDS = frozenset({OutputValueKind.INT, OutputValueKind.BOOL, OutputValueKind.FLOAT})
"""Kinds of node outputs that are Python scalars."""


@dataclass(slots=True)
class _Context:
    """What a node handler needs of the node."""

    node: Node
    op: str
    source: str | None


class NodeReader:
    """Adds the steps of nodes to a graph body."""

    def __init__(self, body: Body) -> None:
        self.body = body
        self.complex = ComplexValues()

    def take(self, node: Node) -> None:
        """Adds the steps of `node`; where that cannot be, an `Unknown` step that says why."""
        target = node.target or ""
        context = _Context(node, names.canonical_name(target), node.metadata.get(SOURCE_KEY))
        try:
            context.node = self.complex.rewritten(node)
            self._handler(context)(context)
        except BindError as error:
            self._take_unknown(context, str(error))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            where = f" from {context.source}" if context.source else ""
            raise LoweringError(
                f"method '{self.body.name}': node '{node.name}' ({context.op}){where} is not formed as the format "
                f"demands: {type(error).__name__}: {error}. Check the file with `ptn verify`."
            ) from error

    def _handler(self, context: _Context) -> Callable[[_Context], None]:
        op = context.op
        if op.startswith("aten._foreach_"):
            raise BindError("works on a list of tensors at once; call the plain operator for each before exporting")
        if op in names.NO_OPS:
            return self._drop
        if op in SCALAR_FUNCTIONS or op in SIZE_FUNCTIONS:
            return self._take_scalar
        if op == "aten._local_scalar_dense.default":
            return self._take_item
        if op in ASSERTIONS:
            return self._take_assertion
        if op.startswith("control."):
            return self._take_control
        if op in names.CARRIED_RESULTS:
            return self._take_carried
        if op == "aten.resize_.default":
            return self._take_resize
        if names.is_in_place(op):
            return self._take_in_place
        if names.functional_overload(op) in OPERATORS:
            return self._take_out
        return self._take_call

    def _drop(self, context: _Context) -> None:
        """Shape rules establish what `context` checks."""

    def _take_unknown(self, context: _Context, reason: str) -> None:
        body, node = self.body, context.node
        slots = []
        for item in node.inputs:
            for name in names_read(item.arg):
                handle = body.handles.get(name)
                slot = body.scalars.get(name) if handle is None else body.tracker.read(handle)
                if slot is not None:
                    slots.append(slot)
        outputs = self._define_outputs(node)
        # What writes to its arguments, or gives nothing back, is there for its effect.
        effect = not outputs or names.is_in_place(context.op) or any(item.mutated for item in node.inputs)
        body.steps.append(Unknown(node.name, context.op, reason, tuple(slots), outputs, effect, context.source))
        self._freeze(context)

    def _define_outputs(self, node: Node) -> tuple[int, ...]:
        slots = []
        for name, kind in _output_names(node):
            slot = self.body.new_slot()
            slots.append(slot)
            if kind in SCALAR_KINDS:
                self.body.scalars[name] = slot
            else:
                self.body.define(name, slot)
        return tuple(slots)

    def _freeze(self, context: _Context) -> None:
        """Forbids later writes to memory that results share in a way that is not known here."""
        for output in context.node.outputs:
            if output.alias_of is None:
                continue
            reason = f"which '{output.name}' and '{output.alias_of}' share through {context.op}"
            for name in (output.name, output.alias_of):
                if name in self.body.handles:
                    self.body.handles[name].storage.freeze(reason)

    def _take_call(self, context: _Context) -> None:
        node = context.node
        mutated = [item.name or "?" for item in node.inputs if item.mutated]
        if mutated:
            raise BindError(f"writes to its argument(s) {', '.join(mutated)}, which has no functional form")
        call = self._call(context, context.op, names.without_surplus(node.target or "", node.inputs))
        self.body.steps.append(call)
        base = self._handle_of(node.inputs[0]) if node.inputs else None
        shares = base is not None and context.op in INVERSES and not names.is_view_copy(node.target or "")
        if shares and context.op in SOMETIMES_VIEWS and base is not None and not base.is_contiguous:
            shares = False
        for index, (name, slot) in enumerate(zip(call.names, call.outputs, strict=True)):
            if base is None or not shares:
                self.body.define(name, slot)
            else:
                self.body.handles[name] = self.body.tracker.view(base, slot, call, index)
        if not shares:
            self._freeze(context)

    def _call(self, context: _Context, op: str, inputs: Iterable[NamedArgument]) -> Call:
        operator = OPERATORS.get(op)
        if operator is None:
            raise BindError("has no shape rule")
        outputs = _output_names(context.node)
        result = self.body.meta(outputs[0][0]) if outputs else None

        def slot_of(name: str) -> int:
            return self.body.packed.slot(name, op, result) if name in self.body.packed else self.body.slot_of(name)

        bound = bind(operator, inputs, slot_of)
        return Call(
            name=context.node.name,
            operator=operator,
            args=bound.args,
            tensors=bound.tensors,
            scalars=bound.scalars,
            lists=bound.lists,
            outputs=tuple(self.body.new_slot() for _ in outputs),
            names=tuple(name for name, _ in outputs),
            metas=tuple(self.body.meta(name) for name, _ in outputs),
            foldable=operator.deterministic and operator.family not in ("quant", "control"),
            effect=op.startswith("aten._assert_async."),
            source=context.source,
        )

    def _handle_of(self, item: NamedArgument) -> Handle | None:
        return self.body.handles.get(item.arg.name) if isinstance(item.arg, TensorArg) else None

    def _take_in_place(self, context: _Context) -> None:
        node = context.node
        base = context.op.rpartition(".")[0]
        if base in names.IN_PLACE_VIEWS:
            raise BindError("changes the shape or storage of its argument in place")
        target = self._handle_of(node.inputs[0]) if node.inputs else None
        if target is None:
            raise BindError("writes to something that is no tensor")
        if base == "aten.detach_":  # concerns autograd only
            self.body.handles.update((name, target) for name, _ in _output_names(node))
            return
        others = [item.name or "?" for item in node.inputs[1:] if item.mutated]
        if others:
            raise BindError(f"writes to its argument(s) {', '.join(others)}, which has no functional form")
        inputs = node.inputs
        op = names.functional_name(context.op)
        if op == "aten.zero.default":
            op = "aten.fill.Scalar"
            inputs = (node.inputs[0], NamedArgument("value", IntArg(0)))
        self._replace(context, target, op, inputs)

    def _take_out(self, context: _Context) -> None:
        """An overload that writes its result to its argument `out`."""
        node = context.node
        mutated = [item.name or "?" for item in node.inputs if item.mutated]
        given = {item.name: item for item in node.inputs}
        target = self._handle_of(given["out"]) if "out" in given else None
        if target is None or mutated not in ([], ["out"]):
            raise BindError(f"writes to its argument(s) {', '.join(mutated)}, which has no functional form")
        inputs = tuple(item for item in node.inputs if item.name != "out")
        self._replace(context, target, names.functional_overload(context.op), inputs)

    def _replace(self, context: _Context, target: Handle, op: str, inputs: tuple[NamedArgument, ...]) -> None:
        """Gives `target` the result of `op`, which keeps the element type of `target`."""
        _check_writable(target)
        old = self.body.tracker.read(target)
        call = self._call(context, op, inputs)
        if not call.outputs:  # the file may leave out the result of an in-place operator
            call.outputs, call.names, call.metas = (self.body.new_slot(),), (context.node.name,), (None,)
        self.body.steps.append(call)
        self._write(context, op, target, old, call.outputs[0])
        call.metas = (None,)  # the file's entry describes the settled value
        for name in call.names:
            self.body.handles[name] = target

    def _write(self, context: _Context, op: str, target: Handle, old: int, new: int) -> None:
        settled = self.body.new_slot()
        self.body.steps.append(Settle(context.node.name, op, old, new, settled, context.source))
        self.body.tracker.write(target, settled)

    def _take_carried(self, context: _Context) -> None:
        """An operator whose functional form returns the new contents of arguments after the results."""
        node = context.node
        op, written = names.CARRIED_RESULTS[context.op]
        parameters = OPERATORS[context.op].parameters
        given = {item.name or parameters[index]: item for index, item in enumerate(node.inputs)}
        training = given["training"].arg if "training" in given else None
        if isinstance(training, BoolArg) and training.ref is None and not training.value:
            context.node = replace(node, inputs=tuple(replace(item, mutated=False) for item in node.inputs))
            return self._take_call(context)
        targets = [self._handle_of(given[name]) if name in given else None for name in written]
        call = self._call(context, op, node.inputs)
        self.body.steps.append(call)
        for name, slot in zip(call.names, call.outputs, strict=True):
            self.body.define(name, slot)
        for name, target in zip(written, targets, strict=True):
            if target is None:
                raise BindError(f"its argument '{name}' is no tensor")
            _check_writable(target)
            new = self.body.new_slot()
            call.outputs, call.names, call.metas = (
                (*call.outputs, new),
                (*call.names, f"{node.name}_{name}"),
                (*call.metas, None),
            )
            self._write(context, op, target, self.body.tracker.read(target), new)
        return None

    def _take_resize(self, context: _Context) -> None:
        """The tensor under its names so far is another one from here on; views keep the elements of the old one."""
        body, node = self.body, context.node
        target = self._handle_of(node.inputs[0]) if node.inputs else None
        if target is None:
            raise BindError("writes to something that is no tensor")
        _check_writable(target)
        if target.parent is not None:
            raise BindError("changes the shape of a view in place")
        if any(target is handle for handle in (*body.input_handles.values(), *body.state_handles.values())):
            raise BindError(f"changes the shape of {target.storage.label} in place")
        call = self._call(context, "aten.resize.default", node.inputs)
        if not call.outputs:
            call.outputs, call.names, call.metas = (body.new_slot(),), (node.name,), (None,)
        body.steps.append(call)
        shared = any(handle.storage is target.storage and handle is not target for handle in body.handles.values())
        resized = body.tracker.root(call.outputs[0], target.storage.label)
        if shared:
            for storage in (target.storage, resized.storage):
                storage.freeze(f"whose elements '{node.name}' and views share through {context.op}")
        for name in [name for name, handle in body.handles.items() if handle is target]:
            body.handles[name] = resized
        for name in call.names:
            body.handles[name] = resized

    def _take_scalar(self, context: _Context) -> None:
        node, op = context.node, context.op
        takes_tensors = op in SIZE_FUNCTIONS
        function = SIZE_FUNCTIONS[op] if takes_tensors else SCALAR_FUNCTIONS[op]
        args = tuple(self.scalar(item) for item in node.inputs)
        output = self.body.new_slot()
        name = node.outputs[0].name if node.outputs else node.name
        self.body.scalars[name] = output
        self.body.steps.append(ScalarCall(node.name, op, function, args, output, takes_tensors, context.source))
        self.body.origins.add(node, op, name)

    def scalar(self, item: NamedArgument) -> Any:
        """An argument as a literal, a `Ref`, or a tuple of both.

        Raises:
            BindError: it is a list of tensors or a graph, or names a value that is not defined.
        """
        arg = item.arg
        match arg:
            case IntArg() | FloatArg() | BoolArg():
                return literal_or_ref(arg, self.body.slot_of)
            case TensorArg(name=name):
                self.complex.refuse(name)
                return Ref(self.body.slot_of(name))
            case IntListArg(values=values, refs=refs):
                if not refs:
                    return values
                return tuple(Ref(self.body.slot_of(r)) if r else v for v, r in zip(values, refs, strict=True))
            case StringArg(value=value):
                return value
            case NoneArg():
                return None
            case _:
                raise BindError(f"takes a {type(arg).__name__}")

    def _take_item(self, context: _Context) -> None:
        node = context.node
        (item,) = node.inputs
        tensor = self.scalar(item)
        if type(tensor) is not Ref:
            raise BindError("takes no tensor")
        output = self.body.new_slot()
        self.body.scalars[node.outputs[0].name] = output
        self.body.steps.append(Item(node.name, tensor.slot, output, context.source))

    def _take_assertion(self, context: _Context) -> None:
        node = context.node
        rule = ASSERTIONS[context.op]
        if len(node.inputs) > len(rule.parameters):
            raise BindError(f"takes {len(rule.parameters)} arguments, has {len(node.inputs)}")
        given = {item.name or rule.parameters[index]: item for index, item in enumerate(node.inputs)}
        message = given.pop("assert_msg").arg if "assert_msg" in given else None
        checked = (name for name in rule.parameters if name != "assert_msg")
        args = tuple(self.scalar(given[name]) if name in given else None for name in checked)
        self.body.steps.append(
            Assertion(
                name=node.name,
                op=context.op,
                holds=rule.holds,
                args=args,
                message=message.value if isinstance(message, StringArg) else "",
                origins=self.body.origins.of(node),
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
                    graphs.append(self.body.nested(f"{node.name}.{name}", graph))
                case TensorListArg(names=values):
                    operands.append(tuple(Ref(self.body.slot_of(value)) for value in values))
                case IntListArg():
                    operands.append(self.scalar(item))
                case _ if not graphs:
                    predicate = self.scalar(item)
                case _:
                    raise BindError(f"takes a {type(item.arg).__name__} after its graphs")
        wanted = 1 if context.op in ("control.map", "control.scan") else 2
        if len(graphs) != wanted:
            raise BindError(f"takes {wanted} nested graph(s), has {len(graphs)}")
        self.body.steps.append(
            Control(
                name=node.name,
                op=context.op,
                graphs=tuple(graphs),
                predicate=predicate,
                operands=tuple(operands),
                outputs=self._define_outputs(node),
                names=tuple(name for name, _ in _output_names(node)),
                source=context.source,
            )
        )


def _check_writable(target: Handle) -> None:
    if target.storage.frozen is not None:
        raise BindError(f"writes to {target.storage.label}, {target.storage.frozen}")


def _output_names(node: Node) -> list[tuple[str, OutputValueKind]]:
    outputs: list[tuple[str, OutputValueKind]] = []
    for output in node.outputs:
        if output.kind is OutputValueKind.TENSOR_LIST:
            outputs.extend((name, OutputValueKind.TENSOR) for name in output.names)
        else:
            outputs.append((output.name, output.kind))
    return outputs
