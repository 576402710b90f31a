"""Quantised constants: packing and unpacking of group-wise affine integers, and decoding of GGUF blocks.

An `AffineGroup` constant holds unsigned integers `u` of b bits, `value = scale * ((u + quant_min) - zero_point)`.
They form one stream of bits over the whole tensor in row-major order, lowest bit first: element i takes the bits
`b*i .. b*i + b - 1`. With 4 bits the even element is in the low half of its byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ptn_format.dtypes import ScalarType
from ptn_format.errors import ConstantError
from ptn_format.gguf_blocks import GGUF_TYPES, GGUFType, decode_gguf, gguf_type
from ptn_format.graph import AffineGroup, PackedQuant, QuantScheme

__all__ = [
    "GGUF_TYPES",
    "GGUFType",
    "affine_bits",
    "decode_gguf",
    "dequantize_affine",
    "gguf_type",
    "group_shape",
    "logical_dtype",
    "pack_affine",
    "packed_nbytes",
    "packed_shape",
    "unpack_affine",
]

Array = np.ndarray[Any, np.dtype[Any]]

_GROUP = 8  # elements; they take a whole number of bytes, as many as an element has bits


def affine_bits(scheme: AffineGroup) -> int:
    """Bits of one packed element.

    Raises:
        ConstantError: the range does not have 2, 4, 8, ... or 256 levels.
    """
    levels = scheme.quant_max - scheme.quant_min + 1
    bits = levels.bit_length() - 1
    if not 1 <= bits <= 8 or levels != 1 << bits:
        raise ConstantError(
            f"the range {scheme.quant_min}..{scheme.quant_max} has {levels} levels; packing needs a power of two "
            "from 2 to 256"
        )
    return bits


def packed_nbytes(scheme: QuantScheme, sizes: Sequence[int]) -> int:
    """Bytes of a packed constant of logical shape `sizes`.

    Raises:
        ConstantError: the scheme is not known, or does not fit the shape.
    """
    if isinstance(scheme, PackedQuant):
        return prod(gguf_type(scheme.codec).packed_shape(sizes))
    return (prod(sizes) * affine_bits(scheme) + 7) // 8


def packed_shape(scheme: QuantScheme, sizes: Sequence[int]) -> tuple[int, ...]:
    """The shape of the stored bytes: one row of bytes per row where a row is whole bytes, else all in one axis.

    Raises:
        ConstantError: the scheme is not known, or does not fit the shape.
    """
    if isinstance(scheme, PackedQuant):
        return gguf_type(scheme.codec).packed_shape(sizes)
    bits = affine_bits(scheme)
    if sizes and sizes[-1] * bits % 8 == 0:
        return (*sizes[:-1], sizes[-1] * bits // 8)
    return (packed_nbytes(scheme, sizes),)


def group_shape(scheme: AffineGroup, sizes: Sequence[int]) -> tuple[int, ...]:
    """The shape of scales and zero points: one for `group_size` elements of the last axis, or for all where it is 0.

    Raises:
        ConstantError: the last axis is not a whole number of groups.
    """
    if not sizes:
        raise ConstantError("a group-wise quantised constant needs at least one axis; its shape is ()")
    last = sizes[-1]
    if scheme.group_size < 0 or (scheme.group_size and last % scheme.group_size):
        raise ConstantError(
            f"the last axis of the shape {tuple(sizes)} is not a whole number of groups of {scheme.group_size} elements"
        )
    return (*sizes[:-1], last // scheme.group_size if scheme.group_size else 1)


def logical_dtype(scheme: AffineGroup) -> ScalarType:
    """The smallest of int8, uint8 and int16 that holds the integers `quant_min..quant_max`."""
    if scheme.quant_min >= -128 and scheme.quant_max <= 127:
        return ScalarType.CHAR
    if scheme.quant_min >= 0 and scheme.quant_max <= 255:
        return ScalarType.BYTE
    return ScalarType.SHORT


def pack_affine(values: Array, scheme: AffineGroup) -> Array:
    """Packs integers.

    Args:
        values: integers from `scheme.quant_min` to `scheme.quant_max`, of the logical shape.
        scheme: gives the range; scales are not looked at.

    Returns:
        uint8 of `packed_shape(scheme, values.shape)`. Bits beyond the last element are 0.

    Raises:
        ConstantError: a value is out of range or not an integer.
    """
    bits = affine_bits(scheme)
    if not np.issubdtype(values.dtype, np.integer):
        raise ConstantError(f"only integers can be packed, not {values.dtype}")
    if values.size and (values.min() < scheme.quant_min or values.max() > scheme.quant_max):
        raise ConstantError(
            f"values from {values.min()} to {values.max()} do not fit the range {scheme.quant_min}..{scheme.quant_max}"
        )
    groups = -(-values.size // _GROUP)
    unsigned = np.zeros((groups, _GROUP), np.uint8)
    # Modulo 256, which wraps to the right unsigned value whatever the sign and width of the input.
    unsigned.reshape(-1)[: values.size] = values.reshape(-1).astype(np.uint8) - np.uint8(scheme.quant_min & 255)
    words = np.zeros(groups, np.uint64)
    for i in range(_GROUP):
        words |= unsigned[:, i].astype(np.uint64) << np.uint64(bits * i)
    packed = np.empty((groups, bits), np.uint8)
    for i in range(bits):
        packed[:, i] = (words >> np.uint64(8 * i)).astype(np.uint8)
    return packed.reshape(-1)[: packed_nbytes(scheme, values.shape)].reshape(packed_shape(scheme, values.shape))


def unpack_affine(packed: Array, scheme: AffineGroup, sizes: Sequence[int]) -> Array:
    """Unpacks integers.

    Args:
        packed: uint8; the constant as stored, of any shape.
        scheme: gives the range; scales are not looked at.
        sizes: the logical shape.

    Returns:
        The logical integers `u + quant_min`, of shape `sizes` and dtype `logical_dtype(scheme)`.

    Raises:
        ConstantError: the bytes do not fit the shape.
    """
    bits = affine_bits(scheme)
    count, nbytes = prod(sizes), packed_nbytes(scheme, sizes)
    if packed.dtype != np.uint8 or packed.size != nbytes:
        raise ConstantError(
            f"{bits}-bit integers of shape {tuple(sizes)} take {nbytes} bytes, not {packed.size} elements of "
            f"{packed.dtype}"
        )
    groups = -(-count // _GROUP)
    stored = np.zeros((groups, bits), np.uint8)
    stored.reshape(-1)[:nbytes] = packed.reshape(-1)
    words = np.zeros(groups, np.uint64)
    for i in range(bits):
        words |= stored[:, i].astype(np.uint64) << np.uint64(8 * i)
    dtype = logical_dtype(scheme).numpy
    values = np.empty((groups, _GROUP), dtype)
    mask = np.uint64((1 << bits) - 1)
    for i in range(_GROUP):
        unsigned = (words >> np.uint64(bits * i)) & mask
        values[:, i] = unsigned.astype(np.int16) + np.int16(scheme.quant_min)
    return values.reshape(-1)[:count].reshape(tuple(sizes))


def dequantize_affine(
    packed: Array,
    scheme: AffineGroup,
    sizes: Sequence[int],
    scale: Array,
    zero_point: Array | None = None,
    dtype: DTypeLike | None = None,
) -> Array:
    """Decodes a packed constant to values, with the roundings of torchao's `dequantize_affine`.

    Args:
        packed: uint8; the constant as stored, of any shape.
        scheme: range and group size.
        sizes: the logical shape.
        scale: one floating-point number per group, in row-major order; of any shape.
        zero_point: one integer or floating-point number per group likewise; None means 0.
        dtype: of the result; that of `scale` where it is left out.

    Returns:
        `scale * ((u + quant_min) - zero_point)` of shape `sizes`. The difference is formed in `dtype`, the product
        in the wider of `dtype` and the scale's dtype.

    Raises:
        ConstantError: the sizes do not fit.
    """
    groups = group_shape(scheme, sizes)
    out = np.dtype(scale.dtype if dtype is None else dtype)
    wide = np.float64 if np.float64 in (out, scale.dtype) else np.float32
    product = out if out == scale.dtype else np.dtype(wide)
    values = unpack_affine(packed, scheme, sizes).astype(out).reshape(*groups, scheme.group_size or sizes[-1])
    if zero_point is not None:
        values -= _per_group(zero_point, groups, "zero points").astype(out)
    with np.errstate(over="ignore", invalid="ignore"):  # a scale may be infinite or NaN
        scaled = values.astype(product, copy=False) * _per_group(scale, groups, "scales").astype(product, copy=False)
        return np.asarray(scaled.astype(out, copy=False).reshape(tuple(sizes)))


def _per_group(parameters: Array, groups: tuple[int, ...], what: str) -> Array:
    if parameters.size != prod(groups):
        raise ConstantError(f"there are {parameters.size} {what} for {prod(groups)} groups")
    return parameters.reshape(*groups, 1)
