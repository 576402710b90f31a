"""Writing to a path is all or nothing, whatever fails and wherever."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ptn_format import archive_writer
from ptn_format.errors import WriteError
from ptn_format.package import open_package, write_package

OLD = b"the old file"


@pytest.fixture
def save(tools: Any, tmp_path: Path) -> Callable[[], None]:
    constants = {"w": np.arange(1000, dtype=np.float32), "v": np.arange(1000, dtype=np.float32)}
    program = tools.program_of(constants)
    return lambda: write_package(tmp_path / "model.ptn", program, constants)


@pytest.fixture(params=["absent", "present"])
def unchanged(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], None]:
    """Checks that the folder is as it was: the old file or none, and no temporary one."""
    path = tmp_path / "model.ptn"
    if request.param == "present":
        path.write_bytes(OLD)

    def check() -> None:
        assert os.listdir(tmp_path) == (["model.ptn"] if request.param == "present" else [])
        assert request.param == "absent" or path.read_bytes() == OLD

    return check


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), MemoryError(), KeyboardInterrupt()]
)
@pytest.mark.parametrize("function", ["os.fsync", "os.replace", "os.chmod", "zlib.crc32"])
def test_failing_function(
    save: Callable[[], None],
    unchanged: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    error: BaseException,
    tmp_path: Path,
) -> None:
    if function == "os.chmod" and not (tmp_path / "model.ptn").exists():
        return  # a new file's permissions are left to the system

    def fail(*args: Any) -> None:
        raise error

    module, name = function.split(".")
    monkeypatch.setattr(getattr(archive_writer, module), name, fail)
    with pytest.raises(type(error)):
        save()
    monkeypatch.undo()
    unchanged()


def test_every_write_can_fail(
    save: Callable[[], None], unchanged: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk is met at every single write, until none is left to fail."""
    monkeypatch.setattr(archive_writer, "open", LimitedFile, raising=False)
    failures = 0
    while failures < 100:
        LimitedFile.left = failures
        try:
            save()
            break
        except OSError:
            failures += 1
            unchanged()
    assert 8 < failures < 100


class LimitedFile:
    """A file on a disk that has room for a number of writes."""

    left = 0

    def __init__(self, path: str, mode: str) -> None:
        self._file = open(path, mode, buffering=0)  # noqa: SIM115 (the class is the context manager)

    def write(self, data: Any) -> int:
        type(self).left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._file.write(data) or 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> LimitedFile:
        return self

    def __exit__(self, *details: object) -> None:
        self._file.close()


def test_short_write(save: Callable[[], None], unchanged: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    class Short(LimitedFile):
        def write(self, data: Any) -> int:
            return super().write(memoryview(data)[: len(data) // 2])

    Short.left = 1000
    monkeypatch.setattr(archive_writer, "open", Short, raising=False)
    with pytest.raises(OSError, match="bytes were written"):
        save()
    unchanged()


def test_constant_that_cannot_be_made(tools: Any, unchanged: Callable[[], None], tmp_path: Path) -> None:
    class Broken:
        dtype, shape = np.dtype(np.float32), (2,)

        def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
            raise RuntimeError("the checkpoint is gone")

    constants = {"a": np.zeros(3), "b": Broken()}
    with pytest.raises(RuntimeError, match="the checkpoint is gone"):
        write_package(tmp_path / "model.ptn", tools.program_of(constants), constants)
    unchanged()


def test_what_the_format_cannot_hold(tools: Any, unchanged: Callable[[], None], tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="complex64"):
        write_package(tmp_path / "model.ptn", tools.program_of({}), {"x": np.zeros(2, np.complex64)})
    unchanged()


def test_data_reaches_the_disk_before_the_name(save: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash of the system leaves the old or the new file: file, then name, then folder."""
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace

    def record_fsync(descriptor: int) -> None:
        calls.append("sync folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "sync file")
        fsync(descriptor)

    def record_replace(source: str, target: str) -> None:
        calls.append("replace")
        open_package(source).verify()  # whole by now
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    save()
    assert calls == ["sync file", "replace", "sync folder"]


def test_folder_that_cannot_be_synced(
    save: Callable[[], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Some network file systems sync no folders; the file is written all the same."""
    fsync = os.fsync

    def refuse_folders(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse_folders)
    save()
    open_package(tmp_path / "model.ptn").verify()


def test_readers_of_the_old_file_keep_it(save: Callable[[], None], tmp_path: Path, tools: Any) -> None:
    path = tmp_path / "model.ptn"
    path.write_bytes(tools.package_of({"old": np.full(5000, 7.0)}))
    old = open_package(path)
    save()
    assert old.constant("old").tolist() == [7.0] * 5000
    old.verify()
    assert open_package(path).constant_keys == ("v", "w")


def test_permissions(save: Callable[[], None], tmp_path: Path) -> None:
    path = tmp_path / "model.ptn"
    before = os.umask(0o027)
    try:
        save()
        assert path.stat().st_mode & 0o777 == 0o640
        path.chmod(0o604)
        save()
        assert path.stat().st_mode & 0o777 == 0o604
    finally:
        os.umask(before)


def test_symbolic_link_stays(save: Callable[[], None], tmp_path: Path) -> None:
    real = tmp_path / "store"
    real.mkdir()
    (real / "v1.ptn").write_bytes(OLD)
    (tmp_path / "model.ptn").symlink_to(real / "v1.ptn")
    save()
    assert (tmp_path / "model.ptn").is_symlink()
    assert os.listdir(real) == ["v1.ptn"]
    open_package(real / "v1.ptn").verify()


def test_long_names(tools: Any, tmp_path: Path) -> None:
    path = tmp_path / ("ü" * 120 + ".ptn")  # 244 bytes; the temporary name must fit 255 too
    write_package(path, tools.program_of({}), {})
    assert os.listdir(tmp_path) == [path.name]
