"""Binds a node's arguments to its operator's parameters, once per method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ptn_format.dtypes import ScalarType
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

from ptn_runtime.lowering.names import IGNORED_ARGUMENTS
from ptn_runtime.lowering.plan import Ref
from ptn_runtime.shapes import Operator

__all__ = ["BindError", "BoundArguments", "bind", "literal_or_ref", "names_read"]

_RUN_TIME_NUMBERS = frozenset({"Number", "Number | None", "Scalar", "Scalar | None", "float", "float | None"})
"""Annotations of parameters where a number may stand that is known only while the graph runs."""


class BindError(Exception):
    """A node's arguments do not fit its operator; the text is a clause that says why."""


@dataclass(slots=True)
class BoundArguments:
    """A node's arguments in the operator's order; the fields are those of `plan.Call`."""

    args: dict[str, Any]
    tensors: tuple[tuple[str, int], ...]
    scalars: tuple[tuple[str, int, bool], ...]
    lists: tuple[tuple[str, tuple[Any, ...]], ...]


def bind(operator: Operator, inputs: Iterable[NamedArgument], slot_of: Callable[[str], int]) -> BoundArguments:
    """Gives every parameter of `operator` its argument: by name, by position, or its default.

    Args:
        operator: the catalogue's entry.
        inputs: the node's arguments.
        slot_of: the slot that holds a named value.

    Raises:
        BindError: an argument is missing, unknown, or of a kind that the parameter cannot take.
    """
    given = _by_parameter(operator, inputs)
    args: dict[str, Any] = {}
    tensors: list[tuple[str, int]] = []
    scalars: list[tuple[str, int, bool]] = []
    lists: list[tuple[str, tuple[Any, ...]]] = []
    for name in operator.parameters:
        if name not in given:
            if name not in operator.defaults:
                raise BindError(f"argument '{name}' is missing")
            args[name] = operator.defaults[name]
            continue
        argument = given[name]
        value = _convert(operator, name, argument, slot_of)
        if type(value) is Ref:
            args[name] = None
            if isinstance(argument, TensorArg) and name not in operator.numbers:
                tensors.append((name, value.slot))
            else:
                scalars.append((name, value.slot, _takes_run_time_number(operator, name)))
        elif type(value) is tuple and any(type(item) is Ref for item in value):
            args[name] = None
            lists.append((name, value))
        else:
            args[name] = value
    return BoundArguments(args, tuple(tensors), tuple(scalars), tuple(lists))


def _by_parameter(operator: Operator, inputs: Iterable[NamedArgument]) -> Mapping[str, Argument]:
    given: dict[str, Argument] = {}
    position = 0
    for item in inputs:
        name = item.name
        if name is None:
            if position >= len(operator.parameters):
                raise BindError(f"takes {len(operator.parameters)} arguments, has more")
            name = operator.parameters[position]
            position += 1
        elif name not in operator.parameters:
            if name in IGNORED_ARGUMENTS or isinstance(item.arg, NoneArg):
                continue
            raise BindError(f"argument '{name}' is not one of ({', '.join(operator.parameters)})")
        elif name in IGNORED_ARGUMENTS and name in operator.defaults:
            continue
        if name in given:
            raise BindError(f"argument '{name}' is given twice")
        given[name] = item.arg
    return given


def _convert(operator: Operator, name: str, argument: Argument, slot_of: Callable[[str], int]) -> Any:
    annotation = str(operator.rule.__annotations__.get(name, ""))
    match argument:
        case TensorArg(name=value):
            return Ref(slot_of(value))
        case TensorListArg(names=values):
            return tuple(Ref(slot_of(value)) for value in values)
        case OptionalTensorListArg(names=values, has_value=flags):
            return tuple(Ref(slot_of(v)) if has else None for v, has in zip(values, flags, strict=True))
        case IntArg(value=value, ref=None) if "ScalarType" in annotation:
            # A defaulted dtype is written as its number.
            try:
                return ScalarType(value)
            except ValueError:
                raise BindError(f"argument '{name}' is no element type: {value}") from None
        case IntArg() | FloatArg() | BoolArg():
            value = literal_or_ref(argument, slot_of)
            return (value,) if annotation.startswith("tuple[int") else value
        case IntListArg(values=values, refs=refs):
            if not refs:
                return values
            return tuple(Ref(slot_of(ref)) if ref else value for value, ref in zip(values, refs, strict=True))
        case FloatListArg(values=values) | BoolListArg(values=values):
            return values
        case NoneArg():
            # A list may be written as None where it has a default; the rules say which parameters take None.
            return None
        case StringArg(value=value) | ScalarTypeArg(value=value):
            return value
        case _:
            raise BindError(f"argument '{name}' is a {type(argument).__name__}")


def literal_or_ref(argument: IntArg | FloatArg | BoolArg, slot_of: Callable[[str], int]) -> Any:
    """The scalar that an argument holds, or a `Ref` to it."""
    return argument.value if argument.ref is None else Ref(slot_of(argument.ref))


def names_read(argument: Argument) -> Iterable[str]:
    """The names of the values that an argument refers to."""
    match argument:
        case TensorArg(name=name):
            return (name,)
        case IntArg(ref=ref) | FloatArg(ref=ref) | BoolArg(ref=ref):
            return () if ref is None else (ref,)
        case TensorListArg(names=names) | OptionalTensorListArg(names=names) | IntListArg(refs=names):
            return tuple(name for name in names if name)
        case _:
            return ()


def _takes_run_time_number(operator: Operator, name: str) -> bool:
    annotation = str(operator.rule.__annotations__.get(name, ""))
    # `arange` and its like take numbers that make the shape.
    if operator.family == "create" and name in ("start", "end", "step", "steps"):
        return False
    return annotation in _RUN_TIME_NUMBERS or ("Tensor" in annotation and "Number" in annotation)
