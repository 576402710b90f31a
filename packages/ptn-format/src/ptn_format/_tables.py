"""The tables of `schema/native_graph.fbs` as data: what the bounded reader knows of the wire form.

A field's number is its place in the tuple; a union takes two numbers, its tag and its value.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Field", "Table"]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a table.

    Attributes:
        name: as in the schema.
        width: bytes inside the table.
        is_offset: the field holds an offset to a string, vector or table.
        required: a table without it is damaged.
    """

    name: str
    width: int
    is_offset: bool = False
    required: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """One table type.

    Attributes:
        name: as in the schema.
        fields: in the order of their numbers.
        index: position in the reader's caches.
    """

    name: str
    fields: tuple[Field, ...]
    index: int


_count = 0


def _table(name: str, fields: str) -> Table:
    """Builds a table from a text such as `name:ref! kind:byte`; `!` marks required fields."""
    global _count
    widths = {"ref": 4, "byte": 1, "int": 4, "long": 8}
    parsed = []
    for text in fields.split():
        field, kind = text.removesuffix("!").split(":")
        parsed.append(Field(field, widths[kind], kind == "ref", text.endswith("!")))
    _count += 1
    return Table(name, tuple(parsed), _count - 1)


PROGRAM = _table("Program", "version:ref methods:ref!")
METHOD = _table("Method", "name:ref! graph:ref! constants:ref output_specs:ref mutable_buffers:ref")
GRAPH = _table("Graph", "nodes:ref! inputs:ref outputs:ref tensor_values:ref")
NODE = _table("Node", "name:ref! op_kind:byte target:ref inputs:ref outputs:ref metadata:ref")
OUTPUT = _table("Output", "name:ref! alias_of:ref kind:byte names:ref")
NAMED_ARGUMENT = _table("NamedArgument", "name:ref arg:ref! mutated:byte")
ARGUMENT = _table("Argument", "value_type:byte value:ref")
KEY_VALUE = _table("KeyValue", "key:ref! value:ref!")
NAMED_TENSOR_REF = _table("NamedTensorRef", "name:ref! data_key:ref! meta:ref! kind:byte mutated:byte")
OUTPUT_SPEC = _table("OutputSpec", "name:ref! kind:byte target:ref")
MUTABLE_BUFFER_SPEC = _table("MutableBufferSpec", "name:ref! fqn:ref!")
TENSOR_VALUE = _table("TensorValue", "name:ref! meta:ref!")
TENSOR_META = _table("TensorMeta", "dtype:byte sizes:ref dim_order:ref quant:ref")
DIM = _table("Dim", "min:long max:long")
QUANT_SPEC = _table("QuantSpec", "scheme_type:byte scheme:ref")
AFFINE_GROUP = _table(
    "AffineGroup",
    "scale_data_key:ref! scale_dtype:byte quant_min:int quant_max:int group_size:int"
    " zero_point_data_key:ref zero_point_dtype:byte",
)
PACKED_QUANT = _table("PackedQuant", "codec:ref!")
TENSOR_ARG = _table("TensorArg", "name:ref!")
NONE_ARG = _table("NoneArg", "")
INT_ARG = _table("IntArg", "value:long ref:ref")
FLOAT_ARG = _table("FloatArg", "value:long ref:ref")
BOOL_ARG = _table("BoolArg", "value:byte ref:ref")
STRING_ARG = _table("StringArg", "value:ref!")
SCALAR_TYPE_ARG = _table("ScalarTypeArg", "value:byte")
INT_LIST_ARG = _table("IntListArg", "values:ref! refs:ref")
FLOAT_LIST_ARG = _table("FloatListArg", "values:ref!")
BOOL_LIST_ARG = _table("BoolListArg", "values:ref!")
TENSOR_LIST_ARG = _table("TensorListArg", "names:ref!")
OPTIONAL_TENSOR_LIST_ARG = _table("OptionalTensorListArg", "names:ref! has_value:ref!")
GRAPH_ARG = _table("GraphArg", "name:ref! graph:ref!")

TABLE_COUNT = _count
