"""Packing and decoding of quantised constants."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ptn_format.dtypes import ScalarType
from ptn_format.errors import ConstantError
from ptn_format.graph import AffineGroup, PackedQuant
from ptn_format.quant import (
    GGUF_TYPES,
    affine_bits,
    decode_gguf,
    dequantize_affine,
    gguf_type,
    group_shape,
    logical_dtype,
    pack_affine,
    packed_nbytes,
    packed_shape,
    unpack_affine,
)

Message = Callable[[type[Exception], Callable[[], object]], str]
VECTORS = np.load(Path(__file__).with_name("data") / "gguf_vectors.npz")
CODE_BOOKS = {name for name in GGUF_TYPES if name.startswith(("iq1", "iq2", "iq3"))}
ALONE = sorted(GGUF_TYPES.keys() - CODE_BOOKS)


def affine(low: int, high: int, group_size: int = 0) -> AffineGroup:
    return AffineGroup("w.scale", ScalarType.FLOAT, low, high, group_size)


def ranges() -> list[tuple[int, int]]:
    return [
        (low, low + (1 << bits) - 1) for bits in range(1, 9) for low in (-(1 << bits - 1), 0, -3, 100 - (1 << bits))
    ]


class TestAffine:
    """Integers of 1 to 8 bits."""

    def test_layout_of_four_bits(self) -> None:
        """The even element is in the low half of its byte."""
        assert pack_affine(np.array([[-8, -7, 6, 7]]), affine(-8, 7)).tolist() == [[0x10, 0xFE]]

    def test_layout_of_three_bits(self) -> None:
        """One stream of bits, lowest first: 0b111_110_101_100_011_010_001_000 in three bytes."""
        assert pack_affine(np.arange(8), affine(0, 7)).tolist() == list(
            0b111110101100011010001000.to_bytes(3, "little")
        )

    def test_eight_bits_are_offset(self) -> None:
        assert pack_affine(np.array([-128, 0, 127], np.int8), affine(-128, 127)).tolist() == [0, 128, 255]

    @pytest.mark.parametrize(("low", "high"), ranges())
    @pytest.mark.parametrize("shape", [(16,), (3, 8), (5, 12), (2, 3, 5), (1, 1), (7,), (0, 4), (3, 0)])
    def test_round_trip(self, low: int, high: int, shape: tuple[int, ...]) -> None:
        scheme = affine(low, high)
        bits = affine_bits(scheme)
        values = np.random.default_rng(bits).integers(low, high + 1, shape)
        packed = pack_affine(values, scheme)
        each_bit = (values.reshape(-1, 1) - low) >> np.arange(bits) & 1
        expected = np.packbits(each_bit.reshape(-1).astype(np.uint8), bitorder="little")
        assert packed.dtype == np.uint8
        assert packed.reshape(-1).tolist() == expected.tolist()
        assert packed.shape == packed_shape(scheme, shape)
        assert packed.size == packed_nbytes(scheme, shape) == -(-values.size * bits // 8)
        unpacked = unpack_affine(packed, scheme, shape)
        assert unpacked.dtype == logical_dtype(scheme).numpy
        assert unpacked.shape == shape
        assert np.array_equal(unpacked, values)

    @pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint64])
    def test_input_dtypes(self, dtype: Any) -> None:
        values = np.arange(16).astype(dtype)
        assert np.array_equal(unpack_affine(pack_affine(values, affine(0, 15)), affine(0, 15), (16,)), values)

    def test_input_layouts(self) -> None:
        values = np.arange(16).reshape(4, 4).T
        assert np.array_equal(unpack_affine(pack_affine(values, affine(0, 15)), affine(0, 15), (4, 4)), values)

    def test_rows_are_kept_where_they_are_whole_bytes(self) -> None:
        assert packed_shape(affine(-8, 7), (6, 10)) == (6, 5)
        assert packed_shape(affine(0, 7), (2, 6, 16)) == (2, 6, 6)
        assert packed_shape(affine(0, 7), (6, 10)) == (23,)
        assert packed_shape(PackedQuant("gguf:q4_k"), (3, 512)) == (3, 288)
        assert packed_nbytes(PackedQuant("gguf:q4_k"), (3, 512)) == 864

    @pytest.mark.parametrize(
        ("low", "high", "dtype"),
        [(-8, 7, ScalarType.CHAR), (0, 15, ScalarType.CHAR), (0, 255, ScalarType.BYTE), (-100, 155, ScalarType.SHORT)],
    )
    def test_logical_dtype(self, low: int, high: int, dtype: ScalarType) -> None:
        assert logical_dtype(affine(low, high)) is dtype

    @pytest.mark.parametrize(("low", "high"), [(-7, 7), (0, 9), (0, 0), (0, 511), (3, 2), (0, -10)])
    def test_levels(self, message: Message, low: int, high: int) -> None:
        text = message(ConstantError, lambda: affine_bits(affine(low, high)))
        assert text == (
            f"the range {low}..{high} has {high - low + 1} levels; packing needs a power of two from 2 to 256"
        )

    def test_bad_values(self, message: Message) -> None:
        scheme = affine(-8, 7)
        assert message(ConstantError, lambda: pack_affine(np.array([-9, 3]), scheme)) == (
            "values from -9 to 3 do not fit the range -8..7"
        )
        assert "not float64" in message(ConstantError, lambda: pack_affine(np.zeros(2), scheme))
        assert message(ConstantError, lambda: unpack_affine(np.zeros((2, 2), np.uint8), scheme, (2, 5))) == (
            "4-bit integers of shape (2, 5) take 5 bytes, not 4 elements of uint8"
        )
        assert "5 elements of int8" in message(
            ConstantError, lambda: unpack_affine(np.zeros(5, np.int8), scheme, (2, 5))
        )

    def test_groups(self, message: Message) -> None:
        assert group_shape(affine(-8, 7, 4), (2, 3, 8)) == (2, 3, 2)
        assert group_shape(affine(-8, 7, 0), (2, 3, 8)) == (2, 3, 1)
        assert group_shape(affine(-8, 7, 3), (2, 9)) == (2, 3)
        assert group_shape(affine(-8, 7, 8), (8,)) == (1,)
        for group_size, shape in ((3, (2, 8)), (16, (2, 8)), (-4, (2, 8))):
            text = message(ConstantError, lambda g=group_size, s=shape: group_shape(affine(-8, 7, g), s))  # type: ignore[misc]
            assert text == (
                f"the last axis of the shape {shape} is not a whole number of groups of {group_size} elements"
            )
        assert "at least one axis" in message(ConstantError, lambda: group_shape(affine(-8, 7), ()))


class TestDequantizeAffine:
    """`scale * ((u + quant_min) - zero_point)`."""

    @pytest.mark.parametrize("bits", range(2, 9))
    @pytest.mark.parametrize("group_size", [0, 1, 3, 4, 12])
    @pytest.mark.parametrize("zero_point", [None, np.int8, np.int32, np.uint8, np.float32])
    def test_formula(self, bits: int, group_size: int, zero_point: Any) -> None:
        rng = np.random.default_rng(bits)
        low = -(1 << bits - 1)
        scheme = affine(low, -low - 1, group_size)
        values = rng.integers(low, -low, (5, 12))
        groups = 12 // (group_size or 12)
        scale = rng.random((5, groups)).astype(np.float32)
        zero = None if zero_point is None else (rng.random((5, groups)) * 4).astype(zero_point)
        found = dequantize_affine(pack_affine(values, scheme), scheme, (5, 12), scale, zero)
        shift = 0 if zero is None else np.repeat(zero.astype(np.float32), 12 // groups, 1)
        expected = (values.astype(np.float32) - shift) * np.repeat(scale, 12 // groups, 1)
        assert found.dtype == np.float32
        assert np.array_equal(found, expected.astype(np.float32))

    def test_parameters_may_have_any_shape(self) -> None:
        scheme = affine(0, 15, 0)
        packed = pack_affine(np.arange(8).reshape(2, 4), scheme)
        expected = [[0, 2, 4, 6], [12, 15, 18, 21]]
        for shape in ((2,), (2, 1), (1, 2, 1)):
            scale = np.array([2, 3], np.float32).reshape(shape)
            assert dequantize_affine(packed, scheme, (2, 4), scale).tolist() == expected

    @pytest.mark.parametrize("scale_dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
    @pytest.mark.parametrize("dtype", [None, np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
    def test_dtypes(self, scale_dtype: Any, dtype: Any) -> None:
        """The product is rounded once, in the wider of the two dtypes, then to the result's."""
        scheme = affine(-128, 127, 4)
        values = np.random.default_rng(0).integers(-128, 128, (8, 16))
        scale = np.random.default_rng(1).random((8, 4)).astype(scale_dtype)
        found = dequantize_affine(pack_affine(values, scheme), scheme, (8, 16), scale, dtype=dtype)
        out = np.dtype(scale_dtype if dtype is None else dtype)
        assert found.dtype == out
        exact = values * np.repeat(scale, 4, 1).astype(np.float64)
        wide = exact if np.float64 in (out, scale.dtype) else exact.astype(np.float32)
        assert np.array_equal(found, wide.astype(out))

    def test_empty(self) -> None:
        found = dequantize_affine(np.zeros(0, np.uint8), affine(-8, 7, 4), (0, 8), np.zeros((0, 2), np.float32))
        assert found.shape == (0, 8)

    def test_infinite_scale(self) -> None:
        packed = pack_affine(np.array([0, 1]), affine(0, 15))
        found = dequantize_affine(packed, affine(0, 15), (2,), np.array([np.inf], np.float32))
        assert np.isnan(found[0])
        assert found[1] == np.inf

    def test_counts(self, message: Message) -> None:
        packed, scheme = np.zeros(8, np.uint8), affine(-8, 7, 4)
        one, four = np.zeros(1, np.float32), np.zeros(4, np.float32)
        assert message(ConstantError, lambda: dequantize_affine(packed, scheme, (2, 8), one)) == (
            "there are 1 scales for 4 groups"
        )
        assert message(ConstantError, lambda: dequantize_affine(packed, scheme, (2, 8), four, one)) == (
            "there are 1 zero points for 4 groups"
        )


def assert_same_bits(found: Any, expected: Any) -> None:
    """Equal bit for bit, except that any NaN equals any other."""
    nan = np.isnan(expected)
    assert np.array_equal(nan, np.isnan(found))
    assert np.array_equal(found.view(np.uint32)[~nan], expected.view(np.uint32)[~nan])


class TestGGUF:
    """Blocks of GGUF files decode to ggml's own values."""

    @pytest.mark.parametrize("name", ALONE)
    @pytest.mark.parametrize("spelling", ["gguf:{}", "gguf:{plain}", "gguf:{upper}"])
    def test_stored_vectors(self, name: str, spelling: str) -> None:
        """The values are those of ggml's C code, see `data/make_gguf_vectors.py`."""
        blocks, values = VECTORS[f"{name}.blocks"], VECTORS[f"{name}.values"]
        codec = spelling.format(name, plain=name.replace("_", ""), upper=name.upper())
        found = decode_gguf(codec, blocks, values.shape)
        assert found.dtype == np.float32
        assert_same_bits(found, values)

    @pytest.mark.parametrize("name", sorted(CODE_BOOKS))
    def test_stored_vectors_of_code_books(self, name: str) -> None:
        pytest.importorskip("gguf")
        blocks, values = VECTORS[f"{name}.blocks"], VECTORS[f"{name}.values"]
        assert_same_bits(decode_gguf(f"gguf:{name}", blocks, values.shape), values)

    def test_types_of_the_gguf_package(self) -> None:
        """All its types of weights are known here, with its numbers and sizes, and decode as there."""
        gguf = pytest.importorskip("gguf")
        quants = pytest.importorskip("gguf.quants")
        rng = np.random.default_rng(7)
        for kind, (elements, nbytes) in gguf.GGML_QUANT_SIZES.items():
            if elements == 1 or kind.name in ("Q8_1", "Q8_K"):  # plain numbers; ggml's forms for activations
                continue
            ours = GGUF_TYPES[kind.name.lower()]
            assert (ours.elements, ours.nbytes, ours.ggml_type) == (elements, nbytes, int(kind))
            if kind.name == "Q1_0":  # the package has no decoder for it
                continue
            blocks = rng.integers(0, 256, (40, 2 * nbytes), np.uint8)
            with np.errstate(all="ignore"):
                expected = quants.dequantize(blocks, kind)
            assert_same_bits(decode_gguf(f"gguf:{ours.name}", blocks, (40, 2 * elements)), expected)

    def test_code_books_without_the_gguf_package(self, message: Message, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "gguf", None)
        text = message(ConstantError, lambda: decode_gguf("gguf:iq2_xs", np.zeros((1, 74), np.uint8), (1, 256)))
        assert text.startswith("iq2_xs is decoded with the code books of the `gguf` package, which cannot be imported")
        assert text.endswith("Install it: pip install 'ptn-format[gguf]'")

    def test_shapes(self) -> None:
        blocks = VECTORS["q8_0.blocks"][:2]
        values = VECTORS["q8_0.values"][:2]
        for shape in ((2, 32), (64,), (1, 2, 32), (2, 1, 32)):
            assert_same_bits(decode_gguf("gguf:q8_0", blocks, shape), values.reshape(shape))
        scattered = np.repeat(blocks, 2, axis=1)[:, ::2]
        assert_same_bits(decode_gguf("gguf:q8_0", scattered, (2, 32)), values)
        assert decode_gguf("gguf:q8_0", np.zeros((0, 34), np.uint8), (0, 32)).shape == (0, 32)

    def test_other_dtypes_are_rounded_once(self) -> None:
        values = VECTORS["q4_0.values"]
        for dtype in (ml_dtypes.bfloat16, np.float64):
            found = decode_gguf("gguf:q4_0", VECTORS["q4_0.blocks"], values.shape, dtype)
            assert found.dtype == dtype
            assert np.array_equal(found, values.astype(dtype), equal_nan=True)

    def test_large_tensors_are_decoded_in_pieces(self) -> None:
        blocks = np.tile(VECTORS["q6_k.blocks"], (8000, 1))
        tracemalloc.start()
        found = decode_gguf("gguf:q6_k", blocks, (24_000, 256), ml_dtypes.bfloat16)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < found.nbytes + (40 << 20)
        expected = VECTORS["q6_k.values"].astype(ml_dtypes.bfloat16)
        assert np.array_equal(found.view(np.uint16)[-3:], expected.view(np.uint16))
        assert np.array_equal(found.view(np.uint16)[:3], expected.view(np.uint16))

    @pytest.mark.parametrize("codec", ["gguf:q9_k", "q4_k", "gguf:", "GGUF:q4_k", "mxfp4", ""])
    def test_unknown_codecs(self, message: Message, codec: str) -> None:
        text = message(ConstantError, lambda: gguf_type(codec))
        assert text.startswith(f"the codec {codec!r} is not known; known are gguf: with one of q4_0, q4_1")

    def test_sizes(self, message: Message) -> None:
        assert message(ConstantError, lambda: decode_gguf("gguf:q4_k", np.zeros(144, np.uint8), (1, 255))) == (
            "q4_k holds blocks of 256 elements along the last axis, which the shape (1, 255) does not divide into"
        )
        assert message(ConstantError, lambda: decode_gguf("gguf:q4_k", np.zeros(143, np.uint8), (1, 256))) == (
            "q4_k of shape (1, 256) takes 144 bytes, not 143 elements of uint8"
        )
        assert "144 elements of int8" in message(
            ConstantError, lambda: decode_gguf("gguf:q4_k", np.zeros(144, np.int8), (1, 256))
        )
        assert "blocks of 256" in message(ConstantError, lambda: decode_gguf("gguf:q4_k", np.zeros(0, np.uint8), ()))
