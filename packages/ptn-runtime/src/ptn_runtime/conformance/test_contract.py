"""What every engine owes beside numbers: shapes, state, sessions, threads, errors, memory, lazy loading."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ptn_format.package import open_package

import ptn_runtime
from ptn_runtime.conformance import programs
from ptn_runtime.conformance.case import Array, floats
from ptn_runtime.engine import API_VERSION, EngineContext
from ptn_runtime.errors import ClosedError, IndexOutOfRangeError, InputError, StateError
from ptn_runtime.lowering.program import LoweredProgram
from ptn_runtime.registry import registry
from ptn_runtime.select import match_device

Load = Callable[..., ptn_runtime.Model]
CYCLES = 1000
GROWTH = 12 << 20
MODULES = 20
"""How many modules reading a spec may import beside the runtime's own."""


def affine_result(x: Array, weight: Array, bias: Array) -> Array:
    return np.asarray(np.maximum(x @ weight.T + bias, 0))


@pytest.fixture
def context(engine_name: str, device_id: str | None) -> Any:
    """Makes engine contexts directly, without the user API."""
    opened: list[Any] = []

    def create(data: bytes) -> EngineContext:
        engine = registry().engine(engine_name)
        device = match_device(engine.name, engine.devices(), device_id, engine.unavailable())
        package = open_package(data)
        host = engine.create_host(device)
        created = host.create_context(LoweredProgram(package), package)
        opened.extend((created, host, package))
        return created

    yield create
    for item in opened:
        item.close()


def test_reading_the_spec_loads_no_native_code(engine_name: str) -> None:
    code = (
        "import sys, importlib.metadata as m\n"
        "from importlib.machinery import EXTENSION_SUFFIXES\n"
        "import ptn_runtime.engine\n"
        f"(e,) = m.entry_points(group='ptn.engines', name={engine_name!r})\n"
        "before = set(sys.modules)\n"
        "spec = e.load()\n"
        "new = [sys.modules[name] for name in set(sys.modules) - before]\n"
        "files = [getattr(module, '__file__', None) or '' for module in new]\n"
        "print(spec.factory.split(':')[0] in sys.modules, *spec.api_version, len(new))\n"
        "print(*(file for file in files if file.endswith(tuple(EXTENSION_SUFFIXES))))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    facts, native = done.stdout.splitlines()
    loaded, major, minor, modules = facts.split()
    assert loaded == "False", "reading the spec imports the engine"
    assert not native, "reading the spec imports native modules"
    assert int(modules) <= MODULES, (
        f"reading the spec imports {modules} modules; every listing of engines pays for them"
    )
    assert int(major) == API_VERSION[0]
    assert int(minor) <= API_VERSION[1]


def test_devices_are_listed_or_a_reason_is_given(engine_name: str) -> None:
    engine = registry().engine(engine_name)
    devices = engine.devices()
    assert len({device.id for device in devices}) == len(devices)
    assert devices or engine.unavailable()


def test_results_follow_the_input_shape(load: Load) -> None:
    data, weight, bias = programs.affine()
    with load(data) as model:
        for rows in (3, 1, 16, 3, 7):
            x = floats(rows, 8, seed=rows)
            np.testing.assert_allclose(model(x), affine_result(x, weight, bias), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [0, 17])
def test_a_size_out_of_bounds_is_refused_and_the_model_goes_on(load: Load, rows: int) -> None:
    data, weight, bias = programs.affine()
    with load(data) as model:
        with pytest.raises(InputError, match=r"'x'.*1\.\.16"):
            model(np.zeros((rows, 8), np.float32))
        x = floats(2, 8)
        np.testing.assert_allclose(model(x), affine_result(x, weight, bias), rtol=1e-5, atol=1e-5)


def test_inputs_of_any_strides_and_results_owned_by_the_caller(load: Load) -> None:
    data, weight, bias = programs.affine()
    with load(data) as model:
        wide = floats(8, 10)
        x = wide[:, ::2].T
        before = wide.copy()
        first = model(x)
        kept = first.copy()
        np.testing.assert_allclose(first, affine_result(x, weight, bias), rtol=1e-5, atol=1e-5)
        model(np.zeros((5, 8), np.float32))
        np.testing.assert_array_equal(first, kept)
        np.testing.assert_array_equal(wide, before)
        first[...] = 0
        np.testing.assert_array_equal(model(x), kept)


def test_results_that_are_inputs_constants_and_literals(load: Load) -> None:
    data, constant = programs.echo()
    with load(data) as model:
        x = floats(2, 2)
        first, second, third, number, nothing = model(x, np.zeros(1, np.float32))
        np.testing.assert_array_equal(first, x)
        np.testing.assert_array_equal(second, x)
        np.testing.assert_array_equal(third, constant)
        assert (number, nothing) == (7, None)
        assert not np.shares_memory(first, x)
        assert not np.shares_memory(first, second)
        third[...] = 0
        np.testing.assert_array_equal(model(x, np.zeros(1, np.float32))[2], constant)


def test_an_input_that_the_program_changes_is_written_back(load: Load) -> None:
    with load(programs.doubling()) as model:
        x = np.array([1, -2, 3], np.float32)
        for factor in (1, 2, 4):
            np.testing.assert_array_equal(model(x), np.array([-1, 2, -3], np.float32) * factor)
        np.testing.assert_array_equal(x, [8, -16, 24])


def test_an_empty_input_gives_an_empty_result(load: Load) -> None:
    data, _ = programs.lookup()
    with load(data) as model:
        found = model(np.zeros(0, np.int64))
    assert found.shape == (0, 4)
    assert found.dtype == np.float32


@pytest.mark.parametrize("bad", [5, -1, 2**33])
def test_an_index_out_of_range_is_an_error_that_names_it(load: Load, bad: int) -> None:
    data, table = programs.lookup()
    with load(data) as model:
        with pytest.raises(IndexOutOfRangeError, match=str(bad)) as caught:
            model(np.array([0, bad]))
        assert "'rows' (aten.embedding.default)" in str(caught.value), "the error must name the node"
        np.testing.assert_array_equal(model(np.array([4, 0])), table[[4, 0]])


def test_state_is_shared_by_methods_and_survives_between_calls(load: Load) -> None:
    with load(programs.counter()) as model:
        model.run("add", np.array([1, 2], np.float32))
        np.testing.assert_array_equal(model.run("add", np.array([1, 2], np.float32)), [2, 4])
        count, total = model.run("read")
        np.testing.assert_array_equal(count, [12])
        np.testing.assert_array_equal(total, [2, 4])


def test_state_can_be_read_written_and_reset(load: Load) -> None:
    with load(programs.counter()) as model:
        np.testing.assert_array_equal(model.state["count"], [10])
        model.state["total"] = np.array([5, 6], np.float32)
        np.testing.assert_array_equal(model.run("add", np.array([1, 1], np.float32)), [6, 7])
        written = np.array([7, 8], np.float32)
        model.state["total"] = written
        written[...] = 99
        np.testing.assert_array_equal(model.state["total"], [7, 8])
        model.state["total"] = np.array([6, 7], np.float32)
        seen = model.state["total"]
        seen[...] = 99
        np.testing.assert_array_equal(model.state["total"], [6, 7])
        model.state.reset()
        count, total = model.run("read")
        np.testing.assert_array_equal(count, [10])
        np.testing.assert_array_equal(total, [0, 0])


def test_sessions_do_not_share_state(load: Load) -> None:
    with load(programs.counter()) as model:
        model.run("add", np.array([1, 1], np.float32))
        with model.session() as other:
            np.testing.assert_array_equal(other.state["count"], [10])
            other.run("add", np.array([7, 7], np.float32))
            np.testing.assert_array_equal(other.run("read")[1], [7, 7])
        np.testing.assert_array_equal(model.run("read")[1], [1, 1])


def test_state_that_changes_behind_an_assertion(load: Load) -> None:
    with load(programs.checked()) as model:
        for count in (1, 2, 3):
            total = model(np.array([1, 2], np.float32), np.array(True))
            np.testing.assert_array_equal(total, np.array([count, 2 * count], np.float32))
            np.testing.assert_array_equal(model.state["total"], total)
        with pytest.raises(InputError, match="x must be fine"):
            model(np.array([1, 2], np.float32), np.array(False))


def test_sizes_that_depend_on_data(load: Load) -> None:
    """The runtime cuts the method in two; the state changes in the second part, with what the first has computed."""
    x = np.array([1, -2, 3, 4, -5], np.float32)
    with load(programs.selection()) as model, model.session() as other:
        for mask, picked in (([1, 1, 0, 0, 1], [2, 0, 0]), ([0, 0, 0, 0, 0], []), ([1, 0, 1, 1, 0], [2, 6, 8])):
            np.testing.assert_array_equal(model(x, np.array(mask, np.bool_)), np.array(picked, np.float32))
        np.testing.assert_array_equal(model.state["total"], 3 * x)
        np.testing.assert_array_equal(other(x, np.ones(5, np.bool_)), [2, 0, 6, 8, 0])
        np.testing.assert_array_equal(other.state["total"], x)
        np.testing.assert_array_equal(model.state["total"], 3 * x)


def test_sessions_run_side_by_side(load: Load) -> None:
    data, weight, bias = programs.affine()
    failures: list[BaseException] = []

    def work(session: ptn_runtime.Session, seed: int) -> None:
        try:
            for step in range(30):
                x = floats(1 + (step + seed) % 16, 8, seed=seed)
                np.testing.assert_allclose(session(x), affine_result(x, weight, bias), rtol=1e-5, atol=1e-5)
        except BaseException as error:
            failures.append(error)

    with load(data) as model:
        sessions = [model.session() for _ in range(4)]
        threads = [threading.Thread(target=work, args=(s, i)) for i, s in enumerate(sessions)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures, failures[0]


def test_one_session_may_be_called_from_threads(load: Load) -> None:
    with load(programs.counter()) as model:
        one = np.array([1, 0], np.float32)
        threads = [threading.Thread(target=lambda: [model.run("add", one) for _ in range(25)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        np.testing.assert_array_equal(model.state["total"], [100, 0])


def test_closing_twice_is_harmless_and_use_afterwards_is_an_error(load: Load) -> None:
    model = load(programs.affine()[0])
    session = model.session()
    model.close()
    model.close()
    with pytest.raises(ClosedError):
        model(floats(1, 8))
    with pytest.raises(ClosedError):
        session(floats(1, 8))


def test_the_executable_keeps_its_contract(context: Callable[[bytes], EngineContext]) -> None:
    data, weight, bias = programs.affine()
    executable = context(data).compile("forward")
    assert (executable.num_inputs, executable.num_outputs) == (1, 1)
    assert executable.input_sizes(0) == (16, 8)
    assert executable.output_sizes(0) == (16, 6)
    with pytest.raises(InputError, match="was not set"):
        executable.execute()
    with pytest.raises(InputError, match="takes float32"):
        executable.set_input(0, np.zeros((2, 8), np.float32))
    with pytest.raises(InputError, match="out of range"):
        executable.resize_input(0, (17, 8))
    executable.resize_input(0, (2, 8))
    x = floats(2, 8)
    handed_in = x.copy()
    executable.set_input(0, handed_in)
    handed_in[...] = 0
    executable.execute()
    expected = affine_result(x, weight, bias)
    np.testing.assert_allclose(executable.get_output(0), expected, rtol=1e-5, atol=1e-5)
    target = np.empty((2, 6), np.float32)
    assert executable.get_output(0, target) is target
    np.testing.assert_allclose(target, expected, rtol=1e-5, atol=1e-5)
    assert executable.output_sizes(0) == (2, 6)


def test_context_state_and_fork(context: Callable[[bytes], EngineContext]) -> None:
    first = context(programs.counter())
    add = first.compile("add")
    add.set_input(0, np.array([1, 2], np.float32))
    add.execute()
    second = first.fork()
    try:
        np.testing.assert_array_equal(second.read_state("total"), [0, 0])
        np.testing.assert_array_equal(second.read_state("count"), [10])
        np.testing.assert_array_equal(first.read_state("total"), [1, 2])
        second.write_state("total", np.array([8, 9], np.float32))
        np.testing.assert_array_equal(first.read_state("total"), [1, 2])
    finally:
        second.close()
    add.execute()
    np.testing.assert_array_equal(first.read_state("total"), [2, 4])


def test_a_closed_context_refuses_work(context: Callable[[bytes], EngineContext]) -> None:
    created = context(programs.counter())
    executable = created.compile("add")
    created.close()
    created.close()
    with pytest.raises(ClosedError):
        executable.run([np.zeros(2, np.float32)])
    with pytest.raises(ClosedError):
        created.compile("add")
    with pytest.raises(ClosedError):
        created.read_state("total")


def test_a_state_that_is_not_there_is_an_error_that_lists_those_that_are(
    context: Callable[[bytes], EngineContext],
) -> None:
    created = context(programs.counter())
    with pytest.raises(StateError, match=r"'nothing'.*count, total"):
        created.read_state("nothing")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the resident size from /proc (Linux)")
def test_a_thousand_loads_do_not_grow_the_process(load: Load) -> None:
    data, _, _ = programs.affine()
    x = floats(3, 8)

    def cycle(count: int) -> int:
        for _ in range(count):
            with load(data) as model:
                model(x)
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = cycle(CYCLES // 5)
    after = cycle(CYCLES - CYCLES // 5)
    assert after - before < GROWTH, f"grew by {(after - before) / 2**20:.1f} MiB"
