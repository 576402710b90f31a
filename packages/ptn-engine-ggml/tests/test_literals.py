"""Numbers and folded arrays that a graph brings along: they belong to that graph alone."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ptn_format.dtypes import ScalarType
from ptn_runtime.lowering.static import StaticGraph, StaticNode, Value, ValueKind

FLOAT = ScalarType.FLOAT


@pytest.fixture
def context() -> Iterator[Any]:
    from ptn_engine_ggml.engine import GgmlEngine

    engine = GgmlEngine()
    cpu = next(device for device in engine.devices() if device.kind == "cpu")
    host = engine.create_host(cpu, threads=1)
    context = host.create_context(SimpleNamespace(states={}), None)  # type: ignore[arg-type]
    yield context
    context.close()
    host.close()


def run(context: Any, graph: StaticGraph) -> Any:
    build = context.build(graph)
    try:
        (result,) = build.run([]).outputs
    finally:
        build.close()
    return result


def test_a_graph_never_sees_the_literals_of_another(context: Any) -> None:
    """Memory of a closed graph is given to the next one, so nothing may be kept under its address."""
    for turn in range(300):
        out = Value(0, "out", FLOAT, (5 + turn % 3,))
        args = {"size": out.shape, "fill_value": float(turn), "dtype": FLOAT}
        node = StaticNode(
            "full", "aten.full.default", {**args, "layout": None, "device": None, "pin_memory": None}, (out,)
        )
        graph = StaticGraph("forward", (), (), (), (node,), (out,), (out,))
        np.testing.assert_array_equal(run(context, graph), np.full(out.shape, turn, np.float32))


def test_folded_arrays_are_copied(context: Any) -> None:
    for turn in range(50):
        data = np.full((4, 6), turn, np.float32)
        constant = Value(0, "c", FLOAT, (4, 6), ValueKind.CONSTANT, data=data)
        out = Value(1, "out", FLOAT, (6, 4))
        node = StaticNode("permute", "aten.permute.default", {"self": constant, "dims": (1, 0)}, (out,))
        graph = StaticGraph("forward", (), (constant,), (), (node,), (out,), (out,))
        build = context.build(graph)
        data[:] = -1
        (result,) = build.run([]).outputs
        build.close()
        np.testing.assert_array_equal(result, np.full((6, 4), turn, np.float32))
