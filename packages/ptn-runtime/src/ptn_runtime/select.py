"""Which engine and device run a program: pure functions over what the engines say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ptn_runtime.engine import Device
from ptn_runtime.errors import DeviceError, Refusal, UnsupportedNode

__all__ = ["Candidate", "Choice", "choose", "match_device", "rank", "summarize"]

_KIND_ORDER = ("gpu", "accelerator", "igpu", "cpu")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One engine on one of its devices.

    Attributes:
        engine: the engine's name.
        device: the device.
        priority: of the engine's spec.
        position: of the device in the engine's own list, best first.
    """

    engine: str
    device: Device
    priority: int = 0
    position: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """The outcome.

    Attributes:
        chosen: the first candidate that accepts the program; None where all refuse.
        refused: those that were asked before it, with their reasons.
    """

    chosen: Candidate | None
    refused: tuple[Refusal, ...]


def rank(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """The order in which candidates are asked: engine priority, then device kind, then the engine's own order."""

    def order(candidate: Candidate) -> tuple[int, int, str, int]:
        kind = candidate.device.kind
        place = _KIND_ORDER.index(kind) if kind in _KIND_ORDER else len(_KIND_ORDER)
        return (-candidate.priority, place, candidate.engine, candidate.position)

    return tuple(sorted(candidates, key=order))


def choose(candidates: Iterable[Candidate], attempt: Callable[[Candidate], Refusal | None]) -> Choice:
    """Tries candidates in rank order and takes the first that does not refuse; later ones are not tried.

    Args:
        candidates: engines and devices to choose from.
        attempt: why a candidate does not run the program, or None where it does.
    """
    refused: list[Refusal] = []
    for candidate in rank(candidates):
        refusal = attempt(candidate)
        if refusal is None:
            return Choice(candidate, tuple(refused))
        refused.append(refusal)
    return Choice(None, tuple(refused))


def summarize(nodes: Sequence[UnsupportedNode]) -> str:
    """One sentence for a list of refused nodes: how many, and the first of them."""
    if len(nodes) == 1:
        return f"1 node is not supported: {nodes[0]}"
    return f"{len(nodes)} nodes are not supported, the first is {nodes[0]}"


def match_device(engine: str, devices: Sequence[Device], wanted: str | None, unavailable: str | None = None) -> Device:
    """The device that `wanted` means: an id, or the part before the colon for the first of a family (`cuda`).

    Args:
        engine: the engine's name, for messages.
        devices: its devices, best first.
        wanted: None takes the first.
        unavailable: where there are no devices, the engine's own reason.

    Raises:
        DeviceError: there is none; the text lists those that exist.
    """
    if not devices:
        reason = f": {unavailable}" if unavailable else "."
        raise DeviceError(f"engine '{engine}' has no device on this machine{reason}")
    if wanted is None:
        return devices[0]
    for device in devices:
        if device.id == wanted:
            return device
    for device in devices:
        if device.id.split(":")[0] == wanted:
            return device
    listed = ", ".join(f"{device.id} ({device.description})" for device in devices)
    raise DeviceError(f"engine '{engine}' has no device '{wanted}'. Its devices: {listed}.")
