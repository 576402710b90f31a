"""Damaged and hostile programs: only `FormatError` comes out, soon, and memory stays within a small multiple."""

from __future__ import annotations

import random
import struct
import time
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from ptn_format.codec import ProgramReader, decode_program, encode_program
from ptn_format.dtypes import ScalarType
from ptn_format.errors import FormatError, LimitError, ProgramError
from ptn_format.graph import Graph, Method, Node, OpKind, Program, TensorMeta
from ptn_format.text import to_dot, to_json, to_text
from ptn_format.validate import validate_program


class Forge:
    """Writes FlatBuffers front to back, as badly as a test wants them."""

    def __init__(self) -> None:
        self.data = bytearray(b"\0\0\0\0NPTG")
        self.root = self.table(4, 4)
        self.ref(0, self.root)
        self.ref(self.root + 4, self.string(b"1.0"))

    def table(self, *widths: int) -> int:
        """A table of zeros with these fields (0: absent); returns its position."""
        offsets, at = [], 4
        for width in widths:
            at = -(-at // width) * width if width else at
            offsets.append(at if width else 0)
            at += width
        vtable = len(self.data)
        self.data += struct.pack(f"<{len(offsets) + 2}H", 2 * len(offsets) + 4, at, *offsets)
        self.data += bytes(-len(self.data) % 8)
        position = len(self.data)
        self.data += struct.pack("<i", position - vtable) + bytes(at - 4)
        self.pad()
        return position

    def pad(self) -> None:
        self.data += bytes(-len(self.data) % 8)

    def string(self, text: bytes) -> int:
        position = len(self.data)
        self.data += struct.pack("<I", len(text)) + text + b"\0"
        self.pad()
        return position

    def vector(self, count: int) -> int:
        position = len(self.data)
        self.data += struct.pack("<I", count) + bytes(4 * count)
        self.pad()
        return position

    def ref(self, at: int, target: int) -> None:
        struct.pack_into("<I", self.data, at, (target - at) & 0xFFFFFFFF)

    def method(self, name: bytes = b"forward") -> int:
        """A program of one method; returns where its graph is still to be referred to."""
        methods = self.vector(1)
        self.ref(self.root + 8, methods)
        method = self.table(4, 4)
        self.ref(methods + 4, method)
        self.ref(method + 4, self.string(name))
        return method + 8

    def graph(self, at: int) -> int:
        """A graph referred to at `at`; returns where its nodes are still to be referred to."""
        graph = self.table(4)
        self.ref(at, graph)
        return graph + 4

    def nested(self, at: int, uses: int) -> int:
        """A graph whose one node uses the same nested graph `uses` times; returns where that one is to be."""
        nodes_at = self.graph(at)
        nodes = self.vector(1)
        self.ref(nodes_at, nodes)
        node = self.table(4, 0, 0, 4)
        self.ref(nodes + 4, node)
        inputs = self.vector(uses)
        self.ref(node + 8, inputs)
        named = self.table(0, 4)
        for i in range(uses):
            self.ref(inputs + 4 + 4 * i, named)
        argument = self.table(4, 4)
        self.ref(named + 4, argument)
        self.data[argument + 4] = 13
        graph_arg = self.table(4, 4)
        self.ref(argument + 8, graph_arg)
        name = self.string(b"g")
        self.ref(graph_arg + 4, name)
        self.ref(node + 4, name)
        return graph_arg + 8

    def read(self) -> Program:
        """Decodes; what an attack may cost is checked in passing."""
        data = bytes(self.data)
        start = time.process_time()
        tracemalloc.start()
        try:
            return decode_program(data)
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert time.process_time() - start < 2 + len(data) * 2e-4, f"{len(data)} bytes took too long"
            assert peak < 500_000 + 25 * len(data), f"{len(data)} bytes took {peak} bytes of memory"


def test_forge_makes_valid_programs() -> None:
    forge = Forge()
    at = forge.nested(forge.method(), 2)
    forge.ref(forge.graph(at), forge.vector(0))
    graph = forge.read().methods[0].graph
    assert [named.arg.name for named in graph.nodes[0].inputs] == ["g", "g"]  # type: ignore[union-attr]


# ----------------------------------------------------------------------------------------------------- offsets


@pytest.mark.parametrize("offset", [0, 1, 2, 3, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFC, 0xFFFFFFFF])
def test_offsets_that_lead_nowhere(offset: int) -> None:
    """A table that is its own member, offsets backwards, offsets outside."""
    forge = Forge()
    at = forge.nested(forge.method(), 1)
    struct.pack_into("<I", forge.data, at, offset)
    with pytest.raises(ProgramError, match=r"^method 'forward', node 'g', graph 'g', byte \d+: an offset of"):
        forge.read()


def test_root_offset_outside() -> None:
    for offset in (0, 2, 1 << 20, 0xFFFFFFFF):
        with pytest.raises(ProgramError):
            decode_program(struct.pack("<I", offset) + b"NPTG" + bytes(64))


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("graph", r"a Graph cannot start here"),
        ("nodes", r"a vector starts off the 4-byte boundaries"),
        ("name", r"a string starts off the 4-byte boundaries"),
    ],
)
def test_misaligned_parts(part: str, expected: str) -> None:
    forge = Forge()
    graph_at = forge.method()
    nodes_at = forge.graph(graph_at)
    forge.ref(nodes_at, forge.vector(0))
    place = {"graph": graph_at, "nodes": nodes_at, "name": graph_at - 4}[part]
    forge.data += bytes(16)
    struct.pack_into("<I", forge.data, place, struct.unpack_from("<I", forge.data, place)[0] + 2)
    with pytest.raises(ProgramError, match=expected):
        forge.read()


@pytest.mark.parametrize("distance", [-0x80000000, -64, -2, 1, 3, 0x7FFFFFFF])
def test_vtable_outside(distance: int) -> None:
    forge = Forge()
    graph = forge.graph(forge.method()) - 4
    struct.pack_into("<i", forge.data, graph, distance)
    with pytest.raises(ProgramError, match=r"vtable of a Graph|has no 'nodes'|'nodes' of a Graph|reaches beyond"):
        forge.read()


@pytest.mark.parametrize(
    ("vtable_size", "size", "offset"),
    [
        (0, 8, 4),
        (2, 8, 4),
        (5, 8, 4),
        (0xFFFE, 8, 4),
        (6, 0, 4),
        (6, 3, 4),
        (6, 0xFFFF, 4),
        (6, 8, 6),
        (6, 8, 8),
        (6, 8, 2),
    ],
)
def test_vtable_that_lies(vtable_size: int, size: int, offset: int) -> None:
    forge = Forge()
    graph = forge.graph(forge.method()) - 4
    vtable = graph - struct.unpack_from("<i", forge.data, graph)[0]
    struct.pack_into("<3H", forge.data, vtable, vtable_size, size, offset)
    with pytest.raises(ProgramError):
        forge.read()


def test_missing_required_field() -> None:
    forge = Forge()
    at = forge.method()
    forge.ref(at, forge.table(0, 4))
    with pytest.raises(ProgramError, match="a Graph has no 'nodes', which every one must have"):
        forge.read()


# ----------------------------------------------------------------------------------------- vectors and strings


@pytest.mark.parametrize("count", [4, 1 << 20, 1 << 30, 0x7FFFFFFF, 0xFFFFFFFF])
def test_vector_lengths(count: int) -> None:
    forge = Forge()
    at = forge.graph(forge.method())
    vector = forge.vector(0)
    forge.ref(at, vector)
    struct.pack_into("<I", forge.data, vector, count)
    with pytest.raises(ProgramError, match=f"a vector of {count} elements reaches beyond the end"):
        forge.read()


@pytest.mark.parametrize("length", [64, 1 << 30, 0xFFFFFFFF])
def test_string_lengths(length: int) -> None:
    forge = Forge()
    at = forge.method()
    name = at - 4 + struct.unpack_from("<I", forge.data, at - 4)[0]
    struct.pack_into("<I", forge.data, name, length)
    with pytest.raises(ProgramError, match=f"a string of {length} elements reaches beyond the end"):
        forge.read()


def test_string_without_end() -> None:
    forge = Forge()
    forge.method(b"forward")
    end = bytes(forge.data).rindex(b"forward") + 7
    forge.data[end] = 1
    with pytest.raises(ProgramError, match="a string of 7 bytes is not terminated"):
        forge.read()


@pytest.mark.parametrize("text", [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"ab\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"])
def test_text_that_is_not_utf8(text: bytes) -> None:
    forge = Forge()
    forge.method(text)
    with pytest.raises(ProgramError, match=r"byte \d+: a string is not UTF-8"):
        forge.read()


@pytest.mark.parametrize("names", [(b"",), (b"a", b"a")])
def test_method_names(names: tuple[bytes, ...]) -> None:
    forge = Forge()
    methods = forge.vector(len(names))
    forge.ref(forge.root + 8, methods)
    for i, name in enumerate(names):
        method = forge.table(4, 4)
        forge.ref(methods + 4 + 4 * i, method)
        forge.ref(method + 4, forge.string(name))
    with pytest.raises(ProgramError, match=r"a method has no name|two methods are called 'a'"):
        forge.read()


# ----------------------------------------------------------------------------------------------- unknown values


def _error_of(data: bytes) -> FormatError | None:
    try:
        decode_program(data)
    except FormatError as error:
        return error
    return None


def test_unknown_enumerators_and_members(rich_program: Program) -> None:
    """Each byte that is an enumerator or tag is found by changing it: the error names what it was."""
    data = encode_program(rich_program)
    found = set()
    for at in range(8, len(data)):
        if not 0 < data[at] < 19:
            continue  # nothing that could be one
        error = _error_of(data[:at] + b"\x63" + data[at + 1 :])
        if error is not None and error.reason.startswith("99 is not a known "):
            found.add(error.reason.split()[5].rstrip(";"))
            assert f"byte {at}" in (error.place or "")
    assert found == {
        "ScalarType", "OpKind", "InputKind", "OutputKind", "OutputValueKind", "ArgumentValue", "QuantScheme"
    }  # fmt: skip


def test_quantisation_without_scheme(rich_program: Program) -> None:
    data = encode_program(rich_program)
    errors = [_error_of(data[:at] + b"\0" + data[at + 1 :]) for at in range(8, len(data)) if data[at] in (1, 2)]
    assert "a QuantSpec holds no scheme" in {error.reason for error in errors if error is not None}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (b"key_a", b"key_b", r"node 'x', byte \d+: the metadata key 'key_a' is listed twice"),
        (b"value_a", b"value_b", r"byte \d+: the tensor value 'value_a' is listed twice"),
    ],
)
def test_names_that_stand_twice(first: bytes, second: bytes, expected: str) -> None:
    meta = TensorMeta(ScalarType.FLOAT, ())
    node = Node("x", OpKind.PLACEHOLDER, metadata={"key_a": "", "key_b": ""})
    body = Graph((node,), tensor_values={"value_a": meta, "value_b": meta})
    data = encode_program(Program("1.0", (Method("forward", body),)))
    assert decode_program(data).methods[0].graph == body
    with pytest.raises(ProgramError, match=expected):
        decode_program(data.replace(second, first))


def test_union_without_value() -> None:
    forge = Forge()
    at = forge.nested(forge.method(), 1)
    argument = bytes(forge.data).rindex(b"\x0d")
    forge.ref(forge.graph(at), forge.vector(0))
    forge.data[argument] = 0
    with pytest.raises(ProgramError, match="an Argument holds no value"):
        forge.read()


# ------------------------------------------------------------------------------------------------------- bombs


def test_deep_nesting() -> None:
    forge = Forge()
    at = forge.method()
    for _ in range(5000):
        at = forge.nested(at, 1)
    forge.ref(forge.graph(at), forge.vector(0))
    with pytest.raises(LimitError, match="more than 64 graphs lie within each other"):
        forge.read()


@pytest.mark.parametrize(("depth", "uses"), [(20, 2), (60, 2), (60, 10), (3, 1000)])
def test_graphs_shared_over_and_over(depth: int, uses: int) -> None:
    """`uses ** depth` graphs if all were visited."""
    forge = Forge()
    at = forge.method()
    for _ in range(depth):
        at = forge.nested(at, uses)
    forge.ref(forge.graph(at), forge.vector(0))
    with pytest.raises(LimitError, match="shared so often"):
        forge.read()


def test_nodes_shared_over_and_over() -> None:
    forge = Forge()
    nodes = forge.graph(forge.method())
    vector = forge.vector(50_000)
    forge.ref(nodes, vector)
    node = forge.table(4)
    forge.ref(node + 4, forge.string(b"n"))
    for i in range(50_000):
        forge.ref(vector + 4 + 4 * i, node)
    program = forge.read()  # legal, and decoded once
    assert len(program.methods[0].graph.nodes) == 50_000


def test_vectors_shared_over_and_over() -> None:
    """Many nodes over one long vector of inputs: cost grows with the square unless it is counted."""
    forge = Forge()
    nodes = forge.graph(forge.method())
    vector = forge.vector(5000)
    forge.ref(nodes, vector)
    node = forge.table(4, 0, 0, 4)
    for i in range(5000):
        forge.ref(vector + 4 + 4 * i, node)
    inputs = forge.vector(5000)
    forge.ref(node + 8, inputs)
    named = forge.table(0, 4)
    for i in range(5000):
        forge.ref(inputs + 4 + 4 * i, named)
    argument = forge.table(4, 4)
    forge.ref(named + 4, argument)
    forge.data[argument + 4] = 2
    forge.ref(argument + 8, forge.table())
    forge.ref(node + 4, forge.string(b"n"))
    with pytest.raises(LimitError, match="shared so often"):
        forge.read()


def test_long_values_shared_over_and_over() -> None:
    """Reading them costs nothing more, but printing would."""
    forge = Forge()
    graph_at = forge.method()
    graph = forge.table(4, 4)
    forge.ref(graph_at, graph)
    inputs = forge.vector(5000)
    forge.ref(graph + 8, inputs)
    forge.ref(graph + 4, forge.vector(0))
    text = forge.string(b"a" * 20_000)
    for i in range(5000):
        forge.ref(inputs + 4 + 4 * i, text)
    with pytest.raises(LimitError, match="shared so often"):
        forge.read()


def test_overlapping_strings() -> None:
    """Each string starts inside the one before, so all together are as long as the square of the file."""
    forge = Forge()
    at = forge.method()
    graph = forge.table(4, 4)
    forge.ref(at, graph)
    inputs = forge.vector(10_000)
    nodes = forge.vector(0)
    forge.ref(graph + 4, nodes)
    forge.ref(graph + 8, inputs)
    start = len(forge.data)
    for i in range(10_000):
        forge.ref(inputs + 4 + 4 * i, start + 4 * i)
        forge.data += struct.pack("<I", 4 * (10_000 - i) + 3)
    forge.data += bytes(16)
    with pytest.raises(FormatError):
        forge.read()


def test_every_method_over_one_graph() -> None:
    """The budget is the file's, not each method's."""
    forge = Forge()
    count = 2000
    methods = forge.vector(count)
    forge.ref(forge.root + 8, methods)
    at = []
    for i in range(count):
        method = forge.table(4, 4)
        forge.ref(methods + 4 + 4 * i, method)
        forge.ref(method + 4, forge.string(b"m%d" % i))
        at.append(method + 8)
    graph = forge.table(4)
    for position in at:
        forge.ref(position, graph)
    vector = forge.vector(20_000)
    forge.ref(graph + 4, vector)
    node = forge.table(4)
    forge.ref(node + 4, forge.string(b"n"))
    for i in range(20_000):
        forge.ref(vector + 4 + 4 * i, node)
    with pytest.raises(LimitError, match="shared so often"):
        forge.read()


def test_high_rank() -> None:
    forge = Forge()
    at = forge.method()
    graph = forge.table(4, 0, 0, 4)
    forge.ref(at, graph)
    forge.ref(graph + 4, forge.vector(0))
    values = forge.vector(1)
    forge.ref(graph + 8, values)
    value = forge.table(4, 4)
    forge.ref(values + 4, value)
    forge.ref(value + 4, forge.string(b"x"))
    meta = forge.table(0, 4)
    forge.ref(value + 8, meta)
    forge.ref(meta + 4, forge.vector(65))
    with pytest.raises(LimitError, match="a tensor has 65 sizes, more than 64"):
        forge.read()


def test_many_methods(monkeypatch: pytest.MonkeyPatch, rich_program: Program) -> None:
    monkeypatch.setattr("ptn_format.codec.MAX_METHODS", 1)
    with pytest.raises(LimitError, match="a program of 2 methods has more than 1"):
        ProgramReader(encode_program(rich_program))


# --------------------------------------------------------------------------------------------------- mutations

_INTERESTING = [
    0,
    1,
    2,
    3,
    4,
    5,
    8,
    0x7F,
    0x80,
    0xFF,
    0x100,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
]


def _mutate(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        at = chance.randrange(len(changed))
        match chance.randrange(6):
            case 0:
                changed[at] ^= 1 << chance.randrange(8)
            case 1:
                changed[at] = chance.randrange(256)
            case 2:
                word = at & ~3
                changed[word : word + 4] = struct.pack("<I", chance.choice(_INTERESTING))
            case 3:
                word = at & ~3
                value = struct.unpack("<I", bytes(changed[word : word + 4]).ljust(4, b"\0"))[0]
                changed[word : word + 4] = struct.pack(
                    "<I", (value + chance.choice([-8, -4, -1, 1, 4, 8])) & 0xFFFFFFFF
                )
            case 4:
                source = chance.randrange(len(changed))
                length = chance.randrange(1, 17)
                changed[at : at + length] = changed[source : source + length]
            case 5:
                del changed[at if chance.random() < 0.3 else max(at, len(changed) - 8) :]
        if not changed:
            break
    return bytes(changed)


def _endure(data: bytes, chance: random.Random, rounds: int) -> int:
    """Reads mutants of a program; returns how many were refused."""
    refused = 0
    start = time.process_time()
    for _ in range(rounds):
        try:
            program = decode_program(_mutate(data, chance))
        except FormatError:
            refused += 1
            continue
        # What decodes can be checked, shown and written like any other program.
        validate_program(program)
        to_text(program)
        to_json(program)
        to_dot(program)
        encode_program(program)
    assert time.process_time() - start < 30
    return refused


def test_mutations_give_format_errors_only(golden_path: Path) -> None:
    with zipfile.ZipFile(golden_path) as archive:
        data = archive.read("program.ptg")
    chance = random.Random(golden_path.parent.name)  # a string seeds the same way everywhere
    rounds = max(12, min(150, 400_000 // len(data)))
    assert _endure(data, chance, rounds) > rounds // 10


def test_mutations_of_everything(rich_program: Program) -> None:
    """Our own files share tables, and this one holds all that there is."""
    data = encode_program(rich_program)
    assert _endure(data, random.Random(1), 1000) > 100


def test_every_truncation(rich_program: Program) -> None:
    data = encode_program(rich_program)
    for size in range(0, len(data), 3):
        with pytest.raises(FormatError):
            decode_program(data[:size])
