"""Models quantised with PT2E: the graph holds `quantized_decomposed` operators."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import ptn_runtime
import pytest
import torch
from ptn_export import to_native
from torch import nn

with warnings.catch_warnings(action="ignore"):  # torchao's own, about its optional parts
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86


class Vision(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.classifier = nn.Linear(8 * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.max_pool2d(torch.relu(self.conv(x)), 2)
        return self.classifier(x.flatten(1))


def quantized(x: torch.Tensor, *, dynamic: bool) -> Any:
    model = Vision().eval()
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config(is_dynamic=dynamic))
    with warnings.catch_warnings(action="ignore"):  # PyTorch's and torchao's own
        prepared = prepare_pt2e(torch.export.export(model, (x,)).module(), quantizer)
        prepared(x)
        converted = convert_pt2e(prepared)
        return torch.export.export(converted, (x,))


class Chooses(nn.Module):
    def __init__(self, operator: Any, *arguments: Any) -> None:
        super().__init__()
        self.operator, self.arguments = operator, arguments

    def forward(self, x: torch.Tensor) -> Any:
        return self.operator(x, *self.arguments)


_ops = torch.ops.quantized_decomposed
EPS = 1.1920928955078125e-07


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        (_ops.choose_qparams.tensor, (-128, 127, EPS, torch.int8)),
        (_ops.choose_qparams.tensor, (0, 255, EPS, torch.uint8)),
        (_ops.choose_qparams_symmetric.tensor, (-127, 127, EPS, torch.int8)),
        (_ops.choose_qparams_symmetric.tensor, (0, 255, EPS, torch.uint8)),
        (_ops.choose_qparams_per_token_asymmetric.default, (torch.int8,)),
    ],
    ids=str,
)
def test_parameters_are_chosen_as_pytorch_does(check: Callable[..., Any], operator: Any, arguments: Any) -> None:
    torch.manual_seed(4)
    x = torch.randn(3, 5)
    check(Chooses(operator, *arguments), (x,), (x.abs() + 1,), (torch.zeros(3, 5),), rtol=0, atol=0)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("engine", ["reference", "ggml"])
def test_pt2e_model_keeps_its_operators_and_numbers(engine: str, dynamic: bool) -> None:
    torch.manual_seed(2)
    x = torch.randn(2, 3, 8, 8)
    exported = quantized(x, dynamic=dynamic)
    with torch.no_grad():
        expected = exported.module()(x).numpy()
    native = to_native(exported)
    operators = native.report.methods[0].operators
    assert sum(count for name, count in operators.items() if name.startswith("quantized_decomposed.")) >= 3
    assert any(constant.dtype == np.int8 for constant in native.constants.values())
    file = io.BytesIO()
    native.save(file)
    with ptn_runtime.load(file.getvalue(), engine=engine) as model:
        # One step of the last quantised activation may flip where sums are formed in another order.
        np.testing.assert_allclose(model(x.numpy()), expected, atol=0.02)
