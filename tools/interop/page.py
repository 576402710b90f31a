"""The tables of `docs/compatibility.md`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from interop.check import BeyondRow, Row
from interop.differences import MERGED, RULES

__all__ = ["filled", "tables"]


def tables(shared: Sequence[Row], beyond: Sequence[BeyondRow]) -> dict[str, str]:
    """By name, each generated part of the page."""
    return {"shared": _shared(shared), "differences": _differences(shared), "beyond": _beyond(beyond)}


def filled(page: str, parts: Mapping[str, str]) -> str:
    """`page` with every part between its markers.

    Raises:
        ValueError: markers of a part are missing.
    """
    for name, text in parts.items():
        begin, end = f"<!-- generated: {name} -->\n", f"<!-- end: {name} -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        found = pattern.search(page)
        if found is None:
            raise ValueError(f"the page has no markers {begin.strip()} and {end}")
        before, after = page[: found.start()], page[found.end() :]
        page = f"{before}{begin}{text}\n{end}{after}"
    return page


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _shared(rows: Sequence[Row]) -> str:
    table = []
    for row in rows:
        passes = ", ".join(f"{name} {count}" for name, count in sorted(row.rewrites.items()))
        table.append((row.name, row.theirs, row.unoptimised, ", ".join(row.rules) or "none", row.ours, passes or "-"))
    return _table(("model", "upstream", "ours, passes off", "differences", "ours", "fused or folded"), table)


def _differences(rows: Sequence[Row]) -> str:
    table = []
    for name in dict.fromkeys(rule.name for rule in (*RULES, MERGED)):
        rule = next(rule for rule in (*RULES, MERGED) if rule.name == name)
        count = sum(name in row.rules for row in rows)
        table.append((name, rule.why, rule.graph, f"{count} of {len(rows)}"))
    return _table(("difference", "why", "static graph", "models"), table)


def _beyond(rows: Sequence[BeyondRow]) -> str:
    table = [(row.name, row.theirs, f"refuses: {row.reader}" if row.reader else "reads it") for row in rows]
    return _table(("model", "upstream's exporter", "upstream's reader on our file"), table)
