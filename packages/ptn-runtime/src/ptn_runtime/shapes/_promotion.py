"""PyTorch's type promotion.

Source of the rules: https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc
"""

from __future__ import annotations

from ptn_format.dtypes import ScalarType

from ptn_runtime.shapes import Number, Tensor

__all__ = ["as_number", "float_type", "is_integral", "number_type", "promote", "result_type", "sum_type"]

_INTEGER_SIZE = {
    ScalarType.BYTE: 1,
    ScalarType.CHAR: 1,
    ScalarType.SHORT: 2,
    ScalarType.INT: 4,
    ScalarType.LONG: 8,
}
_UNPROMOTED = frozenset({ScalarType.UINT16, ScalarType.UINT32, ScalarType.UINT64})
_FLOATING = frozenset({ScalarType.HALF, ScalarType.BFLOAT16, ScalarType.FLOAT, ScalarType.DOUBLE})
_INTEGRAL = frozenset({*_INTEGER_SIZE, *_UNPROMOTED})


def is_integral(dtype: ScalarType) -> bool:
    """Whether `dtype` is an integer type; bool is not."""
    return dtype in _INTEGRAL


def number_type(value: Number) -> ScalarType:
    """The dtype that a Python number stands for, or that of a number known only while the graph runs."""
    if isinstance(value, bool):
        return ScalarType.BOOL
    if isinstance(value, int):
        return ScalarType.LONG
    if isinstance(value, float):
        return ScalarType.FLOAT
    if value.dtype in _FLOATING:
        return ScalarType.FLOAT
    return ScalarType.BOOL if value.dtype is ScalarType.BOOL else ScalarType.LONG


def as_number(value: Number) -> bool | int | float:
    """Turns a 0-d tensor that stands for a number into some number of the same category."""
    if isinstance(value, bool | int | float):
        return value
    kind = number_type(value)
    if kind is ScalarType.FLOAT:
        return 0.0
    return False if kind is ScalarType.BOOL else 0


def promote(a: ScalarType, b: ScalarType) -> ScalarType:
    """The smallest dtype that holds both, as PyTorch sees it.

    Raises:
        ValueError: PyTorch has no common type for them.
    """
    if a is b or b is ScalarType.BOOL:
        return a
    if a is ScalarType.BOOL:
        return b
    if a in _FLOATING:
        if b not in _FLOATING:
            return a
        if ScalarType.DOUBLE in (a, b):
            return ScalarType.DOUBLE
        return ScalarType.FLOAT  # also of half and bfloat16, neither of which holds the other
    if b in _FLOATING:
        return b
    if a in _UNPROMOTED or b in _UNPROMOTED:
        raise ValueError(f"there is no common type for {a.torch_name} and {b.torch_name}; cast one of them")
    size_a, size_b = _INTEGER_SIZE[a], _INTEGER_SIZE[b]
    if size_a == size_b:
        return ScalarType.SHORT  # uint8 and int8
    return a if size_a > size_b else b


def _combine(higher: ScalarType | None, lower: ScalarType | None) -> ScalarType | None:
    """Merges two priorities: the lower one counts only where its category is above the higher one's."""
    if higher is None:
        return lower
    if lower is None or higher in _FLOATING:
        return higher
    if higher is ScalarType.BOOL or lower in _FLOATING:
        return promote(higher, lower)
    return higher


def result_type(*operands: Tensor | Number) -> ScalarType:
    """The dtype in which PyTorch computes with `operands`.

    Tensors with axes come before 0-d tensors, and those before Python numbers: a later kind changes the result only
    where its category (bool < integer < floating point) is higher.

    Raises:
        ValueError: PyTorch has no common type for them.
    """
    dimensioned: ScalarType | None = None
    zero_dim: ScalarType | None = None
    number: ScalarType | None = None
    for operand in operands:
        if isinstance(operand, bool | int | float):
            kind = number_type(operand)
            number = kind if number is None else promote(number, kind)
        elif operand.shape:
            dtype = operand.dtype
            dimensioned = dtype if dimensioned is None else promote(dimensioned, dtype)
        else:
            dtype = operand.dtype
            zero_dim = dtype if zero_dim is None else promote(zero_dim, dtype)
    result = _combine(dimensioned, _combine(zero_dim, number))
    if result is None:
        raise ValueError("expected at least one operand")
    return result


def float_type(dtype: ScalarType) -> ScalarType:
    """The dtype of a floating-point function of `dtype`: integers and bool become float32."""
    return dtype if dtype in _FLOATING else ScalarType.FLOAT


def sum_type(dtype: ScalarType, requested: ScalarType | None) -> ScalarType:
    """The dtype of a sum or product: the requested one, else int64 for integers and bool."""
    if requested is not None:
        return requested
    return dtype if dtype in _FLOATING else ScalarType.LONG
