"""Run `.ptn` packages: numpy in, numpy out, no torch."""

from ptn_runtime._version import __version__

__all__ = ["__version__"]
