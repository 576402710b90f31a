"""Every operator that PyTorch's own sample database reaches, on its samples."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

SAMPLES = 2
FLOATS = (torch.float32, torch.bfloat16)
OTHERS = (torch.int64, torch.bool)

# Calls that a functional graph cannot hold.
NOT_COMPARED = {
    "aten._local_scalar_dense.default",  # eager gives a Python number
    "aten.as_strided.default",  # samples are views: eager looks at memory outside the tensor
}


def _name(info: Any) -> str:
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name


def _recorded(eager: Any, info: Any, dtype: torch.dtype) -> list[Any]:
    """The operator calls of the first samples; samples that eager mode itself refuses are left out."""
    calls: list[Any] = []
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        # `info.sample_inputs` would look for the running test on the stack, which takes longer than the test.
        samples = iter(info.sample_inputs_func(info, "cpu", dtype, False))
        for _ in range(SAMPLES):
            try:
                sample = next(samples)
                with eager.Recorder() as recorder:
                    info(sample.input, *sample.args, **sample.kwargs)
            except (StopIteration, RuntimeError, ValueError, TypeError, NotImplementedError, IndexError):
                break
            calls += recorder.calls
    return calls


# Jiterator compiles for GPUs.
@pytest.mark.parametrize("info", [info for info in op_db if "jiterator" not in info.name], ids=_name)
def test_samples(eager: Any, info: Any) -> None:
    supported = info.supported_dtypes("cpu")
    for dtype in itertools.chain(FLOATS, OTHERS):
        if dtype not in supported:
            continue
        for func, args, kwargs, results in _recorded(eager, info, dtype):
            if eager.canonical(func) in NOT_COMPARED:
                continue
            try:
                eager.check_call(func, args, kwargs, results)
            except eager.Unsupported:
                continue
