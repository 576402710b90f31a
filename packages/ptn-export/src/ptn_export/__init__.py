"""Export PyTorch models to `.ptn` packages."""

from ptn_export._version import __version__

__all__ = ["__version__"]
