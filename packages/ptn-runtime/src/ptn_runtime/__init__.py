"""Run `.ptn` packages: numpy in, numpy out, no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ptn_runtime._version import __version__
from ptn_runtime.errors import (
    ClosedError,
    DeviceError,
    EngineError,
    EngineLoadError,
    EngineNotFoundError,
    EngineVersionError,
    ExecutionError,
    IndexOutOfRangeError,
    InputError,
    LoweringError,
    MethodNotFoundError,
    NoEngineError,
    PtnRuntimeError,
    Refusal,
    StateError,
    UnsupportedMethodError,
    UnsupportedNode,
)

if TYPE_CHECKING:
    from ptn_runtime.describe import MethodInfo, TensorInfo
    from ptn_runtime.model import Model, load
    from ptn_runtime.profile import Profile
    from ptn_runtime.registry import EngineRow, installed_engines
    from ptn_runtime.session import Session, State

__all__ = [
    "ClosedError",
    "DeviceError",
    "EngineError",
    "EngineLoadError",
    "EngineNotFoundError",
    "EngineRow",
    "EngineVersionError",
    "ExecutionError",
    "IndexOutOfRangeError",
    "InputError",
    "LoweringError",
    "MethodInfo",
    "MethodNotFoundError",
    "Model",
    "NoEngineError",
    "Profile",
    "PtnRuntimeError",
    "Refusal",
    "Session",
    "State",
    "StateError",
    "TensorInfo",
    "UnsupportedMethodError",
    "UnsupportedNode",
    "__version__",
    "installed_engines",
    "load",
]

# Loaded on first use, so that importing the package costs next to nothing.
_LAZY = {
    "EngineRow": "ptn_runtime.registry",
    "MethodInfo": "ptn_runtime.describe",
    "Profile": "ptn_runtime.profile",
    "Model": "ptn_runtime.model",
    "Session": "ptn_runtime.session",
    "State": "ptn_runtime.session",
    "TensorInfo": "ptn_runtime.describe",
    "installed_engines": "ptn_runtime.registry",
    "load": "ptn_runtime.model",
}


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'ptn_runtime' has no attribute '{name}'")
    import importlib

    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
