"""Cases of the family `pool`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from ptn_format.dtypes import ScalarType as T

from ptn_runtime.conformance.case import Case, floats, integers, permutation

NAN, INF = float("nan"), float("inf")


def max_pools() -> Iterator[Case]:
    op = "aten.max_pool2d_with_indices.default"
    x = permutation(2, 3, 7, 9)
    base = {"kernel_size": (3, 3), "stride": (2, 2), "padding": (1, 1), "dilation": (1, 1), "ceil_mode": False}
    yield Case(op, "3x3, stride 2", {"self": x, **base})
    yield Case(op, "2x2", {"self": x, "kernel_size": (2, 2), "stride": (2, 2)})
    yield Case(op, "stride left out", {"self": x, "kernel_size": (2, 3), "stride": ()})
    yield Case(op, "ceil", {"self": x, **base, "ceil_mode": True})
    yield Case(op, "dilated", {"self": x, **base, "dilation": (2, 1)})
    yield Case(op, "uneven", {"self": x, **base, "kernel_size": (2, 4), "stride": (1, 3), "padding": (0, 2)})
    wide = {"kernel_size": (12, 20), "stride": (12, 20), "padding": (2, 3), "ceil_mode": True}
    yield Case(op, "wider than the image", {"self": x, **wide})
    yield Case(op, "no batch axis", {"self": x[0], **base})
    yield Case(
        op, "ties take the first", {"self": np.zeros((1, 1, 4, 4), np.float32), "kernel_size": (2, 2), "stride": (2, 2)}
    )
    odd = np.array([[[[NAN, 1], [2, 3]]]], np.float32)
    yield Case(op, "nan wins", {"self": odd, "kernel_size": (2, 2), "stride": (2, 2)})
    low = np.full((1, 1, 2, 2), -INF, np.float32)
    yield Case(op, "a window of -inf", {"self": low, "kernel_size": (2, 2), "stride": (2, 2)})
    for dtype in (T.HALF, T.BFLOAT16, T.DOUBLE):
        yield Case(op, dtype.torch_name, {"self": floats(1, 2, 6, 6, dtype=dtype), **base})
    cube = {"kernel_size": (2, 2, 2), "stride": (2, 2, 2)}
    yield Case("aten.max_pool3d_with_indices.default", "2x2x2", {"self": permutation(1, 2, 4, 5, 6), **cube})


def average_pools() -> Iterator[Case]:
    op = "aten.avg_pool2d.default"
    x = floats(2, 3, 7, 9)
    base = {"kernel_size": (3, 3), "stride": (2, 2), "padding": (1, 1), "ceil_mode": False}
    yield Case(op, "counts padding", {"self": x, **base, "count_include_pad": True})
    yield Case(op, "does not count padding", {"self": x, **base, "count_include_pad": False})
    for counted in (True, False):
        name = "ceil, counts padding" if counted else "ceil, does not count padding"
        yield Case(op, name, {"self": floats(1, 2, 6, 8), **base, "ceil_mode": True, "count_include_pad": counted})
        wide = {"kernel_size": (12, 20), "padding": (2, 3), "ceil_mode": True, "count_include_pad": counted}
        yield Case(op, f"wider than the image{', counts padding' if counted else ''}", {"self": x, **wide})
    yield Case(op, "divisor", {"self": x, **base, "divisor_override": 5})
    yield Case(op, "stride left out", {"self": x, "kernel_size": (2, 3), "stride": ()})
    yield Case(op, "no batch axis", {"self": x[0], "kernel_size": (2, 2), "stride": (2, 2)})
    for dtype in (T.HALF, T.BFLOAT16, T.DOUBLE):
        yield Case(op, dtype.torch_name, {"self": floats(1, 2, 6, 6, dtype=dtype), **base})
    yield Case(
        "aten.avg_pool1d.default", "3", {"self": floats(2, 3, 9), "kernel_size": (3,), "stride": (2,), "padding": (1,)}
    )
    yield Case(
        "aten.avg_pool3d.default",
        "2x2x2",
        {"self": floats(1, 2, 4, 5, 6), "kernel_size": (2, 2, 2), "stride": (2, 2, 2)},
    )
    for size in ((1, 1), (2, 3), (7, 9), (3, 4)):
        yield Case("aten._adaptive_avg_pool2d.default", f"to {size[0]}x{size[1]}", {"self": x, "output_size": size})
    yield Case("aten.adaptive_avg_pool1d.default", "to 4", {"self": floats(2, 3, 9), "output_size": (4,)})


def pools_by_rank() -> Iterator[Case]:
    """The forms without indices, the 1-d form with them, and the adaptive ones."""
    for axes in (1, 2, 3):
        x = permutation(2, 3, *(9, 7, 6)[:axes])
        op = f"aten.max_pool{axes}d.default"
        base = {"kernel_size": (3,) * axes, "stride": (2,) * axes, "padding": (1,) * axes}
        yield Case(op, "3, stride 2", {"self": x, **base})
        yield Case(op, "ceil", {"self": x, **base, "padding": (0,) * axes, "ceil_mode": True})
        yield Case(
            op, "dilated", {"self": x, "kernel_size": (2,) * axes, "stride": (1,) * axes, "dilation": (2,) * axes}
        )
        yield Case(op, "stride left out, no batch axis", {"self": x[0], "kernel_size": (2,) * axes})
        odd = np.full((1, 1, *(4,) * axes), -INF, np.float32)
        odd.reshape(-1)[3] = NAN
        yield Case(op, "nan wins over -inf", {"self": odd, "kernel_size": (2,) * axes, "stride": (2,) * axes})
        half = floats(1, 2, *(6,) * axes, dtype=T.HALF)
        yield Case(op, "float16", {"self": half, **base})
    flat = "aten.max_pool1d_with_indices.default"
    yield Case(flat, "3", {"self": permutation(2, 3, 9), "kernel_size": (3,), "stride": (2,), "padding": (1,)})
    ties = np.zeros((1, 1, 6), np.float32)
    yield Case(flat, "ties take the first", {"self": ties, "kernel_size": (3,), "stride": (3,)})
    averages = {
        "aten.adaptive_avg_pool2d.default": floats(2, 3, 7, 9),
        "aten._adaptive_avg_pool3d.default": floats(1, 2, 5, 6, 7),
        "aten.adaptive_avg_pool3d.default": floats(1, 2, 5, 6, 7),
    }
    for op, x in averages.items():
        axes = x.ndim - 2
        for size in ((1,) * axes, (2, 3, 4)[:axes], x.shape[2:]):
            yield Case(op, f"to {list(size)}", {"self": x, "output_size": size})
        yield Case(op, "no batch axis", {"self": x[0], "output_size": (2,) * axes})
        yield Case(op, "float16", {"self": x.astype(np.float16), "output_size": (2,) * axes})
    for axes in (1, 2, 3):
        x = permutation(2, 3, *(7, 9, 5)[:axes])
        op = f"aten.adaptive_max_pool{axes}d.default"
        for size in ((1,) * axes, (3, 4, 2)[:axes], (8,) * axes):
            yield Case(op, f"to {list(size)}", {"self": x, "output_size": size})
        odd = x.copy()
        odd[0, 0].reshape(-1)[:2] = NAN
        yield Case(op, "nan wins", {"self": odd, "output_size": (2,) * axes})
        yield Case(op, "ties take the first", {"self": np.zeros_like(x), "output_size": (2,) * axes})


def backward() -> Iterator[Case]:
    """Gradients of two-dimensional pools."""
    x = permutation(2, 3, 7, 8)
    for dtype in (T.FLOAT, T.DOUBLE):
        for size in ((2, 3), (1, 1), (7, 8), (9, 10)):
            pair = {"grad_output": floats(2, 3, *size, dtype=dtype), "self": x.astype(dtype.numpy)}
            yield Case("aten._adaptive_avg_pool2d_backward.default", f"{dtype.torch_name} from {list(size)}", pair)
    args: dict[str, Any]
    window = {"kernel_size": (3, 2), "stride": (2, 2), "padding": (1, 0), "ceil_mode": False}
    for name, change, size in (
        ("padding counts", {}, (4, 4)),
        ("padding does not count", {"count_include_pad": False}, (4, 4)),
        ("divisor", {"divisor_override": 5}, (4, 4)),
        ("ceil mode", {"ceil_mode": True, "kernel_size": (2, 3)}, (4, 4)),
        ("stride of the kernel", {"stride": ()}, (3, 4)),
    ):
        args = {"grad_output": floats(2, 3, *size), "self": x, **window, "count_include_pad": True}
        args["divisor_override"] = None
        yield Case("aten.avg_pool2d_backward.default", name, {**args, **change})
    places = integers(2, 3, 4, 4, low=0, high=56)
    args = {"grad_output": floats(2, 3, 4, 4), "self": x, **window, "dilation": (1, 1), "indices": places}
    yield Case("aten.max_pool2d_with_indices_backward.default", "places meet", args)
    one = {**args, "grad_output": floats(3, 4, 4), "self": x[0], "indices": places[0]}
    yield Case("aten.max_pool2d_with_indices_backward.default", "no batch axis", one)


def cases() -> Iterator[Case]:
    """Every case of the family."""
    yield from backward()
    yield from pools_by_rank()
    yield from max_pools()
    yield from average_pools()
