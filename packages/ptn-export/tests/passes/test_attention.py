"""Attention in several spellings becomes one operator; masks, scales, heads and half types stay right."""

import math

import pytest
import torch
from ptn_export import to_native
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


def einsum(scores, result, q, k, v, mask):
    weights = torch.softmax((torch.einsum(scores, q, k) * 0.4).masked_fill(~mask, -math.inf), -1)
    return torch.einsum(result, weights, v)


def flat(q, k, v, mask):
    """Heads in the batch, as `bmm` wants them, but for the mask."""
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    scores = torch.bmm(q * 0.5, k.mT).view(B, H, T, S) + mask
    return torch.bmm(scores.view(B * H, T, S).softmax(-1), v).view(B, H, T, -1)


def bloom(q, k, v, mask):
    alibi = torch.arange(B * H * S).view(B * H, 1, S) * 0.01
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    scores = torch.baddbmm(alibi, q, k.mT, beta=0.5, alpha=0.3).view(B, H, T, S) + mask
    return torch.bmm(scores.softmax(-1).view(B * H, T, S), v)


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


MORE_SPELLINGS = {
    "scaled key": lambda q, k, v, m: torch.softmax(q @ (k * 0.3).mT, -1) @ v,
    "scaled transposed key": lambda q, k, v, m: torch.softmax(q @ (k.mT / 3), -1) @ v,
    "negative factor of the key": lambda q, k, v, m: torch.softmax(q @ (k * -1.0).mT, -1) @ v,
    "scaled thrice": lambda q, k, v, m: torch.softmax(((q * 0.7) @ (k / 1.5).mT) * 0.5, -1) @ v,
    "masked before the scale": lambda q, k, v, m: torch.softmax((q @ k.mT + torch.where(m, 0.0, 1.0)) * 0.5, -1) @ v,
    "filled before the scale": lambda q, k, v, m: (q @ k.mT).masked_fill(~m, -1e9).div(2.5).softmax(-1) @ v,
    "two masks": lambda q, k, v, m: torch.softmax((q @ k.mT + m.float()).masked_fill(~m, -math.inf), -1) @ v,
    "two masks, one finite": lambda q, k, v, m: (q @ k.mT + m.float()).masked_fill(~m, -1e9).softmax(-1) @ v,
    "two added masks": lambda q, k, v, m: ((q @ k.mT + m.float()) * 0.5 + torch.where(m, 0.0, -1e9)).softmax(-1) @ v,
    "added behind a fill": lambda q, k, v, m: (
        ((q @ k.mT).masked_fill(~m, -math.inf) + m[..., :1].float()).softmax(-1) @ v
    ),
    "no dropout": lambda q, k, v, m: F.dropout(torch.softmax(q @ k.mT, -1), 0.1, training=False) @ v,
    "einsum": lambda q, k, v, m: einsum("bhqd,bhkd->bhqk", "bhqk,bhkd->bhqd", q, k, v, m),
    "einsum, heads last": lambda q, k, v, m: einsum(
        "bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", *(x.transpose(1, 2) for x in (q, k, v)), m
    ),
    "flat heads": lambda q, k, v, m: flat(q, k, v, torch.where(m, 0.0, -math.inf)),
    "baddbmm": lambda q, k, v, m: bloom(q, k, v, torch.where(m, 0.0, MINIMUM)),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(check_rewrite, operators, name):
    native = check_rewrite(Call(SPELLINGS[name]), (*qkv(), keep()), expect={"attention": 1}, rtol=1e-4, atol=1e-5)
    assert operators(native)[SDPA] == 1
    assert not set(operators(native)) & {"aten._softmax.default", "aten.matmul.default", "aten.bmm.default"}


def each(spellings):
    """All of them in one module, each with a query of its own, so that they share no scores."""
    return lambda q, k, v, m: [write(q + i / 10, k, v, m) for i, write in enumerate(spellings.values())]


def test_more_spellings(check_rewrite, operators):
    module = Call(each(MORE_SPELLINGS))
    count = len(MORE_SPELLINGS)
    native = check_rewrite(module, (*qkv(), keep()), expect={"attention": count}, rtol=1e-4, atol=1e-5)
    assert operators(native)[SDPA] == count
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
    "changed weights": lambda q, k, v, m: (torch.softmax(q @ k.mT, -1) * m) @ v,
    "filled with a visible score": lambda q, k, v, m: torch.softmax((q @ k.mT).masked_fill(m, 5.0), -1) @ v,
    "a mask that widens": lambda q, k, v, m: torch.softmax(q[:1] @ k[:1].mT + torch.where(m, 0.0, 1.0), -1) @ v[:1],
    "two fills": lambda q, k, v, m: (q @ k.mT).masked_fill(~m, -1e9).masked_fill(m, -1e9).softmax(-1) @ v,
    "added behind a finite fill": lambda q, k, v, m: ((q @ k.mT).masked_fill(~m, -1e9) + m.float()).softmax(-1) @ v,
    "scale that makes a fill visible": lambda q, k, v, m: ((q @ k.mT).masked_fill(~m, -1e4) * 1e-4).softmax(-1) @ v,
    "other order of heads": lambda q, k, v, m: (
        torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT).view(H, B, T, S).transpose(0, 1).softmax(-1) @ v
    ),
    "einsum over queries": lambda q, k, v, m: torch.einsum(
        "bhqk,bhqd->bhkd", torch.softmax(torch.einsum("bhqd,bhkd->bhqk", q, k), -1), q
    ),
    "negative scale": lambda q, k, v, m: torch.softmax((q @ k.mT) * -0.5, -1) @ v,
    "sigmoid": lambda q, k, v, m: torch.sigmoid(q @ k.mT) @ v,
}


def test_what_is_not_attention(check_rewrite, operators):
    module = Call(each(NOT_ATTENTION))
    native = check_rewrite(module, (*qkv(), keep()), expect={"attention": 0}, rtol=1e-4, atol=1e-5)
    assert SDPA not in operators(native)


def causal(node):
    return next(item.arg.value for item in node.inputs if item.name == "is_causal")


def attentions(native):
    return [n for n in native.program.methods[0].graph.nodes if n.target == f"torch.ops.{SDPA}"]


class Masked(nn.Module):
    """Attention of positions among themselves, once for each way to mask; a triangle is stored."""

    def __init__(self, ways, longest=16):
        super().__init__()
        self.register_buffer("triangle", torch.tril(torch.ones(longest, longest)).view(1, 1, longest, longest))
        self.ways = ways

    def forward(self, x):
        results = []
        for i, way in enumerate(self.ways):
            query = x + i / 10  # so that they share no scores
            scores = way(query @ x.mT, x.shape[-2], self.triangle)
            results.append(torch.softmax(scores, -1) @ x)
        return results


def positions(t):
    return torch.arange(t)


CAUSAL = {
    "cut from a stored one": lambda s, t, m: s.masked_fill(m[:, :, :t, :t] == 0, -math.inf),
    "tril": lambda s, t, m: s.masked_fill(~torch.ones(t, t, dtype=torch.bool).tril(), -1e9),
    "triu": lambda s, t, m: s + torch.full((t, t), -math.inf).triu(1),
    "triu of ones": lambda s, t, m: s + torch.ones(t, t).triu(1) * -1e9,
    "positions": lambda s, t, m: torch.where(positions(t)[:, None] >= positions(t), s, -math.inf),
}
NOT_CAUSAL = {
    "next position too": lambda s, t, m: s.masked_fill(~torch.ones(t, t, dtype=torch.bool).tril(1), -1e9),
    "own position not": lambda s, t, m: s + torch.full((t, t), -1e9).triu(0),
    "the other way": lambda s, t, m: s.masked_fill(~torch.ones(t, t, dtype=torch.bool).triu(), -1e9),
    "a window": lambda s, t, m: s.masked_fill((positions(t)[:, None] - positions(t)).abs() > 2, -math.inf),
    "a visible penalty": lambda s, t, m: s + torch.full((t, t), -3.0).triu(1),
    "beyond some length": lambda s, t, m: s.masked_fill(
        (positions(t)[:, None] < positions(t)) & (positions(t) < 13), -math.inf
    ),
}


@pytest.mark.parametrize("dynamic", [False, True])
def test_causal_masks(check_rewrite, dynamic):
    x = torch.randn(2, 3, 14, 8)
    more = [(torch.randn(2, 3, t, 8),) for t in (1, 6, 15)] if dynamic else []
    native = check_rewrite(
        Masked([*CAUSAL.values(), *NOT_CAUSAL.values()]),
        (x,),
        *more,
        dynamic_shapes=({2: torch.export.Dim("t", min=1, max=15)},) if dynamic else None,
        expect={"attention": len(CAUSAL) + len(NOT_CAUSAL)},
        rtol=1e-4,
        atol=1e-5,
    )
    found = dict(zip([*CAUSAL, *NOT_CAUSAL], map(causal, attentions(native)), strict=True))
    assert found == dict.fromkeys(CAUSAL, True) | dict.fromkeys(NOT_CAUSAL, False)


FAR = {
    "tril": (lambda s, t, m: s.masked_fill(~torch.ones(t, t, dtype=torch.bool).tril(), -1e9), True),
    "a window": (
        lambda s, t, m: s.masked_fill(
            (positions(t)[:, None] < positions(t)) | (positions(t)[:, None] - positions(t) > 300), -math.inf
        ),
        False,
    ),
    "a wide window": (
        lambda s, t, m: s.masked_fill(
            (positions(t)[:, None] < positions(t)) | (positions(t)[:, None] - positions(t) > 5000), -math.inf
        ),
        False,
    ),
}


@pytest.mark.parametrize("name", FAR)
def test_causal_masks_of_any_length(name):
    way, expected = FAR[name]
    t = torch.export.Dim("t", min=1, max=100_000)
    exported = torch.export.export(Masked([way]), (torch.randn(2, 3, 14, 8),), dynamic_shapes=({2: t},))
    (node,) = attentions(to_native(exported))
    assert causal(node) is expected


def test_masks_from_inputs_are_not_causal(check_rewrite):
    x = torch.randn(2, 3, 5, 8)
    module = Call(lambda x, n: (x @ x.mT).masked_fill(n[:, None] < n, -math.inf).softmax(-1) @ x)
    native = check_rewrite(module, (x, torch.arange(5)), expect={"attention": 1}, rtol=1e-4, atol=1e-5)
    assert not causal(*attentions(native))


@pytest.mark.parametrize("write", [MORE_SPELLINGS["einsum, heads last"], SPELLINGS["masked fill"]])
def test_heads_and_lengths_that_vary(check_rewrite, operators, write):
    b, t, s = (torch.export.Dim(name, min=1, max=9) for name in "bts")
    q, k, v = qkv()
    native = check_rewrite(
        Call(write),
        (q, k, v, keep()),
        (q[:1, :, :1], k[:1], v[:1], keep()[:1, :, :1]),
        dynamic_shapes=(({0: b, 2: t}, {0: b, 2: s}, {0: b, 2: s}, {0: b, 2: t, 3: s}),),
        expect={"attention": 1},
        rtol=1e-4,
        atol=1e-5,
    )
    assert not set(operators(native)) & {"aten._softmax.default", "aten.bmm.default", "aten.view_copy.default"}


def test_the_softmax_of_the_operators_own_definition(check_rewrite, operators):
    mask = keep()
    mask[0, :, 2] = False  # this row gives zeros

    def write(q, k, v, m):
        scores = (q * 0.5) @ (k * 0.5).mT + torch.where(m, 0.0, -math.inf)
        return torch.ops.aten._safe_softmax.default(scores, -1) @ v

    native = check_rewrite(Call(write), (*qkv(), mask), expect={"attention": 1}, rtol=1e-4, atol=1e-5)
    assert "aten._safe_softmax.default" not in operators(native)
