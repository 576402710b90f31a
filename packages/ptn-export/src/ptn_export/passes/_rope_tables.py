"""Stored tables of rotary embeddings: constants whose row p holds sines and cosines of p times some frequencies.

Models store them as complex numbers, as two tables or as one; each frequency once, or once per channel. Row 0 tells
cosines (the scale) from sines (0); the n-th cosine and the n-th sine of a row belong together. Frequencies follow from
the turn between rows, and count only if float32 angles give the whole table again within rounding.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ptn_export.dims import is_static_true, same_size
from ptn_export.passes._graph import (
    Context,
    argument,
    is_call,
    operand,
    operands,
    place,
    shape_of,
    sizes_of,
    tensor_of,
)

__all__ = ["Rows", "Tables"]

_aten = torch.ops.aten
_FEWEST_ROWS = 4
_ROUNDING = 2e-6
"""How far a table may be from what its frequencies give, for a scale of 1. Like the operator's angles it is float32."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a table that a graph reads.

    Attributes:
        node: what gives them: [*shape, ...].
        table: the constant.
        index: their positions: a tensor, or the first of consecutive ones, which may be a symbolic number.
        shape: shape of their positions.
        key: the constant's name.
    """

    node: fx.Node
    table: fx.Node
    index: fx.Node | int
    shape: tuple[Any, ...]
    key: str


@dataclass(frozen=True, slots=True)
class _Waves:
    """What the columns of some tables are, in one order: all columns of the first table, then those of the next.

    Attributes:
        is_cosine: bool [columns]; the others are sines.
        scale: the factor of all of them.
        frequencies: angle per row of each pair of a cosine and a sine: float64 [columns / 2].
    """

    is_cosine: torch.Tensor
    scale: float
    frequencies: torch.Tensor


class Tables:
    """The tables among the constants of a method. False if there is none."""

    def __init__(self, module: fx.GraphModule, context: Context) -> None:
        self._context = context
        self._data = {
            node: data
            for node in module.graph.nodes
            if node.op == "placeholder" and (data := context.constant(node)) is not None and _may_be_table(data)
        }
        self._waves: dict[tuple[fx.Node, ...], _Waves | None] = {}

    def __bool__(self) -> bool:
        return bool(self._data)

    def rows(self, node: fx.Node) -> Rows | None:
        """The rows that a node reads, if it reads rows of a table, or is one."""
        if node in self._data:
            return Rows(node, node, 0, (shape_of(node)[0],), self._context.key(node))
        index = self._index(node)
        if index is None:
            return None
        table = operand(node, 0)
        extra = len(shape_of(table)) - 1
        shape = shape_of(node)[:-extra]
        return Rows(node, table, index, shape, self._context.key(table))

    def _index(self, node: fx.Node) -> fx.Node | int | None:
        """The positions of rows of a table."""
        table = operands(node)[0] if node.op == "call_function" and node.args else None
        if not isinstance(table, fx.Node) or table not in self._data:
            return None
        index: Any = None
        if is_call(node, _aten.slice.Tensor):
            if argument(node, "dim") % len(shape_of(table)) != 0 or argument(node, "step") != 1:
                return None
            return self._start(argument(node, "start"), shape_of(table)[0])
        if is_call(node, _aten.index.Tensor):
            indices = argument(node, "indices")
            index = indices[0] if len(indices) == 1 else None
        elif is_call(node, _aten.index_select.default) and argument(node, "dim") == 0:
            index = argument(node, "index")
        elif is_call(node, _aten.embedding.default):
            index = argument(node, "indices")
        value = tensor_of(index)
        is_integer = value is not None and value.dtype in (torch.int64, torch.int32) and 1 <= value.dim() <= 2
        return index if is_integer and isinstance(index, fx.Node) else None

    def _start(self, start: fx.Node | int | None, count: int) -> fx.Node | int | None:
        """The first row of a slice; None where it could be counted from the end without our knowing."""
        if isinstance(start, fx.Node):
            value = start.meta.get("val")
            ranges = self._context.program.range_constraints
            is_position = isinstance(value, torch.SymInt) and is_static_true(value >= 0, ranges)
            return start if is_position else None
        first = int(start or 0)
        return max(first + count, 0) if first < 0 else first

    def agree(self, rows: Sequence[Rows]) -> bool:
        """Whether all are rows of the same positions."""
        first = rows[0]
        return all(
            item.index == first.index
            and len(item.shape) == len(first.shape)
            and all(map(same_size, item.shape, first.shape))
            for item in rows
        )

    # What tables hold

    def _known(self, rows: Iterable[Rows]) -> _Waves | None:
        tables = tuple(item.table for item in rows)
        if tables not in self._waves:
            self._waves[tables] = _waves([self._data[table] for table in tables])
        return self._waves[tables]

    def frequencies(self, rows: Sequence[Rows], width: int) -> fx.Node | None:
        """The frequencies of an embedding of `width` channels as a constant; None if the tables are no such ones."""
        waves = self._known(rows)
        if waves is None:
            return None
        order = _order(waves.frequencies, width // 2)
        if order is None:
            return None
        data = torch.zeros(width // 2)
        data[order] = waves.frequencies.float()
        return self._context.add_constant(data, f"{rows[0].key}.frequencies", [item.key for item in rows])

    def stand_ins(
        self, rows: Sequence[Rows], positions: torch.Tensor, frequencies: torch.Tensor
    ) -> dict[fx.Node, torch.Tensor]:
        """What the rows would be at other positions, for other frequencies, in float64."""
        waves = self._known(rows)
        assert waves is not None
        order = _order(waves.frequencies, len(frequencies))
        assert order is not None
        angles = positions[..., None] * frequencies[order]
        columns = angles.new_empty((*positions.shape, len(waves.is_cosine)))
        columns[..., waves.is_cosine] = angles.cos() * waves.scale
        columns[..., ~waves.is_cosine] = angles.sin() * waves.scale
        values, begin = {}, 0
        for item in rows:
            shape = self._data[item.table].shape[1:]
            values[item.node] = columns[..., begin : begin + shape.numel()].reshape(*positions.shape, *shape)
            begin += shape.numel()
        return values

    def positions(self, rows: Sequence[Rows], x: fx.Node, axis: int, before: fx.Node) -> fx.Node:
        """The positions of rows as a tensor in front of `before`, which are as many as `x` has along `axis`."""
        first = rows[0]
        if isinstance(first.index, fx.Node) and tensor_of(first.index) is not None:
            return first.index
        (count,) = first.shape
        # Where it can be told from `x`, the table is not needed any more.
        length = sizes_of(x, before)[axis] if same_size(shape_of(x)[axis], count) else sizes_of(first.node, before)[0]
        pattern = tensor_of(first.node)
        assert pattern is not None
        # PyTorch would infer a count from both ends, which is not known to equal this one.
        value = pattern.new_empty((count,), dtype=torch.int64)
        return place(before, value, _aten.arange.start_step, first.index, _sum(first.index, length, before))


def _sum(start: fx.Node | int, length: fx.Node | int, before: fx.Node) -> fx.Node | int:
    if isinstance(start, int) and (isinstance(length, int) or start == 0):
        return length + start if isinstance(length, int) else length
    values = [item.meta["val"] if isinstance(item, fx.Node) else item for item in (start, length)]
    return place(before, values[0] + values[1], operator.add, start, length)


def _may_be_table(data: torch.Tensor) -> bool:
    """Whether row 0 has but zeros and one positive number, and row 1 is not empty."""
    if data.dtype is not torch.float32 or data.dim() < 2 or data.shape[0] < _FEWEST_ROWS or not data[0].numel():
        return False
    first = data[0].detach()
    largest = first.max()
    return bool(((first == 0) | (first == largest)).all()) and bool(largest >= 0) and bool(data[1].detach().any())


def _waves(tables: list[torch.Tensor]) -> _Waves | None:
    """Reads frequencies off tables; None if they are not made of them."""
    if len({table.shape[0] for table in tables}) != 1:
        return None
    columns = torch.cat([table.detach().flatten(1) for table in tables], 1).double()
    is_cosine = columns[0] != 0
    if not is_cosine.any() or 2 * int(is_cosine.sum()) != len(is_cosine):
        return None
    scale = float(columns[0].max())
    turns = torch.complex(columns[:, is_cosine], columns[:, ~is_cosine]) / scale
    positions = torch.arange(len(columns), dtype=torch.float64)
    steps = (turns[1:] * turns[:-1].conj()).angle().cumsum(0)
    # Least squares through the origin.
    frequencies = (positions[1:, None] * steps).sum(0) / (positions[1:] ** 2).sum()
    candidates = torch.stack(_neighbours(frequencies.float()))
    errors = torch.stack([_error(positions, candidate, turns) for candidate in candidates])
    smallest, best = errors.min(0)
    if not bool((smallest <= _ROUNDING).all()):
        return None
    return _Waves(is_cosine, scale, candidates.gather(0, best[None])[0].double())


def _error(positions: torch.Tensor, frequencies: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """The largest difference between a table of `frequencies` and `turns`, per frequency."""
    angles = _angles(positions, frequencies)
    return (torch.polar(torch.ones_like(angles), angles) - turns).abs().amax(0)


def _angles(positions: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    """Angles as the operator computes them."""
    return (positions.float()[:, None] * frequencies).double()


def _neighbours(frequencies: torch.Tensor) -> list[torch.Tensor]:
    infinity = torch.full_like(frequencies, float("inf"))
    return [frequencies, frequencies.nextafter(infinity), frequencies.nextafter(-infinity)]


def _order(frequencies: torch.Tensor, count: int) -> torch.Tensor | None:
    """Which of `count` frequencies each one is: all come once, or all a second time behind, or each twice in a row."""
    if len(frequencies) == count:
        return torch.arange(count)
    if len(frequencies) != 2 * count:
        return None
    if bool((frequencies[:count] == frequencies[count:]).all()):
        return torch.arange(count).repeat(2)
    if bool((frequencies[::2] == frequencies[1::2]).all()):
        return torch.arange(count).repeat_interleave(2)
    return None
