"""How PyTorch computes, in numpy: casts, working precision, promotion of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from ptn_format.dtypes import ScalarType

from ptn_runtime.lowering.static import TensorSpec
from ptn_runtime.reference.registry import Array, Number
from ptn_runtime.shapes._promotion import result_type

__all__ = [
    "at",
    "cast",
    "common_type",
    "finish",
    "lowest",
    "operand",
    "scalar_type",
    "widen",
    "working_dtype",
]

_HALF = ScalarType.HALF.numpy
_BFLOAT16 = ScalarType.BFLOAT16.numpy
_FLOAT = ScalarType.FLOAT.numpy
_DOUBLE = ScalarType.DOUBLE.numpy
_REDUCED = (_HALF, _BFLOAT16)
_UNSIGNED = tuple(np.dtype(kind) for kind in (np.uint8, np.uint16, np.uint32, np.uint64))


def scalar_type(array: Array) -> ScalarType:
    """The array's element type."""
    return ScalarType.from_numpy(array.dtype)


def working_dtype(dtype: ScalarType) -> np.dtype[Any]:
    """The numpy dtype in which PyTorch computes results of `dtype`: float32 for half and bfloat16."""
    kind = dtype.numpy
    return _FLOAT if kind in _REDUCED else kind


def widen(array: Array) -> Array:
    """The array in its working dtype."""
    return array.astype(_FLOAT) if array.dtype in _REDUCED else array


def cast(array: Array, dtype: np.dtype[Any]) -> Array:
    """Converts as PyTorch does; returns the array itself where nothing changes.

    Half and bfloat16 are reached through float32. Floats go to unsigned integers through int64, so that negative
    numbers wrap; NaN is true.
    """
    source = array.dtype
    if source == dtype:
        return array
    if dtype in _REDUCED:
        return array.astype(_FLOAT, copy=False).astype(dtype)
    if source in _REDUCED:
        array = array.astype(_FLOAT)
        source = array.dtype
        if source == dtype:
            return array
    if dtype in _UNSIGNED and source.kind == "f":
        return array.astype(np.int64).astype(dtype)
    return array.astype(dtype)


def operand(value: Array | Number, dtype: ScalarType) -> Array:
    """An argument of a computation with common type `dtype`: rounded to `dtype`, held in its working dtype."""
    if isinstance(value, np.ndarray):
        return widen(cast(value, dtype.numpy))
    return widen(number(value, dtype))


def number(value: Number, dtype: ScalarType) -> Array:
    """A Python number as a 0-d array of `dtype`; integers wrap."""
    kind = dtype.numpy
    if kind.kind in "iu" and isinstance(value, int):
        bits = 8 * kind.itemsize
        unsigned = int(value) & ((1 << bits) - 1)
        return np.array(unsigned, np.dtype(f"u{kind.itemsize}")).astype(kind)
    if kind.kind in "iub":
        return cast(np.array(value, _DOUBLE), kind)
    return cast(np.array(float(value), _DOUBLE), kind)


def finish(array: Array, dtype: ScalarType) -> Array:
    """A computed array rounded to the result's dtype; numpy scalars become 0-d arrays."""
    return cast(np.asarray(array), dtype.numpy)


def common_type(*operands: Array | Number) -> ScalarType:
    """PyTorch's result type of arrays and Python numbers."""
    return result_type(
        *(TensorSpec(scalar_type(value), value.shape) if isinstance(value, np.ndarray) else value for value in operands)
    )


def lowest(dtype: np.dtype[Any], *, highest: bool = False) -> Any:
    """The smallest (or largest) value of a working dtype; infinities for floats."""
    if dtype.kind == "f":
        return np.inf if highest else -np.inf
    if dtype.kind == "b":
        return highest
    info = np.iinfo(dtype)
    return info.max if highest else info.min


def at(*index: Any) -> Any:
    """The index `array[index]` as a tuple; numpy's stubs take no tuple of unknown length."""
    return index
