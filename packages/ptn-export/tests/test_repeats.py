"""Taking each different call apart once gives what PyTorch makes of the whole program, and costs less."""

import copy
import time
import warnings
from collections import Counter

import pytest
import torch
from ptn_export import to_native
from ptn_export.decompositions import KEPT, decomposition_table
from ptn_export.repeats import NotSimpleError, decompose_repeats
from torch import fx, nn
from torch.nn import functional as F

Dim = torch.export.Dim


class Call(nn.Module):
    """`function(self, ...)` with two layers, two buffers and a parameter."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("cache", torch.zeros(6, 4))
        self.register_buffer("count", torch.zeros(1), persistent=False)
        self.register_buffer("copy", torch.zeros(1))

    def forward(self, *args):
        return self.function(self, *args)


class TwoInputs(Call):
    def forward(self, x, y):
        return self.function(self, x, y)


def layers(self, x, y):
    for _ in range(3):
        x = F.silu(self.first(x)).reshape(-1, 2, 2).transpose(1, 2).reshape(x.shape) + y
        x = F.gelu(F.dropout(self.second(x), 0.5, training=False).contiguous())
        a, b = x.chunk(2, -1)
        x = torch.cat((a.to(torch.float64).float(), b.to(torch.float32)), -1)
    return x, a.flatten(), x.shape[0] * 2


def cache(self, x, y):
    self.cache.index_copy_(0, torch.arange(2), x[:2])
    before = self.cache.sum(0)
    self.cache.add_(1).mul_(2)
    self.count += 1
    x = x * 2
    x += y
    x.relu_()
    y.zero_()
    self.copy.copy_(self.cache[0, :1])
    return self.cache, before, x + self.count, y


def sizes(self, x, y):
    parts = [F.pad(x, (0, 0, 1, 1))[: x.shape[0]], x.new_zeros(x.shape[0] * 2 + 1, 4)[: x.shape[0]]]
    z = torch.stack(parts).mean(0).view(x.shape[0], 2, 2).flatten(1).expand(2, -1, -1)
    return z.sum(0) + torch.tensor(3.0) + torch.arange(x.shape[0])[:, None] // 2, y.max(), x.split([1, 3], 1)


def norm(self, x, y):
    return self.norm(x), F.layer_norm(y, (4,)), F.softmax(x, -1), torch.where(x > 0, x, y), y.new_full((2,), 3)


def input_named_as_a_builtin(self, x, y):
    return x, y, None, 3, x.clone().detach()


def by_parameters(self, x, y):
    return self.first.weight @ x.T, x.unflatten(1, (2, 2)).diagonal(dim1=1, dim2=2), y.std(), (x + 1).tril()


FUNCTIONS = (layers, cache, sizes, norm, input_named_as_a_builtin, by_parameters)


def example():
    return torch.randn(5, 4), torch.randn(5, 4)


def run(program, args):
    """The flat results, mutations first."""
    values = []
    leaves = iter(copy.deepcopy(args))
    for spec in program.graph_signature.input_specs:
        data = program.state_dict.get(spec.target, program.constants.get(spec.target)) if spec.target else None
        values.append(next(leaves) if data is None else data.detach().clone())
    return fx.Interpreter(program.graph_module).run(*values)


def both(program):
    """As a whole, and each different call once."""
    with warnings.catch_warnings(action="ignore"):  # PyTorch's own, about its own code
        fast = decompose_repeats(program, decomposition_table(), KEPT)
        return program.run_decompositions(decomposition_table()), fast


def operators(program):
    """How often each operator on tensors is called."""
    calls = [node for node in program.graph.nodes if node.op == "call_function" and node.users]
    return Counter(str(node.target) for node in calls if not isinstance(node.meta["val"], torch.SymInt))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_same_program(function, dynamic):
    args = example()
    shapes = ({0: Dim("n", min=3, max=8)},) * 2 if dynamic else None
    exported = torch.export.export(TwoInputs(function).eval(), args, dynamic_shapes=shapes)
    text = str(exported.graph)
    slow, fast = both(exported)
    assert str(exported.graph) == text
    assert operators(fast) == operators(slow)
    kinds = [[(spec.kind, spec.target) for spec in item.graph_signature.output_specs] for item in (slow, fast)]
    assert kinds[0] == kinds[1]
    fast.graph.lint()
    for expected, actual in zip(run(slow, args), run(fast, args), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    for node in fast.graph.nodes:
        if node.op == "call_function" and not isinstance(node.meta["val"], torch.SymInt):
            assert "stack_trace" in node.meta, node


def view_is_read_later(self, x):
    view = self.cache[:2]
    self.cache.add_(1)
    return view + x


def change_through_a_view(self, x):
    self.cache[1:3] = x
    return self.cache * 2


def training(self, x):
    return self.norm.train()(x)


def data_dependent(self, x):
    return x[x > 0]


def control_flow(self, x):
    return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))


def other_type(self, x):
    x = x.to(torch.float16) * 1
    return x.add_(torch.ones(2, 4))


@pytest.mark.parametrize(
    "function", [view_is_read_later, change_through_a_view, training, data_dependent, control_flow, other_type]
)
def test_what_must_be_decomposed_as_a_whole(function):
    class Model(Call):
        def forward(self, x):
            return self.function(self, x)

    exported = torch.export.export(Model(function).eval(), (torch.ones(2, 4),))
    with pytest.raises(NotSimpleError), warnings.catch_warnings(action="ignore"):
        decompose_repeats(exported, decomposition_table(), KEPT)


def test_views_that_nobody_reads_later_do_no_harm():
    def function(self, x, y):
        total = self.cache[:5].sum() + self.cache.view(-1).max()
        self.cache.mul_(2)
        return total + self.cache[:5] + x, y

    args = example()
    slow, fast = both(torch.export.export(TwoInputs(function).eval(), args))
    for expected, actual in zip(run(slow, args), run(fast, args), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_copies_take_the_type_and_shape_of_their_destination():
    def function(self, x, y):
        self.cache.copy_(x[0].double())
        return self.cache + 1, y

    args = example()
    exported = torch.export.export(TwoInputs(function).eval(), args)
    results = run(both(exported)[1], args)
    torch.testing.assert_close(results[0], args[0][0].expand(6, 4), rtol=0, atol=0)
    torch.testing.assert_close(results[1], args[0][0].expand(6, 4) + 1, rtol=0, atol=0)


def test_a_deep_model_takes_less_than_its_capture():
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(60))

        def forward(self, x):
            for layer in self.layers:
                a, b = layer(F.silu(x)).chunk(2, -1)
                x = torch.cat((b, a), -1).reshape(-1, 2, 4).transpose(1, 2).reshape(x.shape)
            return x

    model, args = Deep().eval(), (torch.ones(3, 8),)
    shapes = ({0: Dim("n", min=1, max=64)},)
    to_native(torch.export.export(model, args, dynamic_shapes=shapes))  # what is loaded on first use
    start = time.process_time()
    exported = torch.export.export(model, args, dynamic_shapes=shapes)
    middle = time.process_time()
    to_native(exported)
    assert time.process_time() - middle < middle - start  # about 0.4 of it on a quiet machine
