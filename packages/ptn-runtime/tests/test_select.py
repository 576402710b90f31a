"""Choosing an engine and a device."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ptn_format.dtypes import ScalarType
from ptn_runtime.engine import Device, EngineSpec
from ptn_runtime.errors import (
    DeviceError,
    EngineError,
    EngineLoadError,
    NoEngineError,
    Refusal,
    UnsupportedMethodError,
    UnsupportedNode,
)
from ptn_runtime.registry import EngineRow
from ptn_runtime.select import Candidate, choose, match_device, rank
from ptn_runtime.survey import Survey

CPU = Device("cpu", "cpu", "A CPU")
GPU0 = Device("cuda:0", "gpu", "A GPU")
GPU1 = Device("cuda:1", "gpu", "Another GPU")
IGPU = Device("metal", "igpu", "A built-in GPU")
NPU = Device("npu", "accelerator", "An NPU")


def test_rank_is_by_priority_then_kind_then_the_engines_order() -> None:
    candidates = [
        Candidate("b", CPU, 5, 0),
        Candidate("b", IGPU, 5, 1),
        Candidate("b", GPU1, 5, 3),
        Candidate("b", GPU0, 5, 2),
        Candidate("b", NPU, 5, 4),
        Candidate("a", CPU, 5, 0),
        Candidate("z", CPU, 9, 0),
        Candidate("c", GPU0, 0, 0),
    ]
    expected = [
        ("z", "cpu"),
        ("b", "cuda:0"),
        ("b", "cuda:1"),
        ("b", "npu"),
        ("b", "metal"),
        ("a", "cpu"),
        ("b", "cpu"),
        ("c", "cuda:0"),
    ]
    assert [(c.engine, c.device.id) for c in rank(candidates)] == expected
    assert [(c.engine, c.device.id) for c in rank(reversed(candidates))] == expected


def test_choose_asks_in_order_and_stops() -> None:
    asked = []

    def attempt(candidate: Candidate) -> Refusal | None:
        asked.append(candidate.engine)
        return None if candidate.engine == "b" else Refusal(candidate.engine, candidate.device.id, "too slow.")

    choice = choose([Candidate("c", CPU, 1), Candidate("b", CPU, 2), Candidate("a", CPU, 3)], attempt)
    assert choice.chosen is not None
    assert choice.chosen.engine == "b"
    assert asked == ["a", "b"]
    assert [str(item) for item in choice.refused] == ["engine 'a' on cpu: too slow."]
    assert choose([], attempt).chosen is None


@pytest.mark.parametrize(("wanted", "found"), [(None, GPU1), ("cpu", CPU), ("cuda:0", GPU0), ("cuda", GPU1)])
def test_match_device(wanted: str | None, found: Device) -> None:
    assert match_device("e", [GPU1, GPU0, CPU], wanted) is found


def test_device_errors() -> None:
    with pytest.raises(DeviceError) as caught:
        match_device("ggml", [CPU, GPU0], "cuda:7")
    assert str(caught.value) == "engine 'ggml' has no device 'cuda:7'. Its devices: cpu (A CPU), cuda:0 (A GPU)."
    with pytest.raises(DeviceError) as caught:
        match_device("vulkan", [], None, "libvulkan.so.1 was not found.")
    assert str(caught.value) == "engine 'vulkan' has no device on this machine: libvulkan.so.1 was not found."


class FakeRegistry:
    """Engines by name; a value may be an error."""

    def __init__(self, **engines: Any) -> None:
        self.found = {name: item if isinstance(item, tuple) else (item, 0) for name, item in engines.items()}
        self.made: list[str] = []

    def rows(self) -> tuple[EngineRow, ...]:
        return tuple(EngineRow(name, f"ptn-engine-{name}", "1.0", "m:S") for name in self.found)

    def names(self) -> tuple[str, ...]:
        return tuple(self.found)

    def spec(self, name: str) -> EngineSpec:
        return EngineSpec(name, (1, 0), "m:f", "", "", self.found[name][1])

    def engine(self, name: str) -> Any:
        self.made.append(name)
        engine = self.found[name][0]
        if isinstance(engine, Exception):
            raise engine
        return engine


@pytest.fixture
def program(fakes: Any) -> Any:
    x = fakes.tensor("x", ScalarType.FLOAT, 2)
    methods = [
        fakes.Method("encode", (x,), lambda i, _: [i[0]], op="aten.add.Tensor"),
        fakes.Method("decode", (x,), lambda i, _: [i[0]], op="aten.topk.default"),
    ]
    return fakes.Program(fakes.Package(methods, {}), methods, [])


def test_best_engine_that_takes_all_methods(program: Any, fakes: Any) -> None:
    fast = fakes.Engine("fast", refuse={"aten.topk.default": "k is too large."})
    good = fakes.Engine("good", [CPU, GPU0])
    slow = fakes.Engine("slow")
    registry: Any = FakeRegistry(slow=(slow, -1), good=(good, 3), fast=(fast, 9))
    picked = Survey(program, registry).pick(None, None, {})
    assert (picked.engine, picked.device) == (good, GPU0)
    (refusal,) = picked.refused
    assert (refusal.engine, refusal.device) == ("fast", "cpu")
    assert refusal.reason == (
        "1 node is not supported: node 'body' (aten.topk.default) from user.py:7: k is too large."
    )
    assert refusal.nodes[0].method == "decode"
    picked.lease.release()


def test_engines_of_lower_priority_are_not_loaded(program: Any, fakes: Any) -> None:
    registry: Any = FakeRegistry(low=(RuntimeError("loaded"), 0), high=(fakes.Engine("high"), 1))
    Survey(program, registry).pick(None, None, {}).lease.release()
    assert registry.made == ["high"]


def test_broken_and_deviceless_engines_are_passed_over(program: Any, fakes: Any) -> None:
    failing = fakes.Engine("failing")
    failing.fail = DeviceError("out of memory")
    registry: Any = FakeRegistry(
        broken=(EngineLoadError("no library"), 9),
        empty=(fakes.Engine("empty", []), 8),
        failing=(failing, 7),
        good=(fakes.Engine("good"), 1),
    )
    picked = Survey(program, registry).pick(None, None, {})
    assert picked.engine.name == "good"
    assert [str(item) for item in picked.refused] == [
        "engine 'broken': no library",
        "engine 'empty' has no device on this machine: no fake hardware was found; plug some in.",
        "engine 'failing' on cpu: out of memory",
    ]
    picked.lease.release()


def test_a_device_that_fails_gives_way_to_the_next(program: Any, fakes: Any) -> None:
    engine = fakes.Engine("e", [GPU0, CPU])
    create = engine.create_host

    def create_host(device: Device, **options: Any) -> Any:
        if device is GPU0:
            raise DeviceError("the driver is too old")
        return create(device, **options)

    engine.create_host = create_host
    picked = Survey(program, FakeRegistry(e=engine)).pick(None, None, {})  # type: ignore[arg-type]
    assert picked.device is CPU
    assert [str(item) for item in picked.refused] == ["engine 'e' on cuda:0: the driver is too old"]
    picked.lease.release()


def test_an_engine_that_fails_when_asked_hurts_only_itself(program: Any, fakes: Any) -> None:
    def fail(*_: Any) -> Any:
        raise ZeroDivisionError("oops")

    one, two = fakes.Engine("one"), fakes.Engine("two")
    one.supports = fail
    two.devices = fail
    registry: Any = FakeRegistry(one=(one, 5), two=(two, 4), good=(fakes.Engine("good"), 1))
    picked = Survey(program, registry).pick(None, None, {})
    assert picked.engine.name == "good"
    assert [str(item) for item in picked.refused] == [
        "engine 'one' failed when it was asked about node 'body' (aten.add.Tensor) from user.py:7: "
        "ZeroDivisionError: oops. This is a fault of the engine.",
        "engine 'two' failed when it was asked for its devices: ZeroDivisionError: oops. "
        "This is a fault of the engine.",
    ]
    picked.lease.release()
    with pytest.raises(EngineError, match="fault of the engine"):
        Survey(program, registry).pick("one", None, {})
    assert [answer.engine for answer in Survey(program, registry).answers() if answer.refusal is None] == ["good"]


def test_no_engine(program: Any, fakes: Any) -> None:
    refuse = {"aten.add.Tensor": "no adding.", "aten.topk.default": "no sorting."}
    registry: Any = FakeRegistry(one=fakes.Engine("one", refuse=refuse), two=EngineLoadError("no library"))
    with pytest.raises(NoEngineError) as caught:
        Survey(program, registry).pick(None, None, {})
    assert str(caught.value) == (
        "no installed engine can run this program.\n"
        "  engine 'two': no library\n"
        "  engine 'one' on cpu: 2 nodes are not supported, the first is node 'body' (aten.add.Tensor) from user.py:7: "
        "no adding."
    )
    assert [item.engine for item in caught.value.refused] == ["two", "one"]
    with pytest.raises(NoEngineError, match="No engine is installed"):
        Survey(program, FakeRegistry()).pick(None, None, {})  # type: ignore[arg-type]


def test_device_alone_picks_an_engine_that_has_it(program: Any, fakes: Any) -> None:
    registry: Any = FakeRegistry(a=(fakes.Engine("a"), 5), b=(fakes.Engine("b", [CPU, GPU0]), 1))
    picked = Survey(program, registry).pick(None, "cuda", {})
    assert (picked.engine.name, picked.device) == ("b", GPU0)
    picked.lease.release()
    with pytest.raises(DeviceError) as caught:
        Survey(program, registry).pick(None, "tpu", {})
    assert str(caught.value) == "no installed engine has a device 'tpu'. Devices: cpu (a), cpu (b), cuda:0 (b)."


def test_a_named_engine_that_refuses(program: Any, fakes: Any) -> None:
    refuse = {"aten.add.Tensor": "no adding.", "aten.topk.default": "no sorting."}
    registry: Any = FakeRegistry(
        one=fakes.Engine("one", refuse=refuse), two=fakes.Engine("two", refuse={"aten.add.Tensor": "x"})
    )
    with pytest.raises(UnsupportedMethodError) as caught:
        Survey(program, registry).pick("one", None, {})
    assert str(caught.value) == (
        "engine 'one' cannot run methods 'encode', 'decode': 2 nodes are not supported.\n"
        "  encode: node 'body' (aten.add.Tensor) from user.py:7: no adding.\n"
        "  decode: node 'body' (aten.topk.default) from user.py:7: no sorting. Engines that can: two."
    )
    assert [node.op for node in caught.value.nodes] == ["aten.add.Tensor", "aten.topk.default"]


def test_an_engine_that_is_none(program: Any) -> None:
    registry: Any = FakeRegistry()
    with pytest.raises(TypeError, match="engine takes the name of an engine or an Engine, got int"):
        Survey(program, registry).pick(3, None, {})  # type: ignore[arg-type]


def test_long_refusals_are_cut_short_in_words_only() -> None:
    nodes = [UnsupportedNode(f"node '{i}'", "no.") for i in range(30)]
    error = UnsupportedMethodError("e", "forward", nodes)
    assert len(error.nodes) == 30
    lines = str(error).splitlines()
    assert len(lines) == 22
    assert lines[-1] == "  and 10 more: `nodes` of this error has all, 'ptn check' groups them."
    assert len(str(UnsupportedMethodError("e", "forward", nodes[:21])).splitlines()) == 22


def test_a_named_engine_takes_its_best_device_that_accepts(program: Any, fakes: Any) -> None:
    engine = fakes.Engine("e", [GPU0, CPU], {"aten.topk.default@cuda:0": "not on this device."})
    survey = Survey(program, FakeRegistry(e=engine))  # type: ignore[arg-type]
    picked = survey.pick("e", None, {})
    assert picked.device is CPU
    assert [item.device for item in picked.refused] == ["cuda:0"]
    picked.lease.release()
    with pytest.raises(UnsupportedMethodError, match="not on this device"):
        survey.pick("e", "cuda", {})
    with pytest.raises(DeviceError, match="has no device 'tpu'"):
        survey.pick("e", "tpu", {})
    with pytest.raises(EngineError, match="no option 'speed'"):
        survey.pick("e", None, {"speed": 3})


def test_refusal_at_another_shape_names_the_node(load_fake: Any, fakes: Any) -> None:
    engine = fakes.Engine("e")
    engine.supports = lambda node, device: SimpleNamespace(
        ok=node.output.shape[0] > 2, reason="needs more than 2 rows.", note=""
    )
    method = fakes.Method("forward", (fakes.tensor("x", ScalarType.FLOAT, (1, 8)),), lambda i, _: [i[0]])
    model = load_fake(method, engine=engine)
    model(np.zeros(3, np.float32))
    with pytest.raises(UnsupportedMethodError) as caught:
        model(np.zeros(2, np.float32))
    assert str(caught.value) == (
        "engine 'e' cannot run method 'forward': 1 node is not supported.\n"
        "  node 'body' (fake.body.default) from user.py:7: needs more than 2 rows."
    )


def test_refusal_at_another_shape_names_engines_that_can(
    load_fake: Any, fakes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = fakes.Engine("e")
    engine.supports = lambda node, device: SimpleNamespace(ok=node.output.shape[0] > 2, reason="too few.", note="")
    other, picky = fakes.Engine("other"), fakes.Engine("picky", refuse={"fake.body.default": "x"})
    others: Any = FakeRegistry(e=engine, other=other, picky=picky, bad=EngineLoadError("no library"))
    method = fakes.Method("forward", (fakes.tensor("x", ScalarType.FLOAT, (1, 8)),), lambda i, _: [i[0]])
    model = load_fake(method, engine=engine)
    monkeypatch.setattr("ptn_runtime.registry.registry", lambda: others)
    with pytest.raises(UnsupportedMethodError, match=r"too few\. Engines that can: other\.") as caught:
        model(np.zeros(2, np.float32))
    assert caught.value.nodes[0].engines == ("other",)


def test_answers_for_check(program: Any, fakes: Any) -> None:
    refuse = {"aten.topk.default@cpu": "no sorting."}
    registry: Any = FakeRegistry(one=(fakes.Engine("one", [CPU, GPU0], refuse), 3), bad=EngineLoadError("no library"))
    answers = list(Survey(program, registry).answers())
    assert [(a.engine, a.device and a.device.id, a.refusal and a.refusal.reason) for a in answers] == [
        ("one", "cpu", "1 node is not supported: node 'body' (aten.topk.default) from user.py:7: no sorting."),
        ("one", "cuda:0", None),
        ("bad", None, "no library"),
    ]


def test_modules_stay_apart() -> None:
    """The pure part must not reach for installed engines."""
    source = Path(sys.modules["ptn_runtime.select"].__file__ or "").read_text()
    assert "registry" not in source
    assert "importlib" not in source
