"""Element types: the file's numbers, numpy's dtypes and safetensors' codes in one table."""

from __future__ import annotations

import enum
from typing import Any

import ml_dtypes
import numpy as np

__all__ = ["ScalarType"]


class ScalarType(enum.IntEnum):
    """Element types of the format; the numbers are PyTorch's own."""

    BYTE = 0
    CHAR = 1
    SHORT = 2
    INT = 3
    LONG = 4
    HALF = 5
    FLOAT = 6
    DOUBLE = 7
    BOOL = 11
    BFLOAT16 = 15
    UINT16 = 16
    UINT32 = 17
    UINT64 = 18

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype; bfloat16 is `ml_dtypes.bfloat16`."""
        return _NUMPY[self]

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _NUMPY[self].itemsize

    @property
    def safetensors(self) -> str:
        """The code of the safetensors header."""
        return _SAFETENSORS[self]

    @property
    def torch_name(self) -> str:
        """The name PyTorch users know, such as `float32`."""
        return str(_NUMPY[self].name)

    @property
    def is_floating_point(self) -> bool:
        """Whether the type is a floating-point type."""
        return self in _FLOATING

    @classmethod
    def from_numpy(cls, dtype: Any) -> ScalarType:
        """Returns the type for a numpy dtype of native byte order.

        Raises:
            KeyError: the format has no such type (complex, strings, float8, ...).
        """
        return _FROM_NUMPY[np.dtype(dtype)]

    @classmethod
    def from_safetensors(cls, code: str) -> ScalarType:
        """Returns the type for a code of the safetensors header.

        Raises:
            KeyError: the format has no such type.
        """
        return _FROM_SAFETENSORS[code]


_FLOATING = frozenset({ScalarType.HALF, ScalarType.FLOAT, ScalarType.DOUBLE, ScalarType.BFLOAT16})
_NUMPY: dict[ScalarType, np.dtype[Any]] = {
    ScalarType.BYTE: np.dtype(np.uint8),
    ScalarType.CHAR: np.dtype(np.int8),
    ScalarType.SHORT: np.dtype(np.int16),
    ScalarType.INT: np.dtype(np.int32),
    ScalarType.LONG: np.dtype(np.int64),
    ScalarType.HALF: np.dtype(np.float16),
    ScalarType.FLOAT: np.dtype(np.float32),
    ScalarType.DOUBLE: np.dtype(np.float64),
    ScalarType.BOOL: np.dtype(np.bool_),
    ScalarType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    ScalarType.UINT16: np.dtype(np.uint16),
    ScalarType.UINT32: np.dtype(np.uint32),
    ScalarType.UINT64: np.dtype(np.uint64),
}
_SAFETENSORS: dict[ScalarType, str] = {
    ScalarType.BYTE: "U8",
    ScalarType.CHAR: "I8",
    ScalarType.SHORT: "I16",
    ScalarType.INT: "I32",
    ScalarType.LONG: "I64",
    ScalarType.HALF: "F16",
    ScalarType.FLOAT: "F32",
    ScalarType.DOUBLE: "F64",
    ScalarType.BOOL: "BOOL",
    ScalarType.BFLOAT16: "BF16",
    ScalarType.UINT16: "U16",
    ScalarType.UINT32: "U32",
    ScalarType.UINT64: "U64",
}
_FROM_NUMPY = {dtype: scalar for scalar, dtype in _NUMPY.items()}
_FROM_SAFETENSORS = {code: scalar for scalar, code in _SAFETENSORS.items()}
