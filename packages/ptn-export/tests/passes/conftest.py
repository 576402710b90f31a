"""`rewritten`: exports a module with and without passes, and compares both on the reference engine with eager."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import ptn_runtime
import pytest
import torch
from ptn_export import PASSES, NativeProgram, to_native
from torch.utils import _pytree as pytree


def _array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    tensor = tensor.detach().contiguous()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().copy().view(ml_dtypes.bfloat16)
    return tensor.numpy().copy()


def _tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(np.ascontiguousarray(array).view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def run_native(native: NativeProgram, args: Any, engine: str = "reference", method: str = "forward") -> Any:
    """What the saved package gives for `args` on an engine: a list of tensors."""
    file = io.BytesIO()
    native.save(file)
    with ptn_runtime.load(file.getvalue(), engine=engine) as model:
        results = model.session().run(method, *pytree.tree_map_only(torch.Tensor, _array, args))
    return [_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in pytree.tree_leaves(results)]


def has_ggml() -> bool:
    return any(row.name == "ggml" and row.problem is None for row in ptn_runtime.installed_engines())


def check_rewrite(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    *more: tuple[Any, ...],
    expect: Mapping[str, int] | None = None,
    dynamic_shapes: Any = None,
    ggml: bool = True,
    **tolerance: Any,
) -> NativeProgram:
    """Compares eager PyTorch, the package without passes and the package with them.

    Args:
        module: the module; it is not put into eval mode.
        args: its example inputs.
        more: further inputs to compare.
        expect: how often each pass must have counted, exactly; other passes are not looked at.
        dynamic_shapes: as torch.export takes them.
        ggml: whether the package with passes runs on the ggml engine too, where that is installed.
        tolerance: of torch.testing.assert_close.
    """
    with warnings.catch_warnings(action="ignore"):
        exported = torch.export.export(module, args, dynamic_shapes=dynamic_shapes)
    plain, native = to_native(exported, disable_passes=PASSES), to_native(exported)
    assert not any(plain.rewrites["forward"].values())
    for name, count in (expect or {}).items():
        assert native.rewrites["forward"].get(name, 0) == count, (name, native.rewrites, str(native.report))
    for inputs in (args, *more):
        with torch.no_grad():
            expected = pytree.tree_leaves(module(*inputs))
        before, after = run_native(plain, inputs), run_native(native, inputs)
        torch.testing.assert_close(before, expected, equal_nan=True, **tolerance)
        torch.testing.assert_close(after, before, equal_nan=True, **tolerance)
        if ggml and has_ggml():
            torch.testing.assert_close(run_native(native, inputs, "ggml"), expected, equal_nan=True, **tolerance)
    return native


@pytest.fixture(name="check_rewrite")
def check_rewrite_fixture() -> Callable[..., NativeProgram]:
    return check_rewrite


@pytest.fixture(name="run_native")
def run_native_fixture() -> Callable[..., Any]:
    return run_native


@pytest.fixture
def operators() -> Callable[[NativeProgram], Mapping[str, int]]:
    return lambda native: native.report.methods[0].operators
