"""Axes of length zero, one and unknown."""

import torch
import torch.nn.functional as F
from torch import nn


class Empty(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(4)
        self.conv = nn.Conv1d(4, 2, 1)

    def forward(self, x):
        return (
            (self.linear(x), F.layer_norm(x, (4,)), self.norm(x), self.conv(x[:, :, None]), x @ x.t()),
            (x.sum(0), x.sum(), x.prod(0), x.any(0), x.all(0), x.count_nonzero(), x.mean(1), x.cumsum(0)),
            (torch.cat([x, x]), torch.cat([x[:0], x]), torch.stack([x, x]), x.flip(0), x.t(), x.reshape(-1, 2)),
            (x.softmax(-1), x.softmax(0), F.relu(x), x > 0, x.clamp(0, 1), torch.where(x > 0, x, 0.0), x.sort(0)[0]),
            (x[:, 1:3], x[..., None].expand(-1, -1, 2), F.pad(x, (0, 0, 1, 1)), x.repeat(2, 1), x.argsort(1)),
            F.scaled_dot_product_attention(x[:, None, None], x[:, None, None], x[:, None, None]),
        )


# https://github.com/microsoft/onnxruntime/issues/4559, https://github.com/pytorch/executorch/pull/3702,
# https://github.com/tenstorrent/tt-metal/issues/27471
def test_batches_of_nothing(everywhere):
    torch.manual_seed(37)
    batch = torch.export.Dim("batch", min=0, max=64)
    everywhere(
        Empty().eval(), (torch.randn(3, 4),), (torch.zeros(0, 4),), (torch.ones(1, 4),), dynamic_shapes=({0: batch},)
    )


def test_sizes_of_zero_in_the_model(everywhere, call):
    def function(x):
        none = x[:, :0]
        return none @ none.t(), F.linear(none, torch.zeros(2, 0), torch.ones(2)), none.sum(1), torch.zeros(0, 3), none

    everywhere(call(function), (torch.ones(2, 3),))


def test_results_made_of_nothing(everywhere, call):
    """Operands without elements, results with: what is padded, added to, or summed over no terms."""

    def function(x, none, i, wide):
        return (
            (F.pad(none, (0, 0, 1, 1)), F.pad(none, (1, 1, 2, 0), value=3.0), torch.cat([none, x, none])),
            (x.index_add(0, i, none), x.index_copy(0, i, none), x.index_fill(0, i, 3.0), x.index_put((i,), none)),
            (x.slice_scatter(none, 0, 1, 1), x.scatter(0, i[:, None], none), x.scatter_add(0, i[:, None], none)),
            (wide @ wide.t(), torch.addmm(x, wide, wide.t()[:, :3]), torch.bmm(wide[None], wide.t()[None])),
            (F.linear(wide, torch.zeros(4, 0), torch.ones(4)), F.linear(wide, torch.zeros(4, 0)), wide.mv(none[:, 0])),
            (none.sum(0), none.prod(0), none.mean(0), none.any(0), none.all(0), none.var(0), none.logsumexp(0)),
            (none.sum(), none.norm(), none.norm(dim=0), none.count_nonzero(0), none[:, 0].dot(none[:, 1])),
            (
                F.embedding_bag(i, x, i.new_zeros(2)),
                x.masked_scatter(x > 99, none),
                torch.einsum("ij,ij->j", none, none),
            ),
        )

    x = torch.arange(9.0).reshape(3, 3)
    everywhere(call(function), (x, torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), torch.zeros(3, 0)))


# https://github.com/pytorch/pytorch/issues/157355, https://github.com/pytorch/executorch/issues/12732,
# https://github.com/pytorch/executorch/issues/8988
class Selection(nn.Module):
    def forward(self, x):
        keep = x > 0
        return (
            (x[keep] * 2, keep.nonzero()),
            torch.masked_select(x, keep) + 1,
            x.unique(),
            x.repeat_interleave(x.long()),
        )


def test_sizes_that_depend_on_data(everywhere):
    calls = (torch.tensor([1.0, 2.0, 3.0, 0.0]),), (torch.zeros(4),), (torch.tensor([1.0, 1.0, 4.0, 2.0]),)
    everywhere(Selection(), *calls)
