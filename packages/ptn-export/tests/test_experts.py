"""Mixtures of experts: products of groups of rows, and the histograms that count the groups."""

import pytest
import torch
from torch import nn

ENGINES = ("reference", "ggml")


class Experts(nn.Module):
    """Each row meets the matrix of its expert, as `transformers` computes it."""

    def __init__(self, product, experts=4, inputs=16, outputs=8, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(0)
        self.product, self.experts = product, experts
        self.weight = nn.Parameter(torch.randn(experts, outputs, inputs, dtype=dtype), requires_grad=False)

    def forward(self, x, expert):
        expert, order = torch.sort(expert)
        counts = torch.histc(expert.float(), bins=self.experts, min=0, max=self.experts - 1)
        ends = torch.cumsum(counts, 0, dtype=torch.int32)
        y = self.product(x[order], self.weight.transpose(1, 2), ends)
        return torch.zeros_like(y).index_copy(0, order, y)


def rows(count, dtype=torch.float32):
    return torch.randn(count, 16, dtype=dtype), torch.randint(0, 4, (count,))


def library_product(x, weight, ends):
    import transformers.integrations.moe  # noqa: F401  (registers the operator)

    return torch.ops.transformers.grouped_mm_fallback(x, weight, offs=ends)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_meet_the_matrix_of_their_expert(check, dtype):
    product = library_product if dtype is torch.float32 else lambda x, w, ends: torch._grouped_mm(x, w, offs=ends)
    shape = {0: torch.export.Dim("rows", min=1, max=64)}
    tolerance = {} if dtype is torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    native = check(
        Experts(product, dtype=dtype),
        rows(9, dtype),
        rows(1, dtype),
        rows(40, dtype),
        dynamic_shapes=(shape, shape),
        engines=ENGINES,
        **tolerance,
    )
    operators = native.report.methods[0].operators
    assert operators["aten._grouped_mm.default"] == 1
    assert not [name for name in operators if name.startswith("transformers.")]


class Histogram(nn.Module):
    def forward(self, x):
        whole = torch.round(x)
        return (
            torch.histc(x, bins=7, min=-1, max=2),
            torch.histc(x, bins=5),
            torch.histc(whole, bins=4, min=0, max=3),
            torch.histc(torch.full_like(x, 2.0), bins=3),
        )


def test_histograms(check):
    torch.manual_seed(1)
    shape = {0: torch.export.Dim("count", min=1, max=512)}
    edge = torch.tensor([float("nan"), -1.0, 2.0, 3.0, 0.0])
    native = check(
        Histogram(), (torch.randn(300),), (torch.randn(1),), dynamic_shapes=(shape,), engines=ENGINES, exact=True
    )
    assert "aten.histc.default" not in native.report.methods[0].operators

    class Fixed(nn.Module):
        def forward(self, x):
            return torch.histc(x, bins=4, min=-1, max=2)

    check(Fixed(), (edge,), engines=ENGINES, exact=True)
