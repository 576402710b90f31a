"""Corner cases of the kernels with literal results: what PyTorch's documentation and eager mode say."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ptn_format.dtypes import ScalarType
from ptn_format.graph import AffineGroup, PackedQuant
from ptn_runtime.errors import IndexOutOfRangeError
from ptn_runtime.reference import evaluate
from ptn_runtime.shapes import TensorSpec

nan, inf = math.nan, math.inf


def run(op: str, /, **args: Any) -> Any:
    results = evaluate(op, args)
    return results[0] if len(results) == 1 else results


def f32(*values: Any) -> np.ndarray:
    return np.array(values, np.float32)


def same(got: np.ndarray, want: np.ndarray) -> None:
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    np.testing.assert_array_equal(got, want)


def test_rounding_is_half_to_even() -> None:
    same(run("aten.round.default", self=f32(0.5, 1.5, 2.5, -0.5, -1.5)), f32(0, 2, 2, -0.0, -2))


def test_nan_passes_through_bounds_and_extremes() -> None:
    x = f32(nan, -3, 3)
    same(run("aten.relu.default", self=x), f32(nan, 0, 3))
    same(run("aten.clamp.default", self=x, min=-1, max=1), f32(nan, -1, 1))
    same(run("aten.maximum.default", self=x, other=f32(0, nan, 0)), f32(nan, nan, 3))
    same(run("aten.max.default", self=x), np.array(nan, np.float32))
    values, index = run("aten.min.dim", self=x, dim=0)
    same(values, np.array(nan, np.float32))
    same(index, np.array(0))


def test_integer_division_rounds_as_asked() -> None:
    a, b = np.array([7, -7, 7, -7]), np.array([2, 2, -2, -2])
    same(run("aten.div.Tensor", self=a, other=b), f32(3.5, -3.5, -3.5, 3.5))
    same(run("aten.div.Tensor_mode", self=a, other=b, rounding_mode="trunc"), np.array([3, -3, -3, 3]))
    same(run("aten.div.Tensor_mode", self=a, other=b, rounding_mode="floor"), np.array([3, -4, -4, 3]))
    same(run("aten.remainder.Tensor", self=a, other=b), np.array([1, 1, -1, -1]))
    same(run("aten.fmod.Tensor", self=a, other=b), np.array([1, -1, 1, -1]))
    with pytest.raises(ZeroDivisionError, match="an integer is divided by zero"):
        run("aten.remainder.Tensor", self=a, other=b * 0)


def test_integers_wrap_and_keep_64_bits() -> None:
    same(run("aten.add.Tensor", self=np.array([250], np.uint8), other=10), np.array([4], np.uint8))
    same(run("aten.add.Tensor", self=np.array([2**53 + 1]), other=np.array(2)), np.array([2**53 + 3]))
    same(run("aten.mul.Scalar", self=np.array([2**40]), other=2**20), np.array([2**60]))
    same(run("aten.sum.default", self=np.full(3, 2**61)), np.array(3 * 2**61))


def test_powers_of_integers() -> None:
    same(run("aten.pow.Tensor_Scalar", self=np.array([3, -2]), exponent=3), np.array([27, -8]))
    exponents = np.array([-1, -2, -1, -3])
    same(run("aten.pow.Tensor_Tensor", self=np.array([1, 2, -1, -1]), exponent=exponents), np.array([1, 0, -1, -1]))


def test_softmax_of_a_masked_row_is_nan() -> None:
    x = f32([-inf, -inf], [0, -inf])
    same(run("aten.softmax.int", self=x, dim=1), f32([nan, nan], [1, 0]))
    same(run("aten._safe_softmax.default", self=x, dim=1), f32([0, 0], [1, 0]))


def test_attention_of_a_masked_row_is_zero() -> None:
    q, v = np.ones((1, 2, 4), np.float32), np.arange(8, dtype=np.float32).reshape(1, 2, 4)
    mask = np.array([[False, False], [True, False]])
    result = run("aten.scaled_dot_product_attention.default", query=q, key=q, value=v, attn_mask=mask)
    same(result, np.stack([np.zeros(4, np.float32), v[0, 0]])[None])


def test_causal_attention_is_anchored_top_left() -> None:
    q, k = np.ones((1, 2, 4), np.float32), np.ones((1, 3, 4), np.float32)
    v = np.array([[[1.0], [3.0], [100.0]]], np.float32)
    result = run("aten.scaled_dot_product_attention.default", query=q, key=k, value=v, is_causal=True)
    same(result, np.array([[[1.0], [2.0]]], np.float32))


def test_the_first_of_equal_elements_wins() -> None:
    x = f32(2, 5, 5, 1, 1)
    same(run("aten.argmax.default", self=x), np.array(1))
    same(run("aten.argmin.default", self=x), np.array(3))
    values, index = run("aten.topk.default", self=x, k=3)
    same(values, f32(5, 5, 2))
    same(index, np.array([1, 2, 0]))


def test_sorting_is_stable_and_puts_nan_last() -> None:
    x = f32(1, nan, 0, 1, -inf)
    same(run("aten.sort.stable", self=x, stable=True)[1], np.array([4, 2, 0, 3, 1]))
    same(run("aten.sort.stable", self=x, stable=True, descending=True)[1], np.array([1, 0, 3, 2, 4]))


def test_max_pool_takes_the_first_maximum_and_the_last_nan() -> None:
    x = f32([[1, 1, nan, nan]])
    values, index = run("aten.max_pool2d_with_indices.default", self=x, kernel_size=(1, 2))
    same(values, f32([[1, nan]]))
    same(index, np.array([[[0, 3]]]))
    low = np.full((1, 1, 2), -inf, np.float32)
    values, index = run("aten.max_pool2d_with_indices.default", self=low, kernel_size=(1, 2), padding=(0, 1))
    same(index, np.array([[[0, 1]]]))  # never an index of the padding


def test_average_pool_counts_padding_but_no_overhang() -> None:
    x = np.ones((1, 1, 3), np.float32)
    args: dict[str, Any] = {"self": x, "kernel_size": (2,), "stride": (2,), "padding": (1,), "ceil_mode": True}
    same(run("aten.avg_pool1d.default", **args), f32([[0.5, 1.0]]))
    same(run("aten.avg_pool1d.default", **args, count_include_pad=False), f32([[1.0, 1.0]]))
    wide = np.ones((1, 1, 4), np.float32)
    same(run("aten.avg_pool1d.default", self=wide, kernel_size=(3,), stride=(2,), ceil_mode=True), f32([[1, 1]]))


def test_pools_visit_only_the_part_of_a_window_that_meets_the_input() -> None:
    huge = (10**6, 10**6)  # EfficientNet pools whole images by a window that is larger than any of them
    x = np.arange(12, dtype=np.float32).reshape(1, 3, 4)
    args: dict[str, Any] = {"self": x, "kernel_size": huge, "padding": (1, 2), "ceil_mode": True}
    same(run("aten.avg_pool2d.default", **args), f32([[66 / 40]]))  # 5 x 8 elements with the padding
    same(run("aten.avg_pool2d.default", **args, count_include_pad=False), f32([[5.5]]))
    same(run("aten.max_pool2d.default", **args), f32([[11]]))
    values, index = run("aten.max_pool2d_with_indices.default", **args)
    same(values, f32([[11]]))
    same(index, np.array([[[11]]]))
    counted = {"count_include_pad": False, "divisor_override": None}
    shares = run("aten.avg_pool2d_backward.default", **args, grad_output=f32([[12]]), stride=huge, **counted)
    same(shares, np.ones_like(x))


def test_duplicates_add_up_where_they_are_accumulated() -> None:
    zeros, index = np.zeros(3, np.float32), np.array([1, 1, 2])
    values = f32(1, 2, 4)
    same(run("aten.index_put.default", self=zeros, indices=(index,), values=values, accumulate=True), f32(0, 3, 4))
    same(run("aten.index_put.default", self=zeros, indices=(index,), values=values), f32(0, 2, 4))
    same(run("aten.scatter_add.default", self=zeros, dim=0, index=index, src=values), f32(0, 3, 4))
    same(run("aten.scatter.src", self=zeros, dim=0, index=index, src=values), f32(0, 2, 4))
    same(run("aten.index_add.default", self=zeros, dim=0, index=index, source=values, alpha=2), f32(0, 6, 8))
    same(zeros, f32(0, 0, 0))  # kernels never write to their arguments


def test_negative_indices_count_from_the_end_only_where_pytorch_says_so() -> None:
    x = f32(10, 20, 30)
    same(run("aten.index.Tensor", self=x, indices=(np.array([-1, 0]),)), f32(30, 10))
    same(run("aten.take.default", self=x, index=np.array([-3])), f32(10))
    for op, args in [
        ("aten.gather.default", {"self": x, "dim": 0, "index": np.array([-1])}),
        ("aten.index_select.default", {"self": x, "dim": 0, "index": np.array([-1])}),
        ("aten.embedding.default", {"weight": x[:, None], "indices": np.array([-1])}),
    ]:
        with pytest.raises(IndexOutOfRangeError, match=r"index -1 is out of range for axis 0 of 3 elements"):
            evaluate(op, args)


def test_indices_beyond_the_end_are_errors() -> None:
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(IndexOutOfRangeError, match=r"^index 3 is out of range for axis 1 of 3 .* allowed -3\.\.2$"):
        run("aten.index.Tensor", self=x, indices=(None, np.array([0, 3])))
    with pytest.raises(IndexOutOfRangeError, match=r"^index 2 is out of range for axis 0 of 2 .* allowed 0\.\.1$"):
        run("aten.embedding.default", weight=x, indices=np.array([2]))


def test_half_precision_computes_in_float32_and_rounds_once() -> None:
    x = np.full(4096, 1.0, np.float16)
    same(run("aten.sum.default", self=x), np.array(4096, np.float16))
    same(run("aten.mean.default", self=np.full(70000, 2, np.float16)), np.array(2, np.float16))
    b = np.array([1.0, 2.0**-8], ml_dtypes.bfloat16)
    same(run("aten.sum.default", self=b), np.array(1.0, ml_dtypes.bfloat16))
    same(run("aten.add.Tensor", self=b[:1], other=np.float32(2.0**-7).reshape(())), np.array([1 + 2.0**-7], b.dtype))


def test_casts_truncate_wrap_and_keep_nan_true() -> None:
    x = f32(-1.7, 2.9, 300)
    same(run("aten._to_copy.default", self=x[:2], dtype=ScalarType.LONG), np.array([-1, 2]))
    same(run("aten._to_copy.default", self=x, dtype=ScalarType.BYTE), np.array([255, 2, 44], np.uint8))
    same(run("aten._to_copy.default", self=f32(nan, 0), dtype=ScalarType.BOOL), np.array([True, False]))


def test_empty_and_0d_tensors() -> None:
    empty = np.zeros((0, 3), np.float32)
    same(run("aten.sum.dim_IntList", self=empty, dim=(0,)), f32(0, 0, 0))
    same(run("aten.mean.dim", self=empty, dim=(0,)), f32(nan, nan, nan))
    same(run("aten.matmul.default", self=empty.T, other=empty), np.zeros((3, 3), np.float32))
    same(run("aten.softmax.int", self=empty, dim=1), empty)
    zero_d = np.array(2.0, np.float32)
    same(run("aten.add.Tensor", self=zero_d, other=zero_d), np.array(4.0, np.float32))
    same(run("aten.cumsum.default", self=zero_d, dim=0), zero_d)
    same(run("aten.logical_not.default", self=zero_d), np.array(False))


def test_nonzero_decides_its_own_shape() -> None:
    same(run("aten.nonzero.default", self=f32([0, 2], [nan, 0])), np.array([[0, 1], [1, 0]]))


def test_packed_constants() -> None:
    scheme = AffineGroup("s", ScalarType.FLOAT, -8, 7, group_size=2)
    packed = np.array([[0x10, 0xFE]], np.uint8)
    integers = run("ptn.unpack_affine.default", packed=packed, scheme=scheme, sizes=(1, 4))
    same(integers, np.array([[-8, -7, 6, 7]], np.int8))
    values = run(
        "ptn.dequantize_packed.default",
        packed=packed,
        scheme=scheme,
        sizes=(1, 4),
        scale=f32([0.5, 2.0]),
        zero_point=np.array([[1, 0]], np.int8),
        dtype=ScalarType.FLOAT,
    )
    same(values, f32([-4.5, -4.0, 12.0, 14.0]))
    block = np.concatenate([np.float16([0.5]).view(np.uint8), np.arange(-16, 16, dtype=np.int8).view(np.uint8)])
    values = run("ptn.dequantize_packed.default", packed=block[None], scheme=PackedQuant("gguf:q8_0"), sizes=(1, 32))
    same(values, (np.arange(-16, 16, dtype=np.float32) * 0.5)[None])


def test_int4_forms_differ_in_nibble_order() -> None:
    weight = np.array([[0x9A]], np.uint8)
    scales = f32([1.0])
    low_first = run(
        "torchao.dequantize_int4_tensor.default",
        qdata=weight,
        scale=scales,
        zero_point=f32([8.0]),
        group_size=2,
        output_dtype=ScalarType.FLOAT,
    )
    same(low_first, f32([2, 1]))
    high_first = run(
        "quantized_decomposed.embedding_4bit.dtype",
        weight=weight,
        weight_scales=scales,
        weight_zero_points=None,
        weight_quant_min=-8,
        weight_quant_max=7,
        indices=np.array([0]),
        dtype=ScalarType.FLOAT,
    )
    same(high_first, f32([1, 2]))


def test_special_functions_have_full_precision() -> None:
    x = np.linspace(-6, 6, 241)
    want = np.array([math.erf(v) for v in x])
    np.testing.assert_allclose(run("aten.erf.default", self=x), want, rtol=1e-15, atol=0)
    np.testing.assert_allclose(run("aten.erf.default", self=x.astype(np.float32)), want, rtol=1e-7, atol=1e-7)
    tail = np.array([math.erfc(v) for v in x])
    np.testing.assert_allclose(run("aten.erfc.default", self=x), tail, rtol=2e-14, atol=0)
    y = np.linspace(0.1, 30, 100)
    np.testing.assert_allclose(run("aten.lgamma.default", self=y), [math.lgamma(v) for v in y], rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(run("aten.erfinv.default", self=want[60:-60]), x[60:-60], rtol=1e-12, atol=1e-15)


def test_numbers_may_be_0d_arrays() -> None:
    same(run("aten.mul.Scalar", self=np.array([1, 2], np.int32), other=np.array(3)), np.array([3, 6], np.int32))
    same(run("aten.full.default", size=(2,), fill_value=np.array(7)), np.array([7, 7]))


def test_results_must_be_what_the_rule_says() -> None:
    with pytest.raises(TypeError, match=r"gives float32\[2\] as result 0, its shape rule says float64\[2\]"):
        evaluate("aten.neg.default", {"self": f32(1, 2)}, (TensorSpec(ScalarType.DOUBLE, (2,)),))


def test_unknown_operators_are_key_errors() -> None:
    with pytest.raises(KeyError):
        evaluate("aten.no_such_op.default", {})
