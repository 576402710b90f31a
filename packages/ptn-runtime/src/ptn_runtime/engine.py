"""The engine contract: everything that an engine author implements, and the base classes that do the rest.

An engine installs as a distribution with an entry point in the group `ptn.engines` that names an `EngineSpec`.
From there:

* `Engine` lists devices and says which nodes it runs on them; it does no device work.
* `EngineHost` holds the process-wide resources of one device.
* `EngineContext` is one loaded program on a host: its constants (uploaded once) and its state.
* `EngineExecutable` is one method of a context; this module's base class resizes, caches builds by shape and copies.
* `EngineBuild` is one static graph turned into something that executes.

An engine author writes `Engine`, `EngineHost.create_context`, `EngineContext.build` with the state methods, and
`EngineBuild.run`.
"""

from __future__ import annotations

import abc
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from ptn_format.dtypes import ScalarType

from ptn_runtime.errors import (
    ClosedError,
    EngineError,
    ExecutionError,
    InputError,
    UnsupportedMethodError,
    UnsupportedNode,
)
from ptn_runtime.lowering.static import StaticGraph, StaticNode, Value

if TYPE_CHECKING:
    from ptn_format.package import Package

    from ptn_runtime.lowering.program import LoweredMethod, LoweredProgram
    from ptn_runtime.staged import Kept

__all__ = [
    "API_VERSION",
    "SUPPORTED",
    "Array",
    "Device",
    "Engine",
    "EngineBuild",
    "EngineContext",
    "EngineExecutable",
    "EngineHost",
    "EngineSpec",
    "Prepared",
    "RunResult",
    "StaticGraph",
    "StaticNode",
    "Support",
    "Value",
    "ask",
    "check_support",
    "initial_graph",
    "initial_graphs",
    "refused_nodes",
    "unsupported",
]

Array = npt.NDArray[Any]

API_VERSION = (1, 0)
"""Version of this contract: an engine runs on a runtime of the same major and the same or a newer minor."""

MAX_BUILDS = 32
"""Builds that one executable keeps, and ways through its stages; the least recently used goes first."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What an engine's entry point names. The module that holds it must import nothing native.

    Attributes:
        name: what users type, such as `ggml`.
        api_version: the `API_VERSION` that the engine was written for; checked before `factory` is imported.
        factory: `package.module:callable`; the callable takes nothing and returns an `Engine`.
        summary: one line for `ptn engines`.
        install_hint: what to do when the factory cannot be imported.
        priority: where the user names no engine, the one with the highest priority that accepts the program wins.
    """

    name: str
    api_version: tuple[int, int]
    factory: str
    summary: str
    install_hint: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Device:
    """One device of an engine.

    Attributes:
        id: what users type, such as `cpu` or `cuda:0`; unique within the engine.
        kind: `cpu`, `gpu`, `igpu` or `accelerator`.
        description: the hardware's own name.
        memory_bytes: total memory, or None where it is not known.
    """

    id: str
    kind: str
    description: str
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Support:
    """Whether a node runs.

    Attributes:
        ok: the node runs, and its results are right within rounding.
        reason: where it does not run, one sentence why.
        note: where it runs in a way worth knowing (an option, a fall-back to another device).
    """

    ok: bool
    reason: str = ""
    note: str = ""

    @classmethod
    def no(cls, reason: str) -> Support:
        """A refusal with its reason."""
        return cls(False, reason)


SUPPORTED = Support(True)


class Engine(abc.ABC):
    """Lists devices and answers for nodes. One object per process; no device work before `create_host`."""

    name: str

    @abc.abstractmethod
    def devices(self) -> tuple[Device, ...]:
        """The devices that are there, best first; empty (never an error) where there is none."""

    def unavailable(self) -> str | None:
        """Where `devices()` is empty, why, and what to do; else None."""
        return None

    @abc.abstractmethod
    def supports(self, node: StaticNode, device: Device) -> Support:
        """Whether `node` runs on `device`; a pure function of both."""

    def options(self) -> Mapping[str, str]:
        """The keyword arguments of `create_host`, each with a line of help."""
        return {}

    @abc.abstractmethod
    def create_host(self, device: Device, **options: Any) -> EngineHost:
        """Brings the device up.

        Raises:
            DeviceError: it does not come up.
            TypeError: an option is not known.
        """


class EngineHost(abc.ABC):
    """Process-wide resources of one device. Contexts of one host may run at the same time."""

    def __init__(self, engine: Engine, device: Device) -> None:
        self.engine = engine
        self.device = device
        self.closed = False

    @property
    def name(self) -> str:
        """The engine's name."""
        return self.engine.name

    @property
    def device_name(self) -> str:
        """The device's id."""
        return self.device.id

    @abc.abstractmethod
    def create_context(self, program: LoweredProgram, package: Package) -> EngineContext:
        """Loads a program: `package` gives its constants. Callers serialise this call."""

    def close(self) -> None:
        """Frees the device; contexts must be closed before. Idempotent."""
        self.closed = True


@dataclass(slots=True)
class RunResult:
    """What one run gives back.

    Attributes:
        outputs: one array per entry of `StaticGraph.outputs`, owned by the caller: later runs leave it alone, and it
            shares no memory with the inputs, constants or state.
        input_updates: one array per entry of `StaticGraph.input_updates`.
    """

    outputs: list[Array]
    input_updates: list[Array] = field(default_factory=list)


class EngineBuild(abc.ABC):
    """One static graph, ready to execute."""

    @abc.abstractmethod
    def run(self, inputs: Sequence[Array]) -> RunResult:
        """Runs once and updates the context's state; blocks until the results are there.

        Args:
            inputs: one C-contiguous array per graph input, of exactly its dtype and shape. The build must not
                keep a reference or write to it.

        Raises:
            IndexOutOfRangeError: an index in the data lies outside its axis.
            ExecutionError: the engine failed.
        """

    def trace(self, inputs: Sequence[Array]) -> Mapping[int, Array]:
        """Runs once and gives every node's results by value id, without updating state.

        Used to find the first node that differs between two engines; an engine may leave it out.

        Raises:
            NotImplementedError: this engine leaves it out.
        """
        raise NotImplementedError(f"{type(self).__name__} does not keep intermediate values")

    def profile(self, inputs: Sequence[Array]) -> Mapping[int, float]:
        """Runs once and gives the seconds that each node took, by its index in `StaticGraph.nodes`.

        State is not updated. Of nodes that ran as one, the first has the time and the others are absent. An engine may
        leave it out.

        Raises:
            NotImplementedError: this engine leaves it out.
        """
        raise NotImplementedError(f"{type(self).__name__} does not time single nodes")

    def close(self) -> None:  # noqa: B027  most builds have nothing to free
        """Frees the build's buffers. Idempotent."""


@dataclass(slots=True, weakref_slot=True)
class Prepared:
    """What an executable keeps for one set of input shapes.

    Attributes:
        graph: the static graph. Where sizes depend on data, the whole graph of the last run.
        build: runs it.
    """

    graph: StaticGraph
    build: EngineBuild


class EngineContext(abc.ABC):
    """One loaded program: constants and state. Not thread-safe; other contexts may run at the same time."""

    def __init__(self, host: EngineHost, program: LoweredProgram, package: Package) -> None:
        self.host = host
        self.program = program
        self.package = package
        self.closed = False
        self._executables: dict[str, EngineExecutable] = {}

    def compile(self, method: str) -> EngineExecutable:
        """Checks that the engine runs `method` and returns its executable (the same one each time).

        Raises:
            MethodNotFoundError: there is no such method.
            UnsupportedMethodError: the engine refuses nodes of it.
        """
        self._check_open()
        executable = self._executables.get(method)
        if executable is None:
            executable = EngineExecutable(self, self.program.method(method))
            self._executables[method] = executable
        return executable

    @abc.abstractmethod
    def build(self, graph: StaticGraph) -> EngineBuild:
        """Turns a supported static graph into something that executes; constants are uploaded once per context."""

    @abc.abstractmethod
    def read_state(self, key: str) -> Array:
        """A copy of a state's current value.

        Raises:
            StateError: there is no such state.
        """

    @abc.abstractmethod
    def write_state(self, key: str, array: Array) -> None:
        """Replaces a state's value.

        Args:
            key: the state.
            array: C-contiguous, of the state's dtype and shape (the caller has checked), and the engine's to keep.
        """

    @abc.abstractmethod
    def reset_state(self) -> None:
        """Puts every state back to the value that the file gives it."""

    def fork(self) -> EngineContext:
        """A second context over the same constants, its state as the file gives it."""
        return self.host.create_context(self.program, self.package)

    def close(self) -> None:
        """Frees executables, constants and state. Idempotent; use afterwards raises `ClosedError`."""
        for executable in self._executables.values():
            executable.close()
        self._executables.clear()
        self.closed = True

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError("this engine context was closed")


class EngineExecutable:
    """One method of a context. Sizes start at the upper bounds (an axis without one starts at its lower bound)."""

    def __init__(self, context: EngineContext, method: LoweredMethod) -> None:
        self._context = context
        self._method = method
        self._inputs: list[Array | None] = [None] * len(method.inputs)
        self._prepared: OrderedDict[tuple[tuple[int, ...], ...], Prepared] = OrderedDict()
        self._result: RunResult | None = None
        self._closed = False
        self._kept: Kept | None = None
        graphs = initial_graphs(method)
        self._current = Prepared(graphs[0], _NOTHING)
        self._shapes: list[tuple[int, ...]] = list(graphs[0].input_shapes)
        self._check_support(*graphs)

    @property
    def graph(self) -> StaticGraph:
        """The static graph of the last run; before the first one, for the upper bounds.

        Where sizes depend on data it has the nodes of all stages, and what the runtime does in between as nodes
        `on_host`.
        """
        return self._current.graph

    @property
    def num_inputs(self) -> int:
        """Number of user inputs."""
        return len(self._shapes)

    @property
    def num_outputs(self) -> int:
        """Number of user-visible tensor outputs."""
        return len(self.graph.outputs)

    def input_sizes(self, index: int) -> tuple[int, ...]:
        """Current shape of input `index`."""
        return self._shapes[index]

    def output_sizes(self, index: int) -> tuple[int, ...]:
        """Shape of output `index` as of the last `execute`; before it, for the upper bounds."""
        return self.graph.outputs[index].shape

    def input_dtype(self, index: int) -> ScalarType:
        """Logical element type of input `index`."""
        return self.graph.inputs[index].dtype

    def output_dtype(self, index: int) -> ScalarType:
        """Logical element type of output `index`."""
        return self.graph.outputs[index].dtype

    def resize_input(self, index: int, sizes: Sequence[int]) -> None:
        """Changes the shape of input `index`, within the method's bounds; its data must be set again.

        Raises:
            InputError: wrong rank, or a size out of its range.
        """
        shape = tuple(int(size) for size in sizes)
        self._method.inputs[index].check_shape(shape)
        if shape != self._shapes[index]:
            self._shapes[index] = shape
            self._inputs[index] = None

    def set_input(self, index: int, array: Array) -> None:
        """Copies `array` in: the caller may reuse it at once.

        Raises:
            InputError: dtype or shape differ from the current ones.
        """
        spec = self._method.inputs[index]
        if array.dtype != spec.dtype.numpy or array.shape != self._shapes[index]:
            raise InputError(
                f"input '{spec.name}' takes {spec.dtype.torch_name}{list(self._shapes[index])}, "
                f"got {array.dtype}{list(array.shape)}"
            )
        self._inputs[index] = np.array(array, order="C", copy=True)

    def execute(self) -> None:
        """Runs with the inputs set; blocks until every output can be read.

        Raises:
            InputError: an input was not set since it was last resized.
        """
        inputs: list[Array] = []
        for spec, array in zip(self._method.inputs, self._inputs, strict=True):
            if array is None:
                raise InputError(f"input '{spec.name}' was not set since it was last resized; call set_input first")
            inputs.append(array)
        self._result = None
        self._result = self.run(inputs)

    def get_output(self, index: int, out: Array | None = None) -> Array:
        """Output `index` of the last `execute`, copied into `out` where given.

        Raises:
            ExecutionError: nothing was executed yet.
            InputError: `out` has another dtype or shape.
        """
        if self._result is None:
            raise ExecutionError("there is no output: execute() was not called, or it failed")
        array = self._result.outputs[index]
        if out is None:
            return array.copy()
        if out.dtype != array.dtype or out.shape != array.shape:
            raise InputError(
                f"output {index} is {array.dtype}{list(array.shape)}, `out` is {out.dtype}{list(out.shape)}; "
                "pass an array of the output's dtype and shape"
            )
        np.copyto(out, array, casting="no")
        return out

    def run(self, inputs: Sequence[Array]) -> RunResult:
        """Resizes, runs and returns the results in one call, copying nothing that the build does not copy.

        Args:
            inputs: one C-contiguous array per input, of its dtype, each shape within the bounds.
        """
        return self.prepare(tuple([array.shape for array in inputs])).build.run(inputs)

    def prepare(self, shapes: tuple[tuple[int, ...], ...]) -> Prepared:
        """The static graph and the build for `shapes`, made on first use and cached.

        Raises:
            ClosedError: the executable was closed.
            InputError: a shape is out of bounds.
            UnsupportedMethodError: the engine refuses nodes at these shapes.
        """
        if self._closed:
            raise ClosedError(f"method '{self._method.name}' was compiled by an engine context that has been closed")
        prepared = self._prepared.get(shapes)
        if prepared is None:
            for spec, shape in zip(self._method.inputs, shapes, strict=True):
                spec.check_shape(shape)
            prepared = self._prepared[shapes] = self._make(self._method.specialize(shapes))
            while len(self._prepared) > MAX_BUILDS:
                _, oldest = self._prepared.popitem(last=False)
                oldest.build.close()
        elif prepared is not self._current:
            self._prepared.move_to_end(shapes)
        else:
            return prepared
        self._current = prepared
        for index, shape in enumerate(shapes):
            if shape != self._shapes[index]:
                self._shapes[index] = shape
                self._inputs[index] = None
        return prepared

    def _make(self, graph: StaticGraph) -> Prepared:
        if graph.cut is not None:
            from ptn_runtime.staged import Kept, StagedBuild  # only methods whose sizes depend on data need it

            if self._kept is None:
                self._kept = Kept(MAX_BUILDS)
            return StagedBuild(self._context, graph, self._check_support, self._kept).prepared(self.graph)
        self._check_support(graph)
        return Prepared(graph, self._context.build(graph))

    def build(self, shapes: tuple[tuple[int, ...], ...]) -> EngineBuild:
        """The build for `shapes`, made on first use and cached; raises as `prepare` does."""
        return self.prepare(shapes).build

    def close(self) -> None:
        """Frees every build. Idempotent."""
        for prepared in self._prepared.values():
            prepared.build.close()
        self._prepared.clear()
        self._current = Prepared(self._current.graph, _NOTHING)
        self._closed = True

    def _check_support(self, *graphs: StaticGraph) -> None:
        host = self._context.host
        refused = list(refused_nodes(host.engine, host.device, *graphs))
        if refused:
            from ptn_runtime.registry import registry  # only a refusal needs the other engines
            from ptn_runtime.survey import with_engines

            items = [(node, unsupported(node, support, self._method.name)) for node, support in refused]
            raise UnsupportedMethodError(host.name, self._method.name, with_engines(registry(), host.engine, items))


class _Nothing(EngineBuild):
    """Stands for the build before there is one."""

    def run(self, inputs: Sequence[Array]) -> RunResult:
        raise ExecutionError("nothing was built yet")


_NOTHING = _Nothing()


def initial_graph(method: LoweredMethod) -> StaticGraph:
    """The first of `initial_graphs`."""
    return initial_graphs(method)[0]


def initial_graphs(method: LoweredMethod) -> tuple[StaticGraph, ...]:
    """The static graph for the upper bounds of the inputs; for the lower ones where an assertion of the program fails.

    Where sizes depend on data, they are taken at their upper bounds, too, as far as those are known; branches that the
    data choose give a graph each. A graph whose later stages cannot be foretold ends before them, without results.

    Raises:
        InputError: the program's assertions hold for neither.
        LoweringError: the method cannot be lowered.
    """
    graph = _initial_stage(method)
    if graph.cut is None:
        return (graph,)
    from ptn_runtime.lowering.foresee import foreseen  # only methods whose sizes depend on data need it

    return foreseen(graph)


def _initial_stage(method: LoweredMethod) -> StaticGraph:
    try:
        return method.specialize(tuple(spec.initial_shape for spec in method.inputs))
    except InputError:
        lowest = tuple(tuple(dim.min for dim in spec.dims) for spec in method.inputs)
        try:
            return method.specialize(lowest)
        except InputError:
            pass  # the first error, at the shape that the contract promises, tells more
        raise


def ask(engine: Engine, node: StaticNode, device: Device) -> Support:
    """The engine's answer for one node.

    Raises:
        EngineError: `supports` itself failed, which is a fault of the engine.
    """
    try:
        return engine.supports(node, device)
    except Exception as error:  # the plugin's own code
        raise EngineError(
            f"engine '{engine.name}' failed when it was asked about {node.describe()}: "
            f"{type(error).__name__}: {error}. This is a fault of the engine."
        ) from error


def refused_nodes(engine: Engine, device: Device, *graphs: StaticGraph) -> Iterator[tuple[StaticNode, Support]]:
    """Every node of `graphs` and of their nested graphs that `engine` refuses on `device`, with its answer.

    Several graphs are ways through one method: a node that they have in common is given once. What the runtime
    computes itself is not asked about.
    """
    seen: set[tuple[str, str]] = set()
    for graph in graphs:
        found = [(node, answer) for node, answer in _refused(engine, device, graph) if (node.name, node.op) not in seen]
        seen.update((node.name, node.op) for node, _ in found)
        yield from found


def _refused(engine: Engine, device: Device, graph: StaticGraph) -> Iterator[tuple[StaticNode, Support]]:
    for node in graph.nodes:
        if node.on_host:
            continue
        support = ask(engine, node, device)
        if not support.ok:
            yield node, support
        for subgraph in node.subgraphs():
            yield from _refused(engine, device, subgraph)


def check_support(engine: Engine, device: Device, *graphs: StaticGraph) -> list[UnsupportedNode]:
    """Every node of `graphs` and of their nested graphs that `engine` refuses on `device`; see `refused_nodes`."""
    return [unsupported(node, support, graphs[0].method) for node, support in refused_nodes(engine, device, *graphs)]


def unsupported(node: StaticNode, support: Support, method: str) -> UnsupportedNode:
    """The entry of an error or report for a node that an engine refuses."""
    return UnsupportedNode(
        node.describe(), support.reason, op=node.op, method=method, name=node.name, source=node.source
    )
