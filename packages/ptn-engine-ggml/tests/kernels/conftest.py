"""Calls kernels of the native module without a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pytest
from ptn_engine_ggml import libggml
from ptn_format.dtypes import ScalarType

Array = npt.NDArray[Any]
Spec = tuple[ScalarType, tuple[int, ...]]


class Run(Protocol):
    def __call__(
        self,
        name: str,
        inputs: Sequence[Array],
        outputs: Sequence[Spec],
        ints: Sequence[int] = (),
        floats: Sequence[float] = (),
        *,
        threads: int = 1,
        in_place: bool = False,
    ) -> list[Array]: ...


def as_bytes(array: Array) -> Array:
    return np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)


@pytest.fixture(scope="session")
def native() -> Any:
    libggml.load()
    from ptn_engine_ggml import _native

    return _native


@pytest.fixture(scope="session")
def run(native: Any) -> Run:
    """Runs a kernel on arrays of any dtype of the format and gives its results."""

    def call(
        name: str,
        inputs: Sequence[Array],
        outputs: Sequence[Spec],
        ints: Sequence[int] = (),
        floats: Sequence[float] = (),
        *,
        threads: int = 1,
        in_place: bool = False,
    ) -> list[Array]:
        operands = [(int(ScalarType.from_numpy(x.dtype)), list(x.shape), as_bytes(x)) for x in inputs]
        specs = [(int(dtype), list(shape)) for dtype, shape in outputs]
        results = native.run_kernel(name, operands, specs, list(ints), list(floats), threads, in_place)
        return [
            np.frombuffer(result.tobytes(), dtype.numpy).reshape(shape)
            for result, (dtype, shape) in zip(results, outputs, strict=True)
        ]

    return call
