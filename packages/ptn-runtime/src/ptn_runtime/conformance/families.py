"""Collects the cases of every family module."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from ptn_runtime.conformance.case import Case
from ptn_runtime.shapes import FAMILIES

__all__ = ["all_cases"]


def all_cases() -> Iterator[Case]:
    """Every case of every family, in a fixed order.

    Raises:
        ValueError: two cases of one operator have the same name.
    """
    seen: set[str] = set()
    for family in FAMILIES:
        module = importlib.import_module(f"ptn_runtime.conformance.{family}")
        for case in module.cases():
            if str(case) in seen:
                raise ValueError(f"two conformance cases are called {case}")
            seen.add(str(case))
            yield case
