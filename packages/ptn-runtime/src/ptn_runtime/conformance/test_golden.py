"""Packages written by upstream's exporter, with eager PyTorch's inputs and outputs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ptn_runtime
from ptn_runtime.conformance.case import Array

GOLDEN = Path(__file__).parent / "data" / "golden"
TOLERANCE = 2e-5
LOOSE = {  # package: absolute tolerance, and why
    "zoo_bf16_ln": 4e-2,  # bfloat16 has eight bits
    "whole_llm_8da4w": 2e-3,  # a rounding of the quantised activations can fall to either side
}


def calls(name: str) -> list[tuple[str, list[Array] | dict[str, Array], list[Array]]]:
    """Prefix (a method, or a further call of `forward`), inputs and expected outputs of each call, in order."""
    with np.load(GOLDEN / name / "io.npz") as archive:
        arrays = dict(archive)
    found: list[tuple[str, list[Array] | dict[str, Array], list[Array]]] = []
    named = re.compile(r"in_([a-z_]+)_(\d+)")
    steps = sorted({int(match.group(2)) for key in arrays if (match := named.fullmatch(key))})
    if steps:
        for step in steps:
            inputs = {m.group(1): arrays[k] for k in arrays if (m := named.fullmatch(k)) and int(m.group(2)) == step}
            found.append(("forward", inputs, [arrays[f"out_{step}"]]))
        return found
    prefixes = sorted({match.group(1) for key in arrays if (match := re.fullmatch(r"(.*?)in_\d+", key))})
    for prefix in prefixes:
        positional = [arrays[f"{prefix}in_{i}"] for i in range(sum(k.startswith(f"{prefix}in_") for k in arrays))]
        expected = [arrays[f"{prefix}out_{i}"] for i in range(sum(k.startswith(f"{prefix}out_") for k in arrays))]
        found.append((prefix.rstrip("_"), positional, expected))
    return found


def as_model_input(model: ptn_runtime.Model, method: str, index: int, array: Array) -> Array:
    """bfloat16 is recorded as float32."""
    dtype = model.describe(method).inputs[index].dtype
    return array.astype(ml_dtypes.bfloat16) if str(dtype) == "bfloat16" else array


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.iterdir() if path.is_dir()))
def test_golden(name: str, load: Callable[..., ptn_runtime.Model]) -> None:
    with load(GOLDEN / name / "model.ptn") as model:
        for prefix, inputs, expected in calls(name):
            method = prefix if prefix in model.methods else "forward"
            if isinstance(inputs, dict):
                found: Any = model.run(method, **inputs)
            else:
                arrays = [as_model_input(model, method, i, array) for i, array in enumerate(inputs)]
                found = model.run(method, *arrays)
            outputs = [found] if isinstance(found, np.ndarray) else list(found)
            assert len(outputs) == len(expected)
            for ours, theirs in zip(outputs, expected, strict=True):
                atol = LOOSE.get(name, TOLERANCE)
                np.testing.assert_allclose(
                    np.asarray(ours, theirs.dtype), theirs, rtol=1e-4 if atol == TOLERANCE else 2e-2, atol=atol
                )
