"""An engine for ptn that runs chains of element-wise operators block by block.

This module is what the entry point names: it holds the spec and imports nothing else of the engine.
"""

from __future__ import annotations

from ptn_runtime.engine import EngineSpec

__all__ = ["SPEC"]

SPEC = EngineSpec(
    name="fused",
    api_version=(1, 0),  # what this engine was written for, not whatever the runtime offers
    factory="ptn_engine_fused.engine:FusedEngine",
    summary="numpy, element-wise chains in cache-sized blocks; an example for engine authors",
    install_hint="pip install --force-reinstall ptn-engine-fused",
    priority=-50,
)
"""Above the reference engine, below every engine that was made for speed."""
