"""The engine that `docs/writing-an-engine.md` prints is extracted, installed and run through the suite."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from ptn_runtime import errors
from ptn_runtime.engine import API_VERSION, MAX_BUILDS

GUIDE = Path(__file__).parents[4] / "docs" / "writing-an-engine.md"
BLOCK = re.compile(r"^```(\w+)\n# ([\w./]+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.skipif(not GUIDE.exists(), reason="the guide is in the repository, not in the sdist")


def blocks() -> dict[str, str]:
    """The guide's code blocks by the file name in their first line."""
    return {name: text for _, name, text in BLOCK.findall(GUIDE.read_text(encoding="utf-8"))}


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder that has the guide's engine as `pip install --target` would leave it there."""
    found = blocks()
    project = tomllib.loads(found["pyproject.toml"])["project"]
    for name, text in found.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    info = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in entries.items())]
    (info / "entry_points.txt").write_text("\n".join([*lines, ""]))
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


def test_the_guides_engine_passes_what_it_accepts(installed: Path) -> None:
    options = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(installed), "--ptn-engine", "mini"]
    selection = "aten.add. or aten.relu or test_results_that or test_inputs_of or test_closing or test_context_state"
    done = run(
        installed,
        "pytest",
        *options,
        "--ptn-report",
        "report.json",
        "--pyargs",
        "ptn_runtime.conformance",
        "-k",
        selection,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    entries = json.loads((installed / "report.json").read_text())["entries"]
    outcomes = {(entry["op"], entry["dtype"], entry["outcome"]) for entry in entries}
    assert ("aten.relu.default", "float32", "passed") in outcomes
    assert ("aten.add.Tensor", "float32", "passed") in outcomes
    assert ("aten.add.Tensor", "float16", "unsupported") in outcomes
    assert "failed" not in {entry["outcome"] for entry in entries}


def test_the_guides_engine_is_listed(installed: Path) -> None:
    done = run(installed, "ptn_runtime", "engines")
    assert done.returncode == 0, done.stderr
    assert "ptn-engine-mini 0.1.0" in done.stdout


def test_the_guide_tells_the_truth_about_names_and_figures() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    assert f"keeps up to {MAX_BUILDS} builds" in text
    assert f"api_version={API_VERSION}" in text
    for name in re.findall(r"`(\w+Error)`", text):
        assert hasattr(errors, name), name
