"""The engine itself: static graphs become lists of kernel calls over numbered slots."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ptn_runtime.engine import (
    SUPPORTED,
    Array,
    Device,
    Engine,
    EngineBuild,
    EngineContext,
    EngineHost,
    RunResult,
    Support,
)
from ptn_runtime.errors import ExecutionError, IndexOutOfRangeError, InputError, PtnRuntimeError, StateError
from ptn_runtime.lowering.static import StaticGraph, StaticNode, Value, ValueKind, literal
from ptn_runtime.reference import control
from ptn_runtime.reference.registry import KERNELS, Outputs, check_results
from ptn_runtime.shapes import OPERATORS, TensorSpec

if TYPE_CHECKING:
    from ptn_format.package import Package

    from ptn_runtime.lowering.program import LoweredProgram, StateSpec

__all__ = ["ReferenceEngine"]

_DECODERS = frozenset({"ptn.dequantize_packed.default", "ptn.unpack_affine.default"})
_CPU = Device(id="cpu", kind="cpu", description="numpy on the host's processor")


class ReferenceEngine(Engine):
    """Runs every operator of the catalogue with numpy."""

    name = "reference"

    def devices(self) -> tuple[Device, ...]:
        """The host's processor."""
        return (_CPU,)

    def supports(self, node: StaticNode, device: Device) -> Support:
        """Yes for every operator with a kernel."""
        if node.op in KERNELS or node.op in control.OPERATORS:
            return SUPPORTED
        if node.op in OPERATORS:
            return Support.no(f"the reference engine has no kernel for {node.op}")
        return Support.no(f"{node.op} is not in the catalogue of operators; add a shape rule and a kernel for it")

    def options(self) -> Mapping[str, str]:
        """The options of `create_host`."""
        return {"decode_once": "keep the values of quantised constants: faster, for several times the memory (False)"}

    def create_host(self, device: Device, *, decode_once: bool = False, **options: Any) -> EngineHost:
        """There is nothing to bring up; see `options`."""
        if options:
            raise TypeError(f"the reference engine has no option {', '.join(sorted(options))}")
        return ReferenceHost(self, device, decode_once=decode_once)


class ReferenceHost(EngineHost):
    """The host's memory."""

    def __init__(self, engine: Engine, device: Device, *, decode_once: bool = False) -> None:
        super().__init__(engine, device)
        self.decode_once = decode_once

    def create_context(self, program: LoweredProgram, package: Package) -> EngineContext:
        """Loads a program; constants are read when a build first needs them."""
        return ReferenceContext(self, program, package, {}, {} if self.decode_once else None)


class ReferenceContext(EngineContext):
    """Constants as read-only arrays by key, shared between forks; state as arrays by key.

    Attributes:
        constants: the constants that have been read.
        decoded: the values of quantised ones, where they are kept.
    """

    def __init__(
        self,
        host: EngineHost,
        program: LoweredProgram,
        package: Package,
        constants: dict[str, Array],
        decoded: dict[Any, Array] | None = None,
    ) -> None:
        super().__init__(host, program, package)
        self.constants = constants
        self.decoded = decoded
        self.state: dict[str, Array] = {}
        self.reset_state()

    def build(self, graph: StaticGraph) -> EngineBuild:
        """Plans the graph."""
        self._check_open()
        return ReferenceBuild(self, graph)

    def constant(self, key: str) -> Array:
        """The constant `key`, read from the package on first use."""
        array = self.constants.get(key)
        if array is None:
            array = np.asarray(self.package.constant(key))
            array.flags.writeable = False
            self.constants[key] = array
        return array

    def read_state(self, key: str) -> Array:
        """A copy of a state's current value."""
        self._check_open()
        self._spec(key)
        return self.state[key].copy()

    def write_state(self, key: str, array: Array) -> None:
        """Replaces a state's value."""
        self._check_open()
        self._spec(key)
        self.state[key] = array

    def reset_state(self) -> None:
        """Puts every state back to the value that the file gives it, or to zeros."""
        self._check_open()
        for key, spec in self.program.states.items():
            if spec.has_data:
                self.state[key] = np.array(self.package.constant(key), order="C", copy=True)
            else:
                self.state[key] = np.zeros(spec.shape, spec.dtype.numpy)

    def fork(self) -> EngineContext:
        """A second context over the same constants, its state as the file gives it."""
        self._check_open()
        return ReferenceContext(self.host, self.program, self.package, self.constants, self.decoded)

    def kernel(self, node: StaticNode) -> Callable[..., Any]:
        """What runs a node."""
        call: Callable[..., Any] = control.OPERATORS.get(node.op) or KERNELS[node.op]
        packed, decoded = node.args.get("packed"), self.decoded
        if decoded is None or node.op not in _DECODERS or not isinstance(packed, Value) or packed.key is None:
            return call
        identity = (node.op, packed.key, node.args["scheme"], node.outputs[0].dtype)

        def remember(out: Outputs, **args: Any) -> Array:
            values = decoded.get(identity)
            if values is None:
                values = np.ascontiguousarray(call(out, **args))
                values.flags.writeable = False
                decoded[identity] = values
            return values

        return remember

    def close(self) -> None:
        """Drops the arrays."""
        super().close()
        self.constants = {}
        self.decoded = None
        self.state = {}

    def _spec(self, key: str) -> StateSpec:
        spec = self.program.states.get(key)
        if spec is None:
            known = ", ".join(sorted(self.program.states)) or "none"
            raise StateError(f"there is no state '{key}'; the program has {known}")
        return spec


@dataclass(slots=True)
class _Step:
    """One kernel call.

    Attributes:
        node: for messages.
        call: the kernel.
        specs: what it is to give.
        expected: the same as numpy dtypes and shapes.
        fixed: arguments that are the same in every run.
        tensors: (argument, slot, whether to pass the array's only element as a Python number).
        lists: (argument, items), where items that are slots stand as `_Slot`.
        outputs: slots of the results.
        frees: slots that no later step reads.
    """

    node: StaticNode
    call: Callable[..., Array | tuple[Array, ...]]
    specs: Outputs
    expected: tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]
    fixed: dict[str, Any]
    tensors: tuple[tuple[str, int, bool], ...]
    lists: tuple[tuple[str, tuple[Any, ...]], ...]
    outputs: tuple[int, ...]
    frees: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Slot:
    index: int


class _Plan:
    """The steps of a graph (or nested graph) over a list of slots."""

    def __init__(self, context: ReferenceContext, graph: StaticGraph) -> None:
        self.graph = graph
        self._slots: dict[int, int] = {}
        self.inputs = tuple(self.slot(value) for value in graph.inputs)
        self.constants: list[tuple[int, Array]] = []
        for value in graph.constants:
            array = literal(value) if value.key is None else context.constant(value.key)
            self.constants.append((self.slot(value), array))
        self.states = tuple((self.slot(value), value.key or "") for value in graph.states)
        last = graph.last_uses()
        self.steps = [self._step(context, index, node, last) for index, node in enumerate(graph.nodes)]
        self.results = tuple(self.slot(value) for value in graph.outputs)
        self.num_slots = len(self._slots)

    def slot(self, value: Value) -> int:
        """The slot of a value, given out on first sight."""
        return self._slots.setdefault(value.id, len(self._slots))

    def _step(self, context: ReferenceContext, index: int, node: StaticNode, last: Mapping[int, int]) -> _Step:
        operator = OPERATORS.get(node.op)
        numbers = operator.numbers if operator is not None else frozenset()
        fixed: dict[str, Any] = {}
        tensors: list[tuple[str, int, bool]] = []
        lists: list[tuple[str, tuple[Any, ...]]] = []
        for name, arg in node.args.items():
            if isinstance(arg, Value):
                tensors.append((name, self.slot(arg), name in numbers))
            elif isinstance(arg, tuple) and any(isinstance(item, Value) for item in arg):
                lists.append((name, tuple(_Slot(self.slot(i)) if isinstance(i, Value) else i for i in arg)))
            elif isinstance(arg, StaticGraph):
                fixed[name] = _Plan(context, arg).run_nested
            else:
                fixed[name] = arg
        outputs = tuple(self.slot(value) for value in node.outputs)
        # Results that nobody reads go at once; so do arguments after their last reader.
        dead = [value for value in (*node.inputs(), *node.outputs) if last.get(value.id, index) <= index]
        frees = tuple({self.slot(value) for value in dead if value.kind is ValueKind.NODE})
        call = context.kernel(node)
        specs = Outputs(TensorSpec(value.dtype, value.shape) for value in node.outputs)
        expected = tuple((spec.dtype.numpy, spec.shape) for spec in specs)
        return _Step(node, call, specs, expected, fixed, tuple(tensors), tuple(lists), outputs, frees)

    def start(self, inputs: Sequence[Array], state: Mapping[str, Array]) -> list[Any]:
        """The slots before the first step."""
        slots: list[Any] = [None] * self.num_slots
        for slot, array in zip(self.inputs, inputs, strict=True):
            slots[slot] = array
        for slot, array in self.constants:
            slots[slot] = array
        for slot, key in self.states:
            slots[slot] = state[key]
        return slots

    def execute(self, slots: list[Any], keep: bool = False, seconds: list[float] | None = None) -> None:
        """Runs every step; with `keep` nothing is freed, with `seconds` the time of each step is added to it."""
        for step in self.steps:
            start = time.perf_counter() if seconds is not None else 0.0
            try:
                results = _call(step, slots)
            except PtnRuntimeError as error:
                raise _described(step.node, error) from error
            except Exception as error:
                raise ExecutionError(f"{step.node.describe()} failed: {error}") from error
            if seconds is not None:
                seconds.append(time.perf_counter() - start)
            for slot, array in zip(step.outputs, results, strict=True):
                slots[slot] = array
            if not keep:
                for slot in step.frees:
                    slots[slot] = None

    def run_nested(self, operands: Sequence[Array]) -> tuple[Array, ...]:
        """Runs a nested graph on its operands."""
        slots = self.start(operands, {})
        self.execute(slots)
        return tuple([slots[slot] for slot in self.results])


def _call(step: _Step, slots: list[Any]) -> tuple[Array, ...]:
    arguments = dict(step.fixed)
    for name, slot, is_number in step.tensors:
        arguments[name] = slots[slot].item() if is_number else slots[slot]
    for name, items in step.lists:
        arguments[name] = tuple([slots[item.index] if isinstance(item, _Slot) else item for item in items])
    results = step.call(step.specs, **arguments)
    as_tuple = results if isinstance(results, tuple) else (results,)
    for array, (dtype, shape) in zip(as_tuple, step.expected, strict=False):
        if type(array) is not np.ndarray or array.dtype is not dtype or array.shape != shape:
            break
    else:
        if len(as_tuple) == len(step.expected):
            return as_tuple
    check_results(step.node.op, step.specs, as_tuple)  # the same at leisure: dtypes may be equal, not identical
    return as_tuple


def _described(node: StaticNode, error: PtnRuntimeError) -> PtnRuntimeError:
    """The error with the node's description; errors of nodes in nested graphs have one already."""
    text = str(error)
    if text.startswith("node '"):
        return error
    for kind in (IndexOutOfRangeError, InputError):
        if isinstance(error, kind):
            return kind(f"{node.describe()}: {text}")
    return ExecutionError(f"{node.describe()} failed: {text}")


class ReferenceBuild(EngineBuild):
    """A planned graph over the state of its context."""

    def __init__(self, context: ReferenceContext, graph: StaticGraph) -> None:
        self._context = context
        self._plan = _Plan(context, graph)
        self._state_updates = tuple(
            (update.old.key or "", self._plan.slot(update.new)) for update in graph.state_updates
        )
        self._input_updates = tuple(self._plan.slot(new) for _, new in graph.input_updates)
        self._plan.num_slots = len(self._plan._slots)

    def run(self, inputs: Sequence[Array]) -> RunResult:
        """Runs once and updates the context's state."""
        plan = self._plan
        slots = plan.start(inputs, self._context.state)
        with np.errstate(all="ignore"):
            plan.execute(slots)
        # Nothing that leaves may share memory with inputs, constants, state or another result.
        shared = [slots[slot] for slot in plan.inputs]
        shared += [array for _, array in plan.constants]
        shared += [slots[slot] for slot, _ in plan.states]
        taken = _Taken(shared)
        outputs = [taken.own(slots[slot]) for slot in plan.results]
        input_updates = [taken.own(slots[slot]) for slot in self._input_updates]
        state = {key: taken.own(slots[slot]) for key, slot in self._state_updates}
        self._context.state.update(state)
        return RunResult(outputs, input_updates)

    def profile(self, inputs: Sequence[Array]) -> Mapping[int, float]:
        """Runs once without updating state and gives the seconds of each node."""
        slots = self._plan.start(inputs, self._context.state)
        seconds: list[float] = []
        with np.errstate(all="ignore"):
            self._plan.execute(slots, seconds=seconds)
        return dict(enumerate(seconds))

    def trace(self, inputs: Sequence[Array]) -> Mapping[int, Array]:
        """Runs once and gives every node's results by value id, without updating state."""
        plan = self._plan
        slots = plan.start(inputs, self._context.state)
        with np.errstate(all="ignore"):
            plan.execute(slots, keep=True)
        values = [value for node in plan.graph.nodes for value in node.outputs]
        return {value.id: np.array(slots[plan.slot(value)], copy=True) for value in values}


class _Taken:
    """Decides which results must be copied before they leave a build."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._buffers = {id(_buffer(array)) for array in arrays}

    def own(self, array: Array) -> Array:
        """The array itself, C-contiguous, where its memory belongs to nobody else yet; else a copy."""
        buffer = _buffer(array)
        if id(buffer) in self._buffers or not array.flags.c_contiguous or not array.flags.writeable:
            return np.array(array, order="C", copy=True)
        self._buffers.add(id(buffer))
        return array


def _buffer(array: Array) -> Any:
    """The object that owns an array's memory."""
    owner: Any = array
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    return owner
