"""Models of images."""

from __future__ import annotations

from zoo.entry import Entry

ENTRIES: tuple[Entry, ...] = ()
