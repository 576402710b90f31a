"""Packages: opening a `.ptn` file without copying its constants, and writing one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np

from ptn_format.archive import ALIASES, CONSTANTS, PROGRAM, Archive
from ptn_format.archive_writer import ArchiveWriter, replace_file
from ptn_format.codec import ProgramReader, encode_program
from ptn_format.dtypes import ScalarType
from ptn_format.errors import FormatError, GraphError, WriteError
from ptn_format.graph import Method, OutputKind, Program, QuantScheme
from ptn_format.mapping import Source, map_source
from ptn_format.validate import check_program
from ptn_format.weights import ConstantInfo, constant_array, read_aliases, read_header
from ptn_format.weights_writer import ArrayLike, WeightsPlan, plan_weights

__all__ = ["ConstantInfo", "Package", "mutable_keys", "open_package", "write_package"]


class Package:
    """An open package; made by `open_package`.

    Methods are decoded when they are first asked for, constants are views of the mapped file. Safe to use from
    several threads. `close` and leaving the `with` block let go of the file; arrays that were handed out stay
    valid and keep the map alive until they are gone.

    Attributes:
        path: the file's path, or None where the package came from memory or from a nameless file object.
    """

    def __init__(self, source: Source) -> None:
        mapping = map_source(source)
        self.path: str | None = mapping.path
        self._label = mapping.label
        archive = Archive(mapping)
        program = archive.view(PROGRAM)
        assert program is not None  # Archive refuses files without it
        self._reader = ProgramReader(program, file=self._label, member=PROGRAM)
        self._owners: dict[str, ConstantInfo] = {}
        self._aliases: dict[str, str] = {}
        try:
            if (constants := archive.view(CONSTANTS)) is not None:
                self._owners = read_header(constants, archive.members[CONSTANTS].offset)
        except FormatError as error:
            error.at(file=self._label, member=CONSTANTS)
            raise
        try:
            if (aliases := archive.view(ALIASES)) is not None:
                self._aliases = read_aliases(aliases, self._owners)
        except FormatError as error:
            error.at(file=self._label, member=ALIASES)
            raise
        self._view: memoryview | None = mapping.view
        self._archive: Archive | None = archive

    @property
    def version(self) -> str:
        """The format version that the file states."""
        return self._reader.version

    @property
    def method_names(self) -> tuple[str, ...]:
        """The methods, in the file's order."""
        return self._reader.method_names

    def method(self, name: str) -> Method:
        """Decodes a method on its first use; later calls give the same object.

        Raises:
            KeyError: the package has no such method.
            ProgramError, LimitError: the method is damaged or too large.
        """
        self._check_open()
        return self._reader.method(name)

    @property
    def program(self) -> Program:
        """The whole program; decodes every method."""
        self._check_open()
        return self._reader.program()

    @property
    def constant_keys(self) -> tuple[str, ...]:
        """Keys of all constants: those with bytes of their own in the file's order, then the aliases."""
        return (*self._owners, *self._aliases)

    def owner(self, key: str) -> str:
        """The key under which the bytes of constant `key` are stored; `key` itself unless it is an alias.

        Raises:
            KeyError: the package has no such constant.
        """
        return self.constant_info(key).key

    def constant_info(self, key: str) -> ConstantInfo:
        """What the file says of a constant. For an alias it is its owner's entry.

        Raises:
            KeyError: the package has no such constant.
        """
        return self._owners[self._aliases.get(key, key)]

    def constant(self, key: str) -> np.ndarray[Any, np.dtype[Any]]:
        """A constant's stored values, read-only, in their stored dtype and shape (packed ones as uint8).

        The array is a view of the file where its address suits the dtype, else a copy that is made anew by each
        call. All files of `write_package` are aligned.

        Raises:
            KeyError: the package has no such constant.
            ConstantError: a boolean constant has bytes other than 0 and 1.
        """
        info = self.constant_info(key)
        view = self._check_open()
        try:
            return constant_array(view, info)
        except FormatError as error:
            error.at(file=self._label, member=CONSTANTS)
            raise

    def quant(self, key: str) -> QuantScheme | None:
        """How a constant's bytes encode its values, as the methods that bind it say; None for plain constants.

        Decodes methods until one binds the constant.
        """
        for name in self.method_names:
            for binding in self.method(name).constants:
                if binding.data_key == key:
                    return binding.meta.quant
        return None

    def verify(self) -> None:
        """Checks everything: the members' checksums, the program's structure, and that the constants fit it.

        Reads the whole file once, in chunks.

        Raises:
            ArchiveError: a member's bytes are not those that were written.
            GraphError: the program breaks structural rules; the text lists all problems.
            ConstantError: a boolean constant has bytes other than 0 and 1.
            ProgramError, LimitError: a method is damaged or too large.
        """
        self._check_open()
        archive = self._archive
        assert archive is not None
        for name in archive.members:
            archive.verify(name)
        constants = {key: self.constant_info(key) for key in self.constant_keys}
        try:
            program = self.program
            check_program(program, constants)
            self._check_aliases(mutable_keys(program))
        except GraphError as error:
            error.at(file=self._label, member=PROGRAM)
            raise
        for key, info in self._owners.items():
            if info.dtype is ScalarType.BOOL:  # no other bytes can be wrong values
                self.constant(key)

    def _check_aliases(self, mutable: frozenset[str]) -> None:
        for alias, owner in self._aliases.items():
            for key in (alias, owner):
                if key in mutable:
                    raise GraphError(
                        f"a method writes to {key!r}, but {alias!r} is stored as an alias of {owner!r}: a buffer that "
                        "is written to has bytes of its own. Write the package again with `write_package`"
                    )

    def close(self) -> None:
        """Lets go of the file. May be called twice; arrays that were handed out stay valid."""
        self._view = self._archive = None

    def _check_open(self) -> memoryview:
        if self._view is None:
            raise ValueError(f"the package {self._label} is closed")
        return self._view

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = " (closed)" if self._view is None else ""
        return f"<Package {self._label}: {len(self.method_names)} methods, {len(self.constant_keys)} constants{state}>"


def open_package(source: Source) -> Package:
    """Opens a `.ptn` package.

    Reads the archive's directory, the list of methods and the list of constants; neither graphs nor constants.

    Args:
        source: a path (the file is mapped; it must not be changed in place while in use); bytes or another buffer
            (used without a copy); or a binary file object (mapped where it is a plain file, else read whole).

    Raises:
        FormatError: the file is damaged, is something else, or exceeds a limit; the subclass and the text say what.
        OSError: the path cannot be opened.
    """
    return Package(source)


def write_package(
    target: str | os.PathLike[str] | BinaryIO,
    program: Program,
    constants: Mapping[str, ArrayLike],
    *,
    progress: Callable[[int], object] | None = None,
) -> None:
    """Writes a package.

    The result depends on `program` and `constants` alone, byte for byte. A path is replaced whole and only when
    everything has been written to disk: whatever fails, an older file stays as it was. Constants that no method
    writes to and that have the same dtype, shape and content are stored once. Constants are asked for their values
    one at a time, and the values are not kept.

    Args:
        target: a path, whose missing parent directories are made, or a binary file object that can seek and is at
            its start. What is in a file object when writing fails is not a package.
        program: the program.
        constants: the values of all constants that the program binds, by data key, in their stored form; arrays, or
            anything else with `dtype`, `shape` and `__array__`.
        progress: called with the number of bytes of constants that have been written since the last call.

    Raises:
        WriteError: the program breaks a structural rule, a constant is missing or does not fit what the program
            says of it, or the format cannot hold one; the text lists all problems or names the constant.
        OSError: the target cannot be written.
    """
    label = os.fsdecode(target) if isinstance(target, str | os.PathLike) else None
    try:
        plan = plan_weights(constants, mutable_keys(program))
        try:
            check_program(program, plan.infos)
        except GraphError as error:
            raise WriteError(error.reason, place=error.place) from error
        encoded = encode_program(program)
        if isinstance(target, str | os.PathLike):
            with replace_file(os.fspath(target)) as file:
                _write_members(file, encoded, plan, progress)
        else:
            _write_members(target, encoded, plan, progress)
    except FormatError as error:
        error.at(file=label)
        raise


def mutable_keys(program: Program) -> frozenset[str]:
    """Keys of the buffers that some method of the program writes to."""
    keys: set[str] = set()
    for method in program.methods:
        keys.update(binding.data_key for binding in method.constants if binding.mutated)
        keys.update(binding.fqn for binding in method.mutable_buffers)
        keys.update(
            spec.target
            for spec in method.output_specs
            if spec.kind is OutputKind.BUFFER_MUTATION and spec.target is not None
        )
    return frozenset(keys)


def _write_members(file: BinaryIO, program: bytes, plan: WeightsPlan, progress: Callable[[int], object] | None) -> None:
    writer = ArchiveWriter(file)
    writer.add(PROGRAM, len(program), [program])
    if plan.owners:
        writer.add(CONSTANTS, plan.size, _counted(plan.chunks(), progress) if progress is not None else plan.chunks())
    if plan.aliases:
        aliases = plan.aliases_json()
        writer.add(ALIASES, len(aliases), [aliases])
    writer.finish()


def _counted(chunks: Iterator[bytes | memoryview], progress: Callable[[int], object]) -> Iterator[bytes | memoryview]:
    """The chunks; when the next one is asked for, the last one has been written."""
    for chunk in chunks:
        yield chunk
        progress(len(chunk))
        del chunk  # a view of a constant, which must go before the next one is made
