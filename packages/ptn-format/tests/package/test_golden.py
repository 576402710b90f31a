"""Packages that upstream's exporter wrote: unaligned, with its own timestamps and order of tensors."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from ptn_format.package import open_package, write_package

CODES = {"F32": "<f4", "F64": "<f8", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I8": "i1", "U8": "u1", "BOOL": "?"}


def read_naively(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Constants and aliases, by the shortest way there is."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        aliases = json.loads(archive.read("aliases.json")) if "aliases.json" in names else {}
        if "program.safetensors" not in names:
            return {}, aliases
        data = archive.read("program.safetensors")
    size = struct.unpack_from("<Q", data)[0]
    constants = {}
    for key, entry in json.loads(data[8 : 8 + size]).items():
        begin, end = entry["data_offsets"]
        raw = data[8 + size + begin : 8 + size + end]
        dtype = ml_dtypes.bfloat16 if entry["dtype"] == "BF16" else CODES[entry["dtype"]]
        constants[key] = np.frombuffer(raw, dtype).reshape(entry["shape"])
    return constants, aliases


def test_reads(golden_path: Path) -> None:
    constants, aliases = read_naively(golden_path)
    with open_package(golden_path) as opened:
        opened.verify()
        assert set(opened.constant_keys) == constants.keys() | aliases.keys()
        for key in opened.constant_keys:
            owner = aliases.get(key, key)
            assert opened.owner(key) == owner
            found = opened.constant(key)
            assert found.dtype == constants[owner].dtype
            assert found.flags.aligned
            assert np.array_equal(found, constants[owner])


def test_writes_the_same_content(golden_path: Path) -> None:
    """Program, constants and deduplication as upstream's; only the layout in the file differs."""
    constants, aliases = read_naively(golden_path)
    opened = open_package(golden_path)
    target = io.BytesIO()
    write_package(target, opened.program, {key: opened.constant(key) for key in opened.constant_keys})
    again = open_package(target.getvalue())
    again.verify()
    assert again.program.methods == opened.program.methods
    assert {key: again.owner(key) for key in again.constant_keys if again.owner(key) != key} == aliases
    whole = np.frombuffer(target.getvalue(), np.uint8)
    for key, value in constants.items():
        assert np.array_equal(again.constant(key), value)
        assert again.constant_info(key).file_offset % value.dtype.itemsize == 0
    assert len(whole) < golden_path.stat().st_size + 2048
