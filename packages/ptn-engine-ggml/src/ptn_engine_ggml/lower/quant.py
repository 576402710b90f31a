"""Choosing, applying and undoing quantisation: kernels of `native/kernels/quant.cpp`, with torchao's roundings.

Linear layers and embeddings read packed constants themselves, see `packed.py`; these lowerings are for other readers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from ml_dtypes import finfo
from ptn_format.dtypes import ScalarType
from ptn_format.errors import ConstantError
from ptn_format.graph import AffineGroup, PackedQuant
from ptn_format.quant import affine_bits, gguf_type
from ptn_runtime.engine import StaticNode, Value

from ptn_engine_ggml._native import Builder, Tensor
from ptn_engine_ggml.lower.common import axis_of, call, call_all, constant
from ptn_engine_ggml.lower.registry import Outputs, lower

Sizes = Sequence[int]
DOUBLE = ScalarType.DOUBLE

# --- constants that the file keeps packed ---


def _scheme_check(node: StaticNode) -> str | None:
    scheme = node.args["scheme"]
    try:
        if isinstance(scheme, PackedQuant):
            gguf_type(scheme.codec)
        elif isinstance(scheme, AffineGroup):
            affine_bits(scheme)
    except ConstantError as error:
        return f"{error}."
    return None


@lower("ptn.unpack_affine.default", check=_scheme_check)
def unpack_affine(b: Builder, out: Outputs, packed: Tensor, scheme: AffineGroup, sizes: Sizes) -> Tensor:
    ints = (affine_bits(scheme), scheme.quant_min)
    return call(b, "quant.unpack", (packed,), out, ints)


@lower("ptn.dequantize_packed.default", check=_scheme_check)
def dequantize_packed(
    b: Builder,
    out: Outputs,
    packed: Tensor,
    scheme: AffineGroup | PackedQuant,
    sizes: Sizes,
    scale: Tensor | None = None,
    zero_point: Tensor | None = None,
    dtype: ScalarType | None = None,
) -> Tensor:
    if isinstance(scheme, PackedQuant):
        ints = [gguf_type(scheme.codec).ggml_type, sizes[-1]]
        return call(b, "quant.dequantize_blocks", (packed,), out, ints)
    assert scale is not None
    inputs = [packed, scale] + ([] if zero_point is None else [zero_point])
    ints = [affine_bits(scheme), scheme.quant_min, scheme.group_size or sizes[-1], int(zero_point is not None)]
    return call(b, "quant.dequantize_packed", inputs, out, ints)


# --- torchao ---

_MAPPINGS = {"SYMMETRIC": 0, "SYMMETRIC_NO_CLIPPING_ERR": 1, "ASYMMETRIC": 2}


def _limits(dtype: ScalarType, quant_min: Any, quant_max: Any) -> list[int]:
    info = np.iinfo(dtype.numpy)
    return [
        int(info.min) if quant_min is None else int(quant_min),
        int(info.max) if quant_max is None else int(quant_max),
    ]


def _limits_check(node: StaticNode) -> str | None:
    for name in ("quant_min", "quant_max"):
        limit = node.args.get(name)
        if isinstance(limit, float) and not limit.is_integer():
            return f"'{name}' is {limit}, not an integer."
        if isinstance(limit, Value):
            return f"'{name}' is a tensor, which is known only while the graph runs."
    return None


@lower("torchao.choose_qparams_affine.default", check=_limits_check)
def choose_qparams_affine(
    b: Builder,
    out: Outputs,
    input: Tensor,
    mapping_type: str,
    block_size: Sizes,
    target_dtype: ScalarType,
    quant_min: Any = None,
    quant_max: Any = None,
    eps: float | None = None,
    **_: Any,
) -> tuple[Tensor, ...]:
    least = float(finfo(ScalarType(input.dtype).numpy).smallest_normal) if eps is None else eps
    ints = [_MAPPINGS[mapping_type], *_limits(ScalarType(target_dtype), quant_min, quant_max), *block_size]
    return call_all(b, "quant.choose_qparams", (input,), out, ints, (least,))


def _quantize(
    b: Builder,
    out: Outputs,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    limits: Sizes,
    block_size: Sizes,
    *,
    round_last: bool = False,
) -> Tensor:
    inputs = [x, scale] + ([] if zero_point is None else [zero_point])
    ints = [int(zero_point is not None), int(round_last), *limits, *block_size]
    return call(b, "quant.quantize", inputs, out, ints)


def _dequantize(
    b: Builder, out: Outputs, q: Tensor, scale: Tensor, zero_point: Tensor | None, block_size: Sizes
) -> Tensor:
    inputs = [q, scale] + ([] if zero_point is None else [zero_point])
    return call(b, "quant.dequantize", inputs, out, [int(zero_point is not None), *block_size])


@lower("torchao.quantize_affine.default", check=_limits_check, empty=True)
def quantize_affine(
    b: Builder,
    out: Outputs,
    input: Tensor,
    block_size: Sizes,
    scale: Tensor,
    zero_point: Tensor | None,
    output_dtype: ScalarType,
    quant_min: Any = None,
    quant_max: Any = None,
) -> Tensor:
    zero_point = zero_point if zero_point is not None and zero_point.numel else None
    return _quantize(b, out, input, scale, zero_point, _limits(out.dtype, quant_min, quant_max), block_size)


@lower("torchao.dequantize_affine.default", empty=True)
def dequantize_affine(
    b: Builder,
    out: Outputs,
    input: Tensor,
    block_size: Sizes,
    scale: Tensor,
    zero_point: Tensor | None,
    input_dtype: ScalarType,
    **_: Any,
) -> Tensor:
    zero_point = zero_point if zero_point is not None and zero_point.numel else None
    return _dequantize(b, out, input, scale, zero_point, block_size)


@lower("torchao.dequantize_gguf.default")
def dequantize_gguf(b: Builder, out: Outputs, weight: Tensor, ggml_type: str, **_: Any) -> Tensor:
    ints = (gguf_type(f"gguf:{ggml_type}").ggml_type, out.shape[-1])
    return call(b, "quant.dequantize_blocks", (weight,), out, ints)


@lower("torchao.dequantize_int4_tensor.default")
def dequantize_int4_tensor(
    b: Builder, out: Outputs, qdata: Tensor, scale: Tensor, zero_point: Tensor, group_size: int, **_: Any
) -> Tensor:
    return call(b, "quant.dequantize_int4", (qdata, scale, zero_point), out, (group_size,))


# --- quantized_decomposed ---


def _parameter(b: Builder, value: Any) -> Tensor:
    """A scale or zero point: a tensor, or a number, which stays float64 so that its reciprocal is rounded once."""
    return value if isinstance(value, Tensor) else constant(b, np.asarray(value, np.float64))


@lower(
    "quantized_decomposed.quantize_per_tensor.default",
    "quantized_decomposed.quantize_per_tensor.tensor",
    "quantized_decomposed.quantize_per_tensor.tensor2",
    check=_limits_check,
    scalars=("scale", "zero_point"),
)
def quantize_per_tensor(
    b: Builder,
    out: Outputs,
    input: Tensor,
    scale: Any,
    zero_point: Any,
    quant_min: int,
    quant_max: int,
    dtype: ScalarType,
) -> Tensor:
    limits = (int(quant_min), int(quant_max))
    return _quantize(b, out, input, _parameter(b, scale), _parameter(b, zero_point), limits, input.shape)


@lower(
    "quantized_decomposed.dequantize_per_tensor.default",
    "quantized_decomposed.dequantize_per_tensor.tensor",
    "quantized_decomposed.dequantize_per_tensor.tensor2",
    scalars=("scale", "zero_point", "quant_min", "quant_max"),
)
def dequantize_per_tensor(
    b: Builder, out: Outputs, input: Tensor, scale: Any, zero_point: Any, *_: Any, **__: Any
) -> Tensor:
    return _dequantize(b, out, input, _parameter(b, scale), _parameter(b, zero_point), input.shape)


def _channel_blocks(shape: Sizes, axis: int) -> list[int]:
    return [1 if k == axis_of(axis, len(shape)) else size for k, size in enumerate(shape)]


def _token_blocks(shape: Sizes) -> list[int]:
    return [*(1 for _ in shape[:-1]), shape[-1]]


@lower("quantized_decomposed.quantize_per_channel.default", check=_limits_check)
def quantize_per_channel(
    b: Builder,
    out: Outputs,
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: ScalarType,
) -> Tensor:
    blocks = _channel_blocks(input.shape, axis)
    return _quantize(b, out, input, scales, zero_points, (quant_min, quant_max), blocks)


@lower("quantized_decomposed.dequantize_per_channel.default")
def dequantize_per_channel(
    b: Builder, out: Outputs, input: Tensor, scales: Tensor, zero_points: Tensor | None, axis: int, *_: Any, **__: Any
) -> Tensor:
    return _dequantize(b, out, input, scales, zero_points, _channel_blocks(input.shape, axis))


@lower("quantized_decomposed.quantize_per_token.default", check=_limits_check)
def quantize_per_token(
    b: Builder,
    out: Outputs,
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    quant_min: int,
    quant_max: int,
    dtype: ScalarType,
) -> Tensor:
    blocks = _token_blocks(input.shape)
    return _quantize(b, out, input, scales, zero_points, (quant_min, quant_max), blocks, round_last=True)


@lower("quantized_decomposed.dequantize_per_token.default")
def dequantize_per_token(
    b: Builder, out: Outputs, input: Tensor, scales: Tensor, zero_points: Tensor, *_: Any, **__: Any
) -> Tensor:
    return _dequantize(b, out, input, scales, zero_points, _token_blocks(input.shape))


@lower("quantized_decomposed.quantize_per_channel_group.default", check=_limits_check)
def quantize_per_channel_group(
    b: Builder,
    out: Outputs,
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    quant_min: int,
    quant_max: int,
    dtype: ScalarType,
    group_size: int = 128,
) -> Tensor:
    limits = (quant_min, quant_max)
    return _quantize(b, out, input, scales, zero_points, limits, (1, group_size), round_last=True)


@lower("quantized_decomposed.dequantize_per_channel_group.default")
def dequantize_per_channel_group(
    b: Builder,
    out: Outputs,
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    quant_min: int,
    quant_max: int,
    dtype: ScalarType,
    group_size: int,
    output_dtype: ScalarType,
) -> Tensor:
    return _dequantize(b, out, input, scales, zero_points, (1, group_size))


@lower("quantized_decomposed.embedding_4bit.default", "quantized_decomposed.embedding_4bit.dtype")
def embedding_4bit(
    b: Builder,
    out: Outputs,
    weight: Tensor,
    weight_scales: Tensor,
    weight_zero_points: Tensor | None,
    weight_quant_min: int,
    weight_quant_max: int,
    indices: Tensor,
    dtype: ScalarType | None = None,
) -> Tensor:
    inputs = [weight, weight_scales, indices] + ([] if weight_zero_points is None else [weight_zero_points])
    return call(b, "quant.embedding_4bit", inputs, out, (int(weight_zero_points is not None),))
