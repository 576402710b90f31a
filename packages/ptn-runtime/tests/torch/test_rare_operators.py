"""Operators that neither PyTorch's samples nor the other tests reach."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

aten: Any = torch.ops.aten


def rand(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.randn(*shape, generator=generator)


def ints(*shape: int, high: int = 9) -> torch.Tensor:
    return torch.arange(math.prod(shape)).reshape(shape) * 7 % high


X, Y, V = rand(3, 4), rand(4), rand(2, 3, 4)
IMAGE, VOLUME = rand(2, 3, 5, 6), rand(1, 2, 3, 4, 5)
MASK = X > 0
SPECIAL = torch.tensor([math.nan, math.inf, -math.inf, -2.5, -0.3, 0.0, 0.7, 4.0])

CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (aten.__lshift__.Scalar, (ints(3, 4), 2), {}),
    (aten.__lshift__.Tensor, (ints(4), ints(4)), {}),
    (aten.__rshift__.Scalar, (ints(3, 4) - 4, 1), {}),
    (aten.__rshift__.Tensor, (ints(4) - 4, ints(4)), {}),
    (aten.bitwise_left_shift.Tensor_Scalar, (ints(3), 3), {}),
    (aten.bitwise_right_shift.Tensor_Scalar, (ints(3) - 4, 70), {}),
    (aten.bitwise_and.Scalar, (ints(3, 4), 5), {}),
    (aten.bitwise_or.Scalar, (ints(3, 4), 5), {}),
    (aten.bitwise_xor.Scalar, (MASK, True), {}),
    (aten._fused_rms_norm.default, (X, [4], Y, 1e-6), {}),
    (aten._reshape_alias.default, (X, [2, 6], [6, 1]), {}),
    (aten._unsafe_index.Tensor, (X, [None, torch.tensor([1, 0])]), {}),
    (aten._unsafe_index_put.default, (X, [torch.tensor([1])], Y), {}),
    (aten.upsample_nearest2d.default, (IMAGE, [7, 3]), {}),
    (aten.upsample_nearest2d.default, (IMAGE, [10, 9], 2.0, 1.5), {}),
    (aten.upsample_nearest3d.default, (VOLUME, [5, 2, 9]), {}),
    (aten.upsample_nearest3d.vec, (VOLUME, None, [2.0, 0.5, 1.3]), {}),
    (aten.upsample_trilinear3d.vec, (VOLUME, [5, 2, 9], False, None), {}),
    (aten.upsample_trilinear3d.default, (VOLUME, [5, 2, 9], True), {}),
    (aten._upsample_bicubic2d_aa.default, (IMAGE, [3, 9], False), {}),
    (aten._upsample_nearest_exact1d.vec, (V, [7], None), {}),
    (aten._upsample_nearest_exact2d.default, (IMAGE, [7, 3]), {}),
    (aten._upsample_nearest_exact3d.default, (VOLUME, [5, 2, 9]), {}),
    (aten._upsample_nearest_exact3d.vec, (VOLUME, None, [2.0, 0.5, 1.3]), {}),
    (aten.adaptive_avg_pool2d.default, (IMAGE, [2, 4]), {}),
    (aten.adaptive_avg_pool3d.default, (VOLUME, [2, 3, 2]), {}),
    (aten.adaptive_max_pool1d.default, (V, [3]), {}),
    (aten.adaptive_max_pool3d.default, (VOLUME, [2, 3, 2]), {}),
    (aten.max_pool1d_with_indices.default, (V, [2], [1], [1]), {}),
    (aten.max_pool3d.default, (VOLUME, [2], [2], [1], [1], True), {}),
    (aten.all.dims, (MASK, [0, 1], True), {}),
    (aten.any.dims, (MASK, None), {}),
    (aten.argsort.default, (X, 0, True), {}),
    (aten.argsort.stable, (ints(3, 4, high=3),), {"stable": True, "dim": 1, "descending": True}),
    (aten.as_strided.default, (X, [2, 3], [1, 4], 1), {}),
    (aten.broadcast_to.default, (Y, [3, 4]), {}),
    (aten.bucketize.Scalar, (0.5, torch.tensor([0.0, 0.5, 1.0])), {"right": True}),
    (aten.bucketize.Tensor, (SPECIAL, torch.tensor([-1.0, 0.0, 2.0])), {"out_int32": True}),
    (aten.searchsorted.Scalar, (torch.tensor([1, 2, 2, 3]), 2), {"side": "right"}),
    (aten.searchsorted.Tensor, (X.sort(1).values, X), {"right": True}),
    (aten.cdist.default, (V, rand(2, 5, 4), 1.5), {}),
    (aten._cdist_forward.default, (V, rand(2, 5, 4), 2.0, None), {}),
    (aten.pdist.default, (X, math.inf), {}),
    (aten.clamp_max.default, (SPECIAL, 1), {}),
    (aten.clamp_min.default, (SPECIAL, 0.5), {}),
    (aten.im2col.default, (IMAGE, [2, 3], [1, 1], [1, 0], [2, 1]), {}),
    (aten.col2im.default, (rand(2, 12, 12), [4, 5], [2, 2], [1, 1], [0, 0], [1, 1]), {}),
    (aten.contiguous.default, (X.t(),), {}),
    (aten.copy.default, (torch.zeros(3, 4, dtype=torch.int64), Y * 9), {}),
    (aten.copysign.Scalar, (ints(3), -1), {}),
    (aten.count_nonzero.dim_IntList, (ints(3, 4, high=2), [0, 1]), {}),
    (aten.expand_as.default, (Y, X), {}),
    (aten.view_as.default, (X, rand(2, 6)), {}),
    (aten.fill.Tensor, (X, torch.tensor(3)), {}),
    (aten.flatten.using_ints, (V, 1, 2), {}),
    (aten.unflatten.int, (X, 1, [2, -1]), {}),
    (aten.floor_divide.Scalar, (ints(4) - 4, -3), {}),
    (aten.ge.Scalar, (ints(4), 2.5), {}),
    (aten.grid_sampler.default, (IMAGE, rand(2, 4, 3, 2), 0, 1, False), {}),
    (aten.isclose.default, (SPECIAL, SPECIAL + 1e-6), {"equal_nan": True}),
    (aten.isfinite.default, (SPECIAL,), {}),
    (aten.lerp.Tensor, (X, X + 1, torch.rand(3, 4)), {}),
    (aten.log_sigmoid.default, (SPECIAL,), {}),
    (aten.relu6.default, (SPECIAL,), {}),
    (aten.selu.default, (SPECIAL,), {}),
    (aten.celu.default, (SPECIAL, 1.5), {}),
    (aten.special_expm1.default, (SPECIAL,), {}),
    (aten.special_logit.default, (torch.rand(4), 0.2), {}),
    (aten.positive.default, (X,), {}),
    (aten.meshgrid.default, ([X[0], torch.tensor(2.0), Y],), {}),
    (aten.movedim.int, (V, 0, -1), {}),
    (aten.native_dropout.default, (X, 0.5, False), {}),
    (aten.norm.Scalar, (X, 3), {}),
    (aten.linalg_vector_norm.default, (X, -math.inf, [1]), {}),
    (aten.pow.Scalar, (2, ints(4)), {}),
    (aten.pow.Scalar, (2.5, ints(4)), {}),
    (aten.prelu.default, (IMAGE, rand(3)), {}),
    (aten.prelu.default, (Y, torch.tensor([0.2])), {}),
    (aten.reflection_pad2d.default, (IMAGE, [2, 1, 3, 0]), {}),
    (aten.reflection_pad3d.default, (VOLUME, [1, 2, 1, 0, 2, 1]), {}),
    (aten.replication_pad3d.default, (VOLUME, [1, 2, 1, 0, 2, 1]), {}),
    (aten.remainder.Scalar_Tensor, (7, torch.tensor([2, -3, 5])), {}),
    (aten.repeat_interleave.Tensor, (torch.tensor([2, 0, 3]),), {}),
    (aten.repeat_interleave.Tensor, (torch.tensor([2, 0, 3]),), {"output_size": 5}),
    (aten.scatter.value_reduce, (X, 1, torch.tensor([[0, 2, 0]]), 2.0), {"reduce": "multiply"}),
    (aten.scatter.reduce, (X, 1, torch.tensor([[0, 2, 0]]), rand(1, 3)), {"reduce": "add"}),
    (aten.index_reduce.default, (X, 1, torch.tensor([0, 0, 3]), rand(3, 3), "amax"), {"include_self": False}),
    (aten.std.default, (X,), {}),
    (aten.std.dim, (X, [1], False, True), {}),
    (aten.var.default, (X, False), {}),
    (aten.var.dim, (X, [0]), {}),
    (aten.to.dtype, (X, torch.float16), {}),
    (aten.to.dtype_layout, (X,), {"dtype": torch.int32}),
    (aten.to.device, (X, torch.device("cpu"), torch.bool), {}),
    (aten.type_as.default, (X, ints(1)), {}),
    (aten.true_divide.Tensor, (ints(4), torch.tensor(3)), {}),
    (aten.where.Scalar, (MASK, 1, 2.5), {}),
    (aten.where.ScalarOther, (MASK, X, -math.inf), {}),
    (aten.where.ScalarSelf, (MASK, 3, ints(3, 4)), {}),
    (aten.unsafe_split.Tensor, (X, 2), {}),
    (aten.unsafe_split_with_sizes.default, (X, [1, 2]), {}),
    (aten._native_batch_norm_legit.default, (V, None, None, rand(3), torch.rand(3), False, 0.1, 1e-5), {}),
    (aten._embedding_bag.default, (X, torch.tensor([0, 2, 1, 1]), torch.tensor([0, 3])), {}),
    (aten._embedding_bag.default, (X, torch.tensor([0, 2, 1, 1]), torch.tensor([0, 3]), False, 1), {}),
    (aten._embedding_bag.default, (X, torch.tensor([0, 2, 1, 1]), torch.tensor([0, 3]), False, 2), {}),
]  # fmt: skip


@pytest.mark.parametrize(("overload", "args", "kwargs"), CALLS, ids=lambda value: str(value)[:40])
def test_against_eager(eager: Any, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    results = overload(*args, **kwargs)
    if "_embedding_bag" in str(overload):  # the other results only serve the backward pass
        name = eager.canonical(overload)
        got = eager.evaluate(overload, args, kwargs)
        eager.compare(name, got[:1], [results[0]])
        return
    eager.check(overload, *args, **kwargs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_flash_attention(eager: Any, dtype: torch.dtype) -> None:
    q, k, v = (rand(1, 2, n, 8).to(dtype) for n in (3, 5, 5))
    eager.check(aten._scaled_dot_product_flash_attention_for_cpu.default, q, k, v, 0.0, True)


def rope(
    x: torch.Tensor, positions: torch.Tensor, inverse: torch.Tensor, interleaved: bool, scale: float
) -> torch.Tensor:
    """Rotary embedding as model code writes it, over the first 2 * len(inverse) channels."""
    phase = positions.float()[..., None] * inverse.float()
    phase = phase.repeat_interleave(2, -1) if interleaved else torch.cat([phase, phase], -1)
    cos, sin = (phase.cos() * scale).to(x.dtype).unsqueeze(1), (phase.sin() * scale).to(x.dtype).unsqueeze(1)
    part, rest = x[..., : phase.shape[-1]], x[..., phase.shape[-1] :]
    if interleaved:
        turned = torch.stack([-part[..., 1::2], part[..., ::2]], -1).flatten(-2)
    else:
        first, second = part.chunk(2, -1)
        turned = torch.cat([-second, first], -1)
    return torch.cat([part * cos + turned * sin, rest], -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("width", [8, 6])
@pytest.mark.parametrize("batch", [1, 2])
def test_rope(eager: Any, dtype: torch.dtype, interleaved: bool, width: int, batch: int) -> None:
    x, positions = rand(2, 3, 5, 8).to(dtype), ints(batch, 5, high=50)
    inverse = 1.0 / 10000 ** (torch.arange(0, width, 2) / width)
    want = rope(x, positions, inverse, interleaved, 1.25)
    arguments = {
        "input": x,
        "position_ids": positions,
        "inv_freq": inverse,
        "interleaved": interleaved,
        "attention_scale": 1.25,
    }
    eager.compare("native.rope.default", eager.run("native.rope.default", **arguments), [want])
