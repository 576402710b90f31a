"""Decoding of the quantised blocks of GGUF files (ggml's block types).

A row of a tensor is a sequence of blocks; each block holds a fixed count of elements. The layouts are those of
`ggml-common.h`; the products are formed in single precision in ggml's own order, so that the values are equal to
those of ggml's scalar code bit for bit. In every nibble-packed group of 2n elements byte j holds element j in its
low and element n + j in its high half.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ptn_format.errors import ConstantError

__all__ = ["GGUF_TYPES", "GGUFType", "decode_gguf", "gguf_type"]

Array = np.ndarray[Any, np.dtype[Any]]

_PREFIX = "gguf:"
_CHUNK_ELEMENTS = 1 << 20
_IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
_E2M1_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
_BITS = np.arange(8, dtype=np.uint8)
_PAIRS = np.array([0, 2, 4, 6], np.uint8)
_NIBBLES = np.array([0, 4], np.uint8)
_POWERS_OF_3 = np.array([1, 3, 9, 27, 81], np.uint8)


@dataclass(frozen=True, slots=True)
class GGUFType:
    """One block type.

    Attributes:
        name: as in codecs, such as `q4_k`.
        elements: elements of one block.
        nbytes: bytes of one block.
        ggml_type: the number of the type in ggml's `enum ggml_type`.
    """

    name: str
    elements: int
    nbytes: int
    ggml_type: int

    def packed_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the bytes of a tensor of logical `shape`.

        Raises:
            ConstantError: the last axis is not a whole number of blocks.
        """
        if not shape or shape[-1] % self.elements:
            raise ConstantError(
                f"{self.name} holds blocks of {self.elements} elements along the last axis, which the shape "
                f"{tuple(shape)} does not divide into"
            )
        return (*shape[:-1], shape[-1] // self.elements * self.nbytes)


def gguf_type(codec: str) -> GGUFType:
    """Returns the type that a codec such as `gguf:q4_k` (or `gguf:q4k`) names.

    Raises:
        ConstantError: there is no such type.
    """
    name = codec.removeprefix(_PREFIX).lower()
    found = _BY_PLAIN_NAME.get(name.replace("_", ""))
    if not codec.startswith(_PREFIX) or found is None:
        raise ConstantError(f"the codec {codec!r} is not known; known are gguf: with one of {', '.join(GGUF_TYPES)}")
    return found


def decode_gguf(codec: str, blocks: Array, shape: Sequence[int], dtype: DTypeLike = np.float32) -> Array:
    """Decodes GGUF blocks to values.

    Args:
        codec: the type, such as `gguf:q4_k`; the underscore may be left out.
        blocks: uint8; the blocks of all rows, in the shape `(*shape[:-1], bytes of a row)` or any other of that size.
        shape: the logical shape; the last axis is a whole number of blocks.
        dtype: of the result. The values are formed in float32 and then rounded once.

    Returns:
        An array of `shape`.

    Raises:
        ConstantError: the codec is not known, the sizes do not fit, or the type needs the `gguf` package (see the
            extra `ptn-format[gguf]`) and that is not installed.
    """
    kind = gguf_type(codec)
    expected = prod(kind.packed_shape(shape))
    if blocks.dtype != np.uint8 or blocks.size != expected:
        raise ConstantError(
            f"{kind.name} of shape {tuple(shape)} takes {expected} bytes, not {blocks.size} elements of {blocks.dtype}"
        )
    decode = _DECODERS.get(kind.name) or _package_decoder(kind)
    rows = np.ascontiguousarray(blocks).reshape(-1, kind.nbytes)
    values = np.empty((len(rows), kind.elements), dtype)
    step = _CHUNK_ELEMENTS // kind.elements
    with np.errstate(all="ignore"):  # scales of inf and NaN are legal
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            values[start : start + step] = decode(part).reshape(len(part), kind.elements)
    return values.reshape(tuple(shape))


def _package_decoder(kind: GGUFType) -> Callable[[Array], Array]:
    """The decoder of a type whose code books are large: those of the `gguf` package."""
    try:
        from gguf import GGMLQuantizationType, quants  # optional, and slow to import
    except ImportError as error:
        raise ConstantError(
            f"{kind.name} is decoded with the code books of the `gguf` package, which cannot be imported ({error}). "
            "Install it: pip install 'ptn-format[gguf]'"
        ) from error
    return lambda blocks: np.asarray(quants.dequantize(blocks, GGMLQuantizationType(kind.ggml_type)))


def _half(blocks: Array, offset: int) -> Array:
    """The half-precision number at byte `offset` of each block, as float32 of shape (n, 1)."""
    return blocks[:, offset : offset + 2].view("<f2").astype(np.float32)


def _fields(data: Array, shifts: Array, mask: int) -> Array:
    """Bit fields of bytes: (..., k) gives (..., shifts, k)."""
    return (data[..., None, :] >> shifts[:, None]) & np.uint8(mask)


def _nibbles(data: Array) -> Array:
    """(..., k) bytes give (..., 2k) elements: all low halves, then all high ones."""
    return _fields(data, _NIBBLES, 15).reshape(*data.shape[:-1], -1)


def _fifth_bits(data: Array) -> Array:
    """(n, 4) bytes give the 32 bits of each little-endian word, as values 0 and 16."""
    return np.unpackbits(data, axis=1, bitorder="little") << np.uint8(4)


def _column(groups: Array) -> Array:
    """One number per group, shaped to be spread over the group's elements."""
    return groups.reshape(*groups.shape, 1)


def _q1_0(blocks: Array) -> Array:
    bits = np.unpackbits(blocks[:, 2:18], axis=1, bitorder="little")
    return _half(blocks, 0) * (bits.astype(np.float32) * 2 - 1)


def _q2_0(blocks: Array) -> Array:
    quants = (blocks[:, 2:18, None] >> _PAIRS) & np.uint8(3)  # four neighbours in one byte, lowest bits first
    return _half(blocks, 0) * (quants.reshape(-1, 64).astype(np.float32) - 1)


def _q4_0(blocks: Array) -> Array:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _q4_1(blocks: Array) -> Array:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]).astype(np.float32) + _half(blocks, 2)


def _q5_0(blocks: Array) -> Array:
    quants = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return _half(blocks, 0) * (quants.astype(np.float32) - 16)


def _q5_1(blocks: Array) -> Array:
    quants = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return _half(blocks, 0) * quants.astype(np.float32) + _half(blocks, 2)


def _q8_0(blocks: Array) -> Array:
    return _half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _q2_k(blocks: Array) -> Array:
    # scales 16 (low half scale, high half minimum) | quants 64 | d | dmin
    scales = blocks[:, :16]
    scale: Array = _half(blocks, 80) * (scales & 15).astype(np.float32)
    minimum = _half(blocks, 82) * (scales >> 4).astype(np.float32)
    quants = _fields(blocks[:, 16:80].reshape(-1, 2, 32), _PAIRS, 3).reshape(-1, 16, 16)
    return _column(scale) * quants.astype(np.float32) - _column(minimum)


def _q3_k(blocks: Array) -> Array:
    # high bits 32 | low bits 64 | scales 12 | d
    low = _fields(blocks[:, 32:96].reshape(-1, 2, 32), _PAIRS, 3).reshape(-1, 16, 16)
    high = _fields(blocks[:, :32], _BITS, 1).reshape(-1, 16, 16)
    quants: Array = low.astype(np.float32) - 4 * (1 - high.astype(np.float32))  # a cleared high bit subtracts
    scales = _nibbles(blocks[:, 96:104]) | _fields(blocks[:, 104:108], _PAIRS, 3).reshape(-1, 16) << np.uint8(4)
    return _column(_half(blocks, 108) * (scales.astype(np.float32) - 32)) * quants


def _k_scales(blocks: Array) -> tuple[Array, Array]:
    """The 8 scales and 8 minima of q4_k and q5_k, times `d` and `dmin`: each (n, 8, 1).

    12 bytes hold 16 numbers of 6 bits: the first four scales and minima in the low bits of bytes 0..7, the others'
    low halves in bytes 8..11 and their upper two bits on top of bytes 0..7.
    """
    first, second, rest = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([first & 63, (rest & 15) | (first >> 6) << 4], axis=1)
    minima = np.concatenate([second & 63, (rest >> 4) | (second >> 6) << 4], axis=1)
    scale = _half(blocks, 0) * scales.astype(np.float32)
    minimum = _half(blocks, 2) * minima.astype(np.float32)
    return _column(scale), _column(minimum)


def _q4_k(blocks: Array) -> Array:
    # d | dmin | scales 12 | quants 128
    scale, minimum = _k_scales(blocks)
    quants = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return scale * quants.astype(np.float32) - minimum


def _q5_k(blocks: Array) -> Array:
    # d | dmin | scales 12 | high bits 32 | low bits 128
    scale, minimum = _k_scales(blocks)
    low = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    high = _fields(blocks[:, 16:48], _BITS, 1)
    quants: Array = (low | high << np.uint8(4)).astype(np.float32)
    return scale * quants - minimum


def _q6_k(blocks: Array) -> Array:
    # low bits 128 | high bits 64 | scales 16 | d
    low = _fields(blocks[:, :128].reshape(-1, 2, 64), _NIBBLES, 15).reshape(-1, 8, 32)
    high = _fields(blocks[:, 128:192].reshape(-1, 2, 32), _PAIRS, 3).reshape(-1, 8, 32)
    quants: Array = (low | high << np.uint8(4)).astype(np.float32) - 32
    scale: Array = _half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return _column(scale) * quants.reshape(-1, 16, 16)


def _iq4_nl(blocks: Array) -> Array:
    return _half(blocks, 0) * np.take(_IQ4_VALUES, _nibbles(blocks[:, 2:]))


def _iq4_xs(blocks: Array) -> Array:
    # d | high bits of the scales 2 | their low bits 4 | quants 128
    low = _fields(blocks[:, 4:8, None], _NIBBLES, 15).reshape(-1, 8)
    high = _fields(blocks[:, 2:4, None], _PAIRS, 3).reshape(-1, 8)
    scale: Array = _half(blocks, 0) * ((low | high << np.uint8(4)).astype(np.float32) - 32)
    quants = _nibbles(blocks[:, 8:].reshape(-1, 8, 16))
    return _column(scale) * np.take(_IQ4_VALUES, quants)


def _tq1_0(blocks: Array) -> Array:
    # quants 48 (five base-3 digits each) | quants 4 (four digits each) | d
    n = len(blocks)
    parts = [
        (blocks[:, begin:end, None].transpose(0, 2, 1) * _POWERS_OF_3[:digits, None]).reshape(n, -1)
        for begin, end, digits in ((0, 32, 5), (32, 48, 5), (48, 52, 4))
    ]
    # The bytes are fractions of 256; multiplying drops the digits before (modulo 256) and shows the next on top.
    digits = (np.concatenate(parts, axis=1).astype(np.uint16) * np.uint16(3)) >> np.uint16(8)
    return _half(blocks, 52) * (digits.astype(np.float32) - 1)


def _tq2_0(blocks: Array) -> Array:
    quants = _fields(blocks[:, :64].reshape(-1, 2, 32), _PAIRS, 3).reshape(-1, 256)
    return _half(blocks, 64) * (quants.astype(np.float32) - 1)


def _mxfp4(blocks: Array) -> Array:
    # exponent 1 (E8M0) | quants 16 (E2M1). The table is doubled, so the scale is halved: 2 ** (exponent - 128).
    exponent = blocks[:, :1].astype(np.uint32)
    bits = np.where(exponent < 2, np.uint32(0x00200000) << np.minimum(exponent, 1), (exponent - 1) << np.uint32(23))
    return bits.astype(np.uint32).view(np.float32) * np.take(_E2M1_DOUBLED, _nibbles(blocks[:, 1:]))


def _nvfp4(blocks: Array) -> Array:
    # scales 4 (unsigned E4M3) | quants 32: four groups of 16. The table is doubled, so the scales are halved.
    scale: Array = np.take(_UE4M3_HALVED, blocks[:, :4])
    return _column(scale) * np.take(_E2M1_DOUBLED, _nibbles(blocks[:, 4:].reshape(-1, 4, 8)))


def _ue4m3_halved() -> Array:
    """Half of the value of every unsigned E4M3 byte: bias 7, the top bit ignored; ggml takes 0x7f (NaN) as 0."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, (code & 7).astype(np.float64)
    value = np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    return np.where(code == 0x7F, 0, value / 2).astype(np.float32)


_UE4M3_HALVED = _ue4m3_halved()
_DECODERS: Mapping[str, Callable[[Array], Array]] = {
    "q1_0": _q1_0,
    "q2_0": _q2_0,
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    "q8_0": _q8_0,
    "q2_k": _q2_k,
    "q3_k": _q3_k,
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
    "iq4_nl": _iq4_nl,
    "iq4_xs": _iq4_xs,
    "tq1_0": _tq1_0,
    "tq2_0": _tq2_0,
    "mxfp4": _mxfp4,
    "nvfp4": _nvfp4,
}
_TYPES = (
    GGUFType("q4_0", 32, 18, 2),
    GGUFType("q4_1", 32, 20, 3),
    GGUFType("q5_0", 32, 22, 6),
    GGUFType("q5_1", 32, 24, 7),
    GGUFType("q8_0", 32, 34, 8),
    GGUFType("q2_k", 256, 84, 10),
    GGUFType("q3_k", 256, 110, 11),
    GGUFType("q4_k", 256, 144, 12),
    GGUFType("q5_k", 256, 176, 13),
    GGUFType("q6_k", 256, 210, 14),
    GGUFType("iq2_xxs", 256, 66, 16),
    GGUFType("iq2_xs", 256, 74, 17),
    GGUFType("iq3_xxs", 256, 98, 18),
    GGUFType("iq1_s", 256, 50, 19),
    GGUFType("iq4_nl", 32, 18, 20),
    GGUFType("iq3_s", 256, 110, 21),
    GGUFType("iq2_s", 256, 82, 22),
    GGUFType("iq4_xs", 256, 136, 23),
    GGUFType("iq1_m", 256, 56, 29),
    GGUFType("tq1_0", 256, 54, 34),
    GGUFType("tq2_0", 256, 66, 35),
    GGUFType("mxfp4", 32, 17, 39),
    GGUFType("nvfp4", 64, 36, 40),
    GGUFType("q1_0", 128, 18, 41),
    GGUFType("q2_0", 64, 18, 42),
)
GGUF_TYPES: Mapping[str, GGUFType] = {kind.name: kind for kind in _TYPES}
"""Every block type that weights are stored in, by its name in codecs."""
_BY_PLAIN_NAME = {kind.name.replace("_", ""): kind for kind in _TYPES}
