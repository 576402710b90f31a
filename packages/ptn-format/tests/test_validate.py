"""Every structural rule: good programs pass, each way of breaking one is reported with its place."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ptn_format.dtypes import ScalarType
from ptn_format.errors import GraphError
from ptn_format.graph import (
    AffineGroup,
    BoolArg,
    Dim,
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
    Program,
    TensorArg,
    TensorListArg,
    TensorMeta,
)
from ptn_format.package import open_package
from ptn_format.signature import SIGNATURE_KEY, Signature
from ptn_format.validate import Problem, check_program, validate_method, validate_program
from ptn_format.weights import ConstantInfo


def meta(*sizes: int, dtype: ScalarType = ScalarType.FLOAT, **more: Any) -> TensorMeta:
    return TensorMeta(dtype, tuple(Dim(size, size) for size in sizes), **more)


def placeholder(name: str) -> Node:
    return Node(name, OpKind.PLACEHOLDER, outputs=(Output(name),))


def call(name: str, *inputs: NamedArgument, target: str = "torch.ops.aten.add.Tensor", **more: Any) -> Node:
    return Node(name, OpKind.CALL_FUNCTION, target, inputs, more.get("outputs", (Output(name),)))


def tensor(name: str, mutated: bool = False) -> NamedArgument:
    return NamedArgument("self", TensorArg(name), mutated)


def results(*names: str) -> Node:
    return Node("output", OpKind.OUTPUT, inputs=tuple(NamedArgument(None, TensorArg(name)) for name in names))


AFFINE = AffineGroup("w.scale", ScalarType.FLOAT, -8, 7, 4, "w.zero", ScalarType.CHAR)
GRAPH = Graph(
    nodes=(
        placeholder("w"),
        placeholder("s"),
        placeholder("z"),
        placeholder("c"),
        placeholder("k"),
        placeholder("m"),
        placeholder("x"),
        call("n", tensor("x"), outputs=(Output("n", OutputValueKind.INT),)),
        call("put", tensor("m", mutated=True), outputs=(Output("put", alias_of="m"),)),
        call("add", tensor("x"), NamedArgument("other", TensorArg("c")), NamedArgument("alpha", IntArg(0, "n"))),
        results("put", "k", "add"),
    ),
    inputs=("x",),
    outputs=("put", "k", "add"),
    tensor_values={"x": meta(2, 8), "add": meta(2, 8), "put": meta(3), "k": meta(3)},
)
METHOD = Method(
    name="forward",
    graph=GRAPH,
    constants=(
        NamedTensorRef("w", "w", meta(2, 8, dtype=ScalarType.BYTE, quant=AFFINE), InputKind.PARAMETER),
        NamedTensorRef("s", "w.scale", meta(2, 2), InputKind.PARAMETER),
        NamedTensorRef("z", "w.zero", meta(2, 2, dtype=ScalarType.CHAR), InputKind.CONSTANT_TENSOR),
        NamedTensorRef("c", "c", meta(2, 8), InputKind.BUFFER),
        NamedTensorRef("m", "m", meta(3), InputKind.BUFFER, mutated=True),
    ),
    output_specs=(
        OutputSpec("put", OutputKind.BUFFER_MUTATION, "m"),
        OutputSpec("k", OutputKind.BUFFER_MUTATION, "k"),
        OutputSpec("add"),
    ),
    mutable_buffers=(MutableBufferSpec("k", "k"),),
)


def info(key: str, dtype: ScalarType, *shape: int, nbytes: int | None = None) -> ConstantInfo:
    return ConstantInfo(key, dtype, shape, math.prod(shape) * dtype.itemsize if nbytes is None else nbytes, 0)


INFOS = {
    "w": info("w", ScalarType.BYTE, 2, 4),
    "w.scale": info("w.scale", ScalarType.FLOAT, 2, 2),
    "w.zero": info("w.zero", ScalarType.CHAR, 2, 2),
    "c": info("c", ScalarType.FLOAT, 2, 8),
    "m": info("m", ScalarType.FLOAT, 3),
}


def texts(method: Method, infos: dict[str, ConstantInfo] | None = None) -> list[str]:
    problems = validate_method(method, infos)
    assert all(problem.place and problem.message and problem.hint for problem in problems)
    return [f"{problem.place}: {problem.message}" for problem in problems]


def with_node(name: str, /, **changes: Any) -> Method:
    nodes = tuple(replace(node, **changes) if node.name == name else node for node in GRAPH.nodes)
    return replace(METHOD, graph=replace(GRAPH, nodes=nodes))


def with_graph(**changes: Any) -> Method:
    return replace(METHOD, graph=replace(GRAPH, **changes))


def with_values(**values: TensorMeta) -> Method:
    return with_graph(tensor_values={**GRAPH.tensor_values, **values})


def with_constant(name: str, /, **changes: Any) -> Method:
    return replace(
        METHOD, constants=tuple(replace(ref, **changes) if ref.name == name else ref for ref in METHOD.constants)
    )


def with_quant(**changes: Any) -> Method:
    return with_constant("w", meta=meta(2, 8, dtype=ScalarType.BYTE, quant=replace(AFFINE, **changes)))


def with_spec(number: int, **changes: Any) -> Method:
    specs = list(METHOD.output_specs)
    specs[number] = replace(specs[number], **changes)
    return replace(METHOD, output_specs=tuple(specs))


def with_nested(
    graph: Graph, target: str = "torch.ops.higher_order.cond", operands: tuple[str, ...] = ("x",)
) -> Method:
    inputs = (NamedArgument(None, GraphArg("body", graph)), NamedArgument(None, TensorListArg(operands)))
    return with_node("add", target=target, inputs=inputs)


BODY = Graph((placeholder("x"), results("x")), ("x",), ("x",), {"x": meta(2, 8)})


# ----------------------------------------------------------------------------------------------- good programs


def test_golden_files_have_no_problems(golden_path: Path) -> None:
    with open_package(golden_path) as package:
        infos = {key: package.constant_info(key) for key in package.constant_keys}
        assert validate_program(package.program, infos) == []
        assert validate_program(package.program) == []


def test_rich_program_has_no_problems(rich_program: Program) -> None:
    assert validate_program(rich_program) == []


def test_base_has_no_problems() -> None:
    assert texts(METHOD, INFOS) == []
    check_program(Program("1.0", (METHOD,)), INFOS)


GOOD = {
    "outputs that are constants, inputs, twice the same": with_graph(
        nodes=(*GRAPH.nodes[:-1], results("put", "k", "add", "c", "x", "x", "w")),
        outputs=("put", "k", "add", "c", "x", "x", "w"),
    ),
    "literals and None in the output node": with_node(
        "output",
        inputs=(*GRAPH.nodes[-1].inputs, NamedArgument(None, NoneArg()), NamedArgument(None, IntArg(3))),
    ),
    "an unused input": with_graph(
        nodes=(*GRAPH.nodes[:7], placeholder("unused"), *GRAPH.nodes[7:]),
        inputs=("x", "unused"),
        tensor_values={**GRAPH.tensor_values, "unused": meta(1)},
    ),
    "a placeholder that names no output": with_node("x", outputs=()),
    "metadata of a constant, restated": with_values(c=meta(2, 8, dim_order=(0, 1))),
    "no dim_order, and an identity one": with_values(x=meta(2, 8, dim_order=(1, 0)), put=meta(3, dim_order=(0,))),
    "an input without upper bound": with_values(x=TensorMeta(ScalarType.FLOAT, (Dim(), Dim(8, 8)))),
    "a symmetric scheme": with_quant(zero_point_data_key=None),
    "the same name in a nested graph": with_nested(BODY),
    "a number among the operands": with_nested(Graph((placeholder("n"), results()), ("n",)), operands=("n",)),
    "an absent tensor": with_node(
        "add", inputs=(NamedArgument("indices", OptionalTensorListArg(("", "x"), (False, True))),)
    ),
    "an alias of an element of a list": with_node(
        "add", inputs=(NamedArgument("tensors", TensorListArg(("x",))),), outputs=(Output("add", alias_of="x"),)
    ),
    "a tensor without metadata that nobody uses": with_node(
        "n", outputs=(Output("n", OutputValueKind.INT), Output("spare"))
    ),
    "a signature": with_node("output", metadata={SIGNATURE_KEY: Signature.flat(["x"], 1).to_json()}),
}


@pytest.mark.parametrize("method", GOOD.values(), ids=GOOD)
def test_legitimate(method: Method) -> None:
    if method.output_specs == METHOD.output_specs:
        specs = (*METHOD.output_specs, *(OutputSpec(name) for name in method.graph.outputs[3:]))
        method = replace(method, output_specs=specs)
    assert texts(method) == []


# --------------------------------------------------------------------------------------------------- the graph

BAD: dict[str, tuple[Method, str]] = {
    "node without a name": (with_node("add", name=""), "node 9: the node has no name"),
    "two nodes of one name": (with_node("put", name="n"), "node 'n': two nodes have this name"),
    "two values of one name": (
        with_node("put", outputs=(Output("n"),)),
        "node 'put': the value 'n' exists already",
    ),
    "value without a name": (with_node("n", outputs=(Output(""),)), "node 'n': an output has no name"),
    "unknown reference": (
        with_node("add", inputs=(tensor("nowhere"),)),
        "node 'add': it uses 'nowhere', which no earlier node makes",
    ),
    "reference to a later value": (
        with_node("put", inputs=(tensor("m", mutated=True), NamedArgument("src", TensorArg("add")))),
        "node 'put': it uses 'add', which no earlier node makes",
    ),
    "reference to itself": (with_node("add", inputs=(tensor("add"),)), "node 'add': it uses 'add'"),
    "unknown scalar": (
        with_node("add", inputs=(NamedArgument("alpha", IntArg(0, "nowhere")),)),
        "node 'add': it uses 'nowhere'",
    ),
    "unknown scalar in a list": (
        with_node("add", inputs=(NamedArgument("size", IntListArg((0, 1), ("nowhere", ""))),)),
        "node 'add': it uses 'nowhere'",
    ),
    "unknown element": (
        with_node("add", inputs=(NamedArgument("tensors", TensorListArg(("x", "nowhere"))),)),
        "node 'add': it uses 'nowhere'",
    ),
    "number used as a tensor": (
        with_node("add", inputs=(tensor("n"),)),
        "node 'add': 'n' is used as a tensor but is INT",
    ),
    "tensor used as a number": (
        with_node("add", inputs=(NamedArgument("alpha", IntArg(0, "x")),)),
        "node 'add': 'x' is used as a number but is a tensor",
    ),
    "refs of another length": (
        with_node("add", inputs=(NamedArgument("size", IntListArg((1, 2), ("n",))),)),
        "node 'add': argument 'size' has 2 values but 1 refs",
    ),
    "has_value of another length": (
        with_node("add", inputs=(NamedArgument("indices", OptionalTensorListArg(("x",), ())),)),
        "node 'add': argument 'indices' has 1 names but 0 has_value",
    ),
    "call without target": (with_node("add", target=None), "node 'add': the call names no operator"),
    "placeholder with arguments": (with_node("x", inputs=(tensor("c"),)), "node 'x': a placeholder has a target"),
    "placeholder of two values": (
        with_node("x", outputs=(Output("x"), Output("x2"))),
        "node 'x': a placeholder has 2 outputs",
    ),
    "placeholder that aliases": (
        with_node("x", outputs=(Output("x", alias_of="c"),)),
        "node 'x': a placeholder aliases 'c'",
    ),
    "placeholder after a call": (
        with_graph(nodes=(*GRAPH.nodes[:5], call("early", tensor("c")), *GRAPH.nodes[5:])),
        "node 'm': the placeholder comes after calls",
    ),
    "no output node": (
        with_graph(nodes=GRAPH.nodes[:-1]),
        "method 'forward': the graph does not end with an output node",
    ),
    "two output nodes": (
        with_graph(nodes=(*GRAPH.nodes[:-1], replace(GRAPH.nodes[-1], name="o1"), GRAPH.nodes[-1])),
        "node 'o1': an output node stands before other nodes",
    ),
    "output node with outputs": (
        with_node("output", outputs=(Output("o"),)),
        "node 'output': the output node has a target",
    ),
    "output node that writes": (
        with_node("output", inputs=(tensor("put", mutated=True), *GRAPH.nodes[-1].inputs[1:])),
        "node 'output': the output node writes to an argument",
    ),
    "other outputs than the node": (
        with_graph(outputs=("k", "put", "add")),
        "node 'output': the tensors of the output node are ['put', 'k', 'add'], but the graph's outputs",
    ),
    "alias of itself": (
        with_node("add", outputs=(Output("add", alias_of="add"),)),
        "node 'add': output 'add' aliases itself",
    ),
    "alias of no argument": (
        with_node("add", outputs=(Output("add", alias_of="put"),)),
        "node 'add': output 'add' aliases 'put', which is no argument of the node",
    ),
    "number that aliases": (
        with_node("n", outputs=(Output("n", OutputValueKind.INT, alias_of="x"),)),
        "node 'n': output 'n' aliases 'x' but is INT",
    ),
    "elements without a list": (
        with_node("add", outputs=(Output("add", names=("a",)),)),
        "has elements but is no TENSOR_LIST",
    ),
    "write to a parameter": (
        with_node("put", inputs=(tensor("s", mutated=True),), outputs=(Output("put", alias_of="s"),)),
        "node 'put': it writes to 's', which is the PARAMETER 'w.scale'",
    ),
    "write to a constant": (
        with_node("add", inputs=(tensor("z", mutated=True),)),
        "node 'add': it writes to 'z', which is the CONSTANT_TENSOR 'w.zero'",
    ),
    "write to a buffer that is not mutated": (
        with_node("add", inputs=(tensor("c", mutated=True),)),
        "node 'add': it writes to 'c', which is the BUFFER 'c'",
    ),
    "write through an alias": (
        with_graph(
            nodes=(
                *GRAPH.nodes[:-2],
                call("v1", tensor("s"), outputs=(Output("v1", alias_of="s"),)),
                call("v2", tensor("v1"), outputs=(Output("v2", alias_of="v1"),)),
                call("add", tensor("v2", mutated=True)),
                GRAPH.nodes[-1],
            ),
            tensor_values={**GRAPH.tensor_values, "v1": meta(2, 2), "v2": meta(2, 2)},
        ),
        "node 'add': it writes to 'v2', which is the PARAMETER 'w.scale'",
    ),
    "write to a number": (
        with_node("add", inputs=(NamedArgument("alpha", IntArg(1), mutated=True),)),
        "node 'add': argument 'alpha' is written to but holds no tensor",
    ),
    "input without placeholder": (
        with_graph(inputs=("x", "y")),
        "method 'forward': the inputs ['y'] have no placeholder",
    ),
    "input that is bound": (with_graph(inputs=("c", "x")), "method 'forward': the inputs ['c'] are bound to constants"),
    "placeholder that is nothing": (
        with_graph(inputs=()),
        "method 'forward': the placeholders ['x'] are neither inputs nor bound",
    ),
    "input listed twice": (with_graph(inputs=("x", "x")), "are not in the order of their placeholders"),
    "input that is a number": (
        with_node("x", outputs=(Output("x", OutputValueKind.INT),)),
        "method 'forward': the input 'x' is INT",
    ),
    "tensor without metadata": (
        with_graph(tensor_values={"x": meta(2, 8), "k": meta(3), "put": meta(3)}),
        "method 'forward', tensor 'add': the graph does not say its dtype and shape, which node 'output' needs",
    ),
    "negative size": (
        with_values(x=TensorMeta(ScalarType.FLOAT, (Dim(-2, 8),))),
        "tensor 'x': axis 0 ranges over -2..8",
    ),
    "empty range": (with_values(x=TensorMeta(ScalarType.FLOAT, (Dim(3, 2),))), "tensor 'x': axis 0 ranges over 3..2"),
    "bound below -1": (
        with_values(x=TensorMeta(ScalarType.FLOAT, (Dim(0, -2),))),
        "tensor 'x': axis 0 ranges over 0..-2",
    ),
    "dim_order that repeats": (
        with_values(x=meta(2, 8, dim_order=(0, 0))),
        "tensor 'x': dim_order [0, 0] is no permutation",
    ),
    "dim_order of another rank": (
        with_values(x=meta(2, 8, dim_order=(0,))),
        "tensor 'x': dim_order [0] is no permutation",
    ),
    "metadata that contradicts": (with_values(c=meta(2, 9)), "tensor 'c': the graph and the binding of the constant"),
    "quantised but not BYTE": (
        with_values(put=meta(3, quant=PackedQuant("c"))),
        "tensor 'put': a quantised tensor has dtype FLOAT",
    ),
    # nested graphs
    "problem in a nested graph": (
        with_nested(replace(BODY, nodes=(placeholder("x"), call("y", tensor("add")), results("x")))),
        "method 'forward', node 'add', graph 'body', node 'y': it uses 'add'",
    ),
    "nested placeholder that is no input": (
        with_nested(replace(BODY, inputs=()), operands=()),
        "graph 'body': the placeholders ['x'] are neither inputs nor bound",
    ),
    "operands of another count": (
        with_nested(BODY, operands=("x", "c")),
        "node 'add', graph 'body': it takes 1 inputs but is called with 2 operands",
    ),
    # bindings
    "binding without placeholder": (
        replace(METHOD, constants=(*METHOD.constants, NamedTensorRef("y", "y", meta(1), InputKind.BUFFER))),
        "method 'forward': the constant or buffer 'y' has no placeholder",
    ),
    "value bound twice": (
        replace(METHOD, constants=(*METHOD.constants, NamedTensorRef("k", "y", meta(1), InputKind.BUFFER))),
        "method 'forward': 'k' is bound more than once",
    ),
    "key bound twice": (
        with_constant("c", data_key="w.zero"),
        "method 'forward': the key 'w.zero' is bound more than once",
    ),
    "key of a constant and a buffer": (
        replace(METHOD, mutable_buffers=(MutableBufferSpec("k", "c"),)),
        "method 'forward': the key 'c' is bound more than once",
    ),
    "constant without key": (with_constant("c", data_key=""), "constant 'c': it has no data key"),
    "buffer without key": (replace(METHOD, mutable_buffers=(MutableBufferSpec("k", ""),)), "buffer 'k': it has no key"),
    "constant that is an input": (
        with_constant("c", kind=InputKind.USER_INPUT),
        "constant 'c': its role is USER_INPUT",
    ),
    "mutated parameter": (
        with_constant("c", kind=InputKind.PARAMETER, mutated=True),
        "constant 'c': it is mutated but a PARAMETER",
    ),
    "mutated quantised buffer": (
        with_constant("w", kind=InputKind.BUFFER, mutated=True),
        "constant 'w': it is mutated but quantised",
    ),
    "constant in another order": (
        with_constant("c", meta=meta(2, 8, dim_order=(1, 0))),
        "constant 'c': its dim_order [1, 0] is not contiguous",
    ),
    "constant of several shapes": (
        with_constant("c", meta=TensorMeta(ScalarType.FLOAT, (Dim(1, 4), Dim(8, 8)))),
        "constant 'c': its sizes [1..4, 8] are not fixed",
    ),
    "buffer of several shapes": (
        with_values(k=TensorMeta(ScalarType.FLOAT, (Dim(1, 4),))),
        "buffer 'k': its sizes are not fixed",
    ),
    "quantised buffer": (
        with_values(k=meta(3, dtype=ScalarType.BYTE, quant=PackedQuant("c"))),
        "buffer 'k': it is quantised",
    ),
    # quantisation
    "no codec": (
        with_constant("w", meta=meta(2, 8, dtype=ScalarType.BYTE, quant=PackedQuant(""))),
        "constant 'w': its packed blocks name no codec",
    ),
    "levels": (with_quant(quant_max=6), "constant 'w': its range -8..6 has 15 levels"),
    "one level": (with_quant(quant_max=-8), "constant 'w': its range -8..-8 has 1 levels"),
    "no levels": (with_quant(quant_max=-100), "constant 'w': its range -8..-100 has -91 levels"),
    "too many levels": (with_quant(quant_max=503), "constant 'w': its range -8..503 has 512 levels"),
    "group size": (with_quant(group_size=3), "constant 'w': groups of 3 do not divide the last axis of [2, 8]"),
    "negative group size": (with_quant(group_size=-4), "constant 'w': groups of -4 do not divide"),
    "0-d": (
        with_constant("w", meta=meta(dtype=ScalarType.BYTE, quant=AFFINE)),
        "constant 'w': a 0-d tensor is quantised in groups",
    ),
    "scales that are not bound": (with_quant(scale_data_key="y"), "constant 'w': its scales 'y' are not bound"),
    "zero points that are not bound": (
        with_quant(zero_point_data_key="y"),
        "constant 'w': its zero points 'y' are not bound",
    ),
    "scales of another dtype": (
        with_quant(scale_dtype=ScalarType.HALF),
        "constant 'w': its scales 'w.scale' are float32",
    ),
    "integer scales": (
        with_quant(scale_data_key="w.zero", scale_dtype=ScalarType.CHAR),
        "constant 'w': its scales are int8",
    ),
    "scale count": (with_quant(group_size=0), "constant 'w': its scales 'w.scale' have 4 elements"),
    "mutated scales": (
        with_constant("s", kind=InputKind.BUFFER, mutated=True),
        "constant 'w': its scales 'w.scale' are mutated float32",
    ),
    # output specs
    "spec missing": (replace(METHOD, output_specs=METHOD.output_specs[:-1]), "it has 2 output specs for 3 outputs"),
    "specs in another order": (
        replace(METHOD, output_specs=METHOD.output_specs[::-1]),
        "it has 3 output specs for 3 outputs, or in another order",
    ),
    "target of a user output": (with_spec(2, target="m"), "output 'add': a user output has the target 'm'"),
    "unknown buffer": (with_spec(0, target="y"), "output 'put': it updates 'y', which is no buffer of the method"),
    "no buffer": (with_spec(0, target=None), "output 'put': it updates '', which is no buffer of the method"),
    "parameter updated": (with_spec(0, target="w.scale"), "output 'put': it updates 'w.scale', a PARAMETER"),
    "buffer that is not mutated": (
        with_spec(0, target="c"),
        "output 'put': it updates the buffer 'c', which is not marked",
    ),
    "unknown input": (
        with_spec(0, kind=OutputKind.USER_INPUT_MUTATION, target="c"),
        "output 'put': it updates 'c', which is no input",
    ),
    "buffer updated twice": (with_spec(1, target="m"), "output 'k': 'm' is updated twice"),
    # signature
    "damaged signature": (
        with_node("output", metadata={SIGNATURE_KEY: "{"}),
        "node 'output': the method's signature is damaged",
    ),
    "signature of more inputs": (
        with_node("output", metadata={SIGNATURE_KEY: Signature.flat(["x", "y"], 1).to_json()}),
        "node 'output': the signature names number 1 of 1 inputs",
    ),
    "signature of more results": (
        with_node("output", metadata={SIGNATURE_KEY: Signature.flat(["x"], 2).to_json()}),
        "node 'output': the signature names number 1 of 1 results",
    ),
}


@pytest.mark.parametrize(("method", "expected"), BAD.values(), ids=BAD)
def test_broken_rule(method: Method, expected: str) -> None:
    found = texts(method)
    assert any(expected in text for text in found), found
    assert len(found) <= 4


def test_unused_input_and_buffer_without_metadata() -> None:
    nodes = (placeholder("k"), placeholder("x"), results())
    method = Method("m", Graph(nodes, ("x",)), mutable_buffers=(MutableBufferSpec("k", "k"),))
    assert texts(method) == [
        "method 'm', tensor 'x': the graph does not say the input's dtype and shape",
        "method 'm', tensor 'k': the graph does not say the buffer's dtype and shape",
    ]


def test_quantised_operand_of_a_branch() -> None:
    """A branch that takes a packed constant restates its scheme, whose scales the method must bind."""
    quantised = meta(2, 8, dtype=ScalarType.BYTE, quant=AFFINE)
    body = Graph((placeholder("w"), results()), ("w",), (), {"w": quantised})
    assert texts(with_nested(body, operands=("w",))) == []
    lost = replace(body, tensor_values={"w": replace(quantised, quant=replace(AFFINE, scale_data_key="y"))})
    assert texts(with_nested(lost, operands=("w",))) == [
        "method 'forward', node 'add', graph 'body', tensor 'w': its scales 'y' are not bound in the method"
    ]


# ---------------------------------------------------------------------------------------------- constants' bytes


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            info("c", ScalarType.FLOAT, 8, 2),
            "constant 'c': the program says float32 [2, 8], the package holds float32 [8, 2]",
        ),
        (
            info("c", ScalarType.HALF, 2, 8),
            "constant 'c': the program says float32 [2, 8], the package holds float16 [2, 8]",
        ),
        (info("c", ScalarType.FLOAT, 2, 8, nbytes=60), "constant 'c': the package holds 60 bytes for float32 [2, 8]"),
        (info("w", ScalarType.CHAR, 2, 4), "constant 'w': the package holds int8 under 'w'"),
        (info("w", ScalarType.BYTE, 2, 8), "constant 'w': the package holds 16 bytes under 'w'"),
    ],
)
def test_bytes_that_do_not_fit(changed: ConstantInfo, expected: str) -> None:
    assert [
        text.removeprefix("method 'forward', ")[: len(expected)]
        for text in texts(METHOD, {**INFOS, changed.key: changed})
    ] == [expected]


@pytest.mark.parametrize("key", INFOS)
def test_missing_bytes(key: str) -> None:
    infos = {name: each for name, each in INFOS.items() if name != key}
    (text,) = texts(METHOD, infos)
    assert text.endswith(f"the package has no constant '{key}'")


@pytest.mark.parametrize(
    ("codec", "shape", "nbytes", "expected"),
    [
        ("gguf:q4_k", (2, 512), 2 * 2 * 144, None),
        ("gguf:q4k", (2, 512), 2 * 2 * 144, None),
        ("gguf:q4_k", (2, 512), 144, "the package holds 144 bytes under 'w'"),
        ("gguf:q6_k", (2, 100), 144, "its shape [2, 100] cannot be packed as gguf:q6_k"),
        ("someone's:own", (2, 100), 7, None),
    ],
)
def test_packed_blocks(codec: str, shape: tuple[int, ...], nbytes: int, expected: str | None) -> None:
    method = with_constant("w", meta=meta(*shape, dtype=ScalarType.BYTE, quant=PackedQuant(codec)))
    found = texts(method, {**INFOS, "w": info("w", ScalarType.BYTE, nbytes)})
    assert found == ([f"method 'forward', constant 'w': {expected}"] if expected else [])


# ------------------------------------------------------------------------------------------------- the program


def _second(**changes: Any) -> Program:
    other = replace(METHOD, name="other")
    return Program("1.0", (METHOD, replace(other, **changes)))


def test_methods_that_agree() -> None:
    assert validate_program(_second(), INFOS) == []
    restated = tuple(
        replace(ref, meta=replace(ref.meta, dim_order=tuple(range(len(ref.meta.sizes))))) for ref in METHOD.constants
    )
    assert validate_program(_second(constants=restated), INFOS) == []
    frozen = replace(METHOD, name="other", constants=(), output_specs=(), mutable_buffers=())
    graph = Graph((placeholder("m"), results()), (), ())
    reader = replace(frozen, graph=graph, constants=(NamedTensorRef("m", "m", meta(3), InputKind.BUFFER),))
    assert validate_program(Program("1.0", (METHOD, reader)), INFOS) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"kind": InputKind.PARAMETER}, "role BUFFER there, PARAMETER here"),
        ({"meta": meta(2, 8, dtype=ScalarType.HALF)}, "dtype float32 there, float16 here"),
        ({"meta": meta(2, 9)}, "sizes [2, 8] there, [2, 9] here"),
    ],
)
def test_methods_that_disagree(change: dict[str, Any], expected: str) -> None:
    (problem,) = validate_program(_second(constants=with_constant("c", **change).constants))
    assert problem == Problem(
        "method 'other'",
        f"'c' is not what it is in method 'forward': {expected}",
        "a key means the same tensor in every method",
    )


def test_state_that_starts_differently() -> None:
    """Zeros in one method, stored data in the other."""
    graph = Graph((placeholder("k"), results()), (), ())
    other = Method("other", graph, (NamedTensorRef("k", "k", meta(3), InputKind.BUFFER, mutated=True),))
    (problem,) = validate_program(Program("1.0", (METHOD, other)))
    assert problem.message == "'k' is not what it is in method 'forward': initial zeros there, stored here"


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (Program("1.0", ()), "it has no method"),
        (Program("1.0", (METHOD, METHOD)), "several methods are called 'forward'"),
        (Program("1.0", (replace(METHOD, name=""),)), "a method has no name"),
        (Program("2.0", (METHOD,)), "the program has format version 2.0"),
        (Program("one", (METHOD,)), "the program states the version 'one'"),
    ],
)
def test_broken_programs(program: Program, expected: str) -> None:
    problems = validate_program(program)
    assert [problem.place for problem in problems] == ["program"]
    assert problems[0].message.startswith(expected)


def test_nesting_is_bounded() -> None:
    graph = Graph((results(),))
    for _ in range(3000):
        node = call("c", NamedArgument(None, GraphArg("g", graph)), target="torch.ops.higher_order.cond", outputs=())
        graph = Graph((node, results()))
    problems = validate_program(Program("1.0", (Method("m", graph),)))
    assert [problem.message for problem in problems] == ["more than 64 graphs lie within each other"]


def _chain(count: int) -> Program:
    """Each node reads all kinds of values; names are long, lists are shared."""
    nodes = [placeholder("x")]
    values = {"x": meta(4)}
    for i in range(count):
        before = f"v{i - 1}" if i else "x"
        nodes.append(
            call(
                f"v{i}",
                tensor(before),
                NamedArgument("other", TensorArg("x")),
                outputs=(Output(f"v{i}", alias_of=before),),
            )
        )
        values[f"v{i}"] = meta(4)
    names = tuple(values)
    return Program(
        "1.0",
        (
            Method(
                "m", Graph((*nodes, results(*names)), ("x",), names, values), output_specs=tuple(map(OutputSpec, names))
            ),
        ),
    )


def test_time_is_near_linear() -> None:
    def seconds(count: int) -> float:
        program = _chain(count)
        best = math.inf
        for _ in range(3):
            start = time.process_time()
            assert validate_program(program) == []
            best = min(best, time.process_time() - start)
        return best

    assert seconds(16_000) < 8 * 3 * seconds(2_000)


def test_time_with_everything_wrong() -> None:
    """20,000 inputs in the wrong order, bound twice and unknown: still no square."""
    names = [f"x{i}" for i in range(20_000)]
    method = Method(
        "m",
        Graph(tuple(map(placeholder, names)), tuple(names[::-1]), tuple(names)),
        tuple(NamedTensorRef(name, "k", meta(1)) for name in names),
    )
    start = time.process_time()
    assert len(validate_program(Program("1.0", (method, replace(method, name="n"))))) > 1000
    assert time.process_time() - start < 10


# ---------------------------------------------------------------------------------------------------- one error


def test_one_problem_as_an_error() -> None:
    program = Program("1.0", (with_node("add", target=None),))
    with pytest.raises(GraphError) as caught:
        check_program(program, file="model.ptn")
    assert str(caught.value) == (
        "model.ptn, method 'forward', node 'add': the call names no operator; "
        "the file is damaged or its exporter is at fault; export the model again"
    )


def test_many_problems_as_one_error() -> None:
    nodes = tuple(call(f"c{i}", tensor("nowhere")) for i in range(30))
    program = Program("1.0", (Method("m", Graph((*nodes, results()))),))
    with pytest.raises(GraphError) as caught:
        check_program(program)
    lines = str(caught.value).splitlines()
    assert lines[0] == "the program breaks 30 rules of the format:"
    assert lines[1] == (
        "  method 'm', node 'c0': it uses 'nowhere', which no earlier node makes; "
        "nodes are listed in order of execution"
    )
    assert lines[-1] == "  ... and 10 more"
    assert len(lines) == 22


def test_predicates_may_be_numbers() -> None:
    """A condition on sizes is a BOOL value, not a tensor."""
    decide = call(
        "t", NamedArgument(None, IntArg(0, "n")), target="_operator.ge", outputs=(Output("t", OutputValueKind.BOOL),)
    )
    inputs = (
        NamedArgument(None, BoolArg(False, "t")),
        NamedArgument(None, GraphArg("a", BODY)),
        NamedArgument(None, TensorListArg(("x",))),
    )
    branch = call("add", *inputs, target="torch.ops.higher_order.cond")
    assert texts(with_graph(nodes=(*GRAPH.nodes[:-2], decide, branch, GRAPH.nodes[-1]))) == []
