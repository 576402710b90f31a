"""Tensors from nothing, and what every kernel must keep to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ptn_format.dtypes import ScalarType


@pytest.mark.parametrize("dtype", list(ScalarType), ids=lambda t: t.torch_name)
def test_full_and_fill(run: Any, dtype: ScalarType) -> None:
    (found,) = run("create.full", [], [(dtype, (70, 900))], [1], [1.0], threads=3)
    np.testing.assert_array_equal(found, np.ones((70, 900), dtype.numpy))
    (found,) = run("create.fill", [np.array(3, np.int64)], [(dtype, (5,))])
    np.testing.assert_array_equal(found, np.full(5, 3).astype(dtype.numpy))


@pytest.mark.parametrize("dtype", [ScalarType.LONG, ScalarType.INT, ScalarType.FLOAT], ids=lambda t: t.torch_name)
def test_arange(run: Any, dtype: ScalarType) -> None:
    (found,) = run("create.arange", [], [(dtype, (50_000,))], [7, 3], [7.0, 3.0], threads=3)
    np.testing.assert_array_equal(found, np.arange(7, 150_007, 3).astype(dtype.numpy))


def test_eye(run: Any) -> None:
    (found,) = run("create.eye", [], [(ScalarType.HALF, (4, 6))])
    np.testing.assert_array_equal(found, np.eye(4, 6, dtype=np.float16))


def test_names_are_sorted_unique_and_tell_the_family(native: Any) -> None:
    names = native.kernel_names()
    assert names == sorted(set(names))
    families = {name.partition(".")[0] for name in names}
    assert families <= {
        *("attention", "cast", "conv", "create", "elementwise", "index", "layout", "matmul", "norm", "pool"),
        *("quant", "reduction", "resample", "sort"),
    }


def test_wrong_calls_are_errors_not_crashes(run: Any) -> None:
    x = np.zeros((2, 3), np.float32)
    spec = [(ScalarType.FLOAT, (2, 3))]
    with pytest.raises(RuntimeError, match="too few integers"):
        run("elementwise.add", [x, x], spec)
    with pytest.raises(RuntimeError, match="too few tensors"):
        run("elementwise.add", [x], spec, [int(ScalarType.FLOAT), 0])
    with pytest.raises(RuntimeError, match="does not take bool"):
        run("elementwise.exp", [x], spec, [int(ScalarType.BOOL), 0])
    with pytest.raises(RuntimeError, match="takes 1 tensors and gives 1"):
        run("cast.to", [x, x], spec)
    with pytest.raises(KeyError, match="no kernel"):
        run("elementwise.nothing", [x], spec)
