"""`everywhere`: the check of the other tests, on every engine."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
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
