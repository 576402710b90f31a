"""In-place programs of PyTorch, lowered as torch.export captures them, against eager."""

from __future__ import annotations

import operator
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "lowering"))

from lowering_graphs import GraphBuilder, S, T, run, specialize
from ptn_format.dtypes import ScalarType

DTYPES = {
    torch.float32: ScalarType.FLOAT,
    torch.float16: ScalarType.HALF,
    torch.int64: ScalarType.LONG,
    torch.int32: ScalarType.INT,
    torch.bool: ScalarType.BOOL,
}


def translate(program, constants):
    """The method of an exported program that was not functionalised; buffers and constants keep their names."""
    g = GraphBuilder()
    signature = program.graph_signature
    values = {}
    results = ()
    for node in program.graph.nodes:
        if node.op == "placeholder":
            fake = node.meta["val"]
            if node.name in signature.inputs_to_buffers:
                key = signature.inputs_to_buffers[node.name]
                values[node] = g.buffer(node.name, key, DTYPES[fake.dtype], *fake.shape)
            elif node.name in signature.inputs_to_lifted_tensor_constants:
                key = signature.inputs_to_lifted_tensor_constants[node.name]
                values[node] = g.constant(node.name, constants[key], key)
            else:
                values[node] = g.input(node.name, DTYPES[fake.dtype], *fake.shape)
        elif node.op == "call_function":
            values[node] = call(g, node, values)
        elif node.op == "output":
            results = tuple(values[item] for item in node.args[0])
    return g.build(*results)


def call(g, node, values):
    if node.target is operator.getitem:
        return values[node.args[0]][node.args[1]]
    schema = node.target._schema
    named = dict(zip((arg.name for arg in schema.arguments), node.args, strict=False)) | node.kwargs
    named = {name: torch.fx.map_arg(value, values.get) for name, value in named.items()}
    named = {name: plain(value) for name, value in named.items()}
    mutated = tuple(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    target = f"torch.ops.{node.target}"
    fake = node.meta["val"]
    if isinstance(fake, list | tuple):
        return g.list_call(target, count=len(fake), **named)
    return g.call(target, result=node.name, mutated=mutated, **named)


def plain(value):
    if isinstance(value, torch.dtype):
        return DTYPES[value]
    if isinstance(value, torch.device | torch.layout | torch.memory_format):
        return str(value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    assert value is None or isinstance(value, bool | int | float | str | T | S), value
    return value


class Program(nn.Module):
    """A module whose forward is `body(self, x, y)`; `state` is a buffer."""

    def __init__(self, body):
        super().__init__()
        self.body = body
        self.register_buffer("state", torch.arange(12, dtype=torch.float32).reshape(3, 4))

    def forward(self, x, y):
        return self.body(self, x, y)


def slice_assignment(self, x, y):
    z = x.clone()
    z[1:, ::2] = y[1:, ::2] * 2
    z[0] += 1
    return z


def rows_of_state(self, x, y):
    row = self.state[1]
    row.copy_(x[0])
    self.state.t()[2].mul_(3)
    return row + 0, self.state.sum()


def masks(self, x, y):
    z = x * 1
    z.masked_fill_(y > 0, -1.5)
    z[z < 0] = 7
    return z


def scatters(self, x, y):
    z = x.clone()
    index = torch.tensor([[0, 1, 2, 0]])
    z.scatter_(0, index, y)
    z.index_add_(1, torch.tensor([0, 3, 3]), y[:, :3])
    z.view(-1).index_fill_(0, torch.tensor([5]), 9.0)
    self.state.index_copy_(0, torch.tensor([2]), z[:1])
    return z


def halves(self, x, y):
    z = x.to(torch.float16)
    z += y
    z[:, 1].div_(3)
    z.clamp_(-1, 1)
    return z


def integers(self, x, y):
    z = torch.zeros(3, 4, dtype=torch.int64)
    z.copy_(x * 4)
    z[:, 0] |= 1
    z.lt_(2)
    return z


def chunks(self, x, y):
    z = x.clone()
    a, b = z.chunk(2, dim=1)
    a.add_(b)
    b.zero_()
    first, *_ = z.unbind(0)
    first.fill_(5)
    return z, a, first


def activations(self, x, y):
    z = x + y
    torch.relu_(z)
    z.sigmoid_().neg_()
    z.addcmul_(x, y, value=0.5)
    z.lerp_(y, 0.25)
    return z


def input_mutation(self, x, y):
    x.mul_(2)
    y[0, 0] = 3
    return x + y


def read_before_write(self, x, y):
    old = self.state * 1
    view = self.state.view(4, 3)
    self.state.add_(x)
    return old, view


def odd_views(self, x, y):
    z = x.clone()
    z.diagonal().add_(y[:, 0])
    z.movedim(0, 1).squeeze().narrow(0, 1, 2).mul_(2)
    z.unflatten(1, (2, 2)).transpose(0, 2)[1].sub_(1)
    z.unsqueeze(0).expand(1, 3, 4).neg_()
    z.as_strided((2, 2), (4, 2), 1).fill_(8)
    z.view(torch.int32)[2].zero_()
    z.split(3, dim=1)[1].add_(5)
    z.swapaxes(0, 1).flatten(0).view(-1)
    return z, z.t()


def reads_of_stale_views(self, x, y):
    z = x.clone()
    left, right = z[:, :2], z[:, 2:]
    left.copy_(right)
    z.cumsum_(1)
    right.pow_(2)
    z.tril_()
    return left * 1, right.reshape(2, 3), z.view(2, 6)


def random_numbers(self, x, y):
    z = x.clone()
    z.uniform_(2, 2)
    z[0].normal_(3, 0)
    z[:, 1].bernoulli_(1.0)
    z[1, 2:].bernoulli_(torch.zeros(2))
    z[2].random_(1)  # from 0 to below 1
    self.state[0].uniform_(5, 5)
    return z, z.t()


BODIES = [
    random_numbers,
    odd_views,
    reads_of_stale_views,
    slice_assignment,
    rows_of_state,
    masks,
    scatters,
    halves,
    integers,
    chunks,
    activations,
    input_mutation,
    read_before_write,
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_against_eager(body):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(3, 4, generator=generator), torch.randn(3, 4, generator=generator)
    module = Program(body).eval()
    program = torch.export.export(module, (x.clone(), y.clone()))
    constants = {name: tensor.detach().numpy() for name, tensor in program.constants.items()}
    method = translate(program, constants)
    graph = specialize(method, constants=constants)

    states = {"state": module.state.numpy().copy()}
    data = [x.numpy().copy(), y.numpy().copy()]
    got = run(graph, *data, states=states, constants=constants)

    eager_x, eager_y = x.clone(), y.clone()
    want = module(eager_x, eager_y)
    want = want if isinstance(want, tuple) else (want,)
    for result, tensor in zip(got, want, strict=True):
        assert result.dtype == tensor.numpy().dtype
        np.testing.assert_allclose(result, tensor.numpy(), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(states["state"], module.state.numpy(), rtol=1e-6)
    np.testing.assert_allclose(data[0], eager_x.numpy(), rtol=1e-6)
    np.testing.assert_allclose(data[1], eager_y.numpy(), rtol=1e-6)
