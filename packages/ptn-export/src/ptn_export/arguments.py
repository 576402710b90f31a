"""From the arguments of an fx node to the file's arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from ptn_format.graph import (
    Argument,
    BoolArg,
    BoolListArg,
    FloatArg,
    FloatListArg,
    IntArg,
    IntListArg,
    NamedArgument,
    NoneArg,
    OptionalTensorListArg,
    ScalarTypeArg,
    StringArg,
    TensorArg,
    TensorListArg,
)
from torch import fx

from ptn_export.dims import SCALAR_TYPES

__all__ = ["ArgumentError", "encode", "encode_call"]

_INT64 = range(-(2**63), 2**63)


class ArgumentError(Exception):
    """The format cannot hold an argument; the text says why."""


NameOf = Callable[[fx.Node], str]


def encode_call(node: fx.Node, name_of: NameOf) -> tuple[NamedArgument, ...]:
    """Every argument of a call of an operator, in schema order, defaults filled in.

    Args:
        node: a call whose target is an `OpOverload`.
        name_of: the SSA name of a value.

    Raises:
        ArgumentError: the format cannot hold one of them.
    """
    assert isinstance(node.target, torch._ops.OpOverload)
    encoded = []
    for i, formal in enumerate(node.target._schema.arguments):
        if not formal.kwarg_only and i < len(node.args):
            value: Any = node.args[i]
        elif formal.name in node.kwargs:
            value = node.kwargs[formal.name]
        elif formal.has_default_value():
            value = _default(formal)
        else:
            continue
        try:
            argument = encode(value, name_of, str(formal.real_type))
        except ArgumentError as error:
            raise ArgumentError(f"argument '{formal.name}': {error}") from error
        writes = formal.alias_info is not None and formal.alias_info.is_write
        encoded.append(NamedArgument(formal.name, argument, writes))
    return tuple(encoded)


def encode(value: Any, name_of: NameOf, schema_type: str = "") -> Argument:
    """One argument.

    Args:
        value: what fx holds: a node, a Python value, or a list of both.
        name_of: the SSA name of a value.
        schema_type: the schema's type, such as `Optional[List[int]]`; it decides what an empty list is.

    Raises:
        ArgumentError: the format has no such argument.
    """
    if isinstance(value, fx.Node):
        return _encode_node(value, name_of)
    if isinstance(value, list | tuple):
        return _encode_list(value, name_of, schema_type)
    if value is None:
        return NoneArg()
    if isinstance(value, bool):
        return BoolArg(value)
    if isinstance(value, int):
        return IntArg(_int(value))
    if isinstance(value, float):
        return FloatArg(value)
    if isinstance(value, str):
        return StringArg(value)
    if isinstance(value, torch.dtype):
        if value not in SCALAR_TYPES:
            raise ArgumentError(f"the format has no element type {_short(value)}")
        return ScalarTypeArg(SCALAR_TYPES[value])
    if isinstance(value, torch.device | torch.layout | torch.memory_format):
        return StringArg(str(value))
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        raise ArgumentError(f"the symbolic value {value} is not computed by any node of the graph")
    raise ArgumentError(f"the format has no argument of type {type(value).__name__}")


def _encode_node(node: fx.Node, name_of: NameOf) -> Argument:
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return TensorArg(name_of(node))
    if isinstance(value, bool | torch.SymBool):
        return BoolArg(ref=name_of(node))
    if isinstance(value, int | torch.SymInt):
        return IntArg(ref=name_of(node))
    if isinstance(value, float | torch.SymFloat):
        return FloatArg(ref=name_of(node))
    if value is None:
        return NoneArg()
    raise ArgumentError(f"the format has no value of type {type(value).__name__} (node '{node.name}')")


def _encode_list(values: Sequence[Any], name_of: NameOf, schema_type: str) -> Argument:
    if not values:
        return _empty_list(schema_type)
    items = [encode(value, name_of) for value in values]
    if all(isinstance(item, TensorArg | NoneArg) for item in items):
        names = tuple(item.name if isinstance(item, TensorArg) else "" for item in items)
        if all(names):
            return TensorListArg(names)
        return OptionalTensorListArg(names, tuple(bool(name) for name in names))
    if all(isinstance(item, BoolArg) and item.ref is None for item in items):
        return BoolListArg(tuple(item.value for item in items if isinstance(item, BoolArg)))
    if all(isinstance(item, IntArg) for item in items):
        ints = [item for item in items if isinstance(item, IntArg)]
        refs = tuple(item.ref or "" for item in ints)
        return IntListArg(tuple(item.value for item in ints), refs if any(refs) else ())
    if all(isinstance(item, IntArg | FloatArg) and item.ref is None for item in items):
        return FloatListArg(tuple(float(item.value) for item in items if isinstance(item, IntArg | FloatArg)))
    kinds = sorted({type(item).__name__.removesuffix("Arg") for item in items})
    raise ArgumentError(f"the format has no list that mixes {', '.join(kinds)}")


def _empty_list(schema_type: str) -> Argument:
    """An empty list of the type that the schema wants."""
    if "Optional[Tensor]" in schema_type and "List" in schema_type:
        return OptionalTensorListArg((), ())
    if "Tensor" in schema_type:
        return TensorListArg(())
    if "bool" in schema_type:
        return BoolListArg(())
    if "float" in schema_type:
        return FloatListArg(())
    return IntListArg(())


def _default(formal: Any) -> Any:
    """A default value; the schema keeps element types as plain numbers."""
    value = formal.default_value
    if "ScalarType" in str(formal.real_type) and isinstance(value, int):
        return _DTYPE_OF_NUMBER.get(value, value)
    return value


_DTYPE_OF_NUMBER = {int(scalar): dtype for dtype, scalar in SCALAR_TYPES.items()}


def _int(value: int) -> int:
    if value not in _INT64:
        raise ArgumentError(f"the integer {value} does not fit in 64 bits")
    return value


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
