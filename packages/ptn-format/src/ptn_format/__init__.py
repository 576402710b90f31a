"""Read, write and check `.ptn` packages."""

from ptn_format._version import __version__

__all__ = ["__version__"]
