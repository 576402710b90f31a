"""Chains form where they should, and give what the reference engine gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import ptn_runtime
import pytest
from ptn_engine_fused.chain import FUSIBLE, Chain
from ptn_format.dtypes import ScalarType
from ptn_format.package import open_package
from ptn_runtime.conformance.case import floats
from ptn_runtime.conformance.programs import MethodBuilder, pack, static_meta
from ptn_runtime.lowering.program import LoweredProgram
from ptn_runtime.reference import KERNELS
from ptn_runtime.registry import get_engine

X, Y = floats(7, 9), floats(7, 9, seed=1)


def program(*calls: tuple[str, str, dict[str, Any]], results: tuple[str, ...], x: Any = X, y: Any = Y) -> bytes:
    """A package of the calls (name, operator, arguments) on the inputs x and y."""
    method = MethodBuilder("forward")
    method.input("x", *x.shape, dtype=ScalarType.from_numpy(x.dtype))
    method.input("y", *y.shape, dtype=ScalarType.from_numpy(y.dtype))
    for name, op, arguments in calls:
        method.call(name, op, static_meta(x), **arguments)
    for name in results:
        method.result(name)
    return pack([method.build()], {})


ACTIVATION = (
    ("scaled", "aten.mul.Scalar", {"self": "x", "other": 2}),
    ("sum", "aten.add.Tensor", {"self": "scaled", "other": "y"}),
    ("gate", "aten.sigmoid.default", {"self": "sum"}),
    ("gated", "aten.mul.Tensor", {"self": "gate", "other": "sum"}),
)


def steps(data: bytes) -> list[Any]:
    with open_package(data) as package:
        engine = get_engine("fused")
        context = engine.create_host(engine.devices()[0]).create_context(LoweredProgram(package), package)
        executable = context.compile("forward")
        build: Any = executable.build(tuple(executable.input_sizes(i) for i in range(executable.num_inputs)))
        return list(build.plan.steps)


def test_a_chain_runs_as_one_step_and_keeps_only_its_end() -> None:
    (chain,) = steps(program(*ACTIVATION, results=("gated",)))
    assert isinstance(chain, Chain)
    assert [node.name for node in chain.nodes] == ["scaled", "sum", "gate", "gated"]
    assert len(chain.kept) == 1
    assert chain.num_buffers == 2


def test_what_is_read_later_is_kept() -> None:
    (chain,) = steps(program(*ACTIVATION, results=("gated", "sum")))
    assert len(chain.kept) == 2


@pytest.mark.parametrize("block", [1, 5, 63, 32768])
def test_results_do_not_depend_on_the_block(block: int) -> None:
    data = program(*ACTIVATION, results=("gated", "sum"))
    with ptn_runtime.load(data, engine="reference") as model:
        expected = model(X, Y)
    with ptn_runtime.load(data, engine="fused", block=block) as model:
        found = model(X, Y)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_another_operator_ends_a_chain() -> None:
    middle = ("flipped", "aten.cumsum.default", {"self": "sum", "dim": 0})
    last = ("end", "aten.neg.default", {"self": "flipped"})
    found = steps(program(*ACTIVATION[:2], middle, last, results=("end",)))
    assert [len(step.nodes) for step in found] == [2, 1, 1]
    assert isinstance(found[0], Chain)


def test_half_precision_is_left_to_the_kernels() -> None:
    half = X.astype(np.float16)
    found = steps(program(*ACTIVATION, results=("gated",), x=half, y=half))
    assert [len(step.nodes) for step in found] == [1, 1, 1, 1]


def test_a_scaled_sum_is_left_to_the_kernels() -> None:
    scaled = ("sum", "aten.add.Tensor", {"self": "x", "other": "y", "alpha": 3})
    data = program(scaled, ("end", "aten.neg.default", {"self": "sum"}), results=("end",))
    assert [len(step.nodes) for step in steps(data)] == [1, 1]


def test_every_fusible_operator_has_a_kernel_too() -> None:
    assert set(FUSIBLE) <= set(KERNELS)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="no option blok; it has: block"):
        get_engine("fused").create_host(get_engine("fused").devices()[0], blok=3)
