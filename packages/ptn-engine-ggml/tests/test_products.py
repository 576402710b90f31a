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


def grouped(engine: str, rows: int, ends: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, one matrix for each group, and what the engine makes of them where the groups end at `ends`."""
    x, weights = floats(rows, 19), floats(len(ends), 19, 5, seed=1)
    method = MethodBuilder("forward")
    method.input("x", *x.shape)
    method.input("weights", *weights.shape)
    method.input("ends", len(ends), dtype=ScalarType.INT)
    method.call("y", "aten._grouped_mm.default", meta(rows, 5), self="x", mat2="weights", offs="ends")
    method.result("y")
    with ptn_runtime.load(pack([method.build()], {}), engine=engine) as model:
        return x, weights, model(x, weights, np.array(ends, np.int32))


@pytest.mark.parametrize("engine", ["reference", "ggml"])
def test_rows_behind_the_last_group_give_zeros(engine: str) -> None:
    x, weights, y = grouped(engine, 6, [0, 3, 4])
    np.testing.assert_allclose(y[:3], x[:3] @ weights[1], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(y[3], x[3] @ weights[2], rtol=1e-5, atol=1e-5)
    assert not y[4:].any()


@pytest.mark.parametrize("engine", ["reference", "ggml"])
@pytest.mark.parametrize("ends", [[3, 7], [4, 3], [-1, 3]], ids=str)
def test_groups_that_end_outside_the_rows(engine: str, ends: list[int]) -> None:
    with pytest.raises(IndexError, match=r"grouped_mm.*(7|3|-1)"):
        grouped(engine, 6, ends)
