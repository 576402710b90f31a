"""Arithmetic on numbers that are known only while the graph runs: done on 0-d tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from ptn_format.dtypes import ScalarType

from ptn_runtime.errors import LoweringError
from ptn_runtime.lowering.static import Value, ValueKind
from ptn_runtime.lowering.views import Emit

__all__ = ["Scalars", "has_tensor_form"]

_BINARY = {
    "_operator.add": "aten.add.Tensor",
    "_operator.sub": "aten.sub.Tensor",
    "_operator.mul": "aten.mul.Tensor",
    "_operator.truediv": "aten.div.Tensor",
    "_operator.mod": "aten.remainder.Tensor",
    "_operator.pow": "aten.pow.Tensor_Tensor",
    "_operator.eq": "aten.eq.Tensor",
    "_operator.ne": "aten.ne.Tensor",
    "_operator.lt": "aten.lt.Tensor",
    "_operator.le": "aten.le.Tensor",
    "_operator.gt": "aten.gt.Tensor",
    "_operator.ge": "aten.ge.Tensor",
    "_operator.and_": "aten.logical_and.default",
    "_operator.or_": "aten.logical_or.default",
    "torch.sym_max": "aten.maximum.default",
    "torch.sym_min": "aten.minimum.default",
}
_LOGICAL = frozenset({"_operator.and_", "_operator.or_", "torch.sym_not", "_operator.not_"})


def has_tensor_form(op: str) -> bool:
    """Whether the scalar function `op` can be computed on tensors of no axes."""
    return op in _BINARY or op in _UNARY or op in ("_operator.floordiv", "torch.sym_ite")


class Scalars:
    """Turns Python arithmetic into nodes.

    A run-time number is a 0-d tensor; arithmetic happens as in Python, on int64, float64 and bool.
    """

    def __init__(self, emit: Emit) -> None:
        self._emit = emit

    def as_value(self, item: Any) -> Value:
        """A scalar as a 0-d tensor; a tensor is given back as it is."""
        if isinstance(item, Value):
            return item
        if isinstance(item, bool):
            dtype = ScalarType.BOOL
        elif isinstance(item, int):
            dtype = ScalarType.LONG
        elif isinstance(item, float):
            dtype = ScalarType.DOUBLE
        else:
            raise LoweringError(f"{item!r} cannot stand for a tensor")
        data = np.array(item, dtype=dtype.numpy)
        data.flags.writeable = False
        return Value(-1, "scalar", dtype, (), ValueKind.CONSTANT, None, data)

    def run_time(self, op: str, args: Sequence[Any]) -> Value:
        """The result of the scalar function `op`.

        Raises:
            LoweringError: there is no tensor operator for it.
        """
        values = [self._widened(self.as_value(arg)) for arg in args]
        if op in _BINARY or op == "_operator.floordiv":
            return self._binary(op, values)
        unary = _UNARY.get(op)
        if unary is not None:
            return unary(self._emit, values[0])
        if op == "torch.sym_ite":
            condition, then, otherwise = values
            then, otherwise = self._common(then, otherwise)
            return self._emit("aten.where.self", condition=condition, self=then, other=otherwise)
        raise LoweringError(f"{op} of an item of a tensor, known only while the graph runs, is not supported")

    def run_time_assertion(self, args: Sequence[Any]) -> list[Value]:
        """The conditions that an assertion on a run-time number makes: true, or between a minimum and a maximum."""
        value = self.as_value(args[0])
        if len(args) == 1:
            return [value if value.dtype is ScalarType.BOOL else self._emit("aten.ne.Scalar", self=value, other=0)]
        low, high = args[1], args[2]
        conditions = []
        if low is not None:
            conditions.append(self._emit("aten.ge.Scalar", self=value, other=low))
        if high is not None:
            conditions.append(self._emit("aten.le.Scalar", self=value, other=high))
        return conditions

    def _binary(self, op: str, values: Sequence[Value]) -> Value:
        if op not in _LOGICAL:
            values = self._common(*values)
        if op == "_operator.truediv":
            values = [_cast(self._emit, value, ScalarType.DOUBLE) for value in values]
        if op == "_operator.floordiv":
            return self._emit("aten.div.Tensor_mode", self=values[0], other=values[1], rounding_mode="floor")
        return self._emit(_BINARY[op], self=values[0], other=values[1])

    def _common(self, a: Value, b: Value) -> list[Value]:
        dtype = ScalarType.DOUBLE if ScalarType.DOUBLE in (a.dtype, b.dtype) else ScalarType.LONG
        return [_cast(self._emit, value, dtype) for value in (a, b)]

    def _widened(self, value: Value) -> Value:
        if value.dtype is ScalarType.BOOL:
            return value
        dtype = ScalarType.DOUBLE if value.dtype.is_floating_point else ScalarType.LONG
        return _cast(self._emit, value, dtype)


def _cast(emit: Emit, value: Value, dtype: ScalarType) -> Value:
    return value if value.dtype is dtype else emit("aten._to_copy.default", self=value, dtype=dtype)


def _to_int(emit: Emit, value: Value) -> Value:
    if value.dtype is ScalarType.DOUBLE:
        value = emit("aten.trunc.default", self=value)
    return _cast(emit, value, ScalarType.LONG)


_UNARY: dict[str, Callable[[Emit, Value], Value]] = {
    "_operator.neg": lambda emit, value: emit("aten.neg.default", self=_cast(emit, value, value.dtype)),
    "_operator.abs": lambda emit, value: emit("aten.abs.default", self=value),
    "_operator.not_": lambda emit, value: emit("aten.logical_not.default", self=value),
    "torch.sym_not": lambda emit, value: emit("aten.logical_not.default", self=value),
    "torch.sym_float": lambda emit, value: _cast(emit, value, ScalarType.DOUBLE),
    "torch.sym_int": _to_int,
}
