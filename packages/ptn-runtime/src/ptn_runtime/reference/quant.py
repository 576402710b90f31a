"""Numpy kernels of the family `quant`."""

from __future__ import annotations

from typing import Any

import numpy as np
from ml_dtypes import finfo
from ptn_format import quant as packed_formats
from ptn_format.dtypes import ScalarType
from ptn_format.graph import AffineGroup, PackedQuant

from ptn_runtime.reference._numerics import cast, common_type, finish, number, operand, scalar_type, widen
from ptn_runtime.reference.index import checked
from ptn_runtime.reference.registry import Array, Number, Outputs, kernel
from ptn_runtime.shapes.quant import block_axes

Sizes = tuple[int, ...]
FLOAT = ScalarType.FLOAT
BFLOAT16 = ScalarType.BFLOAT16


# --- constants that the file keeps packed -----------------------------------------------------------------------


@kernel("ptn.unpack_affine.default")
def unpack_affine(out: Outputs, packed: Array, scheme: AffineGroup, sizes: Sizes) -> Array:
    return packed_formats.unpack_affine(packed, scheme, sizes)


@kernel("ptn.dequantize_packed.default")
def dequantize_packed(
    out: Outputs,
    packed: Array,
    scheme: AffineGroup | PackedQuant,
    sizes: Sizes,
    scale: Array | None = None,
    zero_point: Array | None = None,
    dtype: ScalarType = FLOAT,
) -> Array:
    if isinstance(scheme, PackedQuant):
        return packed_formats.decode_gguf(scheme.codec, packed, sizes, out.dtype.numpy)
    assert scale is not None
    return packed_formats.dequantize_affine(packed, scheme, sizes, scale, zero_point, out.dtype.numpy)


# --- torchao ----------------------------------------------------------------------------------------------------


class _Stepwise:
    """Arithmetic with a rounding to one dtype after each step, as PyTorch's separate operators round."""

    def __init__(self, dtype: ScalarType) -> None:
        self.dtype = dtype

    def __call__(self, array: Any) -> Array:
        return widen(finish(array, self.dtype))


def _integer_range(dtype: ScalarType) -> tuple[int, int]:
    info = np.iinfo(dtype.numpy)
    return int(info.min), int(info.max)


@kernel("torchao.choose_qparams_affine.default")
def choose_qparams_affine(
    out: Outputs,
    input: Array,
    mapping_type: str,
    block_size: Sizes,
    target_dtype: ScalarType,
    quant_min: Number | None = None,
    quant_max: Number | None = None,
    eps: float | None = None,
    scale_dtype: ScalarType | None = None,
    zero_point_dtype: ScalarType | None = None,
    keepdim: bool = False,
) -> tuple[Array, Array]:
    default_low, default_high = _integer_range(ScalarType(target_dtype))
    low = default_low if quant_min is None else quant_min
    high = default_high if quant_max is None else quant_max
    least = float(finfo(input.dtype).smallest_normal) if eps is None else eps
    step = _Stepwise(scalar_type(input))
    shape, within = block_axes(input.shape, block_size)
    x = widen(input).reshape(shape)
    bottom = np.minimum(x.min(axis=within), 0)
    top = np.maximum(x.max(axis=within), 0)
    if mapping_type == "ASYMMETRIC":
        scale = step(step(top - bottom) / float(high - low))
        scale = np.maximum(scale, step(np.asarray(least)))
        zero_point = step(low - np.rint(step(bottom / scale)))
        zero_point = np.minimum(np.maximum(zero_point, low), high)
    else:
        if mapping_type == "SYMMETRIC":
            scale = step(np.maximum(-bottom, top) / (float(high - low) / 2))
        else:
            scale = np.maximum(step(bottom / float(low)), step(top / float(high)))
        scale = np.maximum(scale, step(np.asarray(least)))
        zero_point = np.full(scale.shape, int((high + low + 1) / 2), scale.dtype)
    return (
        finish(cast(np.asarray(scale), input.dtype), out[0].dtype).reshape(out[0].shape),
        finish(zero_point, out[1].dtype).reshape(out[1].shape),
    )


def _per_block(parameter: Array, shape: Sizes, within: Sizes) -> Array:
    return parameter.reshape([1 if axis in within else size for axis, size in enumerate(shape)])


@kernel("torchao.quantize_affine.default")
def quantize_affine(
    out: Outputs,
    input: Array,
    block_size: Sizes,
    scale: Array,
    zero_point: Array | None,
    output_dtype: ScalarType,
    quant_min: Number | None = None,
    quant_max: Number | None = None,
) -> Array:
    default_low, default_high = _integer_range(out.dtype)
    shape, within = block_axes(input.shape, block_size)
    scales = _per_block(scale, shape, within)
    # torchao multiplies by the reciprocal, which rounds differently from a division.
    reciprocal = _Stepwise(scalar_type(scale))(1 / widen(scales))
    x = input.reshape(shape)
    step = _Stepwise(common_type(x, scales))
    scaled = np.rint(step(widen(x) * reciprocal))
    if zero_point is not None and zero_point.size:
        scaled = step(scaled + operand(_per_block(zero_point, shape, within), step.dtype))
    low = default_low if quant_min is None else quant_min
    high = default_high if quant_max is None else quant_max
    return cast(np.minimum(np.maximum(scaled, low), high), out.dtype.numpy).reshape(out.shape)


@kernel("torchao.dequantize_affine.default")
def dequantize_affine(
    out: Outputs,
    input: Array,
    block_size: Sizes,
    scale: Array,
    zero_point: Array | None,
    input_dtype: ScalarType,
    quant_min: Number | None = None,
    quant_max: Number | None = None,
    output_dtype: ScalarType = FLOAT,
) -> Array:
    shape, within = block_axes(input.shape, block_size)
    step = _Stepwise(out.dtype)
    x = operand(input, out.dtype).reshape(shape)
    if zero_point is not None:
        x = step(x - _per_block(operand(zero_point, out.dtype), shape, within))
    return finish(x * _per_block(widen(scale), shape, within), out.dtype).reshape(out.shape)


@kernel("torchao.dequantize_gguf.default")
def dequantize_gguf(out: Outputs, weight: Array, ggml_type: str, output_dtype: ScalarType = BFLOAT16) -> Array:
    return packed_formats.decode_gguf(f"gguf:{ggml_type}", weight, out.shape, out.dtype.numpy)


def _nibbles(data: Array, *, low_first: bool) -> Array:
    """The 4-bit halves of bytes, as uint8 on a last axis of twice the size."""
    low, high = data & np.uint8(15), data >> np.uint8(4)
    pair = (low, high) if low_first else (high, low)
    return np.stack(pair, axis=-1).reshape(*data.shape[:-1], -1)


@kernel("torchao.dequantize_int4_tensor.default")
def dequantize_int4_tensor(
    out: Outputs,
    qdata: Array,
    scale: Array,
    zero_point: Array,
    group_size: int,
    output_dtype: ScalarType = BFLOAT16,
) -> Array:
    values = _nibbles(qdata, low_first=True).astype(np.float32)
    values = values.reshape(values.shape[0], -1, group_size)
    result = (values - widen(zero_point).T[:, :, None]) * widen(scale).T[:, :, None]
    return finish(result, out.dtype).reshape(out.shape)


# --- quantized_decomposed ---------------------------------------------------------------------------------------


def _quantized(out: Outputs, scaled: Array, low: Number, high: Number) -> Array:
    return cast(np.minimum(np.maximum(scaled, low), high), out.dtype.numpy)


def _number(value: Array | Number) -> Number:
    """The element of a one-element tensor, or the number itself."""
    return value.reshape(()).item() if isinstance(value, np.ndarray) else value


@kernel(
    "quantized_decomposed.quantize_per_tensor.default",
    "quantized_decomposed.quantize_per_tensor.tensor",
    "quantized_decomposed.quantize_per_tensor.tensor2",
)
def quantize_per_tensor(
    out: Outputs,
    input: Array,
    scale: Array | float,
    zero_point: Array | int,
    quant_min: Array | int,
    quant_max: Array | int,
    dtype: ScalarType,
) -> Array:
    scaled = widen(input) * np.float32(1.0 / _number(scale))
    return _quantized(out, np.rint(scaled) + _number(zero_point), _number(quant_min), _number(quant_max))


@kernel(
    "quantized_decomposed.dequantize_per_tensor.default",
    "quantized_decomposed.dequantize_per_tensor.tensor",
    "quantized_decomposed.dequantize_per_tensor.tensor2",
)
def dequantize_per_tensor(
    out: Outputs,
    input: Array,
    scale: Array | float,
    zero_point: Array | int,
    quant_min: Array | int,
    quant_max: Array | int,
    dtype: ScalarType,
    *,
    out_dtype: ScalarType | None = None,
) -> Array:
    centred = _Stepwise(out.dtype)(operand(input, out.dtype) - widen(number(_number(zero_point), out.dtype)))
    return finish(centred * np.float32(_number(scale)), out.dtype)


def _on_axis(parameter: Array, rank: int, axis: int) -> Array:
    shape = [1] * rank
    shape[axis] = -1
    return parameter.reshape(shape)


@kernel("quantized_decomposed.quantize_per_channel.default")
def quantize_per_channel(
    out: Outputs,
    input: Array,
    scales: Array,
    zero_points: Array,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: ScalarType,
) -> Array:
    reciprocal = 1 / widen(_on_axis(scales, input.ndim, axis))
    scaled = np.rint(widen(input) * reciprocal) + _on_axis(zero_points, input.ndim, axis)
    return _quantized(out, scaled, quant_min, quant_max)


@kernel("quantized_decomposed.dequantize_per_channel.default")
def dequantize_per_channel(
    out: Outputs,
    input: Array,
    scales: Array,
    zero_points: Array | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: ScalarType,
    *,
    out_dtype: ScalarType | None = None,
) -> Array:
    x = input
    if zero_points is not None:
        points = _on_axis(zero_points, input.ndim, axis)
        kind = common_type(x, points)
        x = np.asarray(operand(x, kind) - operand(points, kind))
    return finish(widen(x).astype(np.float32, copy=False) * widen(_on_axis(scales, input.ndim, axis)), out.dtype)


@kernel("quantized_decomposed.choose_qparams.tensor")
def choose_qparams(
    out: Outputs, input: Array, quant_min: int, quant_max: int, eps: float, dtype: ScalarType
) -> tuple[Array, Array]:
    low, high = _range_with_zero(input)
    step = _Stepwise(scalar_type(input))
    scale = np.maximum(step(step(high - low) / np.float32(quant_max - quant_min)), np.float32(eps))
    # PyTorch goes by way of int32, where the difference may wrap, and clamps afterwards.
    below = np.asarray(np.int32(quant_min) - cast(np.rint(low / scale), np.dtype(np.int32)))
    zero_point = np.minimum(np.maximum(below.astype(np.int64), quant_min), quant_max)
    return scale.astype(np.float64).reshape(1), zero_point.reshape(1)


@kernel("quantized_decomposed.choose_qparams_symmetric.tensor")
def choose_qparams_symmetric(
    out: Outputs, input: Array, quant_min: int, quant_max: int, eps: float, dtype: ScalarType
) -> tuple[Array, Array]:
    low, high = _range_with_zero(input)
    step = _Stepwise(scalar_type(input))
    scale = np.maximum(step(np.maximum(-low, high) / np.float32((quant_max - quant_min) / 2)), np.float32(eps))
    middle = 128 if ScalarType(dtype) is ScalarType.BYTE else 0
    return scale.astype(np.float64).reshape(1), np.array([middle])


def _range_with_zero(input: Array) -> tuple[Array, Array]:
    """The least and the largest element, or 0 where that lies outside."""
    x = widen(input)
    return np.minimum(x.min(), np.float32(0)), np.maximum(x.max(), np.float32(0))


@kernel("quantized_decomposed.choose_qparams_per_token.default")
def choose_qparams_per_token(out: Outputs, input: Array, dtype: ScalarType) -> tuple[Array, Array]:
    largest = np.abs(widen(input)).max(axis=-1, keepdims=True)
    kind = scalar_type(input)
    # Half is computed in float32, since its range is narrow; bfloat16 is not.
    step = _Stepwise(FLOAT if kind is ScalarType.HALF else kind)
    least = step(np.asarray(1e-5, largest.dtype))
    return step(step(np.maximum(largest, least)) / 127).astype(np.float64), np.zeros(out[1].shape, np.int64)


@kernel(
    "quantized_decomposed.choose_qparams_per_token_asymmetric.default",
    "quantized_decomposed._choose_qparams_per_token_asymmetric_impl.default",
)
def choose_qparams_per_token_asymmetric(out: Outputs, input: Array, dtype: ScalarType) -> tuple[Array, Array]:
    x = widen(input)
    step = _Stepwise(scalar_type(input))
    low = np.minimum(x.min(axis=-1, keepdims=True), 0)
    high = np.maximum(x.max(axis=-1, keepdims=True), 0)
    scale = step(step(high - low) / 255)
    scale = np.maximum(scale, step(np.asarray(np.finfo(np.float32).eps, scale.dtype)))
    from_low, from_high = step(low / scale), step(high / scale)
    # The end that an integer zero point moves less decides.
    errors = step(step(-128 + from_low) + step(127 + from_high))
    zero_point = np.where(errors > 0, step(-128 - from_low), step(127 - from_high))
    zero_point = np.rint(np.minimum(np.maximum(zero_point, -128), 127))
    return scale.astype(np.float64), cast(zero_point, np.dtype(np.int64))


@kernel("quantized_decomposed.quantize_per_token.default")
def quantize_per_token(
    out: Outputs,
    input: Array,
    scales: Array,
    zero_points: Array,
    quant_min: int,
    quant_max: int,
    dtype: ScalarType,
) -> Array:
    kind = common_type(input, scales)
    step = _Stepwise(kind)
    reciprocal = _Stepwise(scalar_type(scales))(1 / widen(scales))
    scaled = step(step(widen(input) * reciprocal) + operand(zero_points, kind))
    return _quantized(out, np.rint(scaled), quant_min, quant_max)


@kernel("quantized_decomposed.dequantize_per_token.default")
def dequantize_per_token(
    out: Outputs,
    input: Array,
    scales: Array,
    zero_points: Array,
    quant_min: int,
    quant_max: int,
    dtype: ScalarType,
    output_dtype: ScalarType,
) -> Array:
    difference = widen(input).astype(np.float32) - widen(zero_points).astype(np.float32)
    return finish(difference * widen(scales), out.dtype)


@kernel("quantized_decomposed.quantize_per_channel_group.default")
def quantize_per_channel_group(
    out: Outputs,
    input: Array,
    scales: Array,
    zero_points: Array,
    quant_min: int,
    quant_max: int,
    dtype: ScalarType,
    group_size: int,
) -> Array:
    rows = widen(input).reshape(-1, group_size)
    scaled = np.rint(rows * (1 / widen(scales).reshape(-1, 1)) + zero_points.reshape(-1, 1))
    return _quantized(out, scaled, quant_min, quant_max).reshape(out.shape)


@kernel("quantized_decomposed.dequantize_per_channel_group.default")
def dequantize_per_channel_group(
    out: Outputs,
    input: Array,
    scales: Array,
    zero_points: Array | None,
    quant_min: int,
    quant_max: int,
    dtype: ScalarType,
    group_size: int,
    output_dtype: ScalarType,
) -> Array:
    rows = input.reshape(-1, group_size).astype(np.float32)
    if zero_points is not None:
        rows = rows - widen(zero_points).reshape(-1, 1).astype(np.float32)
    return finish(rows * widen(scales).reshape(-1, 1), out.dtype).reshape(out.shape)


@kernel("quantized_decomposed.convert_element_type.no_fuse")
def convert_element_type(out: Outputs, input: Array, dtype: ScalarType) -> Array:
    return cast(input, out.dtype.numpy)


@kernel("quantized_decomposed.embedding_4bit.default", "quantized_decomposed.embedding_4bit.dtype")
def embedding_4bit(
    out: Outputs,
    weight: Array,
    weight_scales: Array,
    weight_zero_points: Array | None,
    weight_quant_min: int,
    weight_quant_max: int,
    indices: Array,
    *,
    dtype: ScalarType | None = None,
) -> Array:
    places = checked(indices, weight.shape[0], 0, negative=False)
    # Unlike in packed constants, the even element is in the high half of its byte.
    values = _nibbles(weight[places], low_first=False).astype(np.float32) - 8
    scales = widen(weight_scales)
    groups = scales.reshape(weight.shape[0], -1)[places]
    values = values.reshape(*places.shape, groups.shape[-1], -1)
    if weight_zero_points is not None:
        values = values - widen(weight_zero_points).reshape(weight.shape[0], -1)[places][..., None]
    return finish(values * groups[..., None], out.dtype).reshape(out.shape)
