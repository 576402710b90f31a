"""A fake engine and fake lowered programs: the user API is tested apart from lowering and kernels."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ptn_format.dtypes import ScalarType
from ptn_format.graph import (
    Dim,
    Graph,
    Method,
    NamedArgument,
    Node,
    OpKind,
    OutputSpec,
    TensorArg,
    TensorMeta,
)
from ptn_format.signature import Signature
from ptn_runtime.engine import (
    SUPPORTED,
    Device,
    Engine,
    EngineBuild,
    EngineContext,
    EngineHost,
    RunResult,
    Support,
)
from ptn_runtime.errors import ClosedError, MethodNotFoundError, StateError
from ptn_runtime.lowering.program import InputSpec, StateSpec
from ptn_runtime.lowering.static import StaticGraph, StaticNode, Value, ValueKind

CPU = Device("cpu", "cpu", "Fake CPU")


def dims(*sizes: int | tuple[int, int]) -> tuple[Dim, ...]:
    """Axes: a number is static, a pair a range (-1: no upper bound)."""
    return tuple(Dim(*size) if isinstance(size, tuple) else Dim(size, size) for size in sizes)


def tensor(name: str, dtype: ScalarType, *sizes: int | tuple[int, int], mutated: bool = False) -> InputSpec:
    return InputSpec(name, dtype, dims(*sizes), mutated)


@dataclass
class FakeMethod:
    """A method whose whole body is `function(inputs, state) -> results`; it may change the arrays of `state`."""

    name: str
    inputs: tuple[InputSpec, ...]
    function: Callable[..., Sequence[Any]]
    num_results: int = 1
    signature: Signature | None = None
    op: str = "fake.body.default"
    states: tuple[str, ...] = ()
    number_results: frozenset[int] = frozenset()
    specialized: list[Any] = field(default_factory=list)
    graphs: dict[Any, StaticGraph] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.signature is None:
            self.signature = Signature.flat([spec.name for spec in self.inputs], self.num_results)

    def specialize(self, shapes: tuple[tuple[int, ...], ...]) -> StaticGraph:
        if shapes not in self.graphs:
            self.graphs[shapes] = self._specialize(shapes)
        return self.graphs[shapes]

    def _specialize(self, shapes: tuple[tuple[int, ...], ...]) -> StaticGraph:
        self.specialized.append(shapes)
        inputs = []
        for i, (spec, shape) in enumerate(zip(self.inputs, shapes, strict=True)):
            spec.check_shape(shape)
            inputs.append(Value(i, spec.name, spec.dtype, shape, ValueKind.INPUT))
        examples = [np.zeros(value.shape, value.dtype.numpy) for value in inputs]
        results = self.function(examples, _ZeroState())
        values: list[Any] = []
        for i, item in enumerate(results[: self.num_results]):
            if isinstance(item, np.ndarray):
                item = Value(100 + i, f"r{i}", ScalarType.from_numpy(item.dtype), item.shape)
            values.append(item)
        outputs = tuple(item for item in values if isinstance(item, Value))
        news = tuple(
            (value, Value(200 + i, f"new_{value.name}", value.dtype, value.shape))
            for i, value in enumerate(inputs)
            if self.inputs[i].mutated
        )
        node = StaticNode("body", self.op, {}, (*outputs, *(new for _, new in news)), "user.py:7")
        graph = StaticGraph(self.name, tuple(inputs), (), (), (node,), outputs, tuple(values), input_updates=news)
        graph.extra["function"] = self.function
        graph.extra["num_results"] = self.num_results
        return graph


class _ZeroState(dict[str, Any]):
    def __missing__(self, key: str) -> Any:
        return np.zeros(())


class FakePackage:
    """Stands for an opened package; keeps what the user API asks of it."""

    def __init__(self, methods: Sequence[FakeMethod], constants: Mapping[str, Any]) -> None:
        self.path = "fake.ptn"
        self.constants = dict(constants)
        self.closed = False
        self._methods = {method.name: method for method in methods}

    def constant(self, key: str) -> Any:
        return self.constants[key]

    def method(self, name: str) -> Method:
        fake = self._methods[name]
        names = [f"r{i}" for i in range(fake.num_results)]
        output = Node("output", OpKind.OUTPUT, inputs=tuple(NamedArgument(None, TensorArg(n)) for n in names))
        metas = {n: TensorMeta(ScalarType.FLOAT, dims((1, 8), 4)) for n in names}
        inputs = tuple(spec.name for spec in fake.inputs)
        graph = Graph((output,), inputs=inputs, outputs=tuple(names), tensor_values=metas)
        return Method(name, graph, output_specs=tuple(OutputSpec(n) for n in names))

    def close(self) -> None:
        self.closed = True


class FakeProgram:
    def __init__(self, package: FakePackage, methods: Sequence[FakeMethod], states: Sequence[StateSpec]) -> None:
        self.package = package
        self.methods = tuple(method.name for method in methods)
        self.states = {spec.key: spec for spec in states}
        self._methods = {method.name: method for method in methods}

    def method(self, name: str) -> FakeMethod:
        if name not in self._methods:
            raise MethodNotFoundError(f"no method '{name}'; methods: {', '.join(self.methods)}")
        return self._methods[name]


class FakeEngine(Engine):
    """Runs `FakeMethod`s; `refuse` maps operators to reasons."""

    def __init__(
        self, name: str = "fake", devices: Sequence[Device] = (CPU,), refuse: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._devices = tuple(devices)
        self.refuse = dict(refuse or {})
        self.hosts: list[FakeHost] = []
        self.fail: Exception | None = None

    def devices(self) -> tuple[Device, ...]:
        return self._devices

    def unavailable(self) -> str | None:
        return None if self._devices else "no fake hardware was found; plug some in."

    def supports(self, node: StaticNode, device: Device) -> Support:
        reason = self.refuse.get(f"{node.op}@{device.id}") or self.refuse.get(node.op)
        return Support.no(reason) if reason else SUPPORTED

    def options(self) -> Mapping[str, str]:
        return {"threads": "number of threads"}

    def create_host(self, device: Device, **options: Any) -> FakeHost:
        if self.fail is not None:
            raise self.fail
        host = FakeHost(self, device)
        self.hosts.append(host)
        return host


class FakeHost(EngineHost):
    def __init__(self, engine: FakeEngine, device: Device) -> None:
        super().__init__(engine, device)
        self.contexts: list[FakeContext] = []

    def create_context(self, program: Any, package: Any) -> FakeContext:
        context = FakeContext(self, program, package)
        self.contexts.append(context)
        return context


class FakeContext(EngineContext):
    def __init__(self, host: EngineHost, program: Any, package: Any) -> None:
        super().__init__(host, program, package)
        self.running = 0
        self.most_running = 0
        self.reset_state()

    def build(self, graph: StaticGraph) -> EngineBuild:
        return FakeBuild(self, graph)

    def read_state(self, key: str) -> Any:
        if key not in self.values:
            raise StateError(key)
        return self.values[key].copy()

    def write_state(self, key: str, array: Any) -> None:
        self.values[key] = array

    def reset_state(self) -> None:
        self.values = {
            spec.key: np.array(self.package.constant(spec.key))
            if spec.has_data
            else np.zeros(spec.shape, spec.dtype.numpy)
            for spec in self.program.states.values()
        }


class FakeBuild(EngineBuild):
    def __init__(self, context: FakeContext, graph: StaticGraph) -> None:
        self.context = context
        self.graph = graph
        self.closed = False
        self.calls: list[list[Any]] = []

    def run(self, inputs: Sequence[Any]) -> RunResult:
        context = self.context
        if self.closed or context.closed:
            raise ClosedError("run after close reached the engine")
        context.running += 1
        context.most_running = max(context.most_running, context.running)
        try:
            for value, array in zip(self.graph.inputs, inputs, strict=True):
                assert type(array) is np.ndarray
                assert array.dtype == value.dtype.numpy
                assert array.dtype.isnative
                assert array.shape == value.shape
                assert array.flags.c_contiguous
                assert array.flags.aligned
            results = list(self.graph.extra["function"](list(inputs), context.values))
        finally:
            context.running -= 1
        count = self.graph.extra["num_results"]
        outputs = [np.array(item) for item in results[:count] if isinstance(item, np.ndarray)]
        return RunResult(outputs, [np.array(item) for item in results[count:]])

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def fakes() -> SimpleNamespace:
    """The fakes by name, since test folders are no packages."""
    return SimpleNamespace(
        CPU=CPU,
        Engine=FakeEngine,
        Method=FakeMethod,
        Package=FakePackage,
        Program=FakeProgram,
        dims=dims,
        tensor=tensor,
    )


@pytest.fixture
def load_fake(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`load_fake(methods, states=(), constants={}, engine=...)` goes through the real `ptn_runtime.load`."""
    package_module = SimpleNamespace()
    loaded: list[Any] = []

    def load(
        methods: Any, *, states: Any = (), constants: Any = None, engine: Any = None, device: Any = None, **options: Any
    ) -> Any:
        import ptn_runtime
        from ptn_runtime.lowering import program as program_module

        methods = [methods] if isinstance(methods, FakeMethod) else list(methods)
        package = FakePackage(methods, constants or {})
        package_module.open_package = lambda _source: package
        monkeypatch.setitem(sys.modules, "ptn_format.package", package_module)  # type: ignore[arg-type]
        monkeypatch.setattr(program_module, "LoweredProgram", lambda p: FakeProgram(p, methods, states))
        model = ptn_runtime.load("fake.ptn", engine if engine is not None else FakeEngine(), device, **options)
        loaded.append(model)
        return model

    yield load
    for model in loaded:
        model.close()


@pytest.fixture
def in_threads() -> Callable[..., list[Any]]:
    """Runs callables in threads of their own; raises the first error, returns the results."""

    def run(*functions: Callable[[], Any]) -> list[Any]:
        results: list[Any] = [None] * len(functions)
        errors: list[BaseException] = []

        def target(i: int, function: Callable[[], Any]) -> None:
            try:
                results[i] = function()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=target, args=pair) for pair in enumerate(functions)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        if errors:
            raise errors[0]
        return results

    return run
