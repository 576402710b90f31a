"""The user API over a fake engine: calling, state, sessions, closing, threads."""

import gc
import threading
import time
from typing import Any

import numpy as np
import ptn_runtime
import pytest
from ptn_format.dtypes import ScalarType
from ptn_format.signature import Constant, Container, Leaf, Parameter, Signature
from ptn_runtime.errors import (
    ClosedError,
    EngineError,
    ExecutionError,
    InputError,
    MethodNotFoundError,
    StateError,
)
from ptn_runtime.lowering.program import StateSpec

COUNT = StateSpec("count", ScalarType.LONG, (), has_data=True)
CACHE = StateSpec("cache.k", ScalarType.FLOAT, (2, 3), has_data=False)


@pytest.fixture
def double(fakes: Any) -> Any:
    return fakes.Method("forward", (fakes.tensor("x", ScalarType.FLOAT, (1, 8), 4),), lambda i, _: [i[0] * 2])


@pytest.fixture
def counter(fakes: Any) -> Any:
    """`forward(x)` adds 1 to `count` and gives x + count."""

    def body(inputs: Any, state: Any) -> Any:
        state["count"] = state["count"] + 1
        return [inputs[0] + np.float32(state["count"])]

    return fakes.Method("forward", (fakes.tensor("x", ScalarType.FLOAT, 1),), body)


def load_counter(load_fake: Any, counter: Any) -> Any:
    return load_fake(counter, states=[COUNT, CACHE], constants={"count": np.array(10, np.int64)})


def test_call_and_run(load_fake: Any, double: Any) -> None:
    model = load_fake(double)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    for result in (model(x), model(x=x), model.run("forward", x), model.run("forward", x=x)):
        np.testing.assert_array_equal(result, x * 2)
    assert model.methods == ("forward",)
    assert (model.engine, model.device, model.refused) == ("fake", "cpu", ())
    assert repr(model) == "<Model: fake.ptn, methods forward, on fake (cpu)>"


def test_shapes_change_and_builds_are_cached(load_fake: Any, double: Any) -> None:
    model = load_fake(double)
    for rows in (2, 3, 2, 3, 8):
        assert model(np.ones((rows, 4), np.float32)).shape == (rows, 4)
    assert double.specialized == [((8, 4),), ((2, 4),), ((3, 4),)]
    with pytest.raises(InputError, match=r"input 'x': size 9 of axis 0 is out of range; allowed \[1\.\.8, 4\]"):
        model(np.ones((9, 4), np.float32))
    with pytest.raises(InputError, match=r"input 'x' takes 2 axes"):
        model(np.ones(4, np.float32))


def test_methods_without_inputs(load_fake: Any, fakes: Any) -> None:
    model = load_fake(fakes.Method("forward", (), lambda i, _: [np.float32([1, 2])]))
    np.testing.assert_array_equal(model(), [1, 2])
    with pytest.raises(InputError, match=r"method 'forward' takes no arguments, got 1\."):
        model(1)
    with pytest.raises(InputError, match=r"method 'forward' has no input 'x'\. Its inputs: none\."):
        model(x=1)
    assert str(model.describe()).splitlines()[1] == "  inputs: none"


def test_default_method(load_fake: Any, fakes: Any) -> None:
    x = fakes.tensor("x", ScalarType.FLOAT, 2)
    one = fakes.Method("encode", (x,), lambda i, _: [i[0] + 1])
    two = fakes.Method("decode", (x,), lambda i, _: [i[0] - 1])
    np.testing.assert_array_equal(load_fake(one)(np.zeros(2, np.float32)), [1, 1])
    model = load_fake([one, two])
    np.testing.assert_array_equal(model.run("decode", np.zeros(2, np.float32)), [-1, -1])
    with pytest.raises(MethodNotFoundError, match=r"no method 'forward'; name one with run.*encode, decode"):
        model(np.zeros(2, np.float32))
    with pytest.raises(MethodNotFoundError):
        model.run("encod", np.zeros(2, np.float32))


@pytest.mark.parametrize("wrong", [[], np.zeros(2, np.float32), 3, None], ids=["list", "array", "int", "None"])
def test_inputs_in_the_place_of_the_methods_name(load_fake: Any, fakes: Any, wrong: Any) -> None:
    x = fakes.tensor("x", ScalarType.FLOAT, 2)
    model = load_fake(fakes.Method("forward", (x,), lambda i, _: [i[0]]))
    kind = type(wrong).__name__
    for called in ("run", "profile", "describe"):
        if called == "describe" and wrong is None:
            continue
        first = "run" if called == "run" else called
        with pytest.raises(InputError) as caught:
            getattr(model, called)(wrong, *([] if called == "describe" else [np.zeros(2, np.float32)]))
        assert str(caught.value) == (
            f"{first}(method, ...) takes the name of a method first, got {kind}. "
            f"Pass one of 'forward', then the inputs: {first}('forward', ...)."
        )


def test_describe(load_fake: Any, fakes: Any) -> None:
    signature = Signature(
        (
            Parameter("batch", Container("dict", (Leaf(0), Leaf(1)), ("ids", "mask"))),
            Parameter("scale", Constant(2.0)),
            Parameter("bias", Leaf(2), keyword_only=True),
        ),
        Container("tuple", (Leaf(0), Constant(None), Leaf(1))),
    )
    inputs = (
        fakes.tensor("batch.ids", ScalarType.LONG, (1, 8), (1, -1)),
        fakes.tensor("batch.mask", ScalarType.BOOL, (1, 8)),
        fakes.tensor("bias", ScalarType.FLOAT, mutated=True),
    )
    method = fakes.Method("forward", inputs, lambda i, _: [i[2], i[2], i[2]], 2, signature)
    info = load_fake(method).describe()
    assert [str(item) for item in info.inputs] == [
        "batch.ids: int64[1..8, 1..]",
        "batch.mask: bool[1..8]",
        "bias: float32[] (changed in place)",
    ]
    assert info.inputs[0].shape[1].min == 1
    assert str(info) == (
        "forward(batch: {ids: tensor, mask: tensor}, scale=2.0, *, bias) -> (tensor, None, tensor)\n"
        "  inputs:\n"
        "    batch.ids   int64[1..8, 1..]\n"
        "    batch.mask  bool[1..8]\n"
        "    bias        float32[] (changed in place)\n"
        "  outputs:\n"
        "    output[0]   float32[1..8, 4]\n"
        "    output[2]   float32[1..8, 4]\n"
        "  fixed at export: scale=2.0"
    )
    with pytest.raises(MethodNotFoundError):
        load_fake(method).describe("nothing")


def test_result_structures(load_fake: Any, fakes: Any) -> None:
    x = fakes.tensor("x", ScalarType.FLOAT, 2)

    def body(inputs: Any, _: Any) -> Any:
        return [inputs[0] + 1, 7, inputs[0] + 2, None]

    tree = Container(
        "dict",
        (
            Container("list", (Leaf(2), Leaf(1))),
            Container("namedtuple", (Leaf(0), Constant("s")), ("first", "word"), "Pair"),
            Leaf(3),
        ),
        ("items", "pair", "none"),
    )
    signature = Signature((Parameter("x", Leaf(0)),), tree)
    result = load_fake(fakes.Method("forward", (x,), body, 4, signature))(np.zeros(2, np.float32))
    assert list(result) == ["items", "pair", "none"]
    np.testing.assert_array_equal(result["items"][0], [2, 2])
    assert result["items"][1] == 7
    np.testing.assert_array_equal(result["pair"].first, [1, 1])
    assert result["pair"].word == "s"
    assert type(result["pair"]).__name__ == "Pair"
    assert result["none"] is None


def test_numbers_that_the_engine_computes_are_python_numbers(load_fake: Any, fakes: Any) -> None:
    x = fakes.tensor("x", ScalarType.FLOAT, 2)

    def body(inputs: Any, _: Any) -> Any:
        total = inputs[0].sum()
        return [inputs[0], *(np.asarray(n) for n in (total.astype(np.int64), total / 2, total > 1, total))]

    method = fakes.Method("forward", (x,), body, 5, number_results=frozenset({1, 2, 3}))
    result = load_fake(method)(np.array([1, 2], np.float32))
    assert [type(item) for item in result[1:4]] == [int, float, bool]
    assert result[1:4] == (3, 1.5, True)
    assert isinstance(result[0], np.ndarray)
    assert isinstance(result[4], np.ndarray)  # a tensor of no axes stays one
    single = load_fake(
        fakes.Method("forward", (x,), lambda i, _: [np.asarray(i[0].sum())], 1, number_results=frozenset({0}))
    )
    assert type(single(np.array([1, 2], np.float32))) is float


def test_flat_results(load_fake: Any, fakes: Any) -> None:
    x = fakes.tensor("x", ScalarType.FLOAT, 2)
    several = load_fake(fakes.Method("forward", (x,), lambda i, _: [i[0], i[0] + 1], 2))(np.zeros(2, np.float32))
    assert isinstance(several, tuple)
    np.testing.assert_array_equal(several, [[0, 0], [1, 1]])
    swapped = Signature((Parameter("x", Leaf(0)),), Container("tuple", (Leaf(1), Leaf(0))))
    several = load_fake(fakes.Method("forward", (x,), lambda i, _: [i[0], i[0] + 1], 2, swapped))(
        np.zeros(2, np.float32)
    )
    np.testing.assert_array_equal(several, [[1, 1], [0, 0]])
    empty = Signature((Parameter("x", Leaf(0)),), Container("tuple", ()))
    assert load_fake(fakes.Method("forward", (x,), lambda i, _: [], 0, empty))(np.zeros(2, np.float32)) == ()


def test_an_engine_that_gives_too_little_is_an_error(
    load_fake: Any, double: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_fake(double)
    x = np.zeros((1, 4), np.float32)
    model(x)
    double.graphs[((1, 4),)].extra["function"] = lambda *_: []
    with pytest.raises(ExecutionError, match="has 1 tensor outputs, the engine gave 0"):
        model(x)


def test_mutated_input_is_written_back(load_fake: Any, fakes: Any) -> None:
    inputs = (fakes.tensor("x", ScalarType.FLOAT, 3, mutated=True), fakes.tensor("y", ScalarType.FLOAT, 3))
    model = load_fake(fakes.Method("forward", inputs, lambda i, _: [i[0] * 2, i[0] + i[1]]))
    x, y = np.ones(3, np.float32), np.full(3, 5, np.float32)
    np.testing.assert_array_equal(model(x, y), [2, 2, 2])
    np.testing.assert_array_equal(x, [6, 6, 6])
    wide = np.ones((3, 2), np.float32)
    model(wide[:, 1], y)
    np.testing.assert_array_equal(wide, [[1, 6], [1, 6], [1, 6]])
    frozen = np.ones(3, np.float32)
    frozen.flags.writeable = False
    for bad, words in [
        (frozen, "got a read-only array"),
        (np.ones(3, ">f4"), "got an array of >f4"),
        (memoryview(np.ones(3, np.float32)), "got a memoryview"),
    ]:
        with pytest.raises(InputError, match=f"input 'x' is changed by the method.*{words}"):
            model(bad, y)


def test_state_reads_writes_and_resets(load_fake: Any, counter: Any) -> None:
    model = load_counter(load_fake, counter)
    x = np.zeros(1, np.float32)
    assert [model(x)[0] for _ in range(3)] == [11, 12, 13]
    assert model.state["count"] == 13
    assert list(model.state) == ["count", "cache.k"]
    assert len(model.state) == 2
    assert "count" in model.state
    assert "x" not in model.state
    model.state["count"] = 100
    assert model(x)[0] == 101
    snapshot = dict(model.state)
    model(x)
    model.state.update(snapshot)
    assert model(x)[0] == 102
    model.state["cache.k"] = np.ones((3, 2), np.float32).T
    model.state.reset("count")
    assert model.state["count"] == 10
    np.testing.assert_array_equal(model.state["cache.k"], np.ones((2, 3)))
    model.state.reset()
    np.testing.assert_array_equal(model.state["cache.k"], np.zeros((2, 3)))
    assert model(x)[0] == 11
    assert repr(model.state) == "<State: count: int64[], cache.k: float32[2, 3]>"


def test_state_gives_copies_and_keeps_none_of_the_callers(load_fake: Any, counter: Any) -> None:
    model = load_counter(load_fake, counter)
    mine = np.ones((2, 3), np.float32)
    model.state["cache.k"] = mine
    mine[:] = 9
    read = model.state["cache.k"]
    read[:] = 7
    np.testing.assert_array_equal(model.state["cache.k"], np.ones((2, 3)))


def test_state_errors(load_fake: Any, counter: Any, double: Any) -> None:
    state = load_counter(load_fake, counter).state
    with pytest.raises(StateError) as caught:
        state["cuont"]
    assert str(caught.value) == "the program has no state 'cuont'. Its states: count, cache.k. Did you mean 'count'?"
    with pytest.raises(StateError, match=r"state 'cache\.k' takes float32\[2, 3\], got shape \[3, 2\]"):
        state["cache.k"] = np.ones((3, 2), np.float32)
    with pytest.raises(StateError, match=r"state 'cache\.k' takes float32\[2, 3\], got float64"):
        state["cache.k"] = np.ones((2, 3))
    with pytest.raises(StateError, match="no state 'nothing'"):
        state.update({"count": 5, "nothing": 1})
    with pytest.raises(StateError, match="no state 'x'"):
        state.reset("count", "x")
    assert state["count"] == 10
    assert state.get("nothing") is None
    with pytest.raises(StateError, match="Its states: none"):
        load_fake(double).state["x"]


def test_sessions_are_isolated(load_fake: Any, counter: Any) -> None:
    model = load_counter(load_fake, counter)
    x = np.zeros(1, np.float32)
    model(x)
    with model.session() as one:
        two = model.session()
        assert [one(x)[0], one(x)[0], two(x)[0], model(x)[0]] == [11, 12, 11, 12]
        one.state["count"] = 50
        assert (one.state["count"], two.state["count"], model.state["count"]) == (50, 11, 12)
        assert one.methods == ("forward",)
        assert one.describe().name == "forward"
    with pytest.raises(ClosedError):
        one(x)
    with pytest.raises(ClosedError):
        one.state["count"]
    assert two(x)[0] == 12
    assert model(x)[0] == 13


def test_close(load_fake: Any, counter: Any, fakes: Any) -> None:
    engine = fakes.Engine()
    model = load_fake(counter, states=[COUNT], constants={"count": np.array(10, np.int64)}, engine=engine)
    session = model.session()
    x = np.zeros(1, np.float32)
    model(x)
    session(x)
    model.close()
    model.close()
    (host,) = engine.hosts
    assert host.closed
    assert all(context.closed for context in host.contexts)
    assert model.closed
    assert session.closed
    assert model._core.package.closed
    assert repr(model) == "<Model: closed>"
    for use in (
        lambda: model(x),
        lambda: model.run("forward", x),
        lambda: session(x),
        lambda: model.state["count"],
        lambda: model.state.reset(),
        lambda: model.describe(),
        lambda: model.session(),
        lambda: model.__enter__(),
    ):
        with pytest.raises(ClosedError, match="was closed"):
            use()


def test_forgotten_models_are_freed_with_their_last_session(load_fake: Any, counter: Any, fakes: Any) -> None:
    engine = fakes.Engine()
    ptn = load_fake(counter, states=[COUNT], constants={"count": np.array(10, np.int64)}, engine=engine)
    core_host = engine.hosts[0]
    other = fakes.Engine("other")
    model = load_fake(counter, states=[COUNT], constants={"count": np.array(10, np.int64)}, engine=other)
    assert not core_host.closed
    ptn.close()
    assert core_host.closed
    assert not other.hosts[0].closed
    assert model(np.zeros(1, np.float32))[0] == 11


def test_garbage_collected_model_frees_the_host(fakes: Any, double: Any) -> None:
    from ptn_runtime.model import _load

    engine = fakes.Engine()
    package = fakes.Package([double], {})
    model: Any = _load(package, fakes.Program(package, [double], []), engine, None, {})
    session: Any = model.session()
    x = np.ones((1, 4), np.float32)
    del model
    gc.collect()
    assert not package.closed
    np.testing.assert_array_equal(session(x), x * 2)
    del session
    gc.collect()
    assert package.closed
    assert engine.hosts[0].closed
    assert all(context.closed for context in engine.hosts[0].contexts)


def test_hosts_are_shared_by_engine_device_and_options(load_fake: Any, double: Any, fakes: Any) -> None:
    engine = fakes.Engine()
    one = load_fake(double, engine=engine, threads=2)
    two = load_fake(double, engine=engine, threads=2)
    three = load_fake(double, engine=engine, threads=4)
    four = load_fake(double, engine=engine, threads=[4])  # not hashable: its own host
    assert len(engine.hosts) == 3
    one.close()
    assert not engine.hosts[0].closed
    two.close()
    assert [host.closed for host in engine.hosts] == [True, False, False]
    three.close()
    four.close()
    assert all(host.closed for host in engine.hosts)
    load_fake(double, engine=engine, threads=2)
    assert len(engine.hosts) == 4


def test_unknown_option(load_fake: Any, double: Any, fakes: Any) -> None:
    with pytest.raises(EngineError) as caught:
        load_fake(double, thread=2)
    assert str(caught.value) == "engine 'fake' has no option 'thread'. Its options: threads. Did you mean 'threads'?"


def test_an_option_whose_value_does_not_fit(load_fake: Any, double: Any, fakes: Any) -> None:
    engine = fakes.Engine()
    engine.fail = ValueError("threads must be at least 1")
    with pytest.raises(EngineError) as caught:
        load_fake(double, engine=engine, threads=0)
    assert str(caught.value) == "engine 'fake' does not take threads=0: threads must be at least 1"


def test_a_failing_load_frees_everything(load_fake: Any, double: Any, fakes: Any) -> None:
    engine = fakes.Engine()

    def fail(*_: Any) -> Any:
        raise ExecutionError("out of memory")

    engine.create_host_before = engine.create_host

    def create_host(device: Any, **options: Any) -> Any:
        host = engine.create_host_before(device, **options)
        host.create_context = fail
        return host

    engine.create_host = create_host
    with pytest.raises(ExecutionError, match="out of memory"):
        load_fake(double, engine=engine)
    assert engine.hosts[0].closed


def test_threads_on_one_session_are_serialised(load_fake: Any, counter: Any, fakes: Any, in_threads: Any) -> None:
    inner = counter.function

    def slow(inputs: Any, state: Any) -> Any:
        before = state["count"]
        time.sleep(0.0005)
        state["count"] = before
        return inner(inputs, state)

    counter.function = slow
    model = load_counter(load_fake, counter)
    x = np.zeros(1, np.float32)
    results = in_threads(*[lambda: [float(model(x)[0]) for _ in range(25)] for _ in range(4)])
    assert sorted(value for part in results for value in part) == [float(v) for v in range(11, 111)]
    assert model._context.most_running == 1


def test_sessions_run_side_by_side(load_fake: Any, fakes: Any, in_threads: Any) -> None:
    meeting = threading.Barrier(2, timeout=30)
    started = threading.Event()

    def body(inputs: Any, _: Any) -> Any:
        if started.is_set():
            meeting.wait()  # passes only while the other session is in its call as well
        return [inputs[0]]

    model = load_fake(fakes.Method("forward", (fakes.tensor("x", ScalarType.FLOAT, 1),), body))
    other = model.session()
    x = np.zeros(1, np.float32)
    model(x)
    started.set()
    in_threads(lambda: model(x), lambda: other(x))


def test_close_waits_for_the_running_call(load_fake: Any, fakes: Any, in_threads: Any) -> None:
    running, may_end = threading.Event(), threading.Event()
    active = threading.Event()

    def body(inputs: Any, _: Any) -> Any:
        if active.is_set():
            running.set()
            assert may_end.wait(30)
        return [inputs[0] + 1]

    model = load_fake(fakes.Method("forward", (fakes.tensor("x", ScalarType.FLOAT, 1),), body))
    x = np.zeros(1, np.float32)
    active.set()

    def close() -> bool:
        assert running.wait(30)
        timer = threading.Timer(0.05, may_end.set)
        timer.start()
        model.close()
        timer.join()
        return may_end.is_set()

    results = in_threads(lambda: float(model(x)[0]), close)
    assert results == [1.0, True]
    with pytest.raises(ClosedError):
        model(x)


def test_first_use_of_methods_from_many_threads(load_fake: Any, fakes: Any, in_threads: Any) -> None:
    x = fakes.tensor("x", ScalarType.FLOAT, 2)
    methods = [fakes.Method(f"m{i}", (x,), lambda inputs, _, i=i: [inputs[0] + i]) for i in range(5)]
    model = load_fake(methods)
    results = in_threads(
        *[lambda: [float(model.run(f"m{i}", np.zeros(2, np.float32))[0]) for i in range(5)] for _ in range(6)]
    )
    assert results == [[0, 1, 2, 3, 4]] * 6


def test_inputs_may_be_called_self_or_method(load_fake: Any, fakes: Any) -> None:
    inputs = (fakes.tensor("self", ScalarType.FLOAT, 1), fakes.tensor("method", ScalarType.FLOAT, 1))
    model = load_fake(fakes.Method("forward", inputs, lambda i, _: [i[0] - i[1]]))
    x, y = np.float32([5]), np.float32([3])
    assert model(self=x, method=y)[0] == 2
    assert model.run("forward", self=x, method=y)[0] == 2


def test_profile_of_an_engine_that_cannot(load_fake: Any, double: Any) -> None:
    with pytest.raises(ExecutionError, match="engine 'fake' cannot profile: FakeBuild does not time single nodes"):
        load_fake(double).profile("forward", np.zeros((1, 4), np.float32))


def test_api_is_reexported() -> None:
    for name in ptn_runtime.__all__:
        assert getattr(ptn_runtime, name) is not None
    assert set(ptn_runtime.__all__) <= set(dir(ptn_runtime))
    with pytest.raises(AttributeError, match="no attribute 'laod'"):
        ptn_runtime.laod  # noqa: B018


def test_calls_by_position_and_name_take_the_short_way(
    load_fake: Any, fakes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ptn_runtime.arrays import Binder

    inputs = (fakes.tensor("x", ScalarType.FLOAT, 2), fakes.tensor("y", ScalarType.LONG, 1))
    model = load_fake(fakes.Method("forward", inputs, lambda i, _: [i[0] + i[1].astype(np.float32)]))
    x, y = np.ones(2, np.float32), np.array([3])
    bound = []
    bind = Binder.bind
    monkeypatch.setattr(Binder, "bind", lambda self, args, kwargs: bound.append(1) or bind(self, args, kwargs))
    for result in (model(x, y), model(x, y=y), model(y=y, x=x)):
        np.testing.assert_array_equal(result, [4, 4])
    assert bound == []
    np.testing.assert_array_equal(model(x[::-1], y.astype(np.int32)), [4, 4])
    assert len(bound) == 1
    for args, kwargs in [((x,), {}), ((x, y), {"y": y}), ((x,), {"x": x}), ((x,), {"z": y})]:
        with pytest.raises(InputError):
            model(*args, **kwargs)


def test_a_call_adds_little(load_fake: Any, double: Any) -> None:
    """Less than 60 us; the best of many rounds, as other processes may disturb."""
    model = load_fake(double)
    x = np.ones((2, 4), np.float32)
    model(x)
    build = model._context.compile("forward").build((x.shape,))

    def best(call: Any) -> float:
        rounds = []
        for _ in range(40):
            start = time.perf_counter()
            for _ in range(20):
                call()
            rounds.append((time.perf_counter() - start) / 20)
        return min(rounds)

    assert best(lambda: model(x)) - best(lambda: build.run([x])) < 60e-6


def test_a_model_that_the_collector_finds_while_another_loads(load_fake: Any, double: Any, fakes: Any) -> None:
    """Freeing must not wait for the lock that the very same thread holds."""
    from ptn_runtime.model import _load

    engine = fakes.Engine()
    package = fakes.Package([double], {})
    forgotten: Any = _load(package, fakes.Program(package, [double], []), engine, None, {})
    forgotten.cycle = forgotten
    create = engine.create_host

    def create_host(device: Any, **options: Any) -> Any:
        gc.collect()
        return create(device, **options)

    engine.create_host = create_host
    del forgotten
    model = load_fake(double, engine=engine, threads=3)
    assert package.closed
    assert [host.closed for host in engine.hosts] == [True, False]
    assert model(np.ones((1, 4), np.float32)).shape == (1, 4)
