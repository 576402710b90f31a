"""PyTorch judges the reference engine on every conformance case that PyTorch can run."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import ptn_runtime
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # its operators
import torchao.quantization  # noqa: F401  likewise
from ptn_format.dtypes import ScalarType
from ptn_runtime import errors
from ptn_runtime.conformance.case import NOT_IN_TORCH, Array, Case, package_bytes
from ptn_runtime.conformance.families import all_cases
from ptn_runtime.conformance.test_operators import results
from ptn_runtime.conformance.tolerance import differences

TORCH_DTYPES = {
    ScalarType.BYTE: torch.uint8,
    ScalarType.CHAR: torch.int8,
    ScalarType.SHORT: torch.int16,
    ScalarType.INT: torch.int32,
    ScalarType.LONG: torch.int64,
    ScalarType.HALF: torch.float16,
    ScalarType.FLOAT: torch.float32,
    ScalarType.DOUBLE: torch.float64,
    ScalarType.BOOL: torch.bool,
    ScalarType.BFLOAT16: torch.bfloat16,
}
DECLARED = {
    # PyTorch tells torch.export of other dtypes than it gives: files hold those, and so do our results.
    "quantized_decomposed.choose_qparams_per_token.default": (torch.float64, torch.int64),
}


def to_torch(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(value.view(np.int16).copy()).view(torch.bfloat16)
        return torch.from_numpy(np.array(value, copy=True))
    if isinstance(value, ScalarType):
        return TORCH_DTYPES[value]
    if isinstance(value, tuple):
        return [to_torch(item) for item in value]
    return value


def to_numpy(tensor: torch.Tensor) -> Any:
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def eager(case: Case) -> Any:
    namespace, name, overload = case.op.split(".")
    operator = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    return operator(**{key: to_torch(value) for key, value in case.args.items()})


def judged_by_torch(case: Case) -> bool:
    return case.program is None and not case.op.startswith(NOT_IN_TORCH)


@pytest.mark.parametrize("case", [case for case in all_cases() if judged_by_torch(case)], ids=str)
def test_reference_equals_eager(case: Case) -> None:
    data, inputs = package_bytes(case)
    with ptn_runtime.load(data, engine="reference") as model:
        if case.raises is not None:
            with pytest.raises((IndexError, RuntimeError)):
                eager(case)
            with pytest.raises(getattr(errors, case.raises)):
                model(*inputs)
            return
        found = results(model, inputs)
    check(case, found)


def check(case: Case, found: tuple[Array, ...]) -> None:
    raw = eager(case)
    tensors = [raw] if isinstance(raw, torch.Tensor) else list(raw)
    if case.op in DECLARED:
        tensors = [tensor.to(dtype) for tensor, dtype in zip(tensors, DECLARED[case.op], strict=True)]
    want = [to_numpy(tensor) for tensor in tensors]
    problems = differences(case, found, want)
    if case.expected is not None:  # engines are held to the literal results, so those must be PyTorch's too
        problems += [f"the case's literal {problem}" for problem in differences(case, case.expected, want)]
    assert not problems, "\n".join(problems)
