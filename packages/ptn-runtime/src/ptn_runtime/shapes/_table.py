"""A table that the modules of the operator families fill, which are imported when something is first looked up."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, TypeVar

__all__ = ["FamilyTable"]

_Entry = TypeVar("_Entry")


class FamilyTable(Mapping[str, _Entry], Generic[_Entry]):
    """Entries by canonical operator name.

    Attributes:
        filled: what the modules imported so far have entered; looking here imports nothing.
    """

    def __init__(self, package: str, families: Sequence[str], what: str) -> None:
        """A table that the modules `families` of `package` fill by `enter`; an entry is a `what`."""
        self.filled: dict[str, _Entry] = {}
        self._package = package
        self._families = families
        self._what = what
        self._whole = False

    def enter(self, name: str, entry: _Entry) -> None:
        """Adds an entry; `ValueError` where the operator has one."""
        if name in self.filled:
            raise ValueError(f"{name} has a {self._what} already")
        self.filled[name] = entry

    def _load(self) -> dict[str, _Entry]:
        if not self._whole:
            for family in self._families:
                importlib.import_module(f"{self._package}.{family}")
            self._whole = True
        return self.filled

    def __getitem__(self, name: str) -> _Entry:
        return self._load()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._load())

    def __len__(self) -> int:
        return len(self._load())
