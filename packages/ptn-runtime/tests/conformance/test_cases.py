"""The cases of the conformance suite as data."""

from __future__ import annotations

import importlib
from collections import Counter

from ptn_runtime.conformance.case import NOT_IN_TORCH, package_bytes
from ptn_runtime.conformance.families import all_cases
from ptn_runtime.lowering.names import canonical_name
from ptn_runtime.reference.control import OPERATORS as CONTROL
from ptn_runtime.reference.registry import KERNELS
from ptn_runtime.shapes import FAMILIES, OPERATORS


def test_every_operator_of_the_catalogue_has_a_case() -> None:
    covered = {case.op for case in all_cases()}
    assert sorted(set(OPERATORS) - covered) == []
    assert sorted(covered - set(OPERATORS)) == []


def test_every_operator_of_the_catalogue_has_a_kernel() -> None:
    assert sorted(set(OPERATORS) - set(KERNELS) - set(CONTROL)) == []


def test_cases_stand_in_their_operators_family() -> None:
    for family in FAMILIES:
        module = importlib.import_module(f"ptn_runtime.conformance.{family}")
        strangers = {case.op for case in module.cases() if OPERATORS[case.op].family != family}
        assert strangers == set(), family


def test_cases_that_torch_cannot_judge_say_what_is_right() -> None:
    programs = [case for case in all_cases() if case.program is not None]
    assert {str(case) for case in programs if case.expected is None and case.raises is None} == set()


def test_operators_that_torch_does_not_have_have_literal_results() -> None:
    literal = {case.op for case in all_cases() if case.expected is not None}
    assert {op for op in OPERATORS if op.startswith(NOT_IN_TORCH)} - literal == set()


def test_a_package_is_the_same_each_time() -> None:
    first = Counter(package_bytes(case)[0] for case in all_cases() if case.op.startswith("aten.add."))
    second = Counter(package_bytes(case)[0] for case in all_cases() if case.op.startswith("aten.add."))
    assert first == second


def test_renamed_operators_have_cases_under_the_spelling_of_the_file() -> None:
    renamed = {case.op for case in all_cases() if canonical_name(case.op) != case.op}
    assert "aten._reshape_alias.default" in renamed
