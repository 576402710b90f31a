"""The ggml engine of ptn, on the CPU in this release.

This module names the engine and imports nothing native; `ptn_engine_ggml.engine` does.
"""

from ptn_runtime.engine import EngineSpec

from ptn_engine_ggml._version import __version__

__all__ = ["SPEC", "__version__"]

SPEC = EngineSpec(
    name="ggml",
    api_version=(1, 0),
    factory="ptn_engine_ggml.engine:GgmlEngine",
    summary="ggml: fast on the CPU",
    install_hint="pip install --force-reinstall ptn-engine-ggml 'libggml-python==0.20.2.*'",
    priority=50,
)
