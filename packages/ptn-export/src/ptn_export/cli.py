"""The command `ptn-export`: from a Python object or a saved exported program to a package."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from ptn_export._version import __version__
from ptn_export.errors import ExportError, ExportWarning
from ptn_export.native import to_native

__all__ = ["main"]

_DESCRIPTION = """\
Export a PyTorch model to a .ptn package and print what it holds.

SOURCE is one of
  package.module:name   an ExportedProgram, a dict of method names to ExportedPrograms, or a function without
                        parameters that returns one of these, or (model, args) or (model, args, dynamic_shapes)
  program.pt2           a file written by torch.export.save
"""


class _CaptureError(Exception):
    """`torch.export.export` refused the model; the text is PyTorch's own with what to try."""


class _UsageError(Exception):
    """The command line does not lead to an exported program; the text says why and what to do."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        argv: the arguments; by default those of the process.

    Returns:
        The exit status: 0 done, 1 the program cannot be exported, 2 the command line is wrong.
    """
    parser = argparse.ArgumentParser(
        "ptn-export", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", metavar="SOURCE", help="what to export")
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="the package to write: model.ptn")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing unless something is wrong")
    parser.add_argument("--version", action="version", version=f"ptn-export {__version__} (torch {torch.__version__})")
    options = parser.parse_args(argv)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", ExportWarning)
            native = to_native(_load(options.source))
        for warning in caught:
            print(f"warning: {warning.message}", file=sys.stderr)
        native.save(options.output)
    except _UsageError as error:
        print(f"ptn-export: {error}", file=sys.stderr)
        return 2
    except (ExportError, _CaptureError, OSError) as error:
        print(f"ptn-export: {error}", file=sys.stderr)
        return 1
    if not options.quiet:
        print(native.report)
        print(f"wrote {options.output}, {os.path.getsize(options.output):,} bytes")
    return 0


def _load(source: str) -> ExportedProgram | Mapping[str, ExportedProgram]:
    """The exported program or programs that `source` names."""
    if source.endswith(".pt2"):
        if not Path(source).is_file():
            raise _UsageError(f"there is no file {source!r}")
        return torch.export.load(source)
    value = _resolve(source)
    if callable(value) and not isinstance(value, torch.nn.Module):
        value = value()
    return _exported(value, source)


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


def _exported(value: Any, source: str) -> ExportedProgram | Mapping[str, ExportedProgram]:
    """Exports `(model, args[, dynamic_shapes])`; takes exported programs as they are."""
    if isinstance(value, ExportedProgram | Mapping):
        return value
    if isinstance(value, tuple) and len(value) in (2, 3) and isinstance(value[0], torch.nn.Module):
        model, arguments, *shapes = value
        return _capture(model, tuple(arguments), shapes[0] if shapes else None)
    if isinstance(value, torch.nn.Module):
        raise _UsageError(
            f"{source!r} is the module {type(value).__name__}; example inputs are needed too: "
            "let a function return (model, args) or (model, args, dynamic_shapes)"
        )
    raise _UsageError(
        f"{source!r} gives a {type(value).__name__}; expected an ExportedProgram, a dict of them, "
        "(model, args) or (model, args, dynamic_shapes)"
    )


def _capture(model: torch.nn.Module, arguments: tuple[Any, ...], dynamic_shapes: Any) -> ExportedProgram:
    """`torch.export.export` with a short message where it fails."""
    try:
        return torch.export.export(model, arguments, dynamic_shapes=dynamic_shapes)
    except Exception as error:  # PyTorch raises many types; each of them means that the model cannot be captured
        text = str(error).strip() or type(error).__name__
        hints = "".join(f"\n    what to try: {hint}" for hint in _hints(model, arguments, text))
        raise _CaptureError(f"torch.export cannot capture {type(model).__name__}: {text}{hints}") from error


def _hints(model: torch.nn.Module, arguments: tuple[Any, ...], text: str) -> Iterator[str]:
    """What PyTorch's message leaves unsaid."""
    if "Constraints violated" in text:
        if any(1 in leaf.shape for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor)):
            yield "give every dynamic axis an example size of 2 or more; PyTorch treats a size of 1 as fixed"
        if any(isinstance(layer, torch.nn.RNNBase) for layer in model.modules()):
            yield "leave the time axis of recurrent layers static; PyTorch unrolls them over the example's length"
    if "Could not guard on data-dependent expression" in text:
        yield "replace the Python branch on a tensor's value by torch.where, or by torch.cond"
