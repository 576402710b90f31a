"""Writing the zip archive around a package: reproducible byte for byte, aligned, and whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import struct
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

from ptn_format.archive import (
    CENTRAL_HEADER,
    CENTRAL_SIGNATURE,
    END_RECORD,
    END_SIGNATURE,
    LOCAL_HEADER,
    LOCAL_SIGNATURE,
    MAX_16,
    MAX_32,
    ZIP64_END_RECORD,
    ZIP64_END_SIGNATURE,
    ZIP64_EXTRA_ID,
    ZIP64_LOCATOR,
    ZIP64_LOCATOR_SIGNATURE,
)
from ptn_format.errors import WriteError

__all__ = ["ALIGNMENT", "ArchiveWriter", "replace_file"]

ALIGNMENT = 64
"""Every member starts at a multiple of this many bytes: a cache line, and the widest vector register."""

_ALIGNMENT_EXTRA_ID = 0xD935
"""Header id of the extra field that aligns a member: a 16-bit alignment, then zeros. Android's zipalign has it
registered for just this purpose."""
_DOS_DATE = (1980 - 1980) << 9 | 1 << 5 | 1
_VERSION = 20
_VERSION_ZIP64 = 45
_SYSTEM_UNIX = 3 << 8
_ATTRIBUTES = 0o600 << 16
_CRC_OFFSET = 14
_WORTH_A_THREAD = 1 << 20


class ArchiveWriter:
    """Writes stored members one after another.

    Args:
        file: where to write; must be able to seek, and be at its start.

    Raises:
        WriteError: the file cannot seek, or is not at its start.
    """

    def __init__(self, file: BinaryIO) -> None:
        if not file.seekable():
            raise WriteError(
                "a package can only be written to a file that can seek, because each member's checksum is filled in "
                "after its bytes. Write to a path or to io.BytesIO and send that"
            )
        if file.tell() != 0:
            raise WriteError(f"the file object is at byte {file.tell()}; a package must start at byte 0 of its file")
        self._file = file
        self._position = 0
        self._directory: list[bytes] = []

    def add(self, name: str, size: int, chunks: Iterable[bytes | memoryview]) -> int:
        """Writes one member.

        Args:
            name: its name, ASCII.
            size: how many bytes it has.
            chunks: its bytes, in pieces.

        Returns:
            Where its bytes start in the file: a multiple of `ALIGNMENT`.

        Raises:
            WriteError: the chunks do not have `size` bytes.
        """
        header_offset = self._position
        self._write(self._local_header(name, size))
        offset = self._position
        crc = written = 0
        with ThreadPoolExecutor(1) as pool:
            for chunk in chunks:
                written += len(chunk)
                if len(chunk) < _WORTH_A_THREAD:
                    crc = zlib.crc32(chunk, crc)
                    self._write(chunk)
                else:  # the checksum costs about as much as writing does
                    checksum = pool.submit(_checksum, [chunk], crc)
                    self._write(chunk)
                    crc = checksum.result()
                del chunk  # a view of a constant, which must go before the next one is made
        if written != size:
            raise WriteError(f"the member was to have {size} bytes but {written} came", member=name)
        self._file.seek(header_offset + _CRC_OFFSET)
        self._write_all(struct.pack("<I", crc))
        self._file.seek(self._position)
        self._directory.append(_central_header(name, size, crc, header_offset))
        return offset

    def finish(self) -> None:
        """Writes the central directory and cuts off what an older file had beyond it."""
        offset, directory, count = self._position, b"".join(self._directory), len(self._directory)
        self._write(directory)
        if offset >= MAX_32 or len(directory) >= MAX_32 or count >= MAX_16:
            end = self._position
            fields = (44, _SYSTEM_UNIX | _VERSION_ZIP64, _VERSION_ZIP64, 0, 0, count, count, len(directory), offset)
            self._write(ZIP64_END_RECORD.pack(ZIP64_END_SIGNATURE, *fields))
            self._write(ZIP64_LOCATOR.pack(ZIP64_LOCATOR_SIGNATURE, 0, end, 1))
        small_count = min(count, MAX_16)
        sizes = (min(len(directory), MAX_32), min(offset, MAX_32))
        self._write(END_RECORD.pack(END_SIGNATURE, 0, 0, small_count, small_count, *sizes, 0))
        self._file.truncate()

    def _write(self, data: bytes | memoryview) -> None:
        self._write_all(data)
        self._position += len(data)

    def _write_all(self, data: bytes | memoryview) -> None:
        left = memoryview(data)
        while len(left):
            written = self._file.write(left)
            if not written:
                raise OSError(errno.EIO, f"only {len(data) - len(left)} of {len(data)} bytes were written")
            left = left[written:]  # an unbuffered file object may take less

    def _local_header(self, name: str, size: int) -> bytes:
        raw = name.encode("ascii")
        large = size >= MAX_32
        extra = struct.pack("<2H2Q", ZIP64_EXTRA_ID, 16, size, size) if large else b""
        unpadded = self._position + LOCAL_HEADER.size + len(raw) + len(extra) + 6
        padding = -unpadded % ALIGNMENT
        extra += struct.pack("<3H", _ALIGNMENT_EXTRA_ID, 2 + padding, ALIGNMENT) + bytes(padding)
        version, shown = (_VERSION_ZIP64, MAX_32) if large else (_VERSION, size)
        fields = (version, 0, 0, 0, _DOS_DATE, 0, shown, shown, len(raw), len(extra))
        return LOCAL_HEADER.pack(LOCAL_SIGNATURE, *fields) + raw + extra


def _checksum(chunk: list[bytes | memoryview], crc: int) -> int:
    """The checksum that continues `crc`; takes the chunk out of its list, so that the pool holds on to nothing."""
    return zlib.crc32(chunk.pop(), crc)


def _central_header(name: str, size: int, crc: int, header_offset: int) -> bytes:
    raw = name.encode("ascii")
    wide = [size, size] if size >= MAX_32 else []
    if header_offset >= MAX_32:
        wide.append(header_offset)
    extra = struct.pack(f"<2H{len(wide)}Q", ZIP64_EXTRA_ID, 8 * len(wide), *wide) if wide else b""
    version = _VERSION_ZIP64 if wide else _VERSION
    shown = min(size, MAX_32)
    fields = (_SYSTEM_UNIX | version, version, 0, 0, 0, _DOS_DATE, crc, shown, shown, len(raw), len(extra), 0, 0, 0)
    return CENTRAL_HEADER.pack(CENTRAL_SIGNATURE, *fields, _ATTRIBUTES, min(header_offset, MAX_32)) + raw + extra


@contextlib.contextmanager
def replace_file(path: str) -> Iterator[BinaryIO]:
    """Opens a temporary file beside `path` that takes its place, whole and on disk, when the block ends well.

    Where the block or anything after it fails, `path` is as it was and the temporary file is gone. A symbolic
    link stays a link: the file that it names is replaced. An older file's permissions are kept. Missing parent
    directories are made.

    Raises:
        WriteError: `path` is a directory, a device or a pipe.
        OSError: the file cannot be written.
    """
    path = os.path.realpath(path)
    mode = _mode_of(path)
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    # Not tempfile: its files are readable by their owner only, whatever the umask says.
    temporary = os.path.join(folder, f".ptn-{secrets.token_hex(8)}.tmp")
    file = open(temporary, "xb")  # noqa: SIM115 (closed below, before the replacement)
    try:
        with file:
            if mode is not None:
                os.chmod(temporary, mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_folder(folder)


def _mode_of(path: str) -> int | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        kind = "a directory" if stat.S_ISDIR(status.st_mode) else "a device, pipe or socket"
        raise WriteError(f"a package is written to a plain file, and this is {kind}", file=path)
    return stat.S_IMODE(status.st_mode)


def _sync_folder(folder: str) -> None:
    """Makes the new name last through a crash of the system, where the system can do that."""
    if os.name == "nt":
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # a folder that may be written to but not be listed
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems sync no directories
            raise
    finally:
        os.close(descriptor)
