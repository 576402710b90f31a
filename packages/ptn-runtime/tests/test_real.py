"""The user API on real packages and the reference engine."""

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import ptn_runtime
import pytest
from ptn_runtime.errors import ClosedError, IndexOutOfRangeError, InputError, MethodNotFoundError, StateError

GOLDEN = Path(ptn_runtime.__file__).parent / "conformance" / "data" / "golden"


def load(name: str, **options: Any) -> ptn_runtime.Model:
    return ptn_runtime.load(GOLDEN / name / "model.ptn", engine="reference", **options)


def arrays(name: str) -> dict[str, Any]:
    with np.load(GOLDEN / name / "io.npz") as archive:
        return dict(archive)


def test_sources() -> None:
    data = (GOLDEN / "mlp_dyn" / "model.ptn").read_bytes()
    expected = arrays("mlp_dyn")
    with open(GOLDEN / "mlp_dyn" / "model.ptn", "rb") as file:
        for source in (data, memoryview(data), file, str(GOLDEN / "mlp_dyn" / "model.ptn")):
            with ptn_runtime.load(source, engine="reference") as model:
                np.testing.assert_allclose(model(expected["in_0"]), expected["out_0"], atol=1e-5)


def test_counter_counts_and_resets() -> None:
    recorded = arrays("counter")
    with load("counter") as model:
        start = dict(model.state)
        first = model(recorded["in_0"])
        np.testing.assert_allclose(first, recorded["out_0"], atol=1e-6)
        second = model(recorded["in_0"])
        assert not np.array_equal(first, second)
        session = model.session()
        np.testing.assert_array_equal(session(recorded["in_0"]), first)
        model.state.reset()
        np.testing.assert_array_equal(model(recorded["in_0"]), first)
        np.testing.assert_array_equal(session(recorded["in_0"]), second)
        model.state.update(start)
        np.testing.assert_array_equal(model(recorded["in_0"]), first)
        model.state["count"] = start["count"]
        model.state.reset("b2")
        np.testing.assert_array_equal(model(recorded["in_0"]), first)
        with pytest.raises(StateError, match="Did you mean 'count'"):
            model.state["cont"]


def test_methods_share_state() -> None:
    with load("multi_method") as model:
        assert model.methods == ("prefill", "decode")
        assert model.describe("prefill").name == "prefill"
        with pytest.raises(MethodNotFoundError, match="no method 'forward'"):
            model(1)


def test_results_belong_to_the_caller() -> None:
    """Later calls, changes of the inputs and of the results must not reach each other."""
    recorded = arrays("mlp_dyn")
    x = recorded["in_0"].copy()
    with load("mlp_dyn") as model:
        first = model(x)
        kept = first.copy()
        x[:] = 0
        model(x)
        np.testing.assert_array_equal(first, kept)
        first[:] = 7
        np.testing.assert_array_equal(model(recorded["in_0"]), kept)
    np.testing.assert_array_equal(first, np.full_like(first, 7))


def test_shape_errors_name_the_input() -> None:
    with load("mlp_dyn") as model:
        with pytest.raises(
            InputError, match=r"input 'input_1': size 65 of axis 0 is out of range; allowed \[1\.\.64, 16\]"
        ):
            model(np.zeros((65, 16), np.float32))
        with pytest.raises(InputError, match=r"input 'input_1' takes 2 axes \[1\.\.64, 16\], got 1: \[16\]"):
            model(np.zeros(16, np.float32))


def test_bad_indices_are_input_errors_and_leave_the_model_usable() -> None:
    with load("llm_dyn") as model:
        recorded = arrays("llm_dyn")
        ids, pos = recorded["in_ids_0"], recorded["in_pos_0"]
        with pytest.raises(IndexOutOfRangeError):
            model(ids=ids + 10**6, pos=pos)
        model.state.reset()
        np.testing.assert_allclose(model(ids=ids, pos=pos), recorded["out_0"], atol=2e-5)
        np.testing.assert_allclose(
            model(ids=recorded["in_ids_1"], pos=recorded["in_pos_1"]), recorded["out_1"], atol=2e-5
        )


def test_closed_models() -> None:
    model = load("counter")
    session = model.session()
    model.close()
    for use in (
        lambda: model(np.zeros(1, np.float32)),
        lambda: session(np.zeros(1, np.float32)),
        lambda: model.state["b2"],
    ):
        with pytest.raises(ClosedError):
            use()


def test_memory_is_freed_with_the_last_reference() -> None:
    model: Any = load("mlp_dyn")
    model(arrays("mlp_dyn")["in_0"])
    package = weakref.ref(model._core.package)
    context = weakref.ref(model._context)
    gc.collect()
    gc.disable()
    try:
        del model
        assert package() is None, "a reference cycle keeps the package"
        assert context() is None, "a reference cycle keeps the weights"
    finally:
        gc.enable()


def test_every_golden_package_can_be_described() -> None:
    for folder in sorted(GOLDEN.iterdir()):
        if (folder / "model.ptn").exists():
            with load(folder.name) as model:
                for method in model.methods:
                    info = model.describe(method)
                    assert str(info).startswith(f"{method}(")
                    assert len(info.outputs) >= 1


def test_profile() -> None:
    recorded = arrays("counter")
    with load("counter") as model:
        before = dict(model.state)
        profile = model.profile("forward", recorded["in_0"], repeat=3)
        assert dict(model.state) == before
        assert profile.seconds > 0
        assert sum(count for _, count, _ in profile.by_operator()) == len(profile.nodes)
        assert [node.seconds for node in profile.slowest(2)] == sorted(
            (n.seconds for n in profile.nodes), reverse=True
        )[:2]
        assert str(profile).startswith("forward on reference: ")
        assert "aten.add.Tensor" in str(profile)
        with pytest.raises(InputError):
            model.profile("forward", np.zeros(3, np.float32))
