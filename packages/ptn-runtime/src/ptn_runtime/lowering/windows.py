"""Windows whose place is a number from data, and whose size is not: `cache[:, n : n + 1]` for an item `n`.

Read or written by index tensors they are part of one graph, whatever the number; as slices each place would be a graph
of its own. The size is known where both ends are the same number plus constants, and the file gives the result that
size. Numbers that may be negative, which count from the end, stay slices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ptn_format.dtypes import ScalarType
from ptn_format.graph import TensorMeta

from ptn_runtime.lowering.plan import Assertion, Call, Item, Ref, ScalarCall, Step
from ptn_runtime.lowering.static import Value, ValueKind
from ptn_runtime.lowering.views import Emit

__all__ = ["START", "mark_windows", "windowed"]

START: Mapping[str, str] = {
    "aten.select.int": "index",
    "aten.select_scatter.default": "index",
    "aten.slice.Tensor": "start",
    "aten.slice_scatter.default": "start",
}
"""Operators on windows, and the argument that says where the window starts."""

_LOWER = {"_operator.ge": 0, "_operator.gt": 1}


@dataclass(slots=True)
class _Numbers:
    """What is known of the numbers of a graph.

    Attributes:
        forms: slots that hold the item of a tensor plus a constant: slot of the item, and the constant.
        least: lower bounds of items by slot.
    """

    forms: dict[int, tuple[int, int]] = field(default_factory=dict)
    least: dict[int, int] = field(default_factory=dict)

    def bound(self, slot: int, low: int) -> None:
        """Notes that the program asserts `low` as the least value of a number."""
        if slot in self.forms:
            item, offset = self.forms[slot]
            self.least[item] = max(self.least.get(item, low - offset), low - offset)

    def is_position(self, slot: int) -> bool:
        """Whether a number is never negative."""
        if slot not in self.forms:
            return False
        item, offset = self.forms[slot]
        return item in self.least and self.least[item] + offset >= 0


def mark_windows(steps: Sequence[Step]) -> None:
    """Sets `Call.window` of the calls that read or write a window of known size at a number from data."""
    numbers = _known(steps)
    for step in steps:
        if isinstance(step, Call) and step.op in START:
            step.window = _size(step, numbers)


def _known(steps: Sequence[Step]) -> _Numbers:
    numbers = _Numbers()
    limits: dict[int, tuple[int, int]] = {}  # by the slot of a comparison: the number, and what it is at least
    for step in steps:
        if isinstance(step, Item):
            numbers.forms[step.output] = (step.output, 0)
        elif isinstance(step, ScalarCall) and len(step.args) == 2:
            left, right = step.args
            if type(left) is int:  # addition commutes
                left, right = (right, left) if step.op == "_operator.add" else (None, None)
            if type(left) is not Ref or type(right) is not int:
                continue
            if step.op in _LOWER:
                limits[step.output] = (left.slot, right + _LOWER[step.op])
            elif left.slot in numbers.forms and step.op in ("_operator.add", "_operator.sub"):
                item, offset = numbers.forms[left.slot]
                numbers.forms[step.output] = (item, offset + (right if step.op == "_operator.add" else -right))
        elif isinstance(step, Assertion) and step.args and type(step.args[0]) is Ref:
            slot = step.args[0].slot
            if slot in limits:
                numbers.bound(*limits[slot])
            elif len(step.args) > 1 and type(step.args[1]) is int:
                numbers.bound(slot, step.args[1])
    return numbers


def _size(step: Call, numbers: _Numbers) -> int | None:
    """The size of the window of a call; None where it is not known, or the place is in the file."""
    slots = {name: slot for name, slot, _ in step.scalars}
    start = slots.pop(START[step.op], None)
    if start is None or not numbers.is_position(start):
        return None
    if step.op.startswith("aten.select"):
        return 1 if not slots else None
    end = slots.pop("end", None)
    if end is None or slots or end not in numbers.forms or step.args["step"] != 1:
        return None
    (item, first), (other, last) = numbers.forms[start], numbers.forms[end]
    size = last - first
    if item != other or size < 1:
        return None
    if step.op == "aten.slice.Tensor" and not _has_axis(step.metas[0], step.args["dim"], size):
        return None
    return size


def _has_axis(meta: TensorMeta | None, dim: int, size: int) -> bool:
    """Whether the file says that an axis has exactly this size."""
    if meta is None or not -len(meta.sizes) <= dim < len(meta.sizes):
        return False
    axis = meta.sizes[dim]
    return axis.is_static and axis.min == size


def windowed(emit: Emit, op: str, args: Mapping[str, Any], size: int) -> Value | None:
    """The result of a call on a window of `size` elements that starts at a tensor of no axes.

    Returns:
        The value; None where the arguments do not fit, so that the operator itself has to say why.
    """
    base: Value = args["self"]
    rank = len(base.shape)
    if not -rank <= args["dim"] < rank:
        return None
    dim = args["dim"] % rank
    shape = (*base.shape[:dim], size, *base.shape[dim + 1 :])
    writes = "src" in args
    if writes and args["src"].shape != (shape if op.startswith("aten.slice") else shape[:dim] + shape[dim + 1 :]):
        return None
    places = _places(emit, args[START[op]], size)
    if not writes:
        result = emit("aten.index_select.default", self=base, dim=dim, index=places)
        if op == "aten.select.int":
            result = emit("aten.view.default", self=result, size=shape[:dim] + shape[dim + 1 :])
        return result
    source: Value = args["src"]
    if source.dtype is not base.dtype:
        source = emit("aten._to_copy.default", self=source, dtype=base.dtype)
    source = emit("aten.view.default", self=source, size=shape)
    return emit("aten.index_copy.default", self=base, dim=dim, index=places, source=source)


def _places(emit: Emit, start: Value, size: int) -> Value:
    if start.dtype is not ScalarType.LONG:
        start = emit("aten._to_copy.default", self=start, dtype=ScalarType.LONG)
    if size == 1:
        return emit("aten.view.default", self=start, size=(1,))
    data = np.arange(size)
    data.flags.writeable = False
    steps = Value(-1, "steps", ScalarType.LONG, (size,), ValueKind.CONSTANT, None, data)
    return emit("aten.add.Tensor", self=steps, other=start)
