"""Asks the installed engines about a program: what `load` chooses by and what `ptn check` shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ptn_runtime.engine import Device, Engine, initial_graph, refused_nodes
from ptn_runtime.errors import (
    DeviceError,
    EngineError,
    NoEngineError,
    Refusal,
    UnsupportedMethodError,
    UnsupportedNode,
)
from ptn_runtime.hosts import HostLease, acquire_host
from ptn_runtime.select import Candidate, choose, match_device

if TYPE_CHECKING:
    from ptn_runtime.lowering.program import LoweredProgram
    from ptn_runtime.registry import Registry

__all__ = ["Answer", "Picked", "Survey"]


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
        self._refused: dict[tuple[int, str], tuple[UnsupportedNode, ...]] = {}

    def pick(self, engine: str | Engine | None, device: str | None, options: Mapping[str, Any]) -> Picked:
        """The engine and device to run the program on.

        Raises:
            EngineError: see `ptn_runtime.load`.
        """
        if engine is not None:
            return self._pick_named(self._registry.engine(engine) if isinstance(engine, str) else engine, device, options)
        refused: list[Refusal] = []
        matched = False
        for engines in self._by_priority(refused):
            candidates = []
            for found, priority in engines:
                devices = self._matching(found, device, refused)
                matched = matched or bool(devices)
                candidates += [Candidate(found.name, item, priority, place) for place, item in enumerate(devices)]
            named = {found.name: found for found, _ in engines}
            while candidates:
                choice = choose(candidates, lambda c, named=named: self.refused(named[c.engine], c.device))  # type: ignore[misc]
                refused += choice.refused
                if choice.chosen is None:
                    break
                chosen = choice.chosen
                try:
                    lease = acquire_host(named[chosen.engine], chosen.device, options)
                except EngineError as error:
                    refused.append(Refusal(chosen.engine, chosen.device.id, str(error)))
                    asked = {(item.engine, item.device) for item in refused}
                    candidates = [c for c in candidates if (c.engine, c.device.id) not in asked]
                    continue
                return Picked(named[chosen.engine], chosen.device, lease, tuple(refused))
        if device is not None and not matched:
            raise DeviceError(self._no_device_text(device))
        lines = "".join(f"\n  {item}" for item in refused)
        if not refused:
            lines = " No engine is installed; the reference engine comes with ptn-runtime: reinstall it."
        raise NoEngineError(f"no installed engine can run this program.{lines}", refused)

    def refused(self, engine: Engine, device: Device) -> tuple[UnsupportedNode, ...]:
        """Every node of every method that `engine` refuses on `device`, with the engines that can run it."""
        key = (id(engine), device.id)
        if key not in self._refused:
            found = []
            for name in self._program.methods:
                graph = initial_graph(self._program.method(name))
                for node, support in refused_nodes(engine, device, graph):
                    found.append(
                        (node, UnsupportedNode(node.describe(), support.reason, op=node.op, method=name))
                    )
            able = self._engines_for([node for node, _ in found], engine)
            self._refused[key] = tuple(
                replace(item, engines=names) for (_, item), names in zip(found, able, strict=True)
            )
        return self._refused[key]

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
        nodes = self.refused(engine, device)
        if nodes:
            from ptn_runtime.select import summarize

            return Answer(engine.name, device, Refusal(engine.name, device.id, summarize(nodes), nodes))
        notes: dict[str, int] = {}
        for name in self._program.methods:
            for node in initial_graph(self._program.method(name)).nodes:
                note = engine.supports(node, device).note
                if note:
                    notes[f"{node.op}: {note}"] = notes.get(f"{node.op}: {note}", 0) + 1
        return Answer(engine.name, device, None, notes)

    def _pick_named(self, engine: Engine, device: str | None, options: Mapping[str, Any]) -> Picked:
        devices = engine.devices()
        wanted = match_device(engine.name, devices, device, engine.unavailable() if not devices else None)
        asked = [wanted] if device is not None else list(devices)
        candidates = [Candidate(engine.name, item, 0, place) for place, item in enumerate(asked)]
        choice = choose(candidates, lambda candidate: self.refused(engine, candidate.device))
        if choice.chosen is None:
            nodes = choice.refused[0].nodes
            methods = ",".join(dict.fromkeys(node.method for node in nodes))
            raise UnsupportedMethodError(engine.name, methods, nodes)
        lease = acquire_host(engine, choice.chosen.device, options)
        return Picked(engine, choice.chosen.device, lease, choice.refused)

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
        devices = engine.devices()
        if device is None and devices:
            return list(devices)
        try:
            return [match_device(engine.name, devices, device, engine.unavailable() if not devices else None)]
        except DeviceError as error:
            refused.append(Refusal(engine.name, None, str(error)))
            return []

    def _engines_for(self, nodes: list[Any], refusing: Engine) -> list[tuple[str, ...]]:
        """For each node the names of the other installed engines that run it on some device."""
        others: list[tuple[Engine, tuple[Device, ...]]] = []
        if nodes:
            for name in self._registry.names():
                try:
                    engine = self._registry.engine(name)
                except EngineError:
                    continue  # its reason is shown where engines are listed
                if engine is not refusing and engine.name != refusing.name:
                    others.append((engine, engine.devices()))
        return [
            tuple(
                engine.name for engine, devices in others if any(engine.supports(node, item).ok for item in devices)
            )
            for node in nodes
        ]

    def _no_device_text(self, device: str) -> str:
        found: list[str] = []
        for group in self._by_priority([]):
            for engine, _ in group:
                found += [f"{item.id} ({engine.name})" for item in engine.devices()]
        return f"no installed engine has a device '{device}'. Devices: {', '.join(found) or 'none'}."
