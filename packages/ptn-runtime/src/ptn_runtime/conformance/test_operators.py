"""Every case of every family on the engine under test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ptn_runtime
from ptn_runtime import errors
from ptn_runtime.conformance.case import Array, Case, package_bytes
from ptn_runtime.conformance.families import all_cases
from ptn_runtime.conformance.report import Report
from ptn_runtime.conformance.tolerance import differences


def results(model: ptn_runtime.Model, inputs: list[Array]) -> tuple[Array, ...]:
    """The model's results as a tuple of arrays."""
    found: Any = model(*inputs)
    return (found,) if isinstance(found, np.ndarray) else tuple(found)


@pytest.mark.parametrize("case", list(all_cases()), ids=str)
def test_operator(case: Case, load: Callable[..., ptn_runtime.Model], report: Report) -> None:
    data, inputs = package_bytes(case)
    try:
        model = load(data)
    except errors.UnsupportedMethodError as refusal:
        reason = refusal.nodes[0].reason
        report.add(case, "unsupported", reason)
        pytest.skip(reason)
    with model:
        if case.raises is not None:
            report.add(case, "failed", f"{case.raises} was not raised")
            with pytest.raises(getattr(errors, case.raises)):
                model(*inputs)
            report.entries.pop()
            report.add(case, "passed")
            return
        report.add(case, "failed", "the run raised")
        found = results(model, inputs)
    expected = case.expected
    if expected is None:
        with ptn_runtime.load(data, engine="reference") as oracle:
            expected = results(oracle, inputs)
    problems = differences(case, found, expected)
    report.entries.pop()
    passed = "on_host" if case.data_dependent else "passed"
    report.add(case, "failed" if problems else passed, "; ".join(problems))
    assert not problems, "\n".join(problems)
