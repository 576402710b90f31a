"""A progress bar for work that takes longer than two seconds, on a terminal only."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Any, Self, TextIO

__all__ = ["Progress"]

_DELAY = 2.0  # seconds
_INTERVAL = 0.2  # seconds


class Progress:
    """What is being done, and how much of it: drawn by a thread of its own, because one step may take long.

    Nothing is drawn where `shown` is false, where the file is no terminal, and in the first two seconds.

        with Progress(shown=True) as progress:
            progress.stage("write", total=1 << 30, unit="B")
            progress.advance(4096)

    Args:
        shown: whether to draw at all.
        file: where to; by default the standard error stream.
        delay: seconds without a bar.
    """

    def __init__(self, shown: bool, *, file: TextIO | None = None, delay: float = _DELAY) -> None:
        self._file = file if file is not None else sys.stderr
        self._delay = delay
        self._stage: tuple[str, int | None, str] = ("", None, "")
        self._done = 0
        self._finished = threading.Event()
        self._thread: threading.Thread | None = None
        if shown and self._file is not None and self._file.isatty():
            self._thread = threading.Thread(target=self._draw, name="ptn-export-progress", daemon=True)

    def stage(self, name: str, total: int | None = None, unit: str = "") -> None:
        """Begins the next part of the work.

        Args:
            name: what is done, for people.
            total: how much there is to do, where that is known.
            unit: what `total` counts: `B` for bytes.
        """
        self._done = 0
        self._stage = (name, total, unit)

    def advance(self, amount: int) -> None:
        """Notes that `amount` more is done."""
        self._done += amount

    def _draw(self) -> None:
        if self._finished.wait(self._delay):
            return
        from tqdm import tqdm

        bar: Any = None
        drawn: tuple[str, int | None, str] | None = None
        start = time.monotonic() - self._delay
        while True:
            if drawn != self._stage:
                if bar is not None:
                    bar.close()
                drawn = _, total, unit = self._stage
                form = "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} {rate_fmt}" if total else "{desc}"
                bar = tqdm(
                    total=total,
                    unit=unit,
                    unit_scale=True,
                    leave=False,
                    file=self._file,
                    bar_format=form,
                    mininterval=0,
                )
            bar.n = self._done
            bar.set_description_str(f"ptn-export: {drawn[0]}, {time.monotonic() - start:.0f} s")
            if self._finished.wait(_INTERVAL):
                bar.close()
                return

    def __enter__(self) -> Self:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finished.set()
        if self._thread is not None:
            self._thread.join()
