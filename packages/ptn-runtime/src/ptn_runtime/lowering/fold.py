"""Evaluates nodes whose arguments are all constant, so that engines neither run nor see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from ptn_format.dtypes import ScalarType

from ptn_runtime.lowering.canonical import Constants
from ptn_runtime.lowering.static import TensorSpec, Value

__all__ = ["ALWAYS_BYTES", "LIMIT_BYTES", "Folded", "Folder"]

Array = npt.NDArray[Any]

ALWAYS_BYTES = 1 << 16
"""Results of at most this size are always folded."""
LIMIT_BYTES = 1 << 20
"""Results up to this size are folded where they are not larger than what they are made of: a folded weight costs
memory beside the original, and should not undo a compact representation."""


@dataclass(frozen=True, slots=True)
class Folded:
    """Results of a folded call; `from_weights` where constants of the package went in."""

    arrays: tuple[Array, ...]
    from_weights: bool


class Folder:
    """Runs reference kernels on constants of one package."""

    def __init__(self, constants: Constants) -> None:
        self._constants = constants

    def worthwhile(self, weight_bytes: int, specs: tuple[TensorSpec, ...]) -> bool:
        """Whether results are small enough to be kept as constants.

        Args:
            weight_bytes: bytes of the arguments that are weights or were folded from weights.
            specs: dtype and shape of the results.
        """
        size = sum(_nbytes(spec) for spec in specs)
        if size <= ALWAYS_BYTES:
            return True
        return size <= LIMIT_BYTES and (not weight_bytes or size <= weight_bytes)

    def evaluate(self, op: str, args: Mapping[str, Any], specs: tuple[TensorSpec, ...]) -> tuple[Array, ...] | None:
        """The results of `op`, read-only, or None where the reference engine cannot run it."""
        from ptn_runtime import reference  # numpy kernels; only needed where there is something to fold

        if op not in reference.KERNELS:
            return None
        arrays = {name: self._resolve(arg) for name, arg in args.items()}
        try:
            results = reference.evaluate(op, arrays, specs)
        except (IndexError, ValueError):
            # The program fails where the node is reached; so it stays, and the engine raises as it would for data.
            return None
        return tuple(_own(result, spec) for result, spec in zip(results, specs, strict=True))

    def by_data(self, op: str, args: Mapping[str, Any]) -> tuple[Array, ...]:
        """The results, read-only, of an operator whose shapes depend on the contents of its constant arguments."""
        from ptn_runtime import reference

        results = reference.evaluate(op, {name: self._resolve(arg) for name, arg in args.items()})
        return tuple(_own(r, TensorSpec(ScalarType.from_numpy(r.dtype), r.shape)) for r in results)

    def array(self, value: Value) -> Array:
        """The contents of a constant.

        Raises:
            ValueError: `value` is none.
        """
        if value.data is not None:
            return value.data
        if value.key is None:
            raise ValueError(f"{value} is no constant")
        array: Array = self._constants.constant(value.key)
        return array

    def _resolve(self, arg: Any) -> Any:
        if isinstance(arg, Value):
            return self.array(arg)
        if isinstance(arg, tuple):
            return tuple(self._resolve(item) for item in arg)
        return arg


def _own(result: Array, spec: TensorSpec) -> Array:
    # A kernel may return a view of a weight or a broadcast: keep neither alive.
    array: Array = np.array(result, dtype=spec.dtype.numpy, order="C", copy=True)
    if array.shape != spec.shape:
        raise AssertionError(f"kernel gave shape {array.shape}, its shape rule {spec.shape}")
    array.flags.writeable = False
    return array


def _nbytes(spec: TensorSpec) -> int:
    size = spec.dtype.itemsize
    for axis in spec.shape:
        size *= axis
    return size
