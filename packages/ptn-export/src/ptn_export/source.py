"""Where in the user's code a node comes from: the line, and the module that was running."""

from __future__ import annotations

import os
import re
import sys
import traceback
from functools import lru_cache
from pathlib import PurePath

import torch
from torch import fx

__all__ = ["innermost_line", "line_of_error", "module_of", "module_type_of", "place_of", "source_of"]

_FRAME = re.compile(r'File "(?P<path>[^"]+)", line (?P<line>\d+)')
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def source_of(node: fx.Node) -> str | None:
    """The user's `file.py:line` that made `node`: the innermost frame outside PyTorch, or None where unknown."""
    trace = node.meta.get("stack_trace")
    return innermost_line(trace) if isinstance(trace, str) else None


def module_of(node: fx.Node) -> str | None:
    """The path of the innermost module that made `node`, such as `layers.3.attention`; None for the model itself."""
    return _innermost_module(node)[0] or None


def module_type_of(node: fx.Node) -> str | None:
    """The class of that module without its package, such as `Dropout`."""
    return _innermost_module(node)[1].rpartition(".")[2] or None


def place_of(node: fx.Node) -> str | None:
    """What a package says of a node's origin: `model.py:12 in layers.3.attention`, or the part that is known."""
    line, module = source_of(node), module_of(node)
    if line is None or module is None:
        return line or module
    return f"{line} in {module}"


def line_of_error(error: BaseException) -> str | None:
    """The user's `file.py:line` that was running inside `torch.export.export` when it failed; None where none was."""
    found, is_inside = None, False
    for frame, line in traceback.walk_tb(error.__traceback__):
        path = frame.f_code.co_filename
        is_inside = is_inside or path.startswith(os.path.join(_TORCH, "export"))
        if is_inside and _is_users(path):
            found = f"{PurePath(path).name}:{line}"
    return found


@lru_cache(maxsize=4096)
def innermost_line(trace: str) -> str | None:
    """The last frame of a printed `trace` that is neither PyTorch's nor generated code, as `file.py:line`."""
    found = None
    for match in _FRAME.finditer(trace):
        if _is_users(match["path"]):
            found = f"{PurePath(match['path']).name}:{match['line']}"
    return found


def _is_users(path: str) -> bool:
    return not path.startswith((_TORCH, _HERE, "torch/", "<")) and path != sys.executable


def _innermost_module(node: fx.Node) -> tuple[str, str]:
    """Path and class of the innermost module; empty where unknown."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return "", ""
    path, kind = next(reversed(stack.values()))
    path = str(path).removeprefix("L['self'].").partition("@")[0]  # `@1` marks a second call of the same module
    return path, kind if isinstance(kind, str) else getattr(kind, "__qualname__", "")
