"""cond, map, scan and while_loop: nested graphs, whose constants the method binds and passes down."""

import torch
from ptn_format.graph import GraphArg, TensorListArg
from torch import nn
from torch._higher_order_ops.scan import scan


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        def yes(x):
            return self.linear(x) * torch.tensor([1.0, 2.0, 3.0])

        def no(x):
            return x - torch.tensor(4.0)

        return torch.cond(x.sum() > 0, yes, no, (x,))


def test_cond_on_data(check):
    batch = torch.export.Dim("batch", min=1, max=9)
    native = check(
        Branches().eval(), (torch.ones(4, 3),), (-torch.ones(4, 3),), (-torch.ones(1, 3),), dynamic_shapes=({0: batch},)
    )
    (cond,) = [node for node in native.program.methods[0].graph.nodes if node.target == "torch.ops.higher_order.cond"]
    _, yes, no, operands = (item.arg for item in cond.inputs)
    assert isinstance(yes, GraphArg)
    assert isinstance(no, GraphArg)
    assert isinstance(operands, TensorListArg)
    assert len(operands.names) == len(yes.graph.inputs) == len(no.graph.inputs)
    assert "torch.ops.aten.linear.default" in [node.target for node in yes.graph.nodes]
    assert {"linear.weight", "linear.bias"} < set(native.constants)


def test_cond_on_a_size(check):
    class Model(nn.Module):
        def forward(self, x):
            return torch.cond(x.shape[0] > 4, lambda x: x * 2, lambda x: x - 1, (x,)) + 1

    length = torch.export.Dim("length", min=1, max=9)
    check(Model(), (torch.ones(3),), (torch.ones(4),), (torch.ones(5),), dynamic_shapes=({0: length},))


def test_nested_cond_with_constants(check):
    class Model(nn.Module):
        def forward(self, x):
            def inner(x):
                return torch.cond(
                    x.max() > 2, lambda x: x * torch.tensor([2.0, 3.0]), lambda x: x + torch.tensor([5.0, 6.0]), (x,)
                )

            return torch.cond(x.sum() > 0, inner, lambda x: x - torch.tensor(1.0), (x,))

    calls = [(torch.tensor([1.0, 1.0]),), (torch.tensor([3.0, 1.0]),), (torch.tensor([-3.0, 1.0]),)]
    check(Model(), *calls)


def test_branches_with_several_results(check):
    class Model(nn.Module):
        def forward(self, x, y):
            a, b = torch.cond(x.sum() > 0, lambda x, y: (x + y, x * y), lambda x, y: (x - y, y * 1), (x, y))
            return a * 2, b

    check(Model(), (torch.ones(2), torch.ones(2)), (-torch.ones(2), torch.ones(2)))


def test_map(check):
    class Model(nn.Module):
        def forward(self, xs, y):
            return torch._higher_order_ops.map(lambda x, y: x * y + torch.tensor(2.0), xs, y)

    check(Model(), (torch.randn(3, 2), torch.randn(2)))


def test_while_loop(check):
    class Model(nn.Module):
        def forward(self, i, x):
            return torch._higher_order_ops.while_loop(
                lambda i, x: i < 4, lambda i, x: (i + 1, x * torch.tensor([2.0, 3.0])), (i, x)
            )

    check(Model(), (torch.tensor(0), torch.ones(2)), (torch.tensor(3), torch.ones(2)), (torch.tensor(9), torch.ones(2)))


class Recurrence(nn.Module):
    """A recurrent layer of one's own, with weights and a constant inside the step."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 3)

    def forward(self, start, xs):
        def step(carry, x):
            total, count = carry
            total = total * torch.tensor([0.5, 2.0, -1.0]) + self.linear(x)
            return (total, count + 1.0), (total.relu(), x.sum())

        return scan(step, (start, torch.zeros(())), xs)


def test_scan(check):
    length = torch.export.Dim("length", min=1, max=9)
    calls = [(torch.randn(3), torch.randn(n, 2)) for n in (4, 1, 9)]
    native = check(Recurrence().eval(), *calls, dynamic_shapes=(None, {0: length}), engines=("reference", "ggml"))
    (node,) = [node for node in native.program.methods[0].graph.nodes if node.target == "torch.ops.higher_order.scan"]
    body, carried, xs, operands = (item.arg for item in node.inputs)
    assert isinstance(body, GraphArg)
    counts = [len(argument.names) for argument in (carried, xs, operands) if isinstance(argument, TensorListArg)]
    assert counts == [2, 1, 3]  # the last are the weight, the bias and the constant
    assert len(body.graph.inputs) == sum(counts)


def test_scan_from_the_end(check):
    class Model(nn.Module):
        def forward(self, xs):
            return scan(lambda carry, x: (carry + x, carry * x), xs[:, 0] * 0, xs, dim=1, reverse=True)

    check(Model(), (torch.randn(2, 4),))
