"""The base classes of the engine contract."""

from typing import Any

import numpy as np
import pytest
from ptn_format.dtypes import ScalarType
from ptn_format.graph import Dim
from ptn_runtime import engine as engine_module
from ptn_runtime.engine import EngineExecutable, Support, initial_graph
from ptn_runtime.errors import (
    ClosedError,
    ExecutionError,
    InputError,
    MethodNotFoundError,
    UnsupportedMethodError,
)
from ptn_runtime.lowering.program import InputSpec


@pytest.fixture
def method(fakes: Any) -> Any:
    inputs = (fakes.tensor("x", ScalarType.FLOAT, (1, 8), 2), fakes.tensor("n", ScalarType.LONG))
    return fakes.Method("forward", inputs, lambda i, _: [i[0] * np.float32(i[1]), np.float32(i[0].sum(axis=1))], 2)


@pytest.fixture
def context(fakes: Any, method: Any) -> Any:
    package = fakes.Package([method], {})
    engine = fakes.Engine()
    return engine.create_host(fakes.CPU).create_context(fakes.Program(package, [method], []), package)


@pytest.fixture
def executable(context: Any) -> EngineExecutable:
    found: EngineExecutable = context.compile("forward")
    return found


def feed(executable: EngineExecutable, rows: int) -> Any:
    x = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
    executable.resize_input(0, (rows, 2))
    executable.set_input(0, x)
    executable.set_input(1, np.array(3))
    return x


def test_interface_before_the_first_run(executable: EngineExecutable) -> None:
    assert (executable.num_inputs, executable.num_outputs) == (2, 2)
    assert executable.input_sizes(0) == (8, 2)
    assert executable.input_sizes(1) == ()
    assert executable.output_sizes(0) == (8, 2)
    assert executable.output_sizes(1) == (8,)
    assert executable.input_dtype(1) is ScalarType.LONG
    assert executable.output_dtype(0) is ScalarType.FLOAT
    for call in (executable.input_sizes, executable.output_sizes, executable.input_dtype, executable.output_dtype):
        with pytest.raises(IndexError):
            call(2)


def test_unbounded_axes_start_at_their_lower_bound(fakes: Any) -> None:
    method = fakes.Method("forward", (fakes.tensor("x", ScalarType.FLOAT, (3, -1)),), lambda i, _: [i[0]])
    assert initial_graph(method).input_shapes == ((3,),)


def test_an_assertion_that_fails_at_the_upper_bounds(fakes: Any) -> None:
    def body(inputs: Any, _: Any) -> Any:
        if inputs[0].shape[0] != 1:
            raise InputError("only 1 works")
        return [inputs[0]]

    method = fakes.Method("forward", (fakes.tensor("x", ScalarType.FLOAT, (1, 8)),), body)
    assert initial_graph(method).input_shapes == ((1,),)
    never = fakes.Method("forward", (fakes.tensor("x", ScalarType.FLOAT, (2, 8)),), body)
    with pytest.raises(InputError, match="only 1 works"):
        initial_graph(never)


def test_run_with_copies(executable: EngineExecutable) -> None:
    x = feed(executable, 3)
    expected = x * 3
    x[:] = 0  # set_input has copied
    executable.execute()
    np.testing.assert_array_equal(executable.get_output(0), expected)
    assert executable.output_sizes(0) == (3, 2)
    out = np.zeros((3, 2), np.float32)
    assert executable.get_output(0, out) is out
    np.testing.assert_array_equal(out, expected)
    executable.get_output(0)[:] = 9
    np.testing.assert_array_equal(executable.get_output(0), expected)
    executable.execute()  # inputs stay until they are set again
    np.testing.assert_array_equal(executable.get_output(0), expected)


def test_sizes_follow_every_run_also_over_cached_builds(executable: EngineExecutable) -> None:
    for rows in (3, 5, 3, 8, 5):
        feed(executable, rows)
        executable.execute()
        assert executable.output_sizes(1) == (rows,)
        assert executable.get_output(1).shape == (rows,)
        assert executable.graph.input_shapes == ((rows, 2), ())
    executable.run([np.zeros((3, 2), np.float32), np.array(1)])
    assert executable.input_sizes(0) == (3, 2)
    with pytest.raises(InputError, match="input 'x' was not set since it was last resized"):
        executable.execute()


def test_wrong_use(executable: EngineExecutable) -> None:
    with pytest.raises(ExecutionError, match="there is no output: execute"):
        executable.get_output(0)
    with pytest.raises(InputError, match="input 'x' was not set"):
        executable.execute()
    with pytest.raises(InputError, match="size 9 of axis 0 is out of range"):
        executable.resize_input(0, (9, 2))
    with pytest.raises(InputError, match="takes 2 axes"):
        executable.resize_input(0, (8,))
    with pytest.raises(InputError, match=r"input 'x' takes float32\[8, 2\], got float64\[8, 2\]"):
        executable.set_input(0, np.zeros((8, 2)))
    with pytest.raises(InputError, match=r"input 'x' takes float32\[8, 2\], got float32\[7, 2\]"):
        executable.set_input(0, np.zeros((7, 2), np.float32))
    feed(executable, 2)
    executable.execute()
    with pytest.raises(InputError, match=r"output 0 is float32\[2, 2\], `out` is float64\[2, 2\]"):
        executable.get_output(0, np.zeros((2, 2)))


def test_a_failed_run_leaves_no_output(executable: EngineExecutable, method: Any) -> None:
    feed(executable, 2)
    executable.execute()

    def fail(*_: Any) -> Any:
        raise ExecutionError("broken")

    method.graphs[((2, 2), ())].extra["function"] = fail
    with pytest.raises(ExecutionError, match="broken"):
        executable.execute()
    with pytest.raises(ExecutionError, match="there is no output"):
        executable.get_output(0)


def test_the_least_recently_used_build_is_freed(executable: EngineExecutable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "MAX_BUILDS", 2)
    one, two = (executable.build(((rows, 2), ())) for rows in (1, 2))
    assert executable.build(((1, 2), ())) is one
    three: Any = executable.build(((3, 2), ()))
    assert [build.closed for build in (one, two, three)] == [False, True, False]  # type: ignore[attr-defined]
    assert executable.build(((2, 2), ())) is not two


def test_compile_gives_one_executable_and_closing_frees_it(context: Any, executable: EngineExecutable) -> None:
    assert context.compile("forward") is executable
    with pytest.raises(MethodNotFoundError):
        context.compile("nothing")
    build: Any = executable.build(((1, 2), ()))
    context.close()
    context.close()
    assert build.closed
    with pytest.raises(ClosedError):
        context.compile("forward")
    with pytest.raises(ClosedError, match="method 'forward' was compiled by an engine context that has been closed"):
        executable.build(((1, 2), ()))


def test_compile_lists_every_refused_node(fakes: Any, method: Any) -> None:
    engine = fakes.Engine(refuse={"fake.body.default": "not today."})
    package = fakes.Package([method], {})
    context = engine.create_host(fakes.CPU).create_context(fakes.Program(package, [method], []), package)
    with pytest.raises(UnsupportedMethodError) as caught:
        context.compile("forward")
    (node,) = caught.value.nodes
    assert (node.op, node.method, node.reason) == ("fake.body.default", "forward", "not today.")


def test_support_and_specs() -> None:
    assert Support.no("too big.") == Support(False, "too big.")
    assert InputSpec("x", ScalarType.FLOAT, (Dim(2, -1), Dim(1, 4))).initial_shape == (2, 4)
