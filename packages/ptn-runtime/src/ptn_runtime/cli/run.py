"""`ptn run`: one call of a method, arrays from files and into files."""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import numpy as np

from ptn_runtime.cli.common import (
    add_engine_arguments,
    add_input_arguments,
    format_seconds,
    gather_inputs,
    parse_options,
    pick_method,
    print_refused,
    summarize_inputs,
    table,
)
from ptn_runtime.describe import MethodInfo
from ptn_runtime.errors import InputError


def add_command(commands: Any) -> None:
    """Adds the command to the parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "run",
        help="run a method once",
        description="Runs a method on arrays from .npy or .npz files (or made-up ones) and shows or saves the results.",
    )
    parser.add_argument("package", help="a .ptn file")
    add_input_arguments(parser)
    add_engine_arguments(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="save the results: .npz, or .npy for a single one")
    parser.add_argument("--print", action="store_true", dest="show_values", help="print the results' values")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ptn_runtime.arrays import flatten_result
    from ptn_runtime.model import load

    if arguments.output:
        _check_target(arguments.output)
    with load(arguments.package, arguments.engine, arguments.device, **parse_options(arguments.option)) as model:
        method = pick_method(model.methods, arguments.method)
        info = model.describe(method)
        if arguments.output:
            _check_count(arguments.output, info)
        inputs = gather_inputs(info, arguments)
        start = time.perf_counter()
        result = model.run(method, **inputs)
        seconds = time.perf_counter() - start
        results = flatten_result(info.signature.result, result)
        changed = [(item.name, inputs[item.name]) for item in info.inputs if item.mutated]
    print(f"{method} on {model.engine} ({model.device}), first call {format_seconds(seconds)}")
    print_refused(model.refused)
    print(f"inputs: {summarize_inputs(inputs)}")
    arrays = [(name, np.asarray(value)) for name, value in [*results, *changed] if value is not None]
    print(
        table([_row(name, array) for name, array in arrays], ["result", "type", "min", "mean", "max"], right=[2, 3, 4])
    )
    if arguments.show_values:
        for name, array in arrays:
            print(f"\n{name} =\n{array}")
    if arguments.output:
        _save(arguments.output, arrays)
        print(f"saved to {arguments.output}")
    return 0


def _check_target(path: str) -> None:
    """Refuses a place for the results that cannot be written, before anything runs."""
    if not path.endswith((".npy", ".npz")):
        raise InputError(f"--output takes a file ending in .npz or .npy, got '{path}'.")
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise InputError(f"--output {path}: there is no folder '{folder}'; make it, or name another place.")
    if os.path.isdir(path):
        raise InputError(f"--output {path}: it is a folder; name a file.")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise InputError(f"--output {path}: you may not write there; name another place.")


def _check_count(path: str, info: MethodInfo) -> None:
    """Refuses a file for one array where the method is known to give several."""
    count = len(info.outputs) + sum(item.mutated for item in info.inputs)
    if path.endswith(".npy") and count > 1:
        raise InputError(f"{path}: the method gives {count} results; a .npy file holds one, use .npz.")


def _row(name: str, array: np.ndarray[Any, np.dtype[Any]]) -> tuple[str, ...]:
    kind = f"{array.dtype}{list(array.shape)}"
    if not array.size:
        return (name, kind, "", "", "")
    values = array.astype(np.float64)
    return (name, kind, f"{values.min():.6g}", f"{values.mean():.6g}", f"{values.max():.6g}")


def _save(path: str, arrays: list[tuple[str, np.ndarray[Any, np.dtype[Any]]]]) -> None:
    """Writes the results; bfloat16, which the file format does not know, as float32."""
    arrays = [(name, array.astype(np.float32) if array.dtype.name == "bfloat16" else array) for name, array in arrays]
    if path.endswith(".npy"):
        if len(arrays) != 1:
            raise InputError(f"{path}: the method gives {len(arrays)} results; a .npy file holds one, use .npz.")
        np.save(path, arrays[0][1], allow_pickle=False)
        return
    with open(path, "wb") as file:
        np.savez(file, **dict(arrays))  # type: ignore[arg-type]
