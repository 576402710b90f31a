"""Operator names: from the file's spelling to the canonical one, and what kind of operator a name stands for."""

from __future__ import annotations

from collections.abc import Mapping

from ptn_format.graph import NamedArgument

__all__ = [
    "CARRIED_RESULTS",
    "CONTROL",
    "IGNORED_ARGUMENTS",
    "IN_PLACE_VIEWS",
    "NO_OPS",
    "SURPLUS_ARGUMENTS",
    "canonical_name",
    "functional_name",
    "functional_overload",
    "is_in_place",
    "is_view_copy",
    "without_surplus",
]

_VIEW_COPIES = frozenset(
    f"aten.{name}_copy"
    for name in (
        "_reshape_alias",
        "alias",
        "as_strided",
        "detach",
        "diagonal",
        "expand",
        "lift_fresh",
        "narrow",
        "permute",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "t",
        "transpose",
        "unbind",
        "unfold",
        "unsqueeze",
        "view",
        "view_as_complex",
        "view_as_real",
    )
)

_RENAMED = {
    "aten._neg_view.default": "aten.neg.default",
    "aten._neg_view_copy.default": "aten.neg.default",
    "aten._embedding_bag_forward_only.default": "aten._embedding_bag.default",
    "aten._reshape_alias.default": "aten.view.default",
    "aten._unsafe_view.default": "aten.view.default",
    "aten.lift.default": "aten.alias.default",
    "aten.lift_fresh.default": "aten.alias.default",
    "aten.detach.default": "aten.alias.default",
    # A complex tensor is a real one with a last axis of 2: see `complex.py`.
    "aten.view_as_complex.default": "aten.alias.default",
    "aten.view_as_real.default": "aten.alias.default",
    "aten._assert_async.default": "aten._assert_async.msg",
    "aten._index_put_impl.default": "aten.index_put.default",
    "aten._unsafe_index_put.default": "aten.index_put.default",
    "aten._unsafe_index.Tensor": "aten.index.Tensor",
    "aten.item.default": "aten._local_scalar_dense.default",
    "aten.size.int": "aten.sym_size.int",
    "aten.stride.int": "aten.sym_stride.int",
    "aten.numel.default": "aten.sym_numel.default",
}

_BITWISE = {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}
_RENAMED.update(
    (f"aten.__{name}__.{overload}", f"aten.{full}.{overload}")
    for name, full in _BITWISE.items()
    for overload in ("Scalar", "Tensor")
)
_FUNCTIONAL = {
    "aten.bernoulli_.float": "aten.bernoulli.p",
    "aten.floor_divide_.Tensor": "aten.floor_divide.default",
    "aten.normal_.default": "aten.normal_functional.default",
    "aten.float_power_.Scalar": "aten.float_power.Tensor_Scalar",
    "aten.float_power_.Tensor": "aten.float_power.Tensor_Tensor",
    "aten.pow_.Scalar": "aten.pow.Tensor_Scalar",
    "aten.pow_.Tensor": "aten.pow.Tensor_Tensor",
}
"""Functional forms whose overload is called otherwise."""
_IN_PLACE_OPERATORS = {f"aten.__i{name}__": f"aten.__{name}__" for name in _BITWISE}

CARRIED_RESULTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "aten._native_batch_norm_legit.default": (
        "aten._native_batch_norm_legit_functional.default",
        ("running_mean", "running_var"),
    ),
}
"""Operators that write to arguments: the functional form, and which arguments its surplus results replace."""

CONTROL: Mapping[str, str] = {
    "higher_order.cond": "control.cond",
    "higher_order.while_loop": "control.while_loop",
    "higher_order.map": "control.map",
    "higher_order.map_impl": "control.map",
    "higher_order.scan": "control.scan",
}
"""Higher-order operators, `torch.ops.` dropped, and their canonical names."""

IN_PLACE_VIEWS = frozenset(
    f"aten.{name}_"
    for name in (
        "as_strided",
        "resize_as",
        "set",
        "squeeze",
        "swapaxes",
        "swapdims",
        "t",
        "transpose",
        "unsqueeze",
    )
)
"""In-place operators that change what a tensor refers to or its shape, not its contents."""

SURPLUS_ARGUMENTS: Mapping[str, tuple[str, int]] = {"aten._reshape_alias": ("stride", 2)}
"""Name and position of an argument that an operator's canonical form lacks: values of a static graph are contiguous."""

NO_OPS = frozenset({"aten._assert_tensor_metadata.default"})
"""Checks of what shape rules establish anyway."""

IGNORED_ARGUMENTS = frozenset(
    {
        "accumulate_grad",
        "benchmark",
        "cudnn_enabled",
        "device",
        "deterministic",
        "generator",
        "implicit",
        "layout",
        "memory_format",
        "non_blocking",
        "out",
        "pin_memory",
        "requires_grad",
        "unsafe",
    }
)
"""Arguments without meaning here: placement, memory layout and autograd never change a result."""


def canonical_name(target: str) -> str:
    """The canonical name of a target: `torch.ops.aten.view_copy.default` is `aten.view.default`.

    In-place operators keep their underscore: see `functional_name`.
    """
    name = target.removeprefix("torch.ops.")
    if name in CONTROL:
        return CONTROL[name]
    base, _, overload = name.rpartition(".")
    if base in _VIEW_COPIES:
        name = f"{base.removesuffix('_copy')}.{overload}"
    return _RENAMED.get(name, name)


def is_in_place(name: str) -> bool:
    """Whether a canonical name is that of an in-place operator, such as `aten.relu_.default`."""
    base = name.rpartition(".")[0]
    if base in _IN_PLACE_OPERATORS:
        return True
    return base.startswith("aten.") and base.endswith("_") and not base.endswith("__")


def functional_name(name: str) -> str:
    """The functional form of an in-place operator: `aten.relu_.default` is `aten.relu.default`."""
    if name in _FUNCTIONAL:
        return _FUNCTIONAL[name]
    base, _, overload = name.rpartition(".")
    name = f"{_IN_PLACE_OPERATORS.get(base) or base.removesuffix('_')}.{overload}"
    return _RENAMED.get(name, name)


def functional_overload(name: str) -> str:
    """The overload without `out` of one that writes there: `aten.atan2.out` is `aten.atan2.default`; else empty."""
    base, _, overload = name.rpartition(".")
    if overload == "out":
        return f"{base}.default"
    return f"{base}.{overload.removesuffix('_out')}" if overload.endswith("_out") else ""


def without_surplus(target: str, inputs: tuple[NamedArgument, ...]) -> tuple[NamedArgument, ...]:
    """The arguments of a node without those that `target`'s canonical form lacks."""
    base = target.removeprefix("torch.ops.").rpartition(".")[0].removesuffix("_copy")
    if base not in SURPLUS_ARGUMENTS:
        return inputs
    name, position = SURPLUS_ARGUMENTS[base]
    return tuple(
        item for index, item in enumerate(inputs) if item.name != name and (item.name is not None or index != position)
    )


def is_view_copy(target: str) -> bool:
    """Whether the file asks for a copy of a view, whose result shares nothing with its source."""
    return target.removeprefix("torch.ops.").rpartition(".")[0] in _VIEW_COPIES
