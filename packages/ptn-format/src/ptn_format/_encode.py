"""From the graph's dataclasses to the tables of a program."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from ptn_format._flatbuffer import FREE_BYTES
from ptn_format.errors import WriteError
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
    IntArg,
    IntListArg,
    Method,
    MutableBufferSpec,
    NamedArgument,
    NamedTensorRef,
    Node,
    NoneArg,
    OptionalTensorListArg,
    Output,
    OutputSpec,
    PackedQuant,
    Program,
    QuantScheme,
    ScalarTypeArg,
    StringArg,
    TensorArg,
    TensorListArg,
    TensorMeta,
)
from ptn_format.limits import MAX_AXIS_SIZE, MAX_GRAPH_DEPTH, MAX_PROGRAM_BYTES, MAX_RANK

__all__ = ["encode_program"]

_T = TypeVar("_T")


def encode_program(program: Program) -> bytes:
    """Encodes a program as the bytes of `program.ptg`.

    The same program always gives the same bytes. `program.version` is written as it stands; new programs have
    `ptn_format.codec.FORMAT_VERSION`.

    Raises:
        WriteError: the format cannot hold the program: a number out of range, text that is not Unicode, graphs
            nested too deeply, ...; the error says where.
        FormatError: this release does not write the program's version.
    """
    from ptn_format.codec import check_version  # codec imports this module

    check_version(program.version)
    return _Encoder().program(program)


class _Encoder:
    """Writes one program; FlatBuffers are built from the inside out."""

    def __init__(self) -> None:
        # Only those who write pay for these imports.
        from flatbuffers.builder import Builder, BuilderSizeError

        from ptn_format._generated import native_graph_generated

        self._wire: Any = native_graph_generated
        self._builder: Any = Builder(1 << 16)
        self._too_large: type[Exception] = BuilderSizeError
        self._calls: dict[str, Callable[..., Any]] = {}
        self._shared: dict[Any, tuple[int, int]] = {}
        self._charged = 0
        self._depth = 0
        self._arguments: dict[type, Callable[[Any], int]] = {
            TensorArg: lambda arg: self._table("TensorArg", Name=self._string(arg.name)),
            NoneArg: lambda _: self._table("NoneArg"),
            IntArg: lambda arg: self._table("IntArg", Value=_int64(arg.value), Ref=self._optional(arg.ref)),
            FloatArg: self._float_arg,
            BoolArg: lambda arg: self._table("BoolArg", Value=bool(arg.value), Ref=self._optional(arg.ref)),
            StringArg: lambda arg: self._table("StringArg", Value=self._string(arg.value)),
            ScalarTypeArg: lambda arg: self._table("ScalarTypeArg", Value=int(arg.value)),
            IntListArg: self._int_list_arg,
            FloatListArg: lambda arg: self._table("FloatListArg", Values=self._scalars(arg.values, "<f8")),
            BoolListArg: lambda arg: self._table("BoolListArg", Values=self._scalars(arg.values, "?")),
            TensorListArg: lambda arg: self._table("TensorListArg", Names=self._strings(arg.names)),
            OptionalTensorListArg: self._optional_tensor_list_arg,
            GraphArg: self._graph_arg,
        }

    def program(self, program: Program) -> bytes:
        """The bytes of the whole program."""
        names = [method.name for method in program.methods]
        if not all(names) or len(set(names)) != len(names):
            raise WriteError(f"the names of a program's methods must differ and not be empty, found {names}")
        try:
            methods = self._vector([self._method(method) for method in program.methods])
            root = self._table("Program", Version=self._string(program.version), Methods=methods)
            self._builder.Finish(root, file_identifier=b"NPTG")
            data = self._builder.Output()
        except self._too_large as error:
            raise WriteError(f"the program is larger than {MAX_PROGRAM_BYTES} bytes, which readers accept") from error
        if len(data) > MAX_PROGRAM_BYTES:
            raise WriteError(f"the program has {len(data)} bytes; readers accept {MAX_PROGRAM_BYTES}")
        return bytes(data)

    # ---------------------------------------------------------------------------------------------- helpers

    def _call(self, name: str) -> Callable[..., Any]:
        call = self._calls.get(name)
        if call is None:
            call = self._calls[name] = getattr(self._wire, name)
        return call

    def _table(self, table: str, **fields: Any) -> int:
        """Writes a table; a field that is None, or equals its default, is left out."""
        builder = self._builder
        self._call(table + "Start")(builder)
        for field, value in fields.items():
            if value is not None:
                self._call(f"{table}Add{field}")(builder, value)
        offset: int = self._call(table + "End")(builder)
        return offset

    def _string(self, text: str) -> int:
        return self._once(text, self._new_string)

    def _new_string(self, text: str) -> int:
        if not isinstance(text, str):
            raise WriteError(f"expected a string, found {text!r}")
        try:
            offset: int = self._builder.CreateString(text)
        except UnicodeEncodeError as error:
            raise WriteError(f"{text!r} is not Unicode text: {error.reason}; the format holds UTF-8") from error
        return offset

    def _optional(self, text: str | None) -> int | None:
        return self._string(text) if text else None

    def _vector(self, offsets: Sequence[int]) -> int:
        builder = self._builder
        builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            builder.PrependUOffsetTRelative(offset)
        vector: int = builder.EndVector()
        return vector

    def _each(self, items: Sequence[_T], write: Callable[[_T], int]) -> int | None:
        return self._vector([write(item) for item in items]) if items else None

    def _strings(self, texts: Sequence[str]) -> int:
        return self._vector([self._string(text) for text in texts])

    def _optional_strings(self, texts: Sequence[str]) -> int | None:
        return self._strings(texts) if texts else None

    def _scalars(self, values: Sequence[Any], dtype: str) -> int:
        vector: int = self._builder.CreateNumpyVector(np.array(values, np.dtype(dtype)))
        return vector

    def _once(self, item: _T, write: Callable[[_T], int]) -> int:
        """Writes a string or small table the first time; equal ones share it.

        Readers charge each further use of a large part, so that sharing can't exhaust them. This counts along,
        and writes a part anew before a reader of the whole would be charged more than three times its size.
        """
        try:
            known = self._shared.get(item)
        except TypeError:  # built with a list where the type says tuple: not hashable, but as good to write
            return write(item)
        written = self._builder.Offset()
        if known is not None:
            offset, price = known
            if price <= 0 or self._charged + price <= 2 * written:
                self._charged += max(price, 0)
                return offset
        before = written + self._charged
        offset = write(item)
        self._shared[item] = offset, self._builder.Offset() + self._charged - before - FREE_BYTES
        return offset

    # ------------------------------------------------------------------------------------------------ graph

    def _method(self, method: Method) -> int:
        with _place(f"method '{method.name}'"):
            return self._table(
                "Method",
                Name=self._string(method.name),
                Graph=self._graph(method.graph),
                Constants=self._each(method.constants, self._named_tensor_ref),
                OutputSpecs=self._each(method.output_specs, self._output_spec),
                MutableBuffers=self._each(method.mutable_buffers, self._mutable_buffer),
            )

    def _graph(self, graph: Graph) -> int:
        if self._depth >= MAX_GRAPH_DEPTH:
            raise WriteError(f"more than {MAX_GRAPH_DEPTH} graphs lie within each other")
        self._depth += 1
        try:
            return self._table(
                "Graph",
                Nodes=self._vector([self._node(node) for node in graph.nodes]),
                Inputs=self._optional_strings(graph.inputs),
                Outputs=self._optional_strings(graph.outputs),
                TensorValues=self._each(tuple(graph.tensor_values.items()), self._tensor_value),
            )
        finally:
            self._depth -= 1

    def _node(self, node: Node) -> int:
        with _place(f"node '{node.name}'"):
            return self._table(
                "Node",
                Name=self._string(node.name),
                OpKind=int(node.op_kind),
                Target=self._optional(node.target),
                Inputs=self._each(node.inputs, self._named_argument),
                Outputs=self._each(node.outputs, self._output),
                Metadata=self._each(tuple(node.metadata.items()), self._key_value),
            )

    def _key_value(self, item: tuple[str, str]) -> int:
        return self._table("KeyValue", Key=self._string(item[0]), Value=self._string(item[1]))

    def _output(self, output: Output) -> int:
        return self._table(
            "Output",
            Name=self._string(output.name),
            AliasOf=self._optional(output.alias_of),
            Kind=int(output.kind),
            Names=self._optional_strings(output.names),
        )

    # -------------------------------------------------------------------------------------------- arguments

    def _named_argument(self, argument: NamedArgument) -> int:
        # Floats compare equal where they differ (0.0 and -0.0); graphs hold mappings, which have no hash.
        if isinstance(argument.arg, FloatArg | FloatListArg | GraphArg):
            return self._new_named_argument(argument)
        return self._once(argument, self._new_named_argument)

    def _new_named_argument(self, argument: NamedArgument) -> int:
        return self._table(
            "NamedArgument",
            Name=self._optional(argument.name),
            Arg=self._argument(argument.arg),
            Mutated=bool(argument.mutated),
        )

    def _argument(self, argument: Argument) -> int:
        kind = type(argument)
        write = self._arguments.get(kind)
        if write is None:
            raise WriteError(
                f"{argument!r} is no argument of the format; expected one of the kinds of ptn_format.graph"
            )
        tag = getattr(self._wire.ArgumentValue, kind.__name__)
        return self._table("Argument", ValueType=tag, Value=write(argument))

    def _float_arg(self, argument: FloatArg) -> int:
        value = float(argument.value)
        ref = self._optional(argument.ref)
        # -0.0 equals the default but is another number.
        self._builder.ForceDefaults(value == 0 and math.copysign(1, value) < 0)
        offset = self._table("FloatArg", Value=value, Ref=ref)
        self._builder.ForceDefaults(False)
        return offset

    def _int_list_arg(self, argument: IntListArg) -> int:
        values = self._scalars([_int64(value) for value in argument.values], "<i8")
        return self._table("IntListArg", Values=values, Refs=self._optional_strings(argument.refs))

    def _optional_tensor_list_arg(self, argument: OptionalTensorListArg) -> int:
        names = self._strings(argument.names)
        return self._table("OptionalTensorListArg", Names=names, HasValue=self._scalars(argument.has_value, "?"))

    def _graph_arg(self, argument: GraphArg) -> int:
        with _place(f"graph '{argument.name}'"):
            return self._table("GraphArg", Name=self._string(argument.name), Graph=self._graph(argument.graph))

    # ---------------------------------------------------------------------------------------------- tensors

    def _tensor_value(self, item: tuple[str, TensorMeta]) -> int:
        with _place(f"tensor '{item[0]}'"):
            meta = self._once(item[1], self._tensor_meta)
            return self._table("TensorValue", Name=self._string(item[0]), Meta=meta)

    def _tensor_meta(self, meta: TensorMeta) -> int:
        if len(meta.sizes) > MAX_RANK:
            raise WriteError(f"a tensor has {len(meta.sizes)} axes, more than {MAX_RANK}")
        return self._table(
            "TensorMeta",
            Dtype=int(meta.dtype),
            Sizes=self._vector([self._once(dim, self._dim) for dim in meta.sizes]),
            DimOrder=None
            if meta.dim_order is None
            else self._scalars([_int32(axis) for axis in meta.dim_order], "<i4"),
            Quant=None if meta.quant is None else self._quant(meta.quant),
        )

    def _dim(self, dim: Dim) -> int:
        if dim.min > MAX_AXIS_SIZE or dim.max > MAX_AXIS_SIZE:
            raise WriteError(f"an axis of {dim} elements is larger than {MAX_AXIS_SIZE}")
        return self._table("Dim", Min=_int64(dim.min), Max=_int64(dim.max))

    def _quant(self, quant: QuantScheme) -> int:
        if isinstance(quant, PackedQuant):
            scheme = self._table("PackedQuant", Codec=self._string(quant.codec))
        else:
            scheme = self._affine_group(quant)
        tag = getattr(self._wire.QuantScheme, type(quant).__name__)
        return self._table("QuantSpec", SchemeType=tag, Scheme=scheme)

    def _affine_group(self, quant: AffineGroup) -> int:
        return self._table(
            "AffineGroup",
            ScaleDataKey=self._string(quant.scale_data_key),
            ScaleDtype=int(quant.scale_dtype),
            QuantMin=_int32(quant.quant_min),
            QuantMax=_int32(quant.quant_max),
            GroupSize=_int32(quant.group_size),
            ZeroPointDataKey=self._optional(quant.zero_point_data_key),
            ZeroPointDtype=int(quant.zero_point_dtype),
        )

    # --------------------------------------------------------------------------------------------- bindings

    def _named_tensor_ref(self, ref: NamedTensorRef) -> int:
        with _place(f"constant '{ref.name}'"):
            return self._table(
                "NamedTensorRef",
                Name=self._string(ref.name),
                DataKey=self._string(ref.data_key),
                Meta=self._once(ref.meta, self._tensor_meta),
                Kind=int(ref.kind),
                Mutated=bool(ref.mutated),
            )

    def _output_spec(self, spec: OutputSpec) -> int:
        return self._table(
            "OutputSpec", Name=self._string(spec.name), Kind=int(spec.kind), Target=self._optional(spec.target)
        )

    def _mutable_buffer(self, spec: MutableBufferSpec) -> int:
        return self._table("MutableBufferSpec", Name=self._string(spec.name), Fqn=self._string(spec.fqn))


@contextlib.contextmanager
def _place(place: str) -> Iterator[None]:
    """Says where an error inside the block lies; an outer place comes before inner ones."""
    try:
        yield
    except WriteError as error:
        error.place = f"{place}, {error.place}" if error.place else place
        raise


def _int32(value: int) -> int:
    return _integer(value, 32)


def _int64(value: int) -> int:
    return _integer(value, 64)


def _integer(value: int, bits: int) -> int:
    number = operator.index(value)
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise WriteError(f"{number} does not fit the {bits} bits that the format has for it")
    return number
