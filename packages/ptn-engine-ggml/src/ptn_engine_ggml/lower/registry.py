"""The table of lowerings, and the answer to what runs on which device.

A lowering is a function `(b, out, *arguments) -> Tensor | tuple[Tensor, ...]`:

* `b` is the native builder,
* `out` holds the results' `dtype` and `shape` (`out.dtype` of a single result, `out[i]` of several),
* then come the operator's arguments by ATen's own names: tensors as native handles (with `dtype` and `shape`), lists
  as tuples, everything else as the static graph has it.

It runs only for nodes that its check accepts, so it may rely on what the check says.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ptn_format.dtypes import ScalarType
from ptn_runtime.engine import SUPPORTED, Device, StaticNode, Support, Value
from ptn_runtime.reference.control import OPERATORS as CONTROL_OPERATORS
from ptn_runtime.shapes import FAMILIES as CATALOGUE_FAMILIES

__all__ = [
    "ALL",
    "FAMILIES",
    "FLOATS",
    "HOST_OPERATORS",
    "INTEGERS",
    "REALS",
    "Lowering",
    "Outputs",
    "lower",
    "lowering_of",
    "operators",
    "supports",
]

FAMILIES = tuple(family for family in CATALOGUE_FAMILIES if family not in ("symint", "control"))
"""Modules of this package that fill the table. Numbers are computed by lowering, control flow by `build.py`."""

HOST_OPERATORS = frozenset({*CONTROL_OPERATORS, "aten._assert_async.msg"})
"""Operators that the host decides on between native calls; see `build.py`."""

FLOATS = frozenset({ScalarType.FLOAT, ScalarType.HALF, ScalarType.BFLOAT16})
"""What ggml computes with: float32, and the two 16-bit types through it."""
REALS = FLOATS | {ScalarType.DOUBLE}
INTEGERS = frozenset(
    {
        ScalarType.BYTE,
        ScalarType.CHAR,
        ScalarType.SHORT,
        ScalarType.INT,
        ScalarType.LONG,
        ScalarType.UINT16,
        ScalarType.UINT32,
        ScalarType.UINT64,
    }
)
ALL = REALS | INTEGERS | {ScalarType.BOOL}

Check = Callable[[StaticNode], "str | None"]
_Function = TypeVar("_Function", bound=Callable[..., Any])


class Outputs(tuple[Value, ...]):
    """The results of a node: each with `dtype` and `shape`.

    Attributes:
        in_place: the first result may be written over the first argument (see `Builder.custom_in_place`).
    """

    in_place: bool = False

    @property
    def dtype(self) -> ScalarType:
        """Element type of the only (or first) result."""
        return self[0].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the only (or first) result."""
        return self[0].shape


@dataclass(frozen=True, slots=True)
class Lowering:
    """One entry of the table.

    Attributes:
        function: what builds the node.
        dtypes: element types that its tensor arguments and results may have.
        check: says why a node of accepted dtypes cannot be built, or None.
        empty: whether the function also takes arguments without elements; where not, a node with results that have
            elements but arguments that have none is refused.
        scalars: arguments that may be 0-d tensors in the place of a Python number.
    """

    function: Callable[..., Any]
    dtypes: frozenset[ScalarType]
    check: Check | None
    empty: bool
    scalars: tuple[str, ...]


_TABLE: dict[str, Lowering] = {}
_loaded = False


def lower(
    *names: str,
    dtypes: frozenset[ScalarType] = ALL,
    check: Check | None = None,
    empty: bool = False,
    scalars: tuple[str, ...] = (),
) -> Callable[[_Function], _Function]:
    """Enters the decorated function as the lowering of the operators `names`; see `Lowering` for the rest.

    Numbers given as 0-d tensors are refused unless named in `scalars`: most lowerings need them while they build.
    """

    def register(function: _Function) -> _Function:
        for name in names:
            if name in _TABLE:
                raise ValueError(f"{name} has a lowering already, in {_TABLE[name].function.__module__}")
            _TABLE[name] = Lowering(function, dtypes, check, empty, scalars)
        return function

    return register


def operators() -> Mapping[str, Lowering]:
    """The whole table; the family modules are imported on first use."""
    global _loaded
    if not _loaded:
        for module in (*FAMILIES, "elementwise_composed"):
            importlib.import_module(f"{__package__}.{module}")
        _loaded = True
    return _TABLE


def lowering_of(op: str) -> Lowering | None:
    """The lowering of a canonical operator, or None."""
    return operators().get(op)


def supports(node: StaticNode, device: Device) -> Support:
    """Whether `node` runs on `device`; a pure function of both."""
    if node.op in HOST_OPERATORS:
        return SUPPORTED
    if device.kind != "cpu":
        return Support.no("this release of the ggml engine runs on the CPU device only.")
    lowering = lowering_of(node.op)
    if lowering is None:
        return Support.no("the ggml engine has no lowering of this operator.")
    refusal = _dtype_refusal(node, lowering) or _shape_refusal(node, lowering)
    if refusal is None and lowering.check is not None:
        refusal = lowering.check(node)
    return SUPPORTED if refusal is None else Support.no(refusal)


def _dtype_refusal(node: StaticNode, lowering: Lowering) -> str | None:
    if lowering.dtypes is ALL:
        return None
    for value in (*node.inputs(), *node.outputs):
        if value.dtype not in lowering.dtypes:
            return f"'{value.name}' is {value.dtype.torch_name}; this operator runs on {_names(lowering.dtypes)}."
    return None


def _shape_refusal(node: StaticNode, lowering: Lowering) -> str | None:
    if all(value.numel == 0 for value in node.outputs):
        return None
    if not lowering.empty:
        for value in node.inputs():
            if value.numel == 0:
                return f"'{value.name}' has no elements ({list(value.shape)}) although a result has."
    return None


def _names(dtypes: frozenset[ScalarType]) -> str:
    return ", ".join(dtype.torch_name for dtype in sorted(dtypes))
