"""Reading the safetensors member and the aliases: strict, bounded, in place."""

from __future__ import annotations

import json
import struct
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ptn_format import weights
from ptn_format.dtypes import ScalarType
from ptn_format.errors import ConstantError, FormatError, LimitError, WeightsError
from ptn_format.package import open_package
from ptn_format.weights import ConstantInfo, constant_array, read_aliases, read_header

Message = Callable[[type[Exception], Callable[[], object]], str]


def member(header: Any, data: bytes = b"") -> memoryview:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return memoryview(struct.pack("<Q", len(text)) + text + data)


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_reads_entries() -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "b": entry("U8", (), (8, 9)),
        "a": entry(),
        "e": entry("F64", (0, 3), (9, 9)),
    }
    view = member(header, bytes(9))
    infos = read_header(view, 1000)
    start = 1000 + len(view) - 9
    assert infos == {
        "b": ConstantInfo("b", ScalarType.BYTE, (), 1, start + 8),
        "a": ConstantInfo("a", ScalarType.FLOAT, (2,), 8, start),
        "e": ConstantInfo("e", ScalarType.DOUBLE, (0, 3), 0, start + 9),
    }


def test_accepts_padding_and_other_whitespace() -> None:
    assert read_header(member(b'{ "a" :\n{"dtype":"U8",\t"shape":[],"data_offsets":[0,1]}}      ', b"x"), 0)
    assert read_header(member(b"{}"), 0) == {}


BAD_ENTRIES = {
    "shape does not fit": (entry(shape=(3,)), "shape [3] of F32 takes 12 bytes, but data_offsets [0, 8] give 8"),
    "dtype does not fit": (entry("F64"), "shape [2] of F64 takes 16 bytes, but data_offsets [0, 8] give 8"),
    "product wraps at 64 bits": (
        entry("U8", (2**31 - 1, 2**31 - 1, 4, 4)),
        f"takes {(2**31 - 1) ** 2 * 16} bytes, but data_offsets [0, 8] give 8",
    ),
    "zero axis": (entry(shape=(0, 8)), "shape [0, 8] of F32 takes 0 bytes, but data_offsets [0, 8] give 8"),
    "negative size": (entry(shape=(-2,)), "shape must be an array of non-negative integers, found -2"),
    "minus zero": (b'{"x":{"dtype":"F32","shape":[-0],"data_offsets":[0,0]}}', "found -0.0"),
    "fractional size": (entry(shape=(2.0,)), "shape must be an array of non-negative integers, found 2.0"),
    "exponent": (b'{"x":{"dtype":"F32","shape":[2e0],"data_offsets":[0,8]}}', "found 2.0"),
    "NaN": (entry(shape=(float("nan"),)), "NaN is no JSON"),
    "leading zero": (b'{"x":{"dtype":"F32","shape":[02],"data_offsets":[0,8]}}', "the JSON text is damaged"),
    "negative offset": (entry(offsets=(-8, 0)), "data_offsets must be two non-negative integers, found [-8, 0]"),
    "fractional offset": (entry(offsets=(0, 8.0)), "data_offsets must be two non-negative integers, found [0, 8.0]"),
    "many digits": (
        b'{"x":{"dtype":"F32","shape":[' + b"1" * 5000 + b'],"data_offsets":[0,8]}}',
        "shape must be an array of non-negative integers, found inf",
    ),
    "boolean size": (entry(shape=(True, 2)), "shape must be an array of non-negative integers, found True"),
    "text size": (entry(shape=("2",)), "shape must be an array of non-negative integers, found '2'"),
    "shape is no array": (
        {"dtype": "F32", "shape": 2, "data_offsets": [0, 8]},
        "shape must be an array, not a number",
    ),
    "unknown dtype": (entry("F99"), "the dtype 'F99' is not one of the format's: U8 I8 I16"),
    "float8": (entry("F8_E4M3", (8,)), "the dtype 'F8_E4M3' is not one of the format's"),
    "complex": (entry("C64", (1,)), "the dtype 'C64' is not one of the format's"),
    "dtype is no text": ({"dtype": 7, "shape": [2], "data_offsets": [0, 8]}, "dtype must be a string, not a number"),
    "offsets reversed": (entry(offsets=(8, 0)), "data_offsets [8, 0] do not lie within the 8 bytes of data"),
    "offsets beyond": (entry(offsets=(4, 12)), "data_offsets [4, 12] do not lie within the 8 bytes of data"),
    "offsets far beyond": (entry(offsets=(0, 10**12)), "do not lie within the 8 bytes of data"),
    "three offsets": (entry(offsets=(0, 4, 8)), "data_offsets must be two non-negative integers, found [0, 4, 8]"),
    "offsets are no integers": (entry(offsets=("0", "8")), "data_offsets must be two non-negative integers"),
    "offsets are booleans": (entry("U8", (1,), (False, True)), "data_offsets must be two non-negative integers"),
    "no offsets": ({"dtype": "F32", "shape": [2]}, "the entry lacks data_offsets"),
    "nothing": ({}, "the entry lacks dtype and shape and data_offsets"),
    "no object": ([0, 8], "expected an object with dtype, shape and data_offsets, found an array"),
    "null": (None, "found null"),
}


@pytest.mark.parametrize("name", BAD_ENTRIES)
def test_bad_entries(message: Message, name: str) -> None:
    header, text = BAD_ENTRIES[name]
    view = member(header if isinstance(header, bytes) else {"x": header}, bytes(8))
    found = message(WeightsError, lambda: read_header(view, 0))
    assert text in found
    if "JSON" not in found:
        assert found.startswith("tensor 'x': ")


BAD_HEADERS = {
    "overlap": (
        {"a": entry(), "b": entry(offsets=(4, 12)), "c": entry("U8", (4,), (12, 16))},
        "tensor 'b': its bytes [4, 12] overlap those of tensor 'a', which end at 8",
    ),
    "same bytes": ({"a": entry(offsets=(0, 8)), "b": entry(offsets=(0, 8))}, "tensor 'b': its bytes [0, 8] overlap"),
    "gap": ({"a": entry(offsets=(8, 16))}, "tensor 'a': 8 bytes before it, at 0, belong to no tensor"),
    "inner gap": (
        {"a": entry(offsets=(0, 8)), "b": entry("U8", (2,), (14, 16))},
        "tensor 'b': 6 bytes before it, at 8, belong to no tensor",
    ),
    "trailing bytes": ({"a": entry()}, "8 bytes at 8, after the last tensor 'a', belong to none"),
    "no tensors": ({}, "16 bytes at 0, after the last tensor, belong to none"),
    "empty tensor inside another": (
        {"a": entry("U8", (16,), (0, 16)), "b": entry("U8", (0,), (4, 4))},
        "tensor 'b': its bytes [4, 4] overlap",
    ),
    "metadata is a text": ({"__metadata__": "x"}, "__metadata__: the metadata must be an object of strings"),
    "metadata holds a number": ({"__metadata__": {"x": 1}}, "__metadata__: the metadata must be an object of strings"),
    "empty key": ({"": entry("U8", (16,), (0, 16))}, "tensor '': a tensor's key must not be empty"),
    "no object": (b"[]", "the header must start with '{' but starts with b'[]'"),
    "leading space": (b' {"x":1}', "the header must start with '{'"),
    "empty header": (b"", "the header must start with '{' but starts with b''"),
    "not JSON": (b"{" * 60, "the JSON text is damaged"),
    "text after it": (b"{} x", "the JSON text is damaged: Extra data"),
    "zero bytes as padding": (b"{}\0\0", "the JSON text is damaged"),
    "comment": (b"{/**/}", "the JSON text is damaged"),
    "trailing comma": (b'{"a":{},}', "the JSON text is damaged"),
    "not UTF-8": (b'{"\xff\xfe":1}', "the JSON text is not UTF-8: invalid start byte at byte 2"),
    "UTF-16": ('{"a":1}'.encode("utf-16-le"), "the JSON text is damaged"),
    "control character": (b'{"a\n":1}', "the JSON text is damaged: Invalid control character"),
    "lone surrogate": (rb'{"\ud800":1}', "the key '\\ud800' has half a surrogate pair"),
    "repeated key": (b'{"a":1,"b":2,"a":3}', "the key 'a' comes twice"),
    "repeated key, spelled otherwise": (rb'{"a":1,"\u0061":3}', "the key 'a' comes twice"),
    "repeated field": (b'{"a":{"dtype":"U8","dtype":"I8"}}', "the key 'dtype' comes twice"),
}


@pytest.mark.parametrize("name", BAD_HEADERS)
def test_bad_headers(message: Message, name: str) -> None:
    header, text = BAD_HEADERS[name]
    assert text in message(WeightsError, lambda: read_header(member(header, bytes(16)), 0))


def test_zero_sized_tensors_share_a_place() -> None:
    header = {
        "a": entry("U8", (0,), (8, 8)),
        "b": entry(),
        "c": entry("F32", (3, 0), (8, 8)),
        "d": entry("U8", (0,), (0, 0)),
    }
    assert set(read_header(member(header, bytes(8)), 0)) == {"a", "b", "c", "d"}


@pytest.mark.parametrize("size", [2**63, 2**64 - 1, 2**62, (64 << 20) + 1])
def test_huge_header_size(message: Message, size: int) -> None:
    view = memoryview(struct.pack("<Q", size) + b"{}")
    text = message(LimitError, lambda: read_header(view, 0))
    assert text == f"the header claims {size} bytes; at most 67108864 are read"


def test_header_beyond_the_member(message: Message) -> None:
    view = memoryview(struct.pack("<Q", 3) + b"{}")
    assert message(WeightsError, lambda: read_header(view, 0)) == "the header claims 3 bytes, but only 2 follow"
    assert "has 7 bytes, less than" in message(WeightsError, lambda: read_header(memoryview(bytes(7)), 0))


def test_shape_caps(message: Message) -> None:
    for shape, text in (
        ((1,) * 65, "the shape has 65 axes; at most 64"),
        ((2**31,), "an axis has 2147483648 elements"),
    ):
        found = message(LimitError, lambda s=shape: read_header(member({"x": entry("U8", s, (0, 1))}, b"x"), 0))  # type: ignore[misc]
        assert found.startswith("tensor 'x': ")
        assert text in found
    assert read_header(member({"x": entry("U8", (1,) * 64, (0, 1))}, b"x"), 0)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        b'{"a":' + b"[" * 2_000_000,
        b'{"a":' + b'{"":' * 1_000_000,
        b'{"a":' + b"[" * 65 + b"]" * 65 + b"}",
    ],
)
def test_nesting_bombs(message: Message, text: bytes) -> None:
    assert "nests" in message(LimitError, lambda: read_header(member(text), 0))


def test_brackets_in_strings_do_not_nest() -> None:
    key = '[{\\"[{' * 100
    text = b'{"' + key.encode() + b'":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}'
    assert list(read_header(member(text, b"x"), 0)) == [key.replace("\\", "")]


@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
def test_scan_in_pieces(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    """Strings, escapes and nesting that cross from one piece to the next are followed."""
    monkeypatch.setattr(weights, "_SCAN_CHUNK", chunk)
    monkeypatch.setattr(weights, "MAX_JSON_DEPTH", 3)
    rng = np.random.default_rng(chunk)
    for _ in range(200):
        key = "".join(rng.choice(list('[]{},"\\x'), rng.integers(1, 12)))
        text = json.dumps({key: {"dtype": "U8", "shape": [], "data_offsets": [0, 1]}}).encode()
        assert list(read_header(member(text, b"x"), 0)) == [key]
        with pytest.raises(LimitError, match="nests more than 3"):
            read_header(member(json.dumps({key: [[[1]]]}).encode()), 0)


def test_count_of_values(message: Message) -> None:
    text = b'{"a":[' + b"1," * (1 << 20) + b"1]}"
    assert "more than 1048576 values" in message(LimitError, lambda: read_header(member(text), 0))
    text = b'{"a":[' + b"[]," * (1 << 19) + b"[]]}"
    assert "more than 1048576 values" in message(LimitError, lambda: read_header(member(text), 0))


def test_count_of_tensors(message: Message, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "MAX_TENSORS", 1)
    header = {"a": entry(), "b": entry(offsets=(8, 16))}
    assert "has 2 tensors; at most 1" in message(LimitError, lambda: read_header(member(header, bytes(16)), 0))


@pytest.mark.parametrize(
    "text",
    [
        b'{"' + b"\\" * (4 << 20),
        b'{"' + b'\\"' * (2 << 20),
        b'{"' + b"a" * (4 << 20),
        b'{"' + b'""' * (2 << 20),
        b"{" + b'"' * (4 << 20),
        b'{"a":' + b"9" * (4 << 20) + b"}",
        b"{" + b" " * (4 << 20),
        b"{" + b"}" * (4 << 20),
    ],
    ids=lambda text: repr(text[:8]),
)
def test_hostile_text_costs_linear_time_and_memory(text: bytes) -> None:
    view = member(text)
    tracemalloc.start()
    start = time.process_time()
    with pytest.raises(FormatError) as caught:
        read_header(view, 0)
    seconds = time.process_time() - start
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seconds < 5
    assert peak < 16 * len(text)
    assert len(str(caught.value)) < 1000


def test_many_tensors_are_read_in_time() -> None:
    header = {f"layer.{i}.weight": entry("U8", (1, 1), (i, i + 1)) for i in range(20_000)}
    view = member(header, bytes(20_000))
    start = time.process_time()
    assert len(read_header(view, 0)) == 20_000
    assert time.process_time() - start < 5


class TestSafetensorsAgrees:
    """What the safetensors library refuses, this reader refuses."""

    @pytest.fixture(autouse=True)
    def library(self) -> Any:
        return pytest.importorskip("safetensors")

    @pytest.mark.parametrize("name", [*BAD_ENTRIES, *BAD_HEADERS])
    def test_bad_members(self, name: str, library: Any) -> None:
        """Of the members that are refused here the library must accept only those listed."""
        if name in BAD_ENTRIES:
            header = BAD_ENTRIES[name][0]
            view = member(header if isinstance(header, bytes) else {"x": header}, bytes(8))
        else:
            view = member(BAD_HEADERS[name][0], bytes(16))
        stricter = {"repeated key", "repeated key, spelled otherwise", "empty key", "float8", "complex"}
        try:
            library.deserialize(bytes(view))
        except library.SafetensorError:
            return
        assert name in stricter

    def test_mutated_members(self, library: Any) -> None:
        """A member that the library refuses is never accepted, over many small changes."""
        rng = np.random.default_rng(0)
        header = {
            "__metadata__": {"k": "v"},
            "a": entry(),
            "b": entry("U8", (2, 4), (8, 16)),
            "c": entry("F16", (0,), (16, 16)),
        }
        original = bytes(member(header, bytes(16)))
        alphabet = np.frombuffer(b'0123456789-.,:[]{}"ea \\', np.uint8)
        accepted = refused = 0
        for _ in range(5000):
            changed = np.frombuffer(original, np.uint8).copy()
            places = rng.integers(0, len(original) - 16, rng.integers(1, 3))
            changed[places] = rng.choice(alphabet, len(places))
            try:
                read_header(memoryview(changed.tobytes()), 0)
            except FormatError:
                refused += 1
            else:
                accepted += 1
                library.deserialize(changed.tobytes())  # raises where the library would have refused
        assert accepted > 100
        assert refused > 1000


class TestAliases:
    """`aliases.json`."""

    OWNERS = {key: ConstantInfo(key, ScalarType.BYTE, (), 1, 0) for key in ("a", "b")}

    def read(self, document: Any) -> dict[str, str]:
        text = document if isinstance(document, bytes) else json.dumps(document).encode()
        return read_aliases(memoryview(text), self.OWNERS)

    def test_reads(self) -> None:
        assert self.read({"x": "a", "y": "a", "z": "b"}) == {"x": "a", "y": "a", "z": "b"}
        assert self.read({}) == {}

    @pytest.mark.parametrize(
        ("document", "text"),
        [
            ({"x": "c"}, "alias 'x': the alias is not valid: its owner 'c' is not stored in the package"),
            ({"x": "x"}, "alias 'x': the alias is not valid: its owner 'x' is an alias too"),
            ({"x": "y", "y": "x"}, "its owner 'y' is an alias too; chains and cycles are not followed"),
            ({"x": "y", "y": "a"}, "its owner 'y' is an alias too"),
            ({"a": "b"}, "alias 'a': the alias is not valid: it has bytes of its own"),
            ({"": "a"}, "alias '': the alias is not valid: a constant cannot have this key"),
            ({"__metadata__": "a"}, "a constant cannot have this key"),
            ({"x": "__metadata__"}, "is not stored in the package"),
            ({"x": 1}, "its owner must be a string, not a number"),
            ({"x": None}, "its owner must be a string, not null"),
            ({"x": ["a"]}, "its owner must be a string, not an array"),
            ([], "the JSON text must be an object, not an array"),
            (b"", "the JSON text is damaged"),
            (b'{"x":"a","x":"b"}', "the key 'x' comes twice"),
            (b'{"x":1.5}', "its owner must be a string, not a number"),
            (b'{"x":"\xff"}', "is not UTF-8"),
        ],
    )
    def test_bad(self, message: Message, document: Any, text: str) -> None:
        assert text in message(WeightsError, lambda: self.read(document))

    def test_caps(self, message: Message, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(weights, "MAX_TENSORS", 1)
        assert "there are 2 aliases; at most 1" in message(LimitError, lambda: self.read({"x": "a", "y": "a"}))
        assert "nests more than 64" in message(LimitError, lambda: self.read(b'{"":' + b"[" * 64))
        monkeypatch.setattr(weights, "MAX_JSON_BYTES", 10)
        assert "has 20 bytes; at most 10" in message(LimitError, lambda: self.read(b" " * 20))

    def test_long_keys_do_not_flood_the_text(self, message: Message) -> None:
        assert len(message(WeightsError, lambda: self.read({"x" * 100_000: "c" * 100_000}))) < 600


class TestArrays:
    """Turning stored bytes into arrays."""

    @pytest.mark.parametrize("dtype", list(ScalarType))
    @pytest.mark.parametrize("shift", [0, 1, 2, 4])
    def test_views_where_aligned(self, dtype: ScalarType, shift: int) -> None:
        values = np.arange(6).reshape(2, 3).astype(dtype.numpy)
        memory = np.zeros(64 + values.nbytes, np.uint8)
        start = -memory.ctypes.data % 64 + shift
        memory[start : start + values.nbytes] = values.reshape(-1).view(np.uint8)
        info = ConstantInfo("x", dtype, (2, 3), values.nbytes, start)
        array = constant_array(memory.data, info)
        assert array.dtype == dtype.numpy
        assert array.flags.aligned
        assert not array.flags.writeable
        assert np.array_equal(array, values)
        assert np.shares_memory(array, memory) is (shift % dtype.itemsize == 0)
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 0

    def test_bfloat16_is_ml_dtypes(self) -> None:
        info = ConstantInfo("x", ScalarType.BFLOAT16, (), 2, 0)
        array = constant_array(memoryview(b"\xc0\x3f"), info)
        assert array.dtype == ml_dtypes.bfloat16
        assert array.shape == ()
        assert float(array) == 1.5

    @pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
    def test_empty(self, shape: tuple[int, ...]) -> None:
        array = constant_array(memoryview(b""), ConstantInfo("x", ScalarType.FLOAT, shape, 0, 0))
        assert array.shape == shape
        assert array.dtype == np.float32
        assert not array.flags.writeable

    def test_bool_bytes(self, tools: Any, message: Message) -> None:
        data = tools.package_of({"mask": np.array([True, False])})
        offset = open_package(data).constant_info("mask").file_offset
        damaged = open_package(data[:offset] + b"\x02" + data[offset + 1 :])
        text = message(ConstantError, lambda: damaged.constant("mask"))
        assert text == (
            "<bytes>, program.safetensors, constant 'mask': a boolean constant has bytes other than 0 and 1"
        )
