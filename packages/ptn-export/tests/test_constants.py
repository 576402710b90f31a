"""Parameters, buffers and constants: what is stored, under which key, with which bytes."""

import copy

import numpy as np
import pytest
import torch
from ptn_export import ExportError, to_native
from ptn_format.graph import InputKind
from ptn_format.package import open_package
from torch import nn


def export(module, *args, **options):
    return torch.export.export(module.eval(), args, **options)


class Counter(nn.Module):
    """Mutable state that does not start at zero."""

    def __init__(self, persistent=True):
        super().__init__()
        self.register_buffer("count", torch.tensor(100), persistent=persistent)
        self.register_buffer("ema", torch.tensor([1.0, -1.0]), persistent=persistent)

    def forward(self, x):
        self.count += 1
        self.ema.mul_(0.5).add_(x, alpha=0.5)
        return self.ema * 1.0, self.count.clone()


@pytest.mark.parametrize("persistent", [True, False])
def test_state_starts_as_exported(check, persistent):
    calls = [(torch.tensor([3.0, 5.0]),), (torch.tensor([3.0, 5.0]),), (torch.tensor([-8.0, 0.0]),)]
    native = check(Counter(persistent), *calls)
    method = native.program.methods[0]
    assert {(ref.data_key, ref.kind, ref.mutated) for ref in method.constants} == {
        ("count", InputKind.BUFFER, True),
        ("ema", InputKind.BUFFER, True),
    }
    assert native.constants["count"].tensor.item() == 100
    assert native.report.methods[0].state == ("count", "ema")


def test_running_the_exported_module_after_to_native_does_not_reach_the_package(tmp_path):
    module = Counter()
    exported = export(module, torch.ones(2))
    native = to_native(exported)
    exported.module()(torch.ones(2))  # writes into the state of the exported program
    module(torch.ones(2))
    native.save(tmp_path / "model.ptn")
    assert open_package(tmp_path / "model.ptn").constant("count").item() == 100


class Cache(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(4, 3))
        self.register_buffer("scratch", torch.zeros(4), persistent=False)
        self.register_buffer("minus", torch.full((3,), -0.0))

    def forward(self, i, x):
        self.cache.index_copy_(0, i, x)
        self.scratch.add_(1)
        self.minus.add_(-0.0)
        return self.cache.sum() + self.scratch.sum(), self.minus.clone()


def test_mutable_buffers_of_zeros_need_no_bytes(check):
    calls = [(torch.tensor([i]), torch.full((1, 3), float(i + 1))) for i in range(3)]
    native = check(Cache(), *calls)
    method = native.program.methods[0]
    assert [(spec.name, spec.fqn) for spec in method.mutable_buffers] == [
        ("b_cache", "cache"),
        ("b_scratch", "scratch"),
    ]
    assert set(native.constants) == {"minus"}  # negative zeros are not zeros
    assert method.graph.tensor_values["b_cache"].sizes[0].max == 4


class ReadOnly(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("inv_freq", torch.tensor([1.0, 0.5]), persistent=False)
        self.register_buffer("zeros", torch.zeros(2))
        self.plain = torch.full((2,), 3.0)

    def forward(self, x):
        return x * self.inv_freq + self.zeros + self.plain + torch.tensor([5.0, 7.0])


def test_read_only_data_is_never_dropped(check):
    native = check(ReadOnly(), (torch.ones(2),))
    method = native.program.methods[0]
    assert not method.mutable_buffers
    kinds = {ref.data_key: ref.kind for ref in method.constants}
    assert kinds["inv_freq"] is InputKind.BUFFER
    assert kinds["plain"] is InputKind.CONSTANT_TENSOR
    assert sum(ref.mutated for ref in method.constants) == 0
    assert len(native.constants) == 4


class Given(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(3, 4))

    def forward(self, x):
        return self.table, x + self.table


def test_a_constant_that_is_a_result_has_its_type_in_the_graph(check):
    """Executorch's validator looks for it there."""
    (method,) = check(Given(), (torch.randn(3, 4),)).program.methods
    (ref,) = method.constants
    assert ref.name in method.graph.outputs
    assert method.graph.tensor_values[ref.name] == ref.meta


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 32)
        self.out = nn.Linear(32, 64, bias=False)
        self.out.weight = self.embedding.weight
        self.group = [self.embedding.weight]

    def forward(self, ids):
        return self.out(self.embedding(ids)), self.group[0].sum()


def test_tied_weights_are_stored_once(check, tmp_path):
    native = check(Tied(), (torch.tensor([1, 63, 0]),))
    native.save(tmp_path / "model.ptn")
    assert (tmp_path / "model.ptn").stat().st_size < 64 * 32 * 4 + 4096
    assert len(native.constants) == 1


def test_parameters_are_referenced_and_buffers_copied():
    module = nn.BatchNorm1d(3)
    native = to_native(export(module, torch.randn(2, 3)))
    assert native.constants["weight"].tensor.data_ptr() == module.weight.data_ptr()
    assert native.constants["running_mean"].tensor.data_ptr() != module.running_mean.data_ptr()


class Strided(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        base = torch.arange(24.0).reshape(4, 6)
        self.transposed = nn.Buffer(base.t())
        self.expanded = nn.Buffer(torch.tensor([[1.0], [2.0]]).expand(2, 5))
        self.sliced = nn.Buffer(base[1::2, ::3])

    def forward(self, x):
        return self.conv(x), self.transposed @ torch.ones(4), self.expanded.sum(0), self.sliced + 1


def test_constants_are_stored_by_value_not_by_memory(check):
    check(Strided(), (torch.randn(1, 3, 8, 8),))
    check(Strided(), (torch.randn(1, 3, 8, 8).to(memory_format=torch.channels_last),))


class Types(nn.Module):
    def __init__(self):
        super().__init__()
        self.tensors = {
            "i64": torch.tensor([2**40, -(2**40)]),
            "i32": torch.tensor([2**31 - 1, -(2**31)], dtype=torch.int32),
            "i16": torch.tensor([-(2**15), 7], dtype=torch.int16),
            "i8": torch.tensor([-128, 127], dtype=torch.int8),
            "u8": torch.tensor([255, 0], dtype=torch.uint8),
            "mask": torch.tensor([True, False]),
            "bf16": torch.tensor([1.0, -3.140625], dtype=torch.bfloat16),
            "f16": torch.tensor([65504.0, 6e-8], dtype=torch.float16),
            "f64": torch.tensor([1e300, -0.0], dtype=torch.float64),
            "u16": torch.tensor([65535, 1], dtype=torch.uint16),
        }
        for name, tensor in self.tensors.items():
            self.register_buffer(name, tensor)

    def forward(self, x):
        return [getattr(self, name).to(torch.float64) * x for name in self.tensors]


def test_every_element_type(check, tmp_path):
    module, x = Types(), torch.ones(2, dtype=torch.float64)
    check(module, (x,))
    native = to_native(export(module, x), disable_passes=("fold",))
    native.save(tmp_path / "model.ptn")
    package = open_package(tmp_path / "model.ptn")
    for name, tensor in module.tensors.items():
        info = package.constant_info(name)
        assert info.dtype.torch_name == str(tensor.dtype).removeprefix("torch.")
        expected = tensor.contiguous().view(torch.uint8).numpy()
        np.testing.assert_array_equal(package.constant(name).view(np.uint8), expected)


class Names(nn.Module):
    def __init__(self):
        super().__init__()
        self.gewicht_ü = nn.Parameter(torch.tensor([1.0]))
        self.a_b = nn.Parameter(torch.tensor([2.0]))
        self.a = nn.Module()
        self.a.b = nn.Parameter(torch.tensor([3.0]))
        self.register_parameter("class_", nn.Parameter(torch.tensor([4.0])))
        self.register_buffer("权重", torch.tensor([5.0]))

    def forward(self, 输入):
        weight = self.权重
        return 输入 * self.gewicht_ü + self.a_b * 10 + self.a.b * 100 + self.class_ * 1000 + weight * 10000


def test_keys_are_the_users_own_names(check):
    check(Names(), (torch.tensor([1.0]),))
    native = to_native(export(Names(), torch.tensor([1.0])), disable_passes=("fold",))
    assert set(native.constants) == {"gewicht_ü", "a_b", "a.b", "class_", "权重"}
    assert native.report.methods[0].inputs[0].name == "输入"


class Keywords(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_parameter("lambda", nn.Parameter(torch.tensor([4.0])))
        self.register_parameter("lambda_", nn.Parameter(torch.tensor([5.0])))
        self.add_module("class", nn.Linear(1, 1))
        self.register_buffer("global", torch.ones(1))
        self.register_buffer("if", torch.ones(1), persistent=False)

    def forward(self, x):
        own = [getattr(self, name) for name in ("global", "lambda", "lambda_", "if", "class")]
        own[0].add_(1)
        return own[4](x * own[1] * own[2] * own[3]) + own[0]


def test_names_that_are_python_keywords(check):
    native = check(Keywords(), (torch.ones(1),), (torch.ones(1),))
    assert set(native.constants) == {"lambda", "lambda_", "class.weight", "class.bias", "global", "if"}
    assert native.report.methods[0].state == ("global",)


def test_a_mutated_buffer_must_not_share_memory():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("whole", torch.zeros(4))
            self.register_buffer("part", self.whole[:2])

        def forward(self, x):
            self.whole.add_(x)
            return self.part + 1

    with pytest.raises(ExportError, match="the method changes 'whole', whose memory 'part' shares"):
        to_native(export(Model(), torch.ones(4)))


def snapshot(exported):
    """Everything of an exported program that must not change, with the bytes of every tensor."""
    return (
        str(exported.graph_module.graph),
        exported.graph_module.code,
        str(exported.graph_signature),
        {key: (id(value), value.clone()) for key, value in exported.state_dict.items()},
        {key: (id(value), value.clone()) for key, value in exported.constants.items()},
        dict(exported.range_constraints),
        [copy.copy(entry.fqn) for entry in exported.module_call_graph],
        list(exported._guards_code),
        {name: type(child) for name, child in exported.graph_module.named_modules()},
        {name: id(value) for name, value in exported.graph_module.named_buffers()},
        [{key: id(value) for key, value in node.meta.items()} for node in exported.graph_module.graph.nodes],
    )


def assert_equal_snapshots(left, right):
    for a, b in zip(left, right, strict=True):
        if isinstance(a, dict) and a and isinstance(next(iter(a.values())), tuple):
            assert a.keys() == b.keys()
            for key in a:
                assert a[key][0] == b[key][0]
                assert torch.equal(a[key][1], b[key][1])
        else:
            assert a == b


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x):
        return torch.cond(
            x.sum() > 0, lambda x: self.linear(x) * torch.tensor([2.0, 3.0]), lambda x: x - torch.tensor(1.0), (x,)
        )


@pytest.mark.parametrize(
    ("module", "args"),
    [
        (Counter(), (torch.ones(2),)),
        (Counter(False), (torch.ones(2),)),
        (ReadOnly(), (torch.ones(2),)),
        (Keywords(), (torch.ones(1),)),
        (Tied(), (torch.tensor([1]),)),
        (Branches(), (torch.ones(2),)),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), (torch.ones(1, 1, 4, 4),)),
    ],
    ids=["state", "non-persistent", "read-only", "keywords", "tied", "branches", "batch-norm"],
)
def test_the_input_is_unchanged(module, args):
    exported = export(module, *args)
    state = {name: (id(value), value.detach().clone()) for name, value in module.state_dict(keep_vars=True).items()}
    flags = {name: (type(value), value.requires_grad) for name, value in module.named_parameters()}
    expected = copy.deepcopy(module)(*args)
    before = snapshot(exported)
    first = to_native(exported)
    assert_equal_snapshots(before, snapshot(exported))
    now = {name: (id(value), value.detach()) for name, value in module.state_dict(keep_vars=True).items()}
    assert now.keys() == state.keys()
    for name, (identity, value) in state.items():
        assert now[name][0] == identity
        assert torch.equal(now[name][1], value)
    assert flags == {name: (type(value), value.requires_grad) for name, value in module.named_parameters()}
    # And it is still good for everything: a second time, and for running.
    assert to_native(exported).program == first.program
    if not isinstance(module, Keywords):  # PyTorch itself cannot run such names
        torch.testing.assert_close(exported.module()(*args), expected)
