"""The zip archive around a package: reading its stored members in place.

A `.ptn` file is a zip archive whose members are stored, not compressed, so that constants can be used straight from
the mapped file. The layout follows PKWARE's APPNOTE.TXT 6.3.10, sections 4.3 (records) and 4.5 (extra fields).
Everything in the file must be accounted for: records, members and data descriptors follow one another without gaps.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from ptn_format.errors import ArchiveError, LimitError, NotAPackageError
from ptn_format.limits import MAX_JSON_BYTES, MAX_MEMBER_BYTES, MAX_MEMBERS, MAX_PROGRAM_BYTES
from ptn_format.mapping import Mapping
from ptn_format.sniff import looks_like, looks_like_zip_of

__all__ = ["ALIASES", "CONSTANTS", "MEMBERS", "PROGRAM", "Archive", "Member"]

PROGRAM = "program.ptg"
CONSTANTS = "program.safetensors"
ALIASES = "aliases.json"
MEMBERS = (PROGRAM, CONSTANTS, ALIASES)
"""The members of a package, in the order in which they are written. Only the first is always there."""

LOCAL_HEADER = struct.Struct("<4s5H3I2H")
CENTRAL_HEADER = struct.Struct("<4s6H3I5H2I")
END_RECORD = struct.Struct("<4s4H2IH")
ZIP64_END_RECORD = struct.Struct("<4sQ2H2I4Q")
ZIP64_LOCATOR = struct.Struct("<4sIQI")
LOCAL_SIGNATURE = b"PK\x03\x04"
CENTRAL_SIGNATURE = b"PK\x01\x02"
END_SIGNATURE = b"PK\x05\x06"
ZIP64_END_SIGNATURE = b"PK\x06\x06"
ZIP64_LOCATOR_SIGNATURE = b"PK\x06\x07"
ZIP64_EXTRA_ID = 0x0001
MAX_16 = 0xFFFF
MAX_32 = 0xFFFFFFFF

_DESCRIPTOR_SIGNATURE = b"PK\x07\x08"
_SPANNING_SIGNATURE = b"PK\x07\x08"
_FLAG_ENCRYPTED = 1 << 0
_FLAG_DESCRIPTOR = 1 << 3
_FLAG_PATCH = 1 << 5
_FLAG_UTF8 = 1 << 11
_FLAG_MASKED = 1 << 13
_CHECKSUM_CHUNK = 8 << 20
_MEMBER_LIMITS = {PROGRAM: MAX_PROGRAM_BYTES, ALIASES: MAX_JSON_BYTES}
_SPLIT = "the archive is split over several files. Join them and re-pack the members into one"
_REPACK = (
    "Members must be stored as they are so that constants can be used straight from the file. Unpack the archive and "
    "re-pack it without compression and password (`zip -0`), or write it again with `write_package`"
)


@dataclass(frozen=True, slots=True)
class Member:
    """One stored member.

    Attributes:
        name: its name in the archive.
        offset: where its bytes start in the file.
        size: how many bytes it has.
        crc: the CRC-32 that the archive keeps of them.
    """

    name: str
    offset: int
    size: int
    crc: int


@dataclass(frozen=True, slots=True)
class _Entry:
    """A central directory entry."""

    raw_name: bytes
    name: str
    flags: int
    method: int
    crc: int
    compressed_size: int
    size: int
    header_offset: int

    @property
    def label(self) -> str:
        """How errors call it: at most one line of printable characters, whatever the name is."""
        return _label(self.name)


@dataclass(frozen=True, slots=True)
class _Directory:
    """Where the central directory lies."""

    offset: int
    size: int
    count: int


class Archive:
    """The members of a mapped package.

    Raises:
        NotAPackageError: the file is something else.
        ArchiveError: the archive is damaged, cut short, or uses what the format forbids.
        LimitError: a size exceeds what this release accepts.
    """

    def __init__(self, mapping: Mapping) -> None:
        self._mapping = mapping
        view = mapping.view
        try:
            directory = _find_directory(view)
            entries = list(_read_entries(view, directory))
            if not any(entry.name == PROGRAM for entry in entries):
                kind = looks_like_zip_of([entry.name for entry in entries])
                raise NotAPackageError(f"not a .ptn package: {kind}")
            _check_entries(entries)
            self.members = _locate_members(view, entries, directory.offset)
        except (ArchiveError, NotAPackageError, LimitError) as error:
            error.at(file=mapping.label)
            raise

    @property
    def label(self) -> str:
        """How errors call the file."""
        return self._mapping.label

    def view(self, name: str) -> memoryview | None:
        """The bytes of a member, read-only and in place; None where the archive has no such member."""
        member = self.members.get(name)
        return None if member is None else self._mapping.view[member.offset : member.offset + member.size]

    def verify(self, name: str) -> None:
        """Compares the member's bytes with its CRC-32, reading them once and in chunks.

        Raises:
            ArchiveError: they differ.
        """
        member = self.members[name]
        crc = 0
        for start in range(member.offset, member.offset + member.size, _CHECKSUM_CHUNK):
            size = min(_CHECKSUM_CHUNK, member.offset + member.size - start)
            crc = zlib.crc32(self._mapping.view[start : start + size], crc)
            self._mapping.forget(start, size)
        if crc != member.crc:
            raise ArchiveError(
                f"the bytes have the CRC-32 {crc:08x} but the archive keeps {member.crc:08x}: they were changed or "
                "damaged after they were written. Fetch or export the file again",
                file=self.label,
                member=name,
            )


def _find_directory(view: memoryview) -> _Directory:
    """Finds the central directory from the end record, which must end the file."""
    end = _find_end_record(view)
    _, *short, _ = END_RECORD.unpack_from(view, end)
    fields = short
    # PyTorch's writer, for one, has zip64 records whether or not a field is too small for its value.
    if MAX_16 in short[:4] or MAX_32 in short[4:] or short[4] + short[5] != end:
        located = _read_zip64_end(view, end, short)
        if located is not None:
            fields, end = located
    disk, directory_disk, count_here, count, size, offset = fields
    if disk or directory_disk or count_here != count:
        raise ArchiveError(_SPLIT)
    directory = _Directory(offset, size, count)
    found = directory.offset + directory.size
    if found < end:
        raise ArchiveError(
            f"{end - found} bytes that belong to no member lie before the archive's directory or before the archive "
            f"itself: it says that its directory ends at {found}, but it ends at {end}. Remove them"
        )
    if found > end:
        raise ArchiveError(
            f"bytes are missing: the archive's directory should end at {found} but ends at {end}, so the file should "
            f"have {len(view) + found - end} bytes and has {len(view)}. Fetch or export it again"
        )
    if directory.count > MAX_MEMBERS:
        raise LimitError(f"the archive has {directory.count} members; at most {MAX_MEMBERS} are read")
    return directory


def _find_end_record(view: memoryview) -> int:
    """Returns the offset of the end record whose comment reaches exactly to the end of the file."""
    start = max(0, len(view) - END_RECORD.size - MAX_16)
    tail = bytes(view[start:])
    nearest = None
    position = tail.rfind(END_SIGNATURE)
    while position >= 0:
        if len(tail) - position >= END_RECORD.size:
            comment_size = int.from_bytes(tail[position + 20 : position + 22], "little")
            end = position + END_RECORD.size + comment_size
            if end == len(tail):
                return start + position
            nearest = nearest if nearest is not None else start + end
        else:
            nearest = start + position + END_RECORD.size
        position = tail.rfind(END_SIGNATURE, 0, position)
    head = bytes(view[:4])
    if not LOCAL_SIGNATURE.startswith(head) and head != END_SIGNATURE:
        if head == _SPANNING_SIGNATURE:
            raise ArchiveError(_SPLIT)
        raise NotAPackageError(f"not a .ptn package: {looks_like(view)}")
    raise ArchiveError(_describe_damage(view, nearest))


def _describe_damage(view: memoryview, expected: int | None) -> str:
    """Says what is wrong with a file that starts as an archive but has no end record where it should be."""
    walk = _walk(view)
    if walk.complete:
        expected = walk.size
    elif expected is None:
        found = f"the file is cut short: found {len(view)} bytes, expected at least {walk.size}"
        reason = (
            f"the member {walk.cut!r} alone reaches that far" if walk.cut else "the directory at the end is missing"
        )
        return f"{found} ({reason}). Was the download or the copy interrupted? Fetch or export the file again"
    if expected < len(view):
        return (
            f"{len(view) - expected} bytes follow the end of the archive: expected {expected} bytes, "
            f"found {len(view)}. Remove them, or fetch the file again"
        )
    return (
        f"the file is cut short: found {len(view)} bytes, expected {expected}. "
        "Was the download or the copy interrupted? Fetch or export the file again"
    )


@dataclass(slots=True)
class _Walk:
    """What is known of an archive's size from reading it from its start.

    Attributes:
        size: where the archive ends, or the least size it must have had.
        cut: the member that reaches beyond the file.
        complete: whether the walk met the end record.
    """

    size: int
    cut: str = ""
    complete: bool = False


def _walk(view: memoryview) -> _Walk:
    """Follows the records from the start, as far as they tell their own size."""
    position = directory_size = 0
    while fields := _record(view, position, LOCAL_SIGNATURE, LOCAL_HEADER):
        size, name_size, extra_size = fields[7], fields[9], fields[10]
        start = position + LOCAL_HEADER.size
        extra = bytes(view[start + name_size : start + name_size + extra_size])
        if size == MAX_32 and len(extra) >= 12 and extra[:2] == b"\x01\0":
            size = int.from_bytes(extra[4:12], "little")
        position = start + name_size + extra_size + size
        directory_size += CENTRAL_HEADER.size + name_size
        if position > len(view):
            name = bytes(view[start : start + min(name_size, 80)]).decode("ascii", errors="replace")
            return _Walk(position + directory_size + END_RECORD.size, cut=name)
    least = max(len(view) + 1, position + directory_size + END_RECORD.size)
    while fields := _record(view, position, CENTRAL_SIGNATURE, CENTRAL_HEADER):
        position += CENTRAL_HEADER.size + sum(fields[10:13])
    if fields := _record(view, position, ZIP64_END_SIGNATURE, ZIP64_END_RECORD):
        position += 12 + fields[1] + ZIP64_LOCATOR.size
    if fields := _record(view, position, END_SIGNATURE, END_RECORD):
        return _Walk(position + END_RECORD.size + fields[7], complete=True)
    return _Walk(least)


def _record(view: memoryview, position: int, signature: bytes, layout: struct.Struct) -> tuple[int, ...]:
    """The fields of the record at `position`; empty where another one, or less than a whole one, is there."""
    if position + layout.size > len(view) or bytes(view[position : position + 4]) != signature:
        return ()
    return layout.unpack_from(view, position)


def _read_zip64_end(view: memoryview, end_record: int, short: list[int]) -> tuple[list[int], int] | None:
    """Reads the zip64 end record before `end_record`, if there is one.

    Args:
        view: the file.
        end_record: offset of the end record.
        short: its fields: disk, disk of the directory, count of members here, in all, size and offset of the directory.

    Returns:
        The same fields in full, and where the directory must end; None where the saturated ones are meant as they
        stand.
    """
    locator = end_record - ZIP64_LOCATOR.size
    if locator < 0 or bytes(view[locator : locator + 4]) != ZIP64_LOCATOR_SIGNATURE:
        return None
    _, disk, position, disks = ZIP64_LOCATOR.unpack_from(view, locator)
    if disk != 0 or disks > 1:
        raise ArchiveError(_SPLIT)
    if position + ZIP64_END_RECORD.size > locator or bytes(view[position : position + 4]) != ZIP64_END_SIGNATURE:
        raise ArchiveError(
            f"the zip64 end record should lie at {position} but is not there: bytes are missing or were put before it"
        )
    _, record_size, _, _, *fields = ZIP64_END_RECORD.unpack_from(view, position)
    if position + 12 + record_size != locator:
        raise ArchiveError(f"the zip64 end record at {position} does not reach to its locator at {locator}")
    what = (
        "disk",
        "directory's disk",
        "count of members",
        "count of members",
        "directory's size",
        "directory's offset",
    )
    for name, small, large, limit in zip(what, short, fields, [MAX_16] * 4 + [MAX_32] * 2, strict=True):
        if small not in (limit, large):
            raise ArchiveError(f"the two end records disagree about the {name}: {small} and {large}")
    return fields, position


def _read_entries(view: memoryview, directory: _Directory) -> Iterator[_Entry]:
    """Reads the central directory."""
    position, end = directory.offset, directory.offset + directory.size
    for index in range(directory.count):
        if position + CENTRAL_HEADER.size > end:
            raise ArchiveError(
                f"the archive's directory holds {index} entries but should hold {directory.count}",
                place=f"byte {position}",
            )
        fields = CENTRAL_HEADER.unpack_from(view, position)
        signature, _, _, flags, method, _, _, crc, compressed, size, name_size, extra_size, comment_size, disk = fields[
            :14
        ]
        if signature != CENTRAL_SIGNATURE:
            raise ArchiveError(f"entry {index} of the archive's directory has no signature", place=f"byte {position}")
        start = position + CENTRAL_HEADER.size
        position = start + name_size + extra_size + comment_size
        if position > end:
            raise ArchiveError(f"entry {index} of the archive's directory reaches beyond it", place=f"byte {start}")
        raw_name = bytes(view[start : start + name_size])
        name = _decode_name(raw_name, flags)
        extra = bytes(view[start + name_size : start + name_size + extra_size])
        size, compressed, header_offset, disk = _widen(name, extra, size, compressed, fields[16], disk)
        if disk:
            raise ArchiveError(_SPLIT, member=_label(name))
        yield _Entry(raw_name, name, flags, method, crc, compressed, size, header_offset)
    if position != end:
        raise ArchiveError(
            f"{end - position} bytes of the archive's directory belong to none of its {directory.count} entries"
        )


def _label(name: str) -> str:
    return name if name.isprintable() and len(name) <= 200 else repr(name[:200])


def _decode_name(raw: bytes, flags: int) -> str:
    try:
        return raw.decode("utf-8" if flags & _FLAG_UTF8 else "cp437")
    except UnicodeDecodeError as error:
        raise ArchiveError(f"the member name {raw[:80]!r} is not UTF-8: {error.reason}") from None


def _extra_fields(extra: bytes, name: str) -> Iterator[tuple[int, bytes]]:
    """Splits extra fields. Up to three trailing bytes are padding: several tools align members that way."""
    position = 0
    while position + 4 <= len(extra):
        identifier, size = struct.unpack_from("<2H", extra, position)
        position += 4 + size
        if position > len(extra):
            raise ArchiveError(f"the extra field {identifier:#06x} reaches beyond its header", member=_label(name))
        yield identifier, extra[position - size : position]


def _widen(name: str, extra: bytes, size: int, compressed: int, offset: int, disk: int) -> tuple[int, int, int, int]:
    """Replaces the saturated fields of a header by those of its zip64 extra field."""
    if MAX_32 not in (size, compressed, offset) and disk != MAX_16:
        return size, compressed, offset, disk
    fields = [data for identifier, data in _extra_fields(extra, name) if identifier == ZIP64_EXTRA_ID]
    if len(fields) != 1:
        raise ArchiveError(f"the header needs one zip64 extra field and has {len(fields)}", member=_label(name))
    data, position = fields[0], 0
    values = []
    for value, saturated, width in ((size, MAX_32, 8), (compressed, MAX_32, 8), (offset, MAX_32, 8), (disk, MAX_16, 4)):
        if value == saturated:
            if position + width > len(data):
                raise ArchiveError(f"the zip64 extra field is cut short: it has {len(data)} bytes", member=_label(name))
            value = int.from_bytes(data[position : position + width], "little")
            position += width
        values.append(value)
    return values[0], values[1], values[2], values[3]


def _check_entries(entries: list[_Entry]) -> None:
    """Checks what the directory says of each member."""
    seen: set[str] = set()
    for entry in entries:
        _check_name(entry.name)
        if entry.name in seen:
            raise ArchiveError("two members have this name", member=entry.label)
        seen.add(entry.name)
        if entry.flags & (_FLAG_ENCRYPTED | _FLAG_MASKED):
            raise ArchiveError(f"the member is encrypted. {_REPACK}", member=entry.label)
        if entry.method != 0 or entry.flags & _FLAG_PATCH:
            raise ArchiveError(f"the member is compressed (method {entry.method}). {_REPACK}", member=entry.label)
        if entry.compressed_size != entry.size:
            raise ArchiveError(
                f"the member is stored, but its two sizes differ: {entry.compressed_size} and {entry.size}",
                member=entry.label,
            )
        limit = _MEMBER_LIMITS.get(entry.name, MAX_MEMBER_BYTES)
        if entry.size > limit:
            raise LimitError(f"the member has {entry.size} bytes; at most {limit} are read", member=entry.label)
        if entry.name.endswith("/") and entry.size:
            raise ArchiveError(f"the directory entry has {entry.size} bytes", member=entry.label)
    if ALIASES in seen and CONSTANTS not in seen:
        raise ArchiveError(f"the archive has {ALIASES} but no {CONSTANTS} that it could refer to", member=ALIASES)


def _check_name(name: str) -> None:
    """Refuses names that lead out of a folder into which somebody unpacks the archive."""
    reason = ""
    if not name:
        reason = "is empty"
    elif "\0" in name:
        reason = "contains a NUL character"
    elif "\\" in name:
        reason = "contains a backslash"
    elif name.startswith("/") or name[1:2] == ":":
        reason = "is an absolute path"
    elif ".." in name.split("/"):
        reason = "leads out of the archive with '..'"
    if reason:
        raise ArchiveError(f"the member name {name[:200]!r} {reason}. Re-pack the members under plain relative names")


def _locate_members(view: memoryview, entries: list[_Entry], end: int) -> dict[str, Member]:
    """Reads the local headers; members must fill the file from its first byte to the directory at `end`."""
    ordered = sorted(entries, key=lambda entry: entry.header_offset)
    members: dict[str, Member] = {}
    position = 0
    for index, entry in enumerate(ordered):
        if entry.header_offset != position:
            raise _misplaced(entry, position)
        offset = _read_local_header(view, entry, end)
        position = offset + entry.size
        if position > end:
            raise ArchiveError(
                f"the member's {entry.size} bytes at {offset} reach into the archive's directory at {end}",
                member=entry.label,
            )
        if entry.flags & _FLAG_DESCRIPTOR:
            following = ordered[index + 1].header_offset if index + 1 < len(ordered) else end
            _check_descriptor(view, entry, position, following)
            position = following
        members[entry.name] = Member(entry.name, offset, entry.size, entry.crc)
    if position != end:
        raise ArchiveError(f"{end - position} bytes at {position} before the archive's directory belong to no member")
    return {entry.name: members[entry.name] for entry in entries}


def _misplaced(entry: _Entry, position: int) -> ArchiveError:
    if entry.header_offset < position:
        return ArchiveError(
            f"the member starts at {entry.header_offset}, inside the one before it, which ends at {position}",
            member=entry.label,
        )
    if position == 0:
        return ArchiveError(f"{entry.header_offset} bytes precede the archive's first member. Remove them")
    return ArchiveError(
        f"{entry.header_offset - position} bytes at {position}, before this member, belong to no member",
        member=entry.label,
    )


def _read_local_header(view: memoryview, entry: _Entry, end: int) -> int:
    """Compares a local header with its directory entry; returns where the member's bytes start."""
    start = entry.header_offset + LOCAL_HEADER.size
    if start > end or bytes(view[entry.header_offset : entry.header_offset + 4]) != LOCAL_SIGNATURE:
        raise ArchiveError(f"no member starts at {entry.header_offset}, where one should", member=entry.label)
    fields = LOCAL_HEADER.unpack_from(view, entry.header_offset)
    _, _, flags, method, _, _, crc, compressed, size, name_size, extra_size = fields
    offset: int = start + name_size + extra_size
    if offset > end:
        raise ArchiveError("the member's header reaches into the archive's directory", member=entry.label)
    extra = bytes(view[start + name_size : offset])
    size, compressed, _, _ = _widen(entry.name, extra, size, compressed, 0, 0)
    pairs: tuple[tuple[str, object, object], ...] = (
        ("name", bytes(view[start : start + name_size]), entry.raw_name),
        ("flags", flags, entry.flags),
        ("compression method", method, entry.method),
        ("CRC-32", crc, entry.crc),
        ("size", compressed, entry.compressed_size),
        ("size", size, entry.size),
    )
    late = entry.flags & _FLAG_DESCRIPTOR  # then a 0 stands for what is written after the bytes
    for what, local, central in pairs:
        if local != central and not (late and local == 0):
            raise ArchiveError(
                f"the member's own header and the archive's directory disagree about the {what}: "
                f"{local!r} and {central!r}",
                member=entry.label,
            )
    return offset


def _check_descriptor(view: memoryview, entry: _Entry, position: int, end: int) -> None:
    """Compares the data descriptor between a member's bytes and the next record with the directory."""
    found = bytes(view[position : min(end, position + 24)]) if end - position <= 24 else b""
    fields = (entry.crc, entry.compressed_size, entry.size)
    records = [struct.pack("<I2Q", *fields)]
    if entry.size <= MAX_32:
        records.append(struct.pack("<3I", *fields))
    if found not in [prefix + record for record in records for prefix in (b"", _DESCRIPTOR_SIGNATURE)]:
        raise ArchiveError(
            f"the data descriptor after the member's bytes, at {position}, is missing or disagrees with the directory",
            member=entry.label,
        )
