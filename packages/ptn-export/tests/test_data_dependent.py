"""Sizes, positions and branches that the data decide, and numbers as inputs: on every engine."""

from __future__ import annotations

import functools
import io

import numpy as np
import ptn_runtime
import pytest
import torch
from ptn_export import to_native
from ptn_format.graph import Dim
from ptn_runtime.errors import InputError
from torch import nn


@pytest.fixture
def everywhere(check):
    return functools.partial(check, engines=("reference", "ggml"))


def load(module, *args, engine="reference", dynamic_shapes=None):
    file = io.BytesIO()
    to_native(torch.export.export(module, args, dynamic_shapes=dynamic_shapes)).save(file)
    return ptn_runtime.load(file.getvalue(), engine=engine)


class Masks(nn.Module):
    """Reads and writes where masks say, of one axis, of several, and of some in the middle."""

    def forward(self, x, rows, cells):
        written = x.clone()
        written[rows] = 0.5
        written[:, cells[0]] += torch.tensor(2.0)
        doubled = x.clone()
        doubled[cells] = x[cells] * 2
        return x[rows], x[:, cells[0]], x[cells].sum(), written, doubled, torch.masked_select(x, rows[:, None])


def test_boolean_masks(everywhere):
    x = torch.arange(12.0).reshape(3, 4)
    rows = torch.tensor([True, False, True])
    cells = x % 5 > 2
    nothing = torch.zeros(3, dtype=torch.bool), torch.zeros(3, 4, dtype=torch.bool)
    everywhere(Masks(), (x, rows, cells), (-x, ~rows, ~cells), (x, *nothing))


class Narrowing(nn.Module):
    """Three selections in a row: what is left, twice, and how much that is."""

    def forward(self, x):
        found = (x > 0).nonzero().squeeze(-1)
        kept = x[found]
        (large,) = torch.nonzero(kept > 1, as_tuple=True)
        return kept[large] * found.shape[0], found.shape[0] + large.shape[0], torch.unique(kept.round())


def test_selections_of_selections(everywhere):
    everywhere(Narrowing(), (torch.tensor([2.0, -1.0, 0.5, 3.0]),), (-torch.ones(4),), (torch.full((4,), 1.6),))


class Window(nn.Module):
    """An item as position, as size, in arithmetic, and as a plain number."""

    def forward(self, x, start, count):
        first, size = start.item(), count.item()
        torch._check(first >= 0)
        torch._check(size >= 1)
        torch._check(first + size <= x.shape[0])
        return x.narrow(0, first, size) * first, torch.arange(size), torch.full((size, 2), 1.5), first - size


def test_items_as_sizes_and_positions(everywhere):
    x = torch.arange(8.0)
    at = functools.partial(torch.tensor, dtype=torch.int64)
    everywhere(Window(), (x, at(2), at(3)), (x, at(0), at(8)), (x, at(7), at(1)))


@pytest.mark.parametrize("engine", ["reference", "ggml"])
def test_checks_of_items(engine):
    at = functools.partial(np.array, dtype=np.int64)
    with load(Window(), torch.arange(8.0), torch.tensor(2), torch.tensor(3), engine=engine) as model:
        with pytest.raises(InputError, match=r"an assertion of the program from .*test_data_dependent\.py"):
            model(np.arange(8, dtype=np.float32), at(6), at(3))
        with pytest.raises(InputError, match="'count' is 0"):
            model(np.arange(8, dtype=np.float32), at(6), at(0))
        assert model(np.arange(8, dtype=np.float32), at(5), at(3))[0].tolist() == [25.0, 30.0, 35.0]


class Decode(nn.Module):
    """A cache that is written at a position, tables that are read there, and rows by number."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.cache = nn.Buffer(torch.zeros(2, 16, 4))
        self.table = nn.Buffer(torch.randn(16, 4))

    def forward(self, x, position: int):
        self.cache[:, position : position + 2] = x * self.table[position : position + 2]
        reached = torch.arange(16) < position + 2
        scores = (x @ self.cache.mT).masked_fill(~reached, float("-inf"))
        return scores.softmax(-1), self.table[position + 1], self.table.select(0, position) + 1


def test_positions_do_not_cut_the_graph(everywhere):
    """Windows of known size are one graph for all positions: nothing is built again for a new one."""
    shapes = {"x": None, "position": torch.export.Dim.DYNAMIC}
    calls = [(torch.randn(2, 2, 4), position) for position in (2, 5, 14, 3)]
    everywhere(Decode(), *calls, dynamic_shapes=shapes)
    with load(Decode(), *calls[0], dynamic_shapes=shapes) as model:
        model(calls[0][0].numpy(), 2)
        executable = model._context.compile("forward")
        assert not any(node.on_host for node in executable.graph.nodes)
        with pytest.raises(InputError, match=r"does not hold: 'position' must lie in \d\.\.14"):
            model(calls[0][0].numpy(), 15)


def test_rows_from_the_end(everywhere):
    """A position that may be negative counts from the end: that takes the number itself."""

    class Row(nn.Module):
        def forward(self, x, i):
            row = i.item()
            torch._check(row >= -5)
            torch._check(row < 5)
            return x[row]

    everywhere(Row(), (torch.randn(5, 2), torch.tensor(3)), (torch.randn(5, 2), torch.tensor(-2)))


def test_repeats_from_data(everywhere):
    class Repeat(nn.Module):
        def forward(self, x, repeats):
            return torch.repeat_interleave(x, repeats, dim=0)

    x = torch.arange(6.0).reshape(3, 2)
    everywhere(Repeat(), (x, torch.tensor([1, 0, 2])), (x, torch.tensor([0, 0, 0])), (x, torch.tensor([4, 1, 1])))


def test_branches_with_sizes_of_their_own(everywhere):
    class Branches(nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: (x[x > 0].sum() + 1,), lambda x: (x.sum(),), (x,))

    everywhere(Branches(), (torch.tensor([1.0, -2.0, 3.0]),), (-torch.ones(3),), (torch.ones(3),))


class Tracker(nn.Module):
    """State and an input that change, in a method with a cut before and after the first change."""

    def __init__(self):
        super().__init__()
        self.total = nn.Buffer(torch.zeros(2))
        self.calls = nn.Buffer(torch.zeros((), dtype=torch.int64))

    def forward(self, x, log):
        found = x[x > 0]
        self.calls += 1
        self.total += found.sum()
        log[0] = found.sum()
        return found, self.total[self.total > 3]


def test_state_and_inputs_that_change(everywhere):
    x = torch.tensor([1.0, -1.0, 2.0])
    everywhere(Tracker(), (x, torch.zeros(2)), (-x, torch.zeros(2)), (x, torch.ones(2)))


class Growing(nn.Module):
    """A counter of its own is the size of what it gives."""

    def __init__(self):
        super().__init__()
        self.count = nn.Buffer(torch.ones((), dtype=torch.int64))

    def forward(self, x):
        count = self.count.item()
        torch._check(count >= 1)
        torch._check(count <= 8)
        self.count += 1
        return x[:count].sum(0), torch.zeros(count)


def test_a_state_that_is_a_size(everywhere):
    everywhere(Growing(), *[(torch.arange(8.0),)] * 4)


def test_dynamic_inputs(everywhere):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x):
            return self.linear(x[x[:, 0] > 0]).softmax(-1)

    rows = torch.export.Dim("rows", min=2, max=64)
    native = everywhere(
        Model().eval(), (torch.randn(5, 4),), (torch.randn(9, 4),), (-torch.ones(2, 4),), dynamic_shapes=({0: rows},)
    )
    (output,) = native.program.methods[0].graph.outputs
    assert native.program.methods[0].graph.tensor_values[output].sizes[0].min == 0


class Experts(nn.Module):
    """A mixture of experts that each compute the tokens routed to them, as models of Hugging Face spell it."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        mask = nn.functional.one_hot(chosen, 3).permute(2, 1, 0)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rank, token = torch.where(mask[number])
            out.index_add_(0, token, expert(x[token]) * weights[token, rank, None])
        return out


def test_experts(everywhere):
    torch.manual_seed(0)
    tokens = torch.export.Dim("tokens", min=2, max=32)
    calls = [(torch.randn(count, 4),) for count in (6, 2, 9)]
    everywhere(Experts().eval(), *calls, dynamic_shapes=({0: tokens},))


class Scaled(nn.Module):
    def forward(self, x, n: int):
        return x * n, n + 1


class Cut(nn.Module):
    def forward(self, x, n: int):
        return x[:, :n] * n, torch.zeros(n)


@pytest.mark.parametrize("module", [Scaled(), Cut()], ids=["number", "size"])
def test_integers_that_vary_from_call_to_call(everywhere, module):
    shapes = {"x": None, "n": torch.export.Dim.DYNAMIC}
    x = torch.arange(16.0).reshape(2, 8)
    everywhere(module, (x, 3), (x, 5), (x, 8), dynamic_shapes=shapes)


@pytest.mark.parametrize("engine", ["reference", "ggml"])
def test_integers_keep_to_their_range(engine):
    shapes = {"x": None, "n": torch.export.Dim.DYNAMIC}
    x = np.ones((2, 8), np.float32)
    with load(Cut(), torch.ones(2, 8), 3, engine=engine, dynamic_shapes=shapes) as model:
        assert [str(item) for item in model.describe().inputs] == ["x: float32[2, 8]", "n: int64[]"]
        with pytest.raises(InputError, match=r"9 must lie in \d\.\.8 .*'n' is 9"):
            model(x, 9)
        with pytest.raises(InputError, match="'n'"):
            model(x, 2.5)
        assert model(x, 4)[0].shape == (2, 4)


def test_numbers_and_strings_are_fixed_unless_declared():
    class Model(nn.Module):
        def forward(self, x, n: int, f: float, b: bool, s: str):
            return x * n + f if b and s == "plus" else x

    with load(Model(), torch.ones(2), 3, 0.5, True, "plus") as model:
        np.testing.assert_array_equal(model(np.ones(2, np.float32), 3, 0.5, True, "plus"), [3.5, 3.5])
        for other in (
            (4, 0.5, True, "plus"),
            (3, 0.25, True, "plus"),
            (3, 0.5, False, "plus"),
            (3, 0.5, True, "minus"),
        ):
            with pytest.raises(InputError, match="was fixed to"):
                model(np.ones(2, np.float32), *other)


def test_bounds_are_shown():
    with load(Narrowing(), torch.tensor([2.0, -1.0, 0.5, 3.0])) as model:
        first, count, third = model.describe().outputs
        assert (first.shape, count.shape, third.shape) == ((Dim(0, 4),), (), (Dim(0, -1),))
        assert (str(first), str(third)) == ("output[0]: float32[0..4]", "output[2]: float32[0..]")
