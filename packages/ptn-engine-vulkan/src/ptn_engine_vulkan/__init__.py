"""Vulkan engine for ptn. Importing this module loads nothing native."""

from ptn_runtime.engine import EngineSpec

from ptn_engine_vulkan._version import __version__

__all__ = ["SPEC", "__version__"]

SPEC = EngineSpec(
    name="vulkan",
    api_version=(1, 0),
    factory="ptn_engine_vulkan.engine:VulkanEngine",
    summary="GPUs through Vulkan compute shaders",
    install_hint="pip install ptn-engine-vulkan, and your GPU's Vulkan driver",
    priority=50,
)
