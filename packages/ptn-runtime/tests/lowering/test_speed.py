"""A method of 2,000 nodes is lowered for a new shape fast enough not to be felt."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path

from lowering_graphs import FakePackage
from ptn_runtime.lowering.program import LoweredProgram

SCRIPT = Path(__file__).parents[4] / "benchmarks" / "lowering.py"


def test_new_shape_is_lowered_fast():
    spec = importlib.util.spec_from_file_location("lowering_benchmark", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    method, weights = benchmark.transformer(2000)
    lowered = LoweredProgram(FakePackage(method, constants=weights)).method("forward")
    shapes = [((2, 16 + i, benchmark.WIDTH),) for i in range(5)]
    # Time of this process: what else the machine does meanwhile does not count.
    _, best, nodes = benchmark.measure(lowered, shapes, time.process_time)
    assert nodes > 1800
    assert best < 0.150
