"""Tensors that a program knows by two names."""

import pytest
import torch
from torch import nn


class Box:
    """Keeps a tensor where `nn.Module` does not see it."""

    def __init__(self, tensor):
        self.tensor = tensor


class Counter(nn.Module):
    """Adds into a tensor of an object, which it also registers as a buffer."""

    def __init__(self, initial, persistent):
        super().__init__()
        self.box = Box(initial)
        self.register_buffer("sum", initial, persistent=persistent)

    def forward(self, x):
        before = self.sum * 2
        self.box.tensor.add_(x)
        self.box.tensor[0].mul_(2)
        return before, self.sum - self.box.tensor, self.box.tensor + 1


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("initial", [torch.zeros(3, 2), torch.arange(6.0).reshape(3, 2)], ids=["zeros", "data"])
def test_a_buffer_that_is_changed_through_an_object(check, initial, persistent):
    calls = [(torch.randn(3, 2),) for _ in range(3)]
    native = check(Counter(initial.clone(), persistent), *calls, engines=("reference", "ggml"))
    assert native.report.methods[0].state == ("sum",)
    assert set(native.constants) <= {"sum"}


def test_a_constant_that_is_a_buffer_is_stored_once(check):
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.randn(4, 3))
            self.box = Box(self.table)

        def forward(self, x):
            return x @ self.table, x @ self.box.tensor

    native = check(Reader(), (torch.randn(2, 4),))
    assert set(native.constants) == {"table"}
