"""The member `program.ptg`: bytes to graph and back.

Only this module's two halves know the wire form: `_decode` (over the bounded reader `_flatbuffer` and the field
table `_tables`) and `_encode` (over the code generated from `schema/native_graph.fbs`).
"""

from __future__ import annotations

import re
import threading

from ptn_format import _tables as t
from ptn_format._decode import Decoder
from ptn_format._encode import encode_program
from ptn_format._flatbuffer import FlatBuffer
from ptn_format._version import __version__
from ptn_format.errors import FormatError, LimitError, ProgramError, UnsupportedVersionError
from ptn_format.graph import Method, Program
from ptn_format.limits import MAX_METHODS, MAX_PROGRAM_BYTES

__all__ = ["FORMAT_VERSION", "IDENTIFIER", "ProgramReader", "check_version", "decode_program", "encode_program"]

FORMAT_VERSION = "1.0"
"""The version of the format that this release writes, and the newest that it reads."""
IDENTIFIER = b"NPTG"
"""Bytes 4..7 of every program."""

_VERSION = re.compile(r"([0-9]{1,9})(?:\.([0-9]{1,9}))?")


class ProgramReader:
    """A program whose methods are decoded when they are asked for.

    Opening checks the version and lists the methods' names; the rest is read by `method`. Safe to use from
    several threads.

    Attributes:
        version: the version that the file states.
        method_names: in the file's order.
    """

    def __init__(
        self, data: bytes | bytearray | memoryview, *, file: str | None = None, member: str | None = None
    ) -> None:
        """Opens a program.

        Args:
            data: the bytes of `program.ptg`; they are copied unless they are `bytes`, so that nobody can change
                them while they are read.
            file: the file's path, for error messages.
            member: the zip member, for error messages.

        Raises:
            ProgramError: the bytes are no program, or a damaged one.
            UnsupportedVersionError: the program was written for a format that this release cannot read.
            LimitError: the program exceeds one of the caps of `ptn_format.limits`.
        """
        self._file = file
        self._member = member
        self._lock = threading.Lock()
        self._methods: dict[str, Method] = {}
        try:
            size = memoryview(data).nbytes
            if size > MAX_PROGRAM_BYTES:
                raise LimitError(f"a program of {size} bytes is larger than {MAX_PROGRAM_BYTES}")
            buffer = FlatBuffer(bytes(data))
            self.version, self._positions = _open(buffer)
        except FormatError as error:
            error.at(file=file, member=member)
            raise
        self.method_names: tuple[str, ...] = tuple(self._positions)
        self._buffer = buffer
        self._decoder = Decoder(buffer)

    def method(self, name: str) -> Method:
        """Decodes the method called `name`, the first time; later calls return the same object.

        Raises:
            KeyError: there is no such method.
            ProgramError: the method is damaged.
            LimitError: the method exceeds one of the caps of `ptn_format.limits`.
        """
        position = self._positions[name]
        with self._lock:
            method = self._methods.get(name)
            if method is None:
                budget = self._buffer.budget
                try:
                    method = self._methods[name] = self._decoder.method(position)
                except FormatError as error:
                    self._buffer.budget = budget  # trying again gives the same error
                    error.at(file=self._file, member=self._member)
                    raise
            return method

    def program(self) -> Program:
        """Decodes all methods; raises as `method` does."""
        return Program(self.version, tuple(self.method(name) for name in self.method_names))


def decode_program(data: bytes | bytearray | memoryview, *, file: str | None = None) -> Program:
    """Decodes a whole program.

    Args:
        data: the bytes of `program.ptg`.
        file: the file's path, for error messages.

    Raises:
        ProgramError: the bytes are no program, or a damaged one; the error says where.
        UnsupportedVersionError: the program was written for a format that this release cannot read.
        LimitError: the program exceeds one of the caps of `ptn_format.limits`.
    """
    return ProgramReader(data, file=file).program()


def check_version(version: str | None) -> None:
    """Checks that this release can read a program of format `version`.

    Raises:
        ProgramError: it is not a version.
        UnsupportedVersionError: it is one of another major or a newer minor number.
    """
    match = _VERSION.fullmatch(version or "")
    if match is None:
        stated = f"states the version {version!r}" if version is not None else "states no version"
        raise ProgramError(f"the program {stated}; expected 'major.minor' such as {FORMAT_VERSION!r}")
    major, minor = int(match[1]), int(match[2] or 0)
    own_major, own_minor = (int(part) for part in FORMAT_VERSION.split("."))
    if major != own_major or minor > own_minor:
        older = (major, minor) < (own_major, own_minor)
        advice = "export the model again" if older else "install a newer ptn-format, or export with an older release"
        raise UnsupportedVersionError(
            f"the program has format version {major}.{minor}; ptn-format {__version__} reads "
            f"{own_major}.0 to {own_major}.{own_minor}: {advice}"
        )


def _open(buffer: FlatBuffer) -> tuple[str, dict[str, int]]:
    """Reads the root table: the version, and where each method lies."""
    if buffer.size < 8:
        raise ProgramError(f"a program of {buffer.size} bytes is cut short: its header alone has 8")
    identifier = buffer.data[4:8]
    if identifier != IDENTIFIER:
        raise ProgramError(f"this is no program: its bytes 4 to 7 are {identifier!r}, not {IDENTIFIER!r}")
    root = buffer.follow(0)
    version, methods = buffer.table(t.PROGRAM, root)
    text = buffer.string(root + version) if version else None
    check_version(text)
    elements = buffer.tables(root + methods)
    if len(elements) > MAX_METHODS:
        raise LimitError(f"a program of {len(elements)} methods has more than {MAX_METHODS}")
    positions: dict[str, int] = {}
    for element in elements:
        name, *_ = buffer.table(t.METHOD, element)
        method = buffer.string(element + name)
        if not method:
            raise buffer.error("a method has no name", element)
        if method in positions:
            raise buffer.error(f"two methods are called '{method}'", element)
        positions[method] = element
    return text or "", positions
