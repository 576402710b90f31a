"""Asks the installed engines about a program: what `load` chooses by and what `ptn check` shows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

from ptn_runtime.engine import Device, Engine, ask, initial_graphs, refused_nodes, unsupported
from ptn_runtime.errors import (
    DeviceError,
    EngineError,
    NoEngineError,
    Refusal,
    UnsupportedMethodError,
    UnsupportedNode,
)
from ptn_runtime.hosts import HostLease, acquire_host, check_options
from ptn_runtime.select import Candidate, choose, match_device, summarize

if TYPE_CHECKING:
    from ptn_runtime.lowering.program import LoweredProgram
    from ptn_runtime.lowering.static import StaticGraph, StaticNode
    from ptn_runtime.registry import Registry

__all__ = ["Answer", "Picked", "Survey", "asked", "devices_of", "with_engines"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Answer:
    """What one engine says about a program on one device.

    Attributes:
        engine: the engine's name.
        device: the device; None where the engine has none or could not be loaded.
        refusal: why it does not run the program; None where it runs it.
        notes: remarks on nodes that run in a way worth knowing, each with the number of such nodes.
    """

    engine: str
    device: Device | None
    refusal: Refusal | None
    notes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Picked:
    """The engine and device that run a program, brought up."""

    engine: Engine
    device: Device
    lease: HostLease
    refused: tuple[Refusal, ...]


class Survey:
    """The questions about one program, with the answers kept."""

    def __init__(self, program: LoweredProgram, registry: Registry) -> None:
        self._program = program
        self._registry = registry
        self._refused: dict[tuple[int, str], list[tuple[StaticNode, UnsupportedNode]]] = {}

    def pick(self, engine: str | Engine | None, device: str | None, options: Mapping[str, Any]) -> Picked:
        """The engine and device to run the program on.

        Raises:
            EngineError: see `ptn_runtime.load`.
        """
        if engine is not None:
            if not isinstance(engine, (str, Engine)):
                raise TypeError(f"engine takes the name of an engine or an Engine, got {type(engine).__name__}")
            return self._pick_named(
                self._registry.engine(engine) if isinstance(engine, str) else engine, device, options
            )
        refused: list[Refusal] = []
        matched = False
        for engines in self._by_priority(refused):
            candidates = []
            for found, priority in engines:
                devices = self._matching(found, device, refused)
                matched = matched or bool(devices)
                candidates += [Candidate(found.name, item, priority, place) for place, item in enumerate(devices)]
            picked = self._choose({found.name: found for found, _ in engines}, candidates, options, refused)
            if picked is not None:
                return picked
        if device is not None and not matched:
            raise DeviceError(self._no_device_text(device))
        lines = "".join(f"\n  {item}" for item in refused)
        if not refused:
            lines = " No engine is installed; the reference engine comes with ptn-runtime: reinstall it."
        raise NoEngineError(f"no installed engine can run this program.{lines}", refused)

    def _choose(
        self,
        engines: Mapping[str, Engine],
        candidates: list[Candidate],
        options: Mapping[str, Any],
        refused: list[Refusal],
    ) -> Picked | None:
        """The first candidate that runs the program and whose device comes up; refusals are added to `refused`."""
        leases: list[HostLease] = []

        def attempt(candidate: Candidate) -> Refusal | None:
            try:
                nodes = self.refused(engines[candidate.engine], candidate.device)
                if nodes:
                    return Refusal(candidate.engine, candidate.device.id, summarize(nodes), nodes)
                leases.append(acquire_host(engines[candidate.engine], candidate.device, options))
            except EngineError as error:
                return Refusal(candidate.engine, candidate.device.id, str(error))
            return None

        choice = choose(candidates, attempt)
        refused += choice.refused
        if choice.chosen is None:
            return None
        return Picked(engines[choice.chosen.engine], choice.chosen.device, leases[0], tuple(refused))

    def refused(self, engine: Engine, device: Device) -> tuple[UnsupportedNode, ...]:
        """Every node of every method that `engine` refuses on `device`; `engines` is not filled in.

        Raises:
            EngineError: the engine fails when it is asked.
            LoweringError: a method cannot be lowered.
        """
        key = (id(engine), device.id)
        if key not in self._refused:
            self._refused[key] = [
                (node, unsupported(node, support, name))
                for name in self._program.methods
                for node, support in refused_nodes(engine, device, *initial_graphs(self._program.method(name)))
            ]
        return tuple(item for _, item in self._refused[key])

    def refused_with_engines(self, engine: Engine, device: Device) -> tuple[UnsupportedNode, ...]:
        """The same with the names of the engines that can run each node; loads every installed engine."""
        if not self.refused(engine, device):
            return ()
        return with_engines(self._registry, engine, self._refused[id(engine), device.id])

    def answers(self, engine: str | None = None, device: str | None = None) -> Iterator[Answer]:
        """What every installed engine (or only `engine`) says, on every device (or only `device`); best first."""
        broken: list[Refusal] = []
        groups = self._by_priority(broken) if engine is None else iter([[(self._registry.engine(engine), 0)]])
        for group in groups:
            for found, _ in group:
                devices = self._matching(found, device, broken)
                for item in devices:
                    yield self._answer(found, item)
        for refusal in broken:
            yield Answer(refusal.engine, None, refusal)

    def _answer(self, engine: Engine, device: Device) -> Answer:
        try:
            nodes = self.refused_with_engines(engine, device)
            if nodes:
                return Answer(engine.name, device, Refusal(engine.name, device.id, summarize(nodes), nodes))
            notes: dict[str, int] = {}
            for name in self._program.methods:
                for node in _engine_nodes(initial_graphs(self._program.method(name))):
                    note = ask(engine, node, device).note
                    if note:
                        notes[f"{node.op}: {note}"] = notes.get(f"{node.op}: {note}", 0) + 1
        except EngineError as error:
            return Answer(engine.name, device, Refusal(engine.name, device.id, str(error)))
        return Answer(engine.name, device, None, notes)

    def _pick_named(self, engine: Engine, device: str | None, options: Mapping[str, Any]) -> Picked:
        check_options(engine, options)
        devices = devices_of(engine)
        wanted = match_device(engine.name, devices, device, engine.unavailable() if not devices else None)
        refused: list[Refusal] = []
        for item in [wanted] if device is not None else devices:
            nodes = self.refused(engine, item)
            if not nodes:
                lease = acquire_host(engine, item, options)
                return Picked(engine, item, lease, tuple(refused))
            refused.append(Refusal(engine.name, item.id, summarize(nodes), nodes))
        nodes = self.refused_with_engines(engine, wanted)
        raise UnsupportedMethodError(engine.name, ",".join(dict.fromkeys(node.method for node in nodes)), nodes)

    def _by_priority(self, broken: list[Refusal]) -> Iterator[list[tuple[Engine, int]]]:
        """Installed engines in groups of equal priority, highest first; a group is loaded only when it is reached."""
        specs = []
        for row in self._registry.rows():
            if row.problem is not None:
                broken.append(Refusal(row.name, None, row.problem))
                continue
            try:
                specs.append(self._registry.spec(row.name))
            except EngineError as error:
                broken.append(Refusal(row.name, None, str(error)))
        specs.sort(key=lambda spec: (-spec.priority, spec.name))
        for _, group in groupby(specs, key=lambda spec: spec.priority):
            engines = []
            for spec in group:
                try:
                    engines.append((self._registry.engine(spec.name), spec.priority))
                except EngineError as error:
                    broken.append(Refusal(spec.name, None, str(error)))
            yield engines

    def _matching(self, engine: Engine, device: str | None, refused: list[Refusal]) -> list[Device]:
        try:
            devices = devices_of(engine)
            if device is None and devices:
                return list(devices)
            return [match_device(engine.name, devices, device, engine.unavailable() if not devices else None)]
        except EngineError as error:
            refused.append(Refusal(engine.name, None, str(error)))
            return []

    def _no_device_text(self, device: str) -> str:
        found: list[str] = []
        for group in self._by_priority([]):
            for engine, _ in group:
                with contextlib.suppress(EngineError):  # only a list for a message
                    found += [f"{item.id} ({engine.name})" for item in devices_of(engine)]
        return f"no installed engine has a device '{device}'. Devices: {', '.join(found) or 'none'}."


def with_engines(
    registry: Registry, engine: Engine, refused: Sequence[tuple[StaticNode, UnsupportedNode]]
) -> tuple[UnsupportedNode, ...]:
    """Nodes that `engine` refuses, with the names of the other engines that can run each; loads every engine."""
    others: list[tuple[Engine, tuple[Device, ...]]] = []
    for name in registry.names():
        try:
            other = registry.engine(name)
            if other is not engine and other.name != engine.name:
                others.append((other, devices_of(other)))
        except EngineError:
            continue  # its reason is shown where engines are listed
    return tuple(
        replace(item, engines=tuple(other.name for other, devices in others if _runs(other, node, devices)))
        for node, item in refused
    )


def _engine_nodes(graphs: Sequence[StaticGraph]) -> Iterator[StaticNode]:
    """The nodes that an engine runs, those that several graphs have in common once."""
    seen: set[tuple[str, str]] = set()
    for graph in graphs:
        new = [node for node in graph.nodes if not node.on_host and (node.name, node.op) not in seen]
        seen.update((node.name, node.op) for node in new)
        yield from new


def devices_of(engine: Engine) -> tuple[Device, ...]:
    """What `engine.devices()` gives; an `EngineError` where it fails."""
    return asked(engine, "its devices", lambda: tuple(engine.devices()))


def asked(engine: Engine, what: str, question: Callable[[], _T]) -> _T:
    """The answer of a plugin's own code.

    Raises:
        EngineError: the code failed, with what it was asked for; the cause is kept.
    """
    try:
        return question()
    except EngineError:
        raise
    except Exception as error:
        raise EngineError(
            f"engine '{engine.name}' failed when it was asked for {what}: {type(error).__name__}: {error}. "
            "This is a fault of the engine."
        ) from error


def _runs(engine: Engine, node: StaticNode, devices: tuple[Device, ...]) -> bool:
    with contextlib.suppress(EngineError):  # an engine that fails does not run it
        return any(ask(engine, node, device).ok for device in devices)
    return False
