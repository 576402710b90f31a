"""The constants of a package: the safetensors member, and the aliases beside it.

The safetensors layout is the one of https://github.com/huggingface/safetensors (README, "Format"): the header's size
as a 64-bit little-endian number, the header as JSON, then the tensors' bytes without gaps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ptn_format.dtypes import ScalarType
from ptn_format.errors import ConstantError, FormatError, LimitError, WeightsError
from ptn_format.limits import (
    MAX_AXIS_SIZE,
    MAX_JSON_BYTES,
    MAX_JSON_DEPTH,
    MAX_JSON_VALUES,
    MAX_RANK,
    MAX_TENSORS,
)

__all__ = ["METADATA_KEY", "ConstantInfo", "constant_array", "read_aliases", "read_header"]

METADATA_KEY = "__metadata__"
"""The one key of a safetensors header that is not a tensor's; no constant may have it."""

_SIZE_BYTES = 8
_SCAN_CHUNK = 1 << 18
_QUOTE, _BACKSLASH, _COMMA = 0x22, 0x5C, 2
_STEPS = np.zeros(256, np.int8)  # what a character outside strings does to the depth, with a mark for commas
_STEPS[list(b"[{")], _STEPS[list(b"]}")], _STEPS[ord(",")] = 1, -1, _COMMA

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class ConstantInfo:
    """What the file says of one constant's bytes.

    Attributes:
        key: the data key under which the bytes are stored.
        dtype: element type of the stored bytes (`BYTE` for quantised constants).
        shape: shape of the stored bytes; for a packed constant not its logical shape.
        nbytes: how many bytes it has.
        file_offset: where the bytes start in the package file.
    """

    key: str
    dtype: ScalarType
    shape: tuple[int, ...]
    nbytes: int
    file_offset: int


def read_header(view: memoryview, file_offset: int) -> dict[str, ConstantInfo]:
    """Reads the header of the safetensors member; its tensors' bytes are not touched.

    Args:
        view: all bytes of the member.
        file_offset: where the member starts in the file.

    Returns:
        The tensors by key, in the order of the header.

    Raises:
        WeightsError: the member breaks the safetensors layout; the text names the tensor.
        LimitError: a size exceeds what this release accepts.
    """
    if len(view) < _SIZE_BYTES:
        raise WeightsError(f"the member has {len(view)} bytes, less than its header's size takes")
    header_size = int.from_bytes(view[:_SIZE_BYTES], "little")
    if header_size > MAX_JSON_BYTES:
        raise LimitError(f"the header claims {header_size} bytes; at most {MAX_JSON_BYTES} are read")
    data_start = _SIZE_BYTES + header_size
    if data_start > len(view):
        raise WeightsError(f"the header claims {header_size} bytes, but only {len(view) - _SIZE_BYTES} follow")
    text = bytes(view[_SIZE_BYTES:data_start])
    if not text.startswith(b"{"):
        raise WeightsError(f"the header must start with '{{' but starts with {text[:8]!r}")
    document = _parse_json(text)
    _check_metadata(document.pop(METADATA_KEY, {}))
    if len(document) > MAX_TENSORS:
        raise LimitError(f"the header has {len(document)} tensors; at most {MAX_TENSORS} are read")
    data_size = len(view) - data_start
    spans: list[tuple[int, int, str]] = []
    infos: dict[str, ConstantInfo] = {}
    for key, entry in document.items():
        try:
            dtype, shape, begin, end = _read_entry(key, entry, data_size)
        except FormatError as error:
            error.at(place=f"tensor {_shorten(key)}")
            raise
        spans.append((begin, end, key))
        infos[key] = ConstantInfo(key, dtype, shape, end - begin, file_offset + data_start + begin)
    _check_spans(spans, data_size)
    return infos


def read_aliases(view: memoryview, owners: Mapping[str, ConstantInfo]) -> dict[str, str]:
    """Reads `aliases.json`: for each constant that is stored under another key, that key.

    Raises:
        WeightsError: the text is damaged, an owner does not exist, or an alias is itself stored or an owner.
        LimitError: a size exceeds what this release accepts.
    """
    document = _parse_json(bytes(view))
    if len(document) > MAX_TENSORS:
        raise LimitError(f"there are {len(document)} aliases; at most {MAX_TENSORS} are read")
    for alias, owner in document.items():
        reason = ""
        if not isinstance(owner, str):
            reason = f"its owner must be a string, not {_json_kind(owner)}"
        elif alias in ("", METADATA_KEY):
            reason = "a constant cannot have this key"
        elif alias in owners:
            reason = "it has bytes of its own"
        elif owner in document:
            reason = f"its owner {_shorten(owner)} is an alias too; chains and cycles are not followed"
        elif owner not in owners:
            reason = f"its owner {_shorten(owner)} is not stored in the package"
        if reason:
            raise WeightsError(f"the alias is not valid: {reason}", place=f"alias {_shorten(alias)}")
    return document


def constant_array(view: memoryview, info: ConstantInfo) -> Array:
    """Returns a constant as a read-only array: a view of the file where its address suits the dtype, else a copy.

    Args:
        view: all bytes of the package file.
        info: the constant.

    Raises:
        ConstantError: a boolean constant has bytes other than 0 and 1.
    """
    dtype = info.dtype.numpy
    if info.nbytes == 0:
        array = np.empty(info.shape, dtype)
        array.flags.writeable = False
        return array
    stored = dtype.newbyteorder("<") if dtype.isbuiltin == 1 else dtype  # ml_dtypes know the native order only
    array = np.frombuffer(view[info.file_offset : info.file_offset + info.nbytes], stored).reshape(info.shape)
    if info.dtype is ScalarType.BOOL and array.view(np.uint8).max() > 1:
        raise ConstantError("a boolean constant has bytes other than 0 and 1", place=f"constant {_shorten(info.key)}")
    if not array.flags.aligned or array.dtype != dtype:
        array = array.astype(dtype, copy=True)
    array.flags.writeable = False
    return array


def _parse_json(text: bytes) -> dict[str, Any]:
    """Parses a JSON object from an untrusted file: strict, of limited size, and without duplicate keys."""
    if len(text) > MAX_JSON_BYTES:
        raise LimitError(f"the JSON text has {len(text)} bytes; at most {MAX_JSON_BYTES} are read")
    _check_json_size(text)
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise WeightsError(f"the JSON text is not UTF-8: {error.reason} at byte {error.start}") from None
    try:
        document = json.loads(
            decoded,
            object_pairs_hook=_unique,
            parse_int=_parse_integer,
            parse_constant=_refuse_constant,
        )
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"the JSON text is damaged: {error}") from None
    if not isinstance(document, dict):
        raise WeightsError(f"the JSON text must be an object, not {_json_kind(document)}")
    return document


def _check_json_size(text: bytes) -> None:
    """Bounds depth and number of values before the text is parsed, so that no text can exhaust stack or memory."""
    depth, values, in_string, escaped = 0, 1, False, False
    for start in range(0, len(text), _SCAN_CHUNK):
        codes = np.frombuffer(text, np.uint8, min(_SCAN_CHUNK, len(text) - start), start)
        in_string_after, escaped_after, outside = _outside_strings(codes, in_string, escaped)
        in_string, escaped = in_string_after, escaped_after
        steps = _STEPS[codes[outside]]
        values += int(np.count_nonzero((steps == 1) | (steps == _COMMA)))
        steps[steps == _COMMA] = 0
        depths = depth + np.cumsum(steps, dtype=np.int64)
        if depths.max(initial=0) > MAX_JSON_DEPTH:
            raise LimitError(f"the JSON text nests more than {MAX_JSON_DEPTH} deep")
        if values > MAX_JSON_VALUES:
            raise LimitError(f"the JSON text has more than {MAX_JSON_VALUES} values")
        depth = int(depths[-1]) if len(depths) else depth


def _outside_strings(codes: Array, in_string: bool, escaped: bool) -> tuple[bool, bool, Array]:
    """Finds the characters outside string literals.

    Args:
        codes: a piece of the text, uint8, not empty.
        in_string: whether the piece starts inside a string.
        escaped: whether its first character is escaped by the one before it.

    Returns:
        The same two facts for the piece that follows, and a mask of the characters.
    """
    quotes = codes == _QUOTE
    backslashes = codes == _BACKSLASH
    escaped_after = False
    if escaped or backslashes.any():
        # A character is escaped where an odd number of backslashes ends just before it; an escape from before the
        # piece counts as one more at its start.
        index = np.arange(len(codes))
        last_other = np.maximum.accumulate(np.where(backslashes, -1, index))
        run = index - np.where(last_other < 0, -1 - int(escaped), last_other)
        odd = run % 2 == 1
        escaped_after = bool(odd[-1])
        quotes[1:] &= ~odd[:-1]
        quotes[0] &= not escaped
    inside = (np.cumsum(quotes) + int(in_string)) % 2 == 1
    return bool(inside[-1]), escaped_after, ~(inside | quotes)


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {_shorten(key)} comes twice")
            seen.add(key)
    for key in document:
        if not key.isascii():
            try:
                key.encode("utf-8")
            except UnicodeEncodeError:
                raise ValueError(f"the key {_shorten(key)} has half a surrogate pair") from None
    return document


def _parse_integer(text: str) -> int | float:
    """Numbers that are no sizes become floats, which are refused with the name of their tensor."""
    return float(text) if text == "-0" or len(text) > 20 else int(text)


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def _check_metadata(metadata: Any) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise WeightsError("the metadata must be an object of strings", place=METADATA_KEY)


def _read_entry(key: str, entry: Any, data_size: int) -> tuple[ScalarType, tuple[int, ...], int, int]:
    """Returns dtype, shape, and begin and end within the data section."""
    if not key:
        raise WeightsError("a tensor's key must not be empty")
    if not isinstance(entry, dict):
        raise WeightsError(f"expected an object with dtype, shape and data_offsets, found {_json_kind(entry)}")
    missing = [name for name in ("dtype", "shape", "data_offsets") if name not in entry]
    if missing:
        raise WeightsError(f"the entry lacks {' and '.join(missing)}")
    dtype = _read_dtype(entry["dtype"])
    shape = _read_shape(entry["shape"])
    offsets = entry["data_offsets"]
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_size(value) for value in offsets):
        raise WeightsError(f"data_offsets must be two non-negative integers, found {_shorten(offsets)}")
    begin, end = offsets
    if begin > end or end > data_size:
        raise WeightsError(f"data_offsets [{begin}, {end}] do not lie within the {data_size} bytes of data")
    nbytes = prod(shape) * dtype.itemsize
    if end - begin != nbytes:
        raise WeightsError(
            f"shape {list(shape)} of {dtype.safetensors} takes {nbytes} bytes, but data_offsets [{begin}, {end}] "
            f"give {end - begin}"
        )
    return dtype, shape, begin, end


def _read_dtype(code: Any) -> ScalarType:
    if not isinstance(code, str):
        raise WeightsError(f"dtype must be a string, not {_json_kind(code)}")
    try:
        return ScalarType.from_safetensors(code)
    except KeyError:
        known = " ".join(dtype.safetensors for dtype in ScalarType)
        raise WeightsError(f"the dtype {_shorten(code)} is not one of the format's: {known}") from None


def _read_shape(shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, list):
        raise WeightsError(f"shape must be an array, not {_json_kind(shape)}")
    if len(shape) > MAX_RANK:
        raise LimitError(f"the shape has {len(shape)} axes; at most {MAX_RANK} are read")
    for size in shape:
        if not _is_size(size):
            raise WeightsError(f"shape must be an array of non-negative integers, found {_shorten(size)}")
        if size > MAX_AXIS_SIZE:
            raise LimitError(f"an axis has {size} elements; at most {MAX_AXIS_SIZE} are read")
    return tuple(shape)


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 0  # a bool is an int to Python


def _check_spans(spans: list[tuple[int, int, str]], data_size: int) -> None:
    """Tensors must cover the data section exactly: no overlap, no gap, nothing after the last."""
    position, previous = 0, ""
    for begin, end, key in sorted(spans):
        if begin < position:
            raise WeightsError(
                f"its bytes [{begin}, {end}] overlap those of tensor {_shorten(previous)}, which end at {position}",
                place=f"tensor {_shorten(key)}",
            )
        if begin > position:
            raise WeightsError(
                f"{begin - position} bytes before it, at {position}, belong to no tensor",
                place=f"tensor {_shorten(key)}",
            )
        position, previous = end, key
    if position != data_size:
        last = f" {_shorten(previous)}" if spans else ""
        raise WeightsError(f"{data_size - position} bytes at {position}, after the last tensor{last}, belong to none")


def _json_kind(value: Any) -> str:
    kinds = {
        dict: "an object",
        list: "an array",
        str: "a string",
        bool: "a boolean",
        int: "a number",
        float: "a number",
    }
    return kinds.get(type(value), "null")


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:110]}...{text[-6:]}"
