"""The reference engine: every operator in numpy, with PyTorch's semantics to the letter.

It is the oracle that other engines are checked against, folds constants while a program is lowered, and runs where
nothing native is installed.
"""

from __future__ import annotations

from ptn_runtime.engine import API_VERSION, EngineSpec
from ptn_runtime.reference.registry import KERNELS, Outputs, evaluate, kernel

__all__ = ["KERNELS", "SPEC", "Outputs", "evaluate", "kernel"]

SPEC = EngineSpec(
    name="reference",
    api_version=API_VERSION,
    factory="ptn_runtime.reference.engine:ReferenceEngine",
    summary="numpy, every operator; the oracle for the other engines",
    install_hint="It is part of ptn-runtime; reinstall that.",
    priority=-100,
)
"""The engine's entry point. It has the lowest priority: it runs what no faster engine accepts."""
