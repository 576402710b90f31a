"""From the canonical graph to the static graph, once per set of input shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

from ptn_format.dtypes import ScalarType
from ptn_format.graph import TensorMeta

from ptn_runtime.errors import InputError, LoweringError
from ptn_runtime.lowering.finish import finish
from ptn_runtime.lowering.fold import Folded, Folder
from ptn_runtime.lowering.frames import Frame, copied, hints, is_computed, live_values
from ptn_runtime.lowering.messages import Messages, condition_of
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
    describe,
)
from ptn_runtime.lowering.scalars import Scalars, has_tensor_form
from ptn_runtime.lowering.simplify import SIMPLIFIERS
from ptn_runtime.lowering.stages import Answer, Cut, NeedError, number_of
from ptn_runtime.lowering.static import StaticGraph, StaticNode, TensorSpec, Value, ValueKind
from ptn_runtime.lowering.views import INVERSES
from ptn_runtime.lowering.windows import START, windowed
from ptn_runtime.shapes import OPERATORS, DataDependentError, infer

__all__ = ["Keep", "specialize"]

_CONSTANT = ValueKind.CONSTANT
_ITEM = "aten._local_scalar_dense.default"

Keep: TypeAlias = "Callable[[tuple[Answer, ...], Callable[[], StaticGraph]], StaticGraph]"
"""Gives the stage that belongs to the answers of the cuts before it: one that is kept, or what the function makes."""


def specialize(
    graph: CanonicalGraph,
    inputs: Sequence[TensorSpec],
    input_names: Mapping[str, str],
    folder: Folder,
    *,
    dynamic: bool,
    keep: Keep,
) -> StaticGraph:
    """The static graph for these inputs; the first stage, where sizes depend on data.

    Args:
        graph: the method's canonical graph. Results of folding that hold for all shapes are kept in it, so one graph
            must be specialised by one thread at a time.
        inputs: dtype and shape of each user input.
        input_names: what users call the inputs, by their names in the graph; for messages.
        folder: evaluates constants.
        dynamic: some input may have other shapes; then a shape that does not fit is the caller's fault.
        keep: caches the later stages, and guards their specialisation against other threads.

    Raises:
        InputError: the shapes do not fit the program.
        LoweringError: a node cannot be lowered.
    """
    env: list[Any] = [None] * graph.num_slots
    values = []
    for (slot, name), spec in zip(graph.inputs, inputs, strict=True):
        value = Value(-1, name, spec.dtype, spec.shape, ValueKind.INPUT)
        env[slot] = value
        values.append(value)
    builder = _Builder([Frame(graph, env)], folder, Messages(graph, inputs, input_names, dynamic))
    builder.inputs, builder.states = values, builder.bind(graph, env)
    builder.changed = {old: env[old] for old, _ in (*graph.state_updates, *graph.input_updates)}
    return builder.build(keep)


class _Builder:
    """Runs the steps of one graph and collects nodes; nested graphs get a builder of their own.

    Attributes:
        frames: the graph, and the branches that were entered on the way.
        env: the values of the innermost frame by slot.
        nodes: the nodes so far.
        inputs: the inputs of the graph that is made.
        states: the states that it may read or write.
        changed: by slot, the states and inputs that the method changes. They stay what they are where their contents
            become a known number.
    """

    def __init__(self, frames: list[Frame], folder: Folder, messages: Messages) -> None:
        self.frames = frames
        self.env = frames[-1].env
        self.folder = folder
        self.messages = messages
        self.nodes: list[StaticNode] = []
        self.inputs: Sequence[Value] = ()
        self.states: Sequence[Value] = ()
        self.changed: dict[int, Value] = {}
        self._step: Step | None = None
        self._scalars = Scalars(self.emit)
        self._from_weights: dict[int, Value] = {}  # by id; holding the values keeps ids from being used again

    def build(self, keep: Keep, path: tuple[Answer, ...] = ()) -> StaticGraph:
        """The graph of the steps up to the next cut, or up to the end; `path` has the answers of the cuts so far."""
        try:
            self.run()
        except NeedError as need:
            return self._stage(need, keep, path)
        return self._finished(self._results_of(self.frames[0]))

    def build_nested(self) -> StaticGraph:
        """The graph of a branch or body; its scalar results become tensors of no axes.

        Raises:
            NeedError: a step needs what only data tell.
        """
        self.bind(self.frames[0].graph, self.env)
        self.run()
        return self._finished([self._scalars.as_value(item) for item in self._results_of(self.frames[0])])

    def _finished(self, results: Sequence[Any]) -> StaticGraph:
        graph, env, changed = self.frames[0].graph, self.frames[0].env, self.changed
        try:
            return finish(
                graph.name,
                inputs=tuple(self.inputs),
                states=self.states,
                nodes=self.nodes,
                results=tuple(results),
                state_updates=[(changed[old], env[new]) for old, new in graph.state_updates],
                input_updates=[(changed[old], env[new]) for old, new in graph.input_updates],
            )
        except LoweringError as error:  # the new contents have another form than the old ones
            if not self.messages.found:
                raise
            raise InputError(f"{error}. Input shapes: {self.messages.listed()}") from error

    @staticmethod
    def _results_of(frame: Frame) -> list[Any]:
        return [frame.env[item.slot] if type(item) is Ref else item for item in frame.graph.results]

    # Stages.

    def _stage(self, need: NeedError, keep: Keep, path: tuple[Answer, ...]) -> StaticGraph:
        """The graph so far, which gives what is asked for and what the rest of the program reads."""
        step, number = need.step, need.number
        # A number becomes known, and its step is taken again; an operator's results become known, and it is over.
        start = self.frames[-1].position + (number is None)
        read = [value for value in live_values(self.frames, start) if value is not number]
        live = list({id(value): value for value in (*read, *self.changed.values()) if is_computed(value)}.values())
        if number is not None:
            node = StaticNode(step.name, _ITEM, {"self": number}, (), step.source, on_host=True)
        else:
            node = StaticNode(step.name, step.op, dict(need.arguments or {}), (), step.source, on_host=True)
        wanted = {id(value): value for value in (*node.inputs(), *live)}
        outputs = [value for value in wanted.values() if value.kind in (ValueKind.NODE, ValueKind.STATE)]
        graph = finish(
            self.messages.method,
            inputs=tuple(self.inputs),
            states=self.states,
            nodes=self.nodes,
            results=tuple(outputs),
            state_updates=(),
            input_updates=(),
        )
        cut = Cut(
            node=node,
            is_number=number is not None,
            carried=tuple(live),
            metas=step.metas if isinstance(step, Call) and number is None else (),
            names=step.names if isinstance(step, Call) and number is None else (),
            path=path,
            hints=hints(self.frames, number) if number is not None else (),
        )

        def resume(answer: Answer) -> StaticGraph:
            after = (*path, answer)
            return keep(after, lambda: self._resumed(cut, need, start, answer).build(keep, after))

        cut.resume = resume
        graph.cut = cut
        return graph

    def _resumed(self, cut: Cut, need: NeedError, start: int, answer: Answer) -> _Builder:
        """A builder for what comes after a cut."""
        messages = self.messages.after(_fact(cut, answer))
        states: list[Value] = []
        weights: list[Value] = []

        def new(value: Value) -> Value:
            kind = ValueKind.INPUT if value.kind is ValueKind.NODE else value.kind
            copy = Value(-1, value.name, value.dtype, value.shape, kind, value.key, value.data)
            if kind is ValueKind.STATE:
                states.append(copy)
            elif id(value) in self._from_weights:
                weights.append(copy)
            return copy

        fresh: dict[int, Value] = {}

        def once(value: Value) -> Value:
            if id(value) not in fresh:
                fresh[id(value)] = new(value)
            return fresh[id(value)]

        inputs = [once(value) for value in cut.carried]
        changed = {slot: once(value) for slot, value in self.changed.items()}
        number = need.number
        if number is not None:
            assert isinstance(answer, bytes)
            data = number_of(number, answer)
            fresh[id(number)] = Value(-1, number.name, number.dtype, number.shape, _CONSTANT, None, data)
        frames = copied(self.frames, start, once)
        if number is None:
            assert isinstance(answer, tuple)
            for slot, name, spec, meta in zip(need.outputs, cut.names, answer, cut.metas, strict=True):
                if meta is not None and not _fits(spec, meta):
                    raise InputError(
                        f"method '{messages.method}', {cut.node.describe()} gives {spec.dtype.torch_name}"
                        f"{list(spec.shape)} for these data, but the model was exported for {_stated(meta)}"
                    )
                value = Value(-1, name, spec.dtype, spec.shape, ValueKind.INPUT)
                frames[-1].env[slot] = value
                inputs.append(value)
        builder = _Builder(frames, self.folder, messages)
        builder._from_weights = {id(value): value for value in weights}
        builder.inputs, builder.states, builder.changed = inputs, states, changed
        return builder

    @staticmethod
    def bind(graph: CanonicalGraph, env: list[Any]) -> tuple[Value, ...]:
        """Enters the constants and states of a body into its `env`; gives the states."""
        for binding in graph.constants:
            env[binding.slot] = Value(-1, binding.name, binding.dtype, binding.shape, _CONSTANT, binding.key)
        states = []
        for binding in graph.states:
            value = Value(-1, binding.name, binding.dtype, binding.shape, ValueKind.STATE, binding.key)
            env[binding.slot] = value
            states.append(value)
        return tuple(states)

    def run(self) -> None:
        """Runs steps in order to the end, turning what goes wrong into errors that name the step.

        Raises:
            NeedError: a step needs what only data tell; the innermost frame stands at that step.
        """
        frames = self.frames
        handlers = _HANDLERS
        while True:
            frame = frames[-1]
            steps = frame.graph.steps
            self.env = frame.env
            for position in range(frame.position, len(steps)):
                frame.position = position
                self._step = step = steps[position]
                try:
                    handlers[type(step)](self, step)
                except (InputError, NeedError):
                    raise
                except Exception as error:  # a faulty rule must not surface as a bare TypeError
                    if getattr(error, "located", False):
                        raise
                    self._raise(step, error)
                if frames[-1] is not frame:
                    break  # it has entered a branch
            else:
                frame.position = len(steps)
                if len(frames) == 1:
                    return
                self._leave_branch()

    def _leave_branch(self) -> None:
        results = self._results_of(self.frames.pop())
        frame = self.frames[-1]
        for slot, value in zip(frame.graph.steps[frame.position].outputs, results, strict=True):
            frame.env[slot] = value
        frame.position += 1

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
                if value.kind is _CONSTANT or not (run_time or step.window):
                    value = self._number(value, name)
                else:
                    constant = False
            args[name] = value
        for name, items in step.lists:
            resolved = tuple([env[item.slot] if type(item) is Ref else item for item in items])
            if name in step.operator.numbers:
                resolved = tuple([self._number(item, name) if type(item) is Value else item for item in resolved])
            args[name] = resolved
            constant = constant and all(type(item) is not Value or item.kind is _CONSTANT for item in resolved)
        if step.window and type(args[START[step.op]]) is Value:
            env[step.outputs[0]] = self._windowed(step, args, step.window)
            return
        try:
            results = self._results(step, args, constant)
        except DataDependentError as error:
            results = self._by_data(step, args, constant, error)
        for slot, value in zip(step.outputs, results, strict=True):
            env[slot] = value

    def _windowed(self, step: Call, args: dict[str, Any], size: int) -> Value:
        """The result of a call on a window whose place only data tell.

        Raises:
            NeedError: the call has no form that is the same for all places.
        """
        result = windowed(self.emit, step.op, args, size)
        if result is None:
            name = START[step.op]
            raise NeedError(step, f"argument '{name}' is known only while the graph runs", number=args[name])
        return result

    def _number(self, value: Value, use: str) -> Any:
        """The number that a tensor of one element holds, where it is known.

        Raises:
            NeedError: it is not.
        """
        if value.kind is _CONSTANT:
            return self.folder.array(value).item()
        assert self._step is not None
        reason = f"argument '{use}' is the item of a tensor, {value}, known only while the graph runs"
        raise NeedError(self._step, reason, number=value)

    def _by_data(self, step: Call, args: dict[str, Any], constant: bool, error: Exception) -> Sequence[Value]:
        """The results of an operator whose shapes depend on the contents of its arguments.

        Raises:
            NeedError: they are not constant.
        """
        if not constant:
            raise NeedError(step, str(error), arguments=args, outputs=step.outputs)
        known = self.frames[-1].graph.folded.get(step.outputs[0]) if step.shape_free else None
        if known is None:
            known = Folded(self.folder.by_data(step.op, args), bool(self._weights_among(args)))
            if step.shape_free:
                self.frames[-1].graph.folded[step.outputs[0]] = known
        return self._literals(step, known)

    def _results(self, step: Call, args: dict[str, Any], constant: bool) -> Sequence[Value]:
        operator = step.operator
        if constant and step.shape_free:
            known = self.frames[-1].graph.folded.get(step.outputs[0])
            if known is not None:
                return self._literals(step, known)
        inferred = operator.rule(**args)
        specs = (inferred,) if isinstance(inferred, TensorSpec) else inferred
        for spec, meta in zip(specs, step.metas, strict=True):
            if meta is not None and not _fits(spec, meta):
                if self.messages.found and spec.dtype is meta.dtype:  # the data gave what the program does not allow
                    raise ValueError(f"{list(spec.shape)} is out of the range that was exported, {_stated(meta)}")
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
                    self.frames[-1].graph.folded[step.outputs[0]] = folded
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
            if any(type(arg) is Value and arg.kind is not _CONSTANT for arg in args) and has_tensor_form(step.op):
                env[step.output] = self._scalars.run_time(step.op, args)
                return
            args = [self._number(arg, step.op) if type(arg) is Value else arg for arg in args]
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
        if step.is_size:
            raise NeedError(
                step, f"a size or position is the item of {value}, known only while the graph runs", number=value
            )
        self.env[step.output] = self.emit("aten.view.default", self=value, size=())

    def _assertion(self, step: Assertion) -> None:
        args = tuple(_resolve(self.env, item) for item in step.args)
        if any(type(arg) is Value for arg in args):
            for condition in self._scalars.run_time_assertion(args):
                self.emit("aten._assert_async.msg", self=condition, assert_msg=condition_of(step, args))
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
            args[name] = self._number(env[slot], name) if type(env[slot]) is Value else env[slot]
        for name, items in view.lists:
            resolved = [_resolve(env, item) for item in items]
            args[name] = tuple([self._number(item, name) if type(item) is Value else item for item in resolved])
        env[step.output] = INVERSES[view.op](self.emit, env[step.base], env[step.new], args, step.index)

    def _unknown(self, step: Unknown) -> None:
        raise LoweringError(step.reason)

    # Higher-order operators.

    def _control(self, step: Control) -> None:
        env = self.env
        operands = [tuple(_resolve(env, item) for item in items) for items in step.operands]
        predicate = _resolve(env, step.predicate)
        if step.op == "control.cond":
            entered = self._cond(step, predicate, operands[0] if operands else ())
            if entered is None:
                return
            results = entered
        else:
            loop = {"control.while_loop": self._while_loop, "control.scan": self._scan, "control.map": self._map}
            try:
                results = loop[step.op](step, operands)
            except NeedError as need:
                if need.step is step:
                    raise  # for an operand
                raise LoweringError(
                    f"the body of a loop cannot have sizes that depend on data, as {describe(need.step)} has: {need}"
                ) from need
        for slot, value in zip(step.outputs, results, strict=True):
            env[slot] = value

    def _cond(self, step: Control, predicate: Any, operands: tuple[Any, ...]) -> Sequence[Any] | None:
        """The results, or None where a branch was entered, whose results come when it has been left."""
        if isinstance(predicate, Value) and predicate.kind is _CONSTANT and predicate.numel == 1:
            predicate = self.folder.array(predicate).item()
        if not isinstance(predicate, Value):
            self._enter(step.graphs[0 if predicate else 1], operands)
            return None
        if predicate.numel != 1:
            raise ValueError(f"the condition must be one bool, got {predicate}")
        try:
            graphs = tuple(self._nested(graph, operands) for graph in step.graphs)
            if _same_but_for_shapes(*graphs):
                raise NeedError(step, "the branches give results of different shapes")
        except NeedError as need:
            if need.step is step and need.number is not None:
                raise  # the number is an operand
            reason = f"the branches depend on data, in {describe(need.step)}: {need}"
            raise NeedError(step, reason, number=predicate) from need
        return self._control_node(
            step,
            {"pred": predicate, "true_fn": graphs[0], "false_fn": graphs[1], "operands": _varying(operands)},
        )

    def _enter(self, graph: CanonicalGraph, operands: Sequence[Any]) -> None:
        """Goes on with the steps of a branch, in the place of its node."""
        env: list[Any] = [None] * graph.num_slots
        for (slot, _), operand in zip(graph.inputs, operands, strict=True):
            env[slot] = operand
        self.bind(graph, env)
        self.frames.append(Frame(graph, env))

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

        Raises:
            NeedError: a step needs what only data tell. Where that is an operand, this graph's step needs it.
        """
        builder = _Builder([Frame(graph, [None] * graph.num_slots)], self.folder, self.messages)
        inputs = []
        given: dict[int, Value] = {}
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
                if isinstance(operand, Value):
                    given[id(value)] = operand
            else:
                builder.env[slot] = operand
        try:
            builder.inputs = inputs
            return builder.build_nested()
        except NeedError as need:
            operand = given.get(id(need.number))
            if operand is None:
                raise
            assert self._step is not None
            raise NeedError(self._step, str(need), number=operand) from need


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


def _fact(cut: Cut, answer: Answer) -> str:
    """What the data gave at a cut, for messages."""
    if isinstance(answer, bytes):
        return f"'{cut.asked.name}' is {number_of(cut.asked, answer).item()}"
    shapes = ", ".join(f"{spec.dtype.torch_name}{list(spec.shape)}" for spec in answer)
    return f"'{cut.node.name}' gives {shapes}"


def _same_but_for_shapes(one: StaticGraph, two: StaticGraph) -> bool:
    """Whether the results of two branches differ in nothing but their shapes."""
    pairs = list(zip(one.outputs, two.outputs, strict=False))
    return (
        len(one.outputs) == len(two.outputs)
        and all(a.dtype is b.dtype for a, b in pairs)
        and any(a.shape != b.shape for a, b in pairs)
    )
