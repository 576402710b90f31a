"""The page of operator coverage that the repository generates from conformance reports."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ptn_runtime.conformance.report import Entry, Report

TOOLS = Path(__file__).parents[4] / "tools"

pytestmark = pytest.mark.skipif(not TOOLS.exists(), reason="the tool is in the repository, not in the sdist")


@pytest.fixture
def tool() -> Iterator[Any]:
    sys.path.insert(0, str(TOOLS))
    yield importlib.import_module("write_op_coverage")
    sys.path.remove(str(TOOLS))


def report(engine: str, *rows: tuple[str, str, str]) -> Report:
    entries = [Entry(f"{op}[{i}]", op, dtype, outcome) for i, (op, dtype, outcome) in enumerate(rows)]
    return Report(engine, "", "0.0", entries)


def row(text: str, op: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"| `{op}` |")]
    return [part.strip() for part in line.strip("|").split("|")][1:]


ADD, NEG, SORT, NONZERO = "aten.add.Tensor", "aten.neg.default", "aten.sort.default", "aten.nonzero.default"


def test_cells(tool: Any) -> None:
    first = report(
        "first",
        (ADD, "int64", "passed"),
        (ADD, "float32", "passed"),
        (ADD, "float16", "passed"),
        (ADD, "float16", "unsupported"),
        (ADD, "bool", "unsupported"),
        (NEG, "float32", "passed"),
        (NEG, "float32", "failed"),
        (NONZERO, "float32", "on_host"),
    )
    second = report("second", (NEG, "float32", "unsupported"), (NONZERO, "float32", "on_host"))
    text = tool.document([first, second])
    assert row(text, ADD) == ["f32 i64, partly f16, not bool", "-"]
    assert row(text, NEG) == ["WRONG f32", "not f32"]
    assert row(text, SORT) == ["-", "-"]
    assert row(text, NONZERO) == ["on the host", "on the host"]


def test_the_summary_counts_cases_and_operators(tool: Any) -> None:
    counted = report(
        "first",
        (ADD, "float32", "passed"),
        (ADD, "bool", "unsupported"),
        (NEG, "float32", "passed"),
        (SORT, "float32", "failed"),
        (NONZERO, "float32", "on_host"),
    )
    (line,) = [line for line in tool.document([counted]).splitlines() if line.startswith("| first | ")]
    cells = [part.strip() for part in line.strip("|").split("|")]
    assert cells[1].startswith("3 of ")
    assert cells[2:] == ["2", "5", "3", "1", "1"]


def test_a_dtype_without_a_short_name_is_no_surprise(tool: Any) -> None:
    assert tool.cell({"uint16": {"passed"}, "float64": {"unsupported"}}) == "u16, not f64"
