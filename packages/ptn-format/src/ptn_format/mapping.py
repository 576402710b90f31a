"""The bytes of a file as one read-only view: mapped where possible, never copied without need."""

from __future__ import annotations

import errno
import io
import mmap
import os
import stat
from typing import Any, BinaryIO

from ptn_format.errors import LimitError, NotAPackageError
from ptn_format.limits import MAX_PACKAGE_BYTES
from ptn_format.sniff import looks_like

__all__ = ["MAX_STREAM_BYTES", "Mapping", "Source", "map_source"]

Source = str | os.PathLike[str] | bytes | bytearray | memoryview | mmap.mmap | BinaryIO
"""What a package can be opened from."""

MAX_STREAM_BYTES = 4 << 30
"""Bytes read from a file object that cannot be mapped; a stream without end must not fill the memory."""

_READ_CHUNK = 1 << 20
_ZIP_PREFIX = b"PK"
_EMPTY = "not a .ptn package: the file is empty"


class Mapping:
    """A file's bytes.

    Attributes:
        view: all bytes, read-only. Views of it keep the memory alive, also after the `Mapping` is gone.
        label: how errors call the file: its path, or a description such as `<bytes>`.
        path: the path, where the bytes came from one.
    """

    def __init__(self, view: memoryview, label: str, path: str | None = None, map_: mmap.mmap | None = None) -> None:
        self.view = view
        self.label = label
        self.path = path
        self._map = map_

    def forget(self, offset: int, size: int) -> None:
        """Lets the system drop the pages of a range that was read once, such as by a checksum.

        Views stay valid: a page that is touched again is read from the file again.
        """
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            start = offset - offset % mmap.PAGESIZE
            self._map.madvise(mmap.MADV_DONTNEED, start, offset + size - start)


def map_source(source: Source) -> Mapping:
    """Maps a path or an open file, or takes bytes as they are.

    Args:
        source: a path; bytes or anything with the buffer protocol, used without a copy; or a binary file object.
            A file object over a plain file is mapped from its first byte, whatever its position; any other one is
            read to its end, from its start where it can seek.

    Raises:
        FileNotFoundError, PermissionError, OSError: the path cannot be opened.
        NotAPackageError: the path is a directory, a device or a pipe, or the file is empty.
        LimitError: the file is larger than this release accepts.
        TypeError: `source` is none of these.
    """
    if isinstance(source, str | os.PathLike):
        return _map_path(os.fspath(source))
    if hasattr(source, "read") and not isinstance(source, mmap.mmap):
        return _map_file_object(source)
    try:
        view = memoryview(source)
    except TypeError:
        raise TypeError(
            f"a package is opened from a path, bytes or a binary file object, not from {type(source).__name__}"
        ) from None
    return _from_buffer(view, f"<{type(source).__name__}>")


def _map_path(path: str | bytes) -> Mapping:
    label = os.fsdecode(path)
    if "\0" in label:
        raise NotAPackageError("the path contains a NUL character", file=repr(label))
    if os.path.isdir(path):
        raise NotAPackageError("not a .ptn package: this is a directory. Give the path of the .ptn file", file=label)
    # O_NONBLOCK: opening a pipe that nobody writes to would wait for ever.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    descriptor = os.open(path, flags)
    try:
        return _map_descriptor(descriptor, label, label)
    finally:
        os.close(descriptor)  # the map holds its own


def _map_descriptor(descriptor: int, label: str, path: str | None) -> Mapping:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise NotAPackageError("not a .ptn package: this is no plain file but a device, pipe or socket", file=label)
    _check_size(status.st_size, label)
    try:
        map_ = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    except ValueError:  # cut to nothing since its size was asked for
        raise NotAPackageError(_EMPTY, file=label) from None
    except OSError as error:
        if error.errno not in (errno.ENODEV, errno.ENOTSUP):
            raise
        return _from_buffer(memoryview(_read_descriptor(descriptor, label)), label, path)
    _check_size(len(map_), label)
    return Mapping(memoryview(map_), label, path, map_)


def _read_descriptor(descriptor: int, label: str) -> bytes:
    """Reads a file of a file system that maps none, such as some network and FUSE ones."""
    with open(os.dup(descriptor), "rb") as file:
        return _read_all(file, label)


def _map_file_object(file: Any) -> Mapping:
    name = getattr(file, "name", None)
    path = name if isinstance(name, str) and os.path.isfile(name) else None
    label = path or f"<{type(file).__name__}>"
    if isinstance(file, io.TextIOBase):
        raise TypeError(f"{label} is open as text; open it with mode 'rb'")
    if isinstance(file, io.BytesIO):
        return _from_buffer(memoryview(file.getvalue()), label)  # shares the bytes until the next write
    raw = _raw_file(file)
    if raw is not None:
        if raw.writable():
            file.flush()
        if stat.S_ISREG(os.fstat(raw.fileno()).st_mode):
            return _map_descriptor(raw.fileno(), label, path)
    return _from_buffer(memoryview(_read_all(file, label)), label)


def _raw_file(file: Any) -> io.FileIO | None:
    """The plain file below `file`, or None. A mere `fileno()` proves nothing: `gzip.GzipFile` has one too."""
    inner = getattr(file, "file", None)  # what the tempfile module wraps
    for candidate in (file, inner):
        if isinstance(candidate, io.BufferedReader | io.BufferedWriter | io.BufferedRandom):
            candidate = candidate.raw
        if isinstance(candidate, io.FileIO) and not candidate.closed:
            return candidate
    return None


def _read_all(file: Any, label: str) -> bytes:
    if getattr(file, "seekable", bool)():
        file.seek(0)
    parts: list[bytes] = []
    size = 0
    while chunk := file.read(_READ_CHUNK):
        if not isinstance(chunk, bytes):
            raise TypeError(f"{label} reads {type(chunk).__name__}, not bytes; open it with mode 'rb'")
        if not parts and not chunk.startswith(_ZIP_PREFIX[: len(chunk)]):
            raise NotAPackageError(f"not a .ptn package: {looks_like(memoryview(chunk))}", file=label)
        size += len(chunk)
        if size > MAX_STREAM_BYTES:
            raise LimitError(
                f"more than {MAX_STREAM_BYTES} bytes come from a file object that cannot be mapped. "
                "Save it to disk and open it by its path",
                file=label,
            )
        parts.append(chunk)
    return b"".join(parts)


def _from_buffer(view: memoryview, label: str, path: str | None = None) -> Mapping:
    if not view.c_contiguous:
        view = memoryview(view.tobytes())
    _check_size(view.nbytes, label)
    return Mapping(view.cast("B").toreadonly(), label, path)


def _check_size(size: int, label: str) -> None:
    if size == 0:
        raise NotAPackageError(_EMPTY, file=label)
    if size > MAX_PACKAGE_BYTES:
        raise LimitError(f"the file has {size} bytes; at most {MAX_PACKAGE_BYTES} are read", file=label)
