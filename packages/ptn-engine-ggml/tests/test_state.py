"""State: what is written in place, what must be copied first, and what an error leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import ptn_runtime
import pytest
from ptn_format.dtypes import ScalarType
from ptn_format.graph import OptionalTensorListArg, StringArg, TensorMeta
from ptn_runtime.conformance.programs import MethodBuilder, pack, static_meta
from ptn_runtime.errors import IndexOutOfRangeError

Array = np.ndarray[Any, Any]
ROWS, WIDTH, NEW = 6, 4, 2


def cache() -> Array:
    return np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)


def method() -> tuple[MethodBuilder, TensorMeta]:
    """A state `cache`, new rows `x` and their places `at`."""
    builder = MethodBuilder("forward")
    builder.state("cache", cache(), has_data=True)
    builder.input("x", NEW, WIDTH)
    builder.input("at", NEW, dtype=ScalarType.LONG)
    return builder, static_meta(cache())


def put(builder: MethodBuilder, name: str, target: str, meta: TensorMeta, at: str = "at", values: str = "x") -> str:
    indices = OptionalTensorListArg((at,), (True,))
    return builder.call(name, "aten.index_put.default", meta, self=target, indices=indices, values=values)


def write_and_read_old() -> bytes:
    """The old value is a result although the state is overwritten."""
    builder, meta = method()
    put(builder, "new", "cache", meta)
    builder.update("cache", "new")
    builder.result("cache")
    builder.result("new")
    return pack([builder.build()], {"cache": cache()})


def view_before_read_after() -> bytes:
    """A view of the old value is taken before the write and used after it."""
    builder, meta = method()
    row = static_meta(np.zeros(WIDTH, np.float32))
    builder.call("row", "aten.select.int", row, self="cache", dim=0, index=1)
    put(builder, "new", "cache", meta)
    builder.call("sum", "aten.add.Tensor", meta, self="new", other="row")
    builder.update("cache", "new")
    builder.result("sum")
    return pack([builder.build()], {"cache": cache()})


def chain() -> bytes:
    """Two writes after each other; the value between them is a result."""
    builder, meta = method()
    put(builder, "first", "cache", meta)
    builder.call("twice", "aten.mul.Tensor", static_meta(np.zeros((NEW, WIDTH), np.float32)), self="x", other="x")
    put(builder, "second", "first", meta, values="twice")
    builder.update("cache", "second")
    builder.result("first")
    return pack([builder.build()], {"cache": cache()})


def rows_of_itself() -> bytes:
    """The rows written are rows of the state itself."""
    builder, meta = method()
    rows = static_meta(np.zeros((NEW, WIDTH), np.float32))
    builder.call("rows", "aten.slice.Tensor", rows, self="cache", dim=0, start=3, end=3 + NEW)
    put(builder, "new", "cache", meta, values="rows")
    builder.update("cache", "new")
    builder.result("new")
    return pack([builder.build()], {"cache": cache()})


def transposed() -> bytes:
    """The new value is a view of the old one."""
    square = np.arange(16, dtype=np.float32).reshape(4, 4)
    builder = MethodBuilder("forward")
    builder.state("cache", square, has_data=True)
    builder.input("x", NEW, WIDTH)
    builder.input("at", NEW, dtype=ScalarType.LONG)
    builder.call("turned", "aten.t.default", static_meta(square), self="cache")
    builder.update("cache", "turned")
    builder.result("turned")
    builder.result("cache")
    return pack([builder.build()], {"cache": square})


def swapped() -> bytes:
    """Two states exchange their values."""
    builder, meta = method()
    builder.state("other", -cache(), has_data=True)
    put(builder, "new", "cache", meta)
    builder.update("cache", "other")
    builder.update("other", "new")
    builder.result("cache")
    builder.result("other")
    return pack([builder.build()], {"cache": cache(), "other": -cache()})


def check(builder: MethodBuilder, name: str, source: str, meta: TensorMeta) -> None:
    """An assertion on data, which the host checks between two native graphs: `source` is not 1000 throughout."""
    one = static_meta(np.array(True))
    like = TensorMeta(ScalarType.BOOL, meta.sizes)
    builder.call(f"{name}_each", "aten.ne.Scalar", like, self=source, other=1000)
    builder.call(f"{name}_any", "aten.any.default", one, self=f"{name}_each")
    builder.check(name, "aten._assert_async.msg", self=f"{name}_any", assert_msg=StringArg(name))


def written_behind_a_check() -> bytes:
    builder, meta = method()
    check(builder, "check", "x", builder.metas["x"])
    put(builder, "new", "cache", meta)
    builder.update("cache", "new")
    builder.result("new")
    return pack([builder.build()], {"cache": cache()})


def written_before_a_check() -> bytes:
    builder, meta = method()
    put(builder, "new", "cache", meta)
    check(builder, "check", "x", builder.metas["x"])
    builder.update("cache", "new")
    builder.result("cache")
    return pack([builder.build()], {"cache": cache()})


def written_around_checks_that_read_it() -> bytes:
    builder, meta = method()
    check(builder, "old", "cache", meta)
    put(builder, "first", "cache", meta)
    check(builder, "middle", "first", meta)
    builder.call("twice", "aten.mul.Tensor", static_meta(np.zeros((NEW, WIDTH), np.float32)), self="x", other="x")
    put(builder, "second", "first", meta, values="twice")
    builder.call("sum", "aten.add.Tensor", meta, self="second", other="cache")
    builder.update("cache", "second")
    builder.result("sum")
    return pack([builder.build()], {"cache": cache()})


PROGRAMS = [
    *(write_and_read_old, view_before_read_after, chain, rows_of_itself, transposed, swapped),
    *(written_behind_a_check, written_before_a_check, written_around_checks_that_read_it),
]


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_updates_are_those_of_the_reference(make: Callable[[], bytes]) -> None:
    data = make()
    rng = np.random.default_rng(0)
    with ptn_runtime.load(data, engine="ggml") as model, ptn_runtime.load(data, engine="reference") as oracle:
        for _ in range(3):
            x = rng.standard_normal((NEW, WIDTH)).astype(np.float32)
            at = rng.choice(ROWS, NEW, replace=False)
            found, expected = model(x, at), oracle(x, at)
            for ours, theirs in zip(_tuple(found), _tuple(expected), strict=True):
                np.testing.assert_array_equal(ours, theirs)
            for key in model.state:
                np.testing.assert_array_equal(model.state[key], oracle.state[key])


def _tuple(results: Any) -> tuple[Array, ...]:
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize("make", [write_and_read_old, view_before_read_after, chain], ids=lambda make: make.__name__)
@pytest.mark.parametrize("bad", [ROWS, -ROWS - 1])
def test_an_index_out_of_range_leaves_the_model_usable(make: Callable[[], bytes], bad: int) -> None:
    x = np.ones((NEW, WIDTH), np.float32)
    with ptn_runtime.load(make(), engine="ggml") as model:
        with pytest.raises(IndexOutOfRangeError, match=f"index {bad} is out of range for axis 0 of size {ROWS}"):
            model(x, np.array([0, bad]))
        np.testing.assert_array_equal(model.state["cache"], cache())
        model(x, np.array([0, 1]))
        assert (model.state["cache"][:2] == 1).all()
