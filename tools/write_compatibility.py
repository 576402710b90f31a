"""Compare ptn with executorch model by model, and check the tables of `docs/compatibility.md` (`--write` updates them).

Runs in the environment that `nox -s interop` makes. Fails on every difference that `interop/differences.py` does not
explain, and on explanations that nothing needs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from importlib import metadata
from pathlib import Path

import torch
from _repository import PACKAGES, ROOT
from interop.beyond_models import beyond_cases
from interop.check import BeyondRow, Row, check_beyond, check_golden, check_shared
from interop.differences import MERGED, READER, RULES
from interop.page import filled, tables
from interop.self_test import blind_spots
from interop.shared_models import shared_cases
from interop.upstream import VERSION

GOLDEN = PACKAGES / "ptn-runtime" / "src" / "ptn_runtime" / "conformance" / "data" / "golden"
PAGE = ROOT / "docs" / "compatibility.md"


def checked(pattern: str) -> tuple[list[Row], list[BeyondRow]]:
    """Checks every model whose name contains `pattern`; prints a line for each."""
    shared: list[Row] = []
    beyond: list[BeyondRow] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case in shared_cases():
            if pattern in case.name:
                start = time.perf_counter()
                shared.append(check_shared(case, folder))
                report(shared[-1], start)
        for item in beyond_cases():
            if pattern in item.case.name:
                start = time.perf_counter()
                beyond.append(check_beyond(item, folder))
                report(beyond[-1], start)
    return shared, beyond


def golden_problems() -> list[str]:
    """What both readers see differently in the packages that every engine is tested with."""
    paths = sorted(GOLDEN.glob("*/model.ptn"))
    problems = [f"{path.parent.name}: {text}" for path in paths for text in check_golden(path)]
    print(f"{'FAILED' if problems else 'ok':6} {len(paths)} packages of upstream's, read by both readers", flush=True)
    return problems


def report(row: Row | BeyondRow, start: float) -> None:
    """Prints the outcome of one model."""
    print(f"{'FAILED' if row.problems else 'ok':6} {time.perf_counter() - start:5.1f} s  {row.name}", flush=True)
    for problem in row.problems:
        print(f"       {problem}", flush=True)


def unused(shared: list[Row], beyond: list[BeyondRow]) -> list[str]:
    """Explanations that explain nothing."""
    names = {rule.name for rule in (*RULES, MERGED)} - {name for row in shared for name in row.rules}
    models = set(READER) - {row.name for row in beyond if row.reader}
    return [f"no model needs the explanation '{name}'" for name in sorted(names | models)]


def main() -> int:
    """Compares; 1 where anything differs without a reason, or where the page is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="update the page's tables")
    parser.add_argument("--model", default="", metavar="TEXT", help="only models whose name contains this; no page")
    options = parser.parse_args()
    if (found := metadata.version("executorch")) != VERSION:
        print(f"executorch {found} is installed; the comparison is with {VERSION}: nox -s interop", file=sys.stderr)
        return 2
    warnings.simplefilter("ignore")  # PyTorch's and executorch's own
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        problems = blind_spots(Path(name))
    shared, beyond = checked(options.model)
    rows: list[Row | BeyondRow] = [*shared, *beyond]
    failed = [row.name for row in rows if row.problems]
    if not options.model:
        problems += unused(shared, beyond) + golden_problems()
    if not options.model and not failed:
        page = PAGE.read_text(encoding="utf-8")
        text = filled(page, tables(shared, beyond))
        if options.write:
            PAGE.write_text(text, encoding="utf-8")
        elif text != page:
            problems.append(f"{PAGE.relative_to(ROOT)} is stale; run: nox -s interop -- --write")
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{len(rows) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed or problems else 0


if __name__ == "__main__":
    sys.exit(main())
