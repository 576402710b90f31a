"""Ordering, and search in what is ordered: kernels of `native/kernels/sort.cpp`."""

from __future__ import annotations

from typing import Any

from ptn_format.dtypes import ScalarType

from ptn_engine_ggml._native import Builder, Tensor
from ptn_engine_ggml.lower.common import axis_of, call, call_all, promoted, scalar_tensor
from ptn_engine_ggml.lower.elementwise import result_type
from ptn_engine_ggml.lower.registry import Outputs, lower

LONG = ScalarType.LONG


@lower("aten.sort.default", "aten.sort.stable")
def sort(
    b: Builder, out: Outputs, self: Tensor, dim: int = -1, descending: bool = False, stable: bool | None = None
) -> tuple[Tensor, ...]:
    return call_all(b, "sort.sort", (self,), out, (axis_of(dim, self.rank or 1), int(descending)))


@lower("aten.argsort.default", "aten.argsort.stable")
def argsort(
    b: Builder, out: Outputs, self: Tensor, dim: int = -1, descending: bool = False, stable: bool | None = None
) -> Tensor:
    results = [(int(self.dtype), self.shape), (int(LONG), self.shape)]
    return b.custom("sort.sort", (self,), results, (axis_of(dim, self.rank or 1), int(descending)), ())[1]


@lower("aten.topk.default")
def topk(
    b: Builder, out: Outputs, self: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, ...]:
    ints = (axis_of(dim, self.rank or 1), int(largest), int(sorted))
    return call_all(b, "sort.topk", (self,), out, ints)


@lower("aten.kthvalue.default")
def kthvalue(
    b: Builder, out: Outputs, self: Tensor, k: int, dim: int = -1, keepdim: bool = False
) -> tuple[Tensor, ...]:
    return call_all(b, "sort.kth", (self,), out, (axis_of(dim, self.rank or 1), k - 1))


@lower("aten.median.dim")
def median_dim(b: Builder, out: Outputs, self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, ...]:
    return call_all(b, "sort.kth", (self,), out, (axis_of(dim, self.rank or 1), -1))


@lower("aten.median.default")
def median(b: Builder, out: Outputs, self: Tensor) -> Tensor:
    flat = b.view(self, (self.numel,))
    return b.custom("sort.kth", (flat,), [(int(out.dtype), ()), (int(LONG), ())], (0, -1), ())[0]


def _search(
    b: Builder, out: Outputs, sequence: Tensor, values: Any, right: bool, sorter: Tensor | None = None
) -> Tensor:
    computed = result_type(values, sequence)
    if not isinstance(values, Tensor):
        values = scalar_tensor(b, computed, values)
    inputs = [sequence, values] + ([] if sorter is None else [promoted(b, sorter, LONG)])
    ints = (int(computed), int(right), int(sorter is not None))
    return call(b, "sort.search", inputs, out, ints)


@lower("aten.bucketize.Tensor", "aten.bucketize.Scalar", empty=True, scalars=("self",))
def bucketize(
    b: Builder, out: Outputs, self: Any, boundaries: Tensor, out_int32: bool = False, right: bool = False
) -> Tensor:
    return _search(b, out, boundaries, self, right)


@lower("aten.searchsorted.Tensor", "aten.searchsorted.Scalar", empty=True, scalars=("self",))
def searchsorted(
    b: Builder,
    out: Outputs,
    sorted_sequence: Tensor,
    self: Any,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    return _search(b, out, sorted_sequence, self, right or side == "right", sorter)
