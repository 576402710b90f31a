"""Complex tensors become real ones with a last axis for the two parts."""

from __future__ import annotations

import numpy as np
import pytest
from lowering_graphs import GraphBuilder, ops, run, specialize
from ptn_format.dtypes import ScalarType
from ptn_runtime.errors import LoweringError

F32 = ScalarType.FLOAT


def pairs(numbers: np.ndarray) -> np.ndarray:
    return np.stack((numbers.real, numbers.imag), -1).astype(np.float32)


def test_a_transform_there_and_back():
    g = GraphBuilder()
    x = g.input("x", F32, 3, 8)
    spectrum = g.call("torch.ops.aten._fft_r2c.default", x, [1], 0, True)
    back = g.call("torch.ops.aten._fft_c2r.default", spectrum, [1], 2, 8)
    graph = specialize(g.build(back, g.call("torch.ops.aten.view_as_real.default", spectrum)))
    assert ops(graph) == ["_fft_r2c.default", "_fft_c2r.default"]
    array = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    again, parts = run(graph, array)
    np.testing.assert_allclose(again, array, atol=1e-6)
    np.testing.assert_allclose(parts, pairs(np.fft.rfft(array)), atol=1e-5)


MOVES = {
    "transpose": ("transpose.int", (-1, 0), lambda z: z.swapaxes(-1, 0)),
    "transpose_copy": ("transpose_copy.int", (0, 1), lambda z: z.swapaxes(0, 1)),
    "permute": ("permute.default", ([-1, 0],), lambda z: z.transpose(-1, 0)),
    "select": ("select.int", (-1, 2), lambda z: z[..., 2]),
    "slice": ("slice.Tensor", (-1, 1, 4), lambda z: z[..., 1:4]),
    "unsqueeze": ("unsqueeze.default", (-1,), lambda z: z[..., None]),
    "unsqueeze first": ("unsqueeze.default", (0,), lambda z: z[None]),
    "clone": ("clone.default", (), lambda z: z),
}


@pytest.mark.parametrize("name", MOVES)
def test_moving_complex_elements(name):
    overload, arguments, same = MOVES[name]
    g = GraphBuilder()
    spectrum = g.call("torch.ops.aten._fft_r2c.default", g.input("x", F32, 3, 8), [1], 0, True)
    moved = g.call(f"torch.ops.aten.{overload}", spectrum, *arguments)
    graph = specialize(g.build(g.call("torch.ops.aten.view_as_real_copy.default", moved)))
    array = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    (got,) = run(graph, array)
    np.testing.assert_allclose(got, pairs(same(np.fft.rfft(array))), atol=1e-5)


def refused(method) -> str:
    with pytest.raises(LoweringError) as error:
        specialize(method)
    return str(error.value)


def test_computing_on_complex_elements_is_refused():
    g = GraphBuilder()
    x = g.input("x", F32, 3, 8)
    z = g.call("torch.ops.aten.view_as_complex.default", g.input("pairs", F32, 3, 8, 2))
    text = refused(g.build(g.call("torch.ops.aten.mul.Tensor", x, z, location="model.py:7")))
    assert "aten.mul.Tensor has no form for complex tensors such as 'view_as_complex_1'" in text
    assert "from model.py:7" in text


def test_checks_of_what_rules_establish_are_dropped():
    g = GraphBuilder()
    z = g.call("torch.ops.aten._fft_r2c.default", g.input("x", F32, 3, 8), [1], 0, True)
    g.effect("torch.ops.aten._assert_tensor_metadata.default", z)
    graph = specialize(g.build(g.call("torch.ops.aten.view_as_real.default", z)))
    assert ops(graph) == ["_fft_r2c.default"]


def test_a_complex_result_is_refused():
    g = GraphBuilder()
    z = g.call("torch.ops.aten._fft_r2c.default", g.input("x", F32, 3, 8), [1], 0, True)
    assert "which is complex: the format has no such element type" in refused(g.build(z))


def test_a_real_tensor_is_no_complex_one():
    g = GraphBuilder()
    x = g.input("x", F32, 3, 8, 2)
    result = g.call("torch.ops.aten._fft_c2r.default", x, [1], 0, 14)
    assert "_fft_c2r.default takes a complex tensor, got a real one" in refused(g.build(result))
