"""The engine's own part of the contract: options, devices, refusals, shared weights, traces."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ptn_runtime
import pytest
from ptn_engine_ggml.engine import GgmlContext, GgmlEngine, GgmlHost
from ptn_engine_ggml.lower import registry
from ptn_format.dtypes import ScalarType
from ptn_format.graph import IntArg, OutputValueKind, TensorMeta
from ptn_format.package import Package, open_package
from ptn_runtime.conformance.programs import MethodBuilder, affine, counter, lookup, pack, static_meta
from ptn_runtime.engine import Device, StaticNode, Value
from ptn_runtime.errors import DeviceError, IndexOutOfRangeError, LoweringError, StateError, UnsupportedMethodError
from ptn_runtime.lowering.program import LoweredProgram
from ptn_runtime.shapes import OPERATORS

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def engine() -> GgmlEngine:
    return GgmlEngine()


@pytest.fixture(scope="module")
def cpu(engine: GgmlEngine) -> Device:
    return next(device for device in engine.devices() if device.id == "cpu")


@pytest.fixture
def host(engine: GgmlEngine, cpu: Device) -> Iterator[GgmlHost]:
    host = engine.create_host(cpu)
    yield host
    host.close()


def context(host: GgmlHost, source: Any) -> GgmlContext:
    package: Package = open_package(source)
    return host.create_context(LoweredProgram(package), package)


def test_every_lowering_is_of_a_known_operator() -> None:
    assert registry.operators().keys() - OPERATORS.keys() == set()


def test_parameters_of_lowerings_are_those_of_the_operators() -> None:
    for name, lowering in registry.operators().items():
        code = lowering.function.__code__
        if code.co_flags & 0x08:  # takes any keyword
            continue
        accepted = code.co_varnames[2 : code.co_argcount + code.co_kwonlyargcount]
        assert set(OPERATORS[name].parameters) - set(accepted) == set(), name


@pytest.mark.parametrize("option", [{"threads": 0}, {"threads": 513}])
def test_options_out_of_range(engine: GgmlEngine, cpu: Device, option: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"ggml takes 1\.\.512 threads"):
        engine.create_host(cpu, **option)


@pytest.mark.parametrize("threads", [1.5, 2.0, "2", True])
def test_a_number_of_threads_is_whole(engine: GgmlEngine, cpu: Device, threads: object) -> None:
    with pytest.raises(TypeError, match=r"a whole number is needed, 1\.\.512"):
        engine.create_host(cpu, threads=threads)


def test_unknown_options_and_devices(engine: GgmlEngine, cpu: Device) -> None:
    with pytest.raises(TypeError, match=r"no option \['thread'\]; it has \['threads'\]"):
        engine.create_host(cpu, thread=2)
    with pytest.raises(DeviceError, match="no device 'cuda:7'; it has: cpu"):
        engine.create_host(Device("cuda:7", "gpu", "none"))


def node(op: str, dtype: ScalarType, shape: tuple[int, ...] = (2, 2)) -> StaticNode:
    x, y = Value(0, "x", dtype, shape), Value(1, "y", dtype, shape)
    return StaticNode("n", op, {"self": x}, (y,))


def test_refusals_say_why(engine: GgmlEngine, cpu: Device) -> None:
    assert engine.supports(node("aten.relu.default", ScalarType.FLOAT), cpu).ok
    refusal = engine.supports(node("aten.rand.default", ScalarType.FLOAT), cpu)
    assert not refusal.ok
    assert "no lowering" in refusal.reason
    gpu = Device("cuda:0", "gpu", "none")
    assert "CPU device only" in engine.supports(node("aten.relu.default", ScalarType.FLOAT), gpu).reason


def test_a_refused_method_lists_its_nodes(host: GgmlHost) -> None:
    builder = MethodBuilder("forward")
    builder.input("x", 2)
    meta = TensorMeta(ScalarType.FLOAT, builder.metas["x"].sizes)
    builder.call("noise", "aten.rand_like.default", meta, self="x")
    builder.result("noise")
    with pytest.raises(UnsupportedMethodError, match=r"node 'noise' \(aten\.rand_like\.default\)"):
        context(host, pack([builder.build()], {})).compile("forward")


def test_the_sum_of_nothing_is_zero(host: GgmlHost) -> None:
    builder = MethodBuilder("forward")
    builder.input("x", 0)
    builder.call("y", "aten.nansum.default", static_meta(np.zeros((), np.float32)), self="x", dim=None)
    builder.result("y")
    executable = context(host, pack([builder.build()], {})).compile("forward")
    (y,) = executable.run([np.zeros(0, np.float32)]).outputs
    assert y.shape == ()
    assert y == 0


def test_an_argument_that_cannot_be_built_names_the_node(host: GgmlHost) -> None:
    builder = MethodBuilder("forward")
    builder.input("x", 2)
    meta = static_meta(np.zeros(2, np.float32))
    builder.call("y", "aten.round.decimals", meta, self="x", decimals=1 << 60)
    builder.result("y")
    executable = context(host, pack([builder.build()], {})).compile("forward")
    with pytest.raises(LoweringError, match=r"cannot build node 'y' \(aten\.round\.decimals\)"):
        executable.run([np.ones(2, np.float32)])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads_gives_the_same_numbers(engine: GgmlEngine, cpu: Device, threads: int) -> None:
    data, weight, bias = affine((1, 64))
    own = context(engine.create_host(cpu, threads=threads), data)
    assert own.stream.threads == threads
    x = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
    (y,) = own.compile("forward").run([x]).outputs
    np.testing.assert_allclose(y, np.maximum(x @ weight.T + bias, 0), rtol=1e-5, atol=1e-6)


def large_weight(tmp_path: Path) -> tuple[Path, Array]:
    weight = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
    builder = MethodBuilder("forward")
    builder.constant("weight", weight)
    builder.input("x", 2, 256)
    builder.call(
        "y", "aten.linear.default", static_meta(np.zeros((2, 64), np.float32)), input="x", weight="weight", bias=None
    )
    builder.result("y")
    path = tmp_path / "model.ptn"
    path.write_bytes(pack([builder.build()], {"weight": weight}))
    return path, weight


def test_weights_stay_in_the_mapped_file_and_outlive_the_package(host: GgmlHost, tmp_path: Path) -> None:
    path, weight = large_weight(tmp_path)
    package = open_package(path)
    own = host.create_context(LoweredProgram(package), package)
    executable = own.compile("forward")
    x = np.ones((2, 256), np.float32)
    before = executable.run([x]).outputs[0]
    assert own.weights.bytes_in_place == weight.nbytes
    assert own.weights.bytes_copied == 0
    package.close()
    gc.collect()
    np.testing.assert_array_equal(executable.run([x]).outputs[0], before)
    np.testing.assert_allclose(before[0], weight.sum(1), rtol=1e-4, atol=1e-4)


def test_forks_share_weights_and_not_state(host: GgmlHost, tmp_path: Path) -> None:
    path, _ = large_weight(tmp_path)
    own = context(host, path)
    fork = own.fork()
    assert fork.weights is own.weights
    x = np.ones((2, 256), np.float32)
    expected = own.compile("forward").run([x]).outputs[0]
    own.close()
    np.testing.assert_array_equal(fork.compile("forward").run([x]).outputs[0], expected)

    own = context(host, counter())
    fork = own.fork()
    own.compile("add").run([np.ones(2, np.float32)])
    assert own.read_state("count") == 11
    assert fork.read_state("count") == 10
    with pytest.raises(StateError, match="takes float32"):
        own.write_state("count", np.zeros(2, np.float32))


def test_a_trace_has_every_value_and_leaves_state_alone(host: GgmlHost) -> None:
    own = context(host, counter())
    executable = own.compile("add")
    build = executable.build(((2,),))
    trace = build.trace([np.ones(2, np.float32)])
    values = [value for n in executable.graph.nodes for value in n.outputs]
    assert trace.keys() == {value.id for value in values}
    assert all(trace[v.id].shape == v.shape and trace[v.id].dtype == v.dtype.numpy for v in values)
    assert own.read_state("count") == 10


def test_contexts_run_at_the_same_time(host: GgmlHost) -> None:
    data, weight, bias = affine((1, 64))
    contexts = [context(host, data) for _ in range(3)]
    executables = [own.compile("forward") for own in contexts]
    inputs = [np.random.default_rng(i).standard_normal((64, 8)).astype(np.float32) for i in range(3)]
    failures: list[BaseException] = []

    def work(i: int) -> None:
        try:
            for _ in range(50):
                (y,) = executables[i].run([inputs[i]]).outputs
                np.testing.assert_allclose(y, np.maximum(inputs[i] @ weight.T + bias, 0), rtol=1e-5, atol=1e-6)
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert not failures


def test_an_error_does_not_stick(host: GgmlHost) -> None:
    executable = context(host, lookup()[0]).compile("forward")
    graph = executable.graph
    shape = graph.inputs[0].shape
    good = np.zeros(shape, graph.inputs[0].dtype.numpy)
    expected = executable.run([good]).outputs[0]
    for _ in range(3):
        with pytest.raises(IndexOutOfRangeError, match="out of range"):
            executable.run([good + 1000])
        np.testing.assert_array_equal(executable.run([good]).outputs[0], expected)


def test_the_best_engine_is_chosen() -> None:
    data, _, _ = affine()
    with ptn_runtime.load(data) as model:
        assert model.engine == "ggml"
        assert model.device == "cpu"


def test_parts_of_constants_do_not_pile_up(host: GgmlHost) -> None:
    """A mask cut to every input length: each build holds its own part, the context none."""
    length = 640  # large enough that lowering does not fold the parts
    mask = np.tri(length, dtype=np.float32)
    builder = MethodBuilder("forward")
    builder.constant("mask", mask)
    builder.input("x", (2, length), length)
    meta = builder.metas["x"]
    builder.call("flat", "aten.t.default", static_meta(mask), self="mask")
    builder.scalar("rows", "aten.sym_size.int", OutputValueKind.INT, self="x", dim=0)
    part = TensorMeta(ScalarType.FLOAT, meta.sizes)
    builder.call("part", "aten.slice.Tensor", part, self="flat", dim=0, start=0, end=IntArg(ref="rows"), step=1)
    builder.call("y", "aten.mul.Tensor", meta, self="x", other="part")
    builder.result("y")
    own = context(host, pack([builder.build()], {"mask": mask}))
    executable = own.compile("forward")
    for rows in range(500, length, 20):
        (y,) = executable.run([np.ones((rows, length), np.float32)]).outputs
        np.testing.assert_array_equal(y, mask.T[:rows])
    assert own.weights.bytes_copied + own.weights.bytes_in_place <= 2 * mask.nbytes
