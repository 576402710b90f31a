"""Comparing two engines, and finding the first node that differs."""

import dataclasses
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import ptn_runtime
import pytest
from ptn_format.signature import SOURCE_KEY
from ptn_runtime import registry as registry_module
from ptn_runtime.compare import Pair, difference
from ptn_runtime.conformance.programs import MethodBuilder, pack
from ptn_runtime.engine import EngineSpec
from ptn_runtime.reference.engine import ReferenceContext, ReferenceEngine, ReferenceHost
from ptn_runtime.registry import EngineRow, Registry

GOLDEN = Path(ptn_runtime.__file__).parent / "conformance" / "data" / "golden"
X = np.linspace(-2, 2, 48, dtype=np.float32).reshape(3, 16)


class SkewedEngine(ReferenceEngine):
    """The reference with one operator taken for another."""

    name = "skewed"

    def __init__(self, swap: dict[str, str], traces: bool = True) -> None:
        self.swap = swap
        self.traces = traces

    def create_host(self, device: Any, **options: Any) -> Any:
        return SkewedHost(self, device)


class SkewedHost(ReferenceHost):
    def create_context(self, program: Any, package: Any) -> Any:
        return SkewedContext(self, program, package, {})


class SkewedContext(ReferenceContext):
    def build(self, graph: Any) -> Any:
        engine: Any = self.host.engine
        nodes = tuple(dataclasses.replace(node, op=engine.swap.get(node.op, node.op)) for node in graph.nodes)
        build = super().build(dataclasses.replace(graph, nodes=nodes))
        if not engine.traces:
            build.trace = super(type(build), build).trace  # type: ignore[method-assign]
        return build


@pytest.fixture
def skewed(monkeypatch: pytest.MonkeyPatch) -> SkewedEngine:
    """Installs a skewed engine beside the reference."""
    engine = SkewedEngine({})

    class Both(Registry):
        def rows(self) -> Any:
            return (EngineRow("reference", "ptn-runtime", "1", "m:S"), EngineRow("skewed", "ptn-skewed", "1", "m:S"))

        def spec(self, name: str) -> Any:
            return EngineSpec(name, (1, 0), "m:f", "", "", 5 if name == "skewed" else -100)

        def engine(self, name: str) -> Any:
            return engine if name == "skewed" else ReferenceEngine()

    both = Both()
    monkeypatch.setattr(registry_module, "registry", lambda: both)
    return engine


@pytest.mark.parametrize(
    ("tested", "baseline", "ok", "largest"),
    [
        (np.float32([1, 2]), np.float32([1, 2.0001]), True, 1e-4),
        (np.float32([1, 2]), np.float32([1, 2.1]), False, 0.1),
        (np.float32([1, np.nan]), np.float32([1, np.nan]), True, 0),
        (np.float32([1, np.nan]), np.float32([1, 2]), False, np.inf),
        (np.float32([1, 2]), np.float32([1, np.nan]), False, np.inf),
        (np.float32([np.inf, -np.inf]), np.float32([np.inf, -np.inf]), True, 0),
        (np.float32([np.inf]), np.float32([-np.inf]), False, np.inf),
        (np.float32([1e38]), np.float32([np.inf]), False, np.inf),
        (np.array([1, 2]), np.array([1, 2]), True, 0),
        (np.array([2**60 + 1]), np.array([2**60]), False, 1),
        (np.array([True]), np.array([False]), False, 1),
        (np.array([1, 1.01], ml_dtypes.bfloat16), np.array([1, 1], ml_dtypes.bfloat16), True, 0.0078125),
        (np.zeros((0, 2), np.float32), np.zeros((0, 2), np.float32), True, 0),
        (np.zeros(2, np.float32), np.zeros(3, np.float32), False, np.inf),
        (np.zeros(2, np.float32), np.zeros(2, np.float64), False, np.inf),
        (np.float32(1), np.float32(1), True, 0),
    ],
)
def test_difference(tested: Any, baseline: Any, ok: bool, largest: float) -> None:
    found = difference("x", np.asarray(tested), np.asarray(baseline))
    assert found.ok is ok
    assert found.largest == pytest.approx(largest, rel=1e-2)


def test_difference_names_the_worst_place() -> None:
    baseline = np.zeros((2, 3), np.float32)
    tested = baseline.copy()
    tested[1, 2] = 5
    found = difference("x", tested, baseline)
    assert found.place == (1, 2)
    assert found.verdict == "DIFFERS at [1, 2]: 5.0 against 0.0"
    assert difference("x", tested, baseline, atol=6).ok


def test_engines_that_agree(skewed: SkewedEngine) -> None:
    with Pair(GOLDEN / "mlp_dyn" / "model.ptn", None, None, "reference") as pair:
        assert (pair.tested, pair.baseline) == ("skewed", "reference")
        outcome = pair.compare("forward", {"input_1": X})
    assert outcome.agree
    assert [item.name for item in outcome.results] == ["result 0 (aten_linear_default_1)"]


def test_the_first_differing_node_is_named(skewed: SkewedEngine) -> None:
    skewed.swap["aten.sigmoid.default"] = "aten.tanh.default"
    with Pair(GOLDEN / "mlp_dyn" / "model.ptn", "skewed", None, "reference") as pair:
        outcome = pair.compare("forward", {"input_1": X})
    assert not outcome.agree
    assert "The first node that differs is node 'aten_sigmoid_default' (aten.sigmoid.default)" in outcome.explanation
    assert "self = aten_linear_default: float32[3, 32]" in outcome.explanation
    assert "(4 intermediate values were compared)" in outcome.explanation


def test_the_node_is_named_with_the_users_own_line(skewed: SkewedEngine) -> None:
    method = MethodBuilder("forward")
    method.input("x", 4)
    method.call("gate", "aten.sigmoid.default", method.metas["x"], self="x")
    method.call("y", "aten.neg.default", method.metas["x"], self="gate")
    method.result("y")
    method.nodes = [dataclasses.replace(node, metadata={SOURCE_KEY: f"net.py:{node.name}"}) for node in method.nodes]
    skewed.swap["aten.sigmoid.default"] = "aten.tanh.default"
    with Pair(pack([method.build()], {}), "skewed", None, "reference") as pair:
        outcome = pair.compare("forward", {"x": X[0, :4]})
    assert "The first node that differs is node 'gate' (aten.sigmoid.default) from net.py:gate" in outcome.explanation


def test_without_traces_the_place_stays_unknown(skewed: SkewedEngine) -> None:
    skewed.swap["aten.sigmoid.default"] = "aten.tanh.default"
    skewed.traces = False
    with Pair(GOLDEN / "mlp_dyn" / "model.ptn", "skewed", None, "reference") as pair:
        outcome = pair.compare("forward", {"input_1": X})
    assert outcome.explanation.startswith("Where they part is not known: engine 'skewed': ")


def test_state_is_compared(skewed: SkewedEngine) -> None:
    with Pair(GOLDEN / "counter" / "model.ptn", "skewed", None, "reference") as pair:
        assert pair.compare("forward", {"x": np.ones(1, np.float32)}).agree
        names = [item.name for item in pair.compare("forward", {"x": np.ones(1, np.float32)}).results]
    assert names[1:] == ["state count", "state b2"]
