"""Shape rules: what dtype and shape each operator's results have.

`OPERATORS` is the catalogue of the operators that the runtime knows; `infer` applies an operator's rule. One module
per family holds the rules; the modules are imported together when the catalogue is first used.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType, MappingProxyType
from typing import Any, Protocol, TypeAlias, TypeVar

from ptn_format.dtypes import ScalarType

from ptn_runtime.lowering.static import TensorSpec
from ptn_runtime.shapes._table import FamilyTable

__all__ = [
    "FAMILIES",
    "OPERATORS",
    "DataDependentError",
    "Number",
    "Operator",
    "Specs",
    "Tensor",
    "TensorSpec",
    "infer",
    "shape_rule",
]

FAMILIES = (
    "elementwise",
    "matmul",
    "conv",
    "pool",
    "norm",
    "attention",
    "reduction",
    "index",
    "layout",
    "sort",
    "resample",
    "create",
    "cast",
    "quant",
    "symint",
    "control",
)
"""The operator families; each has a module of this name here, in `reference` and in every engine."""


class Tensor(Protocol):
    """What a rule sees of a tensor: a `Value`, a `TensorSpec`, or anything else with these two."""

    @property
    def dtype(self) -> ScalarType: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


Number: TypeAlias = "bool | int | float | Tensor"
"""A scalar argument; a 0-d tensor in its place is a number that is known only while the graph runs."""

Specs: TypeAlias = "TensorSpec | tuple[TensorSpec, ...]"
_Rule = TypeVar("_Rule", bound=Callable[..., Specs])


class DataDependentError(ValueError):
    """The shape of a result depends on the contents of a tensor, so no rule can tell it."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One entry of the catalogue.

    Attributes:
        name: canonical name, such as `aten.add.Tensor`.
        family: the family, which is also the stem of the module that has the rule.
        rule: the shape rule.
        parameters: names of the schema's arguments in order.
        defaults: default values by parameter name.
        numbers: those parameters that take no tensor; a 0-d tensor there stands for a number.
        deterministic: the same arguments always give the same results; false for random generators.
    """

    name: str
    family: str
    rule: Callable[..., Specs]
    parameters: tuple[str, ...]
    defaults: Mapping[str, Any]
    numbers: frozenset[str]
    deterministic: bool = True


OPERATORS: FamilyTable[Operator] = FamilyTable(__name__, FAMILIES, "shape rule")
"""Every operator by canonical name."""


def shape_rule(*names: str, deterministic: bool = True) -> Callable[[_Rule], _Rule]:
    """Enters the decorated rule into `OPERATORS` under each of `names`.

    The rule's parameters are the operator's schema: same names (`from_` for `from`), order and defaults. It returns
    one `TensorSpec`, or a tuple of them for several results or a `Tensor[]` result, and raises `ValueError` with the
    reason where the arguments do not fit (`DataDependentError` where the shape cannot be known before the operator
    runs). A parameter that takes tensors says so in its annotation (`Tensor`, `Tensor | Number`, `tuple[Tensor, ...]`).
    """

    def register(rule: _Rule) -> _Rule:
        code: CodeType = rule.__code__
        named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        parameters = tuple(map(_schema_name, named))
        positional: tuple[Any, ...] = rule.__defaults__ or ()
        defaults: dict[str, Any] = dict(zip(parameters[code.co_argcount - len(positional) :], positional, strict=False))
        defaults.update(rule.__kwdefaults__ or {})
        numbers = frozenset(_schema_name(p) for p in named if "Tensor" not in rule.__annotations__[p])
        family = rule.__module__.rpartition(".")[2]
        called = rule if parameters == named else _respelled(rule)
        for name in names:
            entry = Operator(name, family, called, parameters, MappingProxyType(defaults), numbers, deterministic)
            OPERATORS.enter(name, entry)
        return rule

    return register


def _schema_name(parameter: str) -> str:
    """A parameter's name in the schema: `from`, which Python keeps for itself, is written `from_` in a rule."""
    bare = parameter.removesuffix("_")
    return bare if keyword.iskeyword(bare) else parameter


def _respelled(rule: Callable[..., Specs]) -> Callable[..., Specs]:
    """`rule` under the schema's names."""

    def called(**args: Any) -> Specs:
        return rule(**{f"{name}_" if keyword.iskeyword(name) else name: value for name, value in args.items()})

    called.__annotations__ = {_schema_name(name): kind for name, kind in rule.__annotations__.items()}
    return called


def infer(op: str, args: Mapping[str, Any]) -> tuple[TensorSpec, ...]:
    """The dtype and shape of each result of `op`.

    Args:
        op: canonical operator name.
        args: arguments by name: tensors as anything with `dtype` and `shape`, lists as tuples. Arguments with a
            default may be left out.

    Raises:
        KeyError: there is no such operator.
        ValueError: the arguments do not fit; the text says why.
    """
    operator = OPERATORS.filled.get(op) or OPERATORS[op]
    result = operator.rule(**args)
    return (result,) if isinstance(result, TensorSpec) else result
