"""Shape rules of the family `sort`: ordering, and search in what is ordered."""

from __future__ import annotations

from ptn_format.dtypes import ScalarType

from ptn_runtime.shapes import DataDependentError, Number, Tensor, TensorSpec, shape_rule
from ptn_runtime.shapes._broadcast import normalize_axis, require

LONG = ScalarType.LONG


@shape_rule("aten.sort.default")
def sort(self: Tensor, dim: int = -1, descending: bool = False) -> tuple[TensorSpec, TensorSpec]:
    normalize_axis(dim, len(self.shape))
    return TensorSpec(self.dtype, self.shape), TensorSpec(LONG, self.shape)


@shape_rule("aten.sort.stable")
def sort_stable(
    self: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> tuple[TensorSpec, TensorSpec]:
    return sort(self, dim, descending)


@shape_rule("aten.argsort.default")
def argsort(self: Tensor, dim: int = -1, descending: bool = False) -> TensorSpec:
    return sort(self, dim, descending)[1]


@shape_rule("aten.argsort.stable")
def argsort_stable(self: Tensor, *, stable: bool, dim: int = -1, descending: bool = False) -> TensorSpec:
    return sort(self, dim, descending)[1]


@shape_rule("aten.topk.default")
def topk(
    self: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[TensorSpec, TensorSpec]:
    axis = normalize_axis(dim, len(self.shape))
    size = self.shape[axis] if self.shape else 1
    if not (0 <= k <= size):
        raise ValueError(f"k = {k} is out of range for an axis of {size} elements")
    shape = (*self.shape[:axis], k, *self.shape[axis + 1 :]) if self.shape else ()
    return TensorSpec(self.dtype, shape), TensorSpec(LONG, shape)


@shape_rule("aten.kthvalue.default")
def kthvalue(self: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[TensorSpec, TensorSpec]:
    axis = normalize_axis(dim, len(self.shape))
    size = self.shape[axis] if self.shape else 1
    if not (1 <= k <= size):
        raise ValueError(f"k = {k} is out of range for an axis of {size} elements")
    middle = (1,) if keepdim and self.shape else ()
    shape = (*self.shape[:axis], *middle, *self.shape[axis + 1 :])
    return TensorSpec(self.dtype, shape), TensorSpec(LONG, shape)


@shape_rule("aten.mode.default")
def mode(self: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[TensorSpec, TensorSpec]:
    return kthvalue(self, 1, dim, keepdim)


def _index_dtype(out_int32: bool) -> ScalarType:
    return ScalarType.INT if out_int32 else LONG


@shape_rule("aten.bucketize.Tensor")
def bucketize(self: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> TensorSpec:
    if len(boundaries.shape) != 1:
        raise ValueError(f"boundaries must have one axis, got {list(boundaries.shape)}")
    return TensorSpec(_index_dtype(out_int32), self.shape)


@shape_rule("aten.bucketize.Scalar")
def bucketize_scalar(self: Number, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> TensorSpec:
    if len(boundaries.shape) != 1:
        raise ValueError(f"boundaries must have one axis, got {list(boundaries.shape)}")
    return TensorSpec(_index_dtype(out_int32), ())


def _check_sorter(sorted_sequence: Tensor, sorter: Tensor | None) -> None:
    if sorter is not None and sorter.shape != sorted_sequence.shape:
        raise ValueError(
            f"sorter must have the sequence's shape {list(sorted_sequence.shape)}, got {list(sorter.shape)}"
        )


@shape_rule("aten.searchsorted.Tensor")
def searchsorted(
    sorted_sequence: Tensor,
    self: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> TensorSpec:
    sequence = sorted_sequence.shape
    require(len(sequence) > 0, "the sorted sequence needs an axis")
    if not (len(sequence) == 1 or sequence[:-1] == self.shape[:-1]):
        raise ValueError(f"all axes of {list(sequence)} but the last must be those of {list(self.shape)}")
    _check_sorter(sorted_sequence, sorter)
    return TensorSpec(_index_dtype(out_int32), self.shape)


@shape_rule("aten.searchsorted.Scalar")
def searchsorted_scalar(
    sorted_sequence: Tensor,
    self: Number,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> TensorSpec:
    _check_sorter(sorted_sequence, sorter)
    require(len(sorted_sequence.shape) == 1, "a number is searched in a sequence of one axis")
    return TensorSpec(_index_dtype(out_int32), ())


@shape_rule("aten._unique2.default")
def unique2(
    self: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    raise DataDependentError("the number of distinct elements depends on the data")


@shape_rule("aten.unique_dim.default")
def unique_dim(
    self: Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    normalize_axis(dim, len(self.shape))
    raise DataDependentError("the number of distinct slices depends on the data")


def flattens(rank: int, dim: int | None) -> bool:
    """Whether `unique_consecutive` looks at elements: it heeds the flags for surplus results then only."""
    return dim is None or (dim == 0 and rank == 1)


@shape_rule("aten.unique_consecutive.default")
def unique_consecutive(
    self: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    if dim is not None:
        normalize_axis(dim, len(self.shape))
    raise DataDependentError("the number of runs of equal elements depends on the data")
