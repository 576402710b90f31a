"""Everything that the format's exporters may emit is in the catalogue, with a kernel.

`core.txt` are PyTorch's overloads tagged `core`, `view_copies.txt` the functional ones tagged `view_copy`
(tests/torch/test_tags.py holds both against PyTorch), `in_place.txt` the in-place forms that exporters leave,
`kept_whole.txt` what they keep beyond core, `scalars.txt` functions of Python numbers.
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

BEYOND_CORE = (FOLDER / "kept_whole.txt").read_text(encoding="ascii").split()

IN_PLACE = (FOLDER / "in_place.txt").read_text(encoding="ascii").split()

SCALARS = (FOLDER / "scalars.txt").read_text(encoding="ascii").split()

CONTROL = ("cond", "while_loop", "map_impl", "map", "scan")
CHECKS = (
    "aten._assert_scalar.default",
    "aten.sym_constrain_range.default",
    "aten.sym_constrain_range_for_size.default",
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
