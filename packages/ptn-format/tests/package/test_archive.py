"""The zip reader: what it accepts, and how it refuses what it does not."""

from __future__ import annotations

import io
import shutil
import struct
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ptn_format import archive
from ptn_format.archive import PROGRAM, Archive
from ptn_format.errors import ArchiveError, FormatError, LimitError, NotAPackageError
from ptn_format.mapping import map_source
from ptn_format.package import open_package

Message = Callable[[type[Exception], Callable[[], object]], str]

LOCAL, CENTRAL, END = archive.LOCAL_HEADER, archive.CENTRAL_HEADER, archive.END_RECORD


def parse(data: bytes) -> Archive:
    return Archive(map_source(data))


def patch(data: bytes, offset: int, layout: str, *values: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into(layout, changed, offset, *values)
    return bytes(changed)


def central_offset(data: bytes, name: str) -> int:
    """Where the directory entry of a member starts."""
    return data.rindex(name.encode()) - CENTRAL.size


def local_offset(data: bytes, name: str) -> int:
    return data.index(name.encode()) - LOCAL.size


def test_reads_what_zipfile_writes(tools: Any) -> None:
    data = tools.zip_of({PROGRAM: b"12345678", "program.safetensors": b"abc", "aliases.json": b"{}"})
    opened = parse(data)
    assert list(opened.members) == [PROGRAM, "program.safetensors", "aliases.json"]
    assert bytes(opened.view(PROGRAM) or b"") == b"12345678"
    assert opened.view("other") is None
    for name in opened.members:
        opened.verify(name)


def test_views_are_read_only_and_in_place(tools: Any) -> None:
    data = tools.zip_of({PROGRAM: b"12345678"})
    opened = parse(data)
    view = opened.view(PROGRAM)
    assert view is not None
    assert view.readonly
    found = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    start = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    assert found - start == opened.members[PROGRAM].offset


@pytest.mark.parametrize("size", [0, 1, 1000])
def test_accepts_data_descriptors(size: int) -> None:
    class Pipe(io.RawIOBase):
        """A file that cannot seek makes zipfile write sizes after the bytes."""

        def __init__(self) -> None:
            self.parts: list[bytes] = []

        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            self.parts.append(bytes(data))
            return len(data)

    for large in (False, True):
        pipe = Pipe()
        with zipfile.ZipFile(pipe, "w") as file:  # type: ignore[arg-type]
            for name in (PROGRAM, "other"):
                with file.open(name, "w", force_zip64=large) as member:
                    member.write(b"x" * size)
        data = b"".join(pipe.parts)
        assert data[6] & 8
        opened = parse(data)
        assert opened.members["other"].size == size
        opened.verify(PROGRAM)
        position = opened.members[PROGRAM].offset + size + 5
        with pytest.raises(ArchiveError, match="data descriptor"):
            parse(patch(data, position, "<B", data[position] ^ 1))


def test_tolerates_other_stored_members_comments_and_folders(tools: Any) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.comment = b"made by PK\x05\x06 hand"
        file.writestr("a/", b"")
        info = zipfile.ZipInfo(PROGRAM)
        info.extra = struct.pack("<HH", 0x4242, 3) + b"odd"
        info.comment = b"comment"
        file.writestr(info, b"1234")
        file.writestr("Überblick.txt", "hello")
    opened = parse(buffer.getvalue())
    assert set(opened.members) == {"a/", PROGRAM, "Überblick.txt"}


@pytest.mark.parametrize("name", [PROGRAM, "notes.txt"])
def test_compressed_member_says_how_to_repack(tools: Any, message: Message, name: str) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr(PROGRAM, b"1234", zipfile.ZIP_DEFLATED if name == PROGRAM else zipfile.ZIP_STORED)
        file.writestr("notes.txt", b"0" * 999, zipfile.ZIP_DEFLATED if name != PROGRAM else zipfile.ZIP_STORED)
    text = message(ArchiveError, lambda: parse(buffer.getvalue()))
    assert text == (
        f"<bytes>, {name}: the member is compressed (method 8). Members must be stored as they are so that constants "
        "can be used straight from the file. Unpack the archive and re-pack it without compression and password "
        "(`zip -0`), or write it again with `write_package`"
    )


@pytest.mark.skipif(shutil.which("zip") is None, reason="Info-ZIP's zip is not installed")
@pytest.mark.parametrize("options", [["-0"], ["-0", "-X"], ["-0", "-fz"], ["-0", "-j", "-q", "-D"]])
def test_repacking_as_the_hint_says(package: bytes, tools: Any, tmp_path: Path, options: list[str]) -> None:
    members = tools.members_of(package)
    for name, content in members.items():
        (tmp_path / name).write_bytes(content)
    subprocess.run(["zip", *options, "model.ptn", *members], cwd=tmp_path, check=True, capture_output=True)
    open_package(tmp_path / "model.ptn").verify()
    if "-fz" not in options:  # with it Info-ZIP 3.0 pipes archives that its own unzip refuses
        piped = subprocess.run(["zip", *options, "-", *members], cwd=tmp_path, check=True, capture_output=True).stdout
        open_package(piped).verify()


@pytest.mark.parametrize("flag", [1, 1 << 13])
def test_encrypted_member(tools: Any, message: Message, flag: int) -> None:
    data = tools.zip_of({PROGRAM: b"1234"})
    data = patch(data, central_offset(data, PROGRAM) + 8, "<H", flag)
    assert "program.ptg: the member is encrypted. Members must be stored" in message(ArchiveError, lambda: parse(data))


def test_duplicate_names(message: Message) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr(PROGRAM, b"1234")
        with pytest.warns(UserWarning, match="Duplicate"):
            file.writestr(PROGRAM, b"5678")
    assert message(ArchiveError, lambda: parse(buffer.getvalue())).endswith("program.ptg: two members have this name")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("../evil", "leads out of the archive with '..'"),
        ("a/../../evil", "leads out of the archive with '..'"),
        ("..", "leads out of the archive with '..'"),
        ("/etc/passwd", "is an absolute path"),
        ("C:/evil", "is an absolute path"),
        ("a\\b", "contains a backslash"),
        ("a\0b", "contains a NUL character"),
        ("", "is empty"),
    ],
)
def test_unsafe_names(tools: Any, message: Message, name: str, reason: str) -> None:
    placeholder = "@" * len(name.encode())
    data = tools.zip_of({PROGRAM: b"1234", placeholder: b""})
    data = data.replace(b"@" * len(placeholder), name.encode()) if name else data
    text = message(ArchiveError, lambda: parse(data))
    assert f"the member name {name!r} {reason}" in text


def test_names_do_not_flood_or_steer_the_terminal(tools: Any, message: Message) -> None:
    for name in ("x" * 60_000, "\x1b[2J"):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as file:
            file.writestr(PROGRAM, b"1234")
            file.writestr(name, b"0" * 99, zipfile.ZIP_DEFLATED)
        text = message(ArchiveError, lambda b=buffer: parse(b.getvalue()))  # type: ignore[misc]
        assert len(text) < 600
        assert text.isprintable()


def test_dots_inside_a_name_are_fine(tools: Any) -> None:
    assert "a..b/c..txt" in parse(tools.zip_of({PROGRAM: b"1234", "a..b/c..txt": b""})).members


@pytest.mark.parametrize("count", [1, 10, 1000, 70_000])
def test_trailing_garbage(package: bytes, message: Message, count: int) -> None:
    text = message(ArchiveError, lambda: open_package(package + b"\0" * count))
    size = len(package)
    assert f"{count} bytes follow the end of the archive: expected {size} bytes, found {size + count}" in text


@pytest.mark.parametrize("garbage", [b"#!/bin/sh\n", b"\0" * 100_000, b"PK\x03\x04"])
def test_leading_garbage(package: bytes, message: Message, garbage: bytes) -> None:
    text = message(ArchiveError, lambda: open_package(garbage + package))
    assert f"{len(garbage)} bytes that belong to no member lie before" in text


def test_leading_garbage_with_adjusted_offsets(tools: Any, message: Message) -> None:
    buffer = io.BytesIO(b"#!/bin/sh\n")
    buffer.seek(0, io.SEEK_END)
    with zipfile.ZipFile(buffer, "a") as file:
        file.writestr(PROGRAM, b"1234")
    assert "10 bytes precede the archive's first member" in message(ArchiveError, lambda: parse(buffer.getvalue()))


def test_every_truncation_is_refused_with_both_sizes(package: bytes) -> None:
    rng = np.random.default_rng(0)
    sizes = {1, 2, 3, 4, 21, 22, 23, 30, 64, len(package) // 2, len(package) - 23, len(package) - 22, len(package) - 1}
    for size in sorted(sizes | set(rng.integers(5, len(package), 200).tolist())):
        with pytest.raises(ArchiveError, match=rf"cut short: found {size} bytes, expected (at least )?\d+") as caught:
            open_package(package[:size])
        expected = int(str(caught.value).split("expected ")[1].removeprefix("at least ").split()[0].strip(".,"))
        assert size < expected <= len(package)


def test_truncation_names_the_member_that_is_cut(message: Message, tools: Any) -> None:
    data = tools.package_of({"w": np.zeros(10_000, np.float32)})
    text = message(ArchiveError, lambda: open_package(data[:20_000]))
    assert "the member 'program.safetensors' alone reaches that far" in text
    assert "Was the download or the copy interrupted?" in text


def test_missing_middle(package: bytes, message: Message) -> None:
    text = message(ArchiveError, lambda: open_package(package[:1000] + package[1100:]))
    size = len(package)
    assert f"the file should have {size} bytes and has {size - 100}" in text


def test_inserted_middle(package: bytes) -> None:
    with pytest.raises(FormatError):
        open_package(package[:1000] + bytes(100) + package[1000:])


@pytest.mark.parametrize("comment_size", [1, 500])
def test_comment_that_does_not_reach_the_end(package: bytes, message: Message, comment_size: int) -> None:
    data = patch(package, len(package) - 2, "<H", comment_size)
    text = message(ArchiveError, lambda: open_package(data))
    assert f"expected {len(package) + comment_size}" in text


@pytest.mark.parametrize(
    ("offset", "layout"),
    [(4, "<H"), (6, "<H"), (8, "<H")],
)
def test_split_archives(package: bytes, message: Message, offset: int, layout: str) -> None:
    data = patch(package, len(package) - END.size + offset, layout, 7)
    assert "split over several files" in message(ArchiveError, lambda: open_package(data))


def test_split_archive_entry(tools: Any, message: Message) -> None:
    data = tools.zip_of({PROGRAM: b"1234"})
    data = patch(data, central_offset(data, PROGRAM) + 34, "<H", 1)
    assert "split over several files" in message(ArchiveError, lambda: parse(data))


@pytest.mark.parametrize(
    ("offset", "layout", "value", "what"),
    [
        (6, "<H", 2, "flags"),
        (8, "<H", 8, "compression method"),
        (14, "<I", 1, "CRC-32"),
        (18, "<I", 3, "size"),
        (22, "<I", 3, "size"),
        (30, "<B", 81, "name"),
    ],
)
def test_local_header_disagrees(tools: Any, message: Message, offset: int, layout: str, value: int, what: str) -> None:
    data = patch(tools.zip_of({PROGRAM: b"1234"}), offset, layout, value)
    text = message(ArchiveError, lambda: parse(data))
    assert f"program.ptg: the member's own header and the archive's directory disagree about the {what}" in text


def test_no_header_where_a_member_should_start(tools: Any, message: Message) -> None:
    data = tools.zip_of({PROGRAM: b"1234", "other": b"5678"})
    start = local_offset(data, "other")
    text = message(ArchiveError, lambda: parse(patch(data, start, "<H", 0)))
    assert text == f"<bytes>, other: no member starts at {start}, where one should"


def test_header_reaches_into_the_directory(tools: Any, message: Message) -> None:
    data = tools.zip_of({PROGRAM: b"1234"})
    text = message(ArchiveError, lambda: parse(patch(data, 28, "<H", 500)))
    assert "program.ptg: the member's header reaches into the archive's directory" in text


def test_sizes_of_a_stored_member_differ(tools: Any, message: Message) -> None:
    data = tools.zip_of({PROGRAM: b"1234"})
    data = patch(data, central_offset(data, PROGRAM) + 20, "<I", 3)
    assert "its two sizes differ: 3 and 4" in message(ArchiveError, lambda: parse(data))


def test_overlapping_members(tools: Any, message: Message) -> None:
    data = tools.zip_of({PROGRAM: b"1234", "other": b"5678"})
    data = patch(data, central_offset(data, "other") + 42, "<I", 0)
    assert "inside the one before it" in message(ArchiveError, lambda: parse(data))


def test_member_reaches_into_the_directory(tools: Any, message: Message) -> None:
    data = tools.zip_of({PROGRAM: b"1234"})
    for offset in (local_offset(data, PROGRAM) + 18, central_offset(data, PROGRAM) + 20):
        data = patch(data, offset, "<2I", 40, 40)
    assert "reach into the archive's directory" in message(ArchiveError, lambda: parse(data))


def test_hidden_bytes_between_members(tools: Any, message: Message) -> None:
    """A member that the directory does not list is refused, wherever it lies."""
    data = tools.zip_of({"first": b"11", PROGRAM: b"1234", "last": b"22"})
    for name, text in (
        ("first", "bytes precede the archive's first member"),
        ("last", "before the archive's directory belong to no member"),
    ):
        start = central_offset(data, name)
        size = CENTRAL.size + len(name)
        cut = data[:start] + data[start + size :]
        fields = list(END.unpack_from(cut, len(cut) - END.size))
        fields[3] = fields[4] = 2
        fields[5] -= size
        cut = cut[: -END.size] + END.pack(*fields)
        assert text in message(ArchiveError, lambda cut=cut: parse(cut))  # type: ignore[misc]


def test_count_of_entries(tools: Any, message: Message) -> None:
    data = tools.zip_of({PROGRAM: b"1234"})
    end = len(data) - END.size
    assert "holds 1 entries but should hold 2" in message(
        ArchiveError, lambda: parse(patch(data, end + 8, "<2H", 2, 2))
    )
    assert "belong to none of its 0 entries" in message(ArchiveError, lambda: parse(patch(data, end + 8, "<2H", 0, 0)))


def test_name_is_not_utf8(tools: Any, message: Message) -> None:
    data = tools.zip_of({PROGRAM: b"1234", "é": b""}).replace("é".encode(), b"\xff\xfe")
    assert "the member name b'\\xff\\xfe' is not UTF-8" in message(ArchiveError, lambda: parse(data))


def test_crc_is_checked_only_by_verify(package: bytes, message: Message) -> None:
    opened = open_package(package)
    position = opened.constant_info("bias").file_offset
    damaged = open_package(patch(package, position, "<B", package[position] ^ 1))
    text = message(ArchiveError, damaged.verify)
    assert text.startswith("<bytes>, program.safetensors: the bytes have the CRC-32 ")
    assert "Fetch or export the file again" in text


def test_caps(tools: Any, message: Message, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tools.zip_of({PROGRAM: b"12345678", "other": b""})
    monkeypatch.setattr(archive, "MAX_MEMBERS", 1)
    assert message(LimitError, lambda: parse(data)) == "<bytes>: the archive has 2 members; at most 1 are read"
    monkeypatch.undo()
    monkeypatch.setitem(archive._MEMBER_LIMITS, PROGRAM, 7)
    assert message(LimitError, lambda: parse(data)) == (
        "<bytes>, program.ptg: the member has 8 bytes; at most 7 are read"
    )


def test_declared_size_of_a_bomb(tools: Any, message: Message) -> None:
    """The sizes of a compressed bomb are never trusted: it is refused before anything is unpacked."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr(PROGRAM, b"1234")
        file.writestr("bomb.bin", bytes(8 << 20), zipfile.ZIP_DEFLATED)
    assert "bomb.bin: the member is compressed" in message(ArchiveError, lambda: parse(buffer.getvalue()))


def test_aliases_without_constants(tools: Any, message: Message) -> None:
    data = tools.zip_of({PROGRAM: b"1234", "aliases.json": b"{}"})
    assert "has aliases.json but no program.safetensors" in message(ArchiveError, lambda: parse(data))


def test_many_members_stay_linear(tools: Any) -> None:
    data = tools.zip_of({PROGRAM: b"1234"} | {f"m{i}": b"" for i in range(20_000)})
    assert len(parse(data).members) == 20_001


class TestZip64:
    """Records of archives that are, or claim to be, large."""

    @staticmethod
    def large(tools: Any) -> bytes:
        """A small archive with zip64 records everywhere."""
        entry = struct.pack("<2H2Q", 1, 16, 4, 4)
        name = PROGRAM.encode()
        limit = archive.MAX_32
        local = LOCAL.pack(archive.LOCAL_SIGNATURE, 45, 0, 0, 0, 33, 0x9BE3E0A3, limit, limit, len(name), len(entry))
        body = local + name + entry + b"1234"
        extra = struct.pack("<2H3QI", 1, 28, 4, 4, 0, 0)
        fields = (45, 45, 0, 0, 0, 33, 0x9BE3E0A3, limit, limit, len(name), len(extra), 0, 0xFFFF, 0, 0, limit)
        central = CENTRAL.pack(archive.CENTRAL_SIGNATURE, *fields) + name + extra
        offset = len(body) + len(central)
        record = archive.ZIP64_END_RECORD.pack(
            archive.ZIP64_END_SIGNATURE, 44, 45, 45, 0, 0, 1, 1, len(central), len(body)
        )
        locator = archive.ZIP64_LOCATOR.pack(archive.ZIP64_LOCATOR_SIGNATURE, 0, offset, 1)
        end = END.pack(archive.END_SIGNATURE, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, limit, limit, 0)
        return body + central + record + locator + end

    def test_reads(self, tools: Any) -> None:
        opened = parse(self.large(tools))
        assert bytes(opened.view(PROGRAM) or b"") == b"1234"
        opened.verify(PROGRAM)

    def test_records_without_need(self, tools: Any) -> None:
        """PyTorch's zip writer adds zip64 end records to every archive; zipfile and others read them."""
        data = tools.zip_of({PROGRAM: b"1234"})
        end = data[-END.size :]
        _, _, _, count, _, size, offset, _ = END.unpack(end)
        record = archive.ZIP64_END_RECORD.pack(
            archive.ZIP64_END_SIGNATURE, 44, 45, 45, 0, 0, count, count, size, offset
        )
        locator = archive.ZIP64_LOCATOR.pack(archive.ZIP64_LOCATOR_SIGNATURE, 0, offset + size, 1)
        parse(data[: -END.size] + record + locator + end).verify(PROGRAM)

    @pytest.mark.parametrize(
        ("from_end", "layout", "value", "text"),
        [
            (22 + 20 - 4, "<I", 1, "split over several files"),
            (22 + 20 - 16, "<I", 2, "split over several files"),
            (22 + 20 - 8, "<Q", 5, "the zip64 end record should lie at 5"),
            (22 + 20 - 8, "<Q", 2**63, "the zip64 end record should lie at 9223372036854775808"),
            (22 + 20 + 56 - 4, "<Q", 45, "does not reach to its locator"),
            (22 + 20 + 56 - 16, "<I", 1, "split over several files"),
            (22 + 20 + 56 - 24, "<Q", 2, "split over several files"),
            (22 + 20 + 56 - 40, "<Q", 2**40, "bytes are missing"),
            (22 + 20 + 56 - 48, "<Q", 1, "bytes that belong to no member"),
            (22 - 8, "<H", 2, "disagree about the count of members"),
            (22 - 12, "<I", 2, "disagree about the directory's size"),
        ],
    )
    def test_damage(self, tools: Any, message: Message, from_end: int, layout: str, value: int, text: str) -> None:
        data = self.large(tools)
        assert text in message(ArchiveError, lambda: parse(patch(data, len(data) - from_end, layout, value)))

    def test_locator_is_missing(self, tools: Any) -> None:
        data = self.large(tools)
        with pytest.raises(ArchiveError):
            parse(data[: -22 - 20] + data[-22:])

    @pytest.mark.parametrize("size", [0, 8, 20])
    def test_extra_field_is_short(self, tools: Any, message: Message, size: int) -> None:
        data = self.large(tools)
        start = data.rindex(struct.pack("<2H", 1, 28))
        text = message(ArchiveError, lambda: parse(patch(data, start + 2, "<H", size)))
        assert "program.ptg: the zip64 extra field is cut short" in text

    def test_extra_field_is_missing(self, tools: Any, message: Message) -> None:
        data = self.large(tools)
        start = data.rindex(struct.pack("<2H", 1, 28))
        text = message(ArchiveError, lambda: parse(patch(data, start, "<H", 2)))
        assert "needs one zip64 extra field and has 0" in text

    def test_extra_field_is_too_long(self, tools: Any, message: Message) -> None:
        data = self.large(tools)
        start = data.rindex(struct.pack("<2H", 1, 28))
        text = message(ArchiveError, lambda: parse(patch(data, start + 2, "<H", 29)))
        assert "the extra field 0x0001 reaches beyond its header" in text


def test_not_a_package_is_told_before_other_faults(message: Message) -> None:
    """A compressed archive of something else is called what it is, not a compressed package."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x.npy", b"0" * 99)
    assert "numpy archive" in message(NotAPackageError, lambda: parse(buffer.getvalue()))
