"""By index: duplicates, wide rows, ties, equal elements, many forms of einsum and cross products."""

import pytest
import torch


# https://github.com/pytorch/pytorch/issues/111159, https://github.com/pytorch/pytorch/issues/125835
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.float16], ids=str)
def test_duplicates_are_all_counted(everywhere, call, dtype):
    def function(x, i, y):
        e = i[:, None].expand_as(y)
        reduced = [
            x.scatter_reduce(0, e, y, reduce=reduce, include_self=own)
            for reduce in ("sum", "prod", "mean", "amax", "amin")
            for own in (True, False)
        ]
        return (
            (x.index_add(0, i, y, alpha=2), x.scatter_add(0, e, y), x.scatter(0, e, 5)),
            reduced,
            (x.index_put((i,), y, accumulate=True), x.index_put((i, i[:, None] % 2), y[:, :1], accumulate=True)),
            (x.index_copy(0, i[:2] - i[:2] + torch.arange(2), y[:2]), x.index_fill(0, i, 3), y.index_select(0, i)),
            (y[i], y[-i], y[i, i % 2], y.gather(0, e), torch.take(y, i)),
        )

    def expect(results):
        assert results[0][0][1].tolist() == [16, 22]
        assert results[0][1][1].tolist() == [8, 11]
        assert results[1][6][1].tolist() == [6, 7]

    y = torch.arange(8).reshape(4, 2).to(dtype)
    everywhere(call(function), (torch.zeros(3, 2, dtype=dtype), torch.tensor([1, 1, 0, 1]), y), expect=expect)


# https://github.com/ggml-org/ggml/issues/1367, https://github.com/ggml-org/llama.cpp/pull/16323
def test_wide_rows(everywhere, call):
    def function(x, d):
        largest, smallest = torch.topk(x, 513, dim=-1), torch.topk(x, 3, dim=0, largest=False)
        return (
            (*largest, *smallest, *torch.sort(d, dim=-1, descending=True, stable=True), *torch.sort(d, stable=True)),
            (x.argmax(-1), x.argmin(-1), *x.max(-1), *x.sort(-1), x.argsort(0), *x.kthvalue(77), *x.median(-1)),
            (x.cumsum(-1), x.sum(-1), x.softmax(-1), x.logsumexp(-1), x.mean(-1), x.std(-1), x.flip(-1)),
        )

    generator = torch.Generator().manual_seed(16)
    x = (
        torch.stack([torch.randperm(8000, generator=generator).float() for _ in range(4)])
        + torch.arange(4.0)[:, None] / 10
    )
    d = torch.tensor([[1.0, 3.0, 1.0, 3.0, 2.0, 1.0]])

    def expect(results):
        assert results[0][5].tolist() == [[1, 3, 4, 0, 2, 5]]
        assert results[0][7].tolist() == [[0, 2, 5, 4, 1, 3]]
        torch.testing.assert_close(x.gather(-1, results[0][1]), results[0][0], rtol=0, atol=0)

    everywhere(call(function), (x, d), expect=expect, rtol=1e-5, atol=1e-5)


# Forms of one's own; https://github.com/pytorch/pytorch/issues/17199 is about einsum, but about a hang.
def test_forms_of_einsum(everywhere, call):
    def function(a, b, s):
        return (
            torch.einsum("bij,bkj->bik", a, b),
            torch.einsum("...ij,...jk->...ik", a, b.mT),
            (torch.einsum("ii->i", s), torch.einsum("ii", s), torch.einsum("bii->b", s[None]), torch.einsum("ij->", s)),
            torch.einsum("i,j->ij", s[0], s[1]),
            torch.einsum("bij,jk,bkl->bil", a, s, b.mT),
            (torch.einsum("ji", s), torch.einsum("ij->j", s), torch.einsum("i,i->", s[0], s[1])),
            torch.einsum("...j->...", a),
        )

    torch.manual_seed(45)
    batch = torch.export.Dim("batch", min=1, max=8)
    args = lambda n: (torch.randn(n, 3, 4), torch.randn(n, 5, 4), torch.randn(4, 4))  # noqa: E731
    everywhere(
        call(function),
        args(2),
        args(1),
        args(5),
        dynamic_shapes=(({0: batch}, {0: batch}, None),),
        rtol=1e-4,
        atol=1e-5,
    )


# https://github.com/pytorch/executorch/issues/12230
def test_cross_products_over_any_axis(everywhere, call):
    def function(x, y, z):
        return (
            (torch.linalg.cross(x, y), torch.linalg.cross(x.t(), y.t(), dim=0), torch.linalg.cross(y, x)),
            (torch.linalg.cross(x[:, None], x[None]), torch.linalg.cross(z, z.flip(1), dim=1), torch.cross(z, -z, 1)),
        )

    torch.manual_seed(39)
    everywhere(call(function), (torch.randn(4, 3), torch.randn(1, 3).expand(4, 3), torch.randn(2, 3, 3)))
