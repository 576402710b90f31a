"""State: what is written in place, what must be copied first, and what an error leaves behind."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import ptn_runtime
import pytest
from ptn_engine_ggml.graph import GraphLowering
from ptn_engine_ggml.lower.index_checks import WRITERS
from ptn_engine_ggml.lower.registry import operators
from ptn_format.dtypes import ScalarType
from ptn_format.graph import OptionalTensorListArg, StringArg, TensorMeta
from ptn_format.package import open_package
from ptn_runtime.conformance.programs import MethodBuilder, pack, static_meta
from ptn_runtime.errors import IndexOutOfRangeError
from ptn_runtime.lowering.program import LoweredProgram

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


def table() -> Array:
    return np.arange(12, dtype=np.float32).reshape(3, 4)


def write_then_look_up(index: str) -> bytes:
    """Rows are written in place; afterwards rows of a table are looked up, at an index that comes from somewhere."""
    builder = MethodBuilder("forward")
    builder.state("cache", cache(), has_data=True)
    builder.state("count", np.array([1, 2]), has_data=True)
    builder.state("small", np.zeros(2, np.int64), has_data=True)
    builder.constant("table", table())
    builder.input("x", NEW, WIDTH)
    builder.input("at", NEW, dtype=ScalarType.LONG)
    builder.input("id", NEW, dtype=ScalarType.LONG)
    meta, ids = static_meta(cache()), static_meta(np.zeros(NEW, np.int64))
    put(builder, "new", "cache", meta)
    builder.call("sum", "aten.add.Tensor", ids, self="id", other="id")
    builder.call("counted", "aten.add.Tensor", ids, self="id", other="count")
    builder.call("zero", "aten.mul.Tensor", ids, self="at", other=0)
    builder.call("filled", "aten.index_copy.default", ids, self="small", dim=0, index="zero", source="sum")
    builder.update("small", "filled")
    rows = static_meta(np.zeros((NEW, WIDTH), np.float32))
    builder.call("found", "aten.index_select.default", rows, self="table", dim=0, index=index)
    builder.update("cache", "new")
    builder.result("found")
    return pack([builder.build()], {"cache": cache(), "count": np.array([1, 2]), "small": np.zeros(2, np.int64),
                                    "table": table()})  # fmt: skip


@pytest.mark.parametrize("index", ["id", "sum", "counted", "count", "filled"])
def test_state_stays_where_a_later_node_fails(index: str) -> None:
    """Whether the bad index is an input, computed from one, read from state, or read from what was written."""
    x, at = np.ones((NEW, WIDTH), np.float32), np.array([4, 5])
    data = write_then_look_up(index)
    with ptn_runtime.load(data, engine="ggml") as model, ptn_runtime.load(data, engine="reference") as oracle:
        for good in (np.array([0, 0]), np.array([1, 0])):
            np.testing.assert_array_equal(model(x, at, good), oracle(x, at, good))
        before = dict(model.state)
        if index == "count":
            model.state["count"] = oracle.state["count"] = np.array([0, 9])
            before = dict(model.state)
        for other in (model, oracle):
            with pytest.raises(IndexOutOfRangeError, match="is out of range for axis 0 of "):
                other(2 * x, at - 3, np.array([7, 7]))
        for key, value in before.items():
            np.testing.assert_array_equal(model.state[key], value)


def test_writes_stay_in_place_where_checks_come_first() -> None:
    """Checks must not cost the copy of the state."""
    in_place = {}
    for index in ("id", "counted", "filled"):
        with open_package(write_then_look_up(index)) as package:
            method = LoweredProgram(package).method("forward")
            graph = method.specialize(tuple(spec.initial_shape for spec in method.inputs))
            with ptn_runtime.load(write_then_look_up(index), engine="ggml") as model:
                lowering = GraphLowering(model._context, graph)
                lowering.executor(list(graph.outputs))
                new = next(v for node in graph.nodes if node.name == "new" for v in node.outputs)
                in_place[index] = lowering._values[new.id].is_state
    assert in_place == {"id": True, "counted": True, "filled": False}


def test_an_empty_result_does_not_hide_a_bad_index() -> None:
    """PyTorch looks at these indices although there is nothing to look up; at those of `index` it does not."""
    empty = np.zeros((3, 0), np.float32)
    for name, fails, arguments in (
        ("aten.index_select.default", True, {"self": "x", "dim": 0, "index": "at"}),
        ("aten.embedding.default", True, {"weight": "x", "indices": "at"}),
        ("aten.index.Tensor", False, {"self": "x", "indices": OptionalTensorListArg(("at",), (True,))}),
    ):
        builder = MethodBuilder("forward")
        builder.input("x", 3, 0)
        builder.input("at", NEW, dtype=ScalarType.LONG)
        builder.call("y", name, static_meta(np.zeros((NEW, 0), np.float32)), **arguments)
        builder.result("y")
        for engine in ("ggml", "reference") if fails else ("ggml",):  # the reference looks at all of them
            with ptn_runtime.load(pack([builder.build()], {}), engine=engine) as model:
                assert model(empty, np.array([0, 2])).shape == (NEW, 0)
                if fails:
                    with pytest.raises(IndexOutOfRangeError, match="index 7 is out of range for axis 0 of "):
                        model(empty, np.array([0, 7]))
                else:
                    assert model(empty, np.array([0, 7])).shape == (NEW, 0)


def test_the_operators_that_write_in_place_are_known() -> None:
    """Whether state may be written is decided before anything is lowered."""
    found = set()
    for name, lowering in operators().items():
        source = inspect.getsource(lowering.function)
        if "_updated(" in source or "_scatter(" in source or "in_place" in source:
            found.add(name)
    assert found == set(WRITERS)
