"""Upstream's exporter, reader and validator, and its programs in a form that compares with ours."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import logging
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ptn_format import Package

from interop.case import Case
from interop.compare import rounded

__all__ = ["VERSION", "Error", "as_tree", "data_differ", "export", "read"]

VERSION = "1.5.1"


class Error(Exception):
    """Upstream raised; the text begins with the type of what it raised."""


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides warnings and log lines of upstream and of what it imports; what is raised becomes an `Error`."""
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    except Exception as error:
        text = " ".join(str(error).split())
        raise Error(f"{type(error).__name__}: {text}") from error
    finally:
        logging.disable(logging.NOTSET)


def export(case: Case, path: Path) -> None:
    """Writes a package with upstream's exporter.

    Raises:
        Error: it refuses the model.
    """
    exported = case.exported()
    with _quiet():
        from executorch.exir.native import to_native

        to_native(exported).save(os.fspath(path))


def read(path: Path) -> tuple[Any, dict[str, torch.Tensor]]:
    """Reads a package with upstream's reader and checks it with the validator that its exporter uses.

    Returns:
        The program, in upstream's dataclasses, and the constants by key, aliases resolved.

    Raises:
        Error: it cannot read the file, or finds it invalid.
    """
    with _quiet():
        from executorch.backends.native.serialization.graph_serialize import deserialize_program
        from executorch.exir._serialize._ptn import read_ptn
        from executorch.exir.native.native import _validate_merged_program

        data, constants = read_ptn(os.fspath(path))
        program = deserialize_program(data)
        _validate_merged_program(program, constants)
    return program, constants


_WRAPPERS = {"Argument": "value", "QuantSpec": "scheme"}
_PAIRS = {"metadata": "key", "tensor_values": "name"}


def as_tree(value: Any) -> Any:
    """A table of upstream's or of ours as plain dicts and lists, so that equal programs are equal.

    Absent and empty lists are one thing, as are the two ways to hold a map; NaN equals itself; floats are rounded as
    upstream's reader rounds them.
    """
    if isinstance(value, enum.Enum):
        return int(value.value)
    if isinstance(value, float):
        return "nan" if math.isnan(value) else rounded(value)
    if isinstance(value, Mapping):
        return {key: as_tree(item) for key, item in value.items()} or None
    if isinstance(value, list | tuple):
        return [as_tree(item) for item in value] or None
    if not dataclasses.is_dataclass(value):
        return value
    name = type(value).__name__
    if name in _WRAPPERS:
        return as_tree(getattr(value, _WRAPPERS[name]))
    tree: dict[str, Any] = {"table": name}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        if field.name in _PAIRS and isinstance(item, list):
            other = {"metadata": "value", "tensor_values": "meta"}[field.name]
            item = {getattr(pair, _PAIRS[field.name]): getattr(pair, other) for pair in item}
        tree[field.name] = as_tree(item)
    return tree


def data_differ(theirs: Mapping[str, torch.Tensor], ours: Package) -> list[str]:
    """Keys whose data upstream's reader and ours see differently."""
    wrong = sorted(set(theirs) ^ set(ours.constant_keys))
    for key in sorted(set(theirs) & set(ours.constant_keys)):
        left, right = theirs[key].contiguous(), ours.constant(key)
        raw = left.reshape(-1).view(torch.uint8).numpy().tobytes()
        if raw != np.ascontiguousarray(right).tobytes() or tuple(left.shape) != right.shape:
            wrong.append(key)
    return wrong
