"""Parameters, buffers and constants of all methods, by key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch
from ptn_format.graph import InputKind

from ptn_export.dims import SCALAR_TYPES

__all__ = ["Constant", "ConstantStore"]

# Names that PyTorch makes up for tensors created inside `forward`: the same name in two methods means nothing.
_MADE_UP = re.compile(r"(^|\.)_?(lifted_)?tensor(_constant)?_?\d+$")


class Constant:
    """A tensor that becomes a numpy array when it is asked for, without a second copy where memory allows.

    Attributes:
        tensor: the data.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor.detach()

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype; bfloat16 is `ml_dtypes.bfloat16`."""
        return SCALAR_TYPES[self.tensor.dtype].numpy

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return tuple(self.tensor.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the dense tensor."""
        return self.tensor.numel() * self.tensor.element_size()

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        dense = self.tensor.resolve_neg().cpu().contiguous()
        if dense.dtype is torch.bfloat16:
            array = dense.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        else:
            array = dense.numpy()
        return np.array(array, dtype=dtype, copy=True) if copy else np.asarray(array, dtype=dtype)

    def starts_as_zeros(self) -> bool:
        """Whether every byte is zero (negative zero is not)."""
        return not np.any(np.asarray(self).reshape(-1).view(np.uint8))

    def same_as(self, other: Constant) -> bool:
        """Whether both hold the same bytes in the same shape."""
        a, b = self.tensor, other.tensor
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        if a.numel() == 0 or (a.data_ptr() == b.data_ptr() and a.stride() == b.stride() and a.device == b.device):
            return True
        return np.array_equal(np.asarray(self).reshape(-1).view(np.uint8), np.asarray(other).reshape(-1).view(np.uint8))


@dataclass(slots=True)
class _Entry:
    constant: Constant
    method: str
    kind: InputKind
    source: tuple[int, tuple[int, ...], tuple[int, ...]]


class ConstantConflictError(Exception):
    """Two methods name different data by one key."""

    def __init__(self, key: str, method: str, difference: str) -> None:
        super().__init__(difference)
        self.key = key
        self.method = method


class ConstantStore:
    """All constants of a program. Buffers are copied when they are added, everything else is referenced."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def add(self, key: str, tensor: torch.Tensor, kind: InputKind, method: str) -> str:
        """Adds what `method` calls `key`; returns the key to use for it.

        Raises:
            ConstantConflictError: another method has other data under this key.
        """
        known = self._entries.get(key)
        if known is None:
            source = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride())
            data = tensor.detach().clone() if kind is InputKind.BUFFER else tensor
            self._entries[key] = _Entry(Constant(data), method, kind, source)
            return key
        constant = Constant(tensor)
        if known.constant.same_as(constant):
            return key
        if kind is InputKind.CONSTANT_TENSOR and _MADE_UP.search(key):
            return self.add(f"{key}.{method}", tensor, kind, method)
        raise ConstantConflictError(key, known.method, _difference(known.constant, constant))

    def __getitem__(self, key: str) -> Constant:
        return self._entries[key].constant

    def select(self, keys: set[str]) -> Mapping[str, Constant]:
        """The constants under `keys`, sorted."""
        return {key: self._entries[key].constant for key in sorted(keys)}


def _difference(left: Constant, right: Constant) -> str:
    if left.tensor.dtype != right.tensor.dtype or left.shape != right.shape:
        return (
            f"{str(left.tensor.dtype).removeprefix('torch.')}{list(left.shape)} and "
            f"{str(right.tensor.dtype).removeprefix('torch.')}{list(right.shape)}"
        )
    return "the same type and shape with other values"
