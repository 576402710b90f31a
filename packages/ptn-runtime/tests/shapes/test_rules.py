"""Dtype and shape rules: promotion, broadcasting, rounding of sizes, and the texts of refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ptn_format.dtypes import ScalarType as S
from ptn_runtime.shapes import TensorSpec, infer
from ptn_runtime.shapes._promotion import promote, result_type


def t(dtype: S, *shape: int) -> TensorSpec:
    return TensorSpec(dtype, shape)


def f(*shape: int) -> TensorSpec:
    return TensorSpec(S.FLOAT, shape)


PROMOTIONS = [
    # Dtypes of one kind: the wider one.
    ((t(S.INT, 2), t(S.LONG, 2)), S.LONG),
    ((t(S.HALF, 2), t(S.BFLOAT16, 2)), S.FLOAT),
    ((t(S.BYTE, 2), t(S.CHAR, 2)), S.SHORT),
    ((t(S.BYTE, 2), t(S.SHORT, 2)), S.SHORT),
    ((t(S.BOOL, 2), t(S.UINT32, 2)), S.UINT32),
    # Tensors with axes decide over 0-d tensors of the same category ...
    ((t(S.CHAR, 2), t(S.LONG)), S.CHAR),
    ((t(S.HALF, 2), t(S.DOUBLE)), S.HALF),
    ((t(S.FLOAT), t(S.DOUBLE)), S.DOUBLE),
    # ... but not over those of a higher one.
    ((t(S.LONG, 2), t(S.HALF)), S.HALF),
    ((t(S.BOOL, 2), t(S.CHAR)), S.CHAR),
    # Python numbers come last.
    ((t(S.CHAR, 2), 1000), S.CHAR),
    ((t(S.CHAR, 2), 1.5), S.FLOAT),
    ((t(S.CHAR), 7), S.CHAR),
    ((t(S.BFLOAT16), 1.5), S.BFLOAT16),
    ((t(S.BOOL, 2), 7), S.LONG),
    ((t(S.BOOL, 2), True), S.BOOL),
    ((t(S.DOUBLE, 2), 1.5), S.DOUBLE),
    ((t(S.LONG, 2), t(S.FLOAT), 1), S.FLOAT),
]


@pytest.mark.parametrize(("operands", "expected"), PROMOTIONS)
def test_promotion(operands: tuple[Any, ...], expected: S) -> None:
    assert result_type(*operands) is expected
    assert result_type(*reversed(operands)) is expected


def test_unsigned_types_do_not_promote() -> None:
    with pytest.raises(ValueError, match="no common type for uint16 and int32; cast one of them"):
        promote(S.UINT16, S.INT)


ACCEPTED: list[tuple[str, dict[str, Any], Any]] = [
    ("aten.add.Tensor", {"self": f(2, 1, 3), "other": f(4, 1)}, f(2, 4, 3)),
    ("aten.add.Tensor", {"self": f(0, 3), "other": f(1, 3)}, f(0, 3)),
    ("aten.div.Tensor", {"self": t(S.LONG, 2), "other": t(S.LONG, 2)}, f(2)),
    ("aten.div.Tensor_mode", {"self": t(S.LONG, 2), "other": 2, "rounding_mode": "floor"}, t(S.LONG, 2)),
    ("aten.eq.Scalar", {"self": f(2), "other": 1}, t(S.BOOL, 2)),
    ("aten.mul.Scalar", {"self": t(S.INT, 2), "other": t(S.LONG)}, t(S.INT, 2)),  # a number known at run time
    ("aten.sum.dim_IntList", {"self": t(S.BOOL, 2, 3), "dim": (-1,)}, t(S.LONG, 2)),
    ("aten.sum.dim_IntList", {"self": f(2, 3), "dim": ()}, f()),
    ("aten.any.dims", {"self": t(S.BOOL, 2, 3), "dim": ()}, t(S.BOOL, 2, 3)),
    ("aten.any.default", {"self": t(S.BYTE, 2)}, t(S.BYTE)),
    ("aten.matmul.default", {"self": f(5, 1, 2, 3), "other": f(4, 3, 7)}, f(5, 4, 2, 7)),
    ("aten.matmul.default", {"self": f(3), "other": f(3)}, f()),
    ("aten.linear.default", {"input": f(0, 3), "weight": f(4, 3)}, f(0, 4)),
    ("aten.view.default", {"self": f(2, 3, 4), "size": (-1, 8)}, f(3, 8)),
    ("aten.expand.default", {"self": f(1, 3), "size": (2, -1, 3)}, f(2, 1, 3)),
    ("aten.slice.Tensor", {"self": f(5), "start": -2, "end": 2**63 - 1}, f(2)),
    ("aten.slice.Tensor", {"self": f(5), "start": 4, "end": 2}, f(0)),
    ("aten.cat.default", {"tensors": (f(0), f(2, 3), t(S.DOUBLE, 4, 3))}, t(S.DOUBLE, 6, 3)),
    ("aten.index.Tensor", {"self": f(4, 5, 6), "indices": (None, t(S.LONG, 2, 1), t(S.LONG, 3))}, f(4, 2, 3)),
    ("aten.index.Tensor", {"self": f(4, 5, 6), "indices": (t(S.LONG, 2), None, t(S.LONG, 2))}, f(2, 5)),
    ("aten.constant_pad_nd.default", {"self": f(2, 3), "pad": (1, -2, 0, 4)}, f(6, 2)),
    ("aten.arange.start_step", {"start": 0, "end": 10, "step": 3}, t(S.LONG, 4)),
    ("aten.arange.start_step", {"start": 1.0, "end": 0, "step": -0.3}, f(4)),
    ("aten.arange.start_step", {"start": 0.0, "end": -8.5, "step": -4.0, "dtype": S.LONG}, t(S.LONG, 2)),
    ("aten.arange.start_step", {"start": 0.0, "end": -8.5, "step": -4.0, "dtype": S.INT}, t(S.INT, 3)),
    ("aten.full.default", {"size": (2,), "fill_value": True}, t(S.BOOL, 2)),
    ("aten.upsample_nearest2d.vec", {"input": f(1, 1, 3, 5), "output_size": None, "scale_factors": (1.5, 0.5)},
     f(1, 1, 4, 2)),
    ("aten._to_copy.default", {"self": f(2), "dtype": S.HALF}, t(S.HALF, 2)),
    ("aten.argmax.default", {"self": f(2, 3), "dim": 1, "keepdim": True}, t(S.LONG, 2, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("op", "args", "expected"), ACCEPTED)
def test_results(op: str, args: dict[str, Any], expected: TensorSpec) -> None:
    assert infer(op, args) == (expected,)


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "ceil_mode", "expected"),
    [
        (7, 3, 2, 1, False, 4),
        (8, 3, 2, 1, True, 5),
        (6, 3, 2, 0, True, 3),
        (5, 2, 2, 1, True, 3),
        (4, 1, 3, 0, True, 2),
    ],
)
def test_pooled_sizes(size: int, kernel: int, stride: int, padding: int, ceil_mode: bool, expected: int) -> None:
    args = {"self": f(1, 1, size, size), "kernel_size": (kernel,), "stride": (stride,), "padding": (padding,)}
    (result,) = infer("aten.avg_pool2d.default", args | {"ceil_mode": ceil_mode})
    assert result.shape == (1, 1, expected, expected)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "aten.add.Tensor",
        {"self": f(2, 3), "other": f(4)},
        "shapes [2, 3] and [4] do not broadcast: sizes 3 and 4 meet on one axis",
    ),
    ("aten.mm.default", {"self": f(2, 3), "mat2": f(4, 5)}, "[2, 3] and [4, 5] cannot be multiplied: 3 and 4"),
    ("aten.view.default", {"self": f(2, 3), "size": (4, 2)}, "[2, 3] has 6 elements and cannot become [4, 2]"),
    ("aten.select.int", {"self": f(2, 3), "dim": 1, "index": 3}, "index 3 is out of range for axis 1 of 3 elements"),
    ("aten.mean.default", {"self": t(S.LONG, 2)}, "the result must be floating point, got int64; pass dtype"),
    ("aten.amax.default", {"self": f(0, 2), "dim": (0,)}, "nothing to choose from on an empty axis of [0, 2]"),
    ("aten.softmax.int", {"self": f(2), "dim": 1}, "axis 1 is out of range for 1 axes; allowed -1..0"),
    ("aten.pow.Tensor_Scalar", {"self": t(S.INT, 2), "exponent": -1}, "cannot be raised to -1; cast it to float"),
    ("aten.bitwise_and.Tensor", {"self": f(2), "other": f(2)}, "expected integers or bools, got float32"),
    (
        "aten.scaled_dot_product_attention.default",
        {"query": f(1, 2, 3, 4), "key": f(1, 2, 3, 4), "value": f(1, 2, 3, 4), "dropout_p": 0.1},
        "attention with dropout 0.1 cannot be run; export the model in eval mode",
    ),
    (
        "aten.reflection_pad1d.default",
        {"self": f(1, 3), "padding": (3, 0)},
        "padding [3, 0] reflects more than the 3 elements of an axis",
    ),
    (
        "native.rope.default",
        {"input": f(1, 2, 3, 4), "position_ids": t(S.LONG, 1, 3), "inv_freq": f(3)},
        "rotary width 6 exceeds the input's 4 channels",
    ),
    ("aten.roll.default", {"self": f(2, 3), "shifts": (1,), "dims": (2,)}, "axis 2 is out of range for 2 axes"),
    ("aten.tensor_split.sections", {"self": f(2), "sections": 1 << 60}, "pieces of a tensor are too many"),
    (
        "aten.as_strided_scatter.default",
        {"self": f(3, 4), "src": f(2, 2), "size": (2, 2), "stride": (-(1 << 40), 1), "storage_offset": 1},
        "sizes, strides and offset must not be negative",
    ),
    (
        "aten.as_strided_scatter.default",
        {"self": f(3, 4), "src": f(2, 2), "size": (2, 2), "stride": (11, 1)},
        "element 12 lies outside [3, 4]",
    ),
    ("aten.as_strided.default", {"self": f(4), "size": (2,), "stride": (1,), "storage_offset": -1}, "not be negative"),
    (
        "aten.searchsorted.Tensor",
        {"sorted_sequence": f(3), "self": f(2), "sorter": t(S.LONG, 1)},
        "sorter must have the sequence's shape [3], got [1]",
    ),
    ("aten.searchsorted.Tensor", {"sorted_sequence": f(), "self": f(2)}, "the sorted sequence needs an axis"),
    (
        "aten._embedding_bag.default",
        {"weight": f(7, 5), "indices": t(S.LONG, 6), "offsets": t(S.LONG, 2), "per_sample_weights": f(0)},
        "each of [6] indices needs a weight, got [0]",
    ),
    ("aten.fill.Tensor", {"self": f(2), "value": f(1, 1)}, "a number or a tensor of no axes, got [1, 1]"),
    (
        "aten.masked_fill.Tensor",
        {"self": f(2), "mask": t(S.BOOL, 2), "value": f(1)},
        "a number or a tensor of no axes, got [1]",
    ),
    ("aten.chunk.default", {"self": f(0), "chunks": 1 << 60}, "pieces of a tensor are too many"),
]


@pytest.mark.parametrize(("op", "args", "text"), REFUSED)
def test_refusals_say_what_and_why(op: str, args: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        infer(op, args)
    assert text in str(caught.value)


@pytest.mark.parametrize("offset", range(-6, 7))
def test_triangles_are_counted(offset: int) -> None:
    for row in range(5):
        for col in range(5):
            (lower,) = infer("aten.tril_indices.default", {"row": row, "col": col, "offset": offset})
            (upper,) = infer("aten.triu_indices.default", {"row": row, "col": col, "offset": offset})
            assert lower.shape == np.array(np.tril_indices(row, offset, col)).shape
            assert upper.shape == np.array(np.triu_indices(row, offset, col)).shape


def test_counting_a_huge_triangle_takes_no_time() -> None:
    (result,) = infer("aten.tril_indices.default", {"row": 1 << 60, "col": 3})
    assert result.shape == (2, 3 * (1 << 60) - 3)
