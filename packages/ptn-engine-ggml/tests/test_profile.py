"""Times node by node: every node that runs has one, results and state are those of a run."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import numpy as np
import ptn_runtime
import pytest
from ptn_format.dtypes import ScalarType
from ptn_format.graph import OptionalTensorListArg
from ptn_runtime.conformance.programs import MethodBuilder, pack, static_meta
from ptn_runtime.errors import IndexOutOfRangeError

MODELS = files("ptn_runtime.conformance") / "data" / "models"
Array = np.ndarray[Any, Any]


def rows(count: int) -> Array:
    return np.arange(count * 64, dtype=np.float32).reshape(count, 64)


def with_cache() -> bytes:
    """Writes rows to a state in place, multiplies it with itself, and gives a transposed result."""
    builder = MethodBuilder("forward")
    builder.state("cache", rows(64), has_data=True)
    builder.input("x", 2, 64)
    builder.input("at", 2, dtype=ScalarType.LONG)
    meta = static_meta(rows(64))
    indices = OptionalTensorListArg(("at",), (True,))
    builder.call("new", "aten.index_put.default", meta, self="cache", indices=indices, values="x")
    builder.call("product", "aten.mm.default", meta, self="new", mat2="new")
    builder.call("turned", "aten.t.default", meta, self="product")
    builder.update("cache", "new")
    builder.result("turned")
    return pack([builder.build()], {"cache": rows(64)})


def test_every_node_has_a_time_and_state_stays() -> None:
    x, at = np.ones((2, 64), np.float32), np.array([0, 5])
    with ptn_runtime.load(with_cache(), engine="ggml") as model:
        first = model(x, at)
        state = model.state["cache"]
        profile = model.profile("forward", 2 * x, at, repeat=3)
        assert [node.name for node in profile.nodes] == ["new", "product", "turned"]
        assert [node.op for node in profile.nodes] == ["aten.index_put.default", "aten.mm.default", "aten.t.default"]
        assert all(node.seconds > 0 for node in profile.nodes)
        assert profile.by_operator()[0][0] == "aten.mm.default"
        assert profile.engine == "ggml"
        np.testing.assert_array_equal(model.state["cache"], state)
        np.testing.assert_array_equal(model(x, at), first)


def test_an_error_leaves_the_state() -> None:
    x = np.ones((2, 64), np.float32)
    with ptn_runtime.load(with_cache(), engine="ggml") as model:
        with pytest.raises(IndexOutOfRangeError, match="index 64 is out of range"):
            model.profile("forward", x, np.array([0, 64]))
        np.testing.assert_array_equal(model.state["cache"], rows(64))
        model.profile("forward", x, np.array([0, 1]))


@pytest.mark.parametrize("name", ["cnn", "encoder", "lstm", "int4_weights"])
def test_whole_models(name: str) -> None:
    """A profile does not disturb the runs before and after it."""
    with np.load(MODELS / name / "calls.npz") as calls:
        inputs = [calls[f"00.forward.in{i}"] for i in range(sum(key.startswith("00.forward.in") for key in calls))]
        expected = calls["00.forward.out0"]
    with ptn_runtime.load(str(MODELS / name / "model.ptn"), engine="ggml") as model:
        result = model(*inputs)
        profile = model.profile("forward", *inputs, repeat=2)
        assert profile.nodes
        assert len({node.name for node in profile.nodes}) == len(profile.nodes)
        again = model(*inputs)
    first, second = (x[0] if isinstance(x, tuple) else x for x in (result, again))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(second, expected, rtol=1e-3, atol=1e-4)


def test_control_flow_is_timed_as_one_node() -> None:
    golden = files("ptn_runtime.conformance") / "data" / "golden" / "whole_cond"
    with np.load(golden / "io.npz") as arrays:
        inputs = [arrays[f"in_{i}"] for i in range(2)]
    with ptn_runtime.load(str(golden / "model.ptn"), engine="ggml") as model:
        profile = model.profile("forward", *inputs, repeat=2)
    assert "control.cond" in {node.op for node in profile.nodes}
    order = [node.name for node in profile.nodes]
    assert len(order) == len(set(order))
