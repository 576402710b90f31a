"""Engine hosts of this process: one per engine, device and options, freed when the last model lets go of it."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ptn_runtime.engine import Device, Engine, EngineHost
from ptn_runtime.errors import EngineError

__all__ = ["HostLease", "acquire_host", "check_options"]


@dataclass(slots=True)
class _Shared:
    """A host in use. `lock` serialises `create_context`, as the contract asks."""

    host: EngineHost
    key: object
    users: int = 0
    gone: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


_hosts: dict[object, _Shared] = {}
_lock = threading.RLock()  # re-entrant: the garbage collector may release a lease while this thread acquires one


class HostLease:
    """One user's hold on a shared host."""

    def __init__(self, shared: _Shared) -> None:
        self._shared: _Shared | None = shared
        self.host = shared.host
        self.lock = shared.lock

    def release(self) -> None:
        """Lets go; the last one closes the host. Idempotent."""
        with _lock:
            shared, self._shared = self._shared, None
            if shared is None:
                return
            shared.users -= 1
            if shared.users or shared.gone:
                return
            shared.gone = True
            if _hosts.get(shared.key) is shared:
                del _hosts[shared.key]
        shared.host.close()


def acquire_host(engine: Engine, device: Device, options: Mapping[str, Any]) -> HostLease:
    """A hold on the host for `engine`, `device` and `options`, which is brought up on first use.

    Raises:
        EngineError: an option is not known (the text lists those that are), or its value does not fit.
        DeviceError: the device does not come up.
    """
    check_options(engine, options)
    key = _key(engine, device, options)
    with _lock:
        shared = _hosts.get(key)
        if shared is not None:
            shared.users += 1
            if not shared.gone:
                return HostLease(shared)
        shared = _Shared(_create_host(engine, device, options), key, users=1)
        _hosts[key] = shared
        return HostLease(shared)


def _create_host(engine: Engine, device: Device, options: Mapping[str, Any]) -> EngineHost:
    try:
        return engine.create_host(device, **options)
    except (TypeError, ValueError) as error:
        if not options:
            raise
        given = ", ".join(f"{name}={value!r}" for name, value in options.items())
        raise EngineError(f"engine '{engine.name}' does not take {given}: {error}") from error


def check_options(engine: Engine, options: Mapping[str, Any]) -> None:
    """Raises `EngineError` where an option is not one of the engine's."""
    known = engine.options()
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f" Did you mean '{close[0]}'?" if close else ""
            listed = ", ".join(known) or "none"
            raise EngineError(f"engine '{engine.name}' has no option '{name}'. Its options: {listed}.{hint}")


def _key(engine: Engine, device: Device, options: Mapping[str, Any]) -> object:
    key = (id(engine), engine.name, device.id, tuple(sorted((n, type(v).__name__, v) for n, v in options.items())))
    try:
        hash(key)
    except TypeError:
        return object()  # an option that cannot be compared: such a host is not shared
    return key
