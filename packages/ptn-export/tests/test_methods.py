"""Several methods over one set of weights and one state."""

import copy

import pytest
import torch
from ptn_export import ExportError, to_native
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("cache", torch.zeros(4, 3))
        self.register_buffer("steps", torch.tensor(5))


class Write(Model):
    def forward(self, i, x):
        self.cache[i] = self.linear(x) * torch.tensor(2.0)
        self.steps += 1
        return self.cache.sum()


class Read(Model):
    def forward(self, x):
        return self.linear(x) + self.cache.sum(0) + torch.tensor(3.0), self.steps + 0


def two_methods():
    write, read = Write().eval(), Read().eval()
    read.linear, read.cache, read.steps = write.linear, write.cache, write.steps
    programs = {
        "write": torch.export.export(write, (torch.tensor([1]), torch.ones(1, 3))),
        "read": torch.export.export(read, (torch.ones(3),)),
    }
    return write, read, programs


def test_methods_share_weights_and_state(interpret, assert_same):
    write, read, programs = two_methods()
    native = to_native(programs)
    assert native.methods == ("write", "read")
    assert {"linear.weight", "linear.bias", "cache", "steps"} < set(native.constants)
    # A method that only reads the cache needs its bytes, zeros or not.
    assert not any(method.mutable_buffers for method in native.program.methods)
    interpreter = interpret(native)
    with torch.no_grad():
        for i in (2, 0, 3):
            args = (torch.tensor([i]), torch.randn(1, 3))
            assert_same(interpreter.run("write", copy.deepcopy(args)), write(*args))
            assert_same(interpreter.run("read", (torch.ones(3),)), read(torch.ones(3)))


def test_constants_that_pytorch_names_do_not_clash(interpret):
    class Add(nn.Module):
        def __init__(self, value):
            super().__init__()
            self.value = value

        def forward(self, x):
            return x + torch.tensor([self.value, 1.0])

    x = torch.ones(2)
    programs = {str(v): torch.export.export(Add(v), (x,)) for v in (1.0, 2.0, 1.0)} | {
        "again": torch.export.export(Add(1.0), (x,))
    }
    native = to_native(programs)
    assert len(native.constants) == 2
    interpreter = interpret(native)
    assert interpreter.run("1.0", (x,)).tolist() == [2.0, 2.0]
    assert interpreter.run("2.0", (x,)).tolist() == [3.0, 2.0]


@pytest.mark.parametrize("persistent", [True, False])
def test_the_same_name_with_other_data_is_refused(persistent):
    def exported(value):
        module = nn.Module()
        module.register_buffer("shift", torch.tensor([value, float("nan")]), persistent=persistent)
        module.forward = lambda x: x + module.shift
        return torch.export.export(_Wrapper(module), (torch.ones(2),))

    to_native({"a": exported(1.0), "b": exported(1.0)})
    with pytest.raises(ExportError, match=r"methods 'a' and 'c' use this name for different data") as caught:
        to_native({"a": exported(1.0), "c": exported(2.0)})
    assert "'inner.shift'" in str(caught.value)


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (torch.zeros(3), r"float32\[2\] and float32\[3\]"),
        (torch.zeros(2, dtype=torch.int64), r"float32\[2\] and int64\[2\]"),
        (torch.tensor([0.0, 1.0]), "the same type and shape with other values"),
    ],
)
def test_state_of_one_name_that_starts_in_different_ways_is_refused(other, difference):
    class Count(nn.Module):
        def __init__(self, start):
            super().__init__()
            self.register_buffer("count", start)

        def forward(self):
            self.count += 1
            return self.count * 2

    programs = {name: torch.export.export(Count(start), ()) for name, start in (("a", torch.zeros(2)), ("b", other))}
    with pytest.raises(
        ExportError, match=f"methods 'a' and 'b' use this name for different data: {difference}"
    ) as caught:
        to_native(programs)
    assert "at 'count' in method 'b'" in str(caught.value)


class _Wrapper(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def test_the_same_name_with_another_shape_is_refused():
    programs = {str(n): torch.export.export(nn.Linear(n, 2), (torch.ones(1, n),)) for n in (2, 3)}
    with pytest.raises(ExportError, match=r"float32\[2, 2\] and float32\[2, 3\]"):
        to_native(programs)


class Decoder(nn.Module):
    """One layer of attention over a static cache; the same module with a long and a short input."""

    def __init__(self, width=16, heads=2, context=12):
        super().__init__()
        self.heads, self.context = heads, context
        self.embedding = nn.Embedding(20, width)
        self.norm = nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 20)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, heads, context, width // heads))

    def forward(self, ids, positions):
        x = self.embedding(ids)
        b, t, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        self.keys.index_copy_(2, positions, k)
        self.values.index_copy_(2, positions, v)
        mask = torch.arange(self.context)[None, :] <= positions[:, None]
        y = nn.functional.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        return self.out(x + y.transpose(1, 2).reshape(b, t, width))


def test_prefill_and_decode(interpret, assert_same):
    torch.manual_seed(0)
    model = Decoder().eval()
    length = torch.export.Dim("length", min=1, max=12)
    prompt = (torch.tensor([[1, 2, 3]]), torch.arange(3))
    step = (torch.tensor([[4]]), torch.tensor([3]))
    programs = {
        "prefill": torch.export.export(model, prompt, dynamic_shapes=({1: length}, {0: length})),
        "decode": torch.export.export(model, step),
    }
    native = to_native(programs)
    prefill, decode = native.program.methods
    assert {s.fqn for s in prefill.mutable_buffers} == {s.fqn for s in decode.mutable_buffers} == {"keys", "values"}
    assert not {"keys", "values"} & set(native.constants)
    interpreter = interpret(native)
    with torch.no_grad():
        assert_same(interpreter.run("prefill", prompt), model(*prompt))
        for i in range(3, 12):
            args = (torch.tensor([[i]]), torch.tensor([i]))
            assert_same(interpreter.run("decode", args), model(*args))


def test_wrong_arguments():
    exported = torch.export.export(nn.ReLU(), (torch.ones(1),))
    with pytest.raises(TypeError, match=r"export it first: torch\.export\.export"):
        to_native(nn.ReLU())
    with pytest.raises(TypeError, match="got list"):
        to_native([exported])
    with pytest.raises(TypeError, match="method 'f': expected an ExportedProgram, got ReLU"):
        to_native({"f": nn.ReLU()})
    with pytest.raises(TypeError, match="method names are strings, got 1"):
        to_native({1: exported})
    with pytest.raises(ValueError, match="got an empty dict"):
        to_native({})
    with pytest.raises(ValueError, match="name is empty"):
        to_native({"": exported})


def test_what_reads_conflicting_weights_is_no_problem_of_its_own():
    torch.manual_seed(0)
    parts = {
        name: nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 3)).eval() for name in ("encoder", "decoder")
    }
    exported = {name: torch.export.export(part, (torch.randn(2, 3),)) for name, part in parts.items()}
    with pytest.raises(ExportError) as caught:
        to_native(exported)
    places = [problem.place for problem in caught.value.problems]
    assert sorted(places) == ["'0.bias'", "'0.weight'", "'2.bias'", "'2.weight'"]  # both norms are 1 and 0
    assert {problem.subject for problem in caught.value.problems} == {"constant"}
