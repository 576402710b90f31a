"""`ptn check`: which engines and devices run a program, and if not, why."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ptn_runtime.cli.common import count_of, table

if TYPE_CHECKING:
    from ptn_runtime.errors import UnsupportedNode
    from ptn_runtime.survey import Answer


def add_command(commands: Any) -> None:
    """Adds the command to the parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "check",
        help="which engines run a package, and if not, why",
        description="Asks every installed engine whether it runs all methods. Exit code 1 where none does.",
    )
    parser.add_argument("package", help="a .ptn file")
    parser.add_argument("--engine", metavar="NAME", help="ask only this engine")
    parser.add_argument("--device", metavar="ID", help="ask only for this device")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ptn_format.package import open_package

    from ptn_runtime.errors import LoweringError
    from ptn_runtime.lowering.program import LoweredProgram
    from ptn_runtime.registry import registry
    from ptn_runtime.survey import Survey

    with open_package(arguments.package) as package:
        program = LoweredProgram(package)
        print(f"{arguments.package}: methods {', '.join(program.methods)}")
        try:
            answers = list(Survey(program, registry()).answers(arguments.engine, arguments.device))
        except LoweringError as error:
            print(f"\nNo engine can run this package, as it cannot be lowered:\n  {error}")
            return 1
    print(table([_row(answer) for answer in answers], ["engine", "device", "verdict"]))
    for answer in answers:
        _print_details(answer)
    accepted = [answer for answer in answers if answer.refusal is None]
    if not accepted:
        print("\nNo engine runs every method of this package.")
        return 1
    best = accepted[0]
    if arguments.engine is None and best.device is not None:
        print(f"\nload() takes {best.engine} on {best.device.id}.")
    return 0


def _row(answer: Answer) -> tuple[str, str, str]:
    device = answer.device.id if answer.device is not None else "-"
    if answer.refusal is None:
        notes = sum(answer.notes.values())
        return answer.engine, device, "runs it" + (f", {count_of(notes, 'node')} with a note" if notes else "")
    if answer.refusal.nodes:
        return answer.engine, device, f"refuses {count_of(len(answer.refusal.nodes), 'node')}"
    return answer.engine, device, "not available"


def _print_details(answer: Answer) -> None:
    where = f"{answer.engine}" + (f" on {answer.device.id}" if answer.device is not None else "")
    if answer.refusal is not None and answer.refusal.nodes:
        print(f"\n{where} refuses:")
        print("\n".join(grouped(answer.refusal.nodes)))
    elif answer.refusal is not None:
        print(f"\n{where} is not available:\n  {answer.refusal.reason}")
    elif answer.notes:
        print(f"\n{where} runs it, with notes:")
        print(table([(f"{count} x", note) for note, count in answer.notes.items()], right=[0]))


def grouped(nodes: Sequence[UnsupportedNode]) -> list[str]:
    """Refused nodes as lines, those of one operator and reason together."""
    groups: dict[tuple[str, str, tuple[str, ...]], list[UnsupportedNode]] = {}
    for node in nodes:
        groups.setdefault((node.op, node.reason, node.engines), []).append(node)
    lines = []
    for (op, reason, engines), members in sorted(groups.items(), key=lambda item: -len(item[1])):
        lines.append(f"  {op}, {count_of(len(members), 'node')}: {reason}")
        lines += [f"    {node.method}: {node.node}" for node in members]
        lines.append(f"    engines that can: {', '.join(engines) or 'none of the installed ones'}")
    return lines
