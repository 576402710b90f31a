"""Small programs and packages, and ways to damage them."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from ptn_format.dtypes import ScalarType
from ptn_format.graph import (
    Dim,
    Graph,
    InputKind,
    Method,
    NamedArgument,
    NamedTensorRef,
    Node,
    OpKind,
    Output,
    OutputKind,
    OutputSpec,
    Program,
    TensorArg,
    TensorMeta,
)
from ptn_format.package import write_package

Constants = Mapping[str, Any]


def meta_of(array: Any) -> TensorMeta:
    dtype = ScalarType.from_numpy(np.dtype(array.dtype).newbyteorder("="))
    return TensorMeta(dtype, tuple(Dim(n, n) for n in array.shape), tuple(range(len(array.shape))))


def method_of(constants: Constants, name: str = "forward", mutable: tuple[str, ...] = ()) -> Method:
    """A method that binds every constant, gives its input back, and adds 1 to each mutable buffer."""
    x = TensorMeta(ScalarType.FLOAT, (Dim(1, 8), Dim(4, 4)), (0, 1))
    values = {key: f"c_{i}" for i, key in enumerate(sorted(constants))}
    nodes = [Node(value, OpKind.PLACEHOLDER, outputs=(Output(value),)) for value in (*values.values(), "x")]
    tensors = {"x": x}
    specs = []
    for key in mutable:
        new = f"{values[key]}_new"
        arguments = tuple(NamedArgument(part, TensorArg(values[key])) for part in ("self", "other"))
        nodes.append(Node(new, OpKind.CALL_FUNCTION, "torch.ops.aten.add.Tensor", arguments, (Output(new),)))
        tensors[new] = meta_of(constants[key])
        specs.append(OutputSpec(new, OutputKind.BUFFER_MUTATION, key))
    specs.append(OutputSpec("x"))
    results = tuple(NamedArgument(None, TensorArg(spec.name)) for spec in specs)
    nodes.append(Node("output", OpKind.OUTPUT, inputs=results))
    bindings = tuple(
        NamedTensorRef(value, key, meta_of(constants[key]), InputKind.BUFFER, key in mutable)
        for key, value in values.items()
    )
    graph = Graph(tuple(nodes), ("x",), tuple(spec.name for spec in specs), tensors)
    return Method(name, graph, bindings, tuple(specs))


def program_of(constants: Constants, mutable: tuple[str, ...] = ()) -> Program:
    return Program("1.0", (method_of(constants, mutable=mutable),))


def package_of(constants: Constants, mutable: tuple[str, ...] = ()) -> bytes:
    buffer = io.BytesIO()
    write_package(buffer, program_of(constants, mutable), constants)
    return buffer.getvalue()


def members_of(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zip_of(members: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, compression)
    return buffer.getvalue()


class Tools:
    """The functions above; tests take them as a fixture because test folders are no packages."""

    method_of = staticmethod(method_of)
    program_of = staticmethod(program_of)
    package_of = staticmethod(package_of)
    members_of = staticmethod(members_of)
    zip_of = staticmethod(zip_of)


@pytest.fixture(scope="session")
def tools() -> type[Tools]:
    return Tools


@pytest.fixture(scope="session")
def constants() -> dict[str, np.ndarray[Any, Any]]:
    return {
        "bias": np.arange(8, dtype=np.float32),
        "mask": np.array([True, False, True]),
        "state": np.zeros(4, np.float32),
        "tied": np.arange(64, dtype=np.float32).reshape(8, 8),
        "weight": np.arange(64, dtype=np.float32).reshape(8, 8),
    }


@pytest.fixture(scope="session")
def package(constants: dict[str, Any]) -> bytes:
    """A package with all three members: `weight` is an alias of `tied`, `state` is mutable."""
    return package_of(constants, mutable=("state",))


@pytest.fixture
def message() -> Callable[[type[Exception], Callable[[], object]], str]:
    """Runs a function that must raise exactly the given error type; returns the text."""

    def run(kind: type[Exception], function: Callable[[], object]) -> str:
        with pytest.raises(kind) as caught:
            function()
        assert type(caught.value) is kind
        return str(caught.value)

    return run
