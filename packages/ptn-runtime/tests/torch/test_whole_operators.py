"""Operators that eager mode takes apart before they reach the dispatcher: called by name, and compared."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from ptn_runtime.reference import evaluate

aten: Any = torch.ops.aten
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("a", "b"),
    [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 1, 2, 3), (4, 3, 2)), ((2, 0), (0, 3))],
)
def test_matmul(eager: Any, dtype: torch.dtype, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    eager.check(aten.matmul.default, rand(*a, dtype=dtype), rand(*b, dtype=dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("lead", [(), (4,), (2, 3), (0,), (1, 1, 2)])
@pytest.mark.parametrize("bias", [False, True])
def test_linear(eager: Any, dtype: torch.dtype, lead: tuple[int, ...], bias: bool) -> None:
    b = rand(5, dtype=dtype) if bias else None
    eager.check(aten.linear.default, rand(*lead, 7, dtype=dtype), rand(5, 7, dtype=dtype), b)


def test_addmm_with_beta_zero_ignores_nan(eager: Any) -> None:
    eager.check(aten.addmm.default, torch.full((2, 2), math.nan), rand(2, 3), rand(3, 2), beta=0, alpha=2)


@pytest.mark.parametrize("dtype", FLOATS)
def test_norms(eager: Any, dtype: torch.dtype) -> None:
    x, w, b = rand(2, 6, 4, dtype=dtype), rand(4, dtype=dtype), rand(4, dtype=dtype)
    channel_w, channel_b = rand(6, dtype=dtype), rand(6, dtype=dtype)
    mean, var = rand(6, dtype=dtype), torch.rand(6).to(dtype)
    eager.check(aten.layer_norm.default, x, [4], w, b, 1e-5)
    eager.check(aten.native_layer_norm.default, x, [6, 4], None, None, 1e-5)
    eager.check(aten.rms_norm.default, x, [4], w, 1e-6)
    eager.check(aten.rms_norm.default, x, [4], None, None)
    eager.check(aten.batch_norm.default, x, channel_w, channel_b, mean, var, False, 0.1, 1e-5, False)
    eager.check(aten._native_batch_norm_legit_no_training.default, x, channel_w, channel_b, mean, var, 0.1, 1e-5)
    eager.check(aten.group_norm.default, x, 3, channel_w, channel_b)
    eager.check(aten.native_group_norm.default, x, channel_w, None, 2, 6, 4, 2, 1e-5)


def test_norms_with_batch_statistics(eager: Any) -> None:
    x, w, b = rand(3, 4, 5), rand(4), rand(4)
    eager.check(aten._native_batch_norm_legit.no_stats, x, w, b, True, 0.1, 1e-5)
    eager.check(aten._native_batch_norm_legit_functional.default, x, w, b, rand(4), torch.rand(4), True, 0.1, 1e-5)
    eager.check(aten.instance_norm.default, x, w, b, None, None, True, 0.1, 1e-5, False)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("dim", [0, -1])
def test_softmaxes(eager: Any, dtype: torch.dtype, dim: int) -> None:
    x = rand(3, 5, dtype=dtype)
    x[1] = -math.inf
    for overload in (aten.softmax.int, aten.log_softmax.int, aten._safe_softmax.default):
        eager.check(overload, x, dim)
    eager.check(aten.softmax.int, x, dim, torch.float64)
    eager.check(aten._softmax.default, x, dim, False)


ATTENTION: list[dict[str, Any]] = [
    {},
    {"is_causal": True},
    {"scale": 0.3},
    {"attn_mask": "bool"},
    {"attn_mask": "float"},
    {"attn_mask": "row"},
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("options", ATTENTION)
@pytest.mark.parametrize("lengths", [(5, 5), (1, 7), (6, 3)])
def test_attention(eager: Any, dtype: torch.dtype, options: dict[str, Any], lengths: tuple[int, int]) -> None:
    queries, keys = lengths
    q, k, v = rand(2, 4, queries, 8, dtype=dtype), rand(2, 4, keys, 8, dtype=dtype), rand(2, 4, keys, 8, dtype=dtype)
    masks = {
        "bool": torch.rand(queries, keys) > 0.3,
        "float": rand(2, 1, queries, keys, dtype=dtype),
        "row": torch.zeros(queries, keys, dtype=torch.bool),  # no query sees anything
    }
    given = dict(options)
    if "attn_mask" in given:
        given["attn_mask"] = masks[given["attn_mask"]]
    eager.check(aten.scaled_dot_product_attention.default, q, k, v, **given)


@pytest.mark.parametrize("dtype", FLOATS)
def test_grouped_query_attention(eager: Any, dtype: torch.dtype) -> None:
    q, k, v = rand(1, 6, 4, 8, dtype=dtype), rand(1, 2, 5, 8, dtype=dtype), rand(1, 2, 5, 8, dtype=dtype)
    eager.check(aten.scaled_dot_product_attention.default, q, k, v, enable_gqa=True)
    mask = torch.ones(4, 5, dtype=torch.bool).tril(1)
    eager.check(aten.scaled_dot_product_attention.default, q, k, v, mask, enable_gqa=True)


CONVOLUTIONS = [
    # rank, in, out, kernel, stride, padding, dilation, groups
    (1, 3, 4, 3, 1, 1, 1, 1),
    (1, 4, 4, 2, 2, 0, 2, 2),
    (2, 3, 6, 3, 2, 1, 1, 1),
    (2, 4, 8, 3, 1, 2, 2, 4),
    (2, 5, 2, 1, 1, 0, 1, 1),
    (3, 2, 4, 2, 2, 1, 1, 2),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions(eager: Any, dtype: torch.dtype, case: tuple[int, ...]) -> None:
    rank, channels, outputs, kernel, stride, padding, dilation, groups = case
    x = rand(2, channels, *(7, 6, 5)[:rank], dtype=dtype)
    w = rand(outputs, channels // groups, *(kernel,) * rank, dtype=dtype)
    conv = (aten.conv1d, aten.conv2d, aten.conv3d)[rank - 1].default
    eager.check(conv, x, w, rand(outputs, dtype=dtype), [stride], [padding], [dilation], groups)
    eager.check(conv, x[0], w, None, [stride], [padding], [dilation], groups)


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_transposed_convolutions(eager: Any, case: tuple[int, ...]) -> None:
    rank, channels, outputs, kernel, stride, padding, dilation, groups = case
    x = rand(2, outputs, *(5, 4, 3)[:rank])
    w = rand(outputs, channels // groups, *(kernel,) * rank)
    conv = (aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input)[rank - 1]
    extra = 1 if stride > 1 or dilation > 1 else 0
    eager.check(conv, x, w, rand(channels), [stride], [padding], [extra], groups, [dilation])


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("divisor", [None, 3, -2])
def test_average_pools(eager: Any, ceil_mode: bool, include: bool, divisor: int | None) -> None:
    x = rand(2, 3, 7, 8)
    eager.check(aten.avg_pool1d.default, x[0], [3], [2], [1], ceil_mode, include)
    eager.check(aten.avg_pool2d.default, x, [3, 2], [2, 3], [1, 1], ceil_mode, include, divisor)
    eager.check(aten.avg_pool3d.default, x, [2, 3, 2], [2], [1], ceil_mode, include, divisor)


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("dilation", [1, 2])
def test_max_pools(eager: Any, ceil_mode: bool, dilation: int) -> None:
    x = rand(2, 3, 9, 8)
    x[0, 0, 2, 3] = math.nan
    x[0, 0, 3, 3] = math.nan
    x[0, 1] = -math.inf
    x[1, 0] = 1.0  # ties
    eager.check(aten.max_pool2d_with_indices.default, x, [3, 2], [2, 2], [1, 1], [dilation], ceil_mode)
    eager.check(aten.max_pool2d.default, x, [3, 2], [2, 2], [1, 1], [dilation], ceil_mode)
    eager.check(aten.max_pool3d_with_indices.default, x, [2, 2, 3], [2], [1], [dilation], ceil_mode)
    eager.check(aten.max_pool1d.default, x[0], [3], [2], [1], [dilation], ceil_mode)


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (7, 8), (9, 2)])
def test_adaptive_pools(eager: Any, size: tuple[int, int]) -> None:
    x = rand(2, 3, 7, 8)
    eager.check(aten.adaptive_avg_pool1d.default, x[0], [size[0]])
    eager.check(aten._adaptive_avg_pool2d.default, x, list(size))
    eager.check(aten.adaptive_max_pool2d.default, x, list(size))
    eager.check(aten._adaptive_avg_pool3d.default, x, [2, *size])


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("target", [{"output_size": [5, 9]}, {"output_size": [1, 1]}, {"scale_factors": [1.7, 0.6]}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_upsampling(eager: Any, align_corners: bool, target: dict[str, Any], dtype: torch.dtype) -> None:
    x = rand(2, 3, 6, 7, dtype=dtype)
    size, scales = target.get("output_size"), target.get("scale_factors")
    for name in ("upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"):
        eager.check(getattr(aten, name).vec, x, size, align_corners, scales)
    for name in ("upsample_nearest2d", "_upsample_nearest_exact2d"):
        eager.check(getattr(aten, name).vec, x, size, scales)
    one = (size and size[:1], scales and scales[:1])
    eager.check(aten.upsample_linear1d.vec, x[0], one[0], align_corners, one[1])
    eager.check(aten.upsample_nearest1d.vec, x[0], *one)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_grid_sampling(eager: Any, align_corners: bool, padding: int, mode: int) -> None:
    grid = torch.rand(2, 5, 4, 2) * 4 - 2
    eager.check(aten.grid_sampler_2d.default, rand(2, 3, 6, 7), grid, mode, padding, align_corners)
    if mode < 2:
        volume = torch.rand(2, 3, 4, 2, 3) * 3 - 1.5
        eager.check(aten.grid_sampler_3d.default, rand(2, 2, 4, 5, 3), volume, mode, padding, align_corners)
    eager.check(aten.affine_grid_generator.default, rand(2, 2, 3), [2, 3, 4, 5], align_corners)


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
def test_padding(eager: Any, mode: str) -> None:
    eager.check(aten.pad.default, rand(2, 3, 5, 6), [2, 1, 0, 3], mode)
    eager.check(aten.pad.default, rand(2, 3, 5), [-1, 2], mode)


NUMBERS: list[Any] = [True, 2, -3, 0.5, 2**40]
OPERANDS = [
    torch.tensor([True, False]),
    torch.tensor([200, 3], dtype=torch.uint8),
    torch.tensor([-7, 100], dtype=torch.int8),
    torch.tensor([-7, 2**33]),
    torch.tensor([-1.5, 3.25], dtype=torch.float16),
    torch.tensor([-1.3, 3.1], dtype=torch.bfloat16),
    torch.tensor([-1.3, math.inf]),
    torch.tensor(2.7),
    torch.tensor(-3),
    torch.tensor(5, dtype=torch.int16),
    torch.tensor(2.7, dtype=torch.float64),
]


@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "div", "eq", "lt", "maximum", "pow", "remainder", "where", "atan2", "floor_divide"]
)
def test_promotion_of_tensors(eager: Any, name: str) -> None:
    for a in OPERANDS:
        for b in OPERANDS:
            if name == "where":
                call: tuple[Any, ...] = (aten.where.self, torch.tensor([True, False]), a, b)
            elif name == "pow":
                call = (aten.pow.Tensor_Tensor, a, b)
            else:
                packet = getattr(aten, name)
                call = (packet.Tensor if "Tensor" in packet.overloads() else packet.default, a, b)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    call[0](*call[1:])
            except RuntimeError:
                continue  # PyTorch refuses it: bool subtraction, division by zero
            eager.check(*call)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "eq", "gt", "remainder", "fmod", "rsub", "pow"])
def test_promotion_of_numbers(eager: Any, name: str) -> None:
    for a in OPERANDS:
        for b in NUMBERS:
            packet = getattr(aten, name)
            overload = packet.Tensor_Scalar if name == "pow" else packet.Scalar
            try:
                overload(a, b)
            except RuntimeError:
                continue
            eager.check(overload, a, b)


@pytest.mark.parametrize("mode", ["trunc", "floor"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.uint8, *FLOATS])
def test_rounded_division(eager: Any, mode: str, dtype: torch.dtype) -> None:
    a = torch.tensor([7, -7, 7, -7, 6, 0, -8]).to(dtype)
    b = torch.tensor([2, 2, -2, -2, 3, 5, 3]).to(dtype)
    eager.check(aten.div.Tensor_mode, a, b, rounding_mode=mode)
    eager.check(aten.remainder.Tensor, a, b)
    eager.check(aten.fmod.Tensor, a, b)
    eager.check(aten.div.Scalar_mode, a, 3, rounding_mode=mode)


SPECIAL = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 7.0])


@pytest.mark.parametrize("dtype", FLOATS)
def test_special_values(eager: Any, dtype: torch.dtype) -> None:
    x = SPECIAL.to(dtype)
    for name in [
        "relu",
        "round",
        "floor",
        "ceil",
        "trunc",
        "sign",
        "abs",
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "sigmoid",
        "tanh",
        "erf",
        "gelu",
        "silu",
        "isnan",
        "isinf",
        "reciprocal",
        "logical_not",
        "hardswish",
        "hardsigmoid",
        "mish",
        "softplus",
        "elu",
        "neg",
        "sin",
        "cos",
        "log1p",
        "expm1",
        "frac",
        "square",
    ]:
        eager.check(getattr(aten, name).default, x)
    eager.check(aten.clamp.default, x, -1, 2)
    eager.check(aten.clamp.default, x, 2, -1)
    eager.check(aten.clamp.Tensor, x, x.flip(0), None)
    eager.check(aten.hardtanh.default, x, -1, 1)
    eager.check(aten.maximum.default, x, x.flip(0))
    eager.check(aten.minimum.default, x, x.flip(0))
    for name in ("max", "min"):
        eager.check(getattr(aten, name).dim, x, 0)
        eager.check(getattr(aten, name).default, x)
        eager.check(getattr(aten, f"arg{name}").default, x)
    for exponent in (0.5, -0.5, 2, 3, -1, -2, 0, 1.7):
        eager.check(aten.pow.Tensor_Scalar, x, exponent)
    eager.check(aten.sort.stable, x, stable=True, descending=True)
    eager.check(aten.nan_to_num.default, x)


@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
@pytest.mark.parametrize(
    "target", [torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int64, torch.bool]
)
def test_casts(eager: Any, source: torch.dtype, target: torch.dtype) -> None:
    values = torch.tensor([-3.7, -1.0, 0.0, 0.3, 1.0, 2.5, 100.0, 1 + 2**-9], dtype=torch.float64)
    eager.check(aten._to_copy.default, values.to(source), dtype=target)


def test_index_semantics(eager: Any) -> None:
    x = rand(4, 5, 6)
    i, j = torch.tensor([0, -1, 2]), torch.tensor([[1], [-2]])
    eager.check(aten.index.Tensor, x, [i])
    eager.check(aten.index.Tensor, x, [None, i, j])
    eager.check(aten.index.Tensor, x, [i, None, j])
    eager.check(aten.index.Tensor, x, [torch.rand(4, 5) > 0.5])
    eager.check(aten.index_put.default, x, [i, None, torch.tensor(3)], rand(3, 5))
    eager.check(aten.index_put.default, x, [torch.tensor([1, 1, 1])], rand(3, 5, 6), True)
    eager.check(aten.index_put.default, x, [torch.rand(4, 5, 6) > 0.5], torch.tensor(1.0))
    eager.check(aten.scatter.value, x, 1, torch.tensor([[[0, 0, 4]]]), 2.0)
    eager.check(aten.scatter_add.default, x, 0, torch.zeros(3, 5, 6, dtype=torch.int64), rand(3, 5, 6))
    for reduce in ("sum", "prod", "mean", "amax", "amin"):
        for include in (True, False):
            index = torch.randint(0, 4, (3, 5, 6))
            eager.check(aten.scatter_reduce.two, x, 0, index, rand(3, 5, 6), reduce, include_self=include)


def test_reductions_of_every_form(eager: Any) -> None:
    x = rand(3, 4, 5)
    for dim in ([0], [-1, 0], [], None):
        for keepdim in (False, True):
            eager.check(aten.sum.dim_IntList, x, dim, keepdim)
            eager.check(aten.mean.dim, x, dim, keepdim)
            eager.check(aten.var.correction, x, dim, correction=0, keepdim=keepdim)
            eager.check(aten.any.dims, x > 1, dim, keepdim)
            eager.check(aten.amax.default, x, dim or [], keepdim)
    eager.check(aten.sum.default, torch.tensor([True, True]))
    eager.check(aten.sum.dim_IntList, torch.tensor([250, 10], dtype=torch.uint8), [0])
    eager.check(aten.mean.default, torch.full((70000,), 3.0, dtype=torch.float16))
    eager.check(aten.cumsum.default, torch.tensor([True, True, False]), 0)
    eager.check(aten.sum.dim_IntList, torch.zeros(0, 3), [0])
    eager.check(aten.sum.default, torch.tensor(3, dtype=torch.int8))


def test_layouts(eager: Any) -> None:
    x = rand(2, 3, 4)
    for size in ([6, -1], [24], [2, 12], [1, 2, 3, 4]):
        eager.check(aten.reshape.default, x, size)
    eager.check(aten.slice.Tensor, x, 1, -2, 9223372036854775807, 1)
    eager.check(aten.slice.Tensor, x, -1, None, None, 3)
    eager.check(aten.slice.Tensor, x, 0, 5, 9)
    eager.check(aten.movedim.intlist, x, [0, 1], [2, 0])
    eager.check(aten.view.dtype, x, torch.int32)
    eager.check(aten.view.dtype, x, torch.uint8)
    eager.check(aten.tensor_split.sections, x, 3, 2)
    eager.check(aten.chunk.default, x, 3, 2)
    eager.check(aten.split.Tensor, x, 3, 2)
    eager.check(aten.cat.default, [torch.zeros(0), x, x.to(torch.float64)], 1)
    eager.check(aten.repeat_interleave.self_int, x, 2, 1)
    eager.check(aten.tile.default, x, [2, 1])
    eager.check(aten.expand.default, x[:, :1], [5, 2, 3, -1])


def test_creation(eager: Any) -> None:
    eager.check(aten.arange.start_step, 0, 10, 3)
    eager.check(aten.arange.start_step, 1.5, -2, -0.5)
    eager.check(aten.arange.start, 2, 7, dtype=torch.float16)
    eager.check(aten.full.default, [2, 2], 3)
    eager.check(aten.full.default, [2], True)
    eager.check(aten.full.default, [], -math.inf)
    eager.check(aten.full_like.default, torch.zeros(2, dtype=torch.int64), 2.9)
    eager.check(aten.scalar_tensor.default, 3)
    eager.check(aten.linspace.default, -1, 2, 7)
    eager.check(aten.eye.m, 2, 3)
    eager.check(aten.tril_indices.default, 3, 4, 1)
    eager.check(aten.triu_indices.default, 3, 4, -1)


@pytest.mark.parametrize("dtype", FLOATS)
def test_lower_medians_and_ties(eager: Any, dtype: torch.dtype) -> None:
    x = torch.tensor([[3.0, 1.0, 3.0, 1.0], [2.0, math.nan, 0.0, 1.0]]).to(dtype)
    eager.check(aten.median.dim, x, 1)
    for overload in (aten.argmax.default, aten.argmin.default):
        eager.check(overload, x, 1)
    eager.check(aten.topk.default, x, 2)
    eager.check(aten.topk.default, x, 4, 1, False)


def test_random_numbers_have_the_right_shape() -> None:
    (values,) = evaluate("aten.rand.default", {"size": (1000,)})
    assert values.dtype == np.float32
    assert 0 <= values.min() < 0.1 < 0.9 < values.max() < 1
    (order,) = evaluate("aten.randperm.default", {"n": 20})
    assert sorted(order) == list(range(20))
