"""pytest options of the conformance suite. Loaded into every pytest run where ptn-runtime is installed: import-free."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options of `pytest --pyargs ptn_runtime.conformance`."""
    group = parser.getgroup("ptn", "ptn engine conformance")
    group.addoption("--ptn-engine", default="reference", help="name of the engine under test (default: reference)")
    group.addoption("--ptn-device", default=None, help="device of the engine (default: its first)")
    group.addoption("--ptn-report", default=None, metavar="FILE", help="write what runs, and what does not, as JSON")
    group.addoption(
        "--ptn-xfails", default=None, metavar="FILE", help="TOML file: test id pattern = reason; each must fail"
    )
