import torch
from torch import nn


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        return torch.softmax(self.b(torch.relu(self.a(x))), -1)


def test_dynamic_mlp(check):
    batch = torch.export.Dim("batch", min=1, max=8)
    native = check(
        Mlp().eval(), (torch.randn(2, 4),), (torch.randn(1, 4),), (torch.randn(8, 4),), dynamic_shapes=({0: batch},)
    )
    assert native.report.methods[0].operators == {
        "aten.linear.default": 2,
        "aten._softmax.default": 1,
        "aten.relu.default": 1,
    }
    assert native.report.methods[0].inputs[0].dims == ("1..8", "4")
    assert set(native.constants) == {"a.weight", "a.bias", "b.weight", "b.bias"}
