"""The ggml engine: devices, hosts and contexts. `build.py` turns a static graph into something that executes."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from ptn_runtime.engine import (
    Array,
    Device,
    Engine,
    EngineContext,
    EngineHost,
    StaticGraph,
    StaticNode,
    Support,
    Value,
)
from ptn_runtime.errors import DeviceError, EngineLoadError, StateError

from ptn_engine_ggml import libggml
from ptn_engine_ggml._version import __version__

libggml.load()  # before the module that needs it

from ptn_engine_ggml import _native  # noqa: E402
from ptn_engine_ggml.build import GgmlBuild  # noqa: E402
from ptn_engine_ggml.lower import registry  # noqa: E402
from ptn_engine_ggml.threads import available_processors  # noqa: E402

if TYPE_CHECKING:
    from ptn_format.package import Package
    from ptn_runtime.lowering.program import LoweredProgram

__all__ = ["GgmlContext", "GgmlEngine", "GgmlHost"]

MAX_THREADS = 512
"""What ggml's thread pool takes."""


class GgmlEngine(Engine):
    """Runs static graphs with ggml."""

    name = "ggml"

    def __init__(self) -> None:
        _check_versions()
        self._names: dict[str, str] = {}
        devices = []
        for name, kind, description, memory in _native.devices():
            device = Device(_device_id(name), kind, description, memory or None)
            self._names[device.id] = name
            devices.append(device)
        # Stable: accelerators such as BLAS come last, since they run only part of a graph.
        order = {"gpu": 0, "igpu": 1, "cpu": 2, "accelerator": 3}
        self._devices = tuple(sorted(devices, key=lambda device: order[device.kind]))

    def devices(self) -> tuple[Device, ...]:
        """The devices of ggml's registry, GPUs first."""
        return self._devices

    def supports(self, node: StaticNode, device: Device) -> Support:
        """See `lower.registry.supports`."""
        return registry.supports(node, device)

    def options(self) -> Mapping[str, str]:
        """The options of `create_host`."""
        return {"threads": f"threads of one context, 1..{MAX_THREADS}; default: the processors this process may use"}

    def create_host(self, device: Device, **options: Any) -> GgmlHost:
        """Brings a device up; see `options`."""
        unknown = options.keys() - self.options().keys()
        if unknown:
            raise TypeError(f"the ggml engine has no option {sorted(unknown)}; it has {sorted(self.options())}")
        if device.id not in self._names:
            raise DeviceError(f"ggml has no device '{device.id}'; it has: {', '.join(self._names)}")
        return GgmlHost(self, device, self._names[device.id], _thread_count(options.get("threads")))


class GgmlHost(EngineHost):
    """One device. What runs on it (a backend, its threads) belongs to the contexts, so that they run side by side."""

    def __init__(self, engine: GgmlEngine, device: Device, ggml_name: str, threads: int) -> None:
        super().__init__(engine, device)
        self.ggml_name = ggml_name
        self.threads = threads

    def create_context(self, program: LoweredProgram, package: Package) -> GgmlContext:
        """Loads a program; constants are brought to the device when a method that reads them is first built."""
        return GgmlContext(self, program, package)

    def stream(self) -> _native.Stream:
        """A backend and threads for one context."""
        try:
            return _native.Stream(self.ggml_name, self.threads)
        except RuntimeError as error:
            raise DeviceError(str(error)) from error


class GgmlContext(EngineContext):
    """One loaded program: weights (shared with its forks), state and a stream of its own."""

    host: GgmlHost

    def __init__(
        self, host: GgmlHost, program: LoweredProgram, package: Package, weights: _native.Weights | None = None
    ) -> None:
        super().__init__(host, program, package)
        self.stream = host.stream()
        self.weights = _native.Weights(self.stream) if weights is None else weights
        specs = [(spec.key, int(spec.dtype), spec.shape) for spec in program.states.values()]
        self.state = _native.State(self.stream, specs)
        self.reset_state()

    def fork(self) -> GgmlContext:
        """A second context over the same weights, its state as the file gives it."""
        self._check_open()
        return GgmlContext(self.host, self.program, self.package, self.weights)

    def build(self, graph: StaticGraph) -> GgmlBuild:
        """Builds a supported graph for execution."""
        self._check_open()
        return GgmlBuild(self, graph)

    def load_constant(self, value: Value) -> None:
        """Brings a constant of the package to the device, unless it is there."""
        assert value.key is not None
        if value.key not in self.weights:
            array = self.package.constant(value.key)
            self.weights.add(value.key, int(value.dtype), value.shape, np.ascontiguousarray(array))

    def read_state(self, key: str) -> Array:
        """A copy of a state's value."""
        spec = self._state_spec(key)
        array = np.empty(spec.shape, spec.dtype.numpy)
        self.state.read(key, array)
        return array

    def write_state(self, key: str, array: Array) -> None:
        """Replaces a state's value."""
        spec = self._state_spec(key)
        if array.dtype != spec.dtype.numpy or array.shape != spec.shape:
            raise StateError(
                f"state '{key}' takes {spec.dtype.torch_name}{list(spec.shape)}, got {array.dtype}{list(array.shape)}"
            )
        self.state.write(key, np.ascontiguousarray(array))

    def reset_state(self) -> None:
        """Puts every state back to the file's value."""
        self._check_open()
        self.state.clear()
        for spec in self.program.states.values():
            if spec.has_data:
                self.state.write(spec.key, np.ascontiguousarray(self.package.constant(spec.key)))

    def close(self) -> None:
        """Frees everything that no fork shares."""
        super().close()
        for name in ("state", "weights", "stream"):
            self.__dict__.pop(name, None)

    def _state_spec(self, key: str) -> Any:
        self._check_open()
        spec = self.program.states.get(key)
        if spec is None:
            raise StateError(f"there is no state '{key}'; there are: {', '.join(self.program.states) or 'none'}")
        return spec


def _check_versions() -> None:
    built, loaded = _native.GGML_VERSION_BUILT_WITH, _native.ggml_version()
    if built != loaded:
        raise EngineLoadError(
            f"ptn-engine-ggml {__version__} was built with ggml {built} but ggml {loaded} is loaded. Reinstall both: "
            f"pip install --force-reinstall ptn-engine-ggml 'libggml-python=={libggml.SUPPORTED}.*'"
        )
    if _native.__version__ != __version__:
        raise EngineLoadError(
            f"ptn-engine-ggml {__version__} holds native code of {_native.__version__}. Reinstall it: "
            "pip install --force-reinstall ptn-engine-ggml"
        )


def _device_id(ggml_name: str) -> str:
    """`CPU` -> `cpu`, `CUDA0` -> `cuda:0`."""
    match = re.fullmatch(r"(.*?\D)(\d+)", ggml_name)
    return f"{match.group(1)}:{match.group(2)}".lower() if match else ggml_name.lower()


def _thread_count(option: Any) -> int:
    if option is None:
        return min(available_processors(), MAX_THREADS)
    if isinstance(option, bool) or not hasattr(option, "__index__"):
        raise TypeError(f"threads={option!r}: a whole number is needed, 1..{MAX_THREADS}")
    count = operator.index(option)
    if not 1 <= count <= MAX_THREADS:
        raise ValueError(f"threads={option}: ggml takes 1..{MAX_THREADS} threads")
    return count
