"""The static graph: what engines get.

Everything is decided: the graph is functional (no in-place operator, no aliasing), every value has an element
type and a concrete shape, scalar arguments are Python values, and nodes stand in execution order. What depends on
tensor data stays as a node with nested static graphs.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
from ptn_format.dtypes import ScalarType
from ptn_format.graph import AffineGroup, PackedQuant

if TYPE_CHECKING:
    from ptn_runtime.lowering.stages import Cut

__all__ = ["Arg", "StateUpdate", "StaticGraph", "StaticNode", "TensorSpec", "Value", "ValueKind", "literal"]


class ValueKind(enum.Enum):
    """Where a value comes from."""

    INPUT = "input"
    CONSTANT = "constant"
    STATE = "state"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Element type and shape: what a shape rule returns for each result of an operator."""

    dtype: ScalarType
    shape: tuple[int, ...]


@dataclass(eq=False, slots=True)
class Value:
    """One tensor of a static graph; compared by identity.

    Attributes:
        id: dense number, unique in the graph (nested graphs share the numbering of their parent).
        name: SSA name in the file; for messages.
        dtype: element type.
        shape: concrete shape; `()` is 0-d.
        kind: where the value comes from.
        key: for `CONSTANT`s of the package their data key (the owner's, where the file has aliases), for `STATE`
            the state key. None for constants that exist in this graph only.
        data: for `CONSTANT`s without key, the folded array.
    """

    id: int
    name: str
    dtype: ScalarType
    shape: tuple[int, ...]
    kind: ValueKind = ValueKind.NODE
    key: str | None = None
    data: npt.NDArray[Any] | None = None

    @property
    def numel(self) -> int:
        """Number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def nbytes(self) -> int:
        """Bytes of the dense tensor."""
        return self.numel * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype.torch_name}{list(self.shape)}"


Arg: TypeAlias = (
    "Value | bool | int | float | str | ScalarType | AffineGroup | PackedQuant | tuple[Arg, ...] | StaticGraph | None"
)
"""An argument: a tensor, a Python scalar, a list (as a tuple) of either, or a nested graph.

A `Value` of shape `()` in the place of a scalar is a number that is known only while the graph runs.
"""


@dataclass(eq=False, slots=True)
class StaticNode:
    """One operator call.

    Attributes:
        name: the node's name in the file.
        op: canonical operator name, `aten.add.Tensor`: never in-place, never a `_copy` view.
        args: every argument of the schema by name, defaults filled in.
        outputs: the results in schema order; elements of a `Tensor[]` result in list order.
        source: the user's `file:line`, where the file has it.
        on_host: the runtime runs it in numpy, between two stages; engines never see it.
    """

    name: str
    op: str
    args: dict[str, Arg]
    outputs: tuple[Value, ...]
    source: str | None = None
    on_host: bool = False

    @property
    def output(self) -> Value:
        """The only result of a single-result operator."""
        (value,) = self.outputs
        return value

    def inputs(self) -> Iterator[Value]:
        """Every tensor among the arguments, in order, with repetitions; nested graphs are not entered."""
        for arg in self.args.values():
            if isinstance(arg, Value):
                yield arg
            elif isinstance(arg, tuple):
                for item in arg:
                    if isinstance(item, Value):
                        yield item

    def subgraphs(self) -> Iterator[StaticGraph]:
        """The nested graphs among the arguments."""
        for arg in self.args.values():
            if isinstance(arg, StaticGraph):
                yield arg

    def describe(self) -> str:
        """The node for messages: name, operator and where the user wrote it."""
        text = f"node '{self.name}' ({self.op})"
        return f"{text} from {self.source}" if self.source else text


@dataclass(frozen=True, slots=True)
class StateUpdate:
    """At the end of a run the state `old.key` takes the contents of `new`.

    Attributes:
        old: the state's value at the start.
        new: its value at the end; same dtype and shape.
        in_place: no node reads `old` after `new` is produced, so an engine may write it in place.
    """

    old: Value
    new: Value
    in_place: bool


@dataclass(eq=False, slots=True)
class StaticGraph:
    """A method (or a nested graph) for one set of input shapes.

    Attributes:
        method: the method's name; for nested graphs with a suffix.
        inputs: user inputs in the file's order (operands, in a nested graph).
        constants: every constant that a node or result reads.
        states: every state that a node, result or update touches.
        nodes: calls in execution order.
        outputs: user-visible tensor results in order, repetitions included.
        results: all user-visible results in order: tensors and the scalars and Nones between them.
        state_updates: how state changes.
        input_updates: pairs (input, its new contents) for inputs that the user's code mutates.
        extra: notes of the runtime.
        cut: where the method goes on once data are there, the graph is a stage, and this is what follows it; only the
            runtime looks at it.
    """

    method: str
    inputs: tuple[Value, ...]
    constants: tuple[Value, ...]
    states: tuple[Value, ...]
    nodes: tuple[StaticNode, ...]
    outputs: tuple[Value, ...]
    results: tuple[Value | bool | int | float | None, ...]
    state_updates: tuple[StateUpdate, ...] = ()
    input_updates: tuple[tuple[Value, Value], ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)
    cut: Cut | None = None

    @property
    def input_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes that the graph was made for."""
        return tuple(value.shape for value in self.inputs)

    def last_uses(self) -> Mapping[int, int]:
        """For each value id the index of the last node that reads it; results and updates count as later."""
        last: dict[int, int] = {}
        for index, node in enumerate(self.nodes):
            for value in node.inputs():
                last[value.id] = index
        end = len(self.nodes)
        kept: Sequence[Value] = [
            *self.outputs,
            *(update.new for update in self.state_updates),
            *(new for _, new in self.input_updates),
        ]
        for value in kept:
            last[value.id] = end
        return last


def literal(value: Value) -> npt.NDArray[Any]:
    """The array of a folded constant.

    Raises:
        ValueError: the value is not one.
    """
    if value.data is None:
        raise ValueError(f"{value} has no literal data")
    return np.asarray(value.data)
