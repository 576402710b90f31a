"""Where a package can be opened from, and what other files are called."""

from __future__ import annotations

import errno
import gzip
import io
import mmap
import os
import pickle
import struct
import tempfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ptn_format import mapping
from ptn_format.errors import ArchiveError, LimitError, NotAPackageError
from ptn_format.mapping import map_source
from ptn_format.package import open_package

Message = Callable[[type[Exception], Callable[[], object]], str]


def address(view: Any) -> int:
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])


@pytest.fixture
def path(tmp_path: Path, package: bytes) -> Path:
    file = tmp_path / "model.ptn"
    file.write_bytes(package)
    return file


def test_path_is_mapped(path: Path) -> None:
    for source in (path, str(path), os.fsencode(path)):
        if isinstance(source, bytes):
            continue  # bytes are a file's content, never its name
        opened = map_source(source)
        assert opened.label == opened.path == str(path)
        assert isinstance(opened.view.obj, mmap.mmap)
        assert opened.view.readonly


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, np.frombuffer])
def test_buffers_are_not_copied(package: bytes, kind: Any) -> None:
    source = kind(package, np.uint8) if kind is np.frombuffer else kind(package)
    opened = map_source(source)
    assert address(opened.view) == address(source)
    assert opened.view.readonly
    assert opened.path is None
    assert opened.label == f"<{type(source).__name__}>"
    open_package(source).verify()


def test_scattered_memory_is_gathered(package: bytes) -> None:
    scattered = np.repeat(np.frombuffer(package, np.uint8), 2)[::2]
    open_package(memoryview(scattered)).verify()


def test_mmap_is_used_as_it_is(path: Path) -> None:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as source:
        opened = map_source(source)
        assert opened.view.obj is source
        opened.view.release()


@pytest.mark.parametrize("mode", ["rb", "r+b"])
@pytest.mark.parametrize("buffering", [0, -1])
def test_open_files_are_mapped_from_their_start(path: Path, mode: str, buffering: int) -> None:
    with open(path, mode, buffering=buffering) as file:
        file.seek(17)
        opened = map_source(file)
        assert file.tell() == 17
    assert isinstance(opened.view.obj, mmap.mmap)
    assert opened.path == str(path)
    assert bytes(opened.view[:2]) == b"PK"


def test_temporary_files(package: bytes) -> None:
    with tempfile.NamedTemporaryFile() as named:
        named.write(package)  # not flushed
        opened = map_source(named)
        assert isinstance(opened.view.obj, mmap.mmap)
        assert bytes(opened.view) == package
    with tempfile.TemporaryFile() as nameless:
        nameless.write(package)
        opened = map_source(nameless)
        assert opened.path is None
        assert bytes(opened.view) == package
    with tempfile.SpooledTemporaryFile() as spooled:
        spooled.write(package)
        open_package(spooled).verify()


def test_bytesio_is_not_copied(package: bytes) -> None:
    source = io.BytesIO(package)
    source.seek(9)
    assert address(map_source(source).view) == address(package)


def test_gzip_file_is_read_not_mapped(tmp_path: Path, package: bytes) -> None:
    """`GzipFile.fileno` is the compressed file's; mapping it would give other bytes than reading it."""
    file = tmp_path / "model.ptn.gz"
    file.write_bytes(gzip.compress(package))
    with gzip.open(file) as source:
        open_package(source).verify()


def test_member_of_another_archive(package: bytes) -> None:
    outer = io.BytesIO()
    with zipfile.ZipFile(outer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("model.ptn", package)
    with zipfile.ZipFile(outer) as file, file.open("model.ptn") as source:
        open_package(source).verify()


class Stream:
    """A file object that can only be read."""

    def __init__(self, data: bytes = b"", endless: bytes = b"") -> None:
        self._inner = io.BytesIO(data)
        self._endless = endless
        self.taken = 0

    def read(self, size: int) -> bytes:
        chunk = self._inner.read(size) or self._endless * size
        self.taken += len(chunk)
        return chunk


def test_stream(package: bytes) -> None:
    opened = open_package(Stream(package))  # type: ignore[arg-type]
    assert repr(opened).startswith("<Package <Stream>: 1 methods")
    opened.verify()


def test_endless_streams_end(message: Message, monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = Stream(endless=b"\0")
    assert "zeros only" in message(NotAPackageError, lambda: open_package(zeros))  # type: ignore[arg-type]
    assert zeros.taken <= 1 << 20
    monkeypatch.setattr(mapping, "MAX_STREAM_BYTES", 3 << 20)
    plausible = Stream(b"PK\x03\x04", endless=b"\0")
    text = message(LimitError, lambda: open_package(plausible))  # type: ignore[arg-type]
    assert "more than 3145728 bytes" in text
    assert "open it by its path" in text
    assert plausible.taken <= 5 << 20


def test_text_file_and_other_types(path: Path) -> None:
    with path.open(encoding="latin-1") as file, pytest.raises(TypeError, match="open it with mode 'rb'"):
        open_package(file)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="open it with mode 'rb'"):
        open_package(io.StringIO("PK"))  # type: ignore[arg-type]
    for source in (7, None, ["model.ptn"]):
        with pytest.raises(TypeError, match="from a path, bytes or a binary file object"):
            open_package(source)  # type: ignore[arg-type]


def test_missing_and_unreadable_paths(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"absent\.ptn"):
        open_package(tmp_path / "absent.ptn")


def test_path_with_nul(message: Message) -> None:
    assert message(NotAPackageError, lambda: open_package("a\0b")) == "'a\\x00b': the path contains a NUL character"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_pipe_is_refused_without_waiting(tmp_path: Path, message: Message) -> None:
    pipe = tmp_path / "pipe.ptn"
    os.mkfifo(pipe)
    texts: list[str] = []
    thread = threading.Thread(target=lambda: texts.append(message(NotAPackageError, lambda: open_package(pipe))))
    thread.daemon = True
    thread.start()
    thread.join(10)
    assert texts == [f"{pipe}: not a .ptn package: this is no plain file but a device, pipe or socket"]


def test_directory(tmp_path: Path, message: Message) -> None:
    text = message(NotAPackageError, lambda: open_package(tmp_path))
    assert text == f"{tmp_path}: not a .ptn package: this is a directory. Give the path of the .ptn file"


def test_empty_file(tmp_path: Path, message: Message) -> None:
    file = tmp_path / "empty.ptn"
    file.touch()
    for source in (file, b"", io.BytesIO(), Stream()):
        assert "not a .ptn package: the file is empty" in message(NotAPackageError, lambda s=source: open_package(s))  # type: ignore[misc]


def test_file_system_that_maps_nothing(path: Path, package: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr("mmap.mmap", Refusing)
    opened = map_source(path)
    assert bytes(opened.view) == package
    assert opened.path == str(path)
    open_package(path).verify()
    with path.open("rb") as file:
        file.seek(5)
        assert bytes(map_source(file).view) == package


def test_file_that_is_cut_while_it_is_opened(path: Path, message: Message, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fstat

    def cut(descriptor: int) -> os.stat_result:
        status = real(descriptor)
        os.truncate(path, 0)
        return status

    monkeypatch.setattr(os, "fstat", cut)
    assert "the file is empty" in message(NotAPackageError, lambda: open_package(path))


def test_size_cap(package: bytes, message: Message, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "MAX_PACKAGE_BYTES", 100)
    text = message(LimitError, lambda: open_package(package))
    assert text == f"<bytes>: the file has {len(package)} bytes; at most 100 are read"


def safetensors(size: int = 8) -> bytes:
    header = b'{"x":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}'
    return struct.pack("<Q", len(header)) + header + bytes(size)


FOREIGN = {
    "bare safetensors": (safetensors(), "a safetensors file"),
    "git-lfs pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n",
        "a Git LFS pointer: the file itself was not fetched. Run `git lfs pull`",
    ),
    "html": (b"<!DOCTYPE html><html><body>404</body></html>", "an HTML page, such as a download's error page"),
    "html with bom": (b"\xef\xbb\xbf\n <HTML>", "an HTML page"),
    "gguf": (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "a GGUF file"),
    "bare program": (b"\x20\0\0\0NPTG" + bytes(32), "a bare program (.ptg) outside its package"),
    "executorch program": (b"\x20\0\0\0ET12" + bytes(32), "an ExecuTorch program (.pte)"),
    "pickle": (pickle.dumps({"weight": [1.0]}), "a Python pickle"),
    "onnx": (b"\x08\x07\x12\x07pytorch\x1a\x052.0.0:\x80", "an ONNX model"),
    "npy": (b"\x93NUMPY\x01\0v\0", "a numpy array"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(8), "an HDF5 file"),
    "gzip": (gzip.compress(b"x"), "a gzip archive. Decompress it first"),
    "tar": (b"name" + bytes(253) + b"ustar" + bytes(250), "a tar archive"),
    "elf": (b"\x7fELF\x02\x01", "an ELF binary"),
    "json": (b' {"model": 1}', "a JSON text"),
    "text": ("Hallo, schöne Welt\n".encode() * 40, "a text file"),
    "zeros": (bytes(4096), "zeros only; was it fully downloaded"),
    "noise": (b"\xfe\xdc\xba\x98\x76\x54\x32\x10" * 9, "b'\\xfe\\xdc\\xba\\x98vT2\\x10'"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_files(tmp_path: Path, message: Message, name: str) -> None:
    data, text = FOREIGN[name]
    file = tmp_path / "model.ptn"
    file.write_bytes(data)
    for source, label in ((file, str(file)), (data, "<bytes>"), (Stream(data), "<Stream>")):
        found = message(NotAPackageError, lambda s=source: open_package(s))  # type: ignore[misc]
        assert found.startswith(f"{label}: not a .ptn package: it ")
        assert text in found


FOREIGN_ZIPS = {
    "torch.save": (["archive/data.pkl", "archive/byteorder", "archive/data/0"], "a PyTorch checkpoint (torch.save)"),
    "torch.jit.save": (["m/data.pkl", "m/constants.pkl", "m/code/x.py"], "a PyTorch TorchScript module"),
    "torch.export.save": (["pt2/models/model.json", "pt2/version"], "a torch.export file (.pt2)"),
    "old torch.export.save": (["serialized_exported_program.json", "version"], "a torch.export file (.pt2)"),
    "npz": (["a.npy", "b.npy"], "a numpy archive (.npz)"),
    "wheel": (["x/__init__.py", "x-1.dist-info/WHEEL"], "a Python wheel"),
    "apk": (["AndroidManifest.xml", "classes.dex"], "an Android package"),
    "office": (["[Content_Types].xml", "word/document.xml"], "an Office document"),
    "lost program": (["program.safetensors"], "a package that lost its program.ptg"),
    "in a folder": (["model/program.ptg", "model/program.safetensors"], "program.ptg lies in the folder 'model/'"),
    "empty": ([], "an empty zip archive"),
    "unknown": (["a", "b", "c", "d"], "a zip archive without program.ptg; it holds 'a', 'b', 'c', ..."),
}


@pytest.mark.parametrize("name", FOREIGN_ZIPS)
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_foreign_zips(tools: Any, message: Message, name: str, compression: int) -> None:
    names, text = FOREIGN_ZIPS[name]
    data = tools.zip_of(dict.fromkeys(names, b"x" * 100), compression)
    found = message(NotAPackageError, lambda: open_package(data))
    assert found.startswith("<bytes>: not a .ptn package: it ")
    assert text in found


@pytest.mark.parametrize("data", [b"P", b"PK", b"PK\x03", b"PK\x03\x04"])
def test_start_of_a_zip(message: Message, data: bytes) -> None:
    assert f"cut short: found {len(data)} bytes" in message(ArchiveError, lambda: open_package(data))
