"""Everything that the format's exporters may emit is in the catalogue, with a kernel.

`core.txt` are PyTorch's overloads tagged `core`, `view_copies.txt` the functional ones tagged `view_copy`;
tests/torch/test_tags.py holds both against PyTorch.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from ptn_runtime.lowering import names
from ptn_runtime.lowering.assertions import ASSERTIONS
from ptn_runtime.reference import KERNELS
from ptn_runtime.reference.control import OPERATORS as CONTROL_KERNELS
from ptn_runtime.shapes import OPERATORS
from ptn_runtime.shapes.symint import SCALAR_FUNCTIONS, SIZE_FUNCTIONS

FOLDER = Path(__file__).parent
CORE = (FOLDER / "core.txt").read_text(encoding="ascii").split()
VIEW_COPIES = (FOLDER / "view_copies.txt").read_text(encoding="ascii").split()

NOT_IN_A_GRAPH = {
    "_conj_copy.default": "the conjugate of a complex tensor",
    "_fw_primal_copy.default": "forward-mode differentiation",
    "_indices_copy.default": "sparse tensors",
    "_make_dual_copy.default": "forward-mode differentiation",
    "_nested_get_values_copy.default": "nested tensors",
    "_nested_view_from_buffer_copy.default": "nested tensors",
    "_nested_view_from_jagged_copy.default": "nested tensors",
    "_sparse_broadcast_to_copy.default": "sparse tensors",
    "_test_autograd_multiple_dispatch_view_copy.default": "a test of PyTorch's own",
    "_values_copy.default": "sparse tensors",
    "ccol_indices_copy.default": "sparse tensors",
    "col_indices_copy.default": "sparse tensors",
    "crow_indices_copy.default": "sparse tensors",
    "indices_copy.default": "sparse tensors",
    "row_indices_copy.default": "sparse tensors",
    "values_copy.default": "sparse tensors",
}
"""Copies of views of what the format has no form for."""

BEYOND_CORE = """
    aten.linear.default aten.matmul.default aten.addmm.default aten.scaled_dot_product_attention.default
    aten.rms_norm.default aten.layer_norm.default aten.silu.default aten.softmax.int native.rope.default
    torchao.choose_qparams_affine.default torchao.quantize_affine.default torchao.dequantize_affine.default
    torchao.dequantize_gguf.default torchao.dequantize_int4_tensor.default
    quantized_decomposed.quantize_per_tensor.default quantized_decomposed.quantize_per_tensor.tensor
    quantized_decomposed.dequantize_per_tensor.default quantized_decomposed.dequantize_per_tensor.tensor
    quantized_decomposed.quantize_per_channel.default quantized_decomposed.dequantize_per_channel.default
    quantized_decomposed.quantize_per_token.default quantized_decomposed.dequantize_per_token.default
    quantized_decomposed.embedding_4bit.default quantized_decomposed.embedding_4bit.dtype
""".split()

IN_PLACE = """
    abs_.default add_.Scalar add_.Tensor addcdiv_.default addcmul_.default addmm_.default baddbmm_.default
    bitwise_and_.Scalar bitwise_and_.Tensor bitwise_not_.default bitwise_or_.Scalar bitwise_or_.Tensor
    bitwise_xor_.Scalar bitwise_xor_.Tensor ceil_.default clamp_.Tensor clamp_.default clamp_max_.default
    clamp_min_.default copy_.default cos_.default cumsum_.default div_.Scalar div_.Scalar_mode div_.Tensor
    div_.Tensor_mode elu_.default eq_.Scalar eq_.Tensor erf_.default exp_.default expm1_.default fill_.Scalar
    fill_.Tensor floor_.default floor_divide_.Scalar floor_divide_.default fmod_.Scalar fmod_.Tensor ge_.Scalar
    ge_.Tensor gelu_.default gt_.Scalar gt_.Tensor hardsigmoid_.default hardswish_.default hardtanh_.default
    index_add_.default index_copy_.default index_fill_.int_Scalar index_put_.default le_.Scalar le_.Tensor
    leaky_relu_.default lerp_.Scalar lerp_.Tensor log1p_.default log2_.default log_.default logical_and_.default
    logical_not_.default logical_or_.default logical_xor_.default lt_.Scalar lt_.Tensor masked_fill_.Scalar
    masked_fill_.Tensor masked_scatter_.default mul_.Scalar mul_.Tensor ne_.Scalar ne_.Tensor neg_.default
    pow_.Scalar pow_.Tensor reciprocal_.default relu_.default remainder_.Scalar remainder_.Tensor resize_.default
    round_.default rsqrt_.default scatter_.src scatter_.value scatter_add_.default scatter_reduce_.two
    sigmoid_.default sign_.default silu_.default sin_.default sqrt_.default sub_.Scalar sub_.Tensor tan_.default
    tanh_.default tril_.default triu_.default trunc_.default zero_.default
""".split()

SCALARS = """
    _operator.add _operator.sub _operator.mul _operator.truediv _operator.floordiv _operator.mod _operator.pow
    _operator.neg _operator.pos _operator.abs _operator.and_ _operator.or_ _operator.xor _operator.not_ _operator.eq
    _operator.ne _operator.lt _operator.le _operator.gt _operator.ge _operator.lshift _operator.rshift
    torch.sym_float torch.sym_int torch.sym_ite torch.sym_max torch.sym_min torch.sym_not torch.sym_sum
    torch._sym_sqrt torch.sym_sqrt math.ceil math.floor math.trunc math.sqrt math.log math.log2 math.exp math.pow
    builtins.max builtins.min builtins.round
""".split()

CONTROL = ("cond", "while_loop", "map_impl", "map", "scan")
CHECKS = (
    "aten._assert_scalar.default aten.sym_constrain_range.default aten.sym_constrain_range_for_size.default".split()
)


def known(target: str) -> bool:
    """Whether lowering leads `target` to a shape rule and a kernel, or evaluates it itself."""
    name = names.canonical_name(target)
    if name in SIZE_FUNCTIONS or name in SCALAR_FUNCTIONS or name in ASSERTIONS or name in names.NO_OPS:
        return True
    if name == "aten.zero_.default":
        name = "aten.fill.Scalar"
    elif names.is_in_place(name):
        name = names.functional_name(name)
    elif names.functional_overload(name):
        name = names.functional_overload(name)
    return name in OPERATORS and (name in KERNELS or name in CONTROL_KERNELS)


def test_the_lists_are_whole() -> None:
    assert (len(CORE), len(set(CORE))) == (193, 193)
    assert set(NOT_IN_A_GRAPH) <= set(VIEW_COPIES)


@pytest.mark.parametrize("name", CORE)
def test_core_operators(name: str) -> None:
    assert known(f"torch.ops.aten.{name}")


@pytest.mark.parametrize("name", sorted(set(VIEW_COPIES) - set(NOT_IN_A_GRAPH)))
def test_copies_of_views(name: str) -> None:
    assert known(f"torch.ops.aten.{name}")


@pytest.mark.parametrize("name", sorted(NOT_IN_A_GRAPH))
def test_what_has_no_form_is_not_claimed(name: str) -> None:
    assert not known(f"torch.ops.aten.{name}")


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_forms(name: str) -> None:
    assert names.is_in_place(f"aten.{name}")
    assert known(f"torch.ops.aten.{name}")


@pytest.mark.parametrize("name", BEYOND_CORE)
def test_operators_kept_whole(name: str) -> None:
    assert known(f"torch.ops.{name}")


@pytest.mark.parametrize("name", [*SCALARS, *CHECKS])
def test_scalars_and_checks(name: str) -> None:
    assert known(name if name in SCALARS else f"torch.ops.{name}")


@pytest.mark.parametrize("name", CONTROL)
def test_control_flow(name: str) -> None:
    assert known(f"torch.ops.higher_order.{name}")
