"""The number of threads: affinity, and a container's quota of either version."""

from __future__ import annotations

from pathlib import Path

import pytest
from ptn_engine_ggml import threads


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda pid: set(range(8)))


@pytest.mark.parametrize(
    ("text", "count"), [("max 100000", 8), ("200000 100000", 2), ("250000 100000", 3), ("10000 100000", 1)]
)
def test_version_2(eight: None, tmp_path: Path, text: str, count: int) -> None:
    (tmp_path / "cpu.max").write_text(text + "\n")
    assert threads.available_processors(tmp_path) == count


@pytest.mark.parametrize(("quota", "count"), [(-1, 8), (400000, 4), (1000000, 8)])
def test_version_1(eight: None, tmp_path: Path, quota: int, count: int) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert threads.available_processors(tmp_path) == count


def test_without_a_control_group(eight: None, tmp_path: Path) -> None:
    assert threads.available_processors(tmp_path) == 8
    (tmp_path / "cpu.max").write_text("nonsense")
    assert threads.available_processors(tmp_path) == 8
