"""Writing through views: for each view operator, how new contents of the view change its base.

`INVERSES[op](emit, base, new, args, index)` gives the base's new contents. `emit(op, **args)` adds a node and returns
its result; `args` are the view's concrete arguments, `index` tells which result of the view `new` replaces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ptn_runtime.errors import LoweringError
from ptn_runtime.lowering.static import Value

__all__ = ["INVERSES", "KEEP_ORDER", "SOMETIMES_VIEWS", "Emit"]


class Emit(Protocol):
    """Adds a node of one result to the graph under construction."""

    def __call__(self, op: str, /, **args: Any) -> Value:
        """Calls `op` with the arguments given and defaults for the others."""


Inverse = Callable[[Emit, Value, Value, dict[str, Any], int], Value]


def _same(emit: Emit, base: Value, new: Value, args: dict[str, Any], index: int) -> Value:
    return new


def _reshape(emit: Emit, base: Value, new: Value, args: dict[str, Any], index: int) -> Value:
    return emit("aten.view.default", self=new, size=base.shape)


def _reinterpret(emit: Emit, base: Value, new: Value, args: dict[str, Any], index: int) -> Value:
    return emit("aten.view.dtype", self=new, dtype=base.dtype)


def _permute(emit: Emit, base: Value, new: Value, args: dict[str, Any], index: int) -> Value:
    rank = len(base.shape)
    dims = [dim % rank for dim in args["dims"]]
    return emit("aten.permute.default", self=new, dims=tuple(dims.index(axis) for axis in range(rank)))


def _transpose(emit: Emit, base: Value, new: Value, args: dict[str, Any], index: int) -> Value:
    rank = len(base.shape)
    dims = list(range(rank))
    if rank:
        a, b = args["dim0"] % rank, args["dim1"] % rank
        dims[a], dims[b] = b, a
    return emit("aten.permute.default", self=new, dims=tuple(dims))


def _t(emit: Emit, base: Value, new: Value, args: dict[str, Any], index: int) -> Value:
    return emit("aten.permute.default", self=new, dims=tuple(reversed(range(len(base.shape)))))


def _movedim(emit: Emit, base: Value, new: Value, args: dict[str, Any], index: int) -> Value:
    rank = len(base.shape)
    source, destination = args["source"], args["destination"]
    sources = [dim % rank for dim in (source if isinstance(source, tuple) else (source,))]
    targets = [dim % rank for dim in (destination if isinstance(destination, tuple) else (destination,))]
    where = dict(zip(sources, targets, strict=True))  # axis of the base -> axis of the view
    rest_targets = iter(axis for axis in range(rank) if axis not in targets)
    where.update((axis, next(rest_targets)) for axis in range(rank) if axis not in where)
    return emit("aten.permute.default", self=new, dims=tuple(where[axis] for axis in range(rank)))


def _slice(emit: Emit, base: Value, new: Value, args: dict[str, Any], index: int) -> Value:
    return emit(
        "aten.slice_scatter.default",
        self=base,
        src=new,
        dim=args["dim"],
        start=args["start"],
        end=args["end"],
        step=args["step"],
    )


def _part(emit: Emit, base: Value, new: Value, dim: int, start: int) -> Value:
    size = new.shape[dim]
    return emit("aten.slice_scatter.default", self=base, src=new, dim=dim, start=start, end=start + size, step=1)


def _narrow(emit: Emit, base: Value, new: Value, args: dict[str, Any], index: int) -> Value:
    start = args["start"]
    return _part(emit, base, new, args["dim"], start if start >= 0 else start + base.shape[args["dim"]])


def _split(emit: Emit, base: Value, new: Value, args: dict[str, Any], index: int) -> Value:
    return _part(emit, base, new, args["dim"], index * args["split_size"])


def _split_with_sizes(emit: Emit, base: Value, new: Value, args: dict[str, Any], index: int) -> Value:
    sizes = args["split_sizes"] if "split_sizes" in args else args["split_size"]
    return _part(emit, base, new, args["dim"], sum(sizes[:index]))


def _chunk(emit: Emit, base: Value, new: Value, args: dict[str, Any], index: int) -> Value:
    size = -(-base.shape[args["dim"]] // args["chunks"])
    return _part(emit, base, new, args["dim"], index * size)


def _select(emit: Emit, base: Value, new: Value, args: dict[str, Any], index: int) -> Value:
    return emit("aten.select_scatter.default", self=base, src=new, dim=args["dim"], index=args["index"])


def _unbind(emit: Emit, base: Value, new: Value, args: dict[str, Any], index: int) -> Value:
    return emit("aten.select_scatter.default", self=base, src=new, dim=args["dim"], index=index)


def _diagonal(emit: Emit, base: Value, new: Value, args: dict[str, Any], index: int) -> Value:
    return emit(
        "aten.diagonal_scatter.default",
        self=base,
        src=new,
        offset=args["offset"],
        dim1=args["dim1"],
        dim2=args["dim2"],
    )


def _as_strided(emit: Emit, base: Value, new: Value, args: dict[str, Any], index: int) -> Value:
    return emit(
        "aten.as_strided_scatter.default",
        self=base,
        src=new,
        size=args["size"],
        stride=args["stride"],
        storage_offset=args["storage_offset"],
    )


def _expand(emit: Emit, base: Value, new: Value, args: dict[str, Any], index: int) -> Value:
    if base.numel != new.numel:
        raise LoweringError(
            f"a write through an expanded view of {base} to {list(new.shape)}: several elements share one place, "
            "and PyTorch refuses it too. Clone the expanded tensor before writing to it."
        )
    return emit("aten.view.default", self=new, size=base.shape)


def _refuse(emit: Emit, base: Value, new: Value, args: dict[str, Any], index: int) -> Value:
    raise LoweringError(
        f"a write through an overlapping view of {base}: several elements share one place. "
        "Clone the view before writing to it."
    )


INVERSES: Mapping[str, Inverse] = {
    "aten.alias.default": _same,
    "aten.as_strided.default": _as_strided,
    "aten.chunk.default": _chunk,
    "aten.diagonal.default": _diagonal,
    "aten.expand.default": _expand,
    "aten.flatten.using_ints": _reshape,
    "aten.movedim.int": _movedim,
    "aten.movedim.intlist": _movedim,
    "aten.narrow.default": _narrow,
    "aten.permute.default": _permute,
    "aten.reshape.default": _reshape,
    "aten.select.int": _select,
    "aten.slice.Tensor": _slice,
    "aten.split.Tensor": _split,
    "aten.split.sizes": _split_with_sizes,
    "aten.split_with_sizes.default": _split_with_sizes,
    "aten.squeeze.default": _reshape,
    "aten.squeeze.dim": _reshape,
    "aten.squeeze.dims": _reshape,
    "aten.t.default": _t,
    "aten.transpose.int": _transpose,
    "aten.unbind.int": _unbind,
    "aten.unflatten.int": _reshape,
    "aten.unfold.default": _refuse,
    "aten.unsqueeze.default": _reshape,
    "aten.view.default": _reshape,
    "aten.view.dtype": _reinterpret,
    "aten.view_as.default": _reshape,
}
"""Operators whose results share memory with their first argument in PyTorch, and how to write through them."""

SOMETIMES_VIEWS = frozenset({"aten.flatten.using_ints", "aten.reshape.default"})
"""Operators that copy where the elements do not lie in order."""

KEEP_ORDER = frozenset(op for op, inverse in INVERSES.items() if inverse in (_reshape, _same))
"""Views of contiguous tensors that are contiguous."""
