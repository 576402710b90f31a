"""Exports the models of the table, runs them on engines, and compares them with eager PyTorch."""

from __future__ import annotations

import functools
import io
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import ptn_runtime
import torch
from ptn_export import NativeProgram, to_native
from ptn_runtime.errors import UnsupportedMethodError
from torch import nn

from zoo.entry import Entry, leaves

ENGINES = ("reference", "ggml")


@dataclass(frozen=True)
class Exported:
    """An exported model.

    Attributes:
        module: the eager module.
        native: its program.
        package: the bytes of its file.
        calls: arguments by name of each call.
        expected: what eager PyTorch gives for each call.
    """

    module: nn.Module
    native: NativeProgram
    package: bytes
    calls: list[dict[str, Any]]
    expected: list[Any]


_CACHE: dict[str, Exported] = {}


def exported(entry: Entry) -> Exported:
    """Exports the model by the code that the page shows; once in a process."""
    if entry.name not in _CACHE:
        calls = [entry.call(sizes) for sizes in entry.sizes]
        with warnings.catch_warnings(action="ignore"):  # of the libraries, about themselves
            module = entry.make()
            scope = {"torch": torch, "model": module, **calls[0]}
            exec(entry.code(), scope)
            with torch.no_grad():
                expected = [module(**call) for call in calls]
        native = to_native(scope["exported"])
        file = io.BytesIO()
        native.save(file)
        _CACHE[entry.name] = Exported(module, native, file.getvalue(), calls, expected)
    return _CACHE[entry.name]


@functools.cache
def refusal(name: str, engine: str) -> str | None:
    """Why the engine refuses the exported model, None where it accepts it. Every refused node has a reason."""
    try:
        ptn_runtime.load(_CACHE[name].package, engine=engine).close()
    except UnsupportedMethodError as error:
        refused = error.nodes
    else:
        return None
    assert refused
    assert all(node.reason and "reference" in node.engines for node in refused), refused
    return "; ".join(dict.fromkeys(f"{node.op}: {node.reason}" for node in refused))


def assert_equals_eager(entry: Entry, engine: str) -> None:
    """Runs every call on the engine."""
    model = exported(entry)
    with ptn_runtime.load(model.package, engine=engine) as loaded:
        for sizes, call, expected in zip(entry.sizes, model.calls, model.expected, strict=True):
            arrays = {name: v.numpy() if isinstance(v, torch.Tensor) else v for name, v in call.items()}
            found = loaded(*arrays.values()) if entry.by_position else loaded(**arrays)
            if isinstance(expected, Mapping):
                assert list(found) == list(expected)
            ours, theirs = leaves(found), leaves(expected)
            assert len(ours) == len(theirs)
            for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
                _assert_close(a, b.numpy(), entry.tolerance, f"{entry.name} on {engine} at {dict(sizes)}, result {i}")


def _assert_close(found: np.ndarray, expected: np.ndarray, tolerance: float, place: str) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape), place
    if expected.dtype.kind != "f":
        np.testing.assert_array_equal(found, expected, place)
        return
    assert np.isfinite(expected).all(), f"{place}: eager PyTorch gives infinities or NaN, which compares nothing"
    scale = np.abs(expected).max(initial=0)
    assert scale > 1e-3, f"{place}: eager PyTorch gives zeros, which compares nothing"
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * scale, err_msg=place)
