"""Packages of gigabytes: sparse files, so that they take no room on disk."""

from __future__ import annotations

import io
import time
import tracemalloc
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ptn_format.archive import CONSTANTS, PROGRAM, Archive
from ptn_format.archive_writer import ArchiveWriter
from ptn_format.codec import encode_program
from ptn_format.errors import ArchiveError
from ptn_format.mapping import map_source
from ptn_format.package import open_package, write_package
from ptn_format.weights_writer import plan_weights

GIB = 1 << 30
HOLE = memoryview(bytes(1 << 20))


class SparseFile(io.FileIO):
    """Leaves a hole where zeros are written."""

    def write(self, data: Any) -> int:
        if data is HOLE or (len(data) >= len(HOLE) and not np.frombuffer(data, np.uint64, len(data) // 8).any()):
            self.seek(len(data), io.SEEK_CUR)
            return len(data)
        return super().write(data) or 0


@pytest.fixture
def no_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checksums are as good as any other number where nobody verifies them, and take a second for each GiB."""
    monkeypatch.setattr(zlib, "crc32", lambda data, start=0: 0)


def large_package(path: Path, tools: Any, size: int) -> Path:
    """A package with `size` zeros as one constant, and a small constant behind them."""
    big = np.broadcast_to(np.uint8(0), (size // 4096, 4096))
    constants = {"after": np.array([1.5, 2.5], np.float32), "big": big}
    program, plan = encode_program(tools.program_of(constants)), plan_weights(constants)

    def chunks() -> Iterator[Any]:
        yield plan.header
        for _ in range(size // len(HOLE)):
            yield HOLE
        yield constants["after"].tobytes()

    with SparseFile(path, "w") as file:
        writer = ArchiveWriter(file)  # type: ignore[arg-type]
        writer.add(PROGRAM, len(program), [program])
        writer.add(CONSTANTS, plan.size, chunks())
        writer.finish()
    assert path.stat().st_blocks * 512 < 64 << 20, "the file system keeps no holes"
    return path


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.usefixtures("no_checksum")
def test_opening_takes_no_time_and_no_memory(tmp_path: Path, tools: Any) -> None:
    path = large_package(tmp_path / "large.ptn", tools, 2 * GIB)
    open_package(path)
    seconds = []
    for _ in range(3):
        resident, start = resident_bytes(), time.perf_counter()
        opened = open_package(path)
        seconds.append(time.perf_counter() - start)
        assert opened.constant("big").shape == (1 << 19, 4096)
        assert opened.constant("after").tolist() == [1.5, 2.5]
        assert resident_bytes() - resident < 50 << 20
    assert min(seconds) < 0.1


@pytest.mark.usefixtures("no_checksum")
def test_beyond_four_gib(tmp_path: Path, tools: Any) -> None:
    size = 4 * GIB + (1 << 20)
    path = large_package(tmp_path / "large.ptn", tools, size)
    with zipfile.ZipFile(path) as file:
        info = file.getinfo(CONSTANTS)
        assert info.file_size > size
        assert info.extract_version == 45
    opened = open_package(path)
    assert opened.constant_info("after").file_offset > size
    assert opened.constant("after").tolist() == [1.5, 2.5]
    assert opened.constant("big")[-1, -1] == 0
    with path.open("r+b") as cut:
        cut.truncate(size)
    with pytest.raises(ArchiveError, match=rf"cut short: found {size} bytes, expected at least 4\d{{9}}"):
        open_package(path)


@pytest.mark.usefixtures("no_checksum")
def test_writing_a_constant_beyond_four_gib(tmp_path: Path, tools: Any) -> None:
    """The real writer, with a constant of more than 4 GiB and others behind it; no second copy in memory."""
    big = np.zeros(((1 << 20) + 1, 4096), np.uint8)
    big[-1, -1] = 7
    constants = {"big": big} | {f"s{i}": np.array([i, i + 0.5]) for i in range(50)}
    path = tmp_path / "large.ptn"
    program = tools.program_of(constants)
    tracemalloc.start()
    with SparseFile(path, "w") as file:
        write_package(file, program, constants)  # type: ignore[arg-type]
    assert tracemalloc.get_traced_memory()[1] < 32 << 20
    tracemalloc.stop()
    opened = open_package(path)
    assert opened.constant("big")[-1, -1] == 7
    for i in range(50):
        assert opened.constant_info(f"s{i}").file_offset > 4 * GIB
        assert opened.constant(f"s{i}").tolist() == [i, i + 0.5]


def test_checksums_take_bounded_memory(tmp_path: Path, tools: Any) -> None:
    archive = Archive(map_source(large_package(tmp_path / "large.ptn", tools, GIB // 4)))
    resident = resident_bytes()
    archive.verify(CONSTANTS)
    assert resident_bytes() - resident < 64 << 20
