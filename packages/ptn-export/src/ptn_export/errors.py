"""What can go wrong at export, all of it in one report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["ExportError", "ExportWarning", "Problem"]

_SHOWN_PLACES = 4
_SHOWN_NAMES = 3


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that keeps a program from being exported.

    Attributes:
        subject: what the problem is about: an operator's name, or `constant`, `input`, `output`, ...
        reason: what is wrong, with the concrete values.
        hint: what the user can do.
        method: the method's name.
        place: the node, constant or input concerned.
        source: the user's `file.py:line`, where known.
        module: path of the module that was running there, such as `layers.3.attention`, where known.
    """

    subject: str
    reason: str
    hint: str
    method: str = ""
    place: str = ""
    source: str | None = None
    module: str | None = None


class ExportError(Exception):
    """The program cannot be exported. The text lists every problem, grouped, with the user's own lines.

    Attributes:
        problems: all problems in the order of the graph.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(_report(self.problems))


class ExportWarning(UserWarning):
    """The program was exported, but probably does not do what its author wants."""


def _report(problems: Sequence[Problem]) -> str:
    """Groups problems that differ only in their place."""
    groups: dict[tuple[str, str, str], list[Problem]] = {}
    for problem in problems:
        groups.setdefault((problem.subject, problem.reason, problem.hint), []).append(problem)
    count = len(problems)
    lines = [f"cannot export: {count} problem{'s' if count != 1 else ''}"]
    for (subject, reason, hint), members in groups.items():
        times = f" ({len(members)} times)" if len(members) > 1 else ""
        lines.append(f"\n* {subject}{times}: {reason}")
        lines.extend(f"    at {place}" for place in _places(members))
        lines.append(f"    what to do: {hint}")
    return "\n".join(lines)


def _places(problems: Iterable[Problem]) -> list[str]:
    """Where a group's problems are: each line of the user once with the modules that ran it, the first few of many."""
    lines: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        lines.setdefault((problem.source or problem.place, problem.method), []).append(problem)
    places = []
    for (where, method), members in lines.items():
        parts = [where] if where else []
        if modules := _some([problem.module for problem in members if problem.module]):
            parts.append(f"in {modules}")
        if members[0].source and (names := _some([problem.place for problem in members if problem.place])):
            parts.append(f"({names})")
        if method and parts:
            parts.append(f"in method '{method}'")
        if parts:
            places.append(" ".join(parts))
    if len(places) > _SHOWN_PLACES:
        places[_SHOWN_PLACES:] = [f"{len(places) - _SHOWN_PLACES} more places"]
    return places


def _some(names: Iterable[str]) -> str:
    """The different names, or the first few of many."""
    different = list(dict.fromkeys(names))
    if len(different) > _SHOWN_NAMES:
        different[_SHOWN_NAMES:] = [f"{len(different) - _SHOWN_NAMES} more"]
    return ", ".join(different)
