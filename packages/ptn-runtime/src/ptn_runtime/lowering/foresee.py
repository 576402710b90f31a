"""What the stages of a method will probably be, before there are data.

Whether an engine runs a method is asked when it is loaded, so the nodes behind a cut are wanted then. Sizes that data
decide are taken at their upper bounds. Numbers are tried: first those that the program itself compares them with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from ptn_format.dtypes import ScalarType
from ptn_format.graph import TensorMeta

from ptn_runtime.errors import InputError, LoweringError
from ptn_runtime.lowering.join import join
from ptn_runtime.lowering.simplify import MASK_DTYPES
from ptn_runtime.lowering.stages import Answer, Cut
from ptn_runtime.lowering.static import StaticGraph, TensorSpec, Value
from ptn_runtime.shapes.index import index_result_shape
from ptn_runtime.shapes.sort import flattens

__all__ = ["foreseen"]

_MOST_STAGES = 40
"""Stages that are tried in all; a program with more is asked about when it runs."""
_MOST_WAYS = 16
"""Ways through the branches that data choose, likewise."""
_NUMBERS = (2, 1, 0, 3, 4, 8, 16)
"""Numbers to try where the program says nothing, for the sizes that models have."""
_LARGEST = 2**31 - 1
_FORESEEN = "foreseen"

_I64 = ScalarType.LONG


@dataclass(slots=True)
class _Budget:
    stages: int = _MOST_STAGES


@dataclass(frozen=True, slots=True)
class _Way:
    """A way through the stages."""

    graphs: tuple[StaticGraph, ...]

    @property
    def ends(self) -> bool:
        """Whether it goes to the end of the method."""
        return self.graphs[-1].cut is None

    def then(self, graph: StaticGraph) -> _Way:
        """The way with one stage more."""
        return _Way((*self.graphs, graph))


def foreseen(first: StaticGraph) -> tuple[StaticGraph, ...]:
    """Whole graphs of the ways that a method whose first stage is `first` may take; at least one.

    One graph per choice of branches. A way whose later stages cannot be foretold ends early.

    Raises:
        LoweringError: what follows a cut cannot be lowered, whatever the data give.
    """
    known: tuple[StaticGraph, ...] | None = first.extra.get(_FORESEEN)
    if known is None:
        known = tuple(join(way.graphs).graph for way in _ways(_Way((first,)), _Budget()))
        first.extra[_FORESEEN] = known
    return known


def _ways(way: _Way, budget: _Budget) -> list[_Way]:
    cut = way.graphs[-1].cut
    if cut is None:
        return [way]
    found: list[_Way] = []
    partial = way
    branches = cut.is_number and cut.asked.dtype is ScalarType.BOOL
    misfit = False
    failure: LoweringError | None = None
    for answer in _answers(cut):
        if budget.stages <= 0 or len(found) >= _MOST_WAYS:
            break
        budget.stages -= 1
        try:
            further = _ways(way.then(cut.resume(answer)), budget)
        except InputError:
            misfit = True  # that answer does not fit the program
            continue
        except LoweringError as error:
            failure = failure or error
            continue
        complete = [item for item in further if item.ends]
        found += complete
        partial = max([partial, *further], key=lambda item: len(item.graphs))
        if complete and not branches:
            break
    if failure is not None and (branches or not (found or misfit)):
        raise failure
    return found[:_MOST_WAYS] or [partial]


def _answers(cut: Cut) -> Iterator[Answer]:
    """What the data may give at a cut, the likeliest first."""
    if cut.is_number:
        yield from _numbers(cut)
        return
    # Where the program compares sizes, such as `torch._check(found.shape[0] == 3)`, the largest may not fit.
    for count in (_LARGEST, *_NUMBERS):
        specs = _selected(cut.node.op, cut.node.args, count) or _described(cut.metas, count)
        if specs is not None:
            yield tuple(
                TensorSpec(spec.dtype, _clipped(spec.shape, meta)) for spec, meta in zip(specs, cut.metas, strict=True)
            )


def _clipped(shape: tuple[int, ...], meta: TensorMeta | None) -> tuple[int, ...]:
    if meta is None or len(meta.sizes) != len(shape):
        return shape
    return tuple(min(size, dim.max) if dim.max >= 0 else size for size, dim in zip(shape, meta.sizes, strict=True))


def _numbers(cut: Cut) -> Iterator[Answer]:
    dtype = cut.asked.dtype
    tried: list[Any]
    if dtype is ScalarType.BOOL:
        tried = [True, False]
    elif dtype.is_floating_point:
        tried = [float(number) for number in (*cut.hints, 1, 0)]
    else:
        tried = [number for number in (*cut.hints, *_NUMBERS) if abs(number) <= _LARGEST]
    for number in dict.fromkeys(tried):
        yield np.array(number).astype(dtype.numpy).tobytes()


def _described(metas: tuple[TensorMeta | None, ...], count: int) -> tuple[TensorSpec, ...] | None:
    """The results of any other operator by what the file says of them: open axes have `count` elements or a few."""
    specs = []
    for meta in metas:
        if meta is None:
            return None
        sizes = (dim.max if dim.max >= 0 else max(dim.min, min(count, _NUMBERS[-1])) for dim in meta.sizes)
        specs.append(TensorSpec(meta.dtype, tuple(sizes)))
    return tuple(specs)


def _selected(op: str, args: dict[str, Any], count: int) -> tuple[TensorSpec, ...] | None:
    """The results of an operator whose shapes data decide, if they select `count` elements or all that there are."""
    value: Any = args.get("self")
    if op == "aten.nonzero.default":
        return (TensorSpec(_I64, (min(value.numel, count), len(value.shape))),)
    if op == "aten.masked_select.default":
        everything = prod(np.broadcast_shapes(value.shape, args["mask"].shape))
        return (TensorSpec(value.dtype, (min(everything, count),)),)
    if op == "aten._unique2.default":
        count = min(value.numel, count)
        inverse = value.shape if args["return_inverse"] or args["return_counts"] else (0,)
        counts = (count,) if args["return_counts"] else (0,)
        return (TensorSpec(value.dtype, (count,)), TensorSpec(_I64, inverse), TensorSpec(_I64, counts))
    if op in ("aten.unique_dim.default", "aten.unique_consecutive.default"):
        flat = op == "aten.unique_consecutive.default" and flattens(len(value.shape), args["dim"])
        return _distinct(args, count, flat=flat)
    if op == "aten.bincount.default":
        weights = args["weights"]
        kind = (
            _I64 if weights is None else ScalarType.DOUBLE if weights.dtype is not ScalarType.FLOAT else weights.dtype
        )
        return (TensorSpec(kind, (max(min(value.numel, count), args["minlength"]),)),)
    if op == "aten.repeat_interleave.Tensor":  # as if each were repeated once
        return (TensorSpec(args["repeats"].dtype, (min(args["repeats"].numel, count),)),)
    if op == "aten.index.Tensor":
        return (TensorSpec(value.dtype, _indexed(value.shape, args["indices"], count)),)
    if op == "aten.index_put.default":
        return (TensorSpec(value.dtype, value.shape),)
    return None


def _distinct(args: dict[str, Any], count: int, *, flat: bool) -> tuple[TensorSpec, ...]:
    """The results of an operator that drops repeated slices along `dim`, or repeated elements."""
    value, dim = args["self"], args["dim"]
    if flat:
        count = min(value.numel, count)
        inverse = value.shape if args["return_inverse"] else (0,)
        counts = (count,) if args["return_counts"] else (0,)
        return TensorSpec(value.dtype, (count,)), TensorSpec(_I64, inverse), TensorSpec(_I64, counts)
    shape = list(value.shape)
    length = shape[dim]
    shape[dim] = count = min(length, count)
    return TensorSpec(value.dtype, tuple(shape)), TensorSpec(_I64, (length,)), TensorSpec(_I64, (count,))


def _indexed(shape: tuple[int, ...], indices: tuple[Value | None, ...], count: int) -> tuple[int, ...]:
    """The shape of `self[indices]` where every mask selects `count` places, or as many as the smallest has.

    Beside other indices a mask must select as many as they have, or one.
    """
    given = [index for index in indices if index is not None]
    count = min([count, *(index.numel for index in given if index.dtype in MASK_DTYPES)])
    beside = np.broadcast_shapes(*(index.shape for index in given if index.dtype not in MASK_DTYPES))
    if beside and beside[-1] != 1:
        count = beside[-1]
    expanded: list[TensorSpec | Value | None] = []
    for index in indices:
        if index is not None and index.dtype in MASK_DTYPES:
            expanded += [TensorSpec(_I64, (count,))] * len(index.shape)
        else:
            expanded.append(index)
    return index_result_shape(shape, tuple(expanded))
