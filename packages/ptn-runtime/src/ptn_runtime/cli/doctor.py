"""`ptn doctor`: everything that a report of trouble should hold, and hints."""

from __future__ import annotations

import argparse
from typing import Any

from ptn_runtime.cli.common import table


def add_command(commands: Any) -> None:
    """Adds the command to the parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="report on this installation, for bug reports",
        description="Reports on Python, the machine, packages and engines. Exit code 1 where something is broken.",
    )
    parser.set_defaults(run=_run)


def _run(_: argparse.Namespace) -> int:
    from ptn_runtime.doctor import examine

    report = examine()
    for title, rows in report.sections.items():
        print(f"{title}:")
        print(table(rows) or "  none")
        print()
    if report.problems:
        print("problems:")
        print("\n".join(f"  - {text}" for text in report.problems))
    if report.hints:
        print("hints:")
        print("\n".join(f"  - {text}" for text in report.hints))
    if not report.problems and not report.hints:
        print("All is well.")
    return 1 if report.problems else 0
