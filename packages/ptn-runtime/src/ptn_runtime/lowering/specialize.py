"""From the canonical graph to the static graph, once per set of input shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from ptn_format.dtypes import ScalarType
from ptn_format.graph import TensorMeta

from ptn_runtime.errors import InputError, LoweringError
from ptn_runtime.lowering.finish import finish
from ptn_runtime.lowering.fold import Folded, Folder
from ptn_runtime.lowering.messages import Messages
from ptn_runtime.lowering.plan import (
    Assertion,
    Call,
    CanonicalGraph,
    Control,
    Item,
    Ref,
    ScalarCall,
    Scatter,
    Settle,
    Step,
    Unknown,
)
from ptn_runtime.lowering.scalars import Scalars
from ptn_runtime.lowering.simplify import SIMPLIFIERS
from ptn_runtime.lowering.static import StaticGraph, StaticNode, TensorSpec, Value, ValueKind
from ptn_runtime.lowering.views import INVERSES
from ptn_runtime.shapes import OPERATORS, infer

__all__ = ["specialize"]

_CONSTANT = ValueKind.CONSTANT


def specialize(
    graph: CanonicalGraph,
    inputs: Sequence[TensorSpec],
    input_names: Mapping[str, str],
    folder: Folder,
    *,
    dynamic: bool,
) -> StaticGraph:
    """The static graph for these inputs.

    Args:
        graph: the method's canonical graph. Results of folding that hold for all shapes are kept in it, so one graph
            must be specialised by one thread at a time.
        inputs: dtype and shape of each user input.
        input_names: what users call the inputs, by their names in the graph; for messages.
        folder: evaluates constants.
        dynamic: some input may have other shapes; then a shape that does not fit is the caller's fault.

    Raises:
        InputError: the shapes do not fit the program.
        LoweringError: a node cannot be lowered.
    """
    builder = _Builder(graph, folder, Messages(graph, inputs, input_names, dynamic))
    values = []
    for (slot, name), spec in zip(graph.inputs, inputs, strict=True):
        value = Value(-1, name, spec.dtype, spec.shape, ValueKind.INPUT)
        builder.env[slot] = value
        values.append(value)
    return builder.build(tuple(values))


class _Builder:
    """Runs the steps of one graph and collects nodes; nested graphs get a builder of their own."""

    def __init__(self, graph: CanonicalGraph, folder: Folder, messages: Messages) -> None:
        self.graph = graph
        self.folder = folder
        self.messages = messages
        self.env: list[Any] = [None] * graph.num_slots
        self.nodes: list[StaticNode] = []
        self._step: Step | None = None
        self._scalars = Scalars(self.emit)
        self._from_weights: dict[int, Value] = {}  # by id; holding the values keeps ids from being used again

    def build(self, inputs: tuple[Value, ...], *, nested: bool = False) -> StaticGraph:
        """Runs all steps; `env` holds the inputs. Scalar results of a nested graph become tensors of no axes."""
        graph, env = self.graph, self.env
        states = self._bind(graph)
        self.run(graph.steps)
        results = tuple(env[item.slot] if type(item) is Ref else item for item in graph.results)
        if nested:
            results = tuple(self._scalars.as_value(item) for item in results)
        return finish(
            graph.name,
            inputs=inputs,
            states=states,
            nodes=self.nodes,
            results=results,
            state_updates=[(env[old], env[new]) for old, new in graph.state_updates],
            input_updates=[(env[old], env[new]) for old, new in graph.input_updates],
        )

    def _bind(self, graph: CanonicalGraph) -> tuple[Value, ...]:
        env = self.env
        for binding in graph.constants:
            env[binding.slot] = Value(-1, binding.name, binding.dtype, binding.shape, _CONSTANT, binding.key)
        states = []
        for binding in graph.states:
            value = Value(-1, binding.name, binding.dtype, binding.shape, ValueKind.STATE, binding.key)
            env[binding.slot] = value
            states.append(value)
        return tuple(states)

    def run(self, steps: Iterable[Step]) -> None:
        """Runs steps in order, turning what goes wrong into errors that name the step."""
        handlers = _HANDLERS
        for step in steps:
            self._step = step
            try:
                handlers[type(step)](self, step)
            except InputError:
                raise
            except Exception as error:  # a faulty rule must not surface as a bare TypeError
                if getattr(error, "located", False):
                    raise
                self._raise(step, error)

    def _raise(self, step: Step, error: Exception) -> NoReturn:
        values = [self.env[slot] for slot in step.reads()]
        shapes = ", ".join(str(value) for value in values if isinstance(value, Value)) or "its arguments"
        try:
            self.messages.raise_for(step, error, shapes)
        except LoweringError as located:
            located.located = True  # type: ignore[attr-defined]  # enclosing graphs pass it on as it is
            raise

    # Steps.

    def _call(self, step: Call) -> None:
        env = self.env
        args = step.args.copy()
        constant = step.foldable
        for name, slot in step.tensors:
            value = env[slot]
            args[name] = value
            if constant and value.kind is not _CONSTANT:
                constant = False
        for name, slot, run_time in step.scalars:
            value = env[slot]
            if type(value) is Value:
                constant = False
                if not run_time:
                    raise _data_dependent(name, value)
            args[name] = value
        for name, items in step.lists:
            resolved = tuple([env[item.slot] if type(item) is Ref else item for item in items])
            args[name] = resolved
            constant = self._check_list(step, name, resolved) and constant
        results = self._results(step, args, constant)
        for slot, value in zip(step.outputs, results, strict=True):
            env[slot] = value

    def _check_list(self, step: Call, name: str, items: tuple[Any, ...]) -> bool:
        """Whether all tensors of a list are constant; refuses run-time numbers among sizes."""
        constant = True
        numbers = name in step.operator.numbers
        for item in items:
            if type(item) is Value:
                if numbers:
                    raise _data_dependent(name, item)
                if item.kind is not _CONSTANT:
                    constant = False
        return constant

    def _results(self, step: Call, args: dict[str, Any], constant: bool) -> Sequence[Value]:
        operator = step.operator
        if constant and step.shape_free:
            known = self.graph.folded.get(step.outputs[0])
            if known is not None:
                return self._literals(step, known)
        inferred = operator.rule(**args)
        specs = (inferred,) if isinstance(inferred, TensorSpec) else inferred
        for spec, meta in zip(specs, step.metas, strict=True):
            if meta is not None and not _fits(spec, meta):
                raise _MismatchError(f"the shape rule gives {spec}, the file says {_stated(meta)}")
        simplifier = SIMPLIFIERS.get(operator.name)
        if simplifier is not None:
            same = simplifier(self.emit, args, specs[0])
            if same is not None:
                return (same,)
        if constant:
            weights = self._weights_among(args)
            arrays = None
            if self.folder.worthwhile(sum(value.nbytes for value in weights), specs):
                arrays = self.folder.evaluate(operator.name, args, specs)
            if arrays is not None:
                folded = Folded(arrays, bool(weights))
                if step.shape_free:
                    self.graph.folded[step.outputs[0]] = folded
                return self._literals(step, folded)
        outputs = tuple([Value(-1, name, spec.dtype, spec.shape) for name, spec in zip(step.names, specs, strict=True)])
        self.nodes.append(StaticNode(step.name, operator.name, args, outputs, step.source))
        return outputs

    def _literals(self, step: Call, folded: Folded) -> list[Value]:
        values = [
            Value(-1, name, ScalarType.from_numpy(array.dtype), array.shape, _CONSTANT, None, array)
            for name, array in zip(step.names, folded.arrays, strict=True)
        ]
        if folded.from_weights:
            self._from_weights.update((id(value), value) for value in values)
        return values

    def _weights_among(self, args: Mapping[str, Any]) -> list[Value]:
        items = (item for arg in args.values() for item in (arg if isinstance(arg, tuple) else (arg,)))
        values = (item for item in items if isinstance(item, Value))
        return [value for value in values if value.key is not None or id(value) in self._from_weights]

    def emit(self, op: str, /, **given: Any) -> Value:
        """Adds a node with one result that the file does not have, on behalf of the current step."""
        step = self._step
        assert step is not None
        operator = OPERATORS.get(op)
        if operator is None:
            raise LoweringError(f"needs {op}, which has no shape rule")
        args = {name: given[name] if name in given else operator.defaults[name] for name in operator.parameters}
        call = Call(
            name=step.name,
            operator=operator,
            args=args,
            tensors=(),
            scalars=(),
            lists=(),
            outputs=(),
            names=(step.name,),
            metas=(None,),
            foldable=True,
            source=step.source,
        )
        constant = all(not isinstance(arg, Value) or arg.kind is _CONSTANT for arg in args.values())
        if op.startswith("aten._assert_async."):
            self.nodes.append(StaticNode(step.name, op, args, (), step.source))
            return args["self"]  # type: ignore[no-any-return]
        (result,) = self._results(call, args, constant)
        return result

    def _scalar_call(self, step: ScalarCall) -> None:
        env = self.env
        args = [_resolve(env, item) for item in step.args]
        if not step.takes_tensors and any(type(arg) is Value for arg in args):
            env[step.output] = self._scalars.run_time(step.op, args)
            return
        try:
            env[step.output] = step.function(*args)
        except (ArithmeticError, OverflowError) as error:
            raise ValueError(f"{step.op}{tuple(args)}: {error}") from error

    def _item(self, step: Item) -> None:
        value = self.env[step.tensor]
        if not isinstance(value, Value):
            self.env[step.output] = value
            return
        if value.numel != 1:
            raise ValueError(f"item() takes a tensor of one element, got {value}")
        if value.kind is _CONSTANT:
            self.env[step.output] = self.folder.array(value).item()
            return
        self.env[step.output] = self.emit("aten.view.default", self=value, size=())

    def _assertion(self, step: Assertion) -> None:
        args = tuple(_resolve(self.env, item) for item in step.args)
        if any(type(arg) is Value for arg in args):
            for condition in self._scalars.run_time_assertion(args):
                self.emit("aten._assert_async.msg", self=condition, assert_msg=step.message)
        elif not step.holds(*args):
            self.messages.raise_assertion(step, args)

    def _settle(self, step: Settle) -> None:
        old, new = self.env[step.old], self.env[step.new]
        if old.shape != new.shape:
            raise ValueError(f"an in-place operator gives {list(new.shape)}, its argument is {list(old.shape)}")
        if new.dtype is not old.dtype:
            new = self.emit("aten._to_copy.default", self=new, dtype=old.dtype)
        self.env[step.output] = new

    def _scatter(self, step: Scatter) -> None:
        env, view = self.env, step.view
        args = view.args.copy()
        for name, slot in view.tensors:
            args[name] = env[slot]
        for name, slot, _ in view.scalars:
            if type(env[slot]) is Value:
                raise _data_dependent(name, env[slot])
            args[name] = env[slot]
        for name, items in view.lists:
            args[name] = tuple(_resolve(env, item) for item in items)
        env[step.output] = INVERSES[view.op](self.emit, env[step.base], env[step.new], args, step.index)

    def _unknown(self, step: Unknown) -> None:
        raise LoweringError(step.reason)

    # Higher-order operators.

    def _control(self, step: Control) -> None:
        env = self.env
        operands = [tuple(_resolve(env, item) for item in items) for items in step.operands]
        predicate = _resolve(env, step.predicate)
        if step.op == "control.cond":
            results = self._cond(step, predicate, operands[0] if operands else ())
        elif step.op == "control.while_loop":
            results = self._while_loop(step, operands)
        elif step.op == "control.scan":
            results = self._scan(step, operands)
        else:
            results = self._map(step, operands)
        for slot, value in zip(step.outputs, results, strict=True):
            env[slot] = value

    def _cond(self, step: Control, predicate: Any, operands: tuple[Any, ...]) -> Sequence[Any]:
        if isinstance(predicate, Value) and predicate.kind is _CONSTANT and predicate.numel == 1:
            predicate = self.folder.array(predicate).item()
        if not isinstance(predicate, Value):
            return self._inline(step.graphs[0 if predicate else 1], operands)
        graphs = tuple(self._nested(graph, operands) for graph in step.graphs)
        return self._control_node(
            step,
            {"pred": predicate, "true_fn": graphs[0], "false_fn": graphs[1], "operands": _varying(operands)},
        )

    def _while_loop(self, step: Control, operands: Sequence[tuple[Any, ...]]) -> Sequence[Any]:
        carried = tuple(self._scalars.as_value(item) for item in operands[0])
        additional = operands[1] if len(operands) > 1 else ()
        specs = tuple(TensorSpec(value.dtype, value.shape) for value in carried)
        graphs = tuple(self._nested(graph, (*specs, *additional)) for graph in step.graphs)
        return self._control_node(
            step,
            {
                "cond_fn": graphs[0],
                "body_fn": graphs[1],
                "carried_inputs": carried,
                "additional_inputs": _varying(additional),
            },
        )

    def _map(self, step: Control, operands: Sequence[tuple[Any, ...]]) -> Sequence[Any]:
        xs = operands[0]
        extra = operands[1] if len(operands) > 1 else ()
        nested = self._nested(step.graphs[0], (*_rows("map", xs), *extra))
        return self._control_node(step, {"f": nested, "xs": xs, "pos_args": _varying(extra)})

    def _scan(self, step: Control, operands: Sequence[tuple[Any, ...]]) -> Sequence[Any]:
        init = tuple(self._scalars.as_value(item) for item in operands[0])
        xs = operands[1] if len(operands) > 1 else ()
        additional = operands[2] if len(operands) > 2 else ()
        carried = tuple(TensorSpec(value.dtype, value.shape) for value in init)
        nested = self._nested(step.graphs[0], (*carried, *_rows("scan", xs), *additional))
        return self._control_node(
            step,
            {"combine_fn": nested, "init": init, "xs": xs, "additional_inputs": _varying(additional)},
        )

    def _control_node(self, step: Control, args: dict[str, Any]) -> Sequence[Value]:
        specs = infer(step.op, args)
        outputs = tuple(Value(-1, name, spec.dtype, spec.shape) for name, spec in zip(step.names, specs, strict=True))
        self.nodes.append(StaticNode(step.name, step.op, args, outputs, step.source))
        return outputs

    def _nested(self, graph: CanonicalGraph, operands: Sequence[Any]) -> StaticGraph:
        """The static graph of a branch or body.

        Its inputs are the varying tensors and the `TensorSpec`s among `operands`; scalars and constants are built in.
        """
        builder = _Builder(graph, self.folder, self.messages)
        inputs = []
        for (slot, name), operand in zip(graph.inputs, operands, strict=True):
            if isinstance(operand, Value) and operand.kind is _CONSTANT:
                copy = Value(-1, name, operand.dtype, operand.shape, _CONSTANT, operand.key, operand.data)
                if id(operand) in self._from_weights:
                    builder._from_weights[id(copy)] = copy
                builder.env[slot] = copy
            elif isinstance(operand, Value | TensorSpec):
                value = Value(-1, name, operand.dtype, operand.shape, ValueKind.INPUT)
                inputs.append(value)
                builder.env[slot] = value
            else:
                builder.env[slot] = operand
        return builder.build(tuple(inputs), nested=True)

    def _inline(self, graph: CanonicalGraph, operands: Sequence[Any]) -> Sequence[Any]:
        builder = _Builder(graph, self.folder, self.messages)
        builder.nodes = self.nodes
        builder._from_weights = self._from_weights
        for (slot, _), operand in zip(graph.inputs, operands, strict=True):
            builder.env[slot] = operand
        builder._bind(graph)
        builder.run(graph.steps)
        return [builder.env[item.slot] if type(item) is Ref else item for item in graph.results]


class _MismatchError(LoweringError):
    """A shape rule and the file disagree."""


_HANDLERS: Mapping[type, Callable[[_Builder, Any], None]] = {
    Assertion: _Builder._assertion,
    Call: _Builder._call,
    Control: _Builder._control,
    Item: _Builder._item,
    ScalarCall: _Builder._scalar_call,
    Scatter: _Builder._scatter,
    Settle: _Builder._settle,
    Unknown: _Builder._unknown,
}


def _varying(operands: Sequence[Any]) -> tuple[Value, ...]:
    """The operands that a nested graph takes: tensors that are not constant."""
    return tuple(item for item in operands if isinstance(item, Value) and item.kind is not _CONSTANT)


def _rows(op: str, xs: Sequence[Any]) -> tuple[TensorSpec, ...]:
    """What one step sees of the tensors that a `map` or `scan` walks along."""
    for x in xs:
        if not isinstance(x, Value) or not x.shape:
            raise ValueError(f"{op} takes tensors with a leading axis, got {x}")
    return tuple(TensorSpec(x.dtype, x.shape[1:]) for x in xs)


def _resolve(env: list[Any], item: Any) -> Any:
    if type(item) is Ref:
        return env[item.slot]
    if type(item) is tuple:
        return tuple([_resolve(env, part) for part in item])
    return item


def _fits(spec: TensorSpec, meta: TensorMeta) -> bool:
    """Whether the file allows for dtype and shape; lower bounds count on static axes only, for upstream raises them."""
    sizes = meta.sizes
    if spec.dtype is not meta.dtype or len(sizes) != len(spec.shape):
        return False
    for size, dim in zip(spec.shape, sizes, strict=True):
        if size != dim.min and (size > dim.max >= 0 or dim.min == dim.max):
            return False
    return True


def _stated(meta: TensorMeta) -> str:
    return f"{meta.dtype.torch_name}[{', '.join(map(str, meta.sizes))}]"


def _data_dependent(name: str, value: Value) -> LoweringError:
    return LoweringError(
        f"argument '{name}' is the item of a tensor, {value}, known only while the graph runs; "
        "sizes and positions must follow from the input shapes"
    )
