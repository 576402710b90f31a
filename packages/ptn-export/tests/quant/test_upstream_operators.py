"""Graphs with the operators that executorch's own loaders put in the place of quantised weights.

Where executorch is not installed these operators are defined here, with its schemas and meanings.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import ptn_runtime
import pytest
import torch
from ptn_export import to_native
from ptn_format.package import open_package
from torch import nn
from torch.nn import functional as F

N, K, GROUP = 12, 64, 16


def _define(library: str, schema: str, function: Any) -> None:
    name = schema.partition("(")[0]
    packet, _, overload = name.partition(".")
    found = getattr(getattr(torch.ops, library), packet, None)
    if found is None or (overload or "default") not in found.overloads():
        torch.library.define(f"{library}::{name}", schema[len(name) :])
        torch.library.impl(f"{library}::{name}", "CompositeExplicitAutograd")(function)


def int4_values(
    qdata: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    group_size: int,
    output_dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """qdata uint8 [N, K / 2], the even element low; scale and zero point [K / group, N]."""
    levels = torch.stack((qdata & 15, qdata >> 4), -1).flatten(-2).to(output_dtype)
    scale, zero_point = (x.t().repeat_interleave(group_size, 1).to(output_dtype) for x in (scale, zero_point))
    return (levels - zero_point) * scale


def embedding_4bit(
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    weight_zero_points: torch.Tensor | None,
    weight_quant_min: int,
    weight_quant_max: int,
    indices: torch.Tensor,
) -> torch.Tensor:
    """weight uint8 [V, D / 2], the even element high, offset by 8."""
    levels = torch.stack((weight >> 4, weight & 15), -1).flatten(-2).float() - 8
    group = levels.shape[1] // weight_scales.shape[1]
    if weight_zero_points is not None:
        levels = levels - weight_zero_points.repeat_interleave(group, 1)
    return F.embedding(indices, levels * weight_scales.repeat_interleave(group, 1))


@pytest.fixture(scope="module", autouse=True)
def operators() -> None:
    _define(
        "torchao",
        "dequantize_int4_tensor(Tensor qdata, Tensor scale, Tensor zero_point, SymInt group_size, "
        "ScalarType output_dtype=15) -> Tensor",
        int4_values,
    )
    _define(
        "quantized_decomposed",
        "embedding_4bit(Tensor weight, Tensor weight_scales, Tensor? weight_zero_points, int weight_quant_min, "
        "int weight_quant_max, Tensor indices) -> Tensor",
        embedding_4bit,
    )


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("weight", torch.randint(0, 256, (N, K // 2), dtype=torch.uint8))
        self.register_buffer("scale", torch.rand(K // GROUP, N) * 0.1)
        self.register_buffer("zero", torch.randint(6, 10, (K // GROUP, N)).float())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        decode = torch.ops.torchao.dequantize_int4_tensor.default
        return F.linear(x, decode(self.weight, self.scale, self.zero, GROUP, torch.float32))


class Embedding(nn.Module):
    def __init__(self, zero_points: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("weight", torch.randint(0, 256, (N, K // 2), dtype=torch.uint8))
        self.register_buffer("scales", torch.rand(N, K // GROUP))
        self.zeros = nn.Buffer(torch.randint(-2, 3, (N, K // GROUP)).float()) if zero_points else None

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        look_up = torch.ops.quantized_decomposed.embedding_4bit.default
        return look_up(self.weight, self.scales, self.zeros, -8, 7, ids)


@pytest.mark.parametrize(
    ("model", "example", "operator"),
    [
        (Linear(), torch.randn(3, K), "torchao.dequantize_int4_tensor.default"),
        (Embedding(False), torch.tensor([[0, 11, 3]]), "quantized_decomposed.embedding_4bit.default"),
        (Embedding(True), torch.tensor([[0, 11, 3]]), "quantized_decomposed.embedding_4bit.default"),
    ],
    ids=["int4_tensor", "embedding_4bit", "embedding_4bit_zero_points"],
)
def test_operators_of_upstream_are_kept_and_run(model: nn.Module, example: torch.Tensor, operator: str) -> None:
    file = io.BytesIO()
    to_native(torch.export.export(model, (example,))).save(file)
    with open_package(file.getvalue()) as package:
        targets = [node.target for node in package.method("forward").graph.nodes if node.target]
        assert targets[0] == f"torch.ops.{operator}"
        assert np.array_equal(package.constant("weight"), model.weight.numpy())
    expected = model(example).numpy()
    for engine in ("reference", "ggml"):
        with ptn_runtime.load(file.getvalue(), engine=engine) as loaded:
            np.testing.assert_allclose(loaded(example.numpy()), expected, rtol=1e-5, atol=1e-5, err_msg=engine)


class IntegerProduct(nn.Module):
    """A product of int8 tensors whose sums are int32, which PyTorch says by a higher-order operator."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = torch.ops.higher_order.out_dtype(torch.ops.aten.mm.default, torch.int32, x, weight)
        return torch.ops.higher_order.out_dtype(torch.ops.aten.mul.Tensor, torch.int32, wide, 3)


@pytest.mark.parametrize("engine", ["reference", "ggml"])
def test_out_dtype(tmp_path: Path, engine: str) -> None:
    inputs = (torch.randint(-128, 128, (5, 40), dtype=torch.int8), torch.randint(-128, 128, (40, 3), dtype=torch.int8))
    to_native(torch.export.export(IntegerProduct(), inputs)).save(tmp_path / "model.ptn")
    with ptn_runtime.load(tmp_path / "model.ptn", engine=engine) as model:
        found = model(*(x.numpy() for x in inputs))
    np.testing.assert_array_equal(found, IntegerProduct()(*inputs).numpy(), strict=True)
