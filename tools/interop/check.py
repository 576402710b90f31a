"""One model: both exporters, both readers, and the reference engine against eager PyTorch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import ptn_runtime
import torch
from ptn_export import PASSES, to_native
from ptn_format import Package, open_package
from ptn_runtime.errors import PtnRuntimeError
from torch.utils import _pytree as pytree

from interop import compare, upstream
from interop.beyond_models import Beyond
from interop.case import Case
from interop.differences import READER, Rule, UnexplainedError, explain

__all__ = ["BeyondRow", "Row", "check_beyond", "check_golden", "check_shared"]


@dataclass
class Row:
    """What was found of one model that both export.

    Attributes:
        name: the model's name.
        theirs, unoptimised, ours: calls of operators in upstream's file, in ours without passes, and in ours.
        rules: names of the differences between the first two.
        rewrites: what our passes did in the third.
        problems: what must not be.
    """

    name: str
    theirs: int = 0
    unoptimised: int = 0
    ours: int = 0
    rules: list[str] = field(default_factory=list)
    rewrites: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


@dataclass
class BeyondRow:
    """What was found of one model that upstream does not export as it is.

    Attributes:
        name: the model's name.
        theirs: upstream's error, or in what its file is wrong.
        reader: what upstream's reader says of our file; empty where it accepts it.
        problems: what must not be.
    """

    name: str
    theirs: str = ""
    reader: str = ""
    problems: list[str] = field(default_factory=list)


def check_shared(case: Case, folder: Path) -> Row:
    """Checks a model that both exporters take."""
    row = Row(case.name)
    theirs, plain, ours = (folder / f"{name}.ptn" for name in ("theirs", "plain", "ours"))
    upstream.export(case, theirs)
    exported = case.exported()
    to_native(exported, disable_passes=tuple(PASSES)).save(plain)
    native = to_native(exported)
    native.save(ours)
    for counts in native.rewrites.values():
        for name, count in counts.items():
            row.rewrites[name] = row.rewrites.get(name, 0) + count
    with open_package(theirs) as left, open_package(plain) as middle, open_package(ours) as right:
        row.theirs, row.unoptimised, row.ours = (
            compare.spelled(package.program).total() for package in (left, middle, right)
        )
        row.problems += compare.constants_differ(left, middle)
        for method in left.program.methods:
            if compare.interface(method) != compare.interface(middle.program.method(method.name)):
                row.problems.append(f"inputs, results or state of '{method.name}' differ")
        try:
            rules = explain(compare.operators(left.program), compare.operators(middle.program))
            row.rules = list(dict.fromkeys(rule.name for rule in rules))
            row.problems += _graphs_differ(case, left, middle, rules, folder)
        except UnexplainedError as error:
            row.problems.append(str(error))
    expected = case.expected()
    for path in (theirs, ours):
        row.problems += [f"{path.stem}: {text}" for text in _results_differ(case, path, expected)]
        row.problems += [f"{path.stem}: {text}" for text in _readers_differ(path, "")[0]]
    return row


def check_beyond(beyond: Beyond, folder: Path) -> BeyondRow:
    """Checks a model that only our exporter takes as it is."""
    case = beyond.case
    row = BeyondRow(case.name)
    expected = case.expected()
    theirs, ours = folder / "theirs.ptn", folder / "ours.ptn"
    to_native(case.exported()).save(ours)
    try:
        upstream.export(case, theirs)
        row.theirs = beyond.wrong
        if not beyond.wrong:
            row.problems.append("upstream exports it")
        elif not _results_differ(case, theirs, expected) and _same_interface(theirs, ours):
            row.problems.append("upstream's file takes and computes the same")
    except upstream.Error as error:
        match = re.search(beyond.error or "$.", str(error))
        row.theirs = match.group() if match else str(error)
        if not match:
            row.problems.append(f"upstream's error is not the expected one: {error}")
    row.problems += _results_differ(case, ours, expected)
    problems, row.reader = _readers_differ(ours, READER.get(case.name, ""))
    row.problems += problems
    return row


def check_golden(path: Path) -> list[str]:
    """Reads a package that upstream's exporter or serialiser wrote with both readers; gives what differs."""
    return _readers_differ(path, "")[0]


def _same_interface(theirs: Path, ours: Path) -> bool:
    with open_package(theirs) as left, open_package(ours) as right:
        return all(
            compare.interface(method) == compare.interface(right.program.method(method.name))
            for method in left.program.methods
        )


def _graphs_differ(case: Case, theirs: Package, ours: Package, rules: list[Rule], folder: Path) -> list[str]:
    """Compares what engines get, for the inputs of every call."""
    if any(rule.computes_otherwise for rule in rules):
        return []
    kept = sorted({rule.kept for rule in rules if rule.kept})
    if kept:
        path = folder / "apart.ptn"
        table = torch.export.default_decompositions().materialize()
        apart = {operator: rule for operator, rule in table.items() if str(operator) in kept}
        exported = {name: program.run_decompositions(apart) for name, program in case.exported().items()}
        to_native(exported, disable_passes=tuple(PASSES)).save(path)
        with open_package(path) as package:
            return _graphs_differ(case, theirs, package, [], folder)
    problems = []
    for call in case.calls:
        shapes = [tuple(leaf.shape) for leaf in pytree.tree_leaves((call.args, dict(call.kwargs)))]
        left, right = (compare.fingerprint(package, call.method, shapes) for package in (theirs, ours))
        if left != right:
            problems.append(f"the static graphs of '{call.method}' differ for inputs of {shapes}")
    return problems


def _results_differ(case: Case, path: Path, expected: list[list[Any]]) -> list[str]:
    """Runs a package on the reference engine and compares with eager PyTorch, call by call."""
    problems = []
    try:
        with ptn_runtime.load(path, engine="reference") as model:
            for index, (call, leaves) in enumerate(zip(case.calls, expected, strict=True)):
                arguments = pytree.tree_map_only(torch.Tensor, _array, (call.args, dict(call.kwargs)))
                found = model.run(call.method, *arguments[0], **arguments[1])
                found = [found] if isinstance(found, np.ndarray) else pytree.tree_leaves(found)
                if text := _leaves_differ(found, leaves, case.atol):
                    problems.append(f"call {index}: {text}")
    except PtnRuntimeError as error:
        problems.append(f"{type(error).__name__}: {error}")
    return problems


def _array(tensor: torch.Tensor) -> Any:
    """A copy for the runtime, since methods may write to their inputs; bfloat16 goes as it is."""
    return tensor.clone() if tensor.dtype is torch.bfloat16 else tensor.numpy().copy()


def _leaves_differ(found: list[Any], expected: list[Any], atol: float) -> str:
    """What differs; empty where nothing does."""
    if len(found) != len(expected):
        return f"{len(found)} results instead of {len(expected)}"
    for index, (ours, eager) in enumerate(zip(found, expected, strict=True)):
        if not isinstance(eager, torch.Tensor):
            if ours != eager:
                return f"result {index} is {ours!r} instead of {eager!r}"
            continue
        dtype = str(eager.dtype).removeprefix("torch.")
        if str(ours.dtype) != dtype or ours.shape != tuple(eager.shape):
            return f"result {index} is {ours.dtype}{list(ours.shape)} instead of {dtype}{list(eager.shape)}"
        left, right = np.asarray(ours, np.float64), eager.double().numpy()
        if not np.allclose(left, right, rtol=1e-5, atol=atol, equal_nan=True):
            return f"result {index} differs by up to {np.nanmax(np.abs(left - right)):.3g}"
    return ""


def _readers_differ(path: Path, expected: str) -> tuple[list[str], str]:
    """Reads a package with both readers: what differs, and what upstream's reader or validator objects to."""
    with open_package(path) as package:
        package.verify()
        try:
            program, constants = upstream.read(path)
        except upstream.Error as error:
            text = str(error)
            match = re.search(expected or "$.", text)
            return ([] if match else [f"upstream's reader refuses the file: {text}"]), match.group() if match else text
        problems = ["upstream's reader was expected to refuse the file"] if expected else []
        if upstream.as_tree(program) != upstream.as_tree(package.program):
            place = _first_difference(upstream.as_tree(program), upstream.as_tree(package.program))
            problems.append(f"the readers see different programs, first {place}")
        problems += [f"the readers see different data: {key}" for key in upstream.data_differ(constants, package)]
    return problems, ""


def _first_difference(left: Any, right: Any, place: str = "") -> str:
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        for key in sorted({*left, *right}):
            if left.get(key) != right.get(key):
                return _first_difference(left.get(key), right.get(key), f"{place}.{key}")
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for index, (one, other) in enumerate(zip(left, right, strict=True)):
            if one != other:
                return _first_difference(one, other, f"{place}[{index}]")
    return f"{place}: {left!r} and {right!r}"
