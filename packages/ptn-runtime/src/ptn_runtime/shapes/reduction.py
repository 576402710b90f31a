"""Shape rules of the family `reduction`: results over whole axes, running results included."""

from __future__ import annotations

from ptn_format.dtypes import ScalarType

from ptn_runtime.shapes import Number, Tensor, TensorSpec, shape_rule
from ptn_runtime.shapes._broadcast import normalize_axes, normalize_axis
from ptn_runtime.shapes._promotion import sum_type

Axes = tuple[int, ...]
LONG = ScalarType.LONG


def reduced_shape(shape: Axes, axes: Axes, keepdim: bool) -> Axes:
    """`shape` without `axes`, or with size 1 there."""
    if keepdim:
        return tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)


def _reduce(self: Tensor, dim: int | Axes | None, keepdim: bool) -> Axes:
    return reduced_shape(self.shape, normalize_axes(dim, len(self.shape)), keepdim)


def _require_elements(self: Tensor, dim: int | Axes | None) -> None:
    axes = normalize_axes(dim, len(self.shape))
    empty = any(self.shape[axis] == 0 for axis in axes if self.shape)
    if empty:
        raise ValueError(f"there is nothing to choose from on an empty axis of {list(self.shape)}")


def _float_dtype(self: Tensor, dtype: ScalarType | None) -> ScalarType:
    result = self.dtype if dtype is None else dtype
    if not (result.is_floating_point):
        raise ValueError(f"the result must be floating point, got {result.torch_name}; pass dtype")
    return result


# --- sums -------------------------------------------------------------------------------------------------------


@shape_rule("aten.sum.default", "aten.prod.default")
def sum_all(self: Tensor, *, dtype: ScalarType | None = None) -> TensorSpec:
    return TensorSpec(sum_type(self.dtype, dtype), ())


@shape_rule("aten.sum.dim_IntList")
def sum_dim(self: Tensor, dim: Axes | None, keepdim: bool = False, *, dtype: ScalarType | None = None) -> TensorSpec:
    return TensorSpec(sum_type(self.dtype, dtype), _reduce(self, dim, keepdim))


@shape_rule("aten.nansum.default")
def nansum(
    self: Tensor, dim: Axes | None = None, keepdim: bool = False, *, dtype: ScalarType | None = None
) -> TensorSpec:
    return TensorSpec(sum_type(self.dtype, dtype), _reduce(self, dim, keepdim))


@shape_rule("aten.prod.dim_int")
def prod_dim(self: Tensor, dim: int, keepdim: bool = False, *, dtype: ScalarType | None = None) -> TensorSpec:
    return TensorSpec(sum_type(self.dtype, dtype), _reduce(self, dim, keepdim))


@shape_rule("aten.mean.default")
def mean_all(self: Tensor, *, dtype: ScalarType | None = None) -> TensorSpec:
    return TensorSpec(_float_dtype(self, dtype), ())


@shape_rule("aten.mean.dim")
def mean_dim(self: Tensor, dim: Axes | None, keepdim: bool = False, *, dtype: ScalarType | None = None) -> TensorSpec:
    return TensorSpec(_float_dtype(self, dtype), _reduce(self, dim, keepdim))


@shape_rule("aten.var.correction", "aten.std.correction")
def var_correction(
    self: Tensor, dim: Axes | None = None, *, correction: Number | None = None, keepdim: bool = False
) -> TensorSpec:
    return TensorSpec(_float_dtype(self, None), _reduce(self, dim, keepdim))


@shape_rule("aten.var_mean.correction", "aten.std_mean.correction")
def var_mean_correction(
    self: Tensor, dim: Axes | None = None, *, correction: Number | None = None, keepdim: bool = False
) -> tuple[TensorSpec, TensorSpec]:
    result = TensorSpec(_float_dtype(self, None), _reduce(self, dim, keepdim))
    return result, result


@shape_rule("aten.var.dim", "aten.std.dim")
def var_dim(self: Tensor, dim: Axes | None, unbiased: bool = True, keepdim: bool = False) -> TensorSpec:
    return TensorSpec(_float_dtype(self, None), _reduce(self, dim, keepdim))


@shape_rule("aten.var.default", "aten.std.default")
def var_all(self: Tensor, unbiased: bool = True) -> TensorSpec:
    return TensorSpec(_float_dtype(self, None), ())


@shape_rule("aten.logsumexp.default")
def logsumexp(self: Tensor, dim: Axes, keepdim: bool = False) -> TensorSpec:
    dtype = self.dtype if self.dtype.is_floating_point else ScalarType.FLOAT
    return TensorSpec(dtype, _reduce(self, dim, keepdim))


@shape_rule("aten.linalg_vector_norm.default")
def linalg_vector_norm(
    self: Tensor, ord: Number = 2, dim: Axes | None = None, keepdim: bool = False, *, dtype: ScalarType | None = None
) -> TensorSpec:
    return TensorSpec(_float_dtype(self, dtype), _reduce(self, dim, keepdim))


@shape_rule("aten.norm.Scalar")
def norm(self: Tensor, p: Number = 2) -> TensorSpec:
    return TensorSpec(_float_dtype(self, None), ())


@shape_rule("aten.norm.ScalarOpt_dim")
def norm_dim(self: Tensor, p: Number | None, dim: Axes, keepdim: bool = False) -> TensorSpec:
    return TensorSpec(_float_dtype(self, None), _reduce(self, dim, keepdim))


# --- choosing ---------------------------------------------------------------------------------------------------


@shape_rule("aten.amax.default", "aten.amin.default")
def amax(self: Tensor, dim: Axes = (), keepdim: bool = False) -> TensorSpec:
    _require_elements(self, dim)
    return TensorSpec(self.dtype, _reduce(self, dim, keepdim))


@shape_rule("aten.max.default", "aten.min.default", "aten.median.default", "aten.nanmedian.default")
def max_all(self: Tensor) -> TensorSpec:
    if self.shape and not all(self.shape) and not self.dtype.is_floating_point:
        raise ValueError(f"there is nothing to choose from in {list(self.shape)}")
    return TensorSpec(self.dtype, ())


@shape_rule("aten.max.dim", "aten.min.dim", "aten.median.dim", "aten.nanmedian.dim")
def max_dim(self: Tensor, dim: int, keepdim: bool = False) -> tuple[TensorSpec, TensorSpec]:
    _require_elements(self, dim)
    shape = _reduce(self, dim, keepdim)
    return TensorSpec(self.dtype, shape), TensorSpec(LONG, shape)


@shape_rule("aten.aminmax.default")
def aminmax(self: Tensor, *, dim: int | None = None, keepdim: bool = False) -> tuple[TensorSpec, TensorSpec]:
    _require_elements(self, dim)
    result = TensorSpec(self.dtype, _reduce(self, dim, keepdim))
    return result, result


@shape_rule("aten.argmax.default", "aten.argmin.default")
def argmax(self: Tensor, dim: int | None = None, keepdim: bool = False) -> TensorSpec:
    _require_elements(self, dim)
    return TensorSpec(LONG, _reduce(self, dim, keepdim))


def _truth_dtype(self: Tensor) -> ScalarType:
    return self.dtype if self.dtype is ScalarType.BYTE else ScalarType.BOOL


@shape_rule("aten.any.default", "aten.all.default")
def any_all(self: Tensor) -> TensorSpec:
    return TensorSpec(_truth_dtype(self), ())


@shape_rule("aten.any.dim", "aten.all.dim")
def any_dim(self: Tensor, dim: int, keepdim: bool = False) -> TensorSpec:
    return TensorSpec(_truth_dtype(self), _reduce(self, dim, keepdim))


@shape_rule("aten.any.dims", "aten.all.dims")
def any_dims(self: Tensor, dim: Axes | None = None, keepdim: bool = False) -> TensorSpec:
    axes = normalize_axes(dim, len(self.shape), empty_is_all=False)  # here no axes means no reduction
    return TensorSpec(_truth_dtype(self), reduced_shape(self.shape, axes, keepdim))


@shape_rule("aten.count_nonzero.default")
def count_nonzero(self: Tensor, dim: int | None = None) -> TensorSpec:
    return TensorSpec(LONG, _reduce(self, dim, False))


@shape_rule("aten.count_nonzero.dim_IntList")
def count_nonzero_dims(self: Tensor, dim: Axes) -> TensorSpec:
    return TensorSpec(LONG, _reduce(self, dim, False))


# --- running ----------------------------------------------------------------------------------------------------


@shape_rule("aten.cumsum.default", "aten.cumprod.default")
def cumsum(self: Tensor, dim: int, *, dtype: ScalarType | None = None) -> TensorSpec:
    normalize_axis(dim, len(self.shape))
    return TensorSpec(sum_type(self.dtype, dtype), self.shape)


@shape_rule("aten.logcumsumexp.default")
def logcumsumexp(self: Tensor, dim: int) -> TensorSpec:
    normalize_axis(dim, len(self.shape))
    return TensorSpec(_float_dtype(self, None), self.shape)


@shape_rule("aten.cummax.default", "aten.cummin.default")
def cummax(self: Tensor, dim: int) -> tuple[TensorSpec, TensorSpec]:
    normalize_axis(dim, len(self.shape))
    return TensorSpec(self.dtype, self.shape), TensorSpec(LONG, self.shape)
