"""Complex numbers become real ones: every operator with a rule, in every form that a complex tensor comes in."""

import inspect

import pytest
import torch
from ptn_export import ExportError, to_native
from torch import nn

TOLERANCE = {"rtol": 2e-5, "atol": 2e-5}
ENGINES = ("reference", "ggml")
torch.manual_seed(0)
X = torch.randn(2, 3, 8)
MATRIX = torch.randn(4, 4, dtype=torch.complex64)


class Call(nn.Module):
    """A function of tensors, and of buffers behind them."""

    def __init__(self, function, *buffers):
        super().__init__()
        self.function = function
        for i, buffer in enumerate(buffers):
            self.register_buffer(f"buffer_{i}", buffer)

    def forward(self, *args):
        return self.function(*args, *self.buffers())


def z_of(x):
    """[..., n] as n / 2 complex numbers."""
    return torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))


def real(*values):
    return [torch.view_as_real(value.resolve_conj()) if value.is_complex() else value for value in values]


def parts_of(x):
    """The same numbers as separate parts."""
    return torch.complex(x[..., 0::2], x[..., 1::2])


def setting(z):
    z = z.clone()
    z[..., 0] = 1j
    z *= 2
    z.real.add_(1)
    return z


# name -> functions of complex numbers z [2, 3, 4], their real parts' source x [2, 3, 8], and a matrix m [4, 4]
FUNCTIONS = {
    "sums": lambda z, x, m: (
        z + z.conj(),
        z - 1,
        1 - z,
        z + x[..., :4],
        x[..., :1] + z[:, :1],
        z - (1 + 2j),
        torch.add(z, z, alpha=2j),
        -z,
    ),
    "products": lambda z, x, m: (z * z, z * 2.5, z * 1j, x[..., :4] * z, x[:, :1, :4] * m[0], z * m[0], z * 0),
    "quotients": lambda z, x, m: (
        z / (z + 3),
        z / 2,
        z / x[..., :4],
        x[..., :4] / z,
        1 / z,
        z / (3 - 1j),
        (1 + 2j) / z,
        z.reciprocal(),
    ),
    "powers": lambda z, x, m: (z**2, z**3, (z / 3) ** 7, z**-1, z**0, z**0.5, z**-0.5, z**1.7, z ** (1 + 2j)),
    "powers of tensors": lambda z, x, m: (z ** x[..., :4], z**z, 2.0**z, (z * 0) ** x[..., :4].abs(), (z * 0) ** 2.5),
    "parts": lambda z, x, m: (z.real, z.imag, z.abs(), z.angle(), z.sgn(), torch.polar(z.abs(), z.angle())),
    "functions": lambda z, x, m: (z.exp(), z.log(), z.log2(), z.log10(), z.sqrt(), z.rsqrt(), z.square(), z.sigmoid()),
    "angles": lambda z, x, m: (z.sin(), z.cos(), z.sinh(), z.cosh(), z.tanh()),
    "comparisons": lambda z, x, m: (z == z, z != 0, z == z.conj(), z.isnan(), z.isinf(), z.isfinite()),
    "moves": lambda z, x, m: (
        z.transpose(-1, 0),
        z.permute(2, -3, 1),
        z[:, 1:, -2:],
        z[..., -1],
        z[None].squeeze(0),
        z.unsqueeze(-1),
        z.reshape(3, -1),
        z[:, :1].expand(2, 5, 4),
        z.flip(-1),
        z.roll(1, 0),
        z.repeat(1, 2, 1),
        z.diagonal(dim1=0, dim2=1),
        z.tril(),
        z.unfold(1, 2, 1),
        z.mT.contiguous(),
        z[:, torch.tensor([2, 0])],
        z.gather(1, torch.zeros(2, 1, 4, dtype=torch.int64)),
    ),
    "parts that move": lambda z, x, m: [
        torch.view_as_real(y) for y in (z.chunk(3, 1) + z.unbind(0) + z.split([1, 3], -1))
    ],
    "joined": lambda z, x, m: (
        torch.cat((z, z * 2), 1),
        torch.cat((z, x[..., :4]), -1),
        torch.stack((z, z), -1).flatten(0, 1),
        nn.functional.pad(z, (1, 2)),
        nn.functional.pad(z, (1, 2), value=3),
        torch.where(x[..., :4] > 0, z, 0),
        torch.where(x[..., :4] > 0, x[..., 4:], z),
        z.masked_fill(x[..., :4] > 0, 1j),
        setting(z),
        z.scatter(1, torch.zeros(2, 1, 4, dtype=torch.int64), z),
        z.index_put((torch.tensor([0]),), z[:1]),
    ),
    "made": lambda z, x, m: (
        torch.ones_like(z) + z,
        torch.zeros(3, 4, dtype=torch.complex64) + z,
        torch.full((4,), 2j) * z,
        torch.tensor(1 - 1j) * z,
        x.to(torch.complex64),
        z.to(torch.complex128),
        z.new_zeros(4) + m,
        torch.complex(x, x) + torch.ones_like(x, dtype=torch.complex64),
    ),
    "views of memory": lambda z, x, m: (z.contiguous().view(torch.float32), x.view(torch.complex64) * 1j),
    "reductions": lambda z, x, m: (
        z.sum(),
        z.sum(-1),
        z.mean(),
        z.mean((0, 1), keepdim=True),
        z.cumsum(1),
        z.var(-1),
        torch.linalg.vector_norm(z, dim=-1),
        nn.functional.normalize(z, dim=-1),
    ),
    "matrices": lambda z, x, m: (
        z @ m,
        z @ (m.real + 0j),
        (x[..., :4] + 0j) @ m,
        torch.bmm(z, z.mT),
        torch.einsum("bij,bkj->bik", z, z.conj()),
        torch.addmm(m[0], z[0], m, beta=0.5, alpha=2),
        torch.baddbmm(m[:3, :3], z, z.mH, alpha=1j),
        nn.functional.linear(z, m, m[0]),
        nn.functional.linear(x[..., :4] + 0j, m),
        torch.vdot(m[0], m[1]) + torch.dot(m[0], m[1]) + z[0],
        torch.mv(m, m[0]) * z,
        nn.functional.conv1d(z, m[:, :3, None]),
    ),
}


# In few modules, because most of the time goes into the export.
GROUPS = (
    ("sums", "products", "quotients", "comparisons"),
    ("powers", "powers of tensors", "parts", "functions", "angles"),
    ("moves", "parts that move", "joined", "made", "views of memory"),
    ("reductions", "matrices"),
)


def test_every_function_is_in_a_group():
    assert sorted(name for group in GROUPS for name in group) == sorted(FUNCTIONS)


@pytest.mark.parametrize(("names", "source"), [*((group, z_of) for group in GROUPS), (GROUPS[2], parts_of)])
def test_functions(check, names, source):
    module = Call(lambda x, m: {name: real(*FUNCTIONS[name](source(x), x, m)) for name in names}, MATRIX)
    native = check(module, (X,), engines=ENGINES, **TOLERANCE)
    assert not any("complex" in str(constant.dtype) for constant in native.constants.values())


def test_double_precision(check):
    def function(x, m):
        z = z_of(x)
        return real(z * m[0], z / (z + 1), z.exp(), z.sqrt(), z.abs(), z @ m, z + torch.ones(4))

    check(Call(function, MATRIX.to(torch.complex128)), (X.double(),), engines=ENGINES, rtol=1e-12, atol=1e-12)


def test_numbers_that_would_overflow(check):
    def function(x):
        z = torch.complex(x, x.flip(0))
        return z.abs(), torch.view_as_real(1 / z), torch.view_as_real(z.sqrt()), torch.view_as_real(z.conj() / z)

    x = torch.tensor([3e30, -2e30, 1e-30, 4e-25, -1.0])
    check(Call(function), (x,), engines=ENGINES, rtol=1e-5, atol=0)


def test_signs_of_roots_and_angles(check):
    def function(re, im):
        z = torch.complex(re, im)
        return real(z.sqrt(), z.angle(), z.log(), z.abs())

    re = torch.tensor([1.0, -1.0, 0.0, 4.0, -4.0, 0.0, -3.0])
    im = torch.tensor([0.0, 0.0, 2.0, -1e-4, -1e-4, -2.0, 4.0])
    check(Call(function), (re, im), engines=ENGINES, rtol=1e-5, atol=1e-7)


def test_dynamic_sizes(check):
    def function(x, m):
        z = z_of(x)
        scaled = z * m[: z.shape[1]] + x[:, :1, :1]
        return real(scaled, z.transpose(0, 1).reshape(z.shape[1], -1), scaled.sum(1), torch.cat((z, scaled), 1) @ m)

    b, t = torch.export.Dim("b", min=1, max=6), torch.export.Dim("t", min=1, max=4)
    more = [(torch.randn(shape),) for shape in ((1, 1, 8), (5, 4, 8), (1, 3, 8))]
    check(Call(function, MATRIX), (X,), *more, dynamic_shapes=(({0: b, 1: t},),), engines=ENGINES, **TOLERANCE)


class Recurrence(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(4, dtype=torch.complex64))
        self.decay = nn.Parameter(torch.polar(torch.full((4,), 0.9), torch.arange(4.0)), requires_grad=False)

    def forward(self, x):
        self.state.mul_(self.decay).add_(z_of(x))
        return self.state.real + 0


def test_state_and_weights_are_stored_in_pairs(check):
    native = check(Recurrence(), (X[0, 0],), (X[0, 1],), (X[1, 0],), engines=ENGINES)
    (method,) = native.program.methods
    assert native.constants["decay"].shape == (4, 2)
    (state,) = method.mutable_buffers
    assert state.fqn == "state"
    assert [dim.min for dim in method.graph.tensor_values[state.name].sizes] == [4, 2]


def test_weights_of_several_methods_are_stored_once():
    module = Call(lambda x, m: torch.view_as_real(z_of(x) @ m), MATRIX)
    exported = torch.export.export(module, (X,))
    native = to_native({"a": exported, "b": torch.export.export(module, (X[:1],))})
    assert native.constants["buffer_0"].shape == (4, 4, 2)


def test_branches(check):
    def function(x):
        z = torch.complex(x, x * 2)
        return real(torch.cond(x.sum() > 0, lambda z: z * 2j, lambda z: z.conj() + 1, (z,)))

    check(Call(lambda x: function(x)), (X,), (-X,), engines=ENGINES)


def test_rotation_costs_no_more_than_its_arithmetic(operators):

    def function(x, m):
        return torch.view_as_real(z_of(x) * m[0]).flatten(-2)

    native = to_native(torch.export.export(Call(function, MATRIX), (X,)), disable_passes=("rope",))
    found = operators(native)
    assert found["aten.mul.Tensor"] == 4
    assert found["aten.select_copy.int"] == 4 + 1
    assert found["aten.add.Tensor"] == found["aten.sub.Tensor"] == found["aten.cat.default"] == 1


class Product(nn.Module):
    def forward(self, x):
        z = z_of(x)
        return torch.view_as_real(z.prod(-1) + z.cumprod(-1).sum(-1))


class Half(nn.Module):
    def forward(self, x):
        return z_of(x.half()).abs()


class Result(nn.Module):
    def forward(self, x):
        return {"z": z_of(x) * 2, "x": x}


class Argument(nn.Module):
    def forward(self, x):
        return x.abs()


REFUSED = [
    (Product(), X, {"aten.prod.dim_int", "aten.cumprod.default"}, "complex64", "keep real and imaginary parts", 2),
    (Half(), X, {"aten.view_as_complex.default"}, "complex32", "keep real and imaginary parts", None),
    (Result(), X, {"output"}, "complex64", "return `torch.view_as_real(z)`", None),
    (Argument(), X + 0j, {"input"}, "complex64", "begin the model with `torch.view_as_complex`", None),
    (Argument(), X.double() + 0j, {"input"}, "complex128", "pass `torch.view_as_real(x)`", None),
]


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize(("module", "x", "subjects", "dtype", "hint", "line"), REFUSED)
def test_what_has_no_real_form(module, x, subjects, dtype, hint, line):
    with pytest.raises(ExportError) as caught:
        to_native(torch.export.export(module, (x,)))
    problems = caught.value.problems
    assert {problem.subject for problem in problems} == subjects
    assert all(hint in problem.hint for problem in problems)
    assert any(dtype in problem.reason for problem in problems)
    if line is not None:
        source = f"test_complex.py:{inspect.getsourcelines(type(module).forward)[1] + line}"
        assert {problem.source for problem in problems} == {source}
