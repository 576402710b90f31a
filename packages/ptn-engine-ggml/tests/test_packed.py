"""Quantised constants: read in packed form by linear and embedding, else decoded once per context."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from ptn_engine_ggml.engine import GgmlContext, GgmlEngine, GgmlHost
from ptn_format.dtypes import ScalarType
from ptn_format.graph import AffineGroup, Dim, IntListArg, PackedQuant, ScalarTypeArg, TensorMeta
from ptn_format.package import open_package
from ptn_format.quant import decode_gguf, pack_affine
from ptn_runtime.conformance.programs import MethodBuilder, pack
from ptn_runtime.lowering.program import LoweredProgram

Array = np.ndarray[Any, Any]
FLOAT, BYTE = ScalarType.FLOAT, ScalarType.BYTE
N, K, GROUP = 24, 64, 16
SCHEME = AffineGroup("scale", FLOAT, -8, 7, GROUP, "zero", ScalarType.CHAR)
RNG = np.random.default_rng(0)
INTEGERS = RNG.integers(-8, 8, (N, K)).astype(np.int8)
CONSTANTS: dict[str, Array] = {
    "weight": pack_affine(INTEGERS, SCHEME),
    "scale": RNG.uniform(0.01, 0.1, (N, K // GROUP)).astype(np.float32),
    "zero": RNG.integers(-2, 3, (N, K // GROUP)).astype(np.int8),
    "blocks": RNG.integers(0, 32, (N, K // 32 * 34), np.uint8),
}
PACKED_BYTES = sum(CONSTANTS[name].nbytes for name in ("weight", "scale", "zero"))
BLOCKS = TensorMeta(BYTE, (Dim(N, N), Dim(K, K)), quant=PackedQuant("gguf:q8_0"))


def values() -> Array:
    shifted = INTEGERS.astype(np.float32) - np.repeat(CONSTANTS["zero"], GROUP, 1)
    return shifted * np.repeat(CONSTANTS["scale"], GROUP, 1)


@pytest.fixture(scope="module")
def host() -> Iterator[GgmlHost]:
    engine = GgmlEngine()
    device = next(device for device in engine.devices() if device.id == "cpu")
    with_host = engine.create_host(device)
    yield with_host
    with_host.close()


def meta(*sizes: int | tuple[int, int]) -> TensorMeta:
    return TensorMeta(FLOAT, tuple(Dim(s, s) if isinstance(s, int) else Dim(*s) for s in sizes))


def constants(method: MethodBuilder) -> str:
    """Adds the affine weight and `dequantize_affine` of it."""
    packed = TensorMeta(BYTE, (Dim(N, N), Dim(K, K)), quant=SCHEME)
    method.constant("weight", CONSTANTS["weight"], packed)
    method.constant("scale", CONSTANTS["scale"])
    method.constant("zero", CONSTANTS["zero"])
    return method.call(
        "values",
        "torchao.dequantize_affine.default",
        meta(N, K),
        input="weight",
        block_size=IntListArg((1, GROUP)),
        scale="scale",
        zero_point="zero",
        input_dtype=ScalarTypeArg(ScalarType.CHAR),
        quant_min=-8,
        quant_max=7,
        output_dtype=ScalarTypeArg(FLOAT),
    )


def context(host: GgmlHost, method: MethodBuilder) -> GgmlContext:
    built = method.build()
    package = open_package(pack([built], {ref.data_key: CONSTANTS[ref.data_key] for ref in built.constants}))
    return host.create_context(LoweredProgram(package), package)


def held(own: GgmlContext) -> int:
    return own.weights.bytes_in_place + own.weights.bytes_copied


def rows_and_product(method: MethodBuilder) -> None:
    method.input("x", (1, 9), K)
    method.input("ids", (1, 9), dtype=ScalarType.LONG)
    constants(method)
    method.call("rows", "aten.embedding.default", meta((1, 9), K), weight="values", indices="ids")
    method.call("sum", "aten.add.Tensor", meta((1, 9), K), self="rows", other="x")
    method.call("y", "aten.linear.default", meta((1, 9), N), input="sum", weight="values")
    method.result("y")


def test_linear_and_embedding_read_the_packed_bytes(host: GgmlHost) -> None:
    method = MethodBuilder("forward")
    rows_and_product(method)
    own = context(host, method)
    executable = own.compile("forward")
    for count in (1, 4):
        x, ids = RNG.normal(size=(count, K)).astype(np.float32), np.arange(count) * 3
        (y,) = executable.run([x, ids]).outputs
        np.testing.assert_allclose(y, (values()[ids] + x) @ values().T, rtol=1e-4, atol=1e-5)
    assert held(own) == PACKED_BYTES


def test_a_trace_has_the_decoded_values_and_keeps_none(host: GgmlHost) -> None:
    method = MethodBuilder("forward")
    rows_and_product(method)
    own = context(host, method)
    executable = own.compile("forward")
    trace = executable.build(((2, K), (2,))).trace([np.zeros((2, K), np.float32), np.array([0, 1])])
    decoded = next(array for array in trace.values() if array.shape == (N, K) and array.dtype == np.float32)
    np.testing.assert_array_equal(decoded, values())
    assert held(own) == PACKED_BYTES


def test_other_readers_get_values_that_are_decoded_once(host: GgmlHost) -> None:
    method = MethodBuilder("forward")
    method.input("x", (1, 9), N, K)
    constants(method)
    method.call("y", "aten.mul.Tensor", meta((1, 9), N, K), self="x", other="values")
    method.result("y")
    own = context(host, method)
    executable = own.compile("forward")
    for count in (1, 4, 5):
        x = RNG.normal(size=(count, N, K)).astype(np.float32)
        np.testing.assert_array_equal(executable.run([x]).outputs[0], x * values())
    assert held(own) == PACKED_BYTES + values().nbytes
    fork = own.fork()
    fork.compile("forward").run([x])
    assert held(fork) == held(own)


def test_decoded_values_may_be_a_result(host: GgmlHost) -> None:
    method = MethodBuilder("forward")
    method.input("x", 2)
    method.result(constants(method))
    executable = context(host, method).compile("forward")
    np.testing.assert_array_equal(executable.run([np.zeros(2, np.float32)]).outputs[0], values())


@pytest.mark.parametrize("dtype", [FLOAT, ScalarType.HALF, ScalarType.BFLOAT16], ids=lambda t: t.torch_name)
def test_blocks_are_multiplied_as_they_are(host: GgmlHost, dtype: ScalarType) -> None:
    method = MethodBuilder("forward")
    method.input("x", 3, K, dtype=dtype)
    method.constant("blocks", CONSTANTS["blocks"], BLOCKS)
    method.call("y", "aten.linear.default", TensorMeta(dtype, meta(3, N).sizes), input="x", weight="blocks")
    method.result("y")
    own = context(host, method)
    x = RNG.normal(size=(3, K)).astype(dtype.numpy)
    (y,) = own.compile("forward").run([x]).outputs
    decoded = decode_gguf("gguf:q8_0", CONSTANTS["blocks"], (N, K)).astype(dtype.numpy).astype(np.float32)
    expected = x.astype(np.float32) @ decoded.T
    tolerance = 1e-5 if dtype is FLOAT else 1e-2
    assert np.abs(y.astype(np.float32) - expected).max() <= tolerance * np.abs(expected).max()
    assert held(own) == CONSTANTS["blocks"].nbytes


def test_a_linear_layer_with_a_vector(host: GgmlHost) -> None:
    method = MethodBuilder("forward")
    method.input("x", K)
    constants(method)
    method.call("y", "aten.linear.default", meta(N), input="x", weight="values")
    method.result("y")
    x = RNG.normal(size=K).astype(np.float32)
    (y,) = context(host, method).compile("forward").run([x]).outputs
    np.testing.assert_allclose(y, values() @ x, rtol=1e-4, atol=1e-5)
