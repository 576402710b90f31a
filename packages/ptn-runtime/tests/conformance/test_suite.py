"""The conformance suite itself: it passes a right engine and names the fault of each wrong one.

The engines of `broken/` are announced by the metadata of one made-up distribution; the suite runs in a process of its
own, on a selection of its tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

BROKEN = Path(__file__).parent / "broken"
sys.path.insert(0, str(BROKEN))
from broken_specs import NAMES  # noqa: E402  the folder is no package: subprocesses import from it too

sys.path.remove(str(BROKEN))


@dataclass
class Run:
    """One run of the suite.

    Attributes:
        code: pytest's exit status.
        output: what it printed.
        outcomes: by test name: `passed`, `failed`, `skipped`.
        report: the JSON report.
    """

    code: int
    output: str
    outcomes: dict[str, str] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)

    def failed(self) -> set[str]:
        return {name for name, outcome in self.outcomes.items() if outcome == "failed"}


class Suite:
    """Runs the suite in `folder`, where the broken engines are installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        info = folder / "broken_engines-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-engines\nVersion: 1.0\n")
        lines = [f"{name} = broken_specs:SPEC_{attribute}" for name, attribute in NAMES.items()]
        lines.append("eager-import = eager_engine:SPEC")
        (info / "entry_points.txt").write_text("\n".join(["[ptn.engines]", *lines, ""]))

    def run(self, engine: str, module: str, select: str, *options: str) -> Run:
        """Runs what `select` (as of `pytest -k`) leaves of a module of the suite."""
        xml, report = self.folder / "junit.xml", self.folder / "report.json"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull]
        command += ["-p", "ptn_runtime._pytest_plugin"]  # alone: importing others takes longer than the tests
        command += ["--rootdir", str(self.folder), "--pyargs", f"ptn_runtime.conformance.{module}", "-k", select]
        command += ["--ptn-engine", engine, "--ptn-report", str(report), f"--junitxml={xml}", *options]
        path = os.pathsep.join([str(self.folder), str(BROKEN), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            command,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True,
            text=True,
        )
        run = Run(done.returncode, done.stdout + done.stderr)
        if xml.exists():
            for case in ElementTree.parse(xml).iter("testcase"):
                kinds = {child.tag for child in case}
                failed, skipped = kinds & {"failure", "error"}, kinds & {"skipped"}
                run.outcomes[case.attrib["name"]] = "failed" if failed else "skipped" if skipped else "passed"
        if report.exists():
            run.report = json.loads(report.read_text())
        return run


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return Suite(tmp_path)


ARGMAX = "aten.argmax.default"

CAUGHT_BY_CASES = [
    ("wrong-ties", ARGMAX, "ties take the first"),
    ("wrong-nan", "aten.maximum.default", "nan wins"),
    ("swallowed-index-error", "aten.embedding.default", "id 7"),
    ("lying-supports", "aten.cumsum.default", "dim 0"),
    ("wrong-dtype", ARGMAX, "flat"),
]


@pytest.mark.parametrize(("engine", "op", "case"), CAUGHT_BY_CASES, ids=[row[0] for row in CAUGHT_BY_CASES])
def test_a_wrong_kernel_is_caught_by_its_case(suite: Suite, engine: str, op: str, case: str) -> None:
    run = suite.run(engine, "test_operators", f"{op} or aten.neg.default")
    assert run.code == 1, run.output
    assert f"test_operator[{op}[{case}]]" in run.failed()
    assert all(op in name for name in run.failed()), run.output
    (entry,) = [entry for entry in run.report["entries"] if entry["case"] == f"{op}[{case}]"]
    assert entry["outcome"] == "failed"
    assert entry["detail"]
    assert {e["outcome"] for e in run.report["entries"] if e["op"] == "aten.neg.default"} == {"passed"}


CAUGHT_BY_CONTRACT = [
    ("leaked-state", "test_sessions_do_not_share_state"),
    ("shared-output", "test_results_that_are_inputs_constants_and_literals"),
    ("reused-buffer", "test_inputs_of_any_strides_and_results_owned_by_the_caller"),
    ("growing-memory", "test_a_thousand_loads_do_not_grow_the_process"),
    ("swallowed-index-error", "test_an_index_out_of_range_is_an_error_that_names_it"),
    ("eager-import", "test_reading_the_spec_loads_no_native_code"),
    ("forgotten-input", "test_an_input_that_the_program_changes_is_written_back"),
    ("frozen-shape", "test_results_follow_the_input_shape"),
    ("kept-state-array", "test_state_can_be_read_written_and_reset"),
    ("deaf-to-close", "test_a_closed_context_refuses_work"),
]


@pytest.mark.parametrize(("engine", "test"), CAUGHT_BY_CONTRACT, ids=[row[0] for row in CAUGHT_BY_CONTRACT])
def test_a_breach_of_contract_is_caught(suite: Suite, engine: str, test: str) -> None:
    run = suite.run(engine, "test_contract", f"{test} or test_an_empty_input")
    assert run.code == 1, run.output
    assert {name.partition("[")[0] for name in run.failed()} == {test}, run.output
    assert run.outcomes["test_an_empty_input_gives_an_empty_result"] == "passed"


def test_a_right_engine_passes(suite: Suite) -> None:
    selection = " or ".join(dict.fromkeys(op for _, op, _ in CAUGHT_BY_CASES))
    run = suite.run("correct", "test_operators", selection)
    assert run.code == 0, run.output
    assert set(run.outcomes.values()) == {"passed"}
    run = suite.run("correct", "test_contract", " or ".join(test for _, test in CAUGHT_BY_CONTRACT))
    assert run.code == 0, run.output
    assert set(run.outcomes.values()) == {"passed"}


def test_what_an_engine_refuses_is_counted_not_failed(suite: Suite) -> None:
    run = suite.run("modest", "test_operators", "aten.cumsum.default or aten.neg.default")
    assert run.code == 0, run.output
    assert (run.report["engine"], run.report["device"]) == ("modest", "")
    refused = [entry for entry in run.report["entries"] if entry["op"] == "aten.cumsum.default"]
    assert {(entry["outcome"], entry["detail"]) for entry in refused} == {
        ("unsupported", "sums along an axis are not written yet")
    }
    passed = [entry for entry in run.report["entries"] if entry["op"] == "aten.neg.default"]
    assert {entry["outcome"] for entry in passed} == {"passed"}
    assert {"float32", "float16", "bfloat16", "float64", "int64"} <= {entry["dtype"] for entry in passed}
    assert len(refused) + len(passed) == len(run.outcomes)


def xfails(suite: Suite, text: str) -> tuple[str, str]:
    path = suite.folder / "xfails.toml"
    path.write_text(text)
    return "--ptn-xfails", str(path)


def test_an_expected_failure_with_a_reason_is_accepted(suite: Suite) -> None:
    options = xfails(suite, '"test_*_that_names_it[5]" = "the device clips"\n"test_*_that_names_it[?*]" = "likewise"\n')
    run = suite.run("swallowed-index-error", "test_contract", "test_an_index_out_of_range", *options)
    assert run.code == 0, run.output
    assert set(run.outcomes.values()) == {"skipped"}


def test_an_expected_failure_that_passes_is_a_failure(suite: Suite) -> None:
    options = xfails(suite, '"test_an_index_*[5]" = "a guess"\n')
    run = suite.run("correct", "test_contract", "test_an_index_out_of_range", *options)
    assert run.code == 1, run.output
    assert run.failed() == {"test_an_index_out_of_range_is_an_error_that_names_it[5]"}
    assert "XPASS(strict)" in run.output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('"test_an_empty_input*" = ""\n', "'test_an_empty_input*' needs a reason"),
        ('"test_nothing" = "a reason"\n', "'test_nothing' names no test"),
    ],
)
def test_an_expected_failure_needs_a_reason_and_a_test(suite: Suite, text: str, message: str) -> None:
    run = suite.run("correct", "test_contract", "test_an_empty_input", *xfails(suite, text))
    assert run.code == pytest.ExitCode.USAGE_ERROR, run.output
    assert message in run.output


def test_an_engine_that_is_not_installed_is_said_to_be(suite: Suite) -> None:
    run = suite.run("missing", "test_contract", "test_an_empty_input")
    assert run.code == 1
    assert "no engine named 'missing' is installed" in run.output
