"""Writing packages: layout, determinism, deduplication, streaming, and what other readers make of the result."""

from __future__ import annotations

import gc
import io
import json
import os
import shutil
import stat
import struct
import subprocess
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ptn_format import archive_writer, weights_writer
from ptn_format.archive import Archive
from ptn_format.archive_writer import ArchiveWriter
from ptn_format.dtypes import ScalarType
from ptn_format.errors import WriteError
from ptn_format.graph import MutableBufferSpec, Program
from ptn_format.mapping import map_source
from ptn_format.package import mutable_keys, open_package, write_package
from ptn_format.weights_writer import plan_weights

Message = Callable[[type[Exception], Callable[[], object]], str]


class Counted:
    """A constant that is made when asked for; knows how often and how many were alive at once."""

    alive = 0
    most_alive = 0

    def __init__(self, value: np.ndarray[Any, Any]) -> None:
        self._seed = value
        self.dtype = value.dtype
        self.shape = value.shape
        self.calls = 0

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        self.calls += 1
        kind = type(self)
        kind.alive += 1
        kind.most_alive = max(kind.most_alive, kind.alive)

        class Tracked(np.ndarray[Any, Any]):
            def __del__(self) -> None:
                if self.base is None:
                    kind.alive -= 1

        return np.asarray(self._seed).copy().view(Tracked).copy()


def test_members_and_attributes(package: bytes, constants: dict[str, Any]) -> None:
    with zipfile.ZipFile(io.BytesIO(package)) as file:
        infos = file.infolist()
        assert file.testzip() is None
    assert [info.filename for info in infos] == ["program.ptg", "program.safetensors", "aliases.json"]
    for info in infos:
        assert info.compress_type == zipfile.ZIP_STORED
        assert info.flag_bits == 0
        assert info.create_system == 3
        assert info.create_version == info.extract_version == 20
        assert info.external_attr == 0o600 << 16
        assert info.date_time == (1980, 1, 1, 0, 0, 0)
        assert info.extra == b""  # the alignment is in the local header only
        assert info.comment == b""


def test_local_extra_field_is_zipalign_s(package: bytes) -> None:
    position = 0
    for member in Archive(map_source(package)).members.values():
        name_size, extra_size = struct.unpack_from("<2H", package, position + 26)
        extra = package[position + 30 + name_size : position + 30 + name_size + extra_size]
        identifier, size, alignment = struct.unpack_from("<3H", extra)
        assert (identifier, size, alignment) == (0xD935, extra_size - 4, 64)
        assert not any(extra[6:])
        assert member.offset == position + 30 + name_size + extra_size
        assert member.offset % 64 == 0
        position = member.offset + member.size


def test_members_appear_only_where_needed(tools: Any) -> None:
    assert list(tools.members_of(tools.package_of({}))) == ["program.ptg"]
    one = {"w": np.zeros(3, np.float32)}
    assert list(tools.members_of(tools.package_of(one))) == ["program.ptg", "program.safetensors"]


def test_order_and_alignment(tools: Any) -> None:
    """Whole multiples of 64 bytes first, the others by falling element size, without gaps."""
    rng = np.random.default_rng(0)
    constants = {}
    for i in range(60):
        dtype = list(ScalarType)[rng.integers(len(ScalarType))].numpy
        values = rng.integers(0, 2, rng.choice([1, 2, 3, 5, 7, 16, 32, 64, 100]))
        constants[f"c{i:02}"] = values.astype(dtype)
    opened = open_package(tools.package_of(constants))
    infos = [opened.constant_info(key) for key in opened.constant_keys if opened.owner(key) == key]
    start = infos[0].file_offset
    assert start % 64 == 0
    position = start
    for info in infos:
        assert info.file_offset == position
        assert position % (64 if info.nbytes % 64 == 0 else info.dtype.itemsize) == 0
        position += info.nbytes
    groups = [(info.nbytes % 64 != 0, -info.dtype.itemsize if info.nbytes % 64 else 0, info.key) for info in infos]
    assert groups == sorted(groups)
    for key, values in constants.items():
        assert np.shares_memory(opened.constant(key), np.frombuffer(opened._view, np.uint8))
        assert np.array_equal(opened.constant(key), values)


def test_data_section_is_aligned_in_the_extracted_member_too(tools: Any) -> None:
    member = tools.members_of(tools.package_of({"a": np.ones(5), "b": np.ones(3, np.int8)}))["program.safetensors"]
    size = struct.unpack_from("<Q", member)[0]
    assert (8 + size) % 64 == 0
    assert member[8 : 8 + size].rstrip(b" ") == (
        b'{"a":{"dtype":"F64","shape":[5],"data_offsets":[0,40]},"b":{"dtype":"I8","shape":[3],"data_offsets":[40,43]}}'
    )


@pytest.mark.parametrize("dtype", list(ScalarType))
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (2, 3, 4)])
def test_round_trip(tools: Any, dtype: ScalarType, shape: tuple[int, ...]) -> None:
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype.numpy)
    found = open_package(tools.package_of({"x": values})).constant("x")
    assert found.dtype == dtype.numpy
    assert found.shape == shape
    assert np.array_equal(found, values)


def test_special_values_keep_their_bits(tools: Any) -> None:
    bits = np.array([0x7FC00000, 0xFFC12345, 0x7F800000, 0x80000000, 1], np.uint32)
    found = open_package(tools.package_of({"x": bits.view(np.float32)})).constant("x")
    assert np.array_equal(found.view(np.uint32), bits)


def test_other_memory_layouts(tools: Any) -> None:
    base = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    constants = {
        "transposed": base.transpose(2, 0, 1),
        "sliced": base[::2, 1:, ::-1],
        "broadcast": np.broadcast_to(np.float32(3), (4, 2)),
        "big endian": base.astype(">f4"),
        "big endian ints": np.arange(5, dtype=">i8"),
        "scalar": np.float16(1.5),
        "unaligned": np.frombuffer(b"\0" + base.tobytes(), np.float32, offset=1),
        "read only": np.frombuffer(base.tobytes(), np.float32),
    }
    opened = open_package(tools.package_of(constants))
    for key, values in constants.items():
        assert np.array_equal(opened.constant(key), values), key
        assert opened.constant(key).dtype.isnative


def test_bool_views_of_other_bytes(tools: Any) -> None:
    found = open_package(tools.package_of({"m": np.array([0, 1, 2, 255], np.uint8).view(np.bool_)})).constant("m")
    assert found.view(np.uint8).tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.zeros(2, np.complex64), "the format has no dtype complex64. It has uint8, int8"),
        (np.zeros(2, ml_dtypes.float8_e4m3fn), "the format has no dtype float8_e4m3fn"),
        (np.zeros(2, ml_dtypes.int4), "the format has no dtype int4"),
        (np.array(["a"]), "the format has no dtype <U1"),
        (np.array([None]), "the format has no dtype object"),
        (np.zeros(2, "M8[s]"), "the format has no dtype datetime64[s]"),
        (np.zeros(2, [("a", "f4")]), "the format has no dtype [('a', '<f4')]"),
        ([1.0, 2.0], "expected an array, found list"),
        (np.broadcast_to(np.int8(0), (2**31, 1)), "the shape (2147483648, 1) exceeds 64 axes or 2147483647 elements"),
    ],
)
def test_what_the_format_cannot_hold(message: Message, value: Any, text: str) -> None:
    found = message(WriteError, lambda: plan_weights({"fine": np.zeros(1), "layer.weight": value}))
    assert found.startswith("constant 'layer.weight': ")
    assert text in found


@pytest.mark.parametrize("key", ["", "__metadata__", "\ud800"])
def test_bad_keys(message: Message, key: str) -> None:
    assert message(WriteError, lambda: plan_weights({key: np.zeros(1)})).startswith(f"constant {key!r}: ")


def test_unusual_keys(tools: Any) -> None:
    constants = {
        key: np.array([i]) for i, key in enumerate(["ä.ß", "日本", 'quo"te', "back\\slash", "new\nline", "\0", "😀"])
    }
    opened = open_package(tools.package_of(constants))
    for key, value in constants.items():
        assert opened.constant(key).tolist() == value.tolist()


class TestDeduplication:
    """Constants of equal content share bytes, unless a method writes to them."""

    W = np.arange(6, dtype=np.float32).reshape(2, 3)

    def aliases(self, constants: dict[str, Any], mutable: tuple[str, ...] = ()) -> Any:
        return plan_weights(constants, mutable).aliases

    def test_first_key_in_order_owns(self) -> None:
        assert self.aliases({"c": self.W, "a": self.W.copy(), "b": self.W}) == {"b": "a", "c": "a"}

    def test_dtype_and_shape_count(self) -> None:
        others = {
            "b": self.W.reshape(3, 2),
            "c": self.W.view(np.int32),
            "d": self.W.reshape(1, 6),
            "e": self.W.reshape(6),
        }
        assert self.aliases({"a": self.W} | others) == {}

    def test_bits_count_not_values(self) -> None:
        zero = np.zeros(4, np.float32)
        nan = np.full(4, np.nan, np.float32)
        assert self.aliases({"a": zero, "b": -zero}) == {}
        assert self.aliases({"a": nan, "b": nan.copy()}) == {"b": "a"}

    def test_layout_does_not_count(self) -> None:
        assert self.aliases({"a": self.W, "b": np.asfortranarray(self.W), "c": self.W.astype(">f4")}) == {
            "b": "a",
            "c": "a",
        }

    def test_mutable_keys_stand_alone(self) -> None:
        constants = {"a": self.W, "b": self.W, "c": self.W}
        assert self.aliases(constants, ("a",)) == {"c": "b"}
        assert self.aliases(constants, ("b",)) == {"c": "a"}
        assert self.aliases(constants, ("a", "b", "c")) == {}

    def test_empty_tensors(self) -> None:
        constants = {
            "a": np.zeros((0, 3), np.float32),
            "b": np.zeros((0, 3), np.float32),
            "c": np.zeros((3, 0), np.float32),
        }
        assert self.aliases(constants) == {"b": "a"}

    @pytest.mark.parametrize("place", [0, 4095, 4096, 20_000, 50_000, 80_000, 99_999])
    def test_one_byte_differs(self, place: int) -> None:
        """Also where the quick sample of a large constant does not look."""
        a = np.zeros(100_000, np.uint8)
        b = a.copy()
        b[place] = 1
        assert self.aliases({"a": a, "b": b, "c": a.copy()}) == {"c": "a"}

    def test_buffers_of_any_method_are_mutable(self, tools: Any) -> None:
        constants = {"a": np.zeros(4, np.float32), "b": np.zeros(4, np.float32), "c": np.zeros(4, np.float32)}
        program = tools.program_of(constants)
        other = tools.method_of(constants, "other", mutable=("b",))
        program = type(program)(program.version, (*program.methods, other))
        assert mutable_keys(program) == {"b"}
        target = io.BytesIO()
        write_package(target, program, constants)
        opened = open_package(target.getvalue())
        assert {key: opened.owner(key) for key in "abc"} == {"a": "a", "b": "b", "c": "a"}
        opened.verify()

    def test_every_mark_of_mutability_counts(self, tools: Any) -> None:
        """A binding that is marked, the target of a mutation, and a buffer without initial data."""
        method = tools.method_of({"a": self.W, "b": self.W, "c": self.W}, mutable=("a",))
        marked = tuple(replace(binding, mutated=binding.data_key == "b") for binding in method.constants)
        method = replace(method, constants=marked, mutable_buffers=(MutableBufferSpec("v", "d"),))
        assert mutable_keys(Program("1.0", (method,))) == {"a", "b", "d"}

    def test_aliases_text(self, package: bytes, tools: Any) -> None:
        assert tools.members_of(package)["aliases.json"] == b'{\n  "weight": "tied"\n}'


class TestReproducible:
    """The same input gives the same bytes."""

    def test_order_of_mapping_does_not_count(self, tools: Any, constants: dict[str, Any], package: bytes) -> None:
        shuffled = {key: constants[key] for key in sorted(constants, reverse=True)}
        assert tools.package_of(shuffled, ("state",)) == package

    def test_memory_layout_does_not_count(self, tools: Any, constants: dict[str, Any], package: bytes) -> None:
        other = {key: np.asfortranarray(value) for key, value in constants.items()}
        assert tools.package_of(other, ("state",)) == package

    def test_target_and_time_do_not_count(
        self, tools: Any, constants: dict[str, Any], package: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("time.time", lambda: 2e9)
        monkeypatch.setenv("TZ", "Asia/Tokyo")
        write_package(tmp_path / "model.ptn", tools.program_of(constants, ("state",)), constants)
        assert (tmp_path / "model.ptn").read_bytes() == package

    def test_reading_and_writing_again(self, package: bytes) -> None:
        opened = open_package(package)
        target = io.BytesIO()
        write_package(target, opened.program, {key: opened.constant(key) for key in opened.constant_keys})
        assert target.getvalue() == package


class TestStreaming:
    """One constant in memory at a time."""

    def test_constants_are_asked_for_one_at_a_time(self, tools: Any) -> None:
        Counted.alive = Counted.most_alive = 0
        rng = np.random.default_rng(0)
        constants = {f"c{i}": Counted(rng.random((10, 10))) for i in range(8)}
        constants["twin"] = Counted(constants["c3"]._seed)
        constants["single"] = Counted(np.zeros(7))
        target = io.BytesIO()
        write_package(target, tools.program_of(constants), constants)
        gc.collect()
        assert Counted.alive == 0
        assert Counted.most_alive == 1
        assert constants["single"].calls == 1  # nothing to compare it with
        assert max(value.calls for value in constants.values()) <= 3
        assert open_package(target.getvalue()).owner("twin") == "c3"

    def test_memory(self, tools: Any, tmp_path: Path) -> None:
        constants = {f"c{i}": np.full((1 << 20) + i, i, np.float64) for i in range(4)}
        program = tools.program_of(constants)
        tracemalloc.start()
        write_package(tmp_path / "model.ptn", program, constants)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 4 << 20  # contiguous arrays are not copied at all
        opened = open_package(tmp_path / "model.ptn")
        assert opened.constant("c3")[-1] == 3

    def test_constant_that_lies(self, tools: Any, message: Message) -> None:
        class Liar:
            dtype, shape = np.dtype(np.float32), (2,)

            def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
                return np.zeros(3)

        constants = {"x": Liar()}
        text = message(WriteError, lambda: write_package(io.BytesIO(), tools.program_of(constants), constants))
        assert text == "constant 'x': the constant said it was float32 of shape (2,) but gave float64 of shape (3,)"


class TestTargets:
    """What can be written to."""

    def test_file_object(self, tools: Any, constants: dict[str, Any], package: bytes, tmp_path: Path) -> None:
        path = tmp_path / "model.ptn"
        path.write_bytes(b"old" * 100_000)
        with path.open("r+b") as file:
            write_package(file, tools.program_of(constants, ("state",)), constants)
            assert file.tell() == len(package)
        assert path.read_bytes() == package

    def test_unbuffered_file(self, tools: Any, constants: dict[str, Any], package: bytes, tmp_path: Path) -> None:
        with (tmp_path / "model.ptn").open("wb", buffering=0) as file:
            write_package(file, tools.program_of(constants, ("state",)), constants)
        assert (tmp_path / "model.ptn").read_bytes() == package

    def test_cannot_seek(self, tools: Any, message: Message) -> None:
        reading, writing = os.pipe()
        with open(reading, "rb"), open(writing, "wb") as pipe:
            text = message(WriteError, lambda: write_package(pipe, tools.program_of({}), {}))
        assert "can only be written to a file that can seek" in text
        assert "io.BytesIO" in text

    def test_not_at_the_start(self, tools: Any, message: Message) -> None:
        target = io.BytesIO(b"12345")
        target.seek(3)
        text = message(WriteError, lambda: write_package(target, tools.program_of({}), {}))
        assert "the file object is at byte 3; a package must start at byte 0" in text

    def test_folders_are_made(self, tools: Any, tmp_path: Path) -> None:
        write_package(tmp_path / "a" / "b" / "model.ptn", tools.program_of({}), {})
        assert os.listdir(tmp_path / "a" / "b") == ["model.ptn"]

    def test_name_in_the_working_directory(self, tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        write_package("model.ptn", tools.program_of({}), {})
        open_package("model.ptn").verify()

    def test_special_files_are_not_replaced(self, tools: Any, tmp_path: Path, message: Message) -> None:
        for path, kind in ((tmp_path, "a directory"), (Path(os.devnull), "a device, pipe or socket")):
            text = message(WriteError, lambda p=path: write_package(p, tools.program_of({}), {}))  # type: ignore[misc]
            assert text == f"{path}: a package is written to a plain file, and this is {kind}"
        assert not stat.S_ISREG(os.stat(os.devnull).st_mode)


class TestProgramAndConstantsMustFit:
    """A package that its own reader would refuse is not written."""

    def test_missing_constant(self, tools: Any, constants: dict[str, Any], tmp_path: Path) -> None:
        path = tmp_path / "model.ptn"
        with pytest.raises(WriteError, match="bias") as caught:
            write_package(
                path, tools.program_of(constants), {key: value for key, value in constants.items() if key != "bias"}
            )
        assert caught.value.file == str(path)
        assert os.listdir(tmp_path) == []

    @pytest.mark.parametrize("value", [np.zeros(9, np.float32), np.zeros(8, np.float64), np.zeros((2, 4), np.float32)])
    def test_other_dtype_or_shape(self, tools: Any, constants: dict[str, Any], value: Any) -> None:
        with pytest.raises(WriteError, match="bias"):
            write_package(io.BytesIO(), tools.program_of(constants), constants | {"bias": value})

    def test_broken_program(self, tools: Any) -> None:
        program = tools.program_of({})
        with pytest.raises(WriteError, match="version"):
            write_package(io.BytesIO(), type(program)("7.0", program.methods), {})


class TestOtherReaders:
    """What well-known tools make of our files."""

    def test_zipfile(self, package: bytes, tmp_path: Path) -> None:
        with zipfile.ZipFile(io.BytesIO(package)) as file:
            file.extractall(tmp_path)
            assert file.testzip() is None
        assert json.loads((tmp_path / "aliases.json").read_text()) == {"weight": "tied"}

    @pytest.mark.skipif(shutil.which("unzip") is None, reason="Info-ZIP's unzip is not installed")
    def test_unzip(self, package: bytes, tmp_path: Path) -> None:
        path = tmp_path / "model.ptn"
        path.write_bytes(package)
        done = subprocess.run(["unzip", "-t", str(path)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "No errors detected" in done.stdout
        assert "warning" not in done.stdout + done.stderr

    def test_safetensors(self, tools: Any, tmp_path: Path) -> None:
        library = pytest.importorskip("safetensors.numpy")
        constants = {
            dtype.name: np.arange(5).astype(dtype.numpy) for dtype in ScalarType if dtype is not ScalarType.BFLOAT16
        } | {"empty": np.zeros((0, 2), np.float32), "scalar": np.array(3), "ü": np.zeros(64, np.int16)}
        path = tmp_path / "program.safetensors"
        path.write_bytes(tools.members_of(tools.package_of(constants))[path.name])
        loaded = library.load_file(path)
        assert set(loaded) == set(constants)
        for key, value in constants.items():
            assert loaded[key].dtype == value.dtype
            assert loaded[key].shape == value.shape
            assert np.array_equal(loaded[key], value)

    def test_safetensors_bfloat16(self, tools: Any) -> None:
        library = pytest.importorskip("safetensors")
        values = np.array([1.5, -2.0], ml_dtypes.bfloat16)
        member = tools.members_of(tools.package_of({"x": values}))["program.safetensors"]
        [(key, found)] = library.deserialize(member)
        assert key == "x"
        assert found["dtype"] == "BF16"
        assert bytes(found["data"]) == values.tobytes()


class TestZip64:
    """Sizes and offsets of 4 GiB and more; small stand-ins with a lowered limit."""

    @pytest.mark.parametrize("limit", [100, 1000, 5000])
    def test_lowered_limit(self, tools: Any, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
        """What is above the limit goes to 64-bit fields, as zipfile understands them."""
        data = io.BytesIO()
        writer = ArchiveWriter(data)
        monkeypatch.setattr(archive_writer, "MAX_32", limit)
        contents = {"program.ptg": b"p" * 70, "program.safetensors": b"s" * 4000, "aliases.json": b"a" * 150}
        for name, content in contents.items():
            assert writer.add(name, len(content), [content[:50], memoryview(content)[50:]]) % 64 == 0
        writer.finish()
        # The saturated fields hold the lowered limit here; a reader of real files looks for 0xFFFFFFFF.
        monkeypatch.setattr("ptn_format.archive.MAX_32", limit)
        opened = Archive(map_source(data.getvalue()))
        for name, content in contents.items():
            assert bytes(opened.view(name) or b"") == content
            opened.verify(name)

    def test_wrong_size(self, message: Message) -> None:
        writer = ArchiveWriter(io.BytesIO())
        text = message(WriteError, lambda: writer.add("x", 5, [b"1234"]))
        assert text == "x: the member was to have 5 bytes but 4 came"


def test_header_caps(message: Message, monkeypatch: pytest.MonkeyPatch) -> None:
    two = {"a": np.zeros(1), "b": np.ones(1)}
    monkeypatch.setattr(weights_writer, "MAX_TENSORS", 1)
    assert "2 constants are more than the 1" in message(WriteError, lambda: plan_weights(two))
    monkeypatch.undo()
    monkeypatch.setattr(weights_writer, "MAX_JSON_BYTES", 100)
    assert "need a safetensors header of 120 bytes and 17 values" in message(WriteError, lambda: plan_weights(two))
    monkeypatch.undo()
    monkeypatch.setattr(weights_writer, "MAX_CONSTANTS_BYTES", 15)
    assert "the constants have 16 bytes; a package can hold 15" in message(WriteError, lambda: plan_weights(two))
