"""Operator names and scalar functions."""

from __future__ import annotations

import math

import pytest
from ptn_format.dtypes import ScalarType
from ptn_runtime.lowering.names import canonical_name, functional_name, is_in_place, is_view_copy
from ptn_runtime.lowering.static import TensorSpec
from ptn_runtime.lowering.views import INVERSES
from ptn_runtime.shapes import OPERATORS
from ptn_runtime.shapes.symint import SCALAR_FUNCTIONS, SIZE_FUNCTIONS


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("torch.ops.aten.add.Tensor", "aten.add.Tensor"),
        ("torch.ops.aten.view_copy.default", "aten.view.default"),
        ("torch.ops.aten.squeeze_copy.dims", "aten.squeeze.dims"),
        ("torch.ops.aten._unsafe_view.default", "aten.view.default"),
        ("torch.ops.aten._to_copy.default", "aten._to_copy.default"),
        ("torch.ops.aten.detach_copy.default", "aten.alias.default"),
        ("torch.ops.native.rope.default", "native.rope.default"),
        ("torch.ops.torchao.quantize_affine.default", "torchao.quantize_affine.default"),
        ("torch.ops.higher_order.map_impl", "control.map"),
        ("_operator.mul", "_operator.mul"),
    ],
)
def test_canonical_names(target, name):
    assert canonical_name(target) == name


def test_in_place_names():
    assert is_in_place("aten.index_put_.default")
    assert not is_in_place("aten.index_put.default")
    assert not is_in_place("aten.__and__.Tensor")
    assert is_in_place("aten.__ior__.Scalar")
    assert functional_name("aten.__ior__.Scalar") == "aten.bitwise_or.Scalar"
    assert functional_name("aten.pow_.Scalar") == "aten.pow.Tensor_Scalar"
    assert functional_name("aten.relu_.default") == "aten.relu.default"
    assert functional_name("aten._index_put_impl_.default") == "aten.index_put.default"


def test_copies_of_views():
    assert is_view_copy("torch.ops.aten.slice_copy.Tensor")
    assert not is_view_copy("torch.ops.aten.slice.Tensor")
    assert not is_view_copy("torch.ops.aten._to_copy.default")


@pytest.mark.parametrize("op", sorted(set(INVERSES) & set(OPERATORS)))
def test_views_take_their_base_first(op):
    assert OPERATORS[op].parameters[0] == "self"


def test_scalar_functions():
    assert SCALAR_FUNCTIONS["_operator.floordiv"](-7, 2) == -4
    assert SCALAR_FUNCTIONS["_operator.mod"](-7, 2) == 1
    assert SCALAR_FUNCTIONS["torch.sym_max"](2, 3) == 3
    assert isinstance(SCALAR_FUNCTIONS["torch.sym_min"](2, 3.5), float)
    assert SCALAR_FUNCTIONS["torch.sym_int"](-2.7) == -2
    assert SCALAR_FUNCTIONS["torch.sym_not"](False) is True
    assert SCALAR_FUNCTIONS["torch.sym_ite"](False, 1, 2) == 2
    assert SCALAR_FUNCTIONS["torch._sym_sqrt"](9) == 3.0
    assert SCALAR_FUNCTIONS["math.ceil"](2.1) == 3
    assert math.isclose(SCALAR_FUNCTIONS["_operator.truediv"](1, 3), 1 / 3)


def test_size_functions():
    tensor = TensorSpec(ScalarType.FLOAT, (2, 3, 4))
    assert SIZE_FUNCTIONS["aten.sym_size.int"](tensor, -1) == 4
    assert SIZE_FUNCTIONS["aten.sym_numel.default"](tensor) == 24
    assert [SIZE_FUNCTIONS["aten.sym_stride.int"](tensor, dim) for dim in (0, 1, -1)] == [12, 4, 1]
    with pytest.raises(ValueError, match="axis 3 of a tensor with 3 axes"):
        SIZE_FUNCTIONS["aten.sym_size.int"](tensor, 3)
