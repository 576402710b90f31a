"""Programs and methods: inputs, signatures, states, caching, threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from lowering_graphs import FakePackage, GraphBuilder, lower
from ptn_format.dtypes import ScalarType
from ptn_format.errors import SignatureError
from ptn_format.graph import Dim, InputKind
from ptn_format.signature import NAME_KEY, SIGNATURE_KEY, Container, Leaf, Parameter, Signature
from ptn_runtime.errors import MethodNotFoundError
from ptn_runtime.lowering import program
from ptn_runtime.lowering.program import LoweredProgram, StateSpec

F32 = ScalarType.FLOAT


def cache_methods():
    """`fill` writes the cache, `read` only reads it, and its binding does not say that it is mutable."""
    fill = GraphBuilder("fill")
    cache = fill.buffer("b_cache", "cache", F32, 4)
    x = fill.input("x", F32, 4)
    filled = fill.build(x, buffers={"cache": fill.call("torch.ops.aten.add.Tensor", cache, x)})
    read = GraphBuilder("read")
    cache = read.buffer("b_cache", "cache", F32, 4, mutated=False)
    zeros = read.zero_buffer("b_zeros", "zeros", F32, 4)
    total = read.call("torch.ops.aten.add.Tensor", cache, zeros)
    weight = read.constant("b_table", np.zeros(4, np.float32), "table", kind=InputKind.BUFFER)
    return filled, read.build(read.call("torch.ops.aten.add.Tensor", total, weight))


def test_states_are_known_to_all_methods():
    package = FakePackage(*cache_methods(), constants={"table": np.zeros(4, np.float32)})
    lowered = LoweredProgram(package)
    assert lowered.methods == ("fill", "read")
    assert dict(lowered.states) == {
        "cache": StateSpec("cache", F32, (4,), True),
        "zeros": StateSpec("zeros", F32, (4,), False),
    }
    graph = lowered.method("read").specialize(())
    assert [value.key for value in graph.states] == ["cache", "zeros"]
    assert [value.key for value in graph.constants] == ["table"]
    assert graph.state_updates == ()


def test_unknown_method():
    with pytest.raises(MethodNotFoundError, match="there is no method 'go'; the program has fill, read"):
        LoweredProgram(FakePackage(*cache_methods())).method("go")


def test_methods_are_lowered_once():
    lowered = LoweredProgram(FakePackage(*cache_methods()))
    assert lowered.method("fill") is lowered.method("fill")


def test_flat_signature():
    g = GraphBuilder()
    x, y = g.input("x", F32, (1, 4)), g.input("y", F32, 2)
    lowered = lower(g.build(x, None, y))
    assert lowered.signature == Signature.flat(["x", "y"], 3)
    assert [(spec.name, spec.dims) for spec in lowered.inputs] == [("x", (Dim(1, 4),)), ("y", (Dim(2, 2),))]


def test_mutations_are_no_results():
    g = GraphBuilder()
    count = g.buffer("b_count", "count", F32, 1)
    x = g.input("x", F32, 1)
    new = g.call("torch.ops.aten.add.Tensor", count, x)
    doubled = g.call("torch.ops.aten.mul.Tensor", x, 2.0)
    lowered = lower(g.build(new, buffers={"count": new}, inputs={"x": doubled}))
    assert lowered.signature.result == Leaf(0)
    graph = lowered.specialize(((1,),))
    assert [value.name for value in graph.results] == [new.name]
    assert [(update.old.key, update.new.name) for update in graph.state_updates] == [("count", new.name)]
    assert [(old.name, value.name) for old, value in graph.input_updates] == [("x", doubled.name)]


def test_signature_from_metadata():
    signature = Signature((Parameter("batch", Container("dict", (Leaf(0),), ("ids",))),), Container("list", (Leaf(0),)))
    g = GraphBuilder()
    x = g.input("batch_ids", F32, 2, metadata={NAME_KEY: "batch.ids"})
    lowered = lower(g.build(x, metadata={SIGNATURE_KEY: signature.to_json()}))
    assert lowered.signature == signature
    assert lowered.inputs[0].name == "batch.ids"


def test_lower_bound_of_upstream_is_not_taken_at_its_word():
    # executorch 1.5.1 writes a declared minimum of 1 as 2; files with a signature come from an exporter that does not.
    def bounds(metadata):
        g = GraphBuilder()
        x = g.input("x", F32, (2, 9), (3, 9), 2)
        return lower(g.build(x, metadata=metadata)).inputs[0].dims

    signature = Signature((Parameter("x", Leaf(0)),), Leaf(0))
    assert bounds({}) == (Dim(1, 9), Dim(3, 9), Dim(2, 2))
    assert bounds({SIGNATURE_KEY: signature.to_json()}) == (Dim(2, 9), Dim(3, 9), Dim(2, 2))


@pytest.mark.parametrize(
    "signature",
    [
        Signature((), Leaf(0)),
        Signature((Parameter("x", Leaf(1)),), Leaf(0)),
        Signature((Parameter("x", Leaf(0)),), Leaf(1)),
    ],
)
def test_signature_that_does_not_fit(signature):
    g = GraphBuilder()
    x = g.input("x", F32, 2)
    with pytest.raises(
        SignatureError, match=r"model\.ptn, program\.ptg, method 'forward': the signature does not fit the method's"
    ):
        lower(g.build(x, metadata={SIGNATURE_KEY: signature.to_json()}))


def test_damaged_signature_names_the_method():
    g = GraphBuilder()
    x = g.input("x", F32, 2)
    with pytest.raises(
        SignatureError, match=r"model\.ptn, program\.ptg, method 'forward': the method's signature is damaged"
    ):
        lower(g.build(x, metadata={SIGNATURE_KEY: "{"}))


def dynamic():
    g = GraphBuilder()
    x = g.input("x", F32, (1, 999))
    return lower(g.build(g.call("torch.ops.aten.neg.default", x)))


def test_graphs_are_cached_and_bounded(monkeypatch):
    monkeypatch.setattr(program, "MAX_GRAPHS", 2)
    lowered = dynamic()
    one = lowered.specialize(((1,),))
    two = lowered.specialize(((2,),))
    assert lowered.specialize(((1,),)) is one
    lowered.specialize(((3,),))
    assert lowered.specialize(((1,),)) is one
    assert lowered.specialize(((2,),)) is not two


def test_threads_get_the_same_graph():
    lowered = dynamic()
    found = []
    threads = [threading.Thread(target=lambda: found.append(lowered.specialize(((7,),)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(graph) for graph in found}) == 1
