"""Programs as text, JSON and Graphviz."""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ptn_format import graph
from ptn_format.codec import encode_program
from ptn_format.graph import (
    Dim,
    FloatListArg,
    Graph,
    IntArg,
    Method,
    NamedArgument,
    Node,
    OpKind,
    Output,
    OutputSpec,
    Program,
    StringArg,
    TensorArg,
    TensorMeta,
)
from ptn_format.package import open_package
from ptn_format.signature import NAME_KEY, SOURCE_KEY
from ptn_format.text import describe_quant, describe_tensor, short_target, to_dot, to_json, to_text

FLOAT = graph.ScalarType.FLOAT


def test_text_word_for_word() -> None:
    arguments = (
        NamedArgument("self", TensorArg("x")),
        NamedArgument("other", TensorArg("x")),
        NamedArgument("alpha", IntArg(1)),
    )
    nodes = (
        Node("x", OpKind.PLACEHOLDER, outputs=(Output("x"),), metadata={NAME_KEY: "batch.ids"}),
        Node(
            "add",
            OpKind.CALL_FUNCTION,
            "torch.ops.aten.add.Tensor",
            arguments,
            (Output("add"),),
            {SOURCE_KEY: "m.py:3"},
        ),
        Node("output", OpKind.OUTPUT, inputs=(NamedArgument(None, TensorArg("add")), NamedArgument(None, IntArg(3)))),
    )
    meta = TensorMeta(FLOAT, (Dim(1, 8), Dim(384, 384)), (0, 1))
    method = Method("forward", Graph(nodes, ("x",), ("add",), {"x": meta, "add": meta}), (), (OutputSpec("add"),))
    assert to_text(Program("1.0", (method,))) == (
        "program, format version '1.0'\n"
        "\n"
        "method forward\n"
        "  inputs\n"
        "    %x: float32[1..8, 384]  # batch.ids\n"
        "  graph\n"
        "    %add: float32[1..8, 384] = aten.add.Tensor(%x, %x, alpha=1)  # m.py:3\n"
        "    return %add, 3\n"
        "  outputs\n"
        "    %add: float32[1..8, 384]\n"
    )


def test_text_of_everything(rich_program: Program) -> None:
    text = to_text(rich_program)
    for line in (
        "    %x: float32[2..9, 1..]{1,0}",
        "    %k: float32[4, 8] = state 'cache', starts with stored data",
        "    %c: float16[3] = state 'count', starts as zeros",
        "    %w: float32[4, 8] = parameter 'l.bias'",
        "    %q: uint8[4, 8] = parameter 'l.weight', packed int4 -8..7, groups of 4, "
        "scales 'l.scale', zero points 'l.zero'",
        "    %b: uint8[2, 256] = parameter 'blocks', packed gguf:q4_k",
        "    %n: int = aten.sym_size.int(%x, dim=0)",
        "    %t: bool = _operator.ge(%n, 2)",
        "    %put: float32[4, 8] alias %k = aten.index_put_.default(mut %k)",
        "    %picked: float32[4, 8] = higher_order.cond(%t, relu, neg, [%every])",
        "      relu(%x: float32[4, 8]):",
        "        %y: float32[4, 8] = aten.relu.default(%x)",
        "        return %y",
        '    aten._assert_scalar.default(self=%t, assert_msg="n >= 2")',
        "    return %put, %every, %e0, %picked, %w, %x, %x, None, 7, %n, 0.5",
        "    %put: float32[4, 8] -> state 'cache'",
        "    %every: float32[4, 8] -> input %x",
        "method nothing",
        "    return",
    ):
        assert line in text.splitlines(), line
    (call,) = [line for line in text.splitlines() if "test.every" in line]
    assert call == (
        "    %every: float32[4, 8], [%e0: float32[], %e1: float32[]] = test.every.default(%x, none=None, "
        "int=-9223372036854775808, int_ref=%n, float=-0.0, infinite=-inf, float_ref=%f, bool=True, bool_ref=%t, "
        'string="größer \\u200b\\"quoted\\"", empty="", dtype=bfloat16, ints=[1, %n, 9223372036854775807], '
        "no_ints=[], floats=[0.5, -0.0, inf], bools=[True, False], tensors=[%x, %k], maybe=[None, %x], 3)"
        "  # model.py:12"
    )


def test_hostile_names_cannot_reach_the_terminal() -> None:
    evil = "a\x1b[2Jb\nc\u202e"
    nodes = (
        Node(evil, OpKind.PLACEHOLDER, outputs=(Output(evil),), metadata={NAME_KEY: evil}),
        Node(
            "n",
            OpKind.CALL_FUNCTION,
            evil,
            (NamedArgument(evil, StringArg(evil)),),
            (Output(evil),),
            {SOURCE_KEY: evil},
        ),
    )
    meta = TensorMeta(FLOAT, (), None, graph.PackedQuant(evil))
    ref = graph.NamedTensorRef(evil, evil, meta)
    method = Method(
        evil, Graph(nodes, (evil,), (), {evil: meta}), (ref,), (OutputSpec(evil, graph.OutputKind(1), evil),)
    )
    for text in (to_text(Program(evil, (method,))), to_dot(method)):
        assert all(character.isprintable() or character == "\n" for character in text)
        assert "\\u001b[2Jb" in text.replace("\\\\", "\\")
        assert all(not line.startswith("c") for line in text.splitlines())


def test_golden_files_print(golden_path: Path) -> None:
    with open_package(golden_path) as package:
        program = package.program
    text = to_text(program)
    calls = [node for method in program.methods for node in method.graph.nodes if node.op_kind is OpKind.CALL_FUNCTION]
    for node in calls:
        assert f" = {short_target(node.target or '')}(" in text
    assert "?" not in re.sub(r'"[^"]*"', "", text)  # every tensor's type is known
    assert rebuild(Program, json.loads(to_json(program))) == program
    assert to_dot(program).count("subgraph") >= len(program.methods)


def test_descriptions() -> None:
    assert describe_tensor(None) == "?"
    assert describe_tensor(TensorMeta(FLOAT)) == "float32[]"
    assert (
        describe_tensor(TensorMeta(FLOAT, (Dim(), Dim(2, -1), Dim(0, 3)), (2, 0, 1)))
        == "float32[0.., 2.., 0..3]{2,0,1}"
    )
    scheme = graph.AffineGroup("s", FLOAT, 0, 255)
    assert describe_quant(scheme) == "packed int8 0..255, one group a row, scales 's'"
    assert describe_quant(graph.AffineGroup("s", FLOAT, 0, 5)) == "packed 6 levels 0..5, one group a row, scales 's'"


# -------------------------------------------------------------------------------------------------------- JSON


def rebuild(kind: Any, document: Any) -> Any:
    """Dataclasses of `ptn_format.graph` out of `to_json`'s document: by the types of their fields alone."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        options = typing.get_args(kind)
        if document is None:
            return None
        if isinstance(document, dict):
            kind = next(option for option in options if option.__name__ == document["type"])
        else:
            kind = next(option for option in options if option is not type(None))
        return rebuild(kind, document)
    if origin is tuple:
        return tuple(rebuild(typing.get_args(kind)[0], item) for item in document)
    if origin is Mapping:
        return {key: rebuild(typing.get_args(kind)[1], item) for key, item in document.items()}
    if isinstance(kind, type) and issubclass(kind, graph.enum.IntEnum):
        return kind[document]
    if not hasattr(kind, "__dataclass_fields__"):
        return kind(document)
    hints = typing.get_type_hints(kind)
    assert [key for key in document if key != "type"] == list(hints)
    return kind(**{name: rebuild(hint, document[name]) for name, hint in hints.items()})


def test_json_keeps_every_field(rich_program: Program) -> None:
    document = json.loads(to_json(rich_program))
    again = rebuild(Program, document)
    assert again == rich_program
    assert encode_program(again) == encode_program(rich_program)


def test_json_is_standard(rich_program: Program) -> None:
    def refuse(text: str) -> None:
        raise AssertionError(text)

    text = to_json(rich_program, indent=None)
    json.loads(text, parse_constant=refuse)
    assert "\n" not in text
    assert to_json(rich_program, indent=None) == text
    special = FloatListArg((float("nan"), float("inf"), float("-inf"), -0.0))
    node = Node("n", OpKind.CALL_FUNCTION, "t", (NamedArgument(None, special),))
    document = json.loads(to_json(Method("m", Graph((node,)))), parse_constant=refuse)
    assert document["graph"]["nodes"][0]["inputs"][0]["arg"] == {
        "type": "FloatListArg",
        "values": ["NaN", "Infinity", "-Infinity", -0.0],
    }


def test_json_layout() -> None:
    node = Node(
        "n", OpKind.CALL_FUNCTION, "t", (NamedArgument("self", TensorArg("x"), True),), (Output("n"),), {"a": "b"}
    )
    assert json.loads(to_json(Program("1.0", (Method("m", Graph((node,))),)))) == {
        "version": "1.0",
        "methods": [
            {
                "name": "m",
                "graph": {
                    "nodes": [
                        {
                            "name": "n",
                            "op_kind": "CALL_FUNCTION",
                            "target": "t",
                            "inputs": [{"name": "self", "arg": {"type": "TensorArg", "name": "x"}, "mutated": True}],
                            "outputs": [{"name": "n", "kind": "TENSOR", "alias_of": None, "names": []}],
                            "metadata": {"a": "b"},
                        }
                    ],
                    "inputs": [],
                    "outputs": [],
                    "tensor_values": {},
                },
                "constants": [],
                "output_specs": [],
                "mutable_buffers": [],
            }
        ],
    }


# --------------------------------------------------------------------------------------------------------- DOT


def _dot_statements(text: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Nodes and edges of a Graphviz text; fails where it is not well-formed."""
    nodes, edges, depth = [], [], 0
    for line in text.splitlines():
        line = line.strip()
        quoted = r'"(?:[^"\\]|\\.)*"'
        bare = re.sub(quoted, "Q", line)
        assert bare.count('"') == 0
        depth += bare.endswith("{")
        depth -= bare == "}"
        if match := re.fullmatch(r"(m\w+) -> (m\w+) \[label=Q\];", bare):
            edges.append((match[1], match[2]))
        elif match := re.fullmatch(r"(m\w+) \[label=Q(?:, \w+=\w+)*\];", bare):
            nodes.append(match[1])
        else:
            assert re.fullmatch(r"digraph program \{|subgraph cluster_m\w+ \{|label=Q;|\}|(node|edge) \[.*\];", bare), (
                line
            )
    assert depth == 0
    return nodes, edges


def test_dot(rich_program: Program) -> None:
    text = to_dot(rich_program)
    nodes, edges = _dot_statements(text)
    method = rich_program.methods[0]
    assert len(nodes) == len(set(nodes)) == len(method.graph.nodes) + 3 + 3 + 1
    assert {end for edge in edges for end in edge} <= set(nodes)
    index = {node.name: f"m0_{i}" for i, node in enumerate(method.graph.nodes)}
    assert (index["x"], index["every"]) in edges
    assert (index["n"], index["every"]) in edges
    assert (index["every"], index["cond"]) in edges
    assert (index["put"], index["output"]) in edges
    assert (index["log"], index["output"]) not in edges
    assert 'label="relu of cond"' in text


@pytest.mark.parametrize("what", [to_text, to_json, to_dot])
def test_one_method_or_all(rich_program: Program, what: Any) -> None:
    whole = re.sub(r"\s+", " ", what(rich_program))
    one = re.sub(r"\s+", " ", what(rich_program.methods[0]))
    assert len(one) < len(whole)
    assert what is to_dot or one.strip() in whole
