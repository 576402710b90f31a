"""Read, write and check `.ptn` packages."""

from ptn_format._version import __version__
from ptn_format.package import Package, open_package, write_package

__all__ = ["Package", "__version__", "open_package", "write_package"]
