"""Fixtures of the model tests: every model is exported once and run on every engine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[3] / "examples" / "quickstart")]


@pytest.fixture(params=["reference", "ggml"])
def engine(request: pytest.FixtureRequest) -> str:
    return request.param
