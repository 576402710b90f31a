"""What the user asked of each axis in `dynamic_shapes`, to be compared with what PyTorch made of it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

__all__ = ["AxisRequest", "requested_axes"]


@dataclass(frozen=True, slots=True)
class AxisRequest:
    """An axis that the user wants to vary.

    Attributes:
        input: position of the tensor among all tensors of the example inputs.
        axis: the axis.
        name: the name of its Dim; `DYNAMIC` or `AUTO` where PyTorch shall find out.
        example: its size in the example.
        minimum: the smallest size asked for, if any.
    """

    input: int
    axis: int
    name: str
    example: int
    minimum: int | None = None


def requested_axes(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic_shapes: Any
) -> list[AxisRequest]:
    """The axes that `dynamic_shapes` asks to be dynamic, in the order of the example tensors.

    Args:
        module: the model whose forward takes the inputs.
        args: example inputs by position.
        kwargs: example inputs by name.
        dynamic_shapes: as `torch.export.export` has accepted it.
    """
    if dynamic_shapes is None:
        return []
    if hasattr(dynamic_shapes, "dynamic_shapes"):  # a ShapesCollection or AdditionalInputs
        dynamic_shapes = dynamic_shapes.dynamic_shapes(module, tuple(args), dict(kwargs))
    arguments = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    values: Any = arguments if isinstance(dynamic_shapes, Mapping) else tuple(arguments.values())
    found = _pairs(values, dynamic_shapes)
    # Inputs of the program are ordered by position, then as the keywords were given.
    order = {id(leaf): i for i, leaf in reversed(list(enumerate(_tensors((tuple(args), dict(kwargs))))))}
    requests = [request for tensor, spec in found for request in _requests(order[id(tensor)], tensor, spec)]
    return sorted(requests, key=lambda request: (request.input, request.axis))


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _pairs(value: Any, spec: Any) -> Iterator[tuple[torch.Tensor, Any]]:
    """Every tensor with what was said of it."""
    if spec is None:
        return
    if isinstance(value, torch.Tensor):
        yield value, spec
    elif isinstance(value, Mapping) and isinstance(spec, Mapping):
        for key, item in value.items():
            yield from _pairs(item, spec.get(key))
    else:
        items, specs = _children(value), _children(spec)
        if len(items) == len(specs) and not any(
            item is value for item in items
        ):  # an integer may vary, but has no axes
            for item, inner in zip(items, specs, strict=True):
                yield from _pairs(item, inner)


def _children(tree: Any) -> list[Any]:
    """The parts of a container, one level down; None counts as a part."""
    parts: list[Any] = pytree.tree_leaves(tree, is_leaf=lambda item: item is not tree)
    return parts


def _requests(position: int, tensor: torch.Tensor, spec: Any) -> Iterator[AxisRequest]:
    """The dynamic axes of one tensor: its spec is a dict by axis, or a list with an entry for every axis."""
    entries = spec.items() if isinstance(spec, Mapping) else enumerate(spec) if isinstance(spec, list | tuple) else ()
    for axis, dim in entries:
        if dim is None or isinstance(dim, int):
            continue
        kind = getattr(getattr(dim, "type", None), "name", "")  # of a hint such as Dim.AUTO
        if kind == "STATIC":
            continue
        yield AxisRequest(position, axis, kind or dim.__name__, int(tensor.shape[axis]), getattr(dim, "min", None))
