"""Backward operators, Fourier transforms and others that have no call of their own, against eager mode."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from ptn_format.dtypes import ScalarType
from ptn_runtime.lowering.static import TensorSpec
from ptn_runtime.reference.control import scan
from ptn_runtime.reference.registry import Outputs
from torch._higher_order_ops.scan import scan_op

aten = torch.ops.aten
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3, 7, 9), (3, 7, 9), (1, 2, 4, 6)])
@pytest.mark.parametrize("size", [(2, 3), (1, 1), (7, 10)])
def test_adaptive_average(eager: Any, dtype: torch.dtype, shape: tuple[int, ...], size: tuple[int, int]) -> None:
    gradient = rand(*shape[:-2], *size, dtype=dtype)
    eager.check(aten._adaptive_avg_pool2d_backward.default, gradient, rand(*shape, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("ceil_mode", "include", "divisor"), list(itertools.product((True, False), (True, False), (None, 5)))
)
def test_average(eager: Any, dtype: torch.dtype, ceil_mode: bool, include: bool, divisor: int | None) -> None:
    for kernel, stride, padding in (([3, 2], [2, 2], [1, 1]), ([3], [], [0]), ([2, 4], [3, 1], [0, 2])):
        options = (kernel, stride, padding, ceil_mode, include, divisor)
        for shape in ((2, 3, 8, 9), (3, 8, 9)):
            x = rand(*shape, dtype=dtype)
            gradient = rand(*aten.avg_pool2d(x, *options).shape, dtype=dtype)
            eager.check(aten.avg_pool2d_backward.default, gradient, x, *options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ceil_mode", [True, False])
def test_maximum(eager: Any, dtype: torch.dtype, ceil_mode: bool) -> None:
    for kernel, stride, padding, dilation in (([3, 2], [2, 2], [1, 1], [1, 1]), ([3], [], [0], [2])):
        for shape in ((2, 3, 8, 9), (3, 8, 9)):
            x = rand(*shape, dtype=dtype)
            values, index = aten.max_pool2d_with_indices(x, kernel, stride, padding, dilation, ceil_mode)
            gradient = rand(*values.shape, dtype=dtype)
            eager.check(
                aten.max_pool2d_with_indices_backward.default,
                *(gradient, x, kernel, stride, padding, dilation, ceil_mode, index),
            )


CONVOLUTIONS = [
    # input, weight, stride, padding, dilation, transposed, output_padding, groups
    ((2, 4, 9), (6, 4, 3), [2], [1], [1], False, [0], 1),
    ((2, 4, 8, 9), (6, 2, 3, 2), [2, 1], [1, 0], [1, 2], False, [0, 0], 2),
    ((2, 4, 8, 9), (8, 1, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 4),
    ((1, 2, 4, 5, 6), (3, 2, 2, 2, 3), [1, 2, 1], [0, 1, 1], [1, 1, 1], False, [0, 0, 0], 1),
    ((2, 4, 5), (4, 3, 3), [2], [1], [1], True, [1], 1),
    ((2, 4, 5, 6), (4, 3, 3, 2), [2, 3], [1, 0], [1, 2], True, [1, 0], 2),
    ((1, 2, 3, 4, 3), (2, 3, 2, 2, 3), [1, 2, 1], [0, 1, 1], [1, 1, 1], True, [0, 0, 0], 1),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_convolution(eager: Any, dtype: torch.dtype, case: Any) -> None:
    shape, kernel, *options = case
    x, weight = rand(*shape, dtype=dtype), rand(*kernel, dtype=dtype)
    result = aten.convolution(x, weight, None, *options)
    gradient = rand(*result.shape, dtype=dtype)
    for mask in itertools.product((True, False), repeat=3):
        if any(mask):
            arguments = (gradient, x, weight, [result.shape[1]], *options, list(mask))
            masked(eager, aten.convolution_backward.default, arguments, mask)


def masked(eager: Any, overload: Any, arguments: tuple[Any, ...], mask: tuple[bool, ...]) -> None:
    """Compares the results that `mask` asks for; eager mode gives None for others, kernels give no elements."""
    name = eager.canonical(overload)
    want = overload(*arguments)
    got = eager.evaluate(overload, arguments, {})
    assert [array.shape for array, asked in zip(got, mask, strict=True) if not asked] == [(0,)] * mask.count(False)
    chosen = [(array, tensor) for array, tensor, asked in zip(got, want, mask, strict=True) if asked]
    if want[mask.index(True)].dtype in (torch.float16, torch.bfloat16):  # eager mode rounds partial sums
        wide = [
            item.float() if isinstance(item, torch.Tensor) and item.is_floating_point() else item for item in arguments
        ]
        exact = overload(*wide)
        chosen = [
            (array, tensor.to(before.dtype))
            for array, before, tensor, asked in zip(got, want, exact, mask, strict=True)
            if asked
        ]
    eager.compare(name, tuple(array for array, _ in chosen), [tensor for _, tensor in chosen])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normalized", [[5], [4, 5]])
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm(eager: Any, dtype: torch.dtype, normalized: list[int], affine: bool) -> None:
    x = rand(3, 4, 5, dtype=dtype)
    weight, bias = (rand(*normalized, dtype=dtype) if affine else None for _ in range(2))
    _, mean, rstd = aten.native_layer_norm(x, normalized, weight, bias, 1e-5)
    gradient = rand(3, 4, 5, dtype=dtype)
    for mask in ((True, True, True), (False, True, False), (True, False, True)) if affine else ((True, False, False),):
        arguments = (gradient, x, normalized, mean, rstd, weight, bias, list(mask))
        masked(eager, aten.native_layer_norm_backward.default, arguments, mask)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm(eager: Any, dtype: torch.dtype, affine: bool, groups: int) -> None:
    x = rand(2, 6, 4, 5, dtype=dtype)
    weight = rand(6, dtype=dtype) if affine else None
    _, mean, rstd = aten.native_group_norm(x, weight, None, 2, 6, 20, groups, 1e-5)
    gradient = rand(2, 6, 4, 5, dtype=dtype)
    # Without a weight eager mode computes no gradient of one, and none of the bias either.
    for mask in ((True, True, True), (False, False, True), (True, False, False)) if affine else ((True, False, False),):
        arguments = (gradient, x, mean, rstd, weight, 2, 6, 20, groups, list(mask))
        masked(eager, aten.native_group_norm_backward.default, arguments, mask)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index", [torch.int64, torch.int32])
@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("padding", [-1, 2])
def test_embedding(eager: Any, dtype: torch.dtype, index: torch.dtype, scale: bool, padding: int) -> None:
    indices = torch.tensor([[0, 2, 4, 2], [1, 1, 5, 2]], dtype=index)
    eager.check(aten.embedding_dense_backward.default, rand(2, 4, 3, dtype=dtype), indices, 6, padding, scale)


def as_pairs(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor).contiguous() if tensor.is_complex() else tensor


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("normalization", [0, 1, 2])
@pytest.mark.parametrize("dim", [[2], [1], [0, 2], [2, 1, 0]])
def test_fourier_transforms(eager: Any, dtype: torch.dtype, normalization: int, dim: list[int]) -> None:
    x = rand(3, 4, 5, dtype=dtype)
    for onesided in (True, False):
        want = aten._fft_r2c(x, dim, normalization, onesided)
        arguments = {"self": x, "dim": tuple(dim), "normalization": normalization}
        eager.compare_run("aten._fft_r2c.default", [as_pairs(want)], **arguments, onesided=onesided)
    z = torch.complex(x, rand(3, 4, 5, dtype=dtype))
    arguments["self"] = as_pairs(z)
    for forward in (True, False):
        want = aten._fft_c2c(z, dim, normalization, forward)
        eager.compare_run("aten._fft_c2c.default", [as_pairs(want)], **arguments, forward=forward)
    half = z.shape[dim[-1]]
    for size in (2 * half - 2, 2 * half - 1):
        want = aten._fft_c2r(z, dim, normalization, size)
        eager.compare_run("aten._fft_c2r.default", [want], **arguments, last_dim_size=size)


def test_batch_norm_in_training(eager: Any) -> None:
    x, weight, bias, mean = rand(4, 3, 5), rand(3), rand(3), rand(3)
    variance = torch.rand(3)
    rest = (True, 0.1, 1e-5)
    functional = aten._native_batch_norm_legit_functional.default
    eager.check(functional, x, weight, bias, mean, variance, *rest)
    eager.check(aten._native_batch_norm_legit.default, x, weight, bias, mean, variance, *rest)
    eager.check(aten._native_batch_norm_legit.no_stats, x, weight, bias, *rest)


@pytest.mark.parametrize("size", [[4], [2, 3], [3, 1, 2], []])
def test_resize(eager: Any, size: list[int]) -> None:
    eager.check(aten.resize.default, rand(2, 3), size)


def test_resize_to_more_elements(eager: Any) -> None:
    (got,) = eager.run("aten.resize.default", self=rand(2, 3), size=(4, 2))
    assert got.shape == (4, 2)


def test_scan_is_pytorchs() -> None:
    init, xs, scale = rand(3), rand(5, 3), rand(3)

    def step(total: Any, x: Any, w: Any) -> Any:
        return total * w + x, -x

    want = scan_op(lambda *items: list(step(*items)), [init], [xs], (scale,))
    arrays = [tensor.numpy() for tensor in want]
    out = Outputs(TensorSpec(ScalarType.from_numpy(array.dtype), array.shape) for array in arrays)
    got = scan(out, lambda items: step(*items), (init.numpy(),), (xs.numpy(),), (scale.numpy(),))
    for array, expected in zip(got, arrays, strict=True):
        np.testing.assert_allclose(array, expected, rtol=1e-6)
