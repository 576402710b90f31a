"""Numbers in the place of tensors: the schema's own overloads, with the rounding and promotion of eager PyTorch."""

import pytest
import torch
from ptn_format.graph import FloatArg, IntArg, TensorArg
from torch import nn


class Arithmetic(nn.Module):
    def forward(self, x):
        return (
            x + 0.1,
            0.1 + x,
            x - 0.1,
            0.1 - x,
            x * 3,
            3 * x,
            x / 3,
            3 / x,
            x // 3,
            x % 3,
            x**2,
            2**x,
            5 % x,
            torch.add(x, 2, alpha=3),
            torch.rsub(x, 2, alpha=3),
            x > 1,
            torch.gt(x, 1) | (1 > x),  # noqa: SIM300
            x == 1,
            torch.where(x > 1, 0.0, x),
            torch.where(x > 1, x, 7),
            x.clamp(min=1),
            torch.div(x, 3, rounding_mode="trunc"),
        )


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int8], ids=str
)
@pytest.mark.parametrize("shape", [(4,), ()], ids=["1-d", "0-d"])
def test_arithmetic_is_exact(check, dtype, shape):
    x = (torch.arange(1, 5).to(dtype) * 1.7).to(dtype)
    x = x if shape else x[2].clone()
    native = check(Arithmetic(), (x,), exact=True)
    _assert_schema_types(native)


def _assert_schema_types(native):
    """No argument of type Tensor is a number."""
    for node in native.program.methods[0].graph.nodes:
        if not (node.target or "").startswith("torch.ops.aten."):
            continue
        packet, overload = node.target.removeprefix("torch.ops.aten.").split(".")
        schema = getattr(getattr(torch.ops.aten, packet), overload)._schema
        formals = {formal.name: formal for formal in schema.arguments}
        for item in node.inputs:
            if str(formals[item.name].type) == "Tensor":
                assert isinstance(item.arg, TensorArg), node


class SymbolicScalars(nn.Module):
    def forward(self, x, y):
        n = x.shape[0]
        return x / n, n - x, x.sum() * n, y + n, n * 0.5 * y, torch.where(x > 0, n, x), x % n, (x * n).sum() / x.numel()


def test_sizes_as_numbers(check):
    batch = torch.export.Dim("batch", min=1, max=8)
    native = check(
        SymbolicScalars(),
        (torch.randn(3, 2), torch.arange(2)),
        (torch.randn(1, 2), torch.arange(2)),
        (torch.randn(8, 2), torch.arange(2)),
        dynamic_shapes=({0: batch}, None),
    )
    _assert_schema_types(native)


def test_the_files_spelling(check):
    class Model(nn.Module):
        def forward(self, x):
            return 1 - x * 0.5

    native = check(Model(), (torch.randn(3),))
    mul, rsub = (node for node in native.program.methods[0].graph.nodes if node.target)
    assert mul.target == "torch.ops.aten.mul.Scalar"
    assert [(item.name, item.arg) for item in mul.inputs] == [("self", TensorArg("x")), ("other", FloatArg(0.5))]
    assert rsub.target == "torch.ops.aten.rsub.Scalar"
    assert [(item.name, item.arg) for item in rsub.inputs] == [
        ("self", TensorArg("mul")),
        ("other", IntArg(1)),
        ("alpha", IntArg(1)),
    ]


def test_infinities_and_nan(check):
    class Model(nn.Module):
        def forward(self, x):
            return x.masked_fill(x > 0, float("-inf")), torch.full_like(x, float("nan")), x.clamp(max=float("inf"))

    check(Model(), (torch.randn(5),))
