"""`ptn engines`: what is installed, with devices, and what is broken and why."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ptn_runtime.cli.common import format_bytes, table
from ptn_runtime.errors import EngineError

if TYPE_CHECKING:
    from ptn_runtime.registry import EngineRow, Registry


def add_command(commands: Any) -> None:
    """Adds the command to the parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "engines",
        help="installed engines and their devices",
        description="Lists the installed engines with versions and devices. Exit code 1 where one of them is broken.",
    )
    parser.add_argument("--options", action="store_true", help="also list the options of each engine")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ptn_runtime.registry import registry

    found = registry()
    rows: list[tuple[str, ...]] = []
    broken: list[str] = []
    options: list[str] = []
    for row in found.rows():
        rows += _engine_rows(found, row, broken)
        if arguments.options and row.problem is None:
            options += _options(found, row)
    if not rows:
        print("No engine is installed; the reference engine comes with ptn-runtime: reinstall it.")
        return 1
    print(table(rows, ["engine", "package", "api", "device", "what it is"]))
    for line in [*broken, *options]:
        print(line)
    return 1 if broken else 0


def _engine_rows(registry: Registry, row: EngineRow, broken: list[str]) -> list[tuple[str, ...]]:
    package = f"{row.distribution} {row.version}"
    if row.problem is not None:
        if not row.problem.startswith("disabled"):
            broken.append(f"\n{row.name}: {row.problem}")
            return [(row.name, package, "-", "-", "BROKEN, see below")]
        return [(row.name, package, "-", "-", row.problem)]
    from ptn_runtime.survey import asked, devices_of

    api = "-"
    try:
        api = ".".join(map(str, registry.spec(row.name).api_version))
        engine = registry.engine(row.name)
        devices = devices_of(engine)
        absence = "" if devices else asked(engine, "the reason why it has no device", engine.unavailable)
    except EngineError as error:
        broken.append(f"\n{row.name}: {error}")
        return [(row.name, package, api, "-", "BROKEN, see below")]
    if not devices:
        return [(row.name, package, api, "none", absence or "no device was found")]
    lines: list[tuple[str, ...]] = []
    for i, device in enumerate(devices):
        memory = f", {format_bytes(device.memory_bytes)}" if device.memory_bytes else ""
        text = f"{device.description} ({device.kind}{memory})"
        lines.append((row.name, package, api, device.id, text) if i == 0 else ("", "", "", device.id, text))
    return lines


def _options(registry: Registry, row: EngineRow) -> list[str]:
    from ptn_runtime.survey import asked

    try:
        engine = registry.engine(row.name)
    except EngineError:
        return []  # listed as broken already
    try:
        options = asked(engine, "its options", engine.options)
    except EngineError as error:
        return [f"\noptions of {row.name}: {error}"]
    if not options:
        return [f"\noptions of {row.name}: none"]
    return [f"\noptions of {row.name}:", table(options.items())]
