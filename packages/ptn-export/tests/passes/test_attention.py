"""Attention in several spellings becomes one operator; masks, scales, heads and half types stay right."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

SDPA = "aten.scaled_dot_product_attention.default"
B, H, KV, T, S, D = 2, 4, 2, 5, 7, 8
MINIMUM = torch.finfo(torch.float32).min


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def qkv(dtype=torch.float32, kv=H, rank=4):
    torch.manual_seed(2)
    shapes = [(B, H, T, D), (B, kv, S, D), (B, kv, S, D + 2)]
    return tuple(torch.randn(shape[4 - rank :]).to(dtype) for shape in shapes)


def keep():
    """A mask whose rows all keep something."""
    mask = torch.rand(B, 1, T, S, generator=torch.Generator().manual_seed(3)) > 0.5
    mask[..., 0] = True
    return mask


def softmax_in_float32(q, k, v, mask):
    scores = torch.matmul(q, k.transpose(2, 3)) * D**-0.5 + mask
    weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(weights, v)


def wide_scores(q, k, v, mask):
    scores = (q @ k.mT).float() / math.sqrt(D) + mask.float()
    return scores.softmax(-1).to(q.dtype) @ v


SPELLINGS = {
    "plain": lambda q, k, v, m: torch.softmax(q @ k.transpose(-2, -1), -1) @ v,
    "scaled": lambda q, k, v, m: torch.softmax(q @ k.mT / math.sqrt(D), -1) @ v,
    "other scale": lambda q, k, v, m: torch.softmax(0.3 * (q @ k.mT), 3) @ v,
    "scaled query": lambda q, k, v, m: torch.softmax((q * 0.3) @ k.mT, -1) @ v,
    "scaled by tensor": lambda q, k, v, m: torch.softmax((q @ k.mT) / torch.full([], D**0.5), -1) @ v,
    "added mask": lambda q, k, v, m: softmax_in_float32(q, k, v, torch.where(m, 0.0, MINIMUM)),
    "mask first": lambda q, k, v, m: torch.softmax(torch.where(m, 0.0, MINIMUM) + q @ k.mT, -1) @ v,
    "masked fill": lambda q, k, v, m: (q @ k.mT * 0.5).masked_fill(~m, -math.inf).softmax(-1) @ v,
    "masked fill with a number": lambda q, k, v, m: (q @ k.mT).masked_fill(m.logical_not(), -1e9).softmax(-1) @ v,
    "where": lambda q, k, v, m: torch.where(m, q @ k.mT, -math.inf).softmax(-1) @ v,
    "wide scores": lambda q, k, v, m: wide_scores(q, k, v, torch.where(m, 0.0, MINIMUM)),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(check_rewrite, operators, name):
    native = check_rewrite(Call(SPELLINGS[name]), (*qkv(), keep()), expect={"attention": 1}, rtol=1e-4, atol=1e-5)
    assert operators(native)[SDPA] == 1
    assert not set(operators(native)) & {"aten._softmax.default", "aten.matmul.default", "aten.bmm.default"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("write", [softmax_in_float32, wide_scores])
def test_half_types(check_rewrite, operators, dtype, write):
    mask = torch.where(keep(), 0.0, torch.finfo(dtype).min).to(dtype)
    tolerance = 4 * torch.finfo(dtype).eps
    native = check_rewrite(Call(write), (*qkv(dtype), mask), expect={"attention": 1}, rtol=tolerance, atol=tolerance)
    assert set(operators(native)) == {SDPA}


def test_a_row_without_any_kept_score_averages_where_the_fill_is_finite(check_rewrite):
    mask = keep()
    mask[0, :, 2] = False
    module = Call(lambda q, k, v, m: (q @ k.mT).masked_fill(~m, -1e5).softmax(-1) @ v)
    check_rewrite(module, (*qkv(), mask), expect={"attention": 1}, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rank", [2, 3])
def test_rank(check_rewrite, operators, rank):
    module = Call(lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v)
    native = check_rewrite(module, qkv(rank=rank), expect={"attention": 1, "attention_rank": 1}, rtol=1e-4, atol=1e-5)
    assert operators(native) == {SDPA: 1, "aten.squeeze_copy.dims": 1, "aten.unsqueeze_copy.default": 3 * (4 - rank)}


def test_rank_of_the_operator_with_a_mask(check_rewrite):
    module = Call(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m[:, 0].expand(B, T, S)[:1]))
    q, k, v = qkv(rank=3)
    check_rewrite(module, (q, k, v, keep()), expect={"attention_rank": 1}, rtol=1e-4, atol=1e-5)


def test_dynamic_sizes(check_rewrite):
    b, t, s = (torch.export.Dim(name, min=1, max=9) for name in "bts")
    sizes = [{0: b, 2: t}, {0: b, 2: s}, {0: b, 2: s}, {0: b, 2: t, 3: s}]
    q, k, v = qkv()
    check_rewrite(
        Call(SPELLINGS["masked fill"]),
        (q, k, v, keep()),
        (q[:1, :, :1], k[:1], v[:1], keep()[:1, :, :1]),
        dynamic_shapes=(tuple(sizes),),
        expect={"attention": 1},
        rtol=1e-4,
        atol=1e-5,
    )


def repeat_kv(x, times):
    batch, heads, length, width = x.shape
    return x[:, :, None].expand(batch, heads, times, length, width).reshape(batch, heads * times, length, width)


def meta_repeat(x, times):
    x = x.transpose(1, 2)
    batch, length, heads, width = x.shape
    x = x[:, :, :, None, :].expand(batch, length, heads, times, width).reshape(batch, length, heads * times, width)
    return x.transpose(1, 2)


REPEATS = {
    "llama": repeat_kv,
    "meta": meta_repeat,
    "repeat_interleave": lambda x, times: torch.repeat_interleave(x, times, 1),
}


@pytest.mark.parametrize("name", REPEATS)
@pytest.mark.parametrize("operator", [True, False], ids=["operator", "spelled"])
def test_repeated_heads(check_rewrite, operators, name, operator):
    def attend(q, k, v):
        k, v = REPEATS[name](k, H // KV), REPEATS[name](v, H // KV)
        return F.scaled_dot_product_attention(q, k, v) if operator else torch.softmax(q @ k.mT / D**0.5, -1) @ v

    native = check_rewrite(Call(attend), qkv(kv=KV), expect={"gqa": 1}, rtol=1e-4, atol=1e-5)
    assert "aten.expand_copy.default" not in operators(native)
    (node,) = [n for n in native.program.methods[0].graph.nodes if n.target == f"torch.ops.{SDPA}"]
    assert node.inputs[7].name == "enable_gqa"
    assert node.inputs[7].arg.value is True
    assert type(node.inputs[6].arg).__name__ == "NoneArg"  # the default scale


def only_key(q, k, v):
    return F.scaled_dot_product_attention(q, repeat_kv(k, 2), torch.cat([v, v], 1))


NOT_GQA = {
    "tiled": lambda q, k, v: F.scaled_dot_product_attention(q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1)),
    "only the key": only_key,
    "repeated positions": lambda q, k, v: F.scaled_dot_product_attention(
        q[:, :KV], k.repeat_interleave(2, 2), v.repeat_interleave(2, 2)
    ),
    "one query head": lambda q, k, v: F.scaled_dot_product_attention(q[:, :1], repeat_kv(k, 2), repeat_kv(v, 2)),
}


@pytest.mark.parametrize("name", NOT_GQA)
def test_other_repetitions_stay(check_rewrite, name):
    check_rewrite(Call(NOT_GQA[name]), qkv(kv=KV), expect={"gqa": 0}, rtol=1e-4, atol=1e-5)


def weights_too(q, k, v, m):
    weights = torch.softmax(q @ k.mT, -1)
    return weights @ v, weights


NOT_ATTENTION = {
    "weights are a result": weights_too,
    "other axis": lambda q, k, v, m: torch.softmax(q @ k.mT, -2) @ v,
    "masked before the scale": lambda q, k, v, m: torch.softmax((q @ k.mT + torch.where(m, 0.0, 1.0)) * 0.5, -1) @ v,
    "changed weights": lambda q, k, v, m: (torch.softmax(q @ k.mT, -1) * m) @ v,
    "filled with a visible score": lambda q, k, v, m: torch.softmax((q @ k.mT).masked_fill(m, 5.0), -1) @ v,
    "a mask that widens": lambda q, k, v, m: torch.softmax(q[:1] @ k[:1].mT + torch.where(m, 0.0, 1.0), -1) @ v[:1],
    "two masks": lambda q, k, v, m: torch.softmax((q @ k.mT + m.float()).masked_fill(~m, -math.inf), -1) @ v,
    "negative scale": lambda q, k, v, m: torch.softmax((q @ k.mT) * -0.5, -1) @ v,
    "sigmoid": lambda q, k, v, m: torch.sigmoid(q @ k.mT) @ v,
}


@pytest.mark.parametrize("name", NOT_ATTENTION)
def test_what_is_not_attention(check_rewrite, operators, name):
    module = Call(NOT_ATTENTION[name])
    native = check_rewrite(module, (*qkv(), keep()), expect={"attention": 0}, rtol=1e-4, atol=1e-5)
    assert SDPA not in operators(native)
