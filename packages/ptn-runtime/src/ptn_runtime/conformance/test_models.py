"""Whole small models: a CNN, an encoder, a decoder with a cache and two methods, an LSTM, quantised weights.

`tools/write_conformance_models.py` of the repository writes them with ptn-export, and eager PyTorch's results.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptn_runtime
from ptn_runtime.conformance.case import Array

MODELS = Path(__file__).parent / "data" / "models"
NAMES = sorted(path.name for path in MODELS.iterdir() if path.is_dir())

Call = tuple[str, list[Array], list[Array]]


def calls(name: str) -> list[Call]:
    """Method, inputs and eager PyTorch's results of each call, in order."""
    with np.load(MODELS / name / "calls.npz") as archive:
        arrays = dict(archive)
    found: dict[tuple[str, str], tuple[list[Array], list[Array]]] = {}
    for key in sorted(arrays):
        step, method, place = key.split(".")
        inputs, outputs = found.setdefault((step, method), ([], []))
        (inputs if place.startswith("in") else outputs).append(arrays[key])
    return [(method, *found[step, method]) for step, method in found]


def compare(found: Any, expected: list[Array]) -> None:
    """Checks the results of one call."""
    results = [found] if isinstance(found, np.ndarray) else list(found)
    assert len(results) == len(expected)
    for ours, theirs in zip(results, expected, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_model(name: str, load: Callable[..., ptn_runtime.Model]) -> None:
    with load(MODELS / name / "model.ptn") as model:
        for method, inputs, expected in calls(name):
            compare(model.run(method, *inputs), expected)


def test_sessions_of_a_decoder_keep_their_own_cache(load: Callable[..., ptn_runtime.Model]) -> None:
    steps = calls("decoder")
    with load(MODELS / "decoder" / "model.ptn") as model, model.session() as first, model.session() as second:
        for method, inputs, expected in steps:  # in step, so that a shared cache would be seen
            compare(first.run(method, *inputs), expected)
            compare(second.run(method, *inputs), expected)
        model.state.reset()
        for method, inputs, expected in steps:
            compare(model.run(method, *inputs), expected)
