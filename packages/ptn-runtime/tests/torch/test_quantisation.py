"""Quantisation operators against torchao and PyTorch's decomposed quantisation."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch.ao.quantization.fx._decomposed
    import torchao.quantization  # noqa: F401  defines the torchao operators

torchao_ops: Any = torch.ops.torchao
decomposed: Any = torch.ops.quantized_decomposed
FLOATS = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mapping", ["ASYMMETRIC", "SYMMETRIC", "SYMMETRIC_NO_CLIPPING_ERR"])
@pytest.mark.parametrize("block", [[1, 1, 8], [1, 3, 4], [2, 3, 8]])
@pytest.mark.parametrize("keepdim", [False, True])
def test_choose_qparams(eager: Any, dtype: torch.dtype, mapping: str, block: list[int], keepdim: bool) -> None:
    x = torch.randn(2, 3, 8).to(dtype)
    x[0, 0] = 0
    call = (x, mapping, block, torch.int8, -128, 127, None, None, torch.int8, keepdim)
    eager.check(torchao_ops.choose_qparams_affine.default, *call)
    eager.check(
        torchao_ops.choose_qparams_affine.default,
        x,
        mapping,
        block,
        torch.int8,
        -8,
        7,
        1e-5,
        torch.float32,
        torch.int32,
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("zero_dtype", [torch.int8, torch.int32, torch.float32])
@pytest.mark.parametrize("block", [[1, 8], [1, 4], [3, 2]])
def test_affine_round_trip(
    eager: Any, dtype: torch.dtype, scale_dtype: torch.dtype, zero_dtype: torch.dtype, block: list[int]
) -> None:
    x = torch.randn(3, 8).to(dtype)
    groups = [3 // block[0], 8 // block[1]]
    scale, zero = torch.rand(groups).to(scale_dtype) * 0.1 + 0.01, torch.randint(-5, 5, groups).to(zero_dtype)
    eager.check(torchao_ops.quantize_affine.default, x, block, scale, zero, torch.int8, -128, 127)
    q = torch.randint(-8, 8, (3, 8), dtype=torch.int8)
    for out in FLOATS:
        eager.check(torchao_ops.dequantize_affine.default, q, block, scale, zero, torch.int8, -8, 7, output_dtype=out)
    eager.check(torchao_ops.dequantize_affine.default, q, block, scale, None, torch.int8)


@pytest.mark.parametrize("dtype", FLOATS)
def test_per_tensor(eager: Any, dtype: torch.dtype) -> None:
    x = torch.randn(4, 5).to(dtype)
    eager.check(decomposed.quantize_per_tensor.default, x, 0.03, 7, -128, 127, torch.int8)
    q = torch.randint(0, 255, (4, 5), dtype=torch.uint8)
    eager.check(decomposed.dequantize_per_tensor.default, q, 0.03, 7, 0, 255, torch.uint8)
    eager.check(decomposed.dequantize_per_tensor.default, q, 0.03, 7, 0, 255, torch.uint8, out_dtype=dtype)
    scale, zero = torch.tensor([0.03]), torch.tensor([7])
    eager.check(decomposed.quantize_per_tensor.tensor, x, scale, zero, 0, 255, torch.uint8)
    eager.check(decomposed.dequantize_per_tensor.tensor, q, scale, zero, 0, 255, torch.uint8)


def test_per_channel_and_group(eager: Any) -> None:
    x, scale, zero = torch.randn(4, 8), torch.rand(4) * 0.1 + 0.01, torch.randint(-3, 3, (4,))
    eager.check(decomposed.quantize_per_channel.default, x, scale, zero, 0, -128, 127, torch.int8)
    q = torch.randint(-128, 127, (4, 8), dtype=torch.int8)
    eager.check(decomposed.dequantize_per_channel.default, q, scale, zero, 0, -128, 127, torch.int8)
    eager.check(decomposed.dequantize_per_channel.default, q, scale, None, 0, -128, 127, torch.int8)
    scales, zeros = torch.rand(4, 2) * 0.1 + 0.01, torch.randint(-3, 3, (4, 2)).float()
    eager.check(decomposed.quantize_per_channel_group.default, x, scales, zeros, -8, 7, torch.int8, 4)
    eager.check(decomposed.dequantize_per_channel_group.default, q, scales, zeros, -8, 7, torch.int8, 4, torch.float32)


def test_per_token(eager: Any) -> None:
    x, scale, zero = torch.randn(2, 3, 8), torch.rand(2, 3, 1) * 0.1 + 0.01, torch.randint(-3, 3, (2, 3, 1))
    eager.check(decomposed.quantize_per_token.default, x, scale, zero, -128, 127, torch.int8)
    q = torch.randint(-128, 127, (2, 3, 8), dtype=torch.int8)
    eager.check(decomposed.dequantize_per_token.default, q, scale, zero, -128, 127, torch.int8, torch.float32)
