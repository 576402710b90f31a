"""Our files read by a decoder that shares nothing with ours: plain FlatBuffers rules and the table of field numbers."""

from __future__ import annotations

import enum
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
from ptn_format import graph
from ptn_format.codec import decode_program, encode_program

# Field numbers count from 0; a union takes two. `!`: required.
FIELDS = """
Program: version:string methods:[Method]!
Method: name:string! graph:Graph! constants:[NamedTensorRef] output_specs:[OutputSpec]
    mutable_buffers:[MutableBufferSpec]
Graph: nodes:[Node]! inputs:[string] outputs:[string] tensor_values:[TensorValue]
Node: name:string! op_kind:byte target:string inputs:[NamedArgument] outputs:[Output] metadata:[KeyValue]
Output: name:string! alias_of:string kind:byte names:[string]
NamedArgument: name:string arg:Argument! mutated:bool
Argument: value:ArgumentValue
KeyValue: key:string! value:string!
NamedTensorRef: name:string! data_key:string! meta:TensorMeta! kind:byte mutated:bool
OutputSpec: name:string! kind:byte target:string
MutableBufferSpec: name:string! fqn:string!
TensorValue: name:string! meta:TensorMeta!
TensorMeta: dtype:byte sizes:[Dim] dim_order:[int] quant:QuantSpec
Dim: min:long max:long=-1
QuantSpec: scheme:QuantScheme
AffineGroup: scale_data_key:string! scale_dtype:byte quant_min:int quant_max:int group_size:int
    zero_point_data_key:string zero_point_dtype:byte
PackedQuant: codec:string!
TensorArg: name:string!
NoneArg:
IntArg: value:long ref:string
FloatArg: value:double ref:string
BoolArg: value:bool ref:string
StringArg: value:string!
ScalarTypeArg: value:byte
IntListArg: values:[long]! refs:[string]
FloatListArg: values:[double]!
BoolListArg: values:[bool]!
TensorListArg: names:[string]!
OptionalTensorListArg: names:[string]! has_value:[bool]!
GraphArg: name:string! graph:Graph!
"""
TABLES = {name: fields.split() for name, fields in re.findall(r"^(\w+):((?:.|\n    )*)", FIELDS, flags=re.MULTILINE)}
UNIONS = {
    "QuantScheme": ["NONE", "AffineGroup", "PackedQuant"],
    "ArgumentValue": [
        "NONE", "TensorArg", "NoneArg", "IntArg", "FloatArg", "BoolArg", "StringArg", "ScalarTypeArg", "IntListArg",
        "FloatListArg", "BoolListArg", "TensorListArg", "OptionalTensorListArg", "GraphArg",
    ],
}  # fmt: skip
SCALARS = {"byte": "b", "bool": "?", "int": "i", "long": "q", "double": "d"}


class Walker:
    """Reads tables as dicts of every field, absent ones with their defaults."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def at(self, code: str, position: int) -> Any:
        width = struct.calcsize("<" + code)
        assert position % width == 0, "every scalar lies on a boundary of its own size"
        return struct.unpack_from("<" + code, self.data, position)[0]

    def table(self, name: str, position: int) -> dict[str, Any]:
        vtable = position - self.at("i", position)
        fields = range(vtable + 4, vtable + self.at("H", vtable), 2)
        offsets = [self.at("H", field) for field in fields]
        document: dict[str, Any] = {"_table": name}
        number = 0
        for text in TABLES[name]:
            field, kind, required, default = re.fullmatch(r"(\w+):([\[\]\w]+)(!?)(?:=(-?\d+))?", text).groups()
            count = 2 if kind in UNIONS else 1
            offset, *more = [offsets[n] if n < len(offsets) else 0 for n in range(number, number + count)]
            number += count
            assert offset or not required
            if kind in UNIONS:
                member = UNIONS[kind][self.at("B", position + offset)]
                document[field] = self.table(member, self.target(position + more[0]))
            elif kind in SCALARS:
                absent = type(self.at(SCALARS[kind], 0))(int(default or 0))
                document[field] = self.at(SCALARS[kind], position + offset) if offset else absent
            else:
                document[field] = self.value(kind, self.target(position + offset)) if offset else None
        assert len(offsets) <= number
        return document

    def target(self, position: int) -> int:
        return position + self.at("I", position)

    def value(self, kind: str, position: int) -> Any:
        if kind == "string":
            length = self.at("I", position)
            assert self.data[position + 4 + length] == 0
            return self.data[position + 4 : position + 4 + length].decode()
        if not kind.startswith("["):
            return self.table(kind, position)
        kind = kind.strip("[]")
        count = self.at("I", position)
        if kind in SCALARS:
            width = struct.calcsize("<" + SCALARS[kind])
            return [self.at(SCALARS[kind], position + 4 + width * i) for i in range(count)]
        return [self.value(kind, self.target(position + 4 + 4 * i)) for i in range(count)]


def as_tables(value: Any) -> Any:
    """A dataclass of `ptn_format.graph` in the walker's form."""
    if isinstance(value, enum.Enum):
        return int(value.value)
    if isinstance(value, tuple):
        return [as_tables(item) for item in value]
    if not hasattr(value, "__dataclass_fields__"):
        return value
    document: dict[str, Any] = {"_table": type(value).__name__}
    for field in value.__dataclass_fields__:
        document[field] = as_tables(getattr(value, field))
    empty_is_absent = {"Method": ("constants", "output_specs", "mutable_buffers"), "Node": ("inputs", "outputs"),
                       "Graph": ("inputs", "outputs"), "Output": ("names",), "IntListArg": ("refs",)}  # fmt: skip
    for field in empty_is_absent.get(document["_table"], ()):
        document[field] = document[field] or None
    if isinstance(value, graph.NamedArgument):
        document["arg"] = {"_table": "Argument", "value": document["arg"]}
    elif isinstance(value, graph.TensorMeta) and value.quant is not None:
        document["quant"] = {"_table": "QuantSpec", "scheme": document["quant"]}
    elif isinstance(value, graph.Graph):
        items = [
            {"_table": "TensorValue", "name": name, "meta": as_tables(meta)}
            for name, meta in value.tensor_values.items()
        ]
        document["tensor_values"] = items or None
    elif isinstance(value, graph.Node):
        items = [{"_table": "KeyValue", "key": key, "value": text} for key, text in value.metadata.items()]
        document["metadata"] = items or None
    return document


def walk(data: bytes) -> dict[str, Any]:
    assert data[4:8] == b"NPTG"
    walker = Walker(data)
    return walker.table("Program", walker.target(0))


def test_walker_knows_every_table() -> None:
    assert len(TABLES) == 30
    assert set(UNIONS["ArgumentValue"][1:]) | set(UNIONS["QuantScheme"][1:]) <= set(TABLES)


def test_walker_agrees_on_golden_files(golden_path: Path) -> None:
    with zipfile.ZipFile(golden_path) as archive:
        data = archive.read("program.ptg")
    program = decode_program(data)
    assert walk(data) == as_tables(program)
    assert walk(encode_program(program)) == as_tables(program)


def test_walker_agrees_on_every_table(rich_program: graph.Program) -> None:
    assert walk(encode_program(rich_program)) == as_tables(rich_program)


@pytest.mark.parametrize(
    ("dim", "fields"), [(graph.Dim(), 0), (graph.Dim(0, -1), 0), (graph.Dim(3, -1), 1), (graph.Dim(0, 0), 1)]
)
def test_defaults_are_left_out(dim: graph.Dim, fields: int) -> None:
    """A table of defaults has no fields at all, so it takes 4 bytes and its vtable 4."""
    meta = graph.TensorMeta(graph.ScalarType.FLOAT, (dim,))
    data = encode_program(graph.Program("1.0", (graph.Method("m", graph.Graph((), tensor_values={"x": meta})),)))
    walker = Walker(data)

    def field(table: int, number: int) -> int:
        vtable = table - walker.at("i", table)
        return table + walker.at("H", vtable + 4 + 2 * number)

    position = walker.target(0)
    for number, is_vector in ((1, True), (1, False), (3, True), (1, False), (1, True)):
        position = walker.target(field(position, number))
        position = walker.target(position + 4) if is_vector else position
    vtable = position - walker.at("i", position)
    present = [walker.at("H", at) for at in range(vtable + 4, vtable + walker.at("H", vtable), 2)]
    assert sum(offset > 0 for offset in present) == fields


def test_walker_refuses_other_bytes(rich_program: graph.Program) -> None:
    """The walker can fail: a changed enumerator is seen."""
    changed = as_tables(rich_program)
    changed["methods"][0]["graph"]["nodes"][0]["op_kind"] = 0
    assert walk(encode_program(rich_program)) != changed
