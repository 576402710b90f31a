"""Where in the user's code a node comes from."""

from __future__ import annotations

import os
import re
import sys
from functools import lru_cache
from pathlib import PurePath

import torch
from torch import fx

__all__ = ["source_of"]

_FRAME = re.compile(r'File "(?P<path>[^"]+)", line (?P<line>\d+)')
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


def source_of(node: fx.Node) -> str | None:
    """The user's `file.py:line` that made `node`: the innermost frame outside PyTorch, or None where unknown."""
    trace = node.meta.get("stack_trace")
    return _innermost(trace) if isinstance(trace, str) else None


@lru_cache(maxsize=4096)
def _innermost(trace: str) -> str | None:
    """The last frame of `trace` that is neither PyTorch's nor generated code."""
    found = None
    for match in _FRAME.finditer(trace):
        path = match["path"]
        if path.startswith((_TORCH, "torch/", "<")) or path == sys.executable:
            continue
        found = f"{PurePath(path).name}:{match['line']}"
    return found
