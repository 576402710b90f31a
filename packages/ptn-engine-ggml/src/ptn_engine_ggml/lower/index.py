"""Reading and writing at places that other tensors name: kernels of `native/kernels/index*.cpp`, which check them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ptn_runtime.engine import StaticNode, Value

from ptn_engine_ggml._native import Builder, Tensor
from ptn_engine_ggml.lower.common import axes_of, axis_of, call, call_all, last_element, promoted, scalar_tensor
from ptn_engine_ggml.lower.packed import PackedWeight, packed_rows
from ptn_engine_ggml.lower.registry import Outputs, lower

Sizes = tuple[int, ...]
Indices = Sequence["Tensor | None"]
MOST_INDICES = 7
"""Index tensors of one node: a native node reads nine tensors, of which two are taken."""

_REDUCTIONS = {"add": 1, "sum": 1, "multiply": 2, "prod": 2, "mean": 3, "amax": 4, "amin": 5}
"""`Reduce` of native/kernels/index.h by PyTorch's names."""


def _updated(
    b: Builder, out: Outputs, name: str, inputs: Sequence[Tensor], ints: Sequence[int], floats: Sequence[float] = ()
) -> Tensor:
    """Calls a kernel that changes parts of its first input: in that input's memory where nobody needs it any more."""
    if out.in_place:
        return b.custom_in_place(name, inputs, ints, floats)
    return call(b, name, inputs, out, ints, floats)


# --- whole rows ---


@lower("aten.embedding.default")
def embedding(
    b: Builder, out: Outputs, weight: Tensor | tuple[PackedWeight, Sequence[Tensor]], indices: Tensor, **_: Any
) -> Tensor:
    if isinstance(weight, tuple):
        return packed_rows(b, weight, indices)
    return call(b, "index.select", (weight, indices), out, (0,))


@lower("aten.index_select.default")
def index_select(b: Builder, out: Outputs, self: Tensor, dim: int, index: Tensor) -> Tensor:
    return call(b, "index.select", (self, index), out, (axis_of(dim, self.rank or 1),))


@lower("aten._embedding_bag.default", empty=True)
def embedding_bag(
    b: Builder,
    out: Outputs,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, ...]:
    inputs = [weight, indices, offsets] + ([] if per_sample_weights is None else [per_sample_weights])
    ints = (mode, int(per_sample_weights is not None), padding_idx)
    return call_all(b, "index.embedding_bag", inputs, out, ints)


# --- single elements ---


@lower("aten.gather.default")
def gather(b: Builder, out: Outputs, self: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
    return call(b, "index.gather", (self, index), out, (axis_of(dim, self.rank or 1),))


@lower("aten.take.default")
def take(b: Builder, out: Outputs, self: Tensor, index: Tensor) -> Tensor:
    flat = b.view(self, (self.numel,))
    return call(b, "index.index", (flat, index), out, (1, 1))


@lower("aten.put.default", empty=True)
def put(b: Builder, out: Outputs, self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    flat, values = b.view(self, (self.numel,)), b.view(source, index.shape)
    (result,) = b.custom(
        "index.index_put", (flat, values, index), [(self.dtype, flat.shape)], (int(accumulate), 1, 1), ()
    )
    return b.view(result, out.shape)


# --- x[indices] ---


def _indices_check(node: StaticNode) -> str | None:
    indices = node.args["indices"]
    assert isinstance(indices, tuple)
    present = sum(index is not None for index in indices)
    if present > MOST_INDICES:
        return f"{present} index tensors; a native node takes {MOST_INDICES}."
    return None


def _entries(indices: Indices) -> tuple[list[Tensor], list[int]]:
    """The tensors among `indices`, and the kernel's description of the list."""
    tensors = [index for index in indices if index is not None]
    return tensors, [len(indices), *(int(index is not None) for index in indices)]


@lower("aten.index.Tensor", "aten._unsafe_index.Tensor", check=_indices_check)
def index(b: Builder, out: Outputs, self: Tensor, indices: Indices) -> Tensor:
    tensors, entries = _entries(indices)
    if not tensors:
        return self
    return call(b, "index.index", (self, *tensors), out, entries)


@lower("aten.index_put.default", "aten._unsafe_index_put.default", check=_indices_check, empty=True)
def index_put(
    b: Builder, out: Outputs, self: Tensor, indices: Indices, values: Tensor, accumulate: bool = False
) -> Tensor:
    tensors, entries = _entries(indices)
    return _updated(b, out, "index.index_put", (self, values, *tensors), (int(accumulate), *entries))


# --- scatter ---


def _scatter(
    b: Builder, out: Outputs, self: Tensor, dim: int, index: Tensor, source: Any, reduce: str | None = None
) -> Tensor:
    source = promoted(b, source, out.dtype) if isinstance(source, Tensor) else scalar_tensor(b, out.dtype, source)
    ints = (axis_of(dim, self.rank or 1), 0 if reduce is None else _REDUCTIONS[reduce])
    return _updated(b, out, "index.scatter", (self, index, source), ints)


@lower("aten.scatter.src", empty=True)
def scatter(b: Builder, out: Outputs, self: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _scatter(b, out, self, dim, index, src)


@lower("aten.scatter.value", empty=True, scalars=("value",))
def scatter_value(b: Builder, out: Outputs, self: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    return _scatter(b, out, self, dim, index, value)


@lower("aten.scatter_add.default", empty=True)
def scatter_add(b: Builder, out: Outputs, self: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _scatter(b, out, self, dim, index, src, "add")


@lower("aten.scatter.reduce", empty=True)
def scatter_with_reduce(
    b: Builder, out: Outputs, self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str
) -> Tensor:
    return _scatter(b, out, self, dim, index, src, reduce)


@lower("aten.scatter.value_reduce", empty=True, scalars=("value",))
def scatter_value_reduce(
    b: Builder, out: Outputs, self: Tensor, dim: int, index: Tensor, value: Any, reduce: str
) -> Tensor:
    return _scatter(b, out, self, dim, index, value, reduce)


@lower("aten.scatter_reduce.two", empty=True)
def scatter_reduce(
    b: Builder,
    out: Outputs,
    self: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor,
    reduce: str,
    include_self: bool = True,
) -> Tensor:
    ints = (axis_of(dim, self.rank or 1), _REDUCTIONS[reduce], int(include_self))
    return _updated(b, out, "index.scatter_reduce", (self, index, src), ints)


@lower("aten.masked_scatter.default", empty=True)
def masked_scatter(b: Builder, out: Outputs, self: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    inputs = (self.expand(out.shape), mask.expand(out.shape), source)
    return _updated(b, out, "index.masked_scatter", inputs, ())


# --- slices by a list of indices ---


@lower("aten.index_add.default", empty=True)
def index_add(
    b: Builder, out: Outputs, self: Tensor, dim: int, index: Tensor, source: Tensor, alpha: float = 1
) -> Tensor:
    axis = axis_of(dim, self.rank or 1)
    ints, floats = ((axis,), (float(alpha),)) if out.dtype.is_floating_point else ((axis, int(alpha)), ())
    return _updated(b, out, "index.index_add", (self, index, source), ints, floats)


@lower("aten.index_copy.default", empty=True)
def index_copy(b: Builder, out: Outputs, self: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return _updated(b, out, "index.index_copy", (self, index, source), (axis_of(dim, self.rank or 1),))


@lower("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor", empty=True, scalars=("value",))
def index_fill(b: Builder, out: Outputs, self: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    filler = promoted(b, value, out.dtype) if isinstance(value, Tensor) else scalar_tensor(b, out.dtype, value)
    return _updated(b, out, "index.index_fill", (self, index, filler), (axis_of(dim, self.rank or 1),))


@lower("aten.index_reduce.default", empty=True)
def index_reduce(
    b: Builder,
    out: Outputs,
    self: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    reduce: str,
    include_self: bool = True,
) -> Tensor:
    ints = (axis_of(dim, self.rank or 1), _REDUCTIONS[reduce], int(include_self))
    return _updated(b, out, "index.index_reduce", (self, index, source), ints)


# --- views written to ---


@lower("aten.select_scatter.default", empty=True)
def select_scatter(b: Builder, out: Outputs, self: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    axis = axis_of(dim, self.rank)
    src = src.expand((*self.shape[:axis], *self.shape[axis + 1 :]))
    return _updated(b, out, "index.slice_scatter", (self, src), (axis, index % self.shape[axis], 1, 1))


@lower("aten.slice_scatter.default", empty=True)
def slice_scatter(
    b: Builder,
    out: Outputs,
    self: Tensor,
    src: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    axis = axis_of(dim, self.rank)
    places = range(*slice(start, end, step).indices(self.shape[axis]))
    src = src.expand((*self.shape[:axis], len(places), *self.shape[axis + 1 :]))
    return _updated(b, out, "index.slice_scatter", (self, src), (axis, places.start, step, len(places)))


def _contiguous_strides(shape: Sizes) -> list[int]:
    strides, stride = [], 1
    for size in reversed(shape):
        strides.append(stride)
        stride *= size
    return strides[::-1]


@lower("aten.diagonal_scatter.default", empty=True)
def diagonal_scatter(
    b: Builder, out: Outputs, self: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    axis1, axis2 = axes_of((dim1, dim2), self.rank)
    strides = _contiguous_strides(self.shape)
    start = offset * strides[axis2] if offset >= 0 else -offset * strides[axis1]
    rows, columns = self.shape[axis1], self.shape[axis2]
    length = max(min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns), 0)
    rest = [axis for axis in range(self.rank) if axis not in (axis1, axis2)]
    sizes = [*(self.shape[axis] for axis in rest), length]
    steps = [*(strides[axis] for axis in rest), strides[axis1] + strides[axis2]]
    inputs = (self, src.expand(tuple(sizes)))
    return _updated(b, out, "index.strided_scatter", inputs, (start, len(sizes), *sizes, *steps))


def _window_check(node: StaticNode) -> str | None:
    x, size, stride = node.args["self"], node.args["size"], node.args["stride"]
    start = node.args.get("storage_offset") or 0
    assert isinstance(x, Value)
    assert isinstance(start, int)
    last = start + last_element(size, stride)
    if start < 0 or last >= x.numel:
        return f"the window reaches elements {start}..{last} of a tensor that has {x.numel}."
    return None


@lower("aten.as_strided_scatter.default", check=_window_check)
def as_strided_scatter(
    b: Builder,
    out: Outputs,
    self: Tensor,
    src: Tensor,
    size: Sizes,
    stride: Sizes,
    storage_offset: int | None = None,
) -> Tensor:
    ints = (storage_offset or 0, len(size), *size, *stride)
    return _updated(b, out, "index.strided_scatter", (self, src.expand(size)), ints)
