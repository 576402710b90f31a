"""Buffers that a model updates: where they start, what a call leaves, who shares them."""

import io

import numpy as np
import ptn_runtime
import pytest
import torch
from ptn_export import to_native
from torch import nn

ENGINES = ["reference", "ggml"]


class Running(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.tensor(100, dtype=torch.int64))
        self.register_buffer("average", torch.tensor([1.0, -1.0]))
        self.register_buffer("last", torch.full((2,), 7.0), persistent=False)
        self.register_buffer("seen", torch.tensor(False))

    def forward(self, x):
        before, seen = self.last.clone(), self.seen.clone()
        self.count += 1
        self.average.mul_(0.5).add_(x, alpha=0.5)
        self.last.copy_(x)
        self.seen |= x.sum() > 5
        return self.average * 1.0, self.count.clone(), before, seen


X = torch.tensor([3.0, 5.0])


# https://github.com/pytorch/executorch/issues/5068, https://github.com/pytorch/executorch/pull/7279
def test_buffers_start_where_the_model_left_them(everywhere):
    def expect(results):
        assert results[0].tolist() == [2, 2]
        assert results[1].item() == 101
        assert results[2].tolist() == [7, 7]
        assert not results[3]

    everywhere(Running().eval(), (X,), (X,), (torch.tensor([-8.0, 0.0]),), expect=expect)


def package(program):
    file = io.BytesIO()
    to_native(program).save(file)
    return file.getvalue()


@pytest.mark.parametrize("engine", ENGINES)
def test_resets_and_sessions_start_from_the_beginning(engine):
    with ptn_runtime.load(package(torch.export.export(Running().eval(), (X,))), engine=engine) as model:
        first = model(X.numpy())
        assert first[1] == 101
        assert model(X.numpy())[1] == 102
        other = model.session()
        assert other(X.numpy())[1] == 101
        assert model(X.numpy())[1] == 103
        model.state.reset()
        for again, before in zip(model(X.numpy()), first, strict=True):
            np.testing.assert_array_equal(again, before)
        assert other(X.numpy())[1] == 102


@pytest.mark.parametrize("engine", ENGINES)
def test_trying_the_program_out_between_export_and_save(engine):
    """PyTorch lets `exported.module()` write into the module's own buffers: what counts is when `to_native` ran."""
    module = Running().eval()
    exported = torch.export.export(module, (X,))
    native = to_native(exported)
    exported.module()(X)
    module(X)
    file = io.BytesIO()
    native.save(file)
    with ptn_runtime.load(file.getvalue(), engine=engine) as model:
        assert model(X.numpy())[1] == 101
        np.testing.assert_array_equal(model.state["last"], X.numpy())


@pytest.mark.parametrize("engine", ENGINES)
def test_an_updated_value_that_is_never_read_before_is_still_kept(engine):
    class Latest(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("cache", torch.arange(6.0).reshape(2, 3))

        def forward(self, x, i):
            self.cache[i] = x
            self.cache[:, 0] *= 2
            return self.cache.sum()

    args = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1])
    module = Latest()
    data = package(torch.export.export(module, args))
    module = Latest()
    with ptn_runtime.load(data, engine=engine) as model:
        np.testing.assert_array_equal(model.state["cache"], module.cache.numpy())
        for _ in range(3):
            np.testing.assert_array_equal(model(args[0].numpy(), args[1].numpy()), module(*args).numpy())
            np.testing.assert_array_equal(model.state["cache"], module.cache.numpy())
