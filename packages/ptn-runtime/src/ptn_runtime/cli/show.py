"""`ptn show`: what a package takes, gives and holds."""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ptn_runtime.cli.common import count_of, format_bytes, table

if TYPE_CHECKING:
    from ptn_format.graph import Graph, Method, QuantScheme
    from ptn_format.package import Package

    from ptn_runtime.lowering.program import LoweredProgram

SHOWN = 12
"""Rows of the longest tables without `--all`."""


def add_command(commands: Any) -> None:
    """Adds the command to the parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "show",
        help="what a package takes, gives and holds",
        description="Shows methods with inputs and outputs, state, operators, constants and quantisation.",
    )
    parser.add_argument("package", help="a .ptn file")
    parser.add_argument("--method", metavar="NAME", help="only this method")
    parser.add_argument("--all", action="store_true", help="every operator and constant, not only the first")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="the same as JSON")
    form.add_argument("--graph", choices=["text", "json", "dot"], help="print the graph itself")
    form.add_argument("--dot", action="store_const", const="dot", dest="graph", help="same as --graph dot")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ptn_format.package import open_package

    from ptn_runtime.lowering.program import LoweredProgram

    with open_package(arguments.package) as package:
        program = LoweredProgram(package)
        names = [arguments.method] if arguments.method else list(program.methods)
        for name in names:
            program.method(name)  # an unknown name is an error before anything is printed
        if arguments.graph:
            _print_graph(package, names, arguments.graph)
        elif arguments.json:
            print(json.dumps(_summary(package, program, names), indent=2, ensure_ascii=False))
        else:
            _print_summary(package, program, names, arguments.all)
    return 0


def _print_graph(package: Package, names: list[str], form: str) -> None:
    from ptn_format.graph import Program
    from ptn_format.text import to_dot, to_json, to_text

    program = Program(package.version, tuple(package.method(name) for name in names))
    print({"text": to_text, "json": to_json, "dot": to_dot}[form](program))


def _summary(package: Package, program: LoweredProgram, names: list[str]) -> dict[str, Any]:
    from ptn_runtime.describe import describe_method, describe_state

    methods = {}
    for name in names:
        info = describe_method(package.method(name), program.method(name))
        methods[name] = {
            "call": info.call,
            "inputs": [_tensor(item) | {"changed_in_place": item.mutated} for item in info.inputs],
            "outputs": [_tensor(item) for item in info.outputs],
            "fixed_at_export": dict(info.fixed),
            "operators": dict(operator_counts(package.method(name)).most_common()),
        }
    return {
        "path": package.path,
        "format_version": package.version,
        "methods": methods,
        "state": [
            _tensor(describe_state(spec)) | {"initial": "data" if spec.has_data else "zeros"}
            for spec in program.states.values()
        ],
        "constants": [
            {"name": key, "dtype": dtype, "shape": shape, "bytes": size, "quantisation": quant}
            for key, dtype, shape, size, quant in constant_rows(package)
        ],
        "constant_bytes": sum(row[3] for row in constant_rows(package)),
    }


def _tensor(item: Any) -> dict[str, Any]:
    shape = [dim.min if dim.is_static else [dim.min, dim.max if dim.max >= 0 else None] for dim in item.shape]
    return {"name": item.name, "dtype": item.dtype.name, "shape": shape}


def _print_summary(package: Package, program: LoweredProgram, names: list[str], everything: bool) -> None:
    from ptn_runtime.describe import describe_method, describe_state

    size = f"{format_bytes(os.path.getsize(package.path))}, " if package.path else ""
    methods = count_of(len(package.method_names), "method")
    print(f"{package.path or 'package'}: {size}format {package.version}, {methods}")
    for name in names:
        print(f"\nmethod {describe_method(package.method(name), program.method(name))}")
        counts = operator_counts(package.method(name))
        print(f"  operators: {count_of(sum(counts.values()), 'call')} of {count_of(len(counts), 'operator')}")
        rows = counts.most_common(None if everything else SHOWN)
        print("\n".join("  " + line for line in table(rows, right=[1]).splitlines()))
        if len(rows) < len(counts):
            print(f"    and {len(counts) - len(rows)} more (--all shows them)")
    if program.states:
        print(f"\nstate: {count_of(len(program.states), 'buffer')}")
        state_rows = [
            (spec.key, describe_state(spec).type_text, "starts with data" if spec.has_data else "starts as zeros")
            for spec in program.states.values()
        ]
        print(table(state_rows))
    _print_constants(package, everything)


def _print_constants(package: Package, everything: bool) -> None:
    rows = constant_rows(package)
    total = sum(row[3] for row in rows)
    aliases = len(package.constant_keys) - len(rows)
    also = f"; {aliases} more name{'s' if aliases != 1 else ''} share their bytes" if aliases else ""
    print(f"\nconstants: {len(rows)}, {format_bytes(total)}{also}" if rows else "\nconstants: none")
    shown = rows if everything else rows[:SHOWN]
    cells = [
        (key, f"{dtype}{shape}", format_bytes(size), f"{100 * size / total if total else 0:.1f}%", quant or "")
        for key, dtype, shape, size, quant in shown
    ]
    if cells:
        print(table(cells, right=[2, 3]))
    if len(shown) < len(rows):
        rest = sum(row[3] for row in rows[len(shown) :])
        print(f"  and {len(rows) - len(shown)} more, {format_bytes(rest)} (--all shows them)")
    kinds = Counter(quant for *_, quant in rows if quant)
    sizes: Counter[str] = Counter()
    for _, _, _, size, quant in rows:
        if quant:
            sizes[quant] += size
    if kinds:
        print("\nquantisation:")
        print(
            table(
                [(kind, count_of(n, "constant"), format_bytes(sizes[kind])) for kind, n in kinds.most_common()],
                right=[2],
            )
        )


def constant_rows(package: Package) -> list[tuple[str, str, list[int], int, str | None]]:
    """Key, element type, logical shape, stored bytes and quantisation of each stored constant, largest first."""
    logical: dict[str, tuple[list[int], QuantScheme]] = {}
    for name in package.method_names:
        for ref in package.method(name).constants:
            if ref.meta.quant is not None:
                logical[package.owner(ref.data_key)] = ([dim.min for dim in ref.meta.sizes], ref.meta.quant)
    rows: list[tuple[str, str, list[int], int, str | None]] = []
    for key in package.constant_keys:
        if package.owner(key) != key:
            continue
        info = package.constant_info(key)
        if key in logical:
            shape, scheme = logical[key]
            rows.append((key, "quantised", shape, info.nbytes, describe_quant(scheme)))
        else:
            rows.append((key, info.dtype.torch_name, list(info.shape), info.nbytes, None))
    return sorted(rows, key=lambda row: (-row[3], row[0]))


def describe_quant(scheme: QuantScheme) -> str:
    """`int4 groups of 32, symmetric` or the codec's name."""
    from ptn_format.graph import PackedQuant

    if isinstance(scheme, PackedQuant):
        return scheme.codec
    bits = max(1, (scheme.quant_max - scheme.quant_min).bit_length())
    sign = "int" if scheme.quant_min < 0 else "uint"
    group = f"groups of {scheme.group_size}" if scheme.group_size else "one group per row"
    zero = "symmetric" if scheme.zero_point_data_key is None else "with zero points"
    return f"{sign}{bits}, {group}, {zero}"


def operator_counts(method: Method) -> Counter[str]:
    """How often each operator is called, nested graphs included."""
    return Counter(target.removeprefix("torch.ops.") for target in _targets(method.graph))


def _targets(graph: Graph) -> Iterator[str]:
    from ptn_format.graph import GraphArg, OpKind

    for node in graph.nodes:
        if node.op_kind is OpKind.CALL_FUNCTION and node.target:
            yield node.target
        for item in node.inputs:
            if isinstance(item.arg, GraphArg):
                yield from _targets(item.arg.graph)
