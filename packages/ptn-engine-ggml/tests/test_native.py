"""The native builder and executor against numpy: windows, broadcasting, products, memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ptn_engine_ggml import _native
from ptn_format.dtypes import ScalarType

Array = np.ndarray[Any, Any]
Graph = Callable[..., Any]


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def run(request: pytest.FixtureRequest) -> Callable[..., list[Array]]:
    """Runs `graph(builder, *tensors)` on arrays."""
    stream = _native.Stream("CPU", request.param)

    def on_arrays(graph: Graph, *arrays: Array) -> list[Array]:
        builder = _native.Builder(stream, _native.Weights(stream), _native.State(stream, []))
        tensors = [builder.input(int(ScalarType.from_numpy(a.dtype)), a.shape) for a in arrays]
        results = graph(builder, *tensors)
        results = [builder.copy(x) for x in (results if isinstance(results, tuple) else (results,))]
        executor = _native.Executor(builder, results, [x.dtype.numpy for x in results])
        executor.run([np.zeros_like(a) for a in arrays])  # a second run must not see the first one's memory
        return executor.run(list(arrays))

    return on_arrays


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


DTYPES = ["uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "bool", ml_dtypes.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_windows_of_every_type(run: Callable[..., list[Array]], dtype: Any) -> None:
    x = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5).astype(dtype)

    def graph(b: Any, x: Any) -> Any:
        moved = x.permute([2, 0, 3, 1]).slice(0, 1, 2, 2).select(2, 3)
        return moved, x.slice(3, 4, -1, 5), b.view(x.select(1, 0), (8, 5)).expand((3, 8, 5))

    results = run(graph, x)
    np.testing.assert_array_equal(results[0], x.transpose(2, 0, 3, 1)[1:4:2][:, :, 3])
    np.testing.assert_array_equal(results[1], x[..., ::-1])
    np.testing.assert_array_equal(results[2], np.broadcast_to(x[:, 0].reshape(8, 5), (3, 8, 5)))


@pytest.mark.parametrize("order", [*itertools.permutations(range(3)), (4, 2, 0, 5, 1, 3)], ids=str)
def test_permutations_of_any_rank(run: Callable[..., list[Array]], order: tuple[int, ...]) -> None:
    x = floats(*(37, 41, 35, 2, 3, 2)[: len(order)]) if len(order) == 3 else floats(2, 3, 4, 5, 2, 3)
    (y,) = run(lambda b, x: x.permute(list(order)), x)
    np.testing.assert_array_equal(y, x.transpose(order))


@pytest.mark.parametrize(
    ("shape", "order", "target"),
    [
        ((4, 6), (0, 1), (2, 2, 3, 2)),
        ((4, 6), (1, 0), (24,)),
        ((2, 3, 4), (0, 2, 1), (2, 12)),
        ((2, 3, 4), (1, 0, 2), (3, 2, 2, 2)),
        ((2, 1, 4), (1, 2, 0), (1, 1, 4, 2, 1)),
        ((6, 5, 4), (0, 2, 1), (2, 3, 4, 5)),
    ],
)
def test_views_of_windows(
    run: Callable[..., list[Array]], shape: tuple[int, ...], order: tuple[int, ...], target: tuple[int, ...]
) -> None:
    x = floats(*shape)
    (y,) = run(lambda b, x: b.view(x.permute(list(order)), target), x)
    np.testing.assert_array_equal(y, x.transpose(order).reshape(target))


def test_a_window_outside_the_memory_is_refused() -> None:
    stream = _native.Stream("CPU", 1)
    builder = _native.Builder(stream, _native.Weights(stream), _native.State(stream, []))
    x = builder.input(int(ScalarType.FLOAT), (2, 3))
    with pytest.raises(ValueError, match="leaves the tensor's memory"):
        x.as_strided((2, 4), (3, 1), 0)
    with pytest.raises(ValueError, match="leaves the tensor's memory"):
        x.as_strided((2,), (-1,), 0)
    with pytest.raises(ValueError, match="fewer axes"):
        x.expand((6,))


SHAPES = [
    ((), ()),
    ((3,), ()),
    ((2, 3), (3,)),
    ((2, 3), (2, 1)),
    ((2, 1), (1, 3)),
    ((1, 3, 1), (2, 1, 4)),
    ((4, 1, 3, 1, 2), (1, 2, 3, 2, 1)),
    ((2, 1, 2, 1, 2, 1), (1, 3, 1, 3, 1, 3)),
    ((300, 70), (300, 70)),
]


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
@pytest.mark.parametrize(("left", "right"), SHAPES, ids=str)
def test_arithmetic_broadcasts(
    run: Callable[..., list[Array]], name: str, left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    function = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[name]
    a, b = floats(*left), floats(*right, seed=1)
    for x, y in ((a, b), (b, a)):
        (found,) = run(lambda builder, x, y: getattr(builder, name)(x, y), x, y)
        np.testing.assert_array_equal(found, function(x, y))


PRODUCTS = [
    ((5, 7), (4, 7)),
    ((3, 5, 7), (4, 7)),
    ((2, 3, 5, 7), (4, 7)),
    ((2, 3, 5, 7), (2, 3, 4, 7)),
    ((2, 3, 5, 7), (3, 4, 7)),
    ((2, 3, 5, 7), (2, 1, 4, 7)),
    ((5, 7), (2, 3, 4, 7)),
    ((2, 1, 3, 1, 5, 7), (1, 2, 3, 2, 4, 7)),
    ((1, 1), (1, 1)),
    ((64, 96), (128, 96)),
]


@pytest.mark.parametrize(("x_shape", "w_shape"), PRODUCTS, ids=str)
def test_products_broadcast(
    run: Callable[..., list[Array]], x_shape: tuple[int, ...], w_shape: tuple[int, ...]
) -> None:
    x, w = floats(*x_shape), floats(*w_shape, seed=1)
    expected = x.astype(np.float64) @ w.astype(np.float64).swapaxes(-1, -2)
    (found,) = run(lambda b, x, w: b.mul_mat(w, x), x, w)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    turned = [np.ascontiguousarray(a.swapaxes(-1, -2)) for a in (x, w)]
    (found,) = run(lambda b, x, w: b.mul_mat(w.transpose(-1, -2), x.transpose(-1, -2)), *turned)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=str)
def test_products_of_half_types_sum_in_float32(run: Callable[..., list[Array]], dtype: Any) -> None:
    x, w = floats(5, 256).astype(dtype), floats(8, 256, seed=1).astype(dtype)
    expected = x.astype(np.float64) @ w.astype(np.float64).T
    (found,) = run(lambda b, x, w: b.mul_mat(w, x), x, w)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("count", [1, 2, 9, 10, 30])
def test_concatenation_of_many(run: Callable[..., list[Array]], count: int) -> None:
    parts = [floats(2, 1 + i % 3, 4, seed=i) for i in range(count)]
    (found,) = run(lambda b, *tensors: b.cat(list(tensors), 1), *parts)
    np.testing.assert_array_equal(found, np.concatenate(parts, 1))


@pytest.mark.parametrize("shape", [(1, 3, 5), (2, 2, 3, 5)])
def test_masked_softmax(run: Callable[..., list[Array]], shape: tuple[int, ...]) -> None:
    x, mask = floats(*shape), floats(*shape[-2:], seed=1)
    (found,) = run(lambda b, x, mask: b.soft_max(x, mask, 0.5), x, mask)
    scores = np.exp(x * 0.5 + mask)
    np.testing.assert_allclose(found, scores / scores.sum(-1, keepdims=True), rtol=1e-5)


def test_an_output_that_is_an_input_and_one_that_is_unused(run: Callable[..., list[Array]]) -> None:
    x, y = floats(3), floats(4)
    (found,) = run(lambda b, x, y: x, x, y)
    np.testing.assert_array_equal(found, x)


def test_indices_are_checked(run: Callable[..., list[Array]]) -> None:
    table = floats(4, 3)
    (found,) = run(lambda b, t, i: b.get_rows(t, b.check_index(i, 0, 4, False)), table, np.array([3, -1, -4, 0]))
    np.testing.assert_array_equal(found, table[[3, 3, 0, 0]])
    for bad in (4, -5, 2**40):
        with pytest.raises(IndexError, match=f"index {bad} is out of range for axis 0 of size 4"):
            run(lambda b, t, i: b.get_rows(t, b.check_index(i, 0, 4, False)), table, np.array([0, bad]))


def test_mistakes_of_ggml_become_exceptions() -> None:
    """ggml aborts where its assertions fail; on the thread that builds, that is an exception."""
    stream = _native.Stream("CPU", 1)
    builder = _native.Builder(stream, _native.Weights(stream), _native.State(stream, []))
    x = builder.input(int(ScalarType.FLOAT), (1, 3, 8, 8))
    with pytest.raises((RuntimeError, ValueError)):
        builder.im2col(x, [9, 9], [1, 1], [0, 0], [1, 1])


def test_wrong_arrays_are_refused(run: Callable[..., list[Array]]) -> None:
    stream = _native.Stream("CPU", 1)
    builder = _native.Builder(stream, _native.Weights(stream), _native.State(stream, []))
    x = builder.input(int(ScalarType.FLOAT), (2, 3))
    executor = _native.Executor(builder, [builder.copy(x)], [np.dtype(np.float32)])
    with pytest.raises(ValueError, match="expected 1 inputs, got 0"):
        executor.run([])
    with pytest.raises(ValueError, match="C-contiguous array of 24 bytes"):
        executor.run([floats(3, 2).T])
    with pytest.raises(ValueError, match="C-contiguous array of 24 bytes"):
        executor.run([floats(2, 4)])


def test_an_unknown_kernel_and_an_unknown_device() -> None:
    stream = _native.Stream("CPU", 1)
    builder = _native.Builder(stream, _native.Weights(stream), _native.State(stream, []))
    with pytest.raises(ValueError, match=r"no kernel 'elementwise\.nothing'"):
        builder.custom("elementwise.nothing", [], [(6, (1,))], [], [])
    with pytest.raises(RuntimeError, match="no device 'TPU0'"):
        _native.Stream("TPU0", 1)
