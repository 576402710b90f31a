"""Laying out constants for the safetensors member: aligned, each content once, one constant in memory at a time."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np

from ptn_format.dtypes import ScalarType
from ptn_format.errors import WriteError
from ptn_format.limits import (
    MAX_AXIS_SIZE,
    MAX_CONSTANTS_BYTES,
    MAX_JSON_BYTES,
    MAX_JSON_VALUES,
    MAX_RANK,
    MAX_TENSORS,
)
from ptn_format.weights import METADATA_KEY, ConstantInfo

__all__ = ["ALIGNMENT", "ArrayLike", "WeightsPlan", "plan_weights"]

ALIGNMENT = 64
"""The data section starts at a multiple of this many bytes of the member."""

_CHUNK = 16 << 20
_SAMPLE = 4096


class ArrayLike(Protocol):
    """A constant: an array, or anything that can become one when it is asked to."""

    @property
    def dtype(self) -> Any:
        """What `numpy.dtype` accepts; of any byte order."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The stored shape."""

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray[Any, Any]:
        """The values; called up to three times, and the result is not kept."""


@dataclass(frozen=True)
class WeightsPlan:
    """What will be written.

    Attributes:
        owners: the constants that get bytes, in the order of their bytes; `file_offset` counts from the start of
            the data section.
        aliases: for each other constant the key of the owner with the same content.
        header: the member's bytes before the data section.
        constants: the values.
    """

    owners: tuple[ConstantInfo, ...]
    aliases: Mapping[str, str]
    header: bytes
    constants: Mapping[str, ArrayLike]

    @property
    def size(self) -> int:
        """Bytes of the whole member."""
        return len(self.header) + sum(info.nbytes for info in self.owners)

    @property
    def infos(self) -> dict[str, ConstantInfo]:
        """What the package will say of every constant, aliases included."""
        infos = {info.key: info for info in self.owners}
        return infos | {alias: infos[owner] for alias, owner in self.aliases.items()}

    def chunks(self) -> Iterator[bytes | memoryview]:
        """The member's bytes in order.

        Raises:
            WriteError: a constant gives another dtype or shape than it had before.
        """
        yield self.header
        for info in self.owners:
            content = _content(info, self.constants[info.key])
            for start in range(0, len(content), _CHUNK):
                yield content[start : start + _CHUNK]
            del content  # before the next one is made

    def aliases_json(self) -> bytes:
        """The text of `aliases.json`."""
        return json.dumps(self.aliases, ensure_ascii=False, indent=2, sort_keys=True).encode()


def plan_weights(constants: Mapping[str, ArrayLike], mutable: Collection[str] = ()) -> WeightsPlan:
    """Decides which constants share bytes and where each one's bytes go.

    Constants of equal dtype, shape and content are stored once, under the first key in sorted order. Those whose
    size is a multiple of 64 bytes come first, the rest by falling element size: so, without gaps, every large one
    starts at a multiple of 64 bytes and every other one at a multiple of its element's size.

    Args:
        constants: the values by data key.
        mutable: keys of buffers that a method writes to; they always have bytes of their own.

    Raises:
        WriteError: the format cannot hold a constant; the text names its key.
    """
    if len(constants) > MAX_TENSORS:
        raise WriteError(f"{len(constants)} constants are more than the {MAX_TENSORS} that a package can hold")
    infos = [_info(key, constants[key]) for key in _sorted_keys(constants)]
    aliases = _find_duplicates([info for info in infos if info.key not in mutable], constants)
    owners = [info for info in infos if info.key not in aliases]
    owners.sort(key=lambda info: (info.nbytes % ALIGNMENT != 0, _rank(info), info.key))
    placed, position = [], 0
    for info in owners:
        placed.append(ConstantInfo(info.key, info.dtype, info.shape, info.nbytes, position))
        position += info.nbytes
    if position > MAX_CONSTANTS_BYTES:
        raise WriteError(f"the constants have {position} bytes; a package can hold {MAX_CONSTANTS_BYTES}")
    return WeightsPlan(tuple(placed), aliases, _header(placed), constants)


def _rank(info: ConstantInfo) -> int:
    return 0 if info.nbytes % ALIGNMENT == 0 else -info.dtype.itemsize


def _sorted_keys(constants: Mapping[str, ArrayLike]) -> list[str]:
    for key in constants:
        if not isinstance(key, str):
            raise WriteError(f"a constant's key must be a string, not {type(key).__name__}", place=f"constant {key!r}")
        if key in ("", METADATA_KEY):
            raise WriteError("a constant cannot have this key; safetensors reserves it", place=f"constant {key!r}")
        try:
            key.encode("utf-8")
        except UnicodeEncodeError:
            raise WriteError("the key is no valid Unicode text", place=f"constant {key!r}") from None
    return sorted(constants)


def _info(key: str, value: ArrayLike) -> ConstantInfo:
    place = f"constant {key!r}"
    try:
        dtype = ScalarType.from_numpy(np.dtype(value.dtype).newbyteorder("="))
        shape = tuple(int(size) for size in value.shape)
    except AttributeError:
        raise WriteError(f"expected an array, found {type(value).__name__}", place=place) from None
    except (KeyError, TypeError):
        known = ", ".join(scalar.torch_name for scalar in ScalarType)
        raise WriteError(
            f"the format has no dtype {value.dtype}. It has {known}; convert the constant to one of them", place=place
        ) from None
    if len(shape) > MAX_RANK or max(shape, default=0) > MAX_AXIS_SIZE:
        raise WriteError(
            f"the shape {shape} exceeds {MAX_RANK} axes or {MAX_AXIS_SIZE} elements along one", place=place
        )
    return ConstantInfo(key, dtype, shape, prod(shape) * dtype.itemsize, 0)


def _find_duplicates(infos: list[ConstantInfo], constants: Mapping[str, ArrayLike]) -> dict[str, str]:
    """Returns the key of the owner for every constant whose content an earlier one has."""
    aliases: dict[str, str] = {}
    alike = _groups([(info, (info.dtype, info.shape)) for info in infos])
    # A sample tells most different constants of one shape apart, without hashing all of a model's bytes.
    for digest in (_sample_digest, _full_digest):
        alike = [
            part for group in alike for part in _groups([(info, digest(info, constants[info.key])) for info in group])
        ]
    for group in alike:
        aliases.update({info.key: group[0].key for info in group[1:]})
    return aliases


def _groups(labelled: list[tuple[ConstantInfo, Any]]) -> list[list[ConstantInfo]]:
    """Groups of two or more with an equal label, each in the given order."""
    groups: dict[Any, list[ConstantInfo]] = defaultdict(list)
    for info, label in labelled:
        groups[label].append(info)
    return [group for group in groups.values() if len(group) > 1]


def _sample_digest(info: ConstantInfo, value: ArrayLike) -> bytes:
    content = _content(info, value)
    middle = len(content) // 2
    sample = hashlib.sha256(content[:_SAMPLE])
    sample.update(content[middle : middle + _SAMPLE])
    sample.update(content[-_SAMPLE:])
    return sample.digest()


def _full_digest(info: ConstantInfo, value: ArrayLike) -> bytes:
    return hashlib.sha256(_content(info, value)).digest()


def _content(info: ConstantInfo, value: ArrayLike) -> memoryview:
    """The bytes to store: row-major, little-endian; without a copy where the array has that form already."""
    array = np.asarray(value)
    stored = info.dtype.numpy
    if array.shape != info.shape or array.dtype.newbyteorder("=") != stored:
        raise WriteError(
            f"the constant said it was {info.dtype.torch_name} of shape {info.shape} but gave "
            f"{array.dtype} of shape {array.shape}",
            place=f"constant {info.key!r}",
        )
    flat = np.ascontiguousarray(array, stored.newbyteorder("<") if stored.isbuiltin == 1 else stored).reshape(-1)
    raw = flat.view(np.uint8)
    if info.dtype is ScalarType.BOOL and raw.max(initial=0) > 1:
        raw = np.not_equal(raw, 0).view(np.uint8)  # a view of other bytes as bool; readers refuse what is not 0 or 1
    return raw.data


def _header(owners: list[ConstantInfo]) -> bytes:
    entries = {
        info.key: {
            "dtype": info.dtype.safetensors,
            "shape": list(info.shape),
            "data_offsets": [info.file_offset, info.file_offset + info.nbytes],
        }
        for info in owners
    }
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    values = 1 + sum(7 + len(info.shape) for info in owners)
    if len(text) > MAX_JSON_BYTES or values > MAX_JSON_VALUES:
        raise WriteError(
            f"the {len(owners)} constants need a safetensors header of {len(text)} bytes and {values} values; "
            f"readers take at most {MAX_JSON_BYTES} and {MAX_JSON_VALUES}"
        )
    return len(text).to_bytes(8, "little") + text
