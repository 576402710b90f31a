"""In-place operators and views: lowered programs against numpy, whose views share memory as PyTorch's do."""

from __future__ import annotations

import numpy as np
import pytest
from lowering_graphs import GraphBuilder, T, lower, ops, run, specialize
from ptn_format.dtypes import ScalarType
from ptn_runtime.errors import LoweringError

F32 = ScalarType.FLOAT
I64 = ScalarType.LONG


def filled(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


VIEWS = {
    # name: (target, arguments, the same in numpy)
    "alias": ("torch.ops.aten.alias.default", {}, lambda a: a),
    "view": ("torch.ops.aten.view.default", {"size": [6, 4]}, lambda a: a.reshape(6, 4)),
    "unsqueeze": ("torch.ops.aten.unsqueeze.default", {"dim": 1}, lambda a: a[:, None]),
    "permute": ("torch.ops.aten.permute.default", {"dims": [2, 0, 1]}, lambda a: a.transpose(2, 0, 1)),
    "transpose": ("torch.ops.aten.transpose.int", {"dim0": -1, "dim1": 0}, lambda a: a.swapaxes(-1, 0)),
    "select": ("torch.ops.aten.select.int", {"dim": 1, "index": -1}, lambda a: a[:, -1]),
    "slice": (
        "torch.ops.aten.slice.Tensor",
        {"dim": 2, "start": 1, "end": 9223372036854775807, "step": 2},
        lambda a: a[:, :, 1::2],
    ),
    "slice from the end": ("torch.ops.aten.slice.Tensor", {"dim": 1, "start": -2}, lambda a: a[:, -2:]),
}


@pytest.mark.parametrize("name", VIEWS)
def test_write_through_view_reaches_base(name):
    target, args, numpy_view = VIEWS[name]
    g = GraphBuilder()
    x = g.input("x", F32, 2, 3, 4)
    base = g.call("torch.ops.aten.mul.Tensor", x, 2.0)
    view = g.call(target, base, **args)
    g.call("torch.ops.aten.add_.Tensor", view, 1.0)
    graph = specialize(g.build(base, view))

    data = filled(2, 3, 4)
    want = data * np.float32(2)
    shared = numpy_view(want)
    shared += np.float32(1)
    got_base, got_view = run(graph, data)
    np.testing.assert_array_equal(got_base, want)
    np.testing.assert_array_equal(got_view, shared)


@pytest.mark.parametrize("name", VIEWS)
def test_write_to_base_reaches_view(name):
    target, args, numpy_view = VIEWS[name]
    g = GraphBuilder()
    x = g.input("x", F32, 2, 3, 4)
    base = g.call("torch.ops.aten.mul.Tensor", x, 2.0)
    view = g.call(target, base, **args)
    before = g.call("torch.ops.aten.neg.default", view)
    g.call("torch.ops.aten.mul_.Tensor", base, base)
    graph = specialize(g.build(before, view))

    data = filled(2, 3, 4)
    want = data * np.float32(2)
    want_before = -numpy_view(want)
    got_before, got_view = run(graph, data)
    np.testing.assert_array_equal(got_before, want_before)
    np.testing.assert_array_equal(got_view, numpy_view(want * want))


def test_copy_of_a_view_is_apart():
    g = GraphBuilder()
    x = g.input("x", F32, 4)
    base = g.call("torch.ops.aten.mul.Tensor", x, 2.0)
    copy = g.call("torch.ops.aten.view_copy.default", base, [2, 2])
    g.call("torch.ops.aten.add_.Tensor", copy, 1.0)
    data = filled(4)
    got_base, got_copy = run(specialize(g.build(base, copy)), data)
    np.testing.assert_array_equal(got_base, data * 2)
    np.testing.assert_array_equal(got_copy.reshape(4), data * 2 + 1)


def test_chain_of_views_and_siblings():
    g = GraphBuilder()
    x = g.input("x", F32, 4, 6)
    base = g.call("torch.ops.aten.clone.default", x)
    rows = g.call("torch.ops.aten.slice.Tensor", base, 0, 1, 3)
    flipped = g.call("torch.ops.aten.permute.default", rows, [1, 0])
    column = g.call("torch.ops.aten.select.int", flipped, 1, 0)
    other = g.call("torch.ops.aten.view.default", base, [24])
    g.call("torch.ops.aten.copy_.default", column, g.call("torch.ops.aten.sum.dim_IntList", x, [0]))
    g.call("torch.ops.aten.mul_.Tensor", other, 3.0)
    g.call("torch.ops.aten.neg_.default", rows)
    graph = specialize(g.build(base, column, flipped, x))

    data = filled(4, 6)
    want = data.copy()
    want_rows = want[1:3]
    want_rows.T[:, 0] = data.sum(axis=0, dtype=np.float32)
    want *= np.float32(3)
    want_rows *= -1
    got = run(graph, data)
    np.testing.assert_allclose(got[0], want, rtol=1e-6)
    np.testing.assert_allclose(got[1], want_rows.T[:, 0], rtol=1e-6)
    np.testing.assert_allclose(got[2], want_rows.T, rtol=1e-6)
    np.testing.assert_array_equal(got[3], data)  # the clone kept the input apart


def test_parts_of_split_and_unbind():
    g = GraphBuilder()
    x = g.input("x", F32, 5, 3)
    base = g.call("torch.ops.aten.clone.default", x)
    first, second = g.list_call("torch.ops.aten.split_with_sizes.default", base, [2, 3], count=2)
    g.call("torch.ops.aten.zero_.default", second)
    rows = g.list_call("torch.ops.aten.unbind.int", first, count=2)
    g.call("torch.ops.aten.fill_.Scalar", rows[1], 7)
    uneven = g.list_call("torch.ops.aten.split.Tensor", base, 2, 1, count=2)
    g.call("torch.ops.aten.add_.Tensor", uneven[1], 1.0)
    data = filled(5, 3)
    want = data.copy()
    want[2:] = 0
    want[1] = 7
    want[:, 2] += 1
    (got,) = run(specialize(g.build(base)), data)
    np.testing.assert_array_equal(got, want)


def test_buffer_written_through_view_is_an_update():
    g = GraphBuilder()
    cache = g.buffer("b_cache", "layer.cache", F32, 2, 8)
    x = g.input("x", F32, 2, (1, 8))
    size = g.scalar("torch.ops.aten.sym_size.int", x, 1)
    place = g.call("torch.ops.aten.slice.Tensor", cache, 1, 0, size)
    g.call("torch.ops.aten.copy_.default", place, x)
    total = g.call("torch.ops.aten.sum.dim_IntList", cache, [1])
    graph = specialize(g.build(total), (2, 3), constants={"layer.cache": filled(2, 8)})
    (update,) = graph.state_updates
    assert (update.old.key, update.in_place) == ("layer.cache", True)

    states = {"layer.cache": filled(2, 8, seed=1)}
    want = states["layer.cache"].copy()
    data = filled(2, 3)
    want[:, :3] = data
    (got,) = run(graph, data, states=states)
    np.testing.assert_array_equal(states["layer.cache"], want)
    np.testing.assert_allclose(got, want.sum(axis=1), rtol=1e-6)


def test_old_value_returned_forbids_in_place():
    g = GraphBuilder()
    count = g.buffer("b_count", "count", F32, 1)
    old = g.call("torch.ops.aten.clone.default", count)
    g.call("torch.ops.aten.add_.Tensor", count, 1.0)
    graph = specialize(g.build(old))
    (update,) = graph.state_updates
    assert not update.in_place
    states = {"count": np.array([4], np.float32)}
    (got,) = run(graph, states=states)
    assert (got[0], states["count"][0]) == (4, 5)


@pytest.mark.parametrize(
    ("late", "in_place"),
    [
        (None, True),
        ("torch.ops.aten.neg.default", False),
    ],
)
def test_reading_the_old_value_late_forbids_in_place(late, in_place):
    # Functional, as torch.export writes it: the buffer's placeholder keeps meaning the old value.
    g = GraphBuilder()
    count = g.buffer("b_count", "count", F32, 2)
    view = g.call("torch.ops.aten.view.default", count, [2, 1])
    new = g.call("torch.ops.aten.add.Tensor", count, 1.0)
    result = g.call(late, view) if late else g.call("torch.ops.aten.neg.default", new)
    graph = specialize(g.build(result, buffers={"count": new}))
    assert [update.in_place for update in graph.state_updates] == [in_place]


def test_swapped_and_shared_updates_are_not_in_place():
    g = GraphBuilder()
    a = g.buffer("b_a", "a", F32, 2)
    b = g.buffer("b_b", "b", F32, 2)
    c = g.buffer("b_c", "c", F32, 2)
    d = g.buffer("b_d", "d", F32, 2)
    total = g.call("torch.ops.aten.add.Tensor", c, d)
    graph = specialize(g.build(total, buffers={"a": b, "b": a, "c": total, "d": total}))
    assert {update.old.key: update.in_place for update in graph.state_updates} == {
        "a": False,
        "b": False,
        "c": True,
        "d": False,
    }


def test_update_to_the_same_value_is_none():
    g = GraphBuilder()
    a = g.buffer("b_a", "a", F32, 2)
    same = g.call("torch.ops.aten.alias.default", a)
    graph = specialize(g.build(same, buffers={"a": same}))
    assert not graph.state_updates
    assert [value.key for value in graph.states] == ["a"]


def test_user_input_mutation():
    g = GraphBuilder()
    x = g.input("x", F32, 3)
    g.call("torch.ops.aten.mul_.Tensor", g.call("torch.ops.aten.slice.Tensor", x, 0, 1), 2.0)
    method = g.build(x)
    assert lower(method).inputs[0].mutated
    graph = specialize(method)
    data = filled(3)
    want = data.copy()
    want[1:] *= 2
    (got,) = run(graph, data)
    np.testing.assert_array_equal(data, want)
    np.testing.assert_array_equal(got, want)


def test_stated_input_mutation():
    g = GraphBuilder()
    x = g.input("x", F32, 3)
    new = g.call("torch.ops.aten.neg.default", x)
    method = g.build(new, inputs={"x": new})
    lowered = lower(method)
    assert lowered.inputs[0].mutated
    graph = lowered.specialize(((3,),))
    assert [(old.name, value.name) for old, value in graph.input_updates] == [("x", new.name)]
    assert graph.results == (graph.input_updates[0][1],)


def test_in_place_keeps_the_element_type():
    g = GraphBuilder()
    x = g.input("x", ScalarType.HALF, 4)
    y = g.input("y", F32, 4)
    base = g.call("torch.ops.aten.clone.default", x)
    result = g.call("torch.ops.aten.add_.Tensor", base, y)
    graph = specialize(g.build(result))
    assert graph.outputs[0].dtype is ScalarType.HALF
    assert ops(graph) == ["add.Tensor", "_to_copy.default"]


def test_copy_becomes_cast_and_expand():
    g = GraphBuilder()
    x = g.input("x", F32, 2, 3)
    y = g.input("y", I64, 3)
    base = g.call("torch.ops.aten.clone.default", x)
    g.call("torch.ops.aten.copy_.default", base, y)
    graph = specialize(g.build(base))
    assert ops(graph) == ["_to_copy.default", "expand.default"]


def refused(method, **kwargs) -> str:
    with pytest.raises(LoweringError) as error:
        specialize(method, **kwargs)
    return str(error.value)


def test_write_to_constant_is_refused():
    g = GraphBuilder()
    w = g.constant("p_w", np.zeros(3, np.float32), "w")
    result = g.call("torch.ops.aten.add_.Tensor", w, 1.0, location="model.py:7")
    text = refused(g.build(result), constants={"w": np.zeros(3, np.float32)})
    assert "aten.add_.Tensor writes to constant 'w', which is read-only" in text
    assert "model.py:7" in text


def test_write_through_expanded_view_is_refused():
    g = GraphBuilder()
    x = g.input("x", F32, 3, 1)
    base = g.call("torch.ops.aten.clone.default", x)
    wide = g.call("torch.ops.aten.expand.default", base, [3, 4])
    g.call("torch.ops.aten.add_.Tensor", wide, 1.0)
    assert "several elements share one place" in refused(g.build(base))


def test_write_to_unknown_view_is_refused():
    g = GraphBuilder()
    x = g.input("x", F32, 3, 3)
    base = g.call("torch.ops.aten.clone.default", x)
    permuted = g.call("torch.ops.aten.permute.default", base, [1, 0])
    flat = g.call("torch.ops.aten.reshape.default", permuted, [9])  # a copy here, but only PyTorch knows
    g.nodes[-1] = _with_alias(g.nodes[-1], permuted.name)
    g.call("torch.ops.aten.add_.Tensor", flat, 1.0)
    assert "share through aten.reshape.default" in refused(g.build(base))


def test_in_place_reshape_is_refused():
    g = GraphBuilder()
    x = g.input("x", F32, 3)
    result = g.call("torch.ops.aten.unsqueeze_.default", x, 0)
    assert "changes the shape or storage of its argument in place" in refused(g.build(result))


def test_out_variant_writes_to_out():
    g = GraphBuilder()
    x, y = g.input("x", F32, 3), g.input("y", F32, 3)
    base = g.call("torch.ops.aten.clone.default", x)
    row = g.call("torch.ops.aten.view.default", base, (1, 3))
    result = g.call("torch.ops.aten.atan2.out", self=x, other=y, out=base, mutated=("out",))
    graph = specialize(g.build(result, row))
    first, second = np.array([1, -2, 3], np.float32), np.array([-1, 0.5, 2], np.float32)
    written, seen = run(graph, first, second)
    np.testing.assert_allclose(written, np.arctan2(first, second), rtol=1e-6)
    np.testing.assert_array_equal(seen, written[None])


def test_out_variant_without_functional_form_is_refused():
    g = GraphBuilder()
    x = g.input("x", F32, 3)
    base = g.call("torch.ops.aten.clone.default", x)
    result = g.call("torch.ops.aten.frexp.Tensor_out", self=x, mantissa=base, exponent=base, mutated=("mantissa",))
    assert "writes to its argument(s) mantissa" in refused(g.build(result))


@pytest.mark.parametrize("count", [4, 8])
def test_resize_in_place_gives_the_elements_in_order(count):
    g = GraphBuilder()
    x = g.input("x", F32, 2, 3)
    base = g.call("torch.ops.aten.clone.default", x)
    row = g.call("torch.ops.aten.select.int", base, 0, 1)
    result = g.call("torch.ops.aten.resize_.default", self=base, size=(2, count // 2), mutated=("self",))
    graph = specialize(g.build(result, base, row))
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    resized, base_after, row_after = run(graph, array)
    assert resized.shape == (2, count // 2)
    np.testing.assert_array_equal(resized.reshape(-1)[:6], np.arange(min(count, 6)))
    np.testing.assert_array_equal(base_after, resized)
    np.testing.assert_array_equal(row_after, array[1])


def test_resize_in_place_of_a_view_or_an_input_and_writes_after_it_are_refused():
    g = GraphBuilder()
    x = g.input("x", F32, 2, 3)
    result = g.call("torch.ops.aten.resize_.default", self=x, size=(3,), mutated=("self",))
    assert "changes the shape of input 'x' in place" in refused(g.build(result))
    g = GraphBuilder()
    base = g.call("torch.ops.aten.clone.default", g.input("x", F32, 2, 3))
    view = g.call("torch.ops.aten.select.int", base, 0, 1)
    result = g.call("torch.ops.aten.resize_.default", self=view, size=(2,), mutated=("self",))
    assert "changes the shape of a view in place" in refused(g.build(result))
    g = GraphBuilder()
    base = g.call("torch.ops.aten.clone.default", g.input("x", F32, 2, 3))
    view = g.call("torch.ops.aten.select.int", base, 0, 1)
    g.call("torch.ops.aten.resize_.default", self=base, size=(4,), mutated=("self",))
    result = g.call("torch.ops.aten.relu_.default", view)
    assert "views share through aten.resize_.default" in refused(g.build(result))


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_updates_its_running_statistics(training):
    g = GraphBuilder()
    x = g.input("x", F32, 4, 2)
    mean = g.buffer("mean", "bn.mean", F32, 2)
    variance = g.buffer("var", "bn.var", F32, 2)
    results = g.multi_call(
        "torch.ops.aten._native_batch_norm_legit.default",
        input=x,
        weight=None,
        bias=None,
        running_mean=mean,
        running_var=variance,
        training=training,
        momentum=0.25,
        eps=1e-5,
        mutated=("running_mean", "running_var"),
        count=3,
    )
    package_arrays = {"bn.mean": np.array([1, 2], np.float32), "bn.var": np.array([4, 9], np.float32)}
    graph = specialize(g.build(results[0]), constants=package_arrays)
    op = "aten._native_batch_norm_legit" + ("_functional.default" if training else ".default")
    assert [node.op for node in graph.nodes] == [op]
    updated = {update.old.key: update.new for update in graph.state_updates}
    if training:
        (node,) = graph.nodes
        assert updated == {"bn.mean": node.outputs[3], "bn.var": node.outputs[4]}
    else:
        assert updated == {}


def test_dead_write_is_dropped():
    g = GraphBuilder()
    x = g.input("x", F32, 3)
    base = g.call("torch.ops.aten.clone.default", x)
    g.call("torch.ops.aten.add_.Tensor", base, 1.0)
    graph = specialize(g.build(g.call("torch.ops.aten.neg.default", x)))
    assert ops(graph) == ["neg.default"]


def _with_alias(node, base):
    from dataclasses import replace

    return replace(node, outputs=tuple(replace(output, alias_of=base) for output in node.outputs))


UNARY = {
    "torch.ops.aten.neg_.default": (lambda a: -a),
    "torch.ops.aten.relu_.default": (lambda a: np.maximum(a, 0)),
    "torch.ops.aten.abs_.default": np.abs,
}


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed):
    """Random views and writes over one buffer and one input, against numpy."""
    rng = np.random.default_rng(seed)
    g = GraphBuilder()
    buffer = g.buffer("b_s", "s", F32, 4, 6)
    x = g.input("x", F32, 4, 6)
    state = {"s": filled(4, 6, seed=seed)}
    data = filled(4, 6, seed=seed + 1000)
    want_state, want_data = state["s"].copy(), data.copy()
    pool: list[tuple[T, np.ndarray]] = [(buffer, want_state), (x, want_data)]
    kept: list[tuple[T, np.ndarray]] = []
    for _ in range(25):
        value, array = pool[rng.integers(len(pool))]
        kind = rng.integers(4)
        if kind == 0 and array.ndim:
            pool.append(random_view(g, rng, value, array))
        elif kind == 1:
            target, function = list(UNARY.items())[rng.integers(len(UNARY))]
            g.call(target, value)
            array[...] = function(array)
        elif kind == 2:
            source, other = pool[rng.integers(len(pool))]
            if fits(other.shape, array.shape):
                g.call("torch.ops.aten.copy_.default", value, source)
                array[...] = other.copy()
        else:
            kept.append((g.call("torch.ops.aten.mul.Tensor", value, 0.5), array * np.float32(0.5)))
    results = [*kept, *pool]
    if seed % 2:  # where no view of the buffer is returned, its update may happen in place
        results = [
            (g.call("torch.ops.aten.mul.Tensor", value, 0.5), array * np.float32(0.5)) for value, array in results
        ]
    graph = specialize(g.build(*(value for value, _ in results)))
    for write_early in (False, True):
        states, inputs = {"s": state["s"].copy()}, data.copy()
        got = run(graph, inputs, states=states, write_early=write_early)
        for result, (value, array) in zip(got, results, strict=True):
            np.testing.assert_array_equal(result, array, err_msg=value.name)
        np.testing.assert_array_equal(states["s"], want_state)
        np.testing.assert_array_equal(inputs, want_data)


def fits(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether `shape` broadcasts to `target`."""
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False


def random_view(g: GraphBuilder, rng, value: T, array: np.ndarray) -> tuple[T, np.ndarray]:
    axis = int(rng.integers(array.ndim))
    kind = rng.integers(4)
    if kind == 0 and array.shape[axis] > 1:
        start = int(rng.integers(array.shape[axis] - 1))
        step = int(rng.integers(1, 3))
        view = g.call("torch.ops.aten.slice.Tensor", value, axis, start, 9223372036854775807, step)
        return view, array[(slice(None),) * axis + (slice(start, None, step),)]
    if kind == 1:
        index = int(rng.integers(array.shape[axis]))
        return g.call("torch.ops.aten.select.int", value, axis, index), array[(slice(None),) * axis + (index, ...)]
    if kind == 2:
        order = [int(i) for i in rng.permutation(array.ndim)]
        return g.call("torch.ops.aten.permute.default", value, order), array.transpose(order)
    return g.call("torch.ops.aten.unsqueeze.default", value, axis), np.expand_dims(array, axis)


def test_long_chain_of_stale_views():
    g = GraphBuilder()
    x = g.input("x", F32, 4)
    base = g.call("torch.ops.aten.clone.default", x)
    views = [base]
    for _ in range(3000):
        views.append(g.call("torch.ops.aten.view.default", views[-1], [2, 2] if len(views) % 2 else [4]))
    g.call("torch.ops.aten.add_.Tensor", base, 1.0)
    data = filled(4)
    (got,) = run(specialize(g.build(views[-1])), data)
    np.testing.assert_array_equal(got, data + 1)


def test_update_of_another_shape_is_refused():
    g = GraphBuilder()
    count = g.buffer("b_count", "count", F32, 2)
    new = g.call("torch.ops.aten.unsqueeze.default", count, 0)
    assert "both must be the same" in refused(g.build(buffers={"count": new}))
