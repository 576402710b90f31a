"""Programs survive encoding and decoding; versions; lazy reading."""

from __future__ import annotations

import math
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ptn_format import codec, graph
from ptn_format._decode import Decoder
from ptn_format._flatbuffer import FlatBuffer
from ptn_format.codec import FORMAT_VERSION, ProgramReader, check_version, decode_program, encode_program
from ptn_format.errors import FormatError, LimitError, ProgramError, UnsupportedVersionError, WriteError
from ptn_format.graph import (
    Dim,
    FloatArg,
    Graph,
    GraphArg,
    IntArg,
    IntListArg,
    Method,
    NamedArgument,
    Node,
    OpKind,
    Output,
    Program,
    ScalarType,
    StringArg,
    TensorArg,
    TensorMeta,
)
from ptn_format.text import to_dot, to_json, to_text
from ptn_format.validate import Problem, validate_program


def read_program(path: Path) -> bytes:
    with zipfile.ZipFile(path) as archive:
        return archive.read("program.ptg")


def program_of(*arguments: graph.Argument) -> Program:
    node = Node("f", OpKind.CALL_FUNCTION, "t", tuple(NamedArgument(None, arg) for arg in arguments))
    return Program("1.0", (Method("forward", Graph((node,))),))


def arguments_of(program: Program) -> list[graph.Argument]:
    return [named.arg for named in program.methods[0].graph.nodes[0].inputs]


def test_golden_round_trip(golden_path: Path) -> None:
    data = read_program(golden_path)
    program = decode_program(data)
    again = encode_program(program)
    assert decode_program(again) == program
    assert to_json(decode_program(again)) == to_json(program)
    assert len(again) <= len(data)
    assert program.version == ("1.0" if b"1.0" in data else "1")


def test_golden_content() -> None:
    path = Path(__file__).parents[2] / "ptn-runtime/src/ptn_runtime/conformance/data/golden/counter/model.ptn"
    method = decode_program(read_program(path)).method("forward")
    assert method.graph.inputs == ("x",)
    assert [(spec.name, spec.kind.name, spec.target) for spec in method.output_specs] == [
        ("aten_add_tensor", "BUFFER_MUTATION", "count"),
        ("aten_add_tensor_1", "BUFFER_MUTATION", "b2"),
        ("aten_add_tensor_3", "USER_OUTPUT", None),
    ]
    assert [(ref.data_key, ref.kind.name, ref.mutated, ref.meta.dtype.name) for ref in method.constants] == [
        ("count", "BUFFER", True, "FLOAT"),
        ("b2", "BUFFER", True, "FLOAT"),
        ("_lifted_tensor_constant2", "BUFFER", False, "LONG"),
    ]
    add = method.graph.nodes[5]
    assert (add.name, add.target) == ("aten_add_tensor", "torch.ops.aten.add.Tensor")
    assert add.inputs[0] == NamedArgument("self", TensorArg("b_count"))
    assert add.inputs[2] == NamedArgument("alpha", IntArg(1))
    assert method.graph.tensor_values["x"] == TensorMeta(ScalarType.FLOAT, (Dim(1, 1),), (0,))


def test_rich_round_trip(rich_program: Program) -> None:
    data = encode_program(rich_program)
    assert data[4:8] == b"NPTG"
    decoded = decode_program(data)
    assert decoded == rich_program
    assert to_json(decoded) == to_json(rich_program)  # unlike ==, tells 0.0 from -0.0


def test_encoding_is_reproducible(rich_program: Program) -> None:
    data = encode_program(rich_program)
    assert encode_program(rich_program) == data
    assert encode_program(decode_program(data)) == data


def test_equal_parts_are_stored_once() -> None:
    one = len(encode_program(program_of(StringArg("shared text of some length"))))
    many = len(encode_program(program_of(*[StringArg("shared text of some length")] * 100)))
    assert many - one == 4 * 99


def test_readers_are_not_exhausted_by_our_sharing() -> None:
    """However much of a program is the same, what is written can be read."""
    name = "p_" + "a_rather_long_name_" * 10
    arguments = (TensorArg(name), IntListArg(tuple(range(100))), graph.TensorListArg((name,) * 8), StringArg(name))
    inputs = tuple(NamedArgument(name, arg) for arg in arguments)
    nodes = tuple(Node(f"n{i}", OpKind.CALL_FUNCTION, name, inputs, metadata={name: name}) for i in range(500))
    program = Program("1.0", (Method("m", Graph(nodes)),))
    data = encode_program(program)
    assert decode_program(data) == program
    reader = FlatBuffer(data)
    budget = reader.budget
    Decoder(reader).method(codec._open(reader)[1]["m"])
    assert budget - reader.budget < 3.2 * len(data)


def test_special_floats_survive() -> None:
    values = [0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, 1.7976931348623157e308]
    found = arguments_of(decode_program(encode_program(program_of(*map(FloatArg, values)))))
    assert [repr(arg.value) for arg in found if isinstance(arg, FloatArg)] == [repr(value) for value in values]


def test_empty_optional_strings_mean_absent() -> None:
    program = Program(
        "1.0", (Method("m", Graph((Node("n", OpKind.CALL_FUNCTION, "", outputs=(Output("o", alias_of=""),)),))),)
    )
    node = decode_program(encode_program(program)).methods[0].graph.nodes[0]
    assert node.target is None
    assert node.outputs[0].alias_of is None


def test_quirk_of_upstream_is_kept() -> None:
    """A defaulted ScalarType argument comes as a number; what it means is the lowering's to say."""
    path = Path(__file__).parents[2] / "ptn-runtime/src/ptn_runtime/conformance/data/golden/whole_llm_q4w/model.ptn"
    nodes = decode_program(read_program(path)).method("forward").graph.nodes
    node = next(node for node in nodes if node.target == "torch.ops.torchao.dequantize_affine.default")
    assert next(named.arg for named in node.inputs if named.name == "output_dtype") == IntArg(int(ScalarType.FLOAT))


# ------------------------------------------------------------------------------------------------------ random

_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_name = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
_ref = st.none() | _name
_int64 = st.integers(-(1 << 63), (1 << 63) - 1)
_float = st.floats(allow_nan=False)
_dtype = st.sampled_from(ScalarType)


def _tuples(items: st.SearchStrategy, max_size: int = 3) -> st.SearchStrategy:
    return st.lists(items, max_size=max_size).map(tuple)


_leaf = st.one_of(
    st.builds(graph.TensorArg, _name),
    st.just(graph.NoneArg()),
    st.builds(graph.IntArg, _int64, _ref),
    st.builds(graph.FloatArg, _float, _ref),
    st.builds(graph.BoolArg, st.booleans(), _ref),
    st.builds(graph.StringArg, _text),
    st.builds(graph.ScalarTypeArg, _dtype),
    st.builds(graph.IntListArg, _tuples(_int64), _tuples(_text)),
    st.builds(graph.FloatListArg, _tuples(_float)),
    st.builds(graph.BoolListArg, _tuples(st.booleans())),
    st.builds(graph.TensorListArg, _tuples(_text)),
    st.builds(graph.OptionalTensorListArg, _tuples(_text), _tuples(st.booleans())),
)
_int32 = st.integers(-(1 << 31), (1 << 31) - 1)
_quant = st.none() | st.one_of(
    st.builds(graph.PackedQuant, _text),
    st.builds(graph.AffineGroup, _text, _dtype, _int32, _int32, _int32, _ref, _dtype),
)
_dim = st.builds(Dim, st.integers(-(1 << 63), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 31) - 1))
_meta = st.builds(TensorMeta, _dtype, _tuples(_dim), st.none() | _tuples(_int32), _quant)
_output = st.builds(Output, _text, st.sampled_from(graph.OutputValueKind), _ref, _tuples(_text))


def _graph(argument: st.SearchStrategy) -> st.SearchStrategy:
    named = st.builds(NamedArgument, _ref, argument, st.booleans())
    metadata = st.dictionaries(_text, _text, max_size=2)
    node = st.builds(Node, _name, st.sampled_from(OpKind), _ref, _tuples(named), _tuples(_output), metadata)
    values = st.dictionaries(_text, _meta, max_size=3)
    return st.builds(Graph, _tuples(node), _tuples(_text), _tuples(_text), values)


_argument = st.recursive(_leaf, lambda inner: st.builds(GraphArg, _text, _graph(inner)), max_leaves=3)
_method = st.builds(
    Method,
    _name,
    _graph(_argument),
    _tuples(st.builds(graph.NamedTensorRef, _text, _text, _meta, st.sampled_from(graph.InputKind), st.booleans())),
    _tuples(st.builds(graph.OutputSpec, _text, st.sampled_from(graph.OutputKind), _ref)),
    _tuples(st.builds(graph.MutableBufferSpec, _text, _text)),
)
_program = st.builds(
    Program, st.sampled_from(["1", "1.0"]), st.lists(_method, max_size=2, unique_by=lambda m: m.name).map(tuple)
)


@settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(_program)
def test_random_round_trip(program: Program) -> None:
    decoded = decode_program(encode_program(program))
    assert decoded == program
    assert to_json(decoded) == to_json(program)
    # Whatever can be written can be checked and shown.
    assert all(isinstance(problem, Problem) for problem in validate_program(program))
    assert to_text(program)
    assert to_dot(program)


# ---------------------------------------------------------------------------------------------------- versions


@pytest.mark.parametrize("version", ["1", "1.0", "1.00", "01.0"])
def test_readable_versions(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize(
    ("version", "stated"), [("1.1", "1.1"), ("2", "2.0"), ("2.0", "2.0"), ("0.9", "0.9"), ("1.999", "1.999")]
)
def test_other_versions_are_refused_with_both_numbers(version: str, stated: str) -> None:
    with pytest.raises(UnsupportedVersionError, match=f"format version {stated}; .* reads 1.0 to 1.0"):
        check_version(version)


@pytest.mark.parametrize(
    "version",
    [None, "", ".0", "1.", "1.x", "1.0.0", "1\n", "1 ", "-1", "1.-1", "9" * 30, "1." + "9" * 30, "\uff11"],
)
def test_malformed_versions(version: str | None) -> None:
    with pytest.raises(ProgramError, match=r"expected 'major.minor'"):
        check_version(version)


def test_version_error_word_for_word(monkeypatch: pytest.MonkeyPatch, rich_program: Program) -> None:
    monkeypatch.setattr(codec, "__version__", "0.1.0")
    with monkeypatch.context() as newer:
        newer.setattr(codec, "FORMAT_VERSION", "1.7")
        data = encode_program(replace(rich_program, version="1.7"))
        assert decode_program(data).version == "1.7"
    with pytest.raises(UnsupportedVersionError) as caught:
        decode_program(data, file="model.ptg")
    assert str(caught.value) == (
        "model.ptg: the program has format version 1.7; ptn-format 0.1.0 reads 1.0 to 1.0: "
        "install a newer ptn-format, or export with an older release"
    )


def test_written_version(rich_program: Program) -> None:
    assert FORMAT_VERSION == "1.0"
    assert ProgramReader(encode_program(rich_program)).version == "1.0"
    with pytest.raises(UnsupportedVersionError):
        encode_program(replace(rich_program, version="1.1"))


# -------------------------------------------------------------------------------------------------------- lazy


def _break_second_method(program: Program) -> bytes:
    first, second = program.methods
    node = Node("unmistakable", OpKind.OUTPUT)
    data = encode_program(Program(program.version, (first, Method(second.name, Graph((node,))))))
    return data.replace(b"unmistakable", b"unmistak\xff\xff\xff\xff")


def test_methods_are_decoded_when_asked_for(rich_program: Program) -> None:
    reader = ProgramReader(_break_second_method(rich_program), file="a.ptn", member="program.ptg")
    assert reader.method_names == ("forward", "nothing")
    assert reader.method("forward") == rich_program.methods[0]
    assert reader.method("forward") is reader.method("forward")
    for _ in range(20):  # a failure costs nothing of the budget
        with pytest.raises(
            ProgramError, match=r"^a.ptn, program.ptg, method 'nothing', byte \d+: a string is not UTF-8"
        ):
            reader.method("nothing")
    with pytest.raises(KeyError):
        reader.method("absent")


def test_first_use_from_many_threads(rich_program: Program) -> None:
    reader = ProgramReader(encode_program(rich_program))
    found: list[Method] = []
    threads = [threading.Thread(target=lambda: found.append(reader.method("forward"))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16
    assert all(method is found[0] for method in found)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_read(rich_program: Program, kind: type) -> None:
    assert decode_program(kind(encode_program(rich_program))) == rich_program


def test_large_method_decodes_fast() -> None:
    """2,000 nodes of 5 arguments: well below the 200 ms promised, even on a slow machine."""
    values = {"x": TensorMeta(ScalarType.FLOAT, (Dim(1, 8), Dim(384, 384)), (0, 1))}
    nodes = []
    for i in range(2000):
        arguments = (
            TensorArg(f"v{i - 1}" if i else "x"),
            TensorArg("x"),
            IntArg(i),
            IntListArg((1, i, -1)),
            graph.NoneArg(),
        )
        inputs = tuple(NamedArgument(f"arg{j}", arg) for j, arg in enumerate(arguments))
        nodes.append(Node(f"v{i}", OpKind.CALL_FUNCTION, "torch.ops.aten.add.Tensor", inputs, (Output(f"v{i}"),)))
        values[f"v{i}"] = TensorMeta(ScalarType.FLOAT, (Dim(1, 8), Dim(i, i)), (0, 1))
    data = encode_program(Program("1.0", (Method("forward", Graph(tuple(nodes), tensor_values=values)),)))
    spent = []
    for _ in range(3):
        start = time.process_time()
        decode_program(data)
        spent.append(time.process_time() - start)
    assert min(spent) < 0.2


# ----------------------------------------------------------------------------------------------------- writing


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        (IntArg(1 << 63), "9223372036854775808 does not fit the 64 bits"),
        (IntListArg((0, -(1 << 63) - 1)), "-9223372036854775809 does not fit the 64 bits"),
        (StringArg("\ud800"), "is not Unicode text"),
        (StringArg(3), "expected a string, found 3"),  # type: ignore[arg-type]
        ("text", "is no argument of the format"),
    ],
)
def test_what_the_format_cannot_hold(argument: graph.Argument, reason: str) -> None:
    with pytest.raises(WriteError, match=reason) as caught:
        encode_program(program_of(argument))
    assert str(caught.value).startswith("method 'forward', node 'f': ")


def test_numbers_are_not_rounded_silently() -> None:
    with pytest.raises(TypeError):
        encode_program(program_of(IntListArg((1.5,))))  # type: ignore[arg-type]


@pytest.mark.parametrize("names", [("a", "a"), ("",)])
def test_method_names_must_differ(names: tuple[str, ...]) -> None:
    methods = tuple(Method(name, Graph(())) for name in names)
    with pytest.raises(WriteError, match="must differ and not be empty"):
        encode_program(Program("1.0", methods))


def test_caps_hold_for_both_directions() -> None:
    wide = Program(
        "1.0", (Method("m", Graph((), tensor_values={"x": TensorMeta(ScalarType.FLOAT, (Dim(1, 1),) * 65)})),)
    )
    with pytest.raises(WriteError, match="65 axes"):
        encode_program(wide)
    big = Program(
        "1.0", (Method("m", Graph((), tensor_values={"x": TensorMeta(ScalarType.FLOAT, (Dim(0, 1 << 31),))})),)
    )
    with pytest.raises(WriteError, match=r"method 'm', tensor 'x': an axis of 0..2147483648"):
        encode_program(big)
    deep = Graph(())
    for _ in range(64):
        deep = Graph((Node("n", OpKind.CALL_FUNCTION, "t", (NamedArgument(None, GraphArg("g", deep)),)),))
    with pytest.raises(WriteError, match="more than 64 graphs"):
        encode_program(Program("1.0", (Method("m", deep),)))
    inner = deep.nodes[0].inputs[0].arg
    assert isinstance(inner, GraphArg)
    program = Program("1.0", (Method("m", inner.graph),))
    assert decode_program(encode_program(program)) == program


def test_too_large_program(monkeypatch: pytest.MonkeyPatch, rich_program: Program) -> None:
    data = encode_program(rich_program)
    monkeypatch.setattr(codec, "MAX_PROGRAM_BYTES", len(data) - 1)
    with pytest.raises(LimitError, match="is larger than"):
        decode_program(data)


@pytest.mark.parametrize("size", [0, 1, 4, 7, 8, 11, 12])
def test_too_short(rich_program: Program, size: int) -> None:
    with pytest.raises(FormatError):
        decode_program(encode_program(rich_program)[:size])


def test_wrong_identifier(rich_program: Program) -> None:
    data = encode_program(rich_program)
    with pytest.raises(ProgramError, match=r"its bytes 4 to 7 are b'ET12', not b'NPTG'"):
        decode_program(data[:4] + b"ET12" + data[8:])
