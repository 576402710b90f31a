"""`everywhere`: the check of the other tests, on every engine."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from typing import Any

import ptn_runtime
import pytest
import torch
from ptn_export import to_native
from torch import nn


@pytest.fixture
def everywhere(check: Callable[..., Any]) -> Callable[..., Any]:
    """`check` on the reference engine and on ggml."""
    return functools.partial(check, engines=("reference", "ggml"))


class Call(nn.Module):
    """A module that is one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


@pytest.fixture
def call() -> type[Call]:
    return Call


@pytest.fixture
def load() -> Callable[..., Any]:
    """Exports a module and runs it once on an engine."""

    def export_and_run(module: nn.Module, args: tuple[torch.Tensor, ...], engine: str) -> Any:
        file = io.BytesIO()
        to_native(torch.export.export(module, args)).save(file)
        with ptn_runtime.load(file.getvalue(), engine=engine) as model:
            return model(*[arg.numpy() for arg in args])

    return export_and_run
