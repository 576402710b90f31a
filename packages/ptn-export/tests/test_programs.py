"""The many ways to come to an exported program."""

import io
import warnings

import pytest
import torch
import torch.utils.checkpoint
from ptn_export import to_native
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("calls", torch.ones(3))
        self.register_buffer("sums", torch.ones(3), persistent=False)

    def forward(self, x, y=None, *, scale=2.0):
        with torch.no_grad():
            z = self.linear(x)
        self.calls.add_(1)
        self.sums.add_(z.sum(0))
        return {"out": z * scale + self.calls + self.sums + (0 if y is None else y)}


X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
BATCH = torch.export.Dim("batch", min=1, max=9)


def strict(model):
    return torch.export.export(model, (X,), dynamic_shapes={"x": {0: BATCH}}, strict=True)


def decomposed(model):
    return torch.export.export(model, (X,), dynamic_shapes={"x": {0: BATCH}}).run_decompositions()


def functional(model):
    return torch.export.export(model, (X,), dynamic_shapes={"x": {0: BATCH}}).run_decompositions({})


def saved_and_loaded(model):
    file = io.BytesIO()
    torch.export.save(torch.export.export(model, (X,), dynamic_shapes={"x": {0: BATCH}}), file)
    file.seek(0)
    return torch.export.load(file)


def with_grad(model):
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    with torch.enable_grad():
        return torch.export.export(model, (X,), dynamic_shapes={"x": {0: BATCH}})


def in_inference_mode(model):
    with torch.inference_mode():
        return torch.export.export(model, (X.clone(),), dynamic_shapes={"x": {0: BATCH}})


@pytest.mark.parametrize(
    "make", [strict, decomposed, functional, saved_and_loaded, with_grad, in_inference_mode], ids=lambda f: f.__name__
)
def test_every_way_to_export(interpret, assert_same, make):
    model = Model().eval()
    with warnings.catch_warnings(action="ignore"):  # PyTorch's own, about its own code
        exported = make(model)
    native = to_native(exported)
    interpreter = interpret(native)
    assert native.report.methods[0].inputs[0].dims == ("1..9", "3")
    assert set(native.report.methods[0].state) == {"calls", "sums"}
    with torch.no_grad():
        for x in (X, X[:1], X + 1):
            assert_same(interpreter.run("forward", (x,)), model(x))


class Autocast(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.linear(x)
        with torch.enable_grad():
            return torch.utils.checkpoint.checkpoint(torch.sin, y, use_reentrant=False)


def test_autocast_and_checkpoint(check):
    native = check(Autocast().eval(), (X,))
    assert native.report.methods[0].operators["aten.linear.default"] == 1


def test_parametrized_weights(check):
    check(nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)).eval(), (X,))


def test_self_attention_layer(check):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(6, 2, batch_first=True).eval()
    q, k = torch.randn(2, 4, 6), torch.randn(2, 5, 6)
    check(layer, (q, k, k.clone()), rtol=1e-4, atol=1e-5)
    check(layer, (q, k, k.clone()), kwargs={"need_weights": False}, rtol=1e-4, atol=1e-5)
