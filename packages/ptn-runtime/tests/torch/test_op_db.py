"""Every operator that PyTorch's own sample database reaches, on its samples.

A short run takes the first samples for a few dtypes. With the environment variable `PTN_OP_DB=full` every sample runs
for every dtype of the format, and the last test prints what passed; `PTN_OP_DB=full:2/8` takes the second eighth.
"""

from __future__ import annotations

import itertools
import os
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

MODE, _, PART = os.environ.get("PTN_OP_DB", "short").partition(":")
SHORT = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
REST = (
    *(torch.float16, torch.float64, torch.uint8, torch.int8, torch.int16, torch.int32),
    *(torch.uint16, torch.uint32, torch.uint64),
)
DTYPES = SHORT + REST if MODE == "full" else SHORT
SAMPLES = None if MODE == "full" else 2
LEAST = 0.995
"""The share of samples that must pass."""

# Calls that a functional graph cannot hold.
NOT_COMPARED = {
    "aten._local_scalar_dense.default",  # eager gives a Python number
    "aten.as_strided.default",  # samples are views: eager looks at memory outside the tensor
}

KNOWN: dict[tuple[str, torch.dtype | None], str] = {
    ("aten.div.Tensor_mode", torch.bfloat16): (
        "mode trunc: PyTorch rounds the quotient before it truncates in whole vectors, but not in the rest of a row"
    ),
}
"""Why an operator fails on samples of a dtype, or of any: (canonical name, dtype or None) to the reason."""


@dataclass
class Tally:
    """What a run has seen.

    Attributes:
        passed: samples of which every operator that has a kernel agrees.
        unreached: samples without any such operator, by what stands in the database.
        strangers: what those samples call instead.
        failed: known failures by operator and dtype.
        unknown: failures without a reason.
    """

    passed: int = 0
    unreached: Counter[str] = field(default_factory=Counter)
    strangers: dict[str, set[str]] = field(default_factory=dict)
    failed: Counter[tuple[str, torch.dtype | None]] = field(default_factory=Counter)
    unknown: list[str] = field(default_factory=list)


TALLY = Tally()


def _infos() -> list[Any]:
    # Jiterator compiles for GPUs.
    infos = [info for info in op_db if "jiterator" not in info.name]
    if not PART:
        return infos
    part, parts = (int(number) for number in PART.split("/"))
    return infos[part - 1 :: parts]


def _name(info: Any) -> str:
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name


def _recorded(eager: Any, info: Any, dtype: torch.dtype) -> Iterator[Any]:
    """The recorder of each sample, with its operator calls; samples that eager mode itself refuses are left out."""
    refusals = (RuntimeError, ValueError, TypeError, NotImplementedError, IndexError)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            # `info.sample_inputs` would look for the running test on the stack, which takes longer than the test.
            samples = list(itertools.islice(info.sample_inputs_func(info, "cpu", dtype, False), SAMPLES))
        except refusals:
            return
        for sample in samples:
            try:
                with eager.Recorder() as recorder:
                    info(sample.input, *sample.args, **sample.kwargs)
            except refusals:
                continue
            yield recorder


def _failures(eager: Any, calls: list[Any]) -> tuple[int, list[tuple[str, str]]]:
    """How many calls were compared, and (operator, text) of those that differ."""
    compared, failures = 0, []
    for func, args, kwargs, results in calls:
        name = eager.canonical(func)
        if name in NOT_COMPARED:
            continue
        try:
            eager.check_call(func, args, kwargs, results)
        except eager.Unsupported:
            continue
        except Exception as error:  # whatever a kernel raises is a failure of this sample
            failures.append((name, f"{type(error).__name__}: {error}"))
        compared += 1
    return compared, failures


@pytest.mark.parametrize("info", _infos(), ids=_name)
def test_samples(eager: Any, info: Any) -> None:
    supported = info.supported_dtypes("cpu")
    unknown = []
    for dtype in DTYPES:
        if dtype not in supported:
            continue
        for number, recorder in enumerate(_recorded(eager, info, dtype)):
            compared, failures = _failures(eager, recorder.calls)
            if not compared:
                TALLY.unreached[_name(info)] += 1
                TALLY.strangers.setdefault(_name(info), set()).update(recorder.missing)
                continue
            if not failures:
                TALLY.passed += 1
                continue
            reasons = [_reason(name, dtype) for name, _ in failures]
            if None in reasons:
                unknown += [f"{_name(info)}, {dtype}, sample {number}: {name}: {text}" for name, text in failures]
            else:
                TALLY.failed.update({key for key in reasons if key is not None})
    TALLY.unknown += unknown
    assert not unknown, "\n".join(unknown)


def _reason(name: str, dtype: torch.dtype) -> tuple[str, torch.dtype | None] | None:
    keys: tuple[tuple[str, torch.dtype | None], ...] = ((name, dtype), (name, None))
    return next((key for key in keys if key in KNOWN), None)


def test_pass_rate(capsys: pytest.CaptureFixture[str]) -> None:
    """Comes last: the share of samples that pass, of those with at least one operator of the catalogue."""
    failed = TALLY.failed.total() + len(TALLY.unknown)
    total = TALLY.passed + failed
    if not total:  # this test was chosen alone
        return
    lines = [
        f"{TALLY.passed} of {total} samples pass ({TALLY.passed / total:.3%}); {TALLY.unreached.total()} have no kernel"
    ]
    lines += [
        f"  {count} x {name}, {dtype or 'any dtype'}: {KNOWN[name, dtype]}"
        for (name, dtype), count in TALLY.failed.items()
    ]
    if MODE == "full":
        with capsys.disabled():
            sys.stdout.write("\n" + "\n".join(lines) + "\n")
    assert TALLY.passed / total >= LEAST, "\n".join(lines)
    if MODE == "full" and not PART:
        assert set(TALLY.failed) == set(KNOWN), "reasons that no sample needs any more"
