"""Real models with random weights and small configurations; `docs/models.md` is the table of them.

To add one, write an `Entry` into the file of its field (`language.py`, `audio.py`, `vision.py`), then
`nox -s models -- -k NAME` runs it and writes its row of the page.
"""

from zoo import audio, language, vision
from zoo.entry import Entry

__all__ = ["ENTRIES"]

ENTRIES: tuple[Entry, ...] = (*language.ENTRIES, *audio.ENTRIES, *vision.ENTRIES)
