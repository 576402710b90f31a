"""Numpy kernels of the family `cast`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptn_runtime.reference._numerics import cast
from ptn_runtime.reference.registry import Array, Outputs, kernel


@kernel(
    "aten._to_copy.default",
    "aten.to.dtype",
    "aten.to.dtype_layout",
    "aten.to.device",
    "aten.type_as.default",
)
def to_copy(out: Outputs, self: Array, **_: Any) -> Array:
    return cast(self, out.dtype.numpy)


@kernel("aten.copy.default")
def copy(out: Outputs, self: Array, src: Array, non_blocking: bool = False) -> Array:
    return np.broadcast_to(cast(src, out.dtype.numpy), out.shape)
