"""What a model of the comparison is: a module, how it is exported, and the calls that are made of it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

__all__ = ["Call", "Case", "Form", "Function", "case"]


@dataclass(frozen=True)
class Call:
    """One call of a method."""

    method: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Form:
    """How a method is exported: example inputs, and which of their axes are dynamic."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    dynamic: Any = None


@dataclass(frozen=True)
class Case:
    """A model.

    Attributes:
        name: for tables and messages.
        build: makes the module; weights depend on PyTorch's generator, which is seeded before.
        forms: by method, how it is exported. All methods are the module's `forward`, with other inputs.
        calls: made in this order, on one state.
        atol: largest absolute difference between a result and eager PyTorch's.
    """

    name: str
    build: Callable[[], nn.Module]
    forms: Mapping[str, Form]
    calls: Sequence[Call]
    atol: float = 1e-5

    def module(self) -> nn.Module:
        """A fresh module, always with the same weights."""
        torch.manual_seed(0)
        return self.build().eval()

    def exported(self) -> dict[str, ExportedProgram]:
        """Fresh exported programs by method; upstream's exporter may change the ones that it gets."""
        module = self.module()
        with warnings.catch_warnings(action="ignore"):  # PyTorch's own, about its own layers
            return {
                name: torch.export.export(module, form.args, dict(form.kwargs), dynamic_shapes=form.dynamic)
                for name, form in self.forms.items()
            }

    def expected(self) -> list[list[Any]]:
        """By call, the leaves of what eager PyTorch returns."""
        module = self.module()
        results = []
        for call in self.calls:
            args, kwargs = copy.deepcopy((call.args, dict(call.kwargs)))
            with torch.no_grad(), warnings.catch_warnings(action="ignore"):
                leaves = pytree.tree_leaves(module(*args, **kwargs))
            results.append([leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves])
        return results


class Function(nn.Module):
    """A plain function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function."""
        return self.function(*args, **kwargs)


def case(
    name: str,
    build: Callable[..., Any],
    *calls: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    dynamic: Any = None,
    atol: float = 1e-5,
) -> Case:
    """A model of one method, exported with the first of `calls`.

    Args:
        name: its name.
        build: a class or function that makes the module; a function with parameters is the module.
        calls: positional arguments of each call.
        kwargs: keyword arguments of every call.
        dynamic: as `dynamic_shapes` of `torch.export.export`.
        atol: largest absolute difference that is allowed.
    """
    named = kwargs or {}
    return Case(
        name=name,
        build=build,
        forms={"forward": Form(calls[0], named, dynamic)},
        calls=[Call("forward", args, named) for args in calls],
        atol=atol,
    )
