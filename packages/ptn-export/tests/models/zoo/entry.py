"""What the table says of one model, and what follows from it: example inputs, dynamic shapes, the code to export it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

VOCABULARY = 100
BOUNDS = {"batch": (1, 8), "length": (1, 64)}
"""Of axes that many models have."""


@dataclass(frozen=True)
class Input:
    """One tensor that a model takes.

    Attributes:
        axes: a number where the size is fixed, the axis's name where it varies, or a multiple of it: `32 * height`.
        dtype: element type.
        make: from shape and generator to a tensor.
    """

    axes: tuple[int | str, ...]
    dtype: torch.dtype
    make: Callable[[Sequence[int], torch.Generator], torch.Tensor]

    def shape(self, sizes: Mapping[str, int]) -> list[int]:
        return [axis if isinstance(axis, int) else _factor(axis) * sizes[_symbol(axis)] for axis in self.axes]

    def dynamic(self) -> dict[int, str]:
        return {i: axis for i, axis in enumerate(self.axes) if isinstance(axis, str)}

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}[{', '.join(map(str, self.axes))}]"


def floats(*axes: int | str) -> Input:
    """Standard normal numbers."""
    return Input(axes, torch.float32, lambda shape, generator: torch.randn(shape, generator=generator))


def tokens(*axes: int | str, vocabulary: int = VOCABULARY) -> Input:
    """Ids from 3 on, because the smallest ones often stand for padding and ends."""
    return Input(
        axes, torch.int64, lambda shape, generator: torch.randint(3, vocabulary, tuple(shape), generator=generator)
    )


def integers(*axes: int | str, low: int, high: int) -> Input:
    """Integers from `low` up to, but not including, `high`."""
    return Input(
        axes, torch.int64, lambda shape, generator: torch.randint(low, high, tuple(shape), generator=generator)
    )


def mask(*axes: int | str) -> Input:
    """1 for what is there and 0 for padding behind it: each row of the last axis is padded by one more, down to 1."""

    def make(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
        *rows, length = shape
        kept = (length - torch.arange(torch.Size(rows).numel())).clamp_min(1)
        return (torch.arange(length) < kept[:, None]).long().reshape(tuple(shape))

    return Input(axes, torch.int64, make)


@dataclass(frozen=True)
class Entry:
    """One model.

    Attributes:
        name: its name in the page and in the tests, one word.
        source: the class that a user imports, such as `transformers.BertModel`, or what the model is.
        build: the module; its parameters are drawn anew by `make`.
        inputs: by parameter name, a tensor or a fixed value. A single one is passed by position, several by name.
        sizes: of the axes that vary: of the example first, then of the other calls.
        bounds: least and greatest size of the axes that are not in `BOUNDS`.
        tolerance: largest difference from eager PyTorch, as a part of the largest value of the result.
        refused: by engine that refuses the model, a pattern of the reason.
    """

    name: str
    source: str
    build: Callable[[], nn.Module]
    inputs: Mapping[str, Input | bool | int | None]
    sizes: Sequence[Mapping[str, int]] = (
        {"batch": 2, "length": 7},
        {"batch": 1, "length": 16},
        {"batch": 3, "length": 1},
    )
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    tolerance: float = 1e-5
    refused: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    def make(self) -> nn.Module:
        """The module in eval mode, always with the same weights."""
        torch.manual_seed(0)
        return randomise(self.build().eval().requires_grad_(False))

    def call(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Arguments by name, always the same for equal sizes."""
        generator = torch.Generator().manual_seed(sum(sizes.values()))
        return {
            name: item.make(item.shape(sizes), generator) if isinstance(item, Input) else item
            for name, item in self.inputs.items()
        }

    @property
    def by_position(self) -> bool:
        return len(self.inputs) == 1

    @property
    def axes(self) -> list[str]:
        """Names of the axes that vary, in the order of the inputs."""
        found = [_symbol(axis) for item in self.tensors.values() for axis in item.dynamic().values()]
        return list(dict.fromkeys(found))

    @property
    def tensors(self) -> dict[str, Input]:
        return {name: item for name, item in self.inputs.items() if isinstance(item, Input)}

    def range_of(self, axis: str) -> tuple[int, int]:
        return self.bounds.get(axis) or BOUNDS[axis]

    def code(self) -> str:
        """Python that exports `model` with the arguments in variables of their names; it leaves `exported`."""
        lines = []
        for axis in self.axes:
            low, high = self.range_of(axis)
            lines.append(f'{axis} = torch.export.Dim("{axis}", min={low}, max={high})')
        dynamic = {
            name: "{" + ", ".join(f"{i}: {axis}" for i, axis in item.dynamic().items()) + "}"
            if isinstance(item, Input)
            else "None"
            for name, item in self.inputs.items()
        }
        values = {name: name if isinstance(item, Input) else repr(item) for name, item in self.inputs.items()}
        arguments = [f"({next(iter(values.values()))},)"] if self.by_position else ["()", _dict(values)]
        if self.axes:
            arguments.append(f"dynamic_shapes={_dict(dynamic)}")
        line = f"exported = torch.export.export(model, {', '.join(arguments)})"
        if len(line) > 110:
            broken = "".join(f"    {_broken(argument)},\n" for argument in ["model", *arguments])
            line = f"exported = torch.export.export(\n{broken})"
        return "\n".join([*lines, line])


def _dict(items: Mapping[str, str]) -> str:
    return "{" + ", ".join(f'"{name}": {value}' for name, value in items.items()) + "}"


def _broken(argument: str) -> str:
    """An argument of an indented call, its entries on lines of their own where one line is too long for them."""
    if len(argument) <= 115:
        return argument
    head, _, entries = argument.removesuffix("}").partition("{")
    # An entry starts with its name in quotes; the values hold none.
    return head + "{\n" + "".join(f"        {entry},\n" for entry in re.split(r", (?=\")", entries)) + "    }"


def _factor(axis: str) -> int:
    match = re.match(r"(\d+) \* ", axis)
    return int(match.group(1)) if match else 1


def _symbol(axis: str) -> str:
    return axis.rpartition(" ")[2]


def randomise(module: nn.Module) -> nn.Module:
    """Draws weights as those of a trained network are: every part matters, and activations stay of the order of one.

    Freshly made modules have scales of 1, offsets of 0 and weights so small that much of the network has no effect.
    """
    with torch.no_grad():
        for part in module.modules():
            for name, value in part.named_parameters(recurse=False):
                if isinstance(part, nn.Embedding):
                    value.normal_()
                elif value.dim() >= 2:
                    value.normal_(std=value[0].numel() ** -0.5)
                elif name.endswith("weight"):
                    value.uniform_(0.5, 1.5)
                else:
                    value.normal_(std=0.1)
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                part.running_mean.normal_(std=0.1)
                part.running_var.uniform_(0.5, 1.5)
    return module


def leaves(result: Any) -> list[Any]:
    """Tensors or arrays of a result, in order."""
    return [leaf for leaf in pytree.tree_leaves(result) if leaf is not None]
