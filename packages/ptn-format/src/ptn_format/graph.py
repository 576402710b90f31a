"""The in-memory graph of a `.ptn` program.

These frozen dataclasses mirror the tables of `schema/native_graph.fbs` one to one, so that decoding and
encoding lose nothing. They hold names, not pointers: a value is referred to by its SSA name, which is unique
within one `Graph` body (a method's graph and each nested graph separately), and a constant by its data key,
which is unique within the program.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from ptn_format.dtypes import ScalarType

__all__ = [
    "AffineGroup",
    "Argument",
    "BoolArg",
    "BoolListArg",
    "Dim",
    "FloatArg",
    "FloatListArg",
    "Graph",
    "GraphArg",
    "InputKind",
    "IntArg",
    "IntListArg",
    "Method",
    "MutableBufferSpec",
    "NamedArgument",
    "NamedTensorRef",
    "Node",
    "NoneArg",
    "OpKind",
    "OptionalTensorListArg",
    "Output",
    "OutputKind",
    "OutputSpec",
    "OutputValueKind",
    "PackedQuant",
    "Program",
    "QuantScheme",
    "ScalarType",
    "ScalarTypeArg",
    "StringArg",
    "TensorArg",
    "TensorListArg",
    "TensorMeta",
]


class OpKind(enum.IntEnum):
    """What a node is."""

    CALL_FUNCTION = 0
    PLACEHOLDER = 1
    OUTPUT = 2


class InputKind(enum.IntEnum):
    """The role of a graph value that enters a method from outside."""

    USER_INPUT = 0
    PARAMETER = 1
    BUFFER = 2
    CONSTANT_TENSOR = 3


class OutputKind(enum.IntEnum):
    """What becomes of a tensor result of a method."""

    USER_OUTPUT = 0
    BUFFER_MUTATION = 1
    USER_INPUT_MUTATION = 2


class OutputValueKind(enum.IntEnum):
    """The kind of value that one output of a node holds."""

    TENSOR = 0
    TENSOR_LIST = 1
    INT = 2
    BOOL = 3
    FLOAT = 4


@dataclass(frozen=True, slots=True)
class Dim:
    """The inclusive range of one axis: `min == max` is static, `max == -1` has no upper bound."""

    min: int = 0
    max: int = -1

    @property
    def is_static(self) -> bool:
        """Whether exactly one size is allowed."""
        return self.min == self.max

    def contains(self, size: int) -> bool:
        """Whether an axis of `size` elements lies in the range."""
        return size >= self.min and (self.max < 0 or size <= self.max)

    def __str__(self) -> str:
        if self.is_static:
            return str(self.min)
        return f"{self.min}..{self.max if self.max >= 0 else ''}"


@dataclass(frozen=True, slots=True)
class AffineGroup:
    """Group-wise affine quantisation of a constant whose bytes are bit-packed unsigned integers.

    `value = scale * ((packed + quant_min) - zero_point)`. One scale (and zero point) serves `group_size`
    consecutive elements of the last axis; 0 means the whole axis. No zero point key means symmetric.
    """

    scale_data_key: str
    scale_dtype: ScalarType
    quant_min: int
    quant_max: int
    group_size: int = 0
    zero_point_data_key: str | None = None
    zero_point_dtype: ScalarType = ScalarType.BYTE


@dataclass(frozen=True, slots=True)
class PackedQuant:
    """Opaque quantised blocks; `codec` names the layout, such as `gguf:q4_k`."""

    codec: str


QuantScheme = AffineGroup | PackedQuant


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """Type and logical shape of a tensor.

    Attributes:
        dtype: element type; `BYTE` for quantised constants.
        sizes: one range per axis; `()` is a 0-d tensor.
        dim_order: axes from outermost to innermost in memory; None where the file leaves it out (contiguous).
        quant: how the bytes of a constant encode its values.
    """

    dtype: ScalarType
    sizes: tuple[Dim, ...] = ()
    dim_order: tuple[int, ...] | None = None
    quant: QuantScheme | None = None


@dataclass(frozen=True, slots=True)
class TensorArg:
    """A tensor value."""

    name: str


@dataclass(frozen=True, slots=True)
class NoneArg:
    """Python's None."""


@dataclass(frozen=True, slots=True)
class IntArg:
    """An integer: the literal `value`, or the scalar value named by `ref` (then `value` is 0)."""

    value: int = 0
    ref: str | None = None


@dataclass(frozen=True, slots=True)
class FloatArg:
    """A float: the literal `value`, or the scalar value named by `ref`."""

    value: float = 0.0
    ref: str | None = None


@dataclass(frozen=True, slots=True)
class BoolArg:
    """A bool: the literal `value`, or the scalar value named by `ref`."""

    value: bool = False
    ref: str | None = None


@dataclass(frozen=True, slots=True)
class StringArg:
    """A string; also the spelling of devices, layouts and memory formats."""

    value: str


@dataclass(frozen=True, slots=True)
class ScalarTypeArg:
    """An element type."""

    value: ScalarType


@dataclass(frozen=True, slots=True)
class IntListArg:
    """Integers; where `refs` is not empty it has one entry per value, and a non-empty entry replaces the value."""

    values: tuple[int, ...]
    refs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FloatListArg:
    """Floats."""

    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class BoolListArg:
    """Bools."""

    values: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class TensorListArg:
    """Tensor values."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OptionalTensorListArg:
    """Tensor values, some absent; an absent one has the name `""`."""

    names: tuple[str, ...]
    has_value: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class GraphArg:
    """A nested graph: a branch or a body of a higher-order operator."""

    name: str
    graph: Graph


Argument = (
    TensorArg
    | NoneArg
    | IntArg
    | FloatArg
    | BoolArg
    | StringArg
    | ScalarTypeArg
    | IntListArg
    | FloatListArg
    | BoolListArg
    | TensorListArg
    | OptionalTensorListArg
    | GraphArg
)


@dataclass(frozen=True, slots=True)
class NamedArgument:
    """One argument of a node. `name` is the schema's argument name, or None for positional ones."""

    name: str | None
    arg: Argument
    mutated: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """One result of a node.

    Attributes:
        name: SSA name; empty for `TENSOR_LIST`, whose elements are named by `names`.
        kind: what the value is.
        alias_of: the input value whose storage the result shares, if any.
        names: element names of a `TENSOR_LIST`.
    """

    name: str
    kind: OutputValueKind = OutputValueKind.TENSOR
    alias_of: str | None = None
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """One node: a placeholder, a call of an operator, or the graph's output.

    `target` is spelled as in the file: `torch.ops.aten.add.Tensor`, `_operator.mul`, `torch.sym_max`.
    """

    name: str
    op_kind: OpKind
    target: str | None = None
    inputs: tuple[NamedArgument, ...] = ()
    outputs: tuple[Output, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph body in execution order.

    Attributes:
        nodes: placeholders first, one output node last.
        inputs: names of the user inputs (of the operands, in a nested graph).
        outputs: names of the tensor results in order: mutations first, then user outputs.
        tensor_values: type and shape of every tensor value; a method's constants need no entry.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    tensor_values: Mapping[str, TensorMeta] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NamedTensorRef:
    """Binds a placeholder to a constant of the package, or to a buffer with initial data."""

    name: str
    data_key: str
    meta: TensorMeta
    kind: InputKind = InputKind.USER_INPUT
    mutated: bool = False


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """What becomes of the graph output `name`.

    `target` is a buffer's fqn for `BUFFER_MUTATION`, an input's SSA name for `USER_INPUT_MUTATION`, else None.
    """

    name: str
    kind: OutputKind = OutputKind.USER_OUTPUT
    target: str | None = None


@dataclass(frozen=True, slots=True)
class MutableBufferSpec:
    """Binds a placeholder to a buffer without initial data: it starts as zeros."""

    name: str
    fqn: str


@dataclass(frozen=True, slots=True)
class Method:
    """One callable entry of a program."""

    name: str
    graph: Graph
    constants: tuple[NamedTensorRef, ...] = ()
    output_specs: tuple[OutputSpec, ...] = ()
    mutable_buffers: tuple[MutableBufferSpec, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """A whole program: its methods share constants and buffers by data key."""

    version: str
    methods: tuple[Method, ...]

    def method(self, name: str) -> Method:
        """Returns the method called `name`.

        Raises:
            KeyError: there is none.
        """
        for method in self.methods:
            if method.name == name:
                return method
        raise KeyError(name)
