"""What the commands share: tables, units, engine options, reading and making inputs."""

from __future__ import annotations

import argparse
import ast
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ptn_runtime.errors import InputError

if TYPE_CHECKING:
    from ptn_format.graph import Dim

    from ptn_runtime.describe import MethodInfo, TensorInfo
    from ptn_runtime.errors import Refusal

__all__ = [
    "add_engine_arguments",
    "add_input_arguments",
    "format_bytes",
    "format_seconds",
    "gather_inputs",
    "parse_options",
    "pick_method",
    "print_refused",
    "table",
]

DEFAULT_SIZE = 16
"""Size that made-up inputs take on an axis of several sizes, within its range."""


def table(rows: Iterable[Sequence[object]], header: Sequence[str] = (), right: Iterable[int] = ()) -> str:
    """Rows as aligned columns, indented by two spaces.

    Args:
        rows: the cells.
        header: titles of the columns; none where empty.
        right: columns to align to the right, by index.
    """
    cells = [[str(cell) for cell in row] for row in rows]
    if header:
        cells.insert(0, list(header))
    if not cells:
        return ""
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    at_right = set(right)
    lines = []
    for row in cells:
        padded = [c.rjust(w) if i in at_right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  " + "  ".join(padded).rstrip())
    return "\n".join(lines)


def count_of(number: int, noun: str) -> str:
    """`1 method`, `2 methods`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def format_bytes(count: int | float) -> str:
    """`count` bytes for people: `22.7 MiB`."""
    if count < 1024:
        return f"{int(count)} B"
    size = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024 or unit == "GiB":
            return f"{size:.1f} {unit}"
    raise AssertionError


def format_seconds(seconds: float) -> str:
    """A duration for people: `1.23 ms`."""
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms")):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}" if seconds * factor < 100 else f"{seconds * factor:.0f} {unit}"
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """`--engine`, `--device`, `--option`."""
    parser.add_argument("--engine", metavar="NAME", help="engine to use (default: the best that runs the program)")
    parser.add_argument("--device", metavar="ID", help="device to use, such as cpu or cuda:0 (default: the best)")
    add_option_argument(parser)


def add_option_argument(parser: argparse.ArgumentParser) -> None:
    """`--option`."""
    parser.add_argument(
        "--option", metavar="NAME=VALUE", action="append", default=[], help="an option of the engine, such as threads=4"
    )


def parse_options(texts: Sequence[str]) -> dict[str, Any]:
    """Engine options from `NAME=VALUE` texts; values are Python literals, anything else is a string.

    Raises:
        InputError: a text has no `=`.
    """
    options: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--option takes NAME=VALUE, got '{text}'.")
        try:
            options[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[name] = value
    return options


def add_input_arguments(parser: argparse.ArgumentParser, made_up: bool = False) -> None:
    """Input files, `--random`, `--sizes`, `--seed`, `--high`, `--method`; with `made_up` without asking for it."""
    parser.add_argument(
        "inputs",
        nargs="*",
        metavar="INPUT",
        help="a .npz with all inputs by name, or one .npy per input in order, or NAME=FILE.npy",
    )
    parser.add_argument("--method", metavar="NAME", help="method to run (default: forward, or the only one)")
    parser.add_argument(
        "--random",
        action="store_true",
        default=made_up,
        help="make up the inputs that no file gives: normal floats, integers 0 and 1, bools true"
        + (" (always on here)" if made_up else ""),
    )
    parser.add_argument(
        "--sizes",
        metavar="NAME=2x128",
        action="append",
        default=[],
        help=f"shape of a made-up input (default: {DEFAULT_SIZE} on every axis that allows it)",
    )
    parser.add_argument("--high", type=int, default=2, metavar="N", help="made-up integers are below N (default: 2)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the made-up inputs (default: 0)")


def pick_method(methods: Sequence[str], wanted: str | None) -> str:
    """The method to use.

    Raises:
        InputError: none was named and there is no obvious one.
    """
    if wanted is not None:
        return wanted
    if "forward" in methods:
        return "forward"
    if len(methods) == 1:
        return methods[0]
    raise InputError(f"the program has several methods; choose one with --method: {', '.join(methods)}.")


def print_refused(refused: Iterable[Refusal]) -> None:
    """A line for each engine that was asked before and does not run the program, as far as it has devices."""
    for item in refused:
        if item.device is not None:
            text = f"{count_of(len(item.nodes), 'node')} not supported" if item.nodes else item.reason
            print(f"  not taken: {item.engine} on {item.device}: {text} (see 'ptn check')")


def gather_inputs(info: MethodInfo, arguments: argparse.Namespace) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    """The inputs of a method by name, from files and made up, as the arguments ask.

    Raises:
        InputError: a file does not fit, or inputs are missing.
    """
    if arguments.high < 1:
        raise InputError(f"--high must be at least 1, got {arguments.high}.")
    if arguments.seed < 0:
        raise InputError(f"--seed must be at least 0, got {arguments.seed}.")
    inputs = _read_files(info, arguments.inputs)
    shapes = _parse_sizes(info, arguments.sizes)
    missing = [item for item in info.inputs if item.name not in inputs]
    if missing and not arguments.random:
        wanted = table([(item.name, item.type_text) for item in missing])
        raise InputError(
            f"method '{info.name}' needs inputs: give .npy files or a .npz, or make them up with --random.\n{wanted}"
        )
    generator = np.random.default_rng(arguments.seed)
    for item in missing:
        shape = shapes.get(item.name) or tuple(_default_size(dim) for dim in item.shape)
        inputs[item.name] = _made_up(item, shape, generator, arguments.high)
    return {item.name: inputs[item.name] for item in info.inputs}


def summarize_inputs(inputs: Mapping[str, np.ndarray[Any, np.dtype[Any]]]) -> str:
    """`ids int64[2, 16], mask int64[2, 16]`."""
    return ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in inputs.items()) or "none"


def _read_files(info: MethodInfo, texts: Sequence[str]) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    names = [item.name for item in info.inputs]
    found: dict[str, np.ndarray[Any, np.dtype[Any]]] = {}
    place = 0
    for text in texts:
        name, equals, path = text.partition("=")
        if equals and name in names:
            found[name] = _load(path)
        elif equals and not Path(text).exists():
            raise InputError(f"{text}: method '{info.name}' has no input '{name}'. Its inputs: {', '.join(names)}.")
        elif Path(text).suffix == ".npz":
            found.update(_read_npz(text, names))
        elif place < len(names):
            found[names[place]] = _load(text)
            place += 1
        else:
            raise InputError(
                f"{text}: method '{info.name}' takes only {count_of(len(names), 'input')}: {', '.join(names)}."
            )
    return {item.name: _as_bfloat16(item, found[item.name]) for item in info.inputs if item.name in found}


def _as_bfloat16(item: TensorInfo, array: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
    """.npy files know no bfloat16: numpy writes its bits without the name, others write float32 in its place."""
    if item.dtype.name != "bfloat16":
        return array
    if array.dtype == np.dtype("V2"):
        return array.view(item.dtype)
    if array.dtype == np.float32:
        narrow = array.astype(item.dtype)
        if np.array_equal(narrow.astype(np.float32), array, equal_nan=True):
            return narrow
    return array


def _read_npz(path: str, names: Sequence[str]) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    try:
        # Opened here, as numpy leaves a damaged archive open.
        with open(path, "rb") as file:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise ValueError("it holds a single array; a .npy file must end in .npy")
            arrays = {key: archive[key] for key in archive.files}
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path}: cannot be read as a .npz file: {error}") from error
    if arrays and all(key == f"arr_{i}" for i, key in enumerate(arrays)) and len(arrays) <= len(names):
        return dict(zip(names, arrays.values(), strict=False))
    unknown = [key for key in arrays if key not in names and not key.startswith("output")]
    if unknown:
        raise InputError(f"{path}: holds {', '.join(unknown)}, which are no inputs. The inputs: {', '.join(names)}.")
    return {key: value for key, value in arrays.items() if key in names}


def _load(path: str) -> np.ndarray[Any, np.dtype[Any]]:
    try:
        with open(path, "rb") as file:
            array = np.load(file, allow_pickle=False)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: cannot be read as a .npy file: {error}") from error
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path}: holds several arrays; a .npz file must end in .npz.")
    return array


def _parse_sizes(info: MethodInfo, texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    names = [item.name for item in info.inputs]
    shapes = {}
    for text in texts:
        name, equals, sizes = text.partition("=")
        try:
            shape = tuple(int(size) for size in sizes.lower().replace(",", "x").split("x") if size)
        except ValueError:
            equals, shape = "", ()
        if not equals or min(shape, default=0) < 0:
            raise InputError(f"--sizes takes NAME=2x128, got '{text}'.")
        if name not in names:
            raise InputError(f"--sizes: there is no input '{name}'. The inputs: {', '.join(names)}.")
        shapes[name] = shape
    return shapes


def _default_size(dim: Dim) -> int:
    size = max(dim.min, DEFAULT_SIZE)
    return min(size, dim.max) if dim.max >= 0 else size


def _made_up(
    item: TensorInfo, shape: tuple[int, ...], generator: np.random.Generator, high: int
) -> np.ndarray[Any, np.dtype[Any]]:
    if item.dtype == np.bool_:
        return np.ones(shape, np.bool_)
    if item.dtype.kind in "iu":
        return np.asarray(generator.integers(0, max(high, 1), shape)).astype(item.dtype)
    return np.asarray(generator.standard_normal(shape)).astype(item.dtype)
