"""`ptn verify`: whether a file is whole, and whether two engines agree on its numbers."""

from __future__ import annotations

import argparse
from typing import Any

from ptn_format.errors import FormatError

from ptn_runtime.cli.common import (
    add_input_arguments,
    add_option_argument,
    count_of,
    format_bytes,
    gather_inputs,
    parse_options,
    pick_method,
    summarize_inputs,
    table,
)
from ptn_runtime.errors import InputError


def add_command(commands: Any) -> None:
    """Adds the command to the parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "verify",
        help="check a package's integrity, and engines against each other",
        description=(
            "Checks checksums and structure. With inputs (files, --against or --random) also runs two engines, "
            "compares their results, and names the first node that differs. Exit code 1 where something is wrong."
        ),
    )
    parser.add_argument("package", help="a .ptn file")
    add_input_arguments(parser)
    parser.add_argument("--against", metavar="FILE.npz", help="inputs to compare two engines on")
    parser.add_argument("--engine", metavar="NAME", help="engine to examine (default: the best)")
    parser.add_argument("--device", metavar="ID", help="its device")
    parser.add_argument(
        "--baseline", metavar="NAME", default="reference", help="engine to compare with (default: reference)"
    )
    add_option_argument(parser)
    parser.add_argument("--rtol", type=float, help="relative tolerance (default: by element type, 1e-3 for float32)")
    parser.add_argument("--atol", type=float, help="absolute tolerance (default: --rtol times the largest value)")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ptn_format.package import open_package

    compare = bool(arguments.against or arguments.inputs or arguments.random)
    if arguments.against:
        arguments.inputs.append(arguments.against)
    try:
        with open_package(arguments.package) as package:
            package.verify()
            size = sum(package.constant_info(key).nbytes for key in package.constant_keys if package.owner(key) == key)
            methods = count_of(len(package.method_names), "method")
            constants = count_of(len(package.constant_keys), "constant")
            print(f"{arguments.package}: checksums and structure are right")
            print(f"  {methods}, {constants}, {format_bytes(size)}")
    except FormatError as error:
        print(f"{arguments.package} is damaged:\n  {error}")
        return 1
    return _compare(arguments) if compare else 0


def _compare(arguments: argparse.Namespace) -> int:
    from ptn_runtime.compare import Pair

    options = parse_options(arguments.option)
    with Pair(arguments.package, arguments.engine, arguments.device, arguments.baseline, options) as pair:
        if pair.tested == pair.baseline:
            raise InputError(
                f"both engines are '{pair.baseline}'; name two different ones with --engine and --baseline."
            )
        method = pick_method(pair.methods, arguments.method)
        inputs = gather_inputs(pair.describe(method), arguments)
        print(f"\n{method}: {pair.tested} against {pair.baseline}, inputs: {summarize_inputs(inputs)}")
        outcome = pair.compare(method, inputs, arguments.rtol, arguments.atol)
    rows = [
        (item.name, item.kind, f"{item.largest:.3g}", f"{item.allowed:.3g}", item.verdict) for item in outcome.results
    ]
    print(table(rows, ["result", "type", "largest difference", "allowed", ""], right=[2, 3]))
    if outcome.agree:
        print("The engines agree.")
        return 0
    print("The engines differ.")
    print(outcome.explanation)
    return 1
