"""The catalogue of operators: how rules register, and what `infer` does with them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from ptn_format.dtypes import ScalarType
from ptn_runtime.reference import KERNELS
from ptn_runtime.shapes import FAMILIES, OPERATORS, DataDependentError, TensorSpec, infer, shape_rule

FLOAT, LONG = ScalarType.FLOAT, ScalarType.LONG


def spec(*shape: int, dtype: ScalarType = FLOAT) -> TensorSpec:
    return TensorSpec(dtype, shape)


def test_every_operator_has_a_family_and_a_kernel() -> None:
    assert {operator.family for operator in OPERATORS.values()} == set(FAMILIES)
    # Operators with nested graphs are run by the engine itself.
    nested = {"control.cond", "control.while_loop", "control.map", "control.scan"}
    assert set(OPERATORS) - set(KERNELS) == nested
    assert set(KERNELS) <= set(OPERATORS)


def test_an_entry_carries_the_schema() -> None:
    operator = OPERATORS["aten.add.Tensor"]
    assert operator.parameters == ("self", "other", "alpha")
    assert operator.defaults == {"alpha": 1}
    assert operator.numbers == {"alpha"}
    assert operator.family == "elementwise"
    assert operator.deterministic
    assert not OPERATORS["aten.rand.default"].deterministic


def test_infer_gives_a_tuple_and_takes_defaults() -> None:
    assert infer("aten.relu.default", {"self": spec(2)}) == (spec(2),)
    assert infer("aten.topk.default", {"self": spec(2, 5), "k": 3}) == (spec(2, 3), spec(2, 3, dtype=LONG))
    assert infer("aten.unbind.int", {"self": spec(3, 2)}) == (spec(2),) * 3


def test_unknown_operators_are_key_errors() -> None:
    with pytest.raises(KeyError, match="no_such_op"):
        infer("aten.no_such_op.default", {})


def test_an_operator_cannot_be_entered_twice() -> None:
    assert "aten.relu.default" in OPERATORS
    with pytest.raises(ValueError, match=r"aten\.relu\.default has a shape rule already"):

        @shape_rule("aten.relu.default")
        def relu(self: TensorSpec) -> TensorSpec:
            return self


@pytest.mark.parametrize("op", ["aten.nonzero.default", "aten.masked_select.default", "aten._unique2.default"])
def test_data_dependent_shapes_say_so(op: str) -> None:
    args = {"self": spec(3), "mask": spec(3, dtype=ScalarType.BOOL)}
    args = {name: value for name, value in args.items() if name in OPERATORS[op].parameters}
    with pytest.raises(DataDependentError, match="depends on the data"):
        infer(op, args)


def test_importing_the_catalogue_loads_no_family() -> None:
    program = (
        "import sys, ptn_runtime.shapes as shapes, ptn_runtime.reference as reference\n"
        "families = [f'{package}.{family}' for package in ('ptn_runtime.shapes', 'ptn_runtime.reference')"
        " for family in shapes.FAMILIES]\n"
        "assert not [name for name in families if name in sys.modules]\n"
        "len(shapes.OPERATORS), len(reference.KERNELS)\n"
        "assert not [name for name in families if name not in sys.modules]\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
