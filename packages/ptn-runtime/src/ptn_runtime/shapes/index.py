"""Shape rules of the family `index`: reading and writing at places that other tensors name."""

from __future__ import annotations

from ptn_format.dtypes import ScalarType

from ptn_runtime.shapes import DataDependentError, Number, Tensor, TensorSpec, shape_rule
from ptn_runtime.shapes._broadcast import broadcast_shapes, check_window, element_count, normalize_axis, require

Shape = tuple[int, ...]
Indices = tuple["Tensor | None", ...]
_MASKS = (ScalarType.BOOL, ScalarType.BYTE)


def _require_index(index: Tensor, name: str = "index") -> None:
    if index.dtype not in (ScalarType.LONG, ScalarType.INT):
        raise ValueError(f"{name} must be int64 or int32, got {index.dtype.torch_name}")


@shape_rule("aten.embedding.default")
def embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> TensorSpec:
    _require_index(indices, "indices")
    if len(weight.shape) != 2:
        raise ValueError(f"weight must have 2 axes, got {list(weight.shape)}")
    return TensorSpec(weight.dtype, (*indices.shape, weight.shape[1]))


@shape_rule("aten.embedding_dense_backward.default")
def embedding_dense_backward(
    grad_output: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> TensorSpec:
    _require_index(indices, "indices")
    if not grad_output.shape or grad_output.shape[:-1] != indices.shape:
        raise ValueError(f"grad_output must be {list(indices.shape)} and one axis more, got {list(grad_output.shape)}")
    return TensorSpec(grad_output.dtype, (num_weights, grad_output.shape[-1]))


@shape_rule("aten._embedding_bag.default")
def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[TensorSpec, TensorSpec, TensorSpec, TensorSpec]:
    _require_index(indices, "indices")
    _require_index(offsets, "offsets")
    if len(weight.shape) != 2:
        raise ValueError(f"weight must have 2 axes, got {list(weight.shape)}")
    require(len(indices.shape) == 1 and len(offsets.shape) == 1, "indices and offsets must have one axis")
    if mode not in (0, 1, 2):
        raise ValueError(f"mode must be 0 (sum), 1 (mean) or 2 (max), got {mode}")
    if per_sample_weights is not None and per_sample_weights.shape != indices.shape:
        raise ValueError(f"each of {list(indices.shape)} indices needs a weight, got {list(per_sample_weights.shape)}")
    bags = offsets.shape[0] - (1 if include_last_offset else 0)
    width = weight.shape[1]
    # The last three results serve the backward pass; their sizes are those of eager mode on the CPU.
    fast_sum = (
        mode == 0 and padding_idx < 0 and weight.dtype in (ScalarType.FLOAT, ScalarType.HALF, ScalarType.BFLOAT16)
    )
    offset2bag = 0 if fast_sum else indices.shape[0]
    maximal = (bags, width) if mode == 2 else (bags,)
    kind = indices.dtype
    return (
        TensorSpec(weight.dtype, (bags, width)),
        TensorSpec(kind, (offset2bag,)),
        TensorSpec(kind, (bags,)),
        TensorSpec(kind, maximal),
    )


@shape_rule("aten.index_select.default")
def index_select(self: Tensor, dim: int, index: Tensor) -> TensorSpec:
    _require_index(index)
    if len(index.shape) > 1:
        raise ValueError(f"index must have at most one axis, got {list(index.shape)}")
    axis = normalize_axis(dim, len(self.shape))
    count = element_count(index.shape)
    if not self.shape:
        return TensorSpec(self.dtype, ())
    return TensorSpec(self.dtype, (*self.shape[:axis], count, *self.shape[axis + 1 :]))


@shape_rule("aten.gather.default")
def gather(self: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> TensorSpec:
    if element_count(index.shape):  # an empty index may have any dtype
        _require_index(index)
    _require_within(index.shape, self.shape, dim)
    return TensorSpec(self.dtype, index.shape)


def _require_within(index: Shape, self: Shape, dim: int) -> None:
    rank = len(self) or 1
    axis = normalize_axis(dim, rank)
    if element_count(index) == 0:
        return
    if (len(index) or 1) != rank:
        raise ValueError(f"index {list(index)} must have as many axes as self {list(self)}")
    for other, (a, b) in enumerate(zip(index, self, strict=False)):
        if not (other == axis or a <= b):
            raise ValueError(f"index {list(index)} exceeds self {list(self)} on axis {other}")


def index_result_shape(self: Shape, indices: Indices) -> Shape:
    """The shape of `self[indices]`: index tensors broadcast, and stand first unless they are neighbours.

    Raises:
        ValueError: they do not fit.
        DataDependentError: there is a mask among them.
    """
    if len(indices) > len(self):
        raise ValueError(f"{len(indices)} indices for {len(self)} axes")
    present = [axis for axis, index in enumerate(indices) if index is not None]
    if not present:
        return self
    shapes = []
    for axis in present:
        index = indices[axis]
        assert index is not None
        if index.dtype in _MASKS:
            raise DataDependentError("the number of elements that a mask selects depends on the data")
        if index.dtype not in (ScalarType.LONG, ScalarType.INT):
            raise ValueError(f"indices of dtype {index.dtype.torch_name}")
        shapes.append(index.shape)
    selected = broadcast_shapes(*shapes)
    adjacent = present == list(range(present[0], present[-1] + 1))
    place = present[0] if adjacent else 0
    kept = [size for axis, size in enumerate(self) if axis not in present]
    return (*kept[:place], *selected, *kept[place:])


@shape_rule("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index(self: Tensor, indices: tuple[Tensor | None, ...]) -> TensorSpec:
    return TensorSpec(self.dtype, index_result_shape(self.shape, indices))


@shape_rule("aten.index_put.default", "aten._unsafe_index_put.default")
def index_put(self: Tensor, indices: tuple[Tensor | None, ...], values: Tensor, accumulate: bool = False) -> TensorSpec:
    if self.dtype is not values.dtype:
        raise ValueError(f"self is {self.dtype.torch_name} but values are {values.dtype.torch_name}")
    try:
        selected = index_result_shape(self.shape, indices)
    except DataDependentError:
        return TensorSpec(self.dtype, self.shape)  # a mask decides where values go, not how large the result is
    if broadcast_shapes(values.shape, selected) != selected:
        raise ValueError(f"values {list(values.shape)} do not broadcast to the selected {list(selected)}")
    return TensorSpec(self.dtype, self.shape)


@shape_rule("aten.index_add.default")
def index_add(self: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Number = 1) -> TensorSpec:
    return _index_write(self, dim, index, source)


@shape_rule("aten.index_copy.default")
def index_copy(self: Tensor, dim: int, index: Tensor, source: Tensor) -> TensorSpec:
    return _index_write(self, dim, index, source)


@shape_rule("aten.index_reduce.default")
def index_reduce(
    self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> TensorSpec:
    return _index_write(self, dim, index, source)


def _index_write(self: Tensor, dim: int, index: Tensor, source: Tensor) -> TensorSpec:
    _require_index(index)
    axis = normalize_axis(dim, len(self.shape))
    if self.dtype is not source.dtype:
        raise ValueError(f"self is {self.dtype.torch_name} but source is {source.dtype.torch_name}")
    count = element_count(index.shape)
    if self.shape and source.shape:
        expected = (*self.shape[:axis], count, *self.shape[axis + 1 :])
        if source.shape != expected:
            raise ValueError(f"source must be {list(expected)}, got {list(source.shape)}")
    return TensorSpec(self.dtype, self.shape)


@shape_rule("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")
def index_fill(self: Tensor, dim: int, index: Tensor, value: Tensor | Number) -> TensorSpec:
    _require_index(index)
    normalize_axis(dim, len(self.shape))
    return TensorSpec(self.dtype, self.shape)


def _scatter(self: Tensor, dim: int, index: Tensor, src: Tensor | None) -> TensorSpec:
    _require_index(index)
    _require_within(index.shape, self.shape, dim)
    if src is not None and element_count(index.shape):
        if self.dtype is not src.dtype:
            raise ValueError(f"self is {self.dtype.torch_name} but src is {src.dtype.torch_name}")
        fits = (len(index.shape) or 1) == (len(src.shape) or 1) and all(
            a <= b for a, b in zip(index.shape, src.shape, strict=False)
        )
        if not fits:
            raise ValueError(f"index {list(index.shape)} exceeds src {list(src.shape)}")
    return TensorSpec(self.dtype, self.shape)


@shape_rule("aten.scatter.src", "aten.scatter_add.default")
def scatter(self: Tensor, dim: int, index: Tensor, src: Tensor) -> TensorSpec:
    return _scatter(self, dim, index, src)


@shape_rule("aten.scatter.value")
def scatter_value(self: Tensor, dim: int, index: Tensor, value: Number) -> TensorSpec:
    return _scatter(self, dim, index, None)


@shape_rule("aten.scatter.reduce")
def scatter_with_reduce(self: Tensor, dim: int, index: Tensor, src: Tensor, *, reduce: str) -> TensorSpec:
    if reduce not in ("add", "multiply"):
        raise ValueError(f"reduce must be 'add' or 'multiply', got {reduce!r}")
    return _scatter(self, dim, index, src)


@shape_rule("aten.scatter.value_reduce")
def scatter_value_reduce(self: Tensor, dim: int, index: Tensor, value: Number, *, reduce: str) -> TensorSpec:
    if reduce not in ("add", "multiply"):
        raise ValueError(f"reduce must be 'add' or 'multiply', got {reduce!r}")
    return _scatter(self, dim, index, None)


@shape_rule("aten.scatter_reduce.two")
def scatter_reduce(
    self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> TensorSpec:
    known = ("sum", "prod", "mean", "amax", "amin")
    if reduce not in known:
        raise ValueError(f"reduce must be one of {', '.join(known)}, got {reduce!r}")
    return _scatter(self, dim, index, src)


@shape_rule("aten.take.default")
def take(self: Tensor, index: Tensor) -> TensorSpec:
    if index.dtype is not ScalarType.LONG:
        raise ValueError(f"index must be int64, got {index.dtype.torch_name}")
    return TensorSpec(self.dtype, index.shape)


@shape_rule("aten.put.default")
def put(self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> TensorSpec:
    if index.dtype is not ScalarType.LONG:
        raise ValueError(f"index must be int64, got {index.dtype.torch_name}")
    if self.dtype is not source.dtype:
        raise ValueError(f"self is {self.dtype.torch_name} but source is {source.dtype.torch_name}")
    if element_count(index.shape) != element_count(source.shape):
        raise ValueError(f"index {list(index.shape)} and source {list(source.shape)} differ in number of elements")
    return TensorSpec(self.dtype, self.shape)


@shape_rule("aten.masked_scatter.default")
def masked_scatter(self: Tensor, mask: Tensor, source: Tensor) -> TensorSpec:
    if mask.dtype is not ScalarType.BOOL:
        raise ValueError(f"the mask must be bool, got {mask.dtype.torch_name}")
    if self.dtype is not source.dtype:
        raise ValueError(f"self is {self.dtype.torch_name} but source is {source.dtype.torch_name}")
    return TensorSpec(self.dtype, broadcast_shapes(self.shape, mask.shape))


@shape_rule("aten.nonzero.default")
def nonzero(self: Tensor) -> TensorSpec:
    raise DataDependentError("the number of nonzero elements depends on the data")


@shape_rule("aten.masked_select.default")
def masked_select(self: Tensor, mask: Tensor) -> TensorSpec:
    raise DataDependentError("the number of elements that a mask selects depends on the data")


@shape_rule("aten.select_scatter.default")
def select_scatter(self: Tensor, src: Tensor, dim: int, index: int) -> TensorSpec:
    axis = normalize_axis(dim, len(self.shape))
    size = self.shape[axis]
    if not (-size <= index < size):
        raise ValueError(f"index {index} is out of range for axis {axis} of {size} elements")
    return _written(self, src, (*self.shape[:axis], *self.shape[axis + 1 :]))


@shape_rule("aten.slice_scatter.default")
def slice_scatter(
    self: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> TensorSpec:
    axis = normalize_axis(dim, len(self.shape))
    if step <= 0:
        raise ValueError(f"step must be positive, got {step}")
    count = len(range(*slice(start, end, step).indices(self.shape[axis])))
    return _written(self, src, (*self.shape[:axis], count, *self.shape[axis + 1 :]))


@shape_rule("aten.diagonal_scatter.default")
def diagonal_scatter(self: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> TensorSpec:
    return _written(self, src, diagonal_shape(self.shape, offset, dim1, dim2))


@shape_rule("aten.as_strided_scatter.default")
def as_strided_scatter(
    self: Tensor, src: Tensor, size: Shape, stride: Shape, storage_offset: int | None = None
) -> TensorSpec:
    check_window(self.shape, size, stride, storage_offset or 0)
    return _written(self, src, size)


def _written(self: Tensor, src: Tensor, place: Shape) -> TensorSpec:
    if broadcast_shapes(src.shape, place) != place:
        raise ValueError(f"src must broadcast to {list(place)}, got {list(src.shape)}")
    return TensorSpec(self.dtype, self.shape)


def diagonal_shape(shape: Shape, offset: int, dim1: int, dim2: int) -> Shape:
    """The shape of a diagonal: both axes go, the diagonal comes last."""
    first, second = normalize_axis(dim1, len(shape)), normalize_axis(dim2, len(shape))
    if first == second:
        raise ValueError(f"a diagonal needs two different axes, got {dim1} twice")
    rows, columns = shape[first], shape[second]
    length = max(min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns), 0)
    return (*(size for axis, size in enumerate(shape) if axis not in (first, second)), length)


@shape_rule("aten.nonzero_static.default")
def nonzero_static(self: Tensor, *, size: int, fill_value: int = -1) -> TensorSpec:
    require(size >= 0, f"size must not be negative, got {size}")
    return TensorSpec(ScalarType.LONG, (size, len(self.shape)))


@shape_rule("aten.bincount.default")
def bincount(self: Tensor, weights: Tensor | None = None, minlength: int = 0) -> TensorSpec:
    require(len(self.shape) == 1, f"expected one axis, got {list(self.shape)}")
    if self.dtype.is_floating_point or self.dtype is ScalarType.BOOL:
        raise ValueError(f"self must be of an integer type, got {self.dtype.torch_name}")
    if weights is not None:
        require(weights.shape == self.shape, f"weights {list(weights.shape)} do not fit self {list(self.shape)}")
    raise DataDependentError("the number of bins depends on the data")


@shape_rule("aten.embedding_renorm.default")
def embedding_renorm(self: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> TensorSpec:
    require(len(self.shape) == 2, f"expected a table of rows, got {list(self.shape)}")
    return TensorSpec(self.dtype, self.shape)
