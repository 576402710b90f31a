"""`quantize_module`: schemes by name, on a copy of the module."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path

import numpy as np
import ptn_runtime
import pytest
import torch
from ptn_export import to_native
from ptn_export.quantize import SCHEMES, quantize_module
from ptn_format.graph import AffineGroup
from torch import nn


class Network(nn.Module):
    """Ids to logits; the output layer shares the embedding's weight."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.embedding = nn.Embedding(40, 64, padding_idx=0)
        self.up = nn.Linear(64, 96)
        self.norm = nn.LayerNorm(96)
        self.down = nn.Linear(96, 64, bias=False)
        self.head = nn.Linear(64, 40, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("count", torch.zeros(1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.down(self.norm(self.up(self.embedding(ids)))))


@pytest.mark.parametrize(
    ("scheme", "bits", "groups"),
    [
        *((f"int{bits}", bits, {32}) for bits in range(2, 7)),
        ("int8", 8, {64, 96}),
        ("int4:16", 4, {16}),
        ("int3:row", 3, {64, 96}),
        ("8da4w", 4, {32}),
        ("8da4w:64", 4, {64, 48}),  # 64 does not divide rows of 96
        ("8da8w", 8, {64, 96}),
    ],
)
def test_schemes(scheme: str, bits: int, groups: set[int]) -> None:
    model = Network().eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    quantised = quantize_module(model, scheme)
    weights = [layer.weight for layer in (quantised.embedding, quantised.up, quantised.down, quantised.head)]
    assert {weight.target_dtype for weight in weights} == {getattr(torch, f"int{bits}")}  # type: ignore[union-attr]
    assert {weight.block_size[-1] for weight in weights} == groups  # type: ignore[union-attr]
    activations = "int8_asym_per_token" if scheme.startswith("8da") else None
    found = [weight.activation_quantization for weight in weights]  # type: ignore[union-attr]
    assert found == [None, activations, activations, activations]
    ids = torch.randint(0, 40, (2, 5))
    with torch.no_grad():
        far = (quantised(ids) - model(ids)).abs().max() / model(ids).abs().max()
    assert 0 < far < {2: 0.9, 3: 0.6, 4: 0.2}.get(bits, 0.1)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert type(model.up.weight) is nn.Parameter


@pytest.mark.parametrize("scheme", ["int4", "8da8w"])
def test_the_copy_can_be_exported(scheme: str, tmp_path: Path) -> None:
    quantised = quantize_module(Network().eval(), scheme)
    ids = torch.randint(0, 40, (2, 5))
    with warnings.catch_warnings(action="ignore"):  # PyTorch's own
        native = to_native(torch.export.export(quantised, (ids,)))
    native.save(tmp_path / "model.ptn")
    quants = [ref.meta.quant for ref in native.program.methods[0].constants]
    assert sum(isinstance(quant, AffineGroup) for quant in quants) == 3  # the tied weight once
    with ptn_runtime.load(tmp_path / "model.ptn", engine="reference") as loaded, torch.no_grad():
        np.testing.assert_allclose(loaded(ids.numpy()), quantised(ids), atol=1e-5)


def test_all_schemes_have_a_line_of_help() -> None:
    assert list(SCHEMES) == ["int8", "int6", "int5", "int4", "int3", "int2", "8da8w", "8da4w"]
    assert all("\n" not in line and len(line) < 100 for line in SCHEMES.values())


def test_only_what_is_quantised_is_copied() -> None:
    model = Network().eval()
    quantised = quantize_module(model, "int4")
    assert quantised.norm.weight is model.norm.weight
    assert quantised.up.bias is model.up.bias
    assert quantised.embedding.weight is quantised.head.weight
    assert quantised.count is not model.count
    dynamic = quantize_module(model, "8da4w")
    head, embedding = dynamic.head.weight.qdata, dynamic.embedding.weight.qdata  # type: ignore[union-attr]
    assert head.data_ptr() == embedding.data_ptr()


def test_layers_that_are_left_alone() -> None:
    model = nn.Sequential(
        nn.Linear(4, 3),
        nn.Linear(37, 8),
        nn.Conv2d(32, 8, 3),
        nn.Conv2d(32, 32, 3, groups=32),
        nn.Embedding(8, 32, max_norm=1.0),
        nn.MultiheadAttention(32, 2),
        nn.utils.parametrizations.weight_norm(nn.Linear(32, 32)),
        nn.Linear(32, 8).double(),
    )
    weights = [getattr(layer, "weight", None) for layer in quantize_module(model, "int4")]
    assert [hasattr(weight, "qdata") for weight in weights] == [False, True, True, *[False] * 5]
    assert weights[1].block_size == [1, 37]  # type: ignore[union-attr]  # no smaller number divides it
    assert weights[2].block_size == [1, 32, 1, 1]  # type: ignore[union-attr]
    again = quantize_module(nn.Sequential(quantize_module(model, "int8"), nn.Linear(8, 8)), "int4")
    assert [again[0][1].weight.target_dtype, again[1].weight.target_dtype] == [torch.int8, torch.int4]
    convolution = quantize_module(model, "8da4w")[2]
    assert type(convolution.weight) is nn.Parameter


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        ("int9", "there is no scheme 'int9' of quantisation. Known are:\n  int8 .*\n  int6 "),
        ("", "there is no scheme ''"),
        ("int4:", "'int4:': a group size is a number of elements from 8 on, or 'row', got ''; write for example int4:"),
        ("int4:4", "from 8 on, or 'row', got '4'"),
        ("int4:-32", "got '-32'"),
        ("8da8w:32", "8da8w has one scale a row and takes no group size"),
    ],
)
def test_wrong_names_are_refused(scheme: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        quantize_module(nn.Linear(32, 32), scheme)


def test_modules_without_weights_to_quantise_are_refused() -> None:
    with pytest.raises(ValueError, match="Sequential has no weight that int4 quantises: weights of linear, embedding"):
        quantize_module(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), "int4")


def test_modules_that_cannot_be_copied_are_refused() -> None:
    model = nn.Linear(32, 32)
    model.lock = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(TypeError, match=r"Linear cannot be copied.*lock.*torchao\.quantization\.quantize_"):
        quantize_module(model, "int4")
