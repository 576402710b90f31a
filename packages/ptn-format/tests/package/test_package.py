"""Packages as a whole: access, laziness, threads, closing, verification."""

from __future__ import annotations

import gc
import io
import json
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import ptn_format
import pytest
from ptn_format.dtypes import ScalarType
from ptn_format.errors import (
    ArchiveError,
    ConstantError,
    FormatError,
    GraphError,
    ProgramError,
    UnsupportedVersionError,
    WeightsError,
)
from ptn_format.graph import AffineGroup, Dim, PackedQuant, Program, TensorMeta
from ptn_format.package import open_package, write_package
from ptn_format.quant import pack_affine

Message = Callable[[type[Exception], Callable[[], object]], str]


@pytest.fixture
def path(tmp_path: Path, package: bytes) -> Path:
    file = tmp_path / "model.ptn"
    file.write_bytes(package)
    return file


def test_access(package: bytes, constants: dict[str, Any]) -> None:
    opened = open_package(package)
    assert opened.version == "1.0"
    assert opened.method_names == ("forward",)
    assert opened.path is None
    assert set(opened.constant_keys) == set(constants)
    assert opened.owner("weight") == opened.owner("tied") == "tied"
    assert opened.constant_info("weight") == opened.constant_info("tied")
    for key, value in constants.items():
        assert np.array_equal(opened.constant(key), value)
        info = opened.constant_info(key)
        assert info.dtype == ScalarType.from_numpy(value.dtype)
        assert info.shape == value.shape
        assert info.nbytes == value.nbytes
        assert package[info.file_offset : info.file_offset + info.nbytes] == value.tobytes()
    assert repr(opened) == "<Package <bytes>: 1 methods, 5 constants>"


def test_unknown_names(package: bytes) -> None:
    opened = open_package(package)
    for function in (opened.owner, opened.constant_info, opened.constant, opened.method):
        with pytest.raises(KeyError, match="nobody"):
            function("nobody")
    assert opened.quant("nobody") is None


def test_method_is_decoded_once_and_program_holds_it(package: bytes, tools: Any, constants: dict[str, Any]) -> None:
    opened = open_package(package)
    assert opened.method("forward") is opened.method("forward")
    assert opened.program.methods[0] is opened.method("forward")
    assert opened.program == tools.program_of(constants, ("state",))


def test_constants_are_views_of_the_file(path: Path) -> None:
    opened = open_package(path)
    whole = np.frombuffer(opened._view, np.uint8)
    for key in opened.constant_keys:
        assert np.shares_memory(opened.constant(key), whole)
        assert not opened.constant(key).flags.writeable
    assert np.shares_memory(opened.constant("weight"), opened.constant("tied"))


def test_unaligned_packages_work_by_copying(package: bytes, tools: Any, constants: dict[str, Any]) -> None:
    """Re-packed by another tool: other order, other alignment, more members."""
    members = tools.members_of(package)
    for pad in range(1, 9):
        repacked = {"n" * pad: b"x" * pad} | dict(reversed(members.items()))
        opened = open_package(tools.zip_of(repacked))
        for key, value in constants.items():
            assert np.array_equal(opened.constant(key), value)
            assert opened.constant(key).flags.aligned
        opened.verify()


@pytest.mark.parametrize("source", ["path", "file", "bytes"])
def test_close(path: Path, source: str) -> None:
    with path.open("rb") as file:
        opened = open_package({"path": path, "file": file, "bytes": path.read_bytes()}[source])
    kept = opened.constant("weight")
    with opened as same:
        assert same is opened
    opened.close()  # again
    assert kept[7, 7] == 63
    label = "<bytes>" if source == "bytes" else str(path)
    for function in (
        lambda: opened.constant("weight"),
        lambda: opened.method("forward"),
        lambda: opened.program,
        opened.verify,
        opened.__enter__,
    ):
        with pytest.raises(ValueError, match="is closed") as caught:
            function()
        assert str(caught.value) == f"the package {label} is closed"
    assert opened.constant_info("weight").shape == (8, 8)  # what was read stays known
    assert repr(opened).endswith("(closed)>")


def test_map_lives_as_long_as_an_array(path: Path) -> None:
    opened = open_package(path)
    mapped = weakref.ref(opened._view.obj)  # type: ignore[union-attr]
    kept = opened.constant("weight")
    opened.close()
    del opened
    gc.collect()
    assert mapped() is not None
    assert kept.sum() == 2016
    del kept
    gc.collect()
    assert mapped() is None


@pytest.mark.skipif(sys.platform != "linux", reason="counts open files through /proc")
def test_no_file_stays_open(path: Path, tmp_path: Path) -> None:
    def count() -> int:
        return sum(1 for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink())

    before = count()
    for _ in range(20):
        with open_package(path) as opened:
            opened.verify()
    (tmp_path / "bad.ptn").write_bytes(b"GGUF" + bytes(100))
    for _ in range(20):
        with pytest.raises(FormatError):
            open_package(tmp_path / "bad.ptn")
    del opened
    gc.collect()
    assert count() <= before


def test_threads(tools: Any) -> None:
    """Sixteen threads decode and read at once; all get the same objects."""
    constants = {f"c{i}": np.full(100, i, np.float32) for i in range(50)}
    methods = tuple(tools.method_of(constants, f"m{i}") for i in range(8))
    target = io.BytesIO()
    write_package(target, Program("1.0", methods), constants)
    opened = open_package(target.getvalue())
    barrier = threading.Barrier(16)
    results: list[list[int]] = []
    failures: list[BaseException] = []

    def work() -> None:
        try:
            barrier.wait()
            ids = [id(opened.method(f"m{i}")) for i in range(8)]
            for i in range(50):
                assert opened.constant(f"c{i}")[99] == i
            opened.verify()
            results.append(ids)
        except BaseException as error:  # handed to the main thread
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert len(results) == 16
    assert all(ids == results[0] for ids in results)


def quantised_program(tools: Any, constants: dict[str, Any], schemes: dict[str, Any]) -> Program:
    program = tools.program_of(constants)
    method = program.methods[0]
    bindings = []
    for binding in method.constants:
        if binding.data_key in schemes:
            sizes, scheme = schemes[binding.data_key]
            meta = TensorMeta(ScalarType.BYTE, tuple(Dim(n, n) for n in sizes), None, scheme)
            binding = type(binding)(binding.name, binding.data_key, meta, binding.kind, False)
        bindings.append(binding)
    changed = type(method)(method.name, method.graph, tuple(bindings), method.output_specs, method.mutable_buffers)
    return Program(program.version, (changed,))


def test_quantised_constants(tools: Any) -> None:
    scheme = AffineGroup("w.scale", ScalarType.FLOAT, -8, 7, 4)
    blocks = PackedQuant("gguf:q8_0")
    values = np.arange(16).reshape(2, 8) - 8
    constants = {
        "w": pack_affine(values, scheme),
        "w.scale": np.ones((2, 2), np.float32),
        "g": np.zeros((3, 34), np.uint8),
    }
    program = quantised_program(tools, constants, {"w": ((2, 8), scheme), "g": ((3, 32), blocks)})
    target = io.BytesIO()
    write_package(target, program, constants)
    opened = open_package(target.getvalue())
    opened.verify()
    assert opened.quant("w") == scheme
    assert opened.quant("g") == blocks
    assert opened.quant("w.scale") is None
    assert opened.constant("w").shape == (2, 4)


class TestVerify:
    """`verify()` finds what opening leaves alone; errors say file, member and place."""

    def test_every_flipped_payload_byte(self, package: bytes) -> None:
        """No byte of any member can change unnoticed."""
        members = open_package(package)._archive.members  # type: ignore[union-attr]
        rng = np.random.default_rng(0)
        for name, member in members.items():
            for position in rng.integers(member.offset, member.offset + member.size, 60):
                damaged = bytearray(package)
                damaged[position] ^= 1 << rng.integers(8)
                with pytest.raises(FormatError) as caught:
                    open_package(bytes(damaged)).verify()
                assert caught.value.file == "<bytes>"
                if isinstance(caught.value, ArchiveError):
                    assert caught.value.member == name

    def test_structure(self, tools: Any, constants: dict[str, Any], package: bytes, message: Message) -> None:
        """The constants of another program: right checksums, wrong content."""
        other = dict(constants, bias=np.zeros(9, np.float32))
        members = tools.members_of(package)
        members["program.safetensors"] = tools.members_of(tools.package_of(other, ("state",)))["program.safetensors"]
        opened = open_package(tools.zip_of(members))
        text = message(GraphError, opened.verify)
        assert text.startswith("<bytes>, program.ptg, ")
        assert "bias" in text

    def test_bool_bytes(self, tools: Any, package: bytes, message: Message) -> None:
        members = tools.members_of(package)
        assert members["program.safetensors"].endswith(b"\x01\x00\x01")
        members["program.safetensors"] = members["program.safetensors"][:-1] + b"\x03"
        text = message(ConstantError, open_package(tools.zip_of(members)).verify)
        assert text.startswith("<bytes>, program.safetensors, constant 'mask': ")

    @pytest.mark.parametrize("aliases", [{"weight": "state"}, {"state": "weight"}])
    def test_mutable_alias(self, tools: Any, message: Message, aliases: dict[str, str]) -> None:
        constants = {"state": np.zeros(4, np.float32), "weight": np.zeros(4, np.float32)}
        members = tools.members_of(tools.package_of(constants, ("state",)))
        one = {key: value for key, value in constants.items() if key not in aliases}
        members["program.safetensors"] = tools.members_of(tools.package_of(one))["program.safetensors"]
        members["aliases.json"] = json.dumps(aliases).encode()
        text = message(GraphError, open_package(tools.zip_of(members)).verify)
        assert text.startswith("<bytes>, program.ptg: a method writes to 'state', but ")

    def test_missing_constants(self, tools: Any, package: bytes, message: Message) -> None:
        members = {"program.ptg": tools.members_of(package)["program.ptg"]}
        text = message(GraphError, open_package(tools.zip_of(members)).verify)
        assert text.startswith("<bytes>, program.ptg: the program breaks 5 rules of the format:\n")
        for key in ("bias", "mask", "state", "tied", "weight"):
            assert f"'{key}'" in text


class TestErrorsNameTheMember:
    """Damage inside a member is reported with file, member and place."""

    def test_program(self, tools: Any, package: bytes, message: Message) -> None:
        members = tools.members_of(package) | {"program.ptg": b"12345678"}
        text = message(ProgramError, lambda: open_package(tools.zip_of(members)))
        assert text.startswith("<bytes>, program.ptg: ")

    def test_version(self, tools: Any, package: bytes, message: Message) -> None:
        members = tools.members_of(package)
        members["program.ptg"] = members["program.ptg"].replace(b"1.0", b"2.0")
        text = message(UnsupportedVersionError, lambda: open_package(tools.zip_of(members)))
        assert text.startswith("<bytes>, program.ptg: the program has format version 2.0")

    def test_constants(self, tools: Any, package: bytes, message: Message, tmp_path: Path) -> None:
        members = tools.members_of(package)
        members["program.safetensors"] = members["program.safetensors"].replace(b"[8,8]", b"[8,9]", 1)
        file = tmp_path / "m.ptn"
        file.write_bytes(tools.zip_of(members))
        text = message(WeightsError, lambda: open_package(file))
        assert text == (
            f"{file}, program.safetensors, tensor 'tied': shape [8, 9] of F32 takes 288 bytes, "
            "but data_offsets [0, 256] give 256"
        )

    def test_aliases(self, tools: Any, package: bytes, message: Message) -> None:
        members = tools.members_of(package) | {"aliases.json": b'{"weight":"lost"}'}
        text = message(WeightsError, lambda: open_package(tools.zip_of(members)))
        assert text.startswith("<bytes>, aliases.json, alias 'weight': the alias is not valid: its owner 'lost' is not")


def test_public_names() -> None:
    for name in ptn_format.__all__:
        assert getattr(ptn_format, name) is not None
