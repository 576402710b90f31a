"""Random numbers: range, resolution and spread."""

from __future__ import annotations

import numpy as np
import pytest
from ptn_format.dtypes import ScalarType
from ptn_runtime.reference import evaluate

BITS = {ScalarType.HALF: 11, ScalarType.BFLOAT16: 8, ScalarType.FLOAT: 24, ScalarType.DOUBLE: 53}


@pytest.mark.parametrize("dtype", list(BITS))
def test_rand_never_reaches_one_and_fills_the_dtype(dtype: ScalarType) -> None:
    (values,) = evaluate("aten.rand.default", {"size": (200_000,), "dtype": dtype})
    wide = values.astype(np.float64)
    assert values.dtype == dtype.numpy
    assert wide.min() >= 0
    assert wide.max() < 1
    assert abs(wide.mean() - 0.5) < 0.01
    scaled = wide * 2.0 ** BITS[dtype]
    assert np.array_equal(scaled, np.rint(scaled)), "every value is a whole number of the last place below 1"
    assert np.any(scaled % 2 == 1), "the last place is used"
