"""Ranges of axes, arithmetic on sizes, assertions."""

import pytest
import torch
from ptn_export import to_native
from ptn_format.graph import Dim, IntListArg
from torch import nn


def dims(native, name):
    meta = native.program.methods[0].graph.tensor_values.get(name)
    return meta.sizes if meta is not None else ()


class Double(nn.Module):
    def forward(self, x):
        return torch.cat([x, x]), x.reshape(-1), x.new_zeros(2 * x.shape[0] + 3), x.repeat_interleave(3, 0)


@pytest.mark.parametrize("lower", [0, 1, 2, 3])
def test_declared_bounds_are_kept(check, lower):
    batch = torch.export.Dim("batch", min=lower, max=16)
    native = check(nn.Linear(4, 2), (torch.randn(5, 4),), (torch.randn(lower, 4),), dynamic_shapes=({0: batch},))
    assert dims(native, "x" if "x" in native.program.methods[0].graph.inputs else "input") == (
        Dim(lower, 16),
        Dim(4, 4),
    )


def test_derived_sizes_have_derived_ranges(check):
    batch = torch.export.Dim("batch", min=1, max=16)
    native = check(
        Double(), (torch.randn(4, 3),), (torch.randn(16, 3),), (torch.randn(1, 3),), dynamic_shapes=({0: batch},)
    )
    outputs = native.program.methods[0].graph.outputs
    assert [dims(native, name)[0] for name in outputs] == [Dim(2, 32), Dim(3, 48), Dim(5, 35), Dim(3, 48)]


class Pairs(nn.Module):
    def forward(self, x):
        return torch.cat([x, x]), x[1:], x.reshape(-1, 2)


@pytest.mark.parametrize("upper", [8, None])
@pytest.mark.parametrize(("step", "offset"), [(2, 0), (2, 2), (4, 2)])
def test_declared_bounds_of_derived_dims_are_kept(check, upper, step, offset):
    half = torch.export.Dim("half", min=1, max=upper)
    smallest = step + offset
    native = check(
        Pairs(),
        (torch.randn(4 * step + offset),),
        (torch.randn(smallest),),
        (torch.randn(8 * step + offset),),
        dynamic_shapes=({0: step * half + offset if offset else step * half},),
    )
    method = native.program.methods[0]
    largest = 8 * step + offset if upper else None

    def expected(size):
        return Dim(size(smallest), size(largest) if largest else -1)

    assert dims(native, "x") == (expected(lambda n: n),)
    assert [dims(native, name)[0] for name in method.graph.outputs] == [
        expected(lambda n: 2 * n),
        expected(lambda n: n - 1),
        expected(lambda n: n // 2),
    ]


def test_no_upper_bound(check):
    length = torch.export.Dim("length", min=1)
    native = check(nn.ReLU(), (torch.randn(3),), (torch.randn(1000),), dynamic_shapes=({0: length},))
    assert dims(native, native.program.methods[0].graph.inputs[0]) == (Dim(1, -1),)


def test_auto_and_derived_dims(check):
    class Model(nn.Module):
        def forward(self, x, y):
            return x.sum() + y[::2] + x[:, 0]

    auto = torch.export.Dim.AUTO
    check(
        Model(),
        (torch.randn(3, 2), torch.randn(6)),
        (torch.randn(5, 2), torch.randn(10)),
        dynamic_shapes=({0: auto}, {0: auto}),
    )
    half = torch.export.Dim("half", min=1, max=32)
    native = check(
        Model(),
        (torch.randn(3, 2), torch.randn(6)),
        (torch.randn(32, 2), torch.randn(64)),
        dynamic_shapes=({0: half}, {0: 2 * half}),
    )
    assert dims(native, "x") == (Dim(1, 32), Dim(2, 2))
    assert dims(native, "y") == (Dim(2, 64),)


class SizeArithmetic(nn.Module):
    def forward(self, x):
        b, t = x.shape[:2]
        half = t // 2
        y = x.new_zeros(b + 1, torch.sym_max(t, 3))
        z = torch.arange(half, device=x.device) * b
        numbers = (b, t, b > t, -t, (t + 1) % 4, t**2, b * t - half)
        return y, z, numbers, x.view(b, 1, t, -1), torch.full((t, 4, b), 2.5)


def test_size_arithmetic(check):
    b, t = torch.export.Dim("b", min=1, max=8), torch.export.Dim("t", min=4, max=64)
    native = check(
        SizeArithmetic(),
        (torch.randn(3, 5, 2),),
        (torch.randn(1, 4, 2),),
        (torch.randn(8, 9, 2),),
        dynamic_shapes=({0: b, 1: t},),
    )
    nodes = native.program.methods[0].graph.nodes
    assert any(node.target == "torch.ops.aten.sym_size.int" for node in nodes)
    assert any(node.target == "_operator.floordiv" for node in nodes)
    assert any(node.target == "torch.sym_max" for node in nodes)
    (full,) = [node for node in nodes if dims(native, node.name)[1:2] == (Dim(4, 4),)]
    sizes = full.inputs[0].arg
    assert isinstance(sizes, IntListArg)
    assert sizes.values == (0, 4, 0)
    assert [bool(ref) for ref in sizes.refs] == [True, False, True]


class FloatArithmetic(nn.Module):
    def forward(self, x):
        n = x.shape[0]
        scale = torch.sym_float(n) / 3
        return x * scale, x * torch.sym_sqrt(n), x * (n / 2), n * 0.25


def test_float_arithmetic_on_sizes(check):
    length = torch.export.Dim("length", min=2, max=64)
    check(FloatArithmetic(), (torch.randn(6),), (torch.randn(2),), (torch.randn(31),), dynamic_shapes=({0: length},))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.position = nn.Embedding(50, 16), nn.Embedding(32, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, ids, mask):
        x = self.embedding(ids) + self.position.weight[: ids.shape[1]]
        x = self.layer(x, src_key_padding_mask=mask == 0)
        weight = mask.to(x.dtype)[:, :, None]
        return (x * weight).sum(1) / weight.sum(1)


def test_encoder_with_dynamic_batch_and_sequence(check):
    b, s = torch.export.Dim("b", min=1, max=8), torch.export.Dim("s", min=2, max=32)
    ones = lambda *size: torch.ones(*size, dtype=torch.int64)  # noqa: E731
    native = check(
        Encoder().eval(),
        (torch.randint(0, 50, (3, 7)), ones(3, 7)),
        (torch.randint(0, 50, (1, 2)), ones(1, 2)),
        (torch.randint(0, 50, (8, 32)), ones(8, 32)),
        dynamic_shapes=({0: b, 1: s}, {0: b, 1: s}),
        rtol=1e-4,
        atol=1e-5,
    )
    assert [line.dims for line in native.report.methods[0].inputs] == [("1..8", "2..32")] * 2


class Checked(nn.Module):
    def forward(self, x, n):
        count = n.item()
        torch._check(count >= 2)
        torch._check(count <= 4)
        return x * count


def test_assertions_on_data_are_kept(check):
    native = check(Checked(), (torch.randn(6), torch.tensor(3)), (torch.randn(6), torch.tensor(4)))
    nodes = native.program.methods[0].graph.nodes
    checks = [node for node in nodes if node.target == "torch.ops.aten._assert_scalar.default"]
    assert len(checks) == 2


class Sliced(nn.Module):
    def forward(self, x, n):
        count = n.item()
        torch._check(count >= 2)
        torch._check(count <= 4)
        return x[:count] * 2, count + 1


def test_ranges_of_sizes_that_are_read_from_data(check):
    native = check(Sliced(), (torch.randn(6), torch.tensor(3)), (torch.randn(6), torch.tensor(4)))
    assert dims(native, native.program.methods[0].graph.outputs[0]) == (Dim(2, 4),)


def test_assertions_that_the_ranges_imply_are_dropped():
    class Model(nn.Module):
        def forward(self, x):
            torch._check(x.shape[0] > 2)
            torch._check(x.shape[0] * 2 < 100)
            return x + 1

    length = torch.export.Dim("length", min=3, max=32)
    native = to_native(torch.export.export(Model(), (torch.randn(5),), dynamic_shapes=({0: length},)))
    assert native.report.methods[0].operators == {"aten.add.Scalar": 1}


class Selection(nn.Module):
    def forward(self, x):
        keep = x > 0
        return x[keep] * 2, keep.nonzero()


def test_sizes_that_depend_on_data(check):
    native = check(Selection(), (torch.tensor([1.0, -1.0, 3.0, 0.0]),), (-torch.ones(4),), (torch.ones(4),))
    for name in native.program.methods[0].graph.outputs:
        assert dims(native, name)[0] == Dim(0, 4)
