"""Attention and what it is made of: where the causal triangle lies, rows without a key, layouts of rotation."""

import pytest
import torch
import torch.nn.functional as F

INF = float("inf")


def heads(length, seed, number=2):
    return torch.randn(1, number, length, 8, generator=torch.Generator().manual_seed(seed))


# https://github.com/pytorch/executorch/issues/22426, https://github.com/ml-explore/mlx/issues/2835
@pytest.mark.parametrize(("queries", "keys"), [(3, 7), (7, 3), (5, 5), (1, 4)])
def test_the_causal_triangle_starts_top_left(everywhere, call, queries, keys):
    def attention(q, k, v):
        causal = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        scaled = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)
        grouped = F.scaled_dot_product_attention(torch.cat([q, -q], 1), k, v, is_causal=True, enable_gqa=True)
        return causal, scaled, grouped

    args = heads(queries, 1), heads(keys, 2), heads(keys, 3)

    def expect(results):
        torch.testing.assert_close(results[0][:, :, 0], args[2][:, :, 0])  # query 0 sees key 0 alone

    everywhere(call(attention), args, expect=expect, rtol=1e-4, atol=1e-5)


# https://github.com/pytorch/pytorch/pull/131060
def test_attention_of_a_row_without_keys(everywhere, call):
    """The operator gives zeros, attention written out gives NaN: neither may become the other."""

    def attention(q, k, v, keep):
        added = torch.zeros(keep.shape).masked_fill(~keep, -INF)
        scores = q @ k.transpose(-1, -2) / 8**0.5
        return (
            F.scaled_dot_product_attention(q, k, v, attn_mask=keep),
            F.scaled_dot_product_attention(q, k, v, attn_mask=added),
            torch.softmax(scores + added, -1) @ v,
            scores.masked_fill(~keep, -INF).softmax(-1) @ v,
        )

    keep = torch.tensor([[True, False, True, False], [False] * 4, [True] * 4])

    def expect(results):
        for result in results[:2]:
            assert (result[:, :, 1] == 0).all()
        for result in results[2:]:
            assert result[:, :, 1].isnan().all()
        assert all(result[:, :, [0, 2]].isfinite().all() for result in results)

    everywhere(call(attention), (heads(3, 4), heads(4, 5), heads(4, 6), keep), expect=expect, rtol=1e-4, atol=1e-5)


# https://github.com/pytorch/pytorch/pull/131060
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_softmax_of_infinities(everywhere, call, dtype):
    def function(x):
        return (
            torch.softmax(x, -1),
            torch.log_softmax(x, -1),
            torch.softmax(x, 0),
            x.logsumexp(-1),
            x.softmax(-1).amax(),
        )

    x = torch.tensor([[0.0, 1.0, 2.0], [-INF] * 3, [-INF, 0.0, -INF], [INF, 0.0, 1.0], [float("nan"), 0.0, 1.0]])

    def expect(results):
        for row in (1, 3, 4):
            assert results[0][row].isnan().all()
        assert results[1][1].isnan().all()
        assert results[0][2].tolist() == [0, 1, 0]
        assert results[3][1] == -INF

    everywhere(call(function), (x.to(dtype),), expect=expect)


# https://github.com/pytorch/executorch/pull/21607
def test_masks_made_of_booleans(everywhere, call):
    def masks(x, pad):
        n = x.shape[-1]
        causal = torch.tril(torch.ones(n, n, dtype=torch.bool))
        keep = causal & ~pad[:, None, :] | torch.eye(n, dtype=torch.bool)
        y = x[:, None, :].expand(-1, n, -1).masked_fill(~keep, -INF)
        return (
            y.softmax(-1),
            pad.cumsum(-1),
            (keep.any(-1), keep.all(1), keep.sum(-1), keep.any(), keep.all()),
            (pad ^ (x > 0), torch.logical_xor(pad, x > 0).sum(), torch.logical_not(x)),
            torch.where(pad, x, -x).triu(1) if n == 2 else torch.where(pad, x, -INF),
            (pad == keep[:, 0], pad != keep[:, 0], pad < keep[:, 0], pad.long().argmax(-1), ~pad * x),
        )

    length = torch.export.Dim("length", min=3, max=64)
    pad = torch.tensor([[False, False, True, True, True], [True, False, False, False, True]])
    generator = torch.Generator().manual_seed(7)
    more = torch.randn(2, 9, generator=generator), torch.rand(2, 9, generator=generator) > 0.5
    everywhere(
        call(masks),
        (torch.randn(2, 5, generator=generator), pad),
        more,
        dynamic_shapes=(({1: length}, {1: length}),),
    )


def rotate_halves(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * torch.cat([cos, cos], -1) + torch.cat([-b, a], -1) * torch.cat([sin, sin], -1)


def rotate_pairs(x, cos, sin):
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


# https://github.com/ggml-org/llama.cpp/issues/3018, https://github.com/ggml-org/llama.cpp/pull/22611,
# https://github.com/huggingface/nanotron/pull/427
def test_rotary_embeddings_keep_their_layout(everywhere, call):
    """Halves and pairs, of all channels and of the first; at positions of any start and step, from a table too."""

    def rotations(x, positions):
        angles = positions[:, None].float() * 10000.0 ** (-torch.arange(0, 4) / 4)
        cos, sin = angles.cos(), angles.sin()
        table = torch.outer(torch.arange(128.0), 10000.0 ** (-torch.arange(0, 4) / 4))
        from_table = table.cos()[positions], table.sin()[positions]
        whole, rest = x[..., :8], x[..., 8:]
        return (
            rotate_halves(whole, cos, sin),
            rotate_pairs(whole, cos, sin),
            torch.cat([rotate_halves(whole, cos, sin), rest], -1),
            torch.cat([rest, rotate_pairs(whole, cos, sin)], -1),
            rotate_halves(whole, *from_table),
            rotate_pairs(whole, *from_table),
            rotate_halves(whole, cos, -sin),  # backwards
        )

    def expect(results):
        assert (results[0] - results[1]).abs().max() > 0.1
        torch.testing.assert_close(results[0], results[4])
        torch.testing.assert_close(results[1], results[5])

    length = torch.export.Dim("length", min=1, max=128)
    x = lambda n: torch.randn(1, 2, n, 12, generator=torch.Generator().manual_seed(n))  # noqa: E731
    everywhere(
        call(rotations),
        (x(5), torch.arange(3, 8)),
        (x(1), torch.tensor([100])),
        (x(9), torch.arange(9).flip(0)),
        (x(3), torch.tensor([7, 7, 0])),
        dynamic_shapes=(({2: length}, {0: length}),),
        expect=expect,
        rtol=1e-4,
        atol=1e-5,
    )
