"""Small programs for what every engine owes beside the numbers of single operators."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from ptn_format.dtypes import ScalarType
from ptn_format.graph import (
    Argument,
    Dim,
    Graph,
    InputKind,
    IntArg,
    Method,
    MutableBufferSpec,
    NamedArgument,
    NamedTensorRef,
    Node,
    NoneArg,
    OpKind,
    Output,
    OutputKind,
    OutputSpec,
    OutputValueKind,
    Program,
    StringArg,
    TensorArg,
    TensorMeta,
)
from ptn_format.package import write_package

from ptn_runtime.conformance.case import Array, floats

__all__ = [
    "Given",
    "MethodBuilder",
    "affine",
    "checked",
    "counter",
    "doubling",
    "echo",
    "lookup",
    "pack",
    "selection",
    "static_meta",
]

Given: TypeAlias = Argument | str | int | None
"""An argument of a node: the name of a tensor, an integer, None, or any argument as the file has it."""


@dataclass
class MethodBuilder:
    """Writes a method node by node."""

    name: str
    nodes: list[Node] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    metas: dict[str, TensorMeta] = field(default_factory=dict)
    constants: list[NamedTensorRef] = field(default_factory=list)
    buffers: list[MutableBufferSpec] = field(default_factory=list)
    results: list[tuple[Argument, OutputSpec | None]] = field(default_factory=list)

    def _placeholder(self, name: str) -> str:
        self.nodes.append(Node(name, OpKind.PLACEHOLDER, outputs=(Output(name),)))
        return name

    def input(self, name: str, *dims: int | tuple[int, int], dtype: ScalarType = ScalarType.FLOAT) -> str:
        """A user input; an axis is a size or a range."""
        self.metas[name] = TensorMeta(dtype, tuple(Dim(d, d) if isinstance(d, int) else Dim(*d) for d in dims))
        self.inputs.append(name)
        return self._placeholder(name)

    def constant(self, name: str, array: Array, meta: TensorMeta | None = None) -> str:
        """A parameter stored under its own name; `meta` where its bytes are packed."""
        self.constants.append(NamedTensorRef(name, name, meta or static_meta(array), InputKind.PARAMETER))
        return self._placeholder(name)

    def state(self, name: str, initial: Array, *, has_data: bool) -> str:
        """A buffer that the method changes; without data it starts as zeros."""
        if has_data:
            self.constants.append(NamedTensorRef(name, name, static_meta(initial), InputKind.BUFFER, mutated=True))
        else:
            self.buffers.append(MutableBufferSpec(name, name))
            self.metas[name] = static_meta(initial)
        return self._placeholder(name)

    def call(builder, name: str, op: str, meta: TensorMeta, /, **arguments: Given) -> str:  # noqa: N805
        """A node with a tensor result; strings are tensors. (`self` is a name of operators' arguments here.)"""
        builder._node(name, op, arguments, (Output(name),))
        builder.metas[name] = meta
        return name

    def call_many(builder, metas: Mapping[str, TensorMeta], op: str, /, **arguments: Given) -> None:  # noqa: N805
        """A node with several tensor results: their names and types."""
        builder._node(next(iter(metas)), op, arguments, tuple(Output(name) for name in metas))
        builder.metas.update(metas)

    def scalar(builder, name: str, op: str, kind: OutputValueKind, /, **arguments: Given) -> str:  # noqa: N805
        """A node whose result is a Python scalar; refer to it by `FloatArg(ref=name)` and its like."""
        builder._node(name, op, arguments, (Output(name, kind),))
        return name

    def check(builder, name: str, op: str, /, **arguments: Given) -> None:  # noqa: N805
        """A node without results."""
        builder._node(name, op, arguments, ())

    def _node(self, name: str, op: str, arguments: Mapping[str, Given], outputs: tuple[Output, ...]) -> None:
        inputs = tuple(NamedArgument(key, _argument(value)) for key, value in arguments.items())
        self.nodes.append(Node(name, OpKind.CALL_FUNCTION, f"torch.ops.{op}", inputs, outputs))

    def update(self, state: str, value: str) -> None:
        """Makes `value` the new contents of `state`."""
        self.results.append((TensorArg(value), OutputSpec(value, OutputKind.BUFFER_MUTATION, state)))

    def update_input(self, name: str, value: str) -> None:
        """Writes `value` to the user input `name` at the end."""
        self.results.append((TensorArg(value), OutputSpec(value, OutputKind.USER_INPUT_MUTATION, name)))

    def result(self, value: str | int | None) -> None:
        """A user result: a tensor or a literal."""
        spec = OutputSpec(value) if isinstance(value, str) else None
        self.results.append((_argument(value), spec))

    def graph(self) -> Graph:
        """The nodes as a graph, which may be nested in another one."""
        output = Node("output", OpKind.OUTPUT, inputs=tuple(NamedArgument(None, arg) for arg, _ in self.results))
        names = tuple(spec.name for _, spec in self.results if spec is not None)
        return Graph((*self.nodes, output), tuple(self.inputs), names, self.metas)

    def build(self) -> Method:
        """The finished method."""
        specs = tuple(spec for _, spec in self.results if spec is not None)
        return Method(self.name, self.graph(), tuple(self.constants), specs, tuple(self.buffers))


def pack(methods: Sequence[Method], constants: Mapping[str, Array]) -> bytes:
    """The methods as a package in memory."""
    target = io.BytesIO()
    write_package(target, Program("1.0", tuple(methods)), dict(constants))
    return target.getvalue()


def affine(rows: tuple[int, int] = (1, 16)) -> tuple[bytes, Array, Array]:
    """`relu(x @ weight.T + bias)` with a dynamic number of rows: package, weight [6, 8], bias [6]."""
    weight, bias = floats(6, 8), floats(6, seed=1)
    method = MethodBuilder("forward")
    method.constant("weight", weight)
    method.constant("bias", bias)
    method.input("x", rows, 8)
    meta = TensorMeta(ScalarType.FLOAT, (Dim(*rows), Dim(6, 6)))
    method.call("product", "aten.linear.default", meta, input="x", weight="weight", bias="bias")
    method.call("y", "aten.relu.default", meta, self="product")
    method.result("y")
    return pack([method.build()], {"weight": weight, "bias": bias}), weight, bias


def counter() -> bytes:
    """Two methods over two states: `count` starts at 10 (stored), `total` at zeros (not stored).

    `add(x)` adds x float32[2] to `total` and 1 to `count`, and gives the new total; `read()` gives both.
    """
    start, total = np.array([10.0], np.float32), np.zeros(2, np.float32)
    add = MethodBuilder("add")
    add.state("count", start, has_data=True)
    add.state("total", total, has_data=False)
    add.input("x", 2)
    add.call("new_count", "aten.add.Scalar", static_meta(start), self="count", other=1)
    add.call("new_total", "aten.add.Tensor", static_meta(total), self="total", other="x")
    add.update("count", "new_count")
    add.update("total", "new_total")
    add.result("new_total")
    read = MethodBuilder("read")
    read.state("count", start, has_data=True)
    read.state("total", total, has_data=False)
    read.call("now_count", "aten.clone.default", static_meta(start), self="count")
    read.call("now_total", "aten.clone.default", static_meta(total), self="total")
    read.result("now_count")
    read.result("now_total")
    return pack([add.build(), _as_reader(read).build()], {"count": start})


def echo() -> tuple[bytes, Array]:
    """Results that are no node's: an input, the same again, a constant, a literal, None; package and constant."""
    constant = floats(3)
    method = MethodBuilder("forward")
    method.constant("kept", constant)
    method.input("x", 2, 2)
    method.input("unused", 1)
    for value in ("x", "x", "kept", 7, None):
        method.result(value)
    return pack([method.build()], {"kept": constant}), constant


def lookup() -> tuple[bytes, Array]:
    """An embedding of 5 rows: package and table."""
    table = floats(5, 4)
    method = MethodBuilder("forward")
    method.constant("table", table)
    method.input("ids", (0, 9), dtype=ScalarType.LONG)
    meta = TensorMeta(ScalarType.FLOAT, (Dim(0, 9), Dim(4, 4)))
    method.call("rows", "aten.embedding.default", meta, weight="table", indices="ids")
    method.result("rows")
    return pack([method.build()], {"table": table}), table


def selection() -> bytes:
    """`total += x`, and `picked = relu(x[mask] + x[mask])`, whose size depends on the data; gives `picked`.

    x is float32[5], mask bool[5]; `total` starts at zeros.
    """
    method = MethodBuilder("forward")
    method.state("total", np.zeros(5, np.float32), has_data=False)
    method.input("x", 5)
    method.input("mask", 5, dtype=ScalarType.BOOL)
    chosen = TensorMeta(ScalarType.FLOAT, (Dim(0, 5),))
    method.call("sum", "aten.add.Tensor", method.metas["x"], self="total", other="x")
    method.call("chosen", "aten.masked_select.default", chosen, self="x", mask="mask")
    method.call("doubled", "aten.add.Tensor", chosen, self="chosen", other="chosen")
    method.call("picked", "aten.relu.default", chosen, self="doubled")
    method.update("total", "sum")
    method.result("picked")
    return pack([method.build()], {})


def doubling() -> bytes:
    """Doubles its input x float32[3] in place, and gives what x was, negated."""
    method = MethodBuilder("forward")
    method.input("x", 3)
    meta = method.metas["x"]
    method.call("twice", "aten.mul.Scalar", meta, self="x", other=2)
    method.call("before", "aten.neg.default", meta, self="x")
    method.update_input("x", "twice")
    method.result("before")
    return pack([method.build()], {})


def checked() -> bytes:
    """`total += x` behind an assertion that `ok` holds; gives the new total.

    x is float32[2], `total` starts at zeros.
    """
    method = MethodBuilder("forward")
    method.state("total", np.zeros(2, np.float32), has_data=False)
    method.input("x", 2)
    method.input("ok", dtype=ScalarType.BOOL)
    method.check("check", "aten._assert_async.msg", self="ok", assert_msg=StringArg("x must be fine"))
    method.call("sum", "aten.add.Tensor", method.metas["x"], self="total", other="x")
    method.update("total", "sum")
    method.result("sum")
    return pack([method.build()], {})


def _as_reader(method: MethodBuilder) -> MethodBuilder:
    """The reading method binds the same buffers and changes neither."""
    method.constants = [
        NamedTensorRef(ref.name, ref.data_key, ref.meta, ref.kind, mutated=False) for ref in method.constants
    ]
    return method


def static_meta(array: Array) -> TensorMeta:
    """Element type and shape of an array, every axis static."""
    return TensorMeta(ScalarType.from_numpy(array.dtype), tuple(Dim(size, size) for size in array.shape))


def _argument(value: Given) -> Argument:
    if isinstance(value, str):
        return TensorArg(value)
    if isinstance(value, int):
        return IntArg(value)
    return NoneArg() if value is None else value
