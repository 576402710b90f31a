"""Moving elements: strided copies, concatenation, padding, rolling, triangles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ptn_format.dtypes import ScalarType

FLOAT = ScalarType.FLOAT
DTYPES = [ScalarType.BOOL, ScalarType.HALF, FLOAT, ScalarType.LONG]


def filled(dtype: ScalarType, shape: tuple[int, ...]) -> Any:
    return np.random.default_rng(0).integers(0, 100, shape).astype(dtype.numpy)


def strided(run: Any, x: Any, view: Any, threads: int) -> Any:
    """Copies numpy's view `view` of `x` by the kernel."""
    offset = (view.__array_interface__["data"][0] - x.__array_interface__["data"][0]) // x.itemsize
    ints = [offset, view.ndim, *view.shape, *(stride // x.itemsize for stride in view.strides)]
    return run("layout.strided", [x], [(ScalarType.from_numpy(x.dtype), view.shape)], ints, threads=threads)[0]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: t.torch_name)
@pytest.mark.parametrize("threads", [1, 3])
def test_strided_views(run: Any, dtype: ScalarType, threads: int) -> None:
    x = filled(dtype, (6, 50, 4, 33))
    views = [
        x.transpose(0, 2, 1, 3),
        x.transpose(3, 2, 1, 0),
        x.transpose(0, 1, 3, 2),
        x[::-1, :, ::-1],
        x[1:5:2, 3:, :, 1:20:3],
        x[..., 5],
        np.broadcast_to(x[:, :1], (6, 9, 4, 33)),
        np.broadcast_to(x[..., :1], (2, 6, 50, 4, 8)),
        x[:, 0, 0, 0],
        x[2:3, 3:4, 1:2, 5:6],
        x.reshape(300, 132).T,
        np.lib.stride_tricks.sliding_window_view(x.reshape(-1), 7)[::3],
    ]
    for view in views:
        np.testing.assert_array_equal(strided(run, x, view, threads), view)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("threads", [1, 3])
def test_cat(run: Any, axis: int, threads: int) -> None:
    parts = []
    for size in (3, 1, 0, 7):
        shape = [40, 50, 30]
        shape[axis] = size
        parts.append(filled(FLOAT, tuple(shape)) + size)
    expected = np.concatenate(parts, axis)
    (found,) = run("layout.cat", parts, [(FLOAT, expected.shape)], [axis], threads=threads)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: t.torch_name)
@pytest.mark.parametrize(
    ("mode", "name"),
    [(0, "constant"), (1, "reflect"), (2, "edge"), (3, "wrap")],
    ids=["constant", "reflect", "edge", "wrap"],
)
def test_pad(run: Any, dtype: ScalarType, mode: int, name: str) -> None:
    x = filled(dtype, (3, 5, 6))
    for widths in ([(0, 0), (2, 1), (0, 3)], [(1, 2), (0, 0), (4, 0)], [(0, 0), (2, 2), (0, 0)]):
        options: dict[str, Any] = {"constant_values": 1} if mode == 0 else {}
        expected = np.pad(x, widths, name, **options)  # type: ignore[call-overload]
        ints = [mode, 1, *(before for before, _ in widths)]
        (found,) = run("layout.pad", [x], [(dtype, expected.shape)], ints, [1.0], threads=2)
        np.testing.assert_array_equal(found, expected)


def test_negative_padding_crops(run: Any) -> None:
    x = filled(FLOAT, (4, 6))
    expected = np.pad(x[1:, :-2], ((0, 0), (2, 0)), constant_values=-np.inf)
    (found,) = run("layout.pad", [x], [(FLOAT, expected.shape)], [0, 0, -1, 2], [-np.inf])
    np.testing.assert_array_equal(found, expected)


def test_roll(run: Any) -> None:
    x = filled(FLOAT, (5, 6, 7))
    (found,) = run("layout.roll", [x], [(FLOAT, x.shape)], [2, 0, -10], threads=2)
    np.testing.assert_array_equal(found, np.roll(x, (2, -10), (0, 2)))


@pytest.mark.parametrize("diagonal", [-9, -2, 0, 1, 9])
def test_triangles(run: Any, diagonal: int) -> None:
    x = filled(FLOAT, (3, 6, 4))
    (lower,) = run("layout.triangle", [x], [(FLOAT, x.shape)], [0, diagonal])
    np.testing.assert_array_equal(lower, np.tril(x, diagonal))
    (upper,) = run("layout.triangle", [x], [(FLOAT, x.shape)], [1, diagonal])
    np.testing.assert_array_equal(upper, np.triu(x, diagonal))
