"""`ptn check`: which engines and devices run a program, and if not, why."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ptn_runtime.cli.common import count_of, table

if TYPE_CHECKING:
    from ptn_runtime.errors import UnsupportedNode
    from ptn_runtime.survey import Answer


SHOWN_PLACES = 3


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
    parser.add_argument("--all", action="store_true", help="list every refused node")
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
        _print_details(answer, arguments.all)
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


def _print_details(answer: Answer, everything: bool) -> None:
    where = f"{answer.engine}" + (f" on {answer.device.id}" if answer.device is not None else "")
    if answer.refusal is not None and answer.refusal.nodes:
        print(f"\n{where} refuses {count_of(len(answer.refusal.nodes), 'node')}:")
        print("\n".join(grouped(answer.refusal.nodes, everything)))
    elif answer.refusal is not None:
        print(f"\n{where} is not available:\n  {answer.refusal.reason}")
    elif answer.notes:
        print(f"\n{where} runs it, with notes:")
        print(table([(f"{count} x", note) for note, count in answer.notes.items()], right=[0]))


def grouped(nodes: Sequence[UnsupportedNode], everything: bool = False) -> list[str]:
    """Refused nodes as lines: by reason, then by operator, with the places where the user wrote them.

    Args:
        nodes: the nodes.
        everything: one line per node instead of one per operator.
    """
    reasons: dict[tuple[str, tuple[str, ...]], dict[str, list[UnsupportedNode]]] = {}
    for node in nodes:
        reasons.setdefault((node.reason, node.engines), {}).setdefault(node.op, []).append(node)
    lines = []
    for (reason, engines), operators in sorted(reasons.items(), key=lambda item: -sum(map(len, item[1].values()))):
        lines.append(f"  {reason}")
        ordered = sorted(operators.items(), key=lambda item: -len(item[1]))
        if everything:
            lines += [f"    {member.method}: {member.node}" for _, members in ordered for member in members]
        else:
            rows = [(op, count_of(len(members), "node"), _places(members)) for op, members in ordered]
            lines += [f"  {line}" for line in table(rows, right=[1]).splitlines()]
        lines.append(f"    engines that can: {', '.join(engines) or 'none of the installed ones'}")
    return lines


def _places(nodes: Sequence[UnsupportedNode]) -> str:
    """Source lines of the nodes, each with the first module that runs it, or names where the file has no lines."""
    lines: dict[str, list[str]] = {}
    for node in nodes:
        line, _, module = (node.source or f"'{node.name}'").partition(" in ")
        lines.setdefault(line, []).extend([module] if module else [])
    places = []
    for line, modules in lines.items():
        others = len(set(modules)) - 1
        also = f" and {others} more module{'s' if others > 1 else ''}" if others > 0 else ""
        places.append(f"{line} in {modules[0]}{also}" if modules else line)
    more = f", and {len(places) - SHOWN_PLACES} more" if len(places) > SHOWN_PLACES else ""
    return ", ".join(places[:SHOWN_PLACES]) + more
