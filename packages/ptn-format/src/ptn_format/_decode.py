"""From the tables of a program to the graph's dataclasses."""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any, TypeVar

from ptn_format import _tables as t
from ptn_format._flatbuffer import FREE_BYTES, FlatBuffer
from ptn_format.dtypes import ScalarType
from ptn_format.errors import FormatError, LimitError, ProgramError
from ptn_format.graph import (
    AffineGroup,
    Argument,
    BoolArg,
    BoolListArg,
    Dim,
    FloatArg,
    FloatListArg,
    Graph,
    GraphArg,
    InputKind,
    IntArg,
    IntListArg,
    Method,
    MutableBufferSpec,
    NamedArgument,
    NamedTensorRef,
    Node,
    NoneArg,
    OpKind,
    OptionalTensorListArg,
    Output,
    OutputKind,
    OutputSpec,
    OutputValueKind,
    PackedQuant,
    QuantScheme,
    ScalarTypeArg,
    StringArg,
    TensorArg,
    TensorListArg,
    TensorMeta,
)
from ptn_format.limits import MAX_AXIS_SIZE, MAX_GRAPH_DEPTH, MAX_RANK

__all__ = ["Decoder"]

_T = TypeVar("_T")
_Enum = TypeVar("_Enum", bound=IntEnum)

_INT64 = struct.Struct("<q")
_INT32 = struct.Struct("<i")
_DOUBLE = struct.Struct("<d")
_NONE = NoneArg()
_FALSE = BoolArg(False)
_TRUE = BoolArg(True)

# A dict look-up takes a fifth of the time of calling the enumeration.
_SCALAR_TYPES: dict[int, ScalarType] = {int(kind): kind for kind in ScalarType}
_OP_KINDS: dict[int, OpKind] = {int(kind): kind for kind in OpKind}
_VALUE_KINDS: dict[int, OutputValueKind] = {int(kind): kind for kind in OutputValueKind}
_INPUT_KINDS: dict[int, InputKind] = {int(kind): kind for kind in InputKind}
_OUTPUT_KINDS: dict[int, OutputKind] = {int(kind): kind for kind in OutputKind}


class Decoder:
    """Decodes methods out of one buffer.

    `method` raises `ProgramError` where the buffer is damaged and `LimitError` where it exceeds a cap; both say
    where. Nothing decoded refers to the buffer.
    """

    def __init__(self, buffer: FlatBuffer) -> None:
        self._buffer = buffer
        self._dims: dict[int, Dim] = {}
        self._metas: dict[int, TensorMeta] = {}
        self._named_arguments: dict[int, NamedArgument] = {}
        self._nodes: dict[int, Node] = {}
        self._prices: dict[int, int] = {}
        self._argument_readers: tuple[Callable[[int], Argument] | None, ...] = (
            None,
            self._tensor_arg,
            self._none_arg,
            self._int_arg,
            self._float_arg,
            self._bool_arg,
            self._string_arg,
            self._scalar_type_arg,
            self._int_list_arg,
            self._float_list_arg,
            self._bool_list_arg,
            self._tensor_list_arg,
            self._optional_tensor_list_arg,
        )
        self._depth = 0
        self._graphs = 0  # read so far

    def method(self, at: int) -> Method:
        """The method whose table lies at byte `at`."""
        b = self._buffer
        name, graph, constants, output_specs, mutable_buffers = b.table(t.METHOD, at)
        method = b.string(at + name)
        try:
            return Method(
                name=method,
                graph=self._graph(b.follow(at + graph)),
                constants=self._each(at, constants, self._named_tensor_ref),
                output_specs=self._each(at, output_specs, self._output_spec),
                mutable_buffers=self._each(at, mutable_buffers, self._mutable_buffer),
            )
        except FormatError as error:
            _within(error, f"method '{method}'")
            raise

    # ---------------------------------------------------------------------------------------------- helpers

    def _once(self, known: dict[int, _T], at: int, read: Callable[[int], _T]) -> _T:
        """What `read` makes of the table at byte `at`, which never changes: decoded once, however often shared.

        Each further use still costs what reading again would beyond `FREE_BYTES`, since all who walk the decoded
        graph pay for it again. Tables with nested graphs are not kept: how deep a graph lies differs by use.
        """
        value = known.get(at)
        if value is not None:
            if at in self._prices:
                self._buffer.spend(self._prices[at], at)
            return value
        budget, graphs = self._buffer.budget, self._graphs
        value = read(at)
        if self._graphs == graphs:
            known[at] = value
            price = budget - self._buffer.budget - FREE_BYTES
            if price > 0:
                self._prices[at] = price
        return value

    def _each(self, at: int, offset: int, read: Callable[[int], Any]) -> tuple[Any, ...]:
        return tuple([read(element) for element in self._buffer.tables(at + offset)]) if offset else ()

    def _strings(self, at: int, offset: int) -> tuple[str, ...]:
        return self._buffer.strings(at + offset) if offset else ()

    def _optional_string(self, at: int, offset: int) -> str | None:
        """None where the string is absent, or empty, which the format takes for the same."""
        return self._buffer.string(at + offset) or None if offset else None

    def _enum(self, values: dict[int, _Enum], what: str, at: int, offset: int) -> _Enum:
        number = self._buffer.data[at + offset] if offset else 0
        value = values.get(number)
        if value is None:
            raise self._unknown(what, number, at + offset)
        return value

    def _unknown(self, what: str, number: int, at: int) -> ProgramError:
        return self._buffer.error(f"{number} is not a known {what}; the file is damaged, or newer than it says", at)

    def _int32(self, at: int, offset: int) -> int:
        value: int = _INT32.unpack_from(self._buffer.data, at + offset)[0] if offset else 0
        return value

    # ------------------------------------------------------------------------------------------------ graph

    def _graph(self, at: int) -> Graph:
        if self._depth >= MAX_GRAPH_DEPTH:
            raise LimitError(f"more than {MAX_GRAPH_DEPTH} graphs lie within each other", place=f"byte {at}")
        self._depth += 1
        self._graphs += 1
        try:
            nodes, inputs, outputs, tensor_values = self._buffer.table(t.GRAPH, at)
            return Graph(
                nodes=self._each(at, nodes, self._node),
                inputs=self._strings(at, inputs),
                outputs=self._strings(at, outputs),
                tensor_values=self._tensor_values(at + tensor_values) if tensor_values else {},
            )
        finally:
            self._depth -= 1

    def _tensor_values(self, at: int) -> dict[str, TensorMeta]:
        b = self._buffer
        values: dict[str, TensorMeta] = {}
        for element in b.tables(at):
            name, meta = b.table(t.TENSOR_VALUE, element)
            text = b.string(element + name)
            if text in values:
                raise b.error(f"the tensor value '{text}' is listed twice", element)
            values[text] = self._tensor_meta(b.follow(element + meta))
        return values

    def _node(self, at: int) -> Node:
        return self._once(self._nodes, at, self._new_node)

    def _new_node(self, at: int) -> Node:
        b = self._buffer
        name, op_kind, target, inputs, outputs, metadata = b.table(t.NODE, at)
        text = b.string(at + name)
        try:
            return Node(
                text,
                self._enum(_OP_KINDS, "OpKind", at, op_kind),
                self._optional_string(at, target),
                self._each(at, inputs, self._named_argument),
                self._each(at, outputs, self._output),
                self._metadata(at + metadata) if metadata else {},
            )
        except FormatError as error:
            _within(error, f"node '{text}'")
            raise

    def _metadata(self, at: int) -> dict[str, str]:
        b = self._buffer
        metadata: dict[str, str] = {}
        for element in b.tables(at):
            key, value = b.table(t.KEY_VALUE, element)
            text = b.string(element + key)
            if text in metadata:
                raise b.error(f"the metadata key '{text}' is listed twice", element)
            metadata[text] = b.string(element + value)
        return metadata

    def _output(self, at: int) -> Output:
        name, alias_of, kind, names = self._buffer.table(t.OUTPUT, at)
        return Output(
            self._buffer.string(at + name),
            self._enum(_VALUE_KINDS, "OutputValueKind", at, kind),
            self._optional_string(at, alias_of),
            self._strings(at, names),
        )

    # -------------------------------------------------------------------------------------------- arguments

    def _named_argument(self, at: int) -> NamedArgument:
        return self._once(self._named_arguments, at, self._new_named_argument)

    def _new_named_argument(self, at: int) -> NamedArgument:
        b = self._buffer
        name, arg, mutated = b.table(t.NAMED_ARGUMENT, at)
        return NamedArgument(
            b.string(at + name) or None if name else None,
            self._argument(b.follow(at + arg)),
            b.data[at + mutated] != 0 if mutated else False,
        )

    def _argument(self, at: int) -> Argument:
        b = self._buffer
        value_type, value = b.table(t.ARGUMENT, at)
        tag = b.data[at + value_type] if value_type else 0
        if tag == 0 or not value:
            raise b.error("an Argument holds no value", at)
        if tag == len(self._argument_readers):
            return self._graph_arg(b.follow(at + value))
        read = self._argument_readers[tag] if tag < len(self._argument_readers) else None
        if read is None:
            raise self._unknown("ArgumentValue", tag, at + value_type)
        return read(b.follow(at + value))

    def _tensor_arg(self, at: int) -> TensorArg:
        (name,) = self._buffer.table(t.TENSOR_ARG, at)
        return TensorArg(self._buffer.string(at + name))

    def _none_arg(self, at: int) -> NoneArg:
        self._buffer.table(t.NONE_ARG, at)
        return _NONE

    def _int_arg(self, at: int) -> IntArg:
        value, ref = self._buffer.table(t.INT_ARG, at)
        number = _INT64.unpack_from(self._buffer.data, at + value)[0] if value else 0
        return IntArg(number, self._optional_string(at, ref))

    def _float_arg(self, at: int) -> FloatArg:
        value, ref = self._buffer.table(t.FLOAT_ARG, at)
        number = _DOUBLE.unpack_from(self._buffer.data, at + value)[0] if value else 0.0
        return FloatArg(number, self._optional_string(at, ref))

    def _bool_arg(self, at: int) -> BoolArg:
        value, ref = self._buffer.table(t.BOOL_ARG, at)
        truth = self._buffer.data[at + value] != 0 if value else False
        if not ref:
            return _TRUE if truth else _FALSE
        return BoolArg(truth, self._optional_string(at, ref))

    def _string_arg(self, at: int) -> StringArg:
        (value,) = self._buffer.table(t.STRING_ARG, at)
        return StringArg(self._buffer.string(at + value))

    def _scalar_type_arg(self, at: int) -> ScalarTypeArg:
        (value,) = self._buffer.table(t.SCALAR_TYPE_ARG, at)
        return ScalarTypeArg(self._enum(_SCALAR_TYPES, "ScalarType", at, value))

    def _int_list_arg(self, at: int) -> IntListArg:
        values, refs = self._buffer.table(t.INT_LIST_ARG, at)
        return IntListArg(self._buffer.scalars(at + values, "q", 8), self._strings(at, refs))

    def _float_list_arg(self, at: int) -> FloatListArg:
        (values,) = self._buffer.table(t.FLOAT_LIST_ARG, at)
        return FloatListArg(self._buffer.scalars(at + values, "d", 8))

    def _bool_list_arg(self, at: int) -> BoolListArg:
        (values,) = self._buffer.table(t.BOOL_LIST_ARG, at)
        return BoolListArg(self._buffer.scalars(at + values, "?", 1))

    def _tensor_list_arg(self, at: int) -> TensorListArg:
        (names,) = self._buffer.table(t.TENSOR_LIST_ARG, at)
        return TensorListArg(self._buffer.strings(at + names))

    def _optional_tensor_list_arg(self, at: int) -> OptionalTensorListArg:
        names, has_value = self._buffer.table(t.OPTIONAL_TENSOR_LIST_ARG, at)
        return OptionalTensorListArg(self._buffer.strings(at + names), self._buffer.scalars(at + has_value, "?", 1))

    def _graph_arg(self, at: int) -> GraphArg:
        name, graph = self._buffer.table(t.GRAPH_ARG, at)
        text = self._buffer.string(at + name)
        try:
            return GraphArg(text, self._graph(self._buffer.follow(at + graph)))
        except FormatError as error:
            _within(error, f"graph '{text}'")
            raise

    # ---------------------------------------------------------------------------------------------- tensors

    def _tensor_meta(self, at: int) -> TensorMeta:
        return self._once(self._metas, at, self._new_tensor_meta)

    def _new_tensor_meta(self, at: int) -> TensorMeta:
        b = self._buffer
        dtype, sizes, dim_order, quant = b.table(t.TENSOR_META, at)
        for what, offset in (("sizes", sizes), ("dim_order", dim_order)):
            if offset and (rank := b.words[b.follow(at + offset) >> 2]) > MAX_RANK:
                raise LimitError(f"a tensor has {rank} {what}, more than {MAX_RANK}", place=f"byte {at}")
        return TensorMeta(
            self._enum(_SCALAR_TYPES, "ScalarType", at, dtype),
            self._each(at, sizes, self._dim),
            b.scalars(at + dim_order, "i", 4) if dim_order else None,
            self._quant(b.follow(at + quant)) if quant else None,
        )

    def _dim(self, at: int) -> Dim:
        dim = self._dims.get(at)
        if dim is None:
            dim = self._dims[at] = self._new_dim(at)
        return dim

    def _new_dim(self, at: int) -> Dim:
        b = self._buffer
        low, high = b.table(t.DIM, at)
        minimum = _INT64.unpack_from(b.data, at + low)[0] if low else 0
        maximum = _INT64.unpack_from(b.data, at + high)[0] if high else -1
        if minimum > MAX_AXIS_SIZE or maximum > MAX_AXIS_SIZE:
            raise LimitError(
                f"an axis of {minimum}..{maximum} elements is larger than {MAX_AXIS_SIZE}", place=f"byte {at}"
            )
        return Dim(minimum, maximum)

    def _quant(self, at: int) -> QuantScheme:
        b = self._buffer
        scheme_type, scheme = b.table(t.QUANT_SPEC, at)
        tag = b.data[at + scheme_type] if scheme_type else 0
        if tag == 0 or not scheme:
            raise b.error("a QuantSpec holds no scheme", at)
        target = b.follow(at + scheme)
        if tag == 1:
            return self._affine_group(target)
        if tag == 2:
            (codec,) = b.table(t.PACKED_QUANT, target)
            return PackedQuant(b.string(target + codec))
        raise self._unknown("QuantScheme", tag, at + scheme_type)

    def _affine_group(self, at: int) -> AffineGroup:
        b = self._buffer
        scale_key, scale_dtype, low, high, group, zero_key, zero_dtype = b.table(t.AFFINE_GROUP, at)
        return AffineGroup(
            scale_data_key=b.string(at + scale_key),
            scale_dtype=self._enum(_SCALAR_TYPES, "ScalarType", at, scale_dtype),
            quant_min=self._int32(at, low),
            quant_max=self._int32(at, high),
            group_size=self._int32(at, group),
            zero_point_data_key=self._optional_string(at, zero_key),
            zero_point_dtype=self._enum(_SCALAR_TYPES, "ScalarType", at, zero_dtype),
        )

    # --------------------------------------------------------------------------------------------- bindings

    def _named_tensor_ref(self, at: int) -> NamedTensorRef:
        b = self._buffer
        name, data_key, meta, kind, mutated = b.table(t.NAMED_TENSOR_REF, at)
        text = b.string(at + name)
        try:
            return NamedTensorRef(
                name=text,
                data_key=b.string(at + data_key),
                meta=self._tensor_meta(b.follow(at + meta)),
                kind=self._enum(_INPUT_KINDS, "InputKind", at, kind),
                mutated=b.data[at + mutated] != 0 if mutated else False,
            )
        except FormatError as error:
            _within(error, f"constant '{text}'")
            raise

    def _output_spec(self, at: int) -> OutputSpec:
        name, kind, target = self._buffer.table(t.OUTPUT_SPEC, at)
        return OutputSpec(
            name=self._buffer.string(at + name),
            kind=self._enum(_OUTPUT_KINDS, "OutputKind", at, kind),
            target=self._optional_string(at, target),
        )

    def _mutable_buffer(self, at: int) -> MutableBufferSpec:
        name, fqn = self._buffer.table(t.MUTABLE_BUFFER_SPEC, at)
        return MutableBufferSpec(self._buffer.string(at + name), self._buffer.string(at + fqn))


def _within(error: FormatError, place: str) -> None:
    """Puts an outer place before the error's own."""
    error.place = f"{place}, {error.place}" if error.place else place
