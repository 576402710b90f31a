"""RMSNorm in several spellings becomes one operator; what only looks like it does not."""

import pytest
import torch
from torch import nn

EPSILON = 1e-5
WIDTH = 24


class Norm(nn.Module):
    """A norm written by `write(x, weight)`, with a weight that is not all ones."""

    def __init__(self, write, weight_shape=(WIDTH,), dtype=torch.float32):
        super().__init__()
        torch.manual_seed(1)
        self.weight = nn.Parameter((torch.rand(weight_shape) + 0.5).to(dtype))
        self.write = write

    def forward(self, x):
        return self.write(x, self.weight)


def squares(x, **options):
    return x.pow(2).mean(-1, keepdim=True, **options) + EPSILON


def llama(x, weight):
    wide = x.float()
    return weight * (wide * torch.rsqrt(squares(wide))).to(x.dtype)


def gemma(x, weight):
    wide = x.float()
    return (wide * torch.rsqrt(squares(wide)) * (1.0 + weight.float())).type_as(x)


SPELLINGS = {
    "llama": llama,
    "gemma": gemma,
    "power": lambda x, w: x * torch.pow(squares(x), -0.5) * w,
    "root": lambda x, w: x / torch.sqrt(squares(x)) * w,
    "reciprocal": lambda x, w: w * (x * (1 / torch.sqrt(squares(x)))),
    "half power": lambda x, w: x / (squares(x) ** 0.5) * w,
    "product": lambda x, w: torch.rsqrt(EPSILON + (x * x).mean(dim=[-1], keepdim=True)) * x * w,
    "no weight": lambda x, w: x * torch.rsqrt(squares(x)),
    "two axes": lambda x, w: x * torch.rsqrt((x * x).mean((-2, -1), keepdim=True) + EPSILON),
    "operator": lambda x, w: nn.functional.rms_norm(x, (WIDTH,), w, EPSILON),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(check_rewrite, operators, name):
    x = torch.randn(2, 5, WIDTH)
    count = 0 if name == "operator" else 1
    native = check_rewrite(Norm(SPELLINGS[name]), (x,), (100 * x,), (x * 0,), expect={"rms_norm": count})
    assert operators(native)["aten.rms_norm.default"] == 1
    expected = {"gemma": {"aten.add.Scalar"}}.get(name, set())
    assert set(operators(native)) - {"aten.rms_norm.default"} <= expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "gemma"])
def test_half_types(check_rewrite, operators, name, dtype):
    x = torch.randn(2, 5, WIDTH).to(dtype)
    module = Norm(SPELLINGS[name], dtype=dtype)
    native = check_rewrite(module, (x,), expect={"rms_norm": 1})
    if name == "llama":
        assert set(operators(native)) == {"aten.rms_norm.default"}


def test_dynamic_sizes(check_rewrite):
    b, t = torch.export.Dim("b", min=1, max=4), torch.export.Dim("t", min=1, max=16)
    check_rewrite(
        Norm(llama),
        (torch.randn(2, 5, WIDTH),),
        (torch.randn(1, 1, WIDTH),),
        (torch.randn(4, 16, WIDTH),),
        dynamic_shapes=({0: b, 1: t},),
        expect={"rms_norm": 1},
    )


def both(x, w):
    y = x * torch.rsqrt(squares(x))
    return y * w, y


def shared_factor(x, w):
    factor = torch.rsqrt(squares(x))
    return x * factor, factor


NOT = {
    "other operand": lambda x, w: (x + 1) * torch.rsqrt(squares(x)),
    "other axis": lambda x, w: x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + EPSILON),
    "epsilon outside": lambda x, w: x / (torch.sqrt(x.pow(2).mean(-1, keepdim=True)) + EPSILON),
    "cubes": lambda x, w: x * torch.rsqrt(x.abs().pow(3).mean(-1, keepdim=True) + EPSILON),
    "sum": lambda x, w: x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + EPSILON),
    "root of root": lambda x, w: x * torch.pow(squares(x), -0.25),
    "standard deviation": lambda x, w: x * torch.rsqrt((x - x.mean(-1, keepdim=True)).pow(2).mean(-1, True) + EPSILON),
    "factor is a result": shared_factor,
}


@pytest.mark.parametrize("name", NOT)
def test_what_is_not_rms_norm(check_rewrite, operators, name):
    native = check_rewrite(Norm(NOT[name]), (torch.randn(2, 5, WIDTH),), expect={"rms_norm": 0})
    assert "aten.rms_norm.default" not in operators(native)


def test_a_chain_in_half_is_left_alone(check_rewrite):
    x = torch.randn(2, 5, WIDTH).half()
    check_rewrite(Norm(lambda x, w: x * torch.rsqrt(squares(x))), (x,), expect={"rms_norm": 0}, atol=4e-3, rtol=4e-3)


@pytest.mark.parametrize("shape", [(1,), (5, WIDTH), ()])
def test_other_weights_stay_outside(check_rewrite, operators, shape):
    module = Norm(lambda x, w: x * torch.rsqrt(squares(x)) * w, weight_shape=shape)
    native = check_rewrite(module, (torch.randn(2, 5, WIDTH),), expect={"rms_norm": 1})
    assert operators(native)["aten.mul.Tensor"] == 1


def test_a_normalised_value_that_is_a_result_too(check_rewrite, operators):
    native = check_rewrite(Norm(both), (torch.randn(2, 5, WIDTH),), expect={"rms_norm": 1})
    assert operators(native) == {"aten.rms_norm.default": 1, "aten.mul.Tensor": 1}
