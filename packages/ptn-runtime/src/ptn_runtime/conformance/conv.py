"""Cases of the family `conv`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from ptn_format.dtypes import ScalarType as T

from ptn_runtime.conformance.case import Case, floats
from ptn_runtime.lowering.static import TensorSpec
from ptn_runtime.shapes import infer

OP = "aten.convolution.default"
WEIGHTS = frozenset({"weight", "bias"})


def convolution(
    input_shape: tuple[int, ...],
    weight_shape: tuple[int, ...],
    *,
    bias: bool = True,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    transposed: bool = False,
    output_padding: int | tuple[int, ...] = 0,
    groups: int = 1,
    dtype: T = T.FLOAT,
) -> dict[str, Any]:
    axes = len(input_shape) - 2

    def each(value: int | tuple[int, ...]) -> tuple[int, ...]:
        return value if isinstance(value, tuple) else (value,) * axes

    outputs = weight_shape[1] * groups if transposed else weight_shape[0]
    return {
        "input": floats(*input_shape, dtype=dtype, low=-1, high=1),
        "weight": floats(*weight_shape, dtype=dtype, low=-1, high=1, seed=1),
        "bias": floats(outputs, dtype=dtype, seed=2) if bias else None,
        "stride": each(stride),
        "padding": each(padding),
        "dilation": each(dilation),
        "transposed": transposed,
        "output_padding": each(output_padding),
        "groups": groups,
    }


def without_flags(axes: int, **options: Any) -> dict[str, Any]:
    """The arguments of `conv1d` to `conv3d`, or of the transposed forms, which have no flag for what they are."""
    spatial = (7, 6, 5)[:axes]
    weight = (4, 2, *(3, 2, 3)[:axes])
    groups = options.get("groups", 1)
    channels = 4 if options.get("transposed") else 2 * groups
    args = convolution((2, channels, *spatial), weight, **options)
    if not args.pop("transposed"):
        del args["output_padding"]
    return args


def named_convolutions() -> Iterator[Case]:
    for axes in (1, 2, 3):
        op = f"aten.conv{axes}d.default"
        yield Case(op, "plain", without_flags(axes), constants=WEIGHTS)
        options: dict[str, Any] = {"stride": 2, "padding": 1, "groups": 2, "bias": False}
        yield Case(op, "stride, padding, groups", without_flags(axes, **options), constants=WEIGHTS)
        args = without_flags(axes, dilation=2, padding=2)
        yield Case(op, "dilated", args, constants=WEIGHTS)
        batch = {**without_flags(axes), "input": without_flags(axes)["input"][0]}
        yield Case(op, "no batch axis", batch, constants=WEIGHTS)
        op = f"aten.conv_transpose{axes}d.{'default' if axes == 1 else 'input'}"
        yield Case(op, "plain", without_flags(axes, transposed=True), constants=WEIGHTS)
        options = {"stride": 3, "padding": 1, "output_padding": 2, "groups": 2, "bias": False, "transposed": True}
        yield Case(op, "all at once", without_flags(axes, **options), constants=WEIGHTS)
        yield Case(op, "dilated", without_flags(axes, dilation=2, transposed=True), constants=WEIGHTS)
    half = {name: a.astype(np.float16) if isinstance(a, np.ndarray) else a for name, a in without_flags(2).items()}
    yield Case("aten.conv2d.default", "float16", half, constants=WEIGHTS, atol=4e-2)


def patches() -> Iterator[Case]:
    forms: dict[str, dict[str, Any]] = {
        "plain": {"kernel_size": (2, 3), "dilation": (1, 1), "padding": (0, 0), "stride": (1, 1)},
        "padded": {"kernel_size": (3, 3), "dilation": (1, 1), "padding": (1, 2), "stride": (2, 1)},
        "dilated": {"kernel_size": (2, 2), "dilation": (2, 3), "padding": (1, 1), "stride": (1, 2)},
    }
    for name, form in forms.items():
        yield Case("aten.im2col.default", name, {"self": floats(2, 3, 6, 7), **form})
        pieces = [
            (size + 2 * pad - dilation * (kernel - 1) - 1) // step + 1
            for size, pad, dilation, kernel, step in zip(
                (6, 7), form["padding"], form["dilation"], form["kernel_size"], form["stride"], strict=True
            )
        ]
        columns = floats(2, 3 * form["kernel_size"][0] * form["kernel_size"][1], pieces[0] * pieces[1])
        yield Case("aten.col2im.default", name, {"self": columns, "output_size": (6, 7), **form})
    yield Case("aten.im2col.default", "no batch axis", {"self": floats(3, 6, 7), **forms["padded"]})
    yield Case("aten.im2col.default", "float16", {"self": floats(1, 2, 5, 5, dtype=T.HALF), **forms["plain"]})


def gradients(name: str, args: Mapping[str, Any]) -> Iterator[Case]:
    """The backward pass of a convolution."""
    arrays = {key: value for key, value in args.items() if isinstance(value, np.ndarray)}
    specs = {key: TensorSpec(T.from_numpy(value.dtype), value.shape) for key, value in arrays.items()}
    (result,) = infer(OP, {**args, **specs})
    rest = {key: value for key, value in args.items() if key not in ("input", "weight", "bias")}
    yield Case(
        "aten.convolution_backward.default",
        name,
        {
            "grad_output": floats(*result.shape, seed=7),
            "input": args["input"],
            "weight": args["weight"],
            "bias_sizes": (result.shape[1],),
            **rest,
            "output_mask": (True, True, True),
        },
        constants=WEIGHTS,
    )


def cases() -> Iterator[Case]:
    """Every case of the family."""
    yield from named_convolutions()
    yield from patches()
    forms: dict[str, dict[str, Any]] = {
        "1x1": convolution((2, 3, 5, 6), (4, 3, 1, 1)),
        "3x3": convolution((2, 3, 7, 8), (4, 3, 3, 3), padding=1),
        "3x3 without bias": convolution((2, 3, 7, 8), (4, 3, 3, 3), bias=False),
        "stride 2": convolution((1, 3, 9, 10), (4, 3, 3, 3), stride=2, padding=1),
        "7x7, stride 2": convolution((1, 3, 16, 15), (8, 3, 7, 7), stride=2, padding=3),
        "dilated": convolution((1, 3, 11, 12), (4, 3, 3, 3), dilation=2, padding=2),
        "uneven": convolution((1, 2, 9, 12), (3, 2, 2, 5), stride=(2, 3), padding=(0, 2), dilation=(3, 1)),
        "groups": convolution((2, 6, 7, 8), (9, 2, 3, 3), padding=1, groups=3),
        "depthwise": convolution((2, 6, 9, 8), (6, 1, 3, 3), padding=1, groups=6),
        "depthwise, stride 2": convolution((1, 6, 9, 8), (6, 1, 3, 3), padding=1, stride=2, groups=6),
        "depthwise, multiplier 2": convolution((1, 4, 6, 6), (8, 1, 3, 3), padding=1, groups=4),
        "depthwise, 5x5": convolution((1, 4, 9, 9), (4, 1, 5, 5), padding=2, groups=4),
        "1-d": convolution((2, 3, 17), (4, 3, 3), padding=1),
        "1-d, stride 2": convolution((1, 8, 20), (6, 8, 3), stride=2, padding=1),
        "1-d, dilated": convolution((1, 3, 17), (4, 3, 3), dilation=3),
        "1-d, groups": convolution((2, 4, 9), (6, 2, 3), groups=2),
        "1-d, depthwise": convolution((2, 4, 9), (4, 1, 4), padding=3, groups=4),
        "3-d": convolution((1, 2, 5, 6, 7), (3, 2, 3, 3, 3), padding=1),
        "3-d, stride 2": convolution((1, 2, 5, 6, 7), (3, 2, 2, 2, 2), stride=2),
        "3-d, groups": convolution((1, 4, 4, 4, 4), (4, 2, 2, 2, 2), groups=2),
        "no batch": convolution((0, 3, 7, 8), (4, 3, 3, 3)),
        "transposed": convolution((2, 3, 5, 6), (3, 4, 3, 3), transposed=True),
        "transposed, stride 2": convolution((1, 3, 5, 6), (3, 4, 2, 2), stride=2, transposed=True),
        "transposed, padding": convolution(
            (1, 3, 5, 6), (3, 4, 3, 3), stride=2, padding=1, output_padding=1, transposed=True
        ),
        "transposed, uneven": convolution((1, 2, 4, 5), (2, 3, 3, 2), stride=(2, 3), dilation=(2, 1), transposed=True),
        "transposed, groups": convolution((1, 4, 4, 5), (4, 3, 3, 3), groups=2, transposed=True),
        "transposed, 1-d": convolution((2, 3, 9), (3, 4, 4), stride=2, padding=1, transposed=True),
        "transposed, 3-d": convolution((1, 2, 3, 4, 3), (2, 3, 2, 2, 2), stride=2, transposed=True),
    }
    for name, args in forms.items():
        yield Case(OP, name, args, constants=WEIGHTS)
    yield Case(OP, "weight is an input", forms["3x3"])
    for name in ("3x3", "uneven", "groups", "depthwise", "1-d, stride 2", "3-d, stride 2", "transposed, uneven",
                 "transposed, groups", "transposed, padding"):  # fmt: skip
        yield from gradients(name, forms[name])
    for dtype in (T.HALF, T.BFLOAT16, T.DOUBLE):
        args = convolution((2, 3, 7, 8), (4, 3, 3, 3), padding=1, dtype=dtype)
        yield Case(OP, dtype.torch_name, args, constants=WEIGHTS, atol=None if dtype is T.DOUBLE else 4e-2)
    identity = convolution((1, 1, 3, 3), (1, 1, 1, 1), bias=False)
    identity["weight"] = np.ones((1, 1, 1, 1), np.float32)
    yield Case(OP, "identity", identity, (identity["input"],), constants=WEIGHTS)
