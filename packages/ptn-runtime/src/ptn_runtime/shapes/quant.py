"""Shape rules of the family `quant`: choosing, applying and undoing quantisation."""

from __future__ import annotations

from ptn_format.dtypes import ScalarType
from ptn_format.graph import AffineGroup, PackedQuant
from ptn_format.quant import logical_dtype

from ptn_runtime.shapes import Number, Tensor, TensorSpec, shape_rule
from ptn_runtime.shapes._broadcast import element_count, normalize_axis, require

Sizes = tuple[int, ...]
FLOAT = ScalarType.FLOAT
BFLOAT16 = ScalarType.BFLOAT16


# --- constants that the file keeps packed -----------------------------------------------------------------------


@shape_rule("ptn.unpack_affine.default")
def unpack_affine(packed: Tensor, scheme: AffineGroup, sizes: Sizes) -> TensorSpec:
    return TensorSpec(logical_dtype(scheme), tuple(sizes))


@shape_rule("ptn.dequantize_packed.default")
def dequantize_packed(
    packed: Tensor,
    scheme: AffineGroup | PackedQuant,
    sizes: Sizes,
    scale: Tensor | None = None,
    zero_point: Tensor | None = None,
    dtype: ScalarType = FLOAT,
) -> TensorSpec:
    require(
        scale is not None or isinstance(scheme, PackedQuant), "an affine constant needs its scale; blocks hold theirs"
    )
    return TensorSpec(ScalarType(dtype), tuple(sizes))


# --- torchao ----------------------------------------------------------------------------------------------------


def block_axes(sizes: Sizes, block_size: Sizes) -> tuple[Sizes, Sizes]:
    """How a tensor divides into blocks.

    Args:
        sizes: the tensor's shape.
        block_size: elements per block on each axis.

    Returns:
        The shape with each divided axis as (blocks, elements of a block), and the axes of that shape that lie within
        a block.

    Raises:
        ValueError: an axis is not a whole number of blocks.
    """
    if len(sizes) != len(block_size):
        raise ValueError(f"block_size {list(block_size)} does not fit the shape {list(sizes)}")
    shape: list[int] = []
    within: list[int] = []
    for size, block in zip(sizes, block_size, strict=True):
        if block in (1, size):
            if block != 1:
                within.append(len(shape))
            shape.append(size)
        else:
            if not (block > 0 and size % block == 0):
                raise ValueError(f"{size} elements do not divide into blocks of {block}")
            within.append(len(shape) + 1)
            shape += [size // block, block]
    return tuple(shape), tuple(within)


@shape_rule("torchao.choose_qparams_affine.default")
def choose_qparams_affine(
    input: Tensor,
    mapping_type: str,
    block_size: Sizes,
    target_dtype: ScalarType,
    quant_min: Number | None = None,
    quant_max: Number | None = None,
    eps: float | None = None,
    scale_dtype: ScalarType | None = None,
    zero_point_dtype: ScalarType | None = None,
    keepdim: bool = False,
) -> tuple[TensorSpec, TensorSpec]:
    known = ("SYMMETRIC", "SYMMETRIC_NO_CLIPPING_ERR", "ASYMMETRIC")
    if mapping_type not in known:
        raise ValueError(f"mapping_type must be one of {', '.join(known)}, got {mapping_type!r}")
    if not (input.dtype.is_floating_point):
        raise ValueError(f"input must be floating point, got {input.dtype.torch_name}")
    shape, within = block_axes(input.shape, block_size)
    if keepdim:
        result = tuple(size // block for size, block in zip(input.shape, block_size, strict=True))
    else:
        result = tuple(size for axis, size in enumerate(shape) if axis not in within)
    # Only the asymmetric mapping has a default of its own; the others keep the scale's working dtype.
    own = ScalarType.INT if mapping_type == "ASYMMETRIC" else input.dtype
    return (
        TensorSpec(input.dtype if scale_dtype is None else ScalarType(scale_dtype), result),
        TensorSpec(own if zero_point_dtype is None else ScalarType(zero_point_dtype), result),
    )


def _require_blocks(input: Tensor, block_size: Sizes, scale: Tensor, zero_point: Tensor | None) -> None:
    shape, within = block_axes(input.shape, block_size)
    count = element_count([size for axis, size in enumerate(shape) if axis not in within])
    if element_count(scale.shape) != count:
        raise ValueError(f"there are {count} blocks but the scale is {list(scale.shape)}")
    if zero_point is not None and element_count(zero_point.shape) not in (0, count):
        raise ValueError(f"there are {count} blocks but the zero point is {list(zero_point.shape)}")


@shape_rule("torchao.quantize_affine.default")
def quantize_affine(
    input: Tensor,
    block_size: Sizes,
    scale: Tensor,
    zero_point: Tensor | None,
    output_dtype: ScalarType,
    quant_min: Number | None = None,
    quant_max: Number | None = None,
) -> TensorSpec:
    _require_blocks(input, block_size, scale, zero_point)
    if not (input.dtype.is_floating_point):
        raise ValueError(f"input must be floating point, got {input.dtype.torch_name}")
    return TensorSpec(ScalarType(output_dtype), input.shape)


@shape_rule("torchao.dequantize_affine.default")
def dequantize_affine(
    input: Tensor,
    block_size: Sizes,
    scale: Tensor,
    zero_point: Tensor | None,
    input_dtype: ScalarType,
    quant_min: Number | None = None,
    quant_max: Number | None = None,
    output_dtype: ScalarType = FLOAT,
) -> TensorSpec:
    _require_blocks(input, block_size, scale, zero_point)
    result = ScalarType(output_dtype)
    if not (result.is_floating_point):
        raise ValueError(f"output_dtype must be floating point, got {result.torch_name}")
    return TensorSpec(result, input.shape)


_GGUF_BLOCKS = {"q4_k": (256, 144), "q5_k": (256, 176), "q6_k": (256, 210)}


@shape_rule("torchao.dequantize_gguf.default")
def dequantize_gguf(weight: Tensor, ggml_type: str, output_dtype: ScalarType = BFLOAT16) -> TensorSpec:
    if ggml_type not in _GGUF_BLOCKS:
        raise ValueError(f"ggml_type must be one of {', '.join(_GGUF_BLOCKS)}, got {ggml_type!r}")
    elements, nbytes = _GGUF_BLOCKS[ggml_type]
    if not (len(weight.shape) == 2 and weight.shape[1] % nbytes == 0):
        raise ValueError(f"weight must be rows of blocks of {nbytes} bytes, got {list(weight.shape)}")
    return TensorSpec(ScalarType(output_dtype), (weight.shape[0], weight.shape[1] // nbytes * elements))


@shape_rule("torchao.dequantize_int4_tensor.default")
def dequantize_int4_tensor(
    qdata: Tensor, scale: Tensor, zero_point: Tensor, group_size: int, output_dtype: ScalarType = BFLOAT16
) -> TensorSpec:
    if len(qdata.shape) != 2:
        raise ValueError(f"qdata must be [N, K / 2], got {list(qdata.shape)}")
    rows, columns = qdata.shape[0], 2 * qdata.shape[1]
    expected = (columns // group_size, rows)
    for name, tensor in (("scale", scale), ("zero_point", zero_point)):
        if tensor.shape != expected:
            raise ValueError(f"{name} must be {list(expected)}, got {list(tensor.shape)}")
    return TensorSpec(ScalarType(output_dtype), (rows, columns))


# --- quantized_decomposed ---------------------------------------------------------------------------------------


@shape_rule("quantized_decomposed.quantize_per_tensor.default")
def quantize_per_tensor(
    input: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: ScalarType
) -> TensorSpec:
    return TensorSpec(ScalarType(dtype), input.shape)


@shape_rule("quantized_decomposed.quantize_per_tensor.tensor")
def quantize_per_tensor_tensor(
    input: Tensor, scale: Tensor, zero_point: Tensor, quant_min: int, quant_max: int, dtype: ScalarType
) -> TensorSpec:
    return TensorSpec(ScalarType(dtype), input.shape)


@shape_rule("quantized_decomposed.quantize_per_tensor.tensor2")
def quantize_per_tensor_tensor2(
    input: Tensor, scale: Tensor, zero_point: Tensor, quant_min: Tensor, quant_max: Tensor, dtype: ScalarType
) -> TensorSpec:
    return TensorSpec(ScalarType(dtype), input.shape)


def _dequantized(input: Tensor, dtype: ScalarType, out_dtype: ScalarType | None) -> TensorSpec:
    if input.dtype is not ScalarType(dtype):
        raise ValueError(f"input is {input.dtype.torch_name}, dtype says {ScalarType(dtype).torch_name}")
    return TensorSpec(FLOAT if out_dtype is None else ScalarType(out_dtype), input.shape)


@shape_rule("quantized_decomposed.dequantize_per_tensor.default")
def dequantize_per_tensor(
    input: Tensor,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
    dtype: ScalarType,
    *,
    out_dtype: ScalarType | None = None,
) -> TensorSpec:
    return _dequantized(input, dtype, out_dtype)


@shape_rule("quantized_decomposed.dequantize_per_tensor.tensor")
def dequantize_per_tensor_tensor(
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
    dtype: ScalarType,
    *,
    out_dtype: ScalarType | None = None,
) -> TensorSpec:
    return _dequantized(input, dtype, out_dtype)


@shape_rule("quantized_decomposed.dequantize_per_tensor.tensor2")
def dequantize_per_tensor_tensor2(
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: Tensor,
    quant_max: Tensor,
    dtype: ScalarType,
    *,
    out_dtype: ScalarType | None = None,
) -> TensorSpec:
    return _dequantized(input, dtype, out_dtype)


def _require_channels(input: Tensor, scales: Tensor, axis: int) -> None:
    channels = input.shape[normalize_axis(axis, len(input.shape))]
    if element_count(scales.shape) != channels:
        raise ValueError(f"{channels} channels but scales {list(scales.shape)}")


@shape_rule("quantized_decomposed.quantize_per_channel.default")
def quantize_per_channel(
    input: Tensor, scales: Tensor, zero_points: Tensor, axis: int, quant_min: int, quant_max: int, dtype: ScalarType
) -> TensorSpec:
    _require_channels(input, scales, axis)
    return TensorSpec(ScalarType(dtype), input.shape)


@shape_rule("quantized_decomposed.dequantize_per_channel.default")
def dequantize_per_channel(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: ScalarType,
    *,
    out_dtype: ScalarType | None = None,
) -> TensorSpec:
    _require_channels(input, scales, axis)
    return _dequantized(input, dtype, out_dtype)


@shape_rule("quantized_decomposed.choose_qparams.tensor", "quantized_decomposed.choose_qparams_symmetric.tensor")
def choose_qparams(
    input: Tensor, quant_min: int, quant_max: int, eps: float, dtype: ScalarType
) -> tuple[TensorSpec, TensorSpec]:
    _require_reduced_or_single(input)
    require(quant_min < quant_max, f"quant_min {quant_min} must be smaller than quant_max {quant_max}")
    require(element_count(input.shape) > 0, "no range can be chosen for a tensor without elements")
    return TensorSpec(ScalarType.DOUBLE, (1,)), TensorSpec(ScalarType.LONG, (1,))


@shape_rule("quantized_decomposed.choose_qparams_per_token.default")
def choose_qparams_per_token(input: Tensor, dtype: ScalarType) -> tuple[TensorSpec, TensorSpec]:
    """PyTorch declares these types to `torch.export`, although eager mode gives narrower ones: files hold these."""
    if ScalarType(dtype) is not ScalarType.CHAR:
        raise ValueError(f"dtype must be int8, got {ScalarType(dtype).torch_name}")
    return _token_parameters(input)


@shape_rule(
    "quantized_decomposed.choose_qparams_per_token_asymmetric.default",
    "quantized_decomposed._choose_qparams_per_token_asymmetric_impl.default",
)
def choose_qparams_per_token_asymmetric(input: Tensor, dtype: ScalarType) -> tuple[TensorSpec, TensorSpec]:
    return _token_parameters(input)


def _require_reduced_or_single(input: Tensor) -> None:
    if input.dtype not in (FLOAT, ScalarType.HALF, BFLOAT16):
        raise ValueError(f"input must be float32, float16 or bfloat16, got {input.dtype.torch_name}")


def _token_parameters(input: Tensor) -> tuple[TensorSpec, TensorSpec]:
    if not input.dtype.is_floating_point:
        raise ValueError(f"input must be floating point, got {input.dtype.torch_name}")
    require(len(input.shape) > 0 and input.shape[-1] > 0, f"{list(input.shape)} has no rows of elements")
    rows = (*input.shape[:-1], 1)
    return TensorSpec(ScalarType.DOUBLE, rows), TensorSpec(ScalarType.LONG, rows)


@shape_rule("quantized_decomposed.quantize_per_token.default")
def quantize_per_token(
    input: Tensor, scales: Tensor, zero_points: Tensor, quant_min: int, quant_max: int, dtype: ScalarType
) -> TensorSpec:
    return TensorSpec(ScalarType(dtype), input.shape)


@shape_rule("quantized_decomposed.dequantize_per_token.default")
def dequantize_per_token(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    quant_min: int,
    quant_max: int,
    dtype: ScalarType,
    output_dtype: ScalarType,
) -> TensorSpec:
    return TensorSpec(ScalarType(output_dtype), input.shape)


@shape_rule("quantized_decomposed.quantize_per_channel_group.default")
def quantize_per_channel_group(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    quant_min: int,
    quant_max: int,
    dtype: ScalarType,
    group_size: int,
) -> TensorSpec:
    _require_groups(input, group_size)
    return TensorSpec(ScalarType(dtype), input.shape)


@shape_rule("quantized_decomposed.dequantize_per_channel_group.default")
def dequantize_per_channel_group(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    quant_min: int,
    quant_max: int,
    dtype: ScalarType,
    group_size: int,
    output_dtype: ScalarType,
) -> TensorSpec:
    _require_groups(input, group_size)
    return TensorSpec(ScalarType(output_dtype), input.shape)


def _require_groups(input: Tensor, group_size: int) -> None:
    if not (len(input.shape) == 2 and group_size > 0 and input.shape[-1] % group_size == 0):
        raise ValueError(f"input {list(input.shape)} is not a matrix of whole groups of {group_size}")


@shape_rule("quantized_decomposed.convert_element_type.no_fuse")
def convert_element_type(input: Tensor, dtype: ScalarType) -> TensorSpec:
    return TensorSpec(ScalarType(dtype), input.shape)


def _embedding_4bit(weight: Tensor, indices: Tensor, dtype: ScalarType) -> TensorSpec:
    if not (len(weight.shape) == 2 and weight.dtype is ScalarType.BYTE):
        raise ValueError(f"weight must be uint8 [V, D / 2], got {weight.dtype.torch_name}{list(weight.shape)}")
    return TensorSpec(dtype, (*indices.shape, 2 * weight.shape[1]))


@shape_rule("quantized_decomposed.embedding_4bit.default")
def embedding_4bit(
    weight: Tensor,
    weight_scales: Tensor,
    weight_zero_points: Tensor | None,
    weight_quant_min: int,
    weight_quant_max: int,
    indices: Tensor,
) -> TensorSpec:
    return _embedding_4bit(weight, indices, weight_scales.dtype)


@shape_rule("quantized_decomposed.embedding_4bit.dtype")
def embedding_4bit_dtype(
    weight: Tensor,
    weight_scales: Tensor,
    weight_zero_points: Tensor | None,
    weight_quant_min: int,
    weight_quant_max: int,
    indices: Tensor,
    *,
    dtype: ScalarType | None = None,
) -> TensorSpec:
    return _embedding_4bit(weight, indices, FLOAT if dtype is None else ScalarType(dtype))
