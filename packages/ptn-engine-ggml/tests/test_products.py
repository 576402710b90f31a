"""Products whose operands are windows with repeated rows: ggml repeats only the weights."""

from __future__ import annotations

import numpy as np
import ptn_runtime
import pytest
from ptn_format.dtypes import ScalarType
from ptn_format.graph import Dim, IntListArg, TensorMeta
from ptn_runtime.conformance.case import floats
from ptn_runtime.conformance.programs import MethodBuilder, pack


def meta(*shape: int) -> TensorMeta:
    return TensorMeta(ScalarType.FLOAT, tuple(Dim(size, size) for size in shape))


@pytest.mark.parametrize("expanded", ["self", "mat2"])
def test_an_expanded_batch(expanded: str) -> None:
    left, right = floats(4, 3, 8), floats(4, 8, 5, seed=1)
    if expanded == "self":
        left = left[:1]
    else:
        right = right[:1]
    method = MethodBuilder("forward")
    method.input("left", *left.shape)
    method.input("right", *right.shape)
    method.call("wide_left", "aten.expand.default", meta(4, 3, 8), self="left", size=IntListArg((4, 3, 8)))
    method.call("wide_right", "aten.expand.default", meta(4, 8, 5), self="right", size=IntListArg((4, 8, 5)))
    method.call("y", "aten.bmm.default", meta(4, 3, 5), self="wide_left", mat2="wide_right")
    method.result("y")
    with ptn_runtime.load(pack([method.build()], {}), engine="ggml") as model:
        np.testing.assert_allclose(model(left, right), np.matmul(left, right), rtol=1e-5, atol=1e-5)
