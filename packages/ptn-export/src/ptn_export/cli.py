"""The command `ptn-export`: from a Python object or a saved exported program to a package."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from ptn_export._version import __version__
from ptn_export.dynamic_axes import AxisRequest
from ptn_export.errors import ExportError
from ptn_export.exporting import Method, quantized, trace_methods, wanted_methods
from ptn_export.native import NativeProgram, convert
from ptn_export.passes import PASSES, check_names
from ptn_export.progress import Progress
from ptn_export.runtime import Call, CheckError, RuntimeMissingError, check

__all__ = ["main"]

_DESCRIPTION = """\
Export a PyTorch model to a .ptn package and print what it holds.

SOURCE is one of
  package.module:name   a function without parameters, or an object, that gives one of
                          (model, args) or (model, args, dynamic_shapes)
                          {"model": ..., "args": ..., "kwargs": ..., "dynamic_shapes": ..., "methods": ...},
                            the arguments of ptn_export.export; all but the model may be left out
                          an ExportedProgram, or a dict of method names to ExportedPrograms
  program.pt2           a file written by torch.export.save
"""

_KEYWORDS = ("args", "kwargs", "dynamic_shapes", "methods")


class _UsageError(Exception):
    """The command line does not lead to a program; the text says why and what to do."""


@dataclass
class _Source:
    """What shall be exported.

    Attributes:
        programs: captured methods.
        calls: what each method must agree with, where its example inputs are known.
        requests: by method, the axes that were to be dynamic.
        remarks: what the user is to be warned of.
    """

    programs: Mapping[str, ExportedProgram]
    calls: list[Call] = field(default_factory=list)
    requests: dict[str, Sequence[AxisRequest]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        argv: the arguments; by default those of the process.

    Returns:
        The exit status: 0 done, 1 the program cannot be exported or `--check` finds it wrong, 2 the command line is
        wrong.
    """
    options = _parser().parse_args(argv)
    try:
        disabled = check_names(options.disable_pass)
        with Progress(not options.quiet) as bar, warnings.catch_warnings(action="ignore"):
            source = _load(options.source, options.quantize, bar, check_wanted=options.check)
            native, remarks = convert(
                source.programs, disabled, bar, source_lines=not options.no_source_lines, requests=source.requests
            )
            native.write(options.output, bar)
        for remark in (*source.remarks, *remarks):
            print(f"warning: {remark}", file=sys.stderr)
        if not options.quiet:
            _print_report(native, options.output)
        return _check(options, source) if options.check else 0
    except (_UsageError, RuntimeMissingError) as error:
        print(f"ptn-export: {error}", file=sys.stderr)
        return 2
    except (CheckError, ExportError, OSError) as error:
        print(f"ptn-export: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "ptn-export", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", metavar="SOURCE", help="what to export")
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="the package to write: model.ptn")
    parser.add_argument(
        "--quantize", metavar="SCHEME", help="quantise the model's weights first: int4, int8, ...; needs torchao"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="run the package with the example inputs on the reference engine, and fail where it differs from PyTorch; "
        "needs ptn-runtime",
    )
    parser.add_argument(
        "--disable-pass",
        metavar="NAME",
        action="append",
        default=[],
        choices=list(PASSES),
        help=f"leave a pass out; may be repeated: {', '.join(PASSES)}",
    )
    parser.add_argument("--no-source-lines", action="store_true", help="do not store which line each operator is from")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing unless something is wrong")
    parser.add_argument("--version", action="version", version=f"ptn-export {__version__} (torch {torch.__version__})")
    return parser


def _print_report(native: NativeProgram, path: str) -> None:
    print(native.report)
    try:
        for answer in native.engines():
            print(f"engine {answer}")
    except RuntimeMissingError:
        print("engines: ptn-runtime is not installed here, so none was asked (`ptn check` asks them)")
    print(f"wrote {path}, {os.path.getsize(path):,} bytes")


def _check(options: argparse.Namespace, source: _Source) -> int:
    """Compares the package with PyTorch; returns the exit status."""
    without = sorted(set(source.programs) - {call.method for call in source.calls})
    if without:
        raise _UsageError(
            f"--check needs example inputs, and the exported program of {', '.join(without)} holds none; "
            "the package is written, but not checked"
        )
    status = 0
    for result in check(options.output, source.calls):
        if not result.agrees:
            status = 1
        if not options.quiet or not result.agrees:
            print(result)
    if status:
        print("ptn-export: the package does not agree with PyTorch", file=sys.stderr)
    return status


# Sources


def _load(text: str, quantize: str | None, bar: Progress, *, check_wanted: bool) -> _Source:
    """The captured methods that SOURCE names."""
    if text.endswith(".pt2"):
        value: Any = _read(text)
    else:
        value = _resolve(text)
        if callable(value) and not isinstance(value, torch.nn.Module):
            value = value()
    if isinstance(value, ExportedProgram):
        value = {"forward": value}
    if isinstance(value, Mapping) and value and all(isinstance(item, ExportedProgram) for item in value.values()):
        if quantize is not None:
            raise _UsageError(
                f"--quantize changes the model before it is captured, but {text!r} gives a captured program; "
                "let a function return (model, args)"
            )
        calls = [call for name, program in value.items() for call in _call_of(name, program)] if check_wanted else []
        return _Source(value, calls)
    model, arguments = _arguments(value, text)
    return _capture(model, arguments, quantize, bar)


def _read(path: str) -> ExportedProgram:
    if not Path(path).is_file():
        raise _UsageError(f"there is no file {path!r}")
    try:
        return torch.export.load(path)
    except Exception as error:  # what PyTorch raises depends on where the file is damaged
        raise _UsageError(f"{path!r} is no file of torch.export.save that this PyTorch reads: {error}") from error


def _call_of(name: str, program: ExportedProgram) -> list[Call]:
    """The call that a captured program has its example inputs for, if it has them."""
    if program.example_inputs is None:
        return []
    args, kwargs = program.example_inputs
    module = program.module()
    return [Call(name, module, tuple(args), kwargs or {}, tuple(module.buffers()))]


def _resolve(source: str) -> Any:
    """The object that `package.module:name` names; modules of the current folder are found too."""
    module_name, colon, path = source.partition(":")
    if not colon or not path:
        raise _UsageError(f"expected package.module:name or a .pt2 file, got {source!r}")
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        value: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise _UsageError(f"cannot import {module_name!r}: {error}; run in its folder, or install it") from error
    for part in path.split("."):
        if not hasattr(value, part):
            raise _UsageError(f"{module_name!r} has no {path!r}")
        value = getattr(value, part)
    return value


def _arguments(value: Any, source: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    """A model and the arguments of `export` for it."""
    if isinstance(value, tuple) and len(value) in (2, 3) and isinstance(value[0], torch.nn.Module):
        return value[0], {"args": tuple(value[1]), "dynamic_shapes": value[2] if len(value) == 3 else None}
    if isinstance(value, Mapping) and isinstance(value.get("model"), torch.nn.Module):
        arguments = dict(value)
        model = arguments.pop("model")
        if unknown := sorted(set(arguments) - set(_KEYWORDS)):
            raise _UsageError(
                f"{source!r} gives a dict with {', '.join(map(repr, unknown))}; "
                f"it may have 'model', {', '.join(map(repr, _KEYWORDS))}"
            )
        if isinstance(arguments.get("args"), list):
            arguments["args"] = tuple(arguments["args"])
        if arguments.get("kwargs") is not None and arguments.get("args") is None:
            arguments["args"] = ()
        return model, arguments
    if isinstance(value, torch.nn.Module):
        raise _UsageError(
            f"{source!r} is the module {type(value).__name__}; example inputs are needed too: "
            "let a function return (model, args) or (model, args, dynamic_shapes)"
        )
    raise _UsageError(
        f"{source!r} gives a {type(value).__name__}; expected an ExportedProgram, a dict of them, "
        "(model, args), (model, args, dynamic_shapes) or a dict with 'model'"
    )


def _capture(model: torch.nn.Module, arguments: Mapping[str, Any], quantize: str | None, bar: Progress) -> _Source:
    try:
        wanted: dict[str, Method] = wanted_methods(model, *(arguments.get(name) for name in _KEYWORDS))
        model = quantized(model, quantize, bar)
    except (ImportError, TypeError, ValueError) as error:
        raise _UsageError(str(error)) from error
    traced = trace_methods(model, wanted, bar)
    return _Source(
        {name: item.program for name, item in traced.items()},
        [
            Call(name, item.module, item.method.args, item.method.kwargs or {}, tuple(model.buffers()))
            for name, item in traced.items()
        ],
        {name: item.requests for name, item in traced.items()},
        [remark for item in traced.values() for remark in item.remarks],
    )
