"""Every package written by upstream's exporter lowers, at its bounds and between them."""

from __future__ import annotations

from importlib.resources import files

import pytest
from ptn_format.graph import Dim
from ptn_format.package import open_package
from ptn_runtime.lowering.program import LoweredProgram

GOLDEN = files("ptn_runtime.conformance") / "data" / "golden"
NAMES = sorted(item.name for item in GOLDEN.iterdir() if item.is_dir())


def sizes(dim: Dim) -> tuple[int, int, int]:
    top = dim.max if dim.max >= 0 else dim.min + 10
    return dim.min, (dim.min + top) // 2, top


def test_there_are_packages():
    assert len(NAMES) >= 20


@pytest.mark.parametrize("name", NAMES)
def test_lowers_at_every_size(name):
    with open_package((GOLDEN / name / "model.ptn").read_bytes()) as package:
        lowered = LoweredProgram(package)
        for method_name in lowered.methods:
            method = lowered.method(method_name)
            for which in range(3):
                shapes = tuple(tuple(sizes(dim)[which] for dim in spec.dims) for spec in method.inputs)
                graph = method.specialize(shapes)
                assert graph.input_shapes == shapes
                check(graph, set())


def check(graph, defined):
    """Every value is defined before it is read, exactly once."""
    for value in (*graph.inputs, *graph.constants, *graph.states):
        assert value.id not in defined
        defined.add(value.id)
    for node in graph.nodes:
        assert not node.op.rpartition(".")[0].endswith(("_copy_", "_put_"))
        for value in node.inputs():
            assert value.id in defined, node.describe()
        for nested in node.subgraphs():
            check(nested, defined)
        for value in node.outputs:
            assert value.id not in defined
            defined.add(value.id)
    for value in (*graph.outputs, *(update.new for update in graph.state_updates)):
        assert value.id in defined
    assert sorted(defined) == list(range(len(defined)))


def test_state_written_in_place_only():
    with open_package((GOLDEN / "llm_indexput" / "model.ptn").read_bytes()) as package:
        method = LoweredProgram(package).method("forward")
        graph = method.specialize(tuple(spec.initial_shape for spec in method.inputs))
    assert len(graph.state_updates) == 4
    assert all(update.in_place and update.new.shape == update.old.shape for update in graph.state_updates)
