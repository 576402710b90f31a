"""What the tools know of the repository's layout."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ROOT / "packages"
VERSION_LINE = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)
SIBLING_RANGE = re.compile(r'"(ptn-[a-z-]+)(\[[a-z0-9,]+\])?>=([0-9.]+),<([0-9.]+)"')


def range_files() -> list[Path]:
    """Every `pyproject.toml` that names a range of one of our packages: the packages' own and the examples'."""
    return [*sorted(PACKAGES.glob("*/pyproject.toml")), *sorted(ROOT.glob("examples/*/pyproject.toml"))]


def version_files() -> list[Path]:
    """The `_version.py` of every package."""
    return sorted(PACKAGES.glob("*/src/*/_version.py"))


def sibling_range(version: str) -> tuple[str, str]:
    """The lowest and the first excluded release that fit `version`: `0.1.3` gives `("0.1", "0.2")`."""
    major, minor = version.split(".")[:2]
    return f"{major}.{minor}", f"{major}.{int(minor) + 1}"
