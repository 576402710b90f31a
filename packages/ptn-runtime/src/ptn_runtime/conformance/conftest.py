"""Fixtures of the conformance suite, and the report."""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import ptn_runtime
from ptn_runtime.conformance.report import Report
from ptn_runtime.errors import UnsupportedMethodError


@pytest.fixture(scope="session")
def engine_name(pytestconfig: pytest.Config) -> str:
    """The engine under test."""
    return str(pytestconfig.getoption("--ptn-engine"))


@pytest.fixture(scope="session")
def device_id(pytestconfig: pytest.Config) -> str | None:
    """The device under test; None for the engine's first."""
    device = pytestconfig.getoption("--ptn-device")
    return None if device is None else str(device)


@pytest.fixture(scope="session")
def load(engine_name: str, device_id: str | None) -> Callable[..., ptn_runtime.Model]:
    """Loads a package on the engine and device under test."""

    def load_on_engine(source: Any, **options: Any) -> ptn_runtime.Model:
        return ptn_runtime.load(source, engine=engine_name, device=device_id, **options)

    return load_on_engine


@pytest.fixture(scope="session")
def report(pytestconfig: pytest.Config, engine_name: str, device_id: str | None) -> Iterator[Report]:
    """Collects outcomes; written at the end where `--ptn-report` names a file."""
    collected = Report(engine_name, device_id or "", ptn_runtime.__version__)
    yield collected
    target = pytestconfig.getoption("--ptn-report")
    if target:
        collected.save(Path(target))


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """Skips a test whose program the engine refuses, whatever the test is about."""
    try:
        return (yield)
    except UnsupportedMethodError as refusal:
        pytest.skip("; ".join(dict.fromkeys(node.reason for node in refusal.nodes)))


def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Marks what `--ptn-xfails` names; each must fail, and needs a reason."""
    path = config.getoption("--ptn-xfails")
    if not path:
        return
    reasons = tomllib.loads(Path(str(path)).read_text(encoding="utf-8"))
    for pattern, reason in reasons.items():
        if not isinstance(reason, str) or not reason.strip():
            raise pytest.UsageError(f"{path}: '{pattern}' needs a reason")
        literal_brackets = pattern.replace("[", "[[]")  # test ids are full of them; only * and ? are special
        found = [item for item in items if fnmatch.fnmatchcase(item.name, literal_brackets)]
        if not found:
            raise pytest.UsageError(f"{path}: '{pattern}' names no test")
        for item in found:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
