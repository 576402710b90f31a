"""What a conformance case is, and how it becomes a package."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from ptn_format.dtypes import ScalarType
from ptn_format.graph import (
    Argument,
    BoolArg,
    BoolListArg,
    Dim,
    FloatArg,
    FloatListArg,
    Graph,
    InputKind,
    IntArg,
    IntListArg,
    Method,
    NamedArgument,
    NamedTensorRef,
    Node,
    NoneArg,
    OpKind,
    OptionalTensorListArg,
    Output,
    OutputSpec,
    OutputValueKind,
    Program,
    ScalarTypeArg,
    StringArg,
    TensorArg,
    TensorListArg,
    TensorMeta,
)
from ptn_format.package import write_package

from ptn_runtime.lowering.static import TensorSpec
from ptn_runtime.reference import evaluate
from ptn_runtime.shapes import infer

__all__ = ["NOT_IN_TORCH", "Array", "Case", "floats", "integers", "package_bytes", "permutation"]

Array = npt.NDArray[Any]

NOT_IN_TORCH = (
    "native.",  # upstream's exporter makes it
    "quantized_decomposed.embedding_4bit.",  # executorch has it
    "torchao.dequantize_gguf.",  # a name that upstream's exporter gives to what a tensor subclass does
    "torchao.dequantize_int4_tensor.",  # likewise
)
"""Beginnings of names of operators that no PyTorch can judge: their cases have literal results."""

_LIST_RESULTS = frozenset(
    {
        "aten.chunk.default",
        "aten.meshgrid.default",
        "aten.split.Tensor",
        "aten.split_with_sizes.default",
        "aten.tensor_split.sections",
        "aten.unbind.int",
        "aten.unsafe_split.Tensor",
        "aten.unsafe_split_with_sizes.default",
    }
)


@dataclass(frozen=True)
class Case:
    """One call of one operator.

    Attributes:
        op: canonical operator name.
        name: what the case is about, for the test's id; unique among the operator's cases.
        args: arguments by schema name. Arrays (alone or in a tuple) are tensors, everything else is literal.
        expected: literal results where they are known; None where the reference engine tells.
        constants: names of tensor arguments that are stored in the package (weights) instead of being inputs.
        raises: the name of the `ptn_runtime.errors` class that the run must raise instead of giving a result.
        rtol: relative tolerance in place of the default of the dtype.
        atol: absolute tolerance, likewise.
        compare: `values`; `form` where only dtypes and shapes are defined (random numbers, memory that nothing
            initialised); `sorted values` where the order is random.
        within: where only the form is compared, the half-open range that every element must lie in.
        free_results: indices of results whose contents PyTorch leaves open; only their form is compared.
        data_dependent: the shapes of the results depend on the data, so the runtime calls the operator itself, between
            two graphs of the engine.
        program: writes the package and its inputs where one call of `op` cannot show it (nested graphs, numbers out
            of tensors, packed constants). Then `args` is what the program is made of, and `expected` is given.
    """

    op: str
    name: str
    args: Mapping[str, Any]
    expected: tuple[Array, ...] | None = None
    constants: frozenset[str] = field(default=frozenset())
    raises: str | None = None
    rtol: float | None = None
    atol: float | None = None
    compare: Literal["values", "form", "sorted values"] = "values"
    within: tuple[float, float] | None = None
    free_results: frozenset[int] = frozenset()
    data_dependent: bool = False
    program: Callable[[Mapping[str, Any]], tuple[bytes, list[Array]]] | None = None

    def __str__(self) -> str:
        return f"{self.op}[{self.name}]"


def _generator(shape: Sequence[int], seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(repr(tuple(shape)).encode())])


def floats(
    *shape: int, dtype: ScalarType = ScalarType.FLOAT, low: float = -3.0, high: float = 3.0, seed: int = 0
) -> Array:
    """Uniform numbers in [low, high), the same ones each time."""
    return _generator(shape, seed).uniform(low, high, shape).astype(dtype.numpy)


def integers(*shape: int, dtype: ScalarType = ScalarType.LONG, low: int = -5, high: int = 6, seed: int = 0) -> Array:
    """Uniform integers in [low, high), the same ones each time; bool takes the parity."""
    values = _generator(shape, seed).integers(low, high, shape)
    return (values % 2 == 1) if dtype is ScalarType.BOOL else values.astype(dtype.numpy)


def permutation(*shape: int, dtype: ScalarType = ScalarType.FLOAT, seed: int = 0) -> Array:
    """Distinct numbers in random order: no ties, for sorting and maxima."""
    count = int(np.prod(shape))
    return (_generator(shape, seed).permutation(count) - count // 2).reshape(shape).astype(dtype.numpy)


def package_bytes(case: Case) -> tuple[bytes, list[Array]]:
    """The case as a `.ptn` package, and the arrays for its inputs in order."""
    if case.program is not None:
        return case.program(case.args)
    writer = _Writer(case)
    specs = _result_specs(case)
    names = [f"result_{i}" for i in range(len(specs))]
    if case.op in _LIST_RESULTS:
        outputs: tuple[Output, ...] = (Output("", OutputValueKind.TENSOR_LIST, names=tuple(names)),)
    else:
        outputs = tuple(Output(name) for name in names)
    arguments = tuple(NamedArgument(name, writer.argument(name, value)) for name, value in case.args.items())
    call = Node("call", OpKind.CALL_FUNCTION, f"torch.ops.{case.op}", arguments, outputs)
    last = Node("output", OpKind.OUTPUT, inputs=tuple(NamedArgument(None, TensorArg(name)) for name in names))
    values = dict(writer.metas)
    values.update({name: _meta(spec, by_data=case.data_dependent) for name, spec in zip(names, specs, strict=True)})
    graph = Graph((*writer.placeholders, call, last), tuple(writer.metas), tuple(names), values)
    method = Method("forward", graph, tuple(writer.constants), tuple(OutputSpec(name) for name in names))
    target = io.BytesIO()
    write_package(target, Program("1.0", (method,)), writer.data)
    return target.getvalue(), writer.inputs


def _result_specs(case: Case) -> tuple[TensorSpec, ...]:
    if case.data_dependent:
        return tuple(_as_spec(result) for result in evaluate(case.op, case.args))
    return infer(case.op, {name: _as_spec(value) for name, value in case.args.items()})


def _meta(spec: TensorSpec, *, by_data: bool = False) -> TensorMeta:
    return TensorMeta(spec.dtype, tuple(Dim(0, -1) if by_data else Dim(size, size) for size in spec.shape))


def _as_spec(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return TensorSpec(ScalarType.from_numpy(value.dtype), value.shape)
    return tuple(_as_spec(item) for item in value) if isinstance(value, tuple) else value


class _Writer:
    """Collects the placeholders of a case's tensors while its arguments are turned into the file's."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.placeholders: list[Node] = []
        self.metas: dict[str, TensorMeta] = {}
        self.inputs: list[Array] = []
        self.constants: list[NamedTensorRef] = []
        self.data: dict[str, Array] = {}

    def tensor(self, name: str, array: Array, constant: bool) -> str:
        meta = _meta(TensorSpec(ScalarType.from_numpy(array.dtype), array.shape))
        self.placeholders.append(Node(name, OpKind.PLACEHOLDER, outputs=(Output(name),)))
        if constant:
            self.constants.append(NamedTensorRef(name, f"data.{name}", meta, InputKind.PARAMETER))
            self.data[f"data.{name}"] = array
        else:
            self.metas[name] = meta
            self.inputs.append(array)
        return name

    def argument(self, name: str, value: Any) -> Argument:
        constant = name in self.case.constants
        if isinstance(value, np.ndarray):
            return TensorArg(self.tensor(f"arg_{name}", value, constant))
        if isinstance(value, tuple) and any(isinstance(item, np.ndarray) for item in value):
            names = tuple(
                self.tensor(f"arg_{name}_{i}", item, constant) if item is not None else ""
                for i, item in enumerate(value)
            )
            if all(names):
                return TensorListArg(names)
            return OptionalTensorListArg(names, tuple(bool(item) for item in names))
        return _literal(name, value)


def _literal(name: str, value: Any) -> Argument:
    if value is None:
        return NoneArg()
    if isinstance(value, ScalarType):
        return ScalarTypeArg(value)
    if isinstance(value, bool):
        return BoolArg(value)
    if isinstance(value, int):
        return IntArg(value)
    if isinstance(value, float):
        return FloatArg(value)
    if isinstance(value, str):
        return StringArg(value)
    if isinstance(value, tuple):
        if value and all(isinstance(item, bool) for item in value):
            return BoolListArg(value)
        if any(isinstance(item, float) for item in value):
            return FloatListArg(tuple(float(item) for item in value))
        if all(isinstance(item, int) for item in value):
            return IntListArg(value)
    raise TypeError(f"argument '{name}': no case can hold {value!r}")
