"""The Vulkan engine: which devices there are and what runs on them."""

from __future__ import annotations

import functools
from typing import Any

from ptn_runtime.engine import Device, Engine, EngineHost, StaticNode, Support
from ptn_runtime.errors import DeviceError

from ptn_engine_vulkan import _native

_NO_KERNELS = "this release of the Vulkan engine has no kernel for any operator"
_KINDS = {"discrete": "gpu", "virtual": "gpu", "integrated": "igpu", "cpu": "cpu", "other": "accelerator"}


class VulkanEngine(Engine):
    """Lists Vulkan devices; runs nothing yet, and says so node by node."""

    name = "vulkan"

    def devices(self) -> tuple[Device, ...]:
        """GPUs first, software devices last; empty where there is no libvulkan, driver or device."""
        found = _scan()[0]
        order = {"discrete": 0, "integrated": 1, "virtual": 2, "other": 3, "cpu": 4}
        ranked = sorted(enumerate(found), key=lambda item: (order[item[1]["type"]], item[0]))
        return tuple(
            Device(
                id=f"gpu:{rank}" if info["type"] != "cpu" else f"software:{rank}",
                kind=_KINDS[info["type"]],
                description=f"{info['name']} (Vulkan {info['api_version']})",
                memory_bytes=info["memory_bytes"],
            )
            for rank, (_, info) in enumerate(ranked)
        )

    def unavailable(self) -> str | None:
        """Why there is no device: no library, no driver, or no device."""
        found, reason = _scan()
        return None if found else reason

    def supports(self, node: StaticNode, device: Device) -> Support:
        """No node runs yet."""
        return Support.no(_NO_KERNELS)

    def create_host(self, device: Device, **options: Any) -> EngineHost:
        """Refuses: there is nothing to run.

        Raises:
            DeviceError: always, in this release.
        """
        if options:
            raise TypeError(f"the vulkan engine takes no options, got {', '.join(sorted(options))}")
        raise DeviceError(f"engine 'vulkan' cannot run on '{device.id}' ({device.description}): {_NO_KERNELS}")


@functools.cache
def _scan() -> tuple[list[_native.DeviceInfo], str]:
    """Asks the native layer once per process: devices, and the reason where there are none."""
    return _native.list_devices()
