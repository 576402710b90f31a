"""What several of the format's tests share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ptn_format.graph import (
    AffineGroup,
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
    Program,
    ScalarType,
    ScalarTypeArg,
    StringArg,
    TensorArg,
    TensorListArg,
    TensorMeta,
)

GOLDEN = Path(__file__).parents[2] / "ptn-runtime/src/ptn_runtime/conformance/data/golden"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`golden_path` runs a test for each package that upstream's exporter wrote."""
    if "golden_path" in metafunc.fixturenames:
        paths = sorted(GOLDEN.glob("*/model.ptn"))
        assert len(paths) == 27
        metafunc.parametrize("golden_path", paths, ids=[path.parent.name for path in paths])


def meta(*sizes: int | tuple[int, int], dtype: ScalarType = ScalarType.FLOAT, **more: Any) -> TensorMeta:
    dims = tuple(Dim(size, size) if isinstance(size, int) else Dim(*size) for size in sizes)
    return TensorMeta(dtype, dims, **more)


def placeholder(name: str) -> Node:
    return Node(name, OpKind.PLACEHOLDER, outputs=(Output(name),))


def call(
    name: str, target: str, *inputs: NamedArgument, outputs: tuple[Output, ...] | None = None, **metadata: str
) -> Node:
    outputs = (Output(name),) if outputs is None else outputs
    return Node(name, OpKind.CALL_FUNCTION, f"torch.ops.{target}", inputs, outputs, metadata)


def branch(name: str) -> GraphArg:
    nodes = (
        placeholder("x"),
        call("y", f"aten.{name}.default", NamedArgument("self", TensorArg("x"))),
        Node("output", OpKind.OUTPUT, inputs=(NamedArgument(None, TensorArg("y")),)),
    )
    return GraphArg(name, Graph(nodes, ("x",), ("y",), {"x": meta(4, 8), "y": meta(4, 8)}))


@pytest.fixture
def rich_program() -> Program:
    """A valid program that holds every table, argument kind and enumerator of the schema once at least."""
    x, w, k, c, q, s, z, b = (placeholder(n) for n in ("x", "w", "k", "c", "q", "s", "z", "b"))
    everything = call(
        "every",
        "test.every.default",
        NamedArgument("self", TensorArg("x")),
        NamedArgument("none", NoneArg()),
        NamedArgument("int", IntArg(-(1 << 63))),
        NamedArgument("int_ref", IntArg(0, "n")),
        NamedArgument("float", FloatArg(-0.0)),
        NamedArgument("infinite", FloatArg(float("-inf"))),
        NamedArgument("float_ref", FloatArg(0.0, "f")),
        NamedArgument("bool", BoolArg(True)),
        NamedArgument("bool_ref", BoolArg(False, "t")),
        NamedArgument("string", StringArg('größer \u200b"quoted"')),
        NamedArgument("empty", StringArg("")),
        NamedArgument("dtype", ScalarTypeArg(ScalarType.BFLOAT16)),
        NamedArgument("ints", IntListArg((1, 0, (1 << 63) - 1), ("", "n", ""))),
        NamedArgument("no_ints", IntListArg(())),
        NamedArgument("floats", FloatListArg((0.5, -0.0, float("inf")))),
        NamedArgument("bools", BoolListArg((True, False))),
        NamedArgument("tensors", TensorListArg(("x", "k"))),
        NamedArgument("maybe", OptionalTensorListArg(("", "x"), (False, True))),
        NamedArgument(None, IntArg(3)),
        outputs=(Output("every"), Output("", OutputValueKind.TENSOR_LIST, names=("e0", "e1"))),
        **{"ptn.source": "model.py:12"},
    )
    nodes = (
        w,
        q,
        s,
        z,
        k,
        b,
        c,
        x,
        call(
            "n",
            "aten.sym_size.int",
            NamedArgument("self", TensorArg("x")),
            NamedArgument("dim", IntArg(0)),
            outputs=(Output("n", OutputValueKind.INT),),
        ),
        Node(
            "t",
            OpKind.CALL_FUNCTION,
            "_operator.ge",
            (NamedArgument(None, IntArg(0, "n")), NamedArgument(None, IntArg(2))),
            (Output("t", OutputValueKind.BOOL),),
        ),
        Node(
            "f",
            OpKind.CALL_FUNCTION,
            "torch.sym_float",
            (NamedArgument(None, IntArg(0, "n")),),
            (Output("f", OutputValueKind.FLOAT),),
        ),
        everything,
        call(
            "put",
            "aten.index_put_.default",
            NamedArgument("self", TensorArg("k"), mutated=True),
            outputs=(Output("put", alias_of="k"),),
        ),
        call(
            "cond",
            "higher_order.cond",
            NamedArgument(None, BoolArg(False, "t")),
            NamedArgument(None, branch("relu")),
            NamedArgument(None, branch("neg")),
            NamedArgument(None, TensorListArg(("every",))),
            outputs=(Output("picked"),),
        ),
        call(
            "log",
            "aten._assert_scalar.default",
            NamedArgument("self", BoolArg(False, "t")),
            NamedArgument("assert_msg", StringArg("n >= 2")),
            outputs=(),
        ),
        Node(
            "output",
            OpKind.OUTPUT,
            inputs=tuple(
                NamedArgument(None, arg)
                for arg in (
                    TensorArg("put"),
                    TensorArg("every"),
                    TensorArg("e0"),
                    TensorArg("picked"),
                    TensorArg("w"),
                    TensorArg("x"),
                    TensorArg("x"),
                    NoneArg(),
                    IntArg(7),
                    IntArg(0, "n"),
                    FloatArg(0.5),
                )
            ),
        ),
    )
    affine = AffineGroup("l.scale", ScalarType.FLOAT, -8, 7, 4, "l.zero", ScalarType.CHAR)
    constants = (
        NamedTensorRef("w", "l.bias", meta(4, 8), InputKind.PARAMETER),
        NamedTensorRef("q", "l.weight", meta(4, 8, dtype=ScalarType.BYTE, quant=affine), InputKind.PARAMETER),
        NamedTensorRef("s", "l.scale", meta(4, 2), InputKind.BUFFER),
        NamedTensorRef("z", "l.zero", meta(4, 2, dtype=ScalarType.CHAR), InputKind.CONSTANT_TENSOR),
        NamedTensorRef("k", "cache", meta(4, 8, dim_order=(0, 1)), InputKind.BUFFER, mutated=True),
        NamedTensorRef(
            "b", "blocks", meta(2, 256, dtype=ScalarType.BYTE, quant=PackedQuant("gguf:q4_k")), InputKind.PARAMETER
        ),
    )
    values = {
        "x": meta((2, 9), (1, -1), dim_order=(1, 0)),
        "c": meta(3, dtype=ScalarType.HALF),
        "every": meta(4, 8, dim_order=(0, 1)),
        "e0": meta(),
        "e1": meta(dim_order=()),
        "put": meta(4, 8),
        "picked": meta(4, 8),
    }
    outputs = ("put", "every", "e0", "picked", "w", "x", "x")
    specs = (
        OutputSpec("put", OutputKind.BUFFER_MUTATION, "cache"),
        OutputSpec("every", OutputKind.USER_INPUT_MUTATION, "x"),
        *(OutputSpec(name) for name in outputs[2:]),
    )
    forward = Method(
        "forward", Graph(nodes, ("x",), outputs, values), constants, specs, (MutableBufferSpec("c", "count"),)
    )
    empty = Method("nothing", Graph((Node("output", OpKind.OUTPUT),)))
    return Program("1.0", (forward, empty))
