"""Fixtures of the model tests: every model is exported once and run on every engine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[3] / "examples" / "quickstart")]

from zoo import ENTRIES, page  # noqa: E402  (the line above makes it importable)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-models-page", action="store_true", help="write the rows of docs/models.md that were run")


@pytest.fixture(params=["reference", "ggml"])
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


@dataclass
class ModelsPage:
    """Rows of `docs/models.md` as they are, or those that are being written."""

    rows: dict[str, page.Row]
    writing: bool


@pytest.fixture(scope="session")
def models_page(request: pytest.FixtureRequest) -> Iterator[ModelsPage]:
    # The option is known only where this folder is named on the command line.
    writing = request.config.getoption("--write-models-page", default=False)
    found = ModelsPage({} if writing else page.rows(), writing)
    yield found
    if writing:  # the other rows stay as they are
        page.PATH.write_text(page.document(ENTRIES, page.rows() | found.rows), encoding="utf-8")
