"""Affine decoding against torchao."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from ptn_format.dtypes import ScalarType
from ptn_format.graph import AffineGroup
from ptn_format.quant import dequantize_affine, pack_affine
from torchao.quantization.quant_primitives import dequantize_affine as torchao_dequantize_affine

DTYPES = {torch.float32: np.float32, torch.float16: np.float16, torch.bfloat16: ml_dtypes.bfloat16}


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("group_size", [0, 4, 16])
@pytest.mark.parametrize("scale_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("zero_dtype", [None, torch.int8, torch.float32])
def test_bit_for_bit(
    bits: int, group_size: int, scale_dtype: torch.dtype, dtype: torch.dtype, zero_dtype: torch.dtype | None
) -> None:
    generator = torch.Generator().manual_seed(bits)
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    block = group_size or 32
    values = torch.randint(low, high + 1, (6, 32), generator=generator).to(torch.int8)
    scale = torch.rand(6, 32 // block, generator=generator).to(scale_dtype)
    zero = None
    if zero_dtype is not None:
        zero = (torch.rand(6, 32 // block, generator=generator) * (high - low) + low).to(zero_dtype)
    expected = torchao_dequantize_affine(values, (1, block), scale, zero, torch.int8, low, high, output_dtype=dtype)
    scheme = AffineGroup("scale", ScalarType.FLOAT, low, high, group_size)
    found = dequantize_affine(
        pack_affine(values.numpy(), scheme),
        scheme,
        (6, 32),
        to_numpy(scale),
        None if zero is None else to_numpy(zero),
        DTYPES[dtype],
    )
    assert found.dtype == DTYPES[dtype]
    assert found.tobytes() == to_numpy(expected).tobytes()
