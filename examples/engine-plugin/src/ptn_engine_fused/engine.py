"""The classes of the engine contract: engine, host, context and build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    StaticGraph,
    StaticNode,
    Support,
)
from ptn_runtime.errors import StateError
from ptn_runtime.reference import KERNELS

from ptn_engine_fused.plan import CONTROL, Plan

if TYPE_CHECKING:
    from ptn_format.package import Package
    from ptn_runtime.lowering.program import LoweredProgram

__all__ = ["FusedEngine"]

CPU = Device(id="cpu", kind="cpu", description="numpy on the host's processor")


class FusedEngine(Engine):
    """Lists the one device and says which nodes run on it."""

    name = "fused"

    def devices(self) -> tuple[Device, ...]:
        """The host's processor, which is always there."""
        return (CPU,)

    def supports(self, node: StaticNode, device: Device) -> Support:
        """Yes to what the reference engine has a kernel for, and to nested graphs."""
        if node.op in KERNELS or node.op in CONTROL:
            return SUPPORTED
        return Support.no(f"neither a fused form nor a numpy kernel exists for {node.op}")

    def options(self) -> Mapping[str, str]:
        """The keyword arguments of `create_host`."""
        return {"block": "elements that a chain works on at a time (default: 32768, which fits a second-level cache)"}

    def create_host(self, device: Device, *, block: int = 32768, **unknown: Any) -> EngineHost:
        """There is nothing to bring up."""
        if unknown:
            raise TypeError(f"the fused engine has no option {', '.join(sorted(unknown))}; it has: block")
        if block < 1:
            raise ValueError(f"a block has at least one element, got block={block}")
        return FusedHost(self, device, block)


class FusedHost(EngineHost):
    """Process-wide resources of a device: here only the block size."""

    def __init__(self, engine: Engine, device: Device, block: int) -> None:
        super().__init__(engine, device)
        self.block = block

    def create_context(self, program: LoweredProgram, package: Package) -> EngineContext:
        """Loads a program."""
        return FusedContext(self, program, package, self.block, {})


class FusedContext(EngineContext):
    """The constants of a program, shared by its forks, and one copy of its state."""

    def __init__(
        self, host: EngineHost, program: LoweredProgram, package: Package, block: int, constants: dict[str, Array]
    ) -> None:
        super().__init__(host, program, package)
        self.block = block
        self.state: dict[str, Array] = {}
        self._constants = constants
        self.reset_state()

    def constant(self, key: str) -> Array:
        """The constant `key` as a read-only array, read when it is first asked for."""
        if key not in self._constants:
            self._constants[key] = np.asarray(self.package.constant(key))
        return self._constants[key]

    def build(self, graph: StaticGraph) -> EngineBuild:
        """Plans a graph; called once per method and set of input shapes."""
        self._check_open()
        return FusedBuild(self, graph)

    def read_state(self, key: str) -> Array:
        """A copy of a state's value."""
        self._check_state(key)
        return self.state[key].copy()

    def write_state(self, key: str, array: Array) -> None:
        """Replaces a state's value; the runtime has checked dtype and shape and gives the array away."""
        self._check_state(key)
        self.state[key] = array

    def reset_state(self) -> None:
        """Every state as the file gives it: its data, or zeros."""
        self._check_open()
        for key, spec in self.program.states.items():
            zeros = np.zeros(spec.shape, spec.dtype.numpy)
            self.state[key] = np.array(self.package.constant(key), order="C") if spec.has_data else zeros

    def fork(self) -> EngineContext:
        """A context with the same constants and fresh state."""
        self._check_open()
        return FusedContext(self.host, self.program, self.package, self.block, self._constants)

    def close(self) -> None:
        """Lets go of the arrays. Constants may serve a fork, so only the reference to them is dropped."""
        super().close()
        self.state = {}
        self._constants = {}

    def _check_state(self, key: str) -> None:
        self._check_open()
        if key not in self.state:
            raise StateError(f"there is no state '{key}'; the program has {', '.join(sorted(self.state)) or 'none'}")


class FusedBuild(EngineBuild):
    """One static graph, planned."""

    def __init__(self, context: FusedContext, graph: StaticGraph) -> None:
        self._context = context
        self._graph = graph
        self.plan = Plan(graph, context.constant, context.block)

    def run(self, inputs: Sequence[Array]) -> RunResult:
        """Runs once and updates the context's state."""
        graph, state = self._graph, self._context.state
        before = {value.id: state[value.key or ""] for value in graph.states}
        values = self.plan.run(inputs, before)
        # Nothing that leaves may share memory with what stays, or with another result.
        borrowed = [values[value.id] for value in (*graph.inputs, *graph.constants, *graph.states)]
        owned = _Owned(borrowed)
        outputs = [owned.take(values[value.id]) for value in graph.outputs]
        input_updates = [owned.take(values[new.id]) for _, new in graph.input_updates]
        # All new values are taken before the first state changes: one update may read what another replaces.
        updates = {update.old.key or "": owned.take(values[update.new.id]) for update in graph.state_updates}
        state.update(updates)
        return RunResult(outputs, input_updates)


class _Owned:
    """Copies arrays whose memory somebody else has."""

    def __init__(self, borrowed: Sequence[Array]) -> None:
        self._taken = {id(_memory(array)) for array in borrowed}

    def take(self, array: Array) -> Array:
        memory = _memory(array)
        if id(memory) in self._taken or not array.flags.c_contiguous or not array.flags.writeable:
            return np.array(array, order="C", copy=True)
        self._taken.add(id(memory))
        return array


def _memory(array: Array) -> Any:
    """The object that owns an array's memory."""
    owner: Any = array
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    return owner
