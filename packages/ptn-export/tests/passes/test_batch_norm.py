"""Batch norm is folded into the layer in front of it, and into nothing else."""

import pytest
import torch
from ptn_export import to_native
from torch import nn

NORM = "aten._native_batch_norm_legit_no_training.default"


def trained(norm):
    """A norm whose statistics and parameters are not the initial ones."""
    torch.manual_seed(4)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    if norm.affine:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    return norm


LAYERS = {
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(4, 6, 3), trained(nn.BatchNorm1d(6))), (2, 4, 9)),
    "conv2d": (lambda: nn.Sequential(nn.Conv2d(4, 6, 3, stride=2), trained(nn.BatchNorm2d(6))), (2, 4, 9, 9)),
    "no bias": (lambda: nn.Sequential(nn.Conv2d(4, 6, 3, bias=False), trained(nn.BatchNorm2d(6))), (2, 4, 9, 9)),
    "not affine": (lambda: nn.Sequential(nn.Conv2d(4, 6, 3), trained(nn.BatchNorm2d(6, affine=False))), (2, 4, 9, 9)),
    "groups": (lambda: nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), trained(nn.BatchNorm2d(6))), (2, 4, 9, 9)),
    "transposed": (
        lambda: nn.Sequential(nn.ConvTranspose2d(4, 6, 3, groups=2, stride=2), trained(nn.BatchNorm2d(6))),
        (2, 4, 5, 5),
    ),
    "linear": (lambda: nn.Sequential(nn.Linear(4, 6), trained(nn.BatchNorm1d(6))), (3, 4)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(check_rewrite, operators, name):
    make, shape = LAYERS[name]
    native = check_rewrite(make().eval(), (torch.randn(shape),), expect={"batch_norm": 1}, rtol=1e-4, atol=1e-5)
    assert len(operators(native)) == 1
    assert all(".folded_" in key for key in native.constants)
    assert len(native.constants) == 2


def test_a_layer_with_two_norms_keeps_its_weight_for_each(check_rewrite, operators):
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)
            self.first, self.second = trained(nn.BatchNorm2d(4)), trained(nn.BatchNorm2d(4))
            self.second.running_mean += 1

        def forward(self, x):
            return self.first(self.conv(x)), self.second(self.conv(x + 1)), self.conv(x * 2)

    x = torch.randn(2, 3, 4, 4)
    native = check_rewrite(Shared().eval(), (x,), expect={"batch_norm": 2}, rtol=1e-4, atol=1e-5)
    assert operators(native)["aten.convolution.default"] == 3
    assert NORM not in operators(native)


class Methods(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 1), trained(nn.BatchNorm2d(4))


class Both(Methods):
    def forward(self, x):
        return self.norm(self.conv(x))


class Plain(Methods):
    def forward(self, x):
        return self.conv(x)


def test_methods_agree_on_keys(run_native):
    both, plain = Both().eval(), Plain().eval()
    plain.load_state_dict(both.state_dict())
    x = torch.randn(2, 3, 4, 4)
    methods = {name: torch.export.export(m, (x,)) for name, m in (("a", both), ("b", both), ("c", plain))}
    native = to_native(methods)
    assert sorted(key.partition(".folded_")[0] for key in native.constants) == ["conv.bias"] * 2 + ["conv.weight"] * 2
    for name, module in (("a", both), ("b", both), ("c", plain)):
        torch.testing.assert_close(run_native(native, (x,), method=name), [module(x).detach()], rtol=1e-4, atol=1e-5)


class NotFolded(nn.Module):
    def __init__(self, use):
        super().__init__()
        self.conv, self.norm, self.use = nn.Conv2d(3, 4, 1), trained(nn.BatchNorm2d(4)), use
        self.linear, self.norm1 = nn.Linear(5, 6), trained(nn.BatchNorm1d(4))

    def forward(self, x):
        return self.use(self, x)


def read_twice(m, x):
    y = m.conv(x)
    return m.norm(y) + y


NOT = {
    "read twice": read_twice,
    "something between": lambda m, x: m.norm(m.conv(x).relu()),
    "computed weight": lambda m, x: m.norm(torch.conv2d(x, m.conv.weight * x.mean())),
    "channels of a linear layer with three axes": lambda m, x: m.norm1(m.linear(x.reshape(2, 4, 5))),
}


@pytest.mark.parametrize("name", NOT)
def test_what_is_not_folded(check_rewrite, operators, name):
    x = torch.randn(2, 4, 5) if "linear" in name else torch.randn(2, 3, 4, 4)
    native = check_rewrite(NotFolded(NOT[name]).eval(), (x,), expect={"batch_norm": 0}, rtol=1e-4, atol=1e-5)
    assert operators(native)[NORM] == 1


def test_statistics_that_the_model_changes_stay(check_rewrite, operators):
    class Changing(NotFolded):
        def forward(self, x):
            y = self.norm(self.conv(x))
            self.norm.running_mean.add_(1)
            return y

    x = torch.randn(2, 3, 4, 4)
    native = to_native(torch.export.export(Changing(None).eval(), (x,)))
    assert native.report.methods[0].operators[NORM] == 1


class Counter(nn.Module):
    """Its statistics are the state of another method."""

    def __init__(self, changes):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 1), trained(nn.BatchNorm2d(4))
        self.changes = changes

    def forward(self, x):
        if self.changes:
            self.norm.running_mean.add_(1)
            return x + 1
        return self.norm(self.conv(x)) + self.norm.running_mean.sum()


def test_what_another_method_changes_is_no_constant(operators):
    reads, writes = Counter(False).eval(), Counter(True).eval()
    writes.load_state_dict(reads.state_dict())
    x = torch.randn(2, 3, 4, 4)
    native = to_native({"read": torch.export.export(reads, (x,)), "write": torch.export.export(writes, (x,))})
    assert NORM in operators(native)
    assert not native.rewrites["read"]
