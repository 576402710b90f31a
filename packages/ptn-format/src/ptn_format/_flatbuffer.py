"""A bounded reader of FlatBuffers tables, vectors and strings.

Python's FlatBuffers runtime has no verifier, so nothing here trusts the bytes:

* nothing outside the buffer is read; offsets lead forwards only, so there are no cycles;
* every table, vector and string that is visited is paid for, by its size, out of a budget of a few times the
  buffer's length. Parts that many fields share are allowed, but can't be made to cost more than that, neither
  here nor for those who walk the decoded graph;
* tables, vectors and strings start on 4-byte boundaries, as every FlatBuffers builder puts them.
"""

from __future__ import annotations

import struct
import sys
from array import array
from typing import Any

from ptn_format._tables import TABLE_COUNT, Table
from ptn_format.errors import LimitError, ProgramError

__all__ = ["FREE_BYTES", "FlatBuffer"]

FREE_BYTES = 128
"""A further use of a part that has been read already costs only what it has beyond these bytes."""

_BUDGET_FACTOR = 4
"""Bytes visited per byte of the buffer. Writers that share nothing need 1."""
_CACHED_VTABLES = 1 << 14
"""Vtables kept parsed per table type. Builders share vtables, so real files have a few dozen in all."""


class FlatBuffer:
    """Reads the parts of one buffer.

    Attributes:
        data: the bytes.
        size: their count.
        words: the buffer as unsigned 32-bit integers, so that `words[at >> 2]` is the one at byte `at`.
        budget: bytes that may still be visited.
    """

    __slots__ = ("_halves", "_layouts", "_signed", "_strings", "budget", "data", "size", "words")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)
        self.words = _integers(data, "I")
        self._signed = _integers(data, "i")
        self._halves = _integers(data, "H")
        self.budget = _BUDGET_FACTOR * self.size
        self._layouts: list[dict[int, tuple[int, tuple[int, ...]]]] = [{} for _ in range(TABLE_COUNT)]
        self._strings: dict[int, str] = {}

    def table(self, table: Table, at: int) -> tuple[int, ...]:
        """Opens the table at byte `at`.

        Returns:
            Each field's distance from `at`, 0 where the field is absent.

        Raises:
            ProgramError: the table is damaged, or lacks a required field.
            LimitError: the budget is spent.
        """
        if at & 3 or at + 4 > self.size:
            raise self.error(f"a {table.name} cannot start here: {self._outside(at)}", at)
        vtable = at - self._signed[at >> 2]
        layout = self._layouts[table.index].get(vtable)
        if layout is None:
            layout = self._parse_vtable(table, at, vtable)
        size, fields = layout
        if at + size > self.size:
            raise self.error(f"a {table.name} of {size} bytes reaches beyond the end ({self.size})", at)
        self.budget -= size
        if self.budget < 0:
            self.spend(0, at)
        return fields

    def _parse_vtable(self, table: Table, at: int, vtable: int) -> tuple[int, tuple[int, ...]]:
        if vtable & 1 or vtable < 0 or vtable + 4 > self.size:
            raise self.error(f"the vtable of a {table.name} lies at {vtable}, {self._outside(vtable)}", at)
        index = vtable >> 1
        vtable_size, size = self._halves[index], self._halves[index + 1]
        if vtable_size & 1 or vtable_size < 4 or vtable + vtable_size > self.size or size < 4:
            raise self.error(
                f"the vtable of a {table.name} at {vtable} claims {vtable_size} bytes for itself and {size} "
                "for the table",
                at,
            )
        known = (vtable_size - 4) >> 1
        offsets = []
        for number, field in enumerate(table.fields):
            offset = self._halves[index + 2 + number] if number < known else 0
            if offset == 0:
                if field.required:
                    raise self.error(f"a {table.name} has no '{field.name}', which every one must have", at)
            elif offset < 4 or offset + field.width > size or (field.is_offset and offset & 3):
                raise self.error(
                    f"'{field.name}' of a {table.name} has {field.width} bytes at {offset}, which do not fit "
                    f"its {size} bytes",
                    at,
                )
            offsets.append(offset)
        cache = self._layouts[table.index]
        if len(cache) >= _CACHED_VTABLES:
            cache.clear()
        layout = cache[vtable] = (size, tuple(offsets))
        return layout

    def follow(self, at: int) -> int:
        """The position that the offset stored at byte `at` leads to; it lies behind `at`.

        Raises:
            ProgramError: it leads outside, or nowhere.
        """
        offset = self.words[at >> 2]
        target = at + offset
        if offset < 4 or target + 4 > self.size:
            raise self.error(f"an offset of {offset} leads {'nowhere' if offset < 4 else self._outside(target)}", at)
        return target

    def string(self, at: int) -> str:
        """The string that the offset stored at byte `at` leads to.

        Raises:
            ProgramError: it lies outside, is not terminated, or is not UTF-8.
            LimitError: the budget is spent.
        """
        target = at + self.words[at >> 2]
        text = self._strings.get(target)
        if text is None:
            return self._new_string(at)
        if len(text) > FREE_BYTES:
            self.spend(len(text) - FREE_BYTES, target)
        return text

    def _new_string(self, at: int) -> str:
        start, length = self._extent("string", self.follow(at), 1)
        end = start + length
        if end >= self.size or self.data[end]:
            raise self.error(f"a string of {length} bytes is not terminated", start - 4)
        try:
            text = self.data[start:end].decode()
        except UnicodeDecodeError as error:
            raise self.error(
                f"a string is not UTF-8: {error.reason} at byte {start + error.start}", start - 4
            ) from error
        self._strings[start - 4] = text
        return text

    def vector(self, at: int, width: int) -> tuple[int, int]:
        """The vector that the offset stored at byte `at` leads to: position of its elements, and their count.

        Raises:
            ProgramError: it lies outside.
            LimitError: the budget is spent.
        """
        return self._extent("vector", self.follow(at), width)

    def scalars(self, at: int, code: str, width: int) -> tuple[Any, ...]:
        """The elements of a vector of scalars; `code` is struct's letter for them, `width` their bytes."""
        start, count = self.vector(at, width)
        return struct.unpack_from(f"<{count}{code}", self.data, start)

    def strings(self, at: int) -> tuple[str, ...]:
        """The elements of a vector of strings."""
        string = self.string
        start, count = self.vector(at, 4)
        return tuple([string(element) for element in range(start, start + 4 * count, 4)])

    def tables(self, at: int) -> list[int]:
        """The positions of the elements of a vector of tables."""
        start, count = self.vector(at, 4)
        first = start >> 2
        offsets = self.words[first : first + count].tolist()
        positions = [start + 4 * i + offset for i, offset in enumerate(offsets)]
        if count and (min(offsets) < 4 or max(positions) + 4 > self.size):
            for element in range(start, start + 4 * count, 4):
                self.follow(element)  # raises at the one that is wrong
        return positions

    def _extent(self, what: str, target: int, width: int) -> tuple[int, int]:
        if target & 3:
            raise self.error(f"a {what} starts off the 4-byte boundaries", target)
        count = self.words[target >> 2]
        if count * width > self.size - target - 4:
            raise self.error(f"a {what} of {count} elements reaches beyond the end ({self.size})", target)
        self.spend(4 + count * width, target)
        return target + 4, count

    def _outside(self, at: int) -> str:
        return "off the 4-byte boundaries" if 0 <= at < self.size - 4 else f"outside the {self.size} bytes"

    def spend(self, size: int, at: int) -> None:
        """Pays for a visit of `size` bytes.

        Raises:
            LimitError: the budget is spent.
        """
        self.budget -= size
        if self.budget < 0:
            raise LimitError(
                f"the parts of the program are shared so often that reading it would visit more than "
                f"{_BUDGET_FACTOR} times its {self.size} bytes; such a file is made to exhaust its reader",
                place=f"byte {at}",
            )

    @staticmethod
    def error(reason: str, at: int) -> ProgramError:
        """The error for damage at byte `at`."""
        return ProgramError(reason, place=f"byte {at}")


def _integers(data: bytes, code: str) -> memoryview:
    """The little-endian integers of `data`; a last, incomplete one is left out."""
    width = struct.calcsize(f"={code}")
    view = memoryview(data)[: len(data) // width * width].cast("B").cast(code)  # type: ignore[call-overload]
    if sys.byteorder == "little":
        return view  # type: ignore[no-any-return]
    swapped = array(code, view)
    swapped.byteswap()
    return memoryview(swapped)
