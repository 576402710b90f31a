"""Constant folding, common subexpressions, chains of views; and the switches of all passes."""

import math

import pytest
import torch
from ptn_export import PASSES, to_native
from torch import nn


class Call(nn.Module):
    """`function(module, *args)`, with a few parameters at hand."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(5)
        self.weight = nn.Parameter(torch.randn(6, 6))
        self.vector = nn.Parameter(torch.randn(6))
        self.register_buffer("integers", torch.arange(36, dtype=torch.int8).reshape(6, 6))
        self.register_buffer("counter", torch.ones(6))
        self.function = function

    def forward(self, *args):
        return self.function(self, *args)


X = torch.randn(2, 6)


def changed(m, x):
    m.counter.add_(1)
    return x * m.counter.exp()


FOLDED = {
    "one plus weight": (lambda m, x: x * (1 + m.vector.float()), 1, {"aten.mul.Tensor"}),
    "two constants": (lambda m, x: x @ (m.weight * m.vector), 1, {"aten.matmul.default"}),
    "made from nothing": (lambda m, x: x + (torch.arange(6.0) * 0.5).cos(), 1, {"aten.add.Tensor"}),
    "reduced": (lambda m, x: x * m.weight.sum(0), 1, {"aten.mul.Tensor"}),
    "one element with a stride": (lambda m, x: x * m.vector.exp()[::4][:1], 1, {"aten.mul.Tensor"}),
    "reduced integers": (lambda m, x: x * m.integers.float().mean(0), 1, {"aten.mul.Tensor"}),
}


@pytest.mark.parametrize("name", FOLDED)
def test_folded(check_rewrite, operators, name):
    function, count, expected = FOLDED[name]
    native = check_rewrite(Call(function), (X,), expect={"fold": count}, rtol=1e-5, atol=1e-6)
    assert set(operators(native)) == expected
    assert all(".folded_" in key for key in native.constants)
    assert len(native.constants) == 1


NOT_FOLDED = {
    "view of a weight": lambda m, x: x @ m.weight.T,
    "one maker": lambda m, x: x + torch.arange(6),
    "wider than the constant": lambda m, x: x @ m.integers.float(),
    "larger than the constants": lambda m, x: x[:, :, None, None] + m.vector[:, None, None] * m.vector[:, None],
    "too much from nothing": lambda m, x: x.sum() + torch.arange(20000).float().cos(),
    "depends on an input": lambda m, x: x * (m.vector + x[0]),
    "a result": lambda m, x: (x, m.vector * 2),
}


@pytest.mark.parametrize("name", NOT_FOLDED)
def test_not_folded(check_rewrite, name):
    native = check_rewrite(Call(NOT_FOLDED[name]), (X,), expect={"fold": 0}, rtol=1e-5, atol=1e-5)
    assert not any(".folded_" in key for key in native.constants)


def test_changing_state_and_random_numbers_are_not_folded():
    native = to_native(torch.export.export(Call(changed), (X,)))
    assert "fold" not in native.rewrites["forward"]
    with pytest.warns(match="random"):
        native = to_native(torch.export.export(Call(lambda m, x: x + torch.rand(6).exp()), (X,)))
    assert "fold" not in native.rewrites["forward"]


def test_a_constant_triangle_becomes_causal(check_rewrite, operators):
    def attend(m, q):
        scores = q @ q.mT / math.sqrt(6)
        mask = torch.ones(5, 5, dtype=torch.bool).tril()
        return scores.masked_fill(~mask, -math.inf).softmax(-1) @ q

    native = check_rewrite(Call(attend), (torch.randn(2, 3, 5, 6),), expect={"attention": 1}, rtol=1e-4, atol=1e-5)
    assert operators(native) == {"aten.scaled_dot_product_attention.default": 1}
    (node,) = [n for n in native.program.methods[0].graph.nodes if n.target and "attention" in n.target]
    assert node.inputs[5].name == "is_causal"
    assert node.inputs[5].arg.value is True


@pytest.mark.parametrize("diagonal", [-1, 1])
def test_another_triangle_stays_a_mask(check_rewrite, diagonal):
    def attend(m, q):
        mask = torch.ones(5, 5, dtype=torch.bool).tril(diagonal)
        return (q @ q.mT).masked_fill(~mask, -1e9).softmax(-1) @ q

    native = check_rewrite(Call(attend), (torch.randn(2, 3, 5, 6),), expect={"attention": 1}, rtol=1e-4, atol=1e-5)
    (node,) = [n for n in native.program.methods[0].graph.nodes if n.target and "attention" in n.target]
    assert node.inputs[5].arg.value is False
    assert type(node.inputs[3].arg).__name__ == "TensorArg"


def test_equal_calls_are_computed_once(check_rewrite, operators):
    native = check_rewrite(Call(lambda m, x: (x.exp() + 1) * (x.exp() + 1) - x.exp()), (X,), expect={"cse": 3})
    assert operators(native)["aten.exp.default"] == 1
    assert operators(native)["aten.add.Scalar"] == 1


NOT_EQUAL = {
    "other numbers": lambda m, x: torch.full((6,), 1) / x + torch.full((6,), 1.0) * x,
    "signs of zero": lambda m, x: torch.atan2(x.clamp(0.0, 0.0), x.clamp(-0.0, 0.0)) + (x + 0.0) / (x * -0.0),
    "results": lambda m, x: (x.exp(), x.exp()),
}


@pytest.mark.parametrize("name", NOT_EQUAL)
def test_what_is_not_equal_is_not_merged(check_rewrite, name):
    check_rewrite(Call(NOT_EQUAL[name]), (X,), expect={"cse": 0})


def test_random_numbers_are_drawn_twice(operators):
    with pytest.warns(match="random"):
        native = to_native(torch.export.export(Call(lambda m, x: torch.rand(6) - torch.rand(6)), (X,)))
    assert operators(native)["aten.rand.default"] == 2


CHAINS = {
    "permutations": (lambda m, x: x.permute(1, 2, 0).permute(1, 0, 2), {"aten.permute_copy.default": 1}),
    "there and back": (lambda m, x: x.permute(1, 2, 0).permute(2, 0, 1) + 1, {"aten.add.Scalar": 1}),
    "reshapes": (lambda m, x: x.view(6, 4).view(3, 8), {"aten.view_copy.default": 1}),
    "reshaped back": (lambda m, x: x.view(6, 4).unsqueeze(0).view(2, 3, 4) + 1, {"aten.add.Scalar": 1}),
    "of an expansion": (
        lambda m, x: x[:, None].expand(2, 5, 3, 4).flatten(0, 1).view(2, 5, 12),
        {"aten.unsqueeze_copy.default": 1, "aten.expand_copy.default": 1, "aten.view_copy.default": 1},
    ),
    "squeezed back": (lambda m, x: x.unsqueeze(1).squeeze(1) + 1, {"aten.add.Scalar": 1}),
    "wider and back": (lambda m, x: x.double().float() + 1, {"aten.add.Scalar": 1}),
    "narrower and back": (lambda m, x: x.half().float() + 1, {"aten._to_copy.default": 2, "aten.add.Scalar": 1}),
    "between": (
        lambda m, x: x.view(6, 4).permute(1, 0).reshape(3, 8),
        {"aten.view_copy.default": 2, "aten.permute_copy.default": 1},
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_chains_of_views(check_rewrite, operators, name):
    function, expected = CHAINS[name]
    native = check_rewrite(Call(function), (torch.randn(2, 3, 4),))
    assert operators(native) == expected


def test_chains_of_dynamic_sizes(check_rewrite, operators):
    def function(m, x):
        batch, length = x.shape[:2]
        return x.view(batch, length, 2, 2).view(batch, length, 4).permute(0, 2, 1).permute(0, 2, 1) + 1

    b, t = torch.export.Dim("b", min=1, max=4), torch.export.Dim("t", min=1, max=9)
    native = check_rewrite(
        Call(function), (torch.randn(2, 3, 4),), (torch.randn(1, 9, 4),), dynamic_shapes=(({0: b, 1: t},),)
    )
    assert operators(native) == {"aten.add.Scalar": 1}


def both(m, x):
    wide = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)
    return wide.permute(1, 0).permute(1, 0) * (m.vector + 1)


def test_each_pass_can_be_switched_off():
    exported = torch.export.export(Call(both), (X,))
    assert to_native(exported).rewrites["forward"] == {"cse": 0, "views": 1, "rms_norm": 1, "fold": 1} or (
        set(to_native(exported).rewrites["forward"]) == {"views", "rms_norm", "fold"}
    )
    for name in ("views", "rms_norm", "fold"):
        native = to_native(exported, disable_passes=(name,))
        assert set(native.rewrites["forward"]) == {"views", "rms_norm", "fold"} - {name}
    assert to_native(exported, disable_passes=PASSES).rewrites == {"forward": {}}


def test_wrong_names_of_passes():
    exported = torch.export.export(nn.ReLU(), (X,))
    with pytest.raises(ValueError, match="there is no pass 'norm'; the passes are copies, asserts, cse"):
        to_native(exported, disable_passes=["norm", "rope"])
    with pytest.raises(TypeError, match=r"got the string 'rope'; write \('rope',\)"):
        to_native(exported, disable_passes="rope")


def test_the_report_says_what_was_rewritten():
    native = to_native({"a": torch.export.export(Call(both), (X,)), "b": torch.export.export(nn.ReLU(), (X,))})
    assert "  rewritten: fold 1, rms_norm 1, views 1\n" in str(native.report)
    assert str(native.report).count("rewritten") == 1
    assert native.report.methods[0].rewrites["rms_norm"] == 1
