"""What can go wrong with indices while a graph runs: which operators look indices up, and in which axis.

Kernels check every index that they use. This table is for what must be known before: that an error comes before any
state is written, and that it comes although an operator's result is empty and no kernel runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ptn_format.dtypes import ScalarType
from ptn_runtime.engine import StaticNode, Value

from ptn_engine_ggml.lower.common import axis_of

__all__ = ["WRITERS", "IndexCheck", "fails_otherwise", "index_checks"]

_SCATTERS = ("scatter.src", "scatter.value", "scatter_add.default", "scatter.reduce", "scatter.value_reduce")
_ALONG_AXIS = tuple(
    f"aten.{name}"
    for name in (
        *_SCATTERS,
        "scatter_reduce.two",
        "gather.default",
        "index_select.default",
        "index_add.default",
        "index_copy.default",
        "index_fill.int_Scalar",
        "index_fill.int_Tensor",
        "index_reduce.default",
    )
)
_SEVERAL = (
    "aten.index.Tensor",
    "aten._unsafe_index.Tensor",
    "aten.index_put.default",
    "aten._unsafe_index_put.default",
)

WRITERS = frozenset(
    {
        *(name for name in _ALONG_AXIS if "gather" not in name and "select" not in name),
        *(name for name in _SEVERAL if "put" in name),
        "aten.masked_scatter.default",
        "aten.select_scatter.default",
        "aten.slice_scatter.default",
        "aten.diagonal_scatter.default",
        "aten.as_strided_scatter.default",
    }
)
"""Operators whose lowering may write to the memory of its first argument (`Outputs.in_place`)."""

_FAILS_OTHERWISE = frozenset({"aten.masked_scatter.default", "aten._embedding_bag.default", "aten._grouped_mm.default"})

_CHECKED_WHERE_EMPTY = frozenset(
    {
        *(f"aten.{name}" for name in _SCATTERS),
        "aten.scatter_reduce.two",
        "aten.embedding.default",
        "aten._embedding_bag.default",
        "aten.index_select.default",
        "aten.index_reduce.default",
        "aten.take.default",
        "aten.put.default",
    }
)
"""Operators that fail in PyTorch, too, where the result has no elements but an index is out of range; others do not."""


@dataclass(frozen=True, slots=True)
class IndexCheck:
    """One tensor of indices.

    Attributes:
        index: the indices.
        axis: where they point into, for messages.
        size: the axis' size.
        negative: whether they may count from the end.
    """

    index: Value
    axis: int
    size: int
    negative: bool = False


def index_checks(node: StaticNode, *, empty: bool = False) -> list[IndexCheck]:
    """The indices that `node` looks up.

    Args:
        node: any node.
        empty: only those that are looked at although the results have no elements.
    """
    if empty and node.op not in _CHECKED_WHERE_EMPTY:
        return []
    find = _FINDERS.get(node.op)
    return list(find(node)) if find is not None else []


def fails_otherwise(node: StaticNode) -> bool:
    """Whether data can make the node fail in a way that no check of indices foresees."""
    if node.op in _FAILS_OTHERWISE:
        return True
    indices = node.args.get("indices")
    masks = isinstance(indices, tuple) and any(isinstance(i, Value) and i.dtype is ScalarType.BOOL for i in indices)
    return node.op in _SEVERAL and masks  # the number of true elements


def _value(node: StaticNode, name: str) -> Value:
    value = node.args[name]
    assert isinstance(value, Value)
    return value


def _rows(node: StaticNode) -> Iterator[IndexCheck]:
    yield IndexCheck(_value(node, "indices"), 0, _value(node, "weight").shape[0])


def _along_axis(node: StaticNode) -> Iterator[IndexCheck]:
    shape, dim = _value(node, "self").shape or (1,), node.args["dim"]
    assert isinstance(dim, int)
    axis = axis_of(dim, len(shape))
    yield IndexCheck(_value(node, "index"), axis, shape[axis])


def _flat(node: StaticNode) -> Iterator[IndexCheck]:
    yield IndexCheck(_value(node, "index"), 0, _value(node, "self").numel, negative=True)


def _several(node: StaticNode) -> Iterator[IndexCheck]:
    indices, axis = node.args["indices"], 0
    assert isinstance(indices, tuple)
    for index in indices:
        if isinstance(index, Value) and index.dtype is ScalarType.BOOL:
            axis += len(index.shape)
            continue
        if isinstance(index, Value):
            yield IndexCheck(index, axis, _value(node, "self").shape[axis], negative=True)
        axis += 1


_FINDERS: dict[str, Callable[[StaticNode], Iterator[IndexCheck]]] = {
    "aten.embedding.default": _rows,
    "aten._embedding_bag.default": _rows,
    "aten.take.default": _flat,
    "aten.put.default": _flat,
    **dict.fromkeys(_ALONG_AXIS, _along_axis),
    **dict.fromkeys(_SEVERAL, _several),
}
