"""Shape rules of the family `matmul`: products of matrices and vectors, and factors of matrices."""

from __future__ import annotations

from ptn_format.dtypes import ScalarType

from ptn_runtime.shapes import Number, Tensor, TensorSpec, shape_rule
from ptn_runtime.shapes._broadcast import broadcast_shapes, normalize_axis, require

Shape = tuple[int, ...]


def _same_dtype(*tensors: Tensor) -> ScalarType:
    dtype = tensors[0].dtype
    for tensor in tensors[1:]:
        if tensor.dtype is not dtype:
            raise ValueError(f"the factors must have one dtype, got {dtype.torch_name} and {tensor.dtype.torch_name}")
    return dtype


def _require_rank(rank: int, **tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if len(tensor.shape) != rank:
            raise ValueError(f"{name} must have {rank} axes, got {list(tensor.shape)}")


def _require_inner(a: Shape, b: Shape, inner: int, other: int) -> None:
    if inner != other:
        raise ValueError(f"{list(a)} and {list(b)} cannot be multiplied: {inner} and {other} elements meet")


def _expands_to(shape: Shape, target: Shape) -> bool:
    return broadcast_shapes(shape, target) == target


@shape_rule("aten.mm.default", "aten.bmm.default")
def mm(self: Tensor, mat2: Tensor) -> TensorSpec:
    a, b = self.shape, mat2.shape
    if not (len(a) == len(b) and len(a) in (2, 3)):
        raise ValueError(f"expected two matrices or two batches, got {list(a)} and {list(b)}")
    if a[:-2] != b[:-2]:
        raise ValueError(f"the batches differ: {list(a)} and {list(b)}")
    _require_inner(a, b, a[-1], b[-2])
    return TensorSpec(_same_dtype(self, mat2), (*a[:-1], b[-1]))


@shape_rule("aten.mv.default")
def mv(self: Tensor, vec: Tensor) -> TensorSpec:
    _require_rank(2, self=self)
    _require_rank(1, vec=vec)
    _require_inner(self.shape, vec.shape, self.shape[1], vec.shape[0])
    return TensorSpec(_same_dtype(self, vec), self.shape[:1])


@shape_rule("aten.dot.default")
def dot(self: Tensor, tensor: Tensor) -> TensorSpec:
    _require_rank(1, self=self, tensor=tensor)
    _require_inner(self.shape, tensor.shape, self.shape[0], tensor.shape[0])
    return TensorSpec(_same_dtype(self, tensor), ())


def matmul_shape(a: Shape, b: Shape) -> Shape:
    """The shape of `matmul`: vectors lose their axis, batches broadcast.

    Raises:
        ValueError: the shapes do not fit.
    """
    if not (bool(a) and bool(b)):
        raise ValueError(f"both factors need at least one axis, got {list(a)} and {list(b)}")
    _require_inner(a, b, a[-1], b[-2] if len(b) > 1 else b[0])
    batch = broadcast_shapes(a[:-2], b[:-2])
    return (*batch, *(a[-2:-1]), *(b[-1:] if len(b) > 1 else ()))


@shape_rule("aten.matmul.default")
def matmul(self: Tensor, other: Tensor) -> TensorSpec:
    return TensorSpec(_same_dtype(self, other), matmul_shape(self.shape, other.shape))


@shape_rule("aten.linear.default")
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> TensorSpec:
    dtype = _same_dtype(input, weight) if bias is None else _same_dtype(input, weight, bias)
    if len(weight.shape) not in (1, 2):
        raise ValueError(f"weight must have 1 or 2 axes, got {list(weight.shape)}")
    require(bool(input.shape), "input must have at least one axis")
    _require_inner(input.shape, weight.shape, input.shape[-1], weight.shape[-1])
    shape = (*input.shape[:-1], *weight.shape[:-1])
    if bias is not None and not _expands_to(bias.shape, shape):
        raise ValueError(f"bias {list(bias.shape)} does not broadcast to {list(shape)}")
    return TensorSpec(dtype, shape)


def _add_to_product(self: Tensor, a: Tensor, b: Tensor, shape: Shape) -> TensorSpec:
    if not _expands_to(self.shape, shape):
        raise ValueError(f"self {list(self.shape)} does not broadcast to {list(shape)}")
    return TensorSpec(_same_dtype(self, a, b), shape)


@shape_rule("aten.addmm.default")
def addmm(self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> TensorSpec:
    _require_rank(2, mat1=mat1, mat2=mat2)
    _require_inner(mat1.shape, mat2.shape, mat1.shape[1], mat2.shape[0])
    return _add_to_product(self, mat1, mat2, (mat1.shape[0], mat2.shape[1]))


@shape_rule("aten.baddbmm.default")
def baddbmm(self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> TensorSpec:
    _require_rank(3, batch1=batch1, batch2=batch2)
    return _add_to_product(self, batch1, batch2, mm(batch1, batch2).shape)


@shape_rule("aten.addbmm.default")
def addbmm(self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> TensorSpec:
    _require_rank(3, batch1=batch1, batch2=batch2)
    return _add_to_product(self, batch1, batch2, mm(batch1, batch2).shape[1:])


@shape_rule("aten.addmv.default")
def addmv(self: Tensor, mat: Tensor, vec: Tensor, *, beta: Number = 1, alpha: Number = 1) -> TensorSpec:
    return _add_to_product(self, mat, vec, mv(mat, vec).shape)


@shape_rule("aten.addr.default")
def addr(self: Tensor, vec1: Tensor, vec2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> TensorSpec:
    _require_rank(1, vec1=vec1, vec2=vec2)
    return _add_to_product(self, vec1, vec2, (*vec1.shape, *vec2.shape))


@shape_rule("aten._grouped_mm.default")
def grouped_mm(
    self: Tensor,
    mat2: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: ScalarType | None = None,
) -> TensorSpec:
    """The products of the groups of an axis that ends at `offs`: of rows, of columns, or of what is summed over."""
    dtype, a, b = _same_dtype(self, mat2), self.shape, mat2.shape
    if not dtype.is_floating_point:
        raise ValueError(f"the factors must be floating-point numbers, got {dtype.torch_name}")
    if bias is not None:
        raise ValueError("bias must be None, as in PyTorch, which does not add one yet")
    if not {len(a), len(b)} <= {2, 3}:
        raise ValueError(f"the factors must have 2 or 3 axes, got {list(a)} and {list(b)}")
    _require_inner(a, b, a[-1], b[-2])
    grouped = {(2, 3): b[:1], (3, 2): a[:1], (3, 3): a[:1], (2, 2): offs.shape if offs is not None else ()}
    groups = grouped[len(a), len(b)]
    if (offs is None) != (len(a) == len(b) == 3):
        raise ValueError(f"offs must be given where a factor has 2 axes, and only there: {list(a)}, {list(b)}")
    if offs is not None:
        if offs.dtype not in (ScalarType.INT, ScalarType.LONG):
            raise ValueError(f"offs must be int32, got {offs.dtype.torch_name}")
        if offs.shape != groups or len(groups) != 1:
            raise ValueError(f"offs must have one element for each of {list(groups)} groups, got {list(offs.shape)}")
    elif a[0] != b[0]:
        raise ValueError(f"the batches differ: {list(a)} and {list(b)}")
    whole = len(a) == len(b)
    return TensorSpec(out_dtype or dtype, (*(groups if whole else ()), a[-2], b[-1]))


def _distance_shape(x1: Tensor, x2: Tensor) -> Shape:
    a, b = x1.shape, x2.shape
    if not (len(a) >= 2 and len(b) >= 2):
        raise ValueError(f"expected sets of vectors, got {list(a)} and {list(b)}")
    if a[-1] != b[-1]:
        raise ValueError(f"vectors of {a[-1]} and of {b[-1]} elements have no distance")
    return (*broadcast_shapes(a[:-2], b[:-2]), a[-2], b[-2])


@shape_rule("aten._cdist_forward.default")
def cdist_forward(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> TensorSpec:
    return TensorSpec(_same_dtype(x1, x2), _distance_shape(x1, x2))


@shape_rule("aten.cdist.default")
def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: int | None = None) -> TensorSpec:
    return TensorSpec(_same_dtype(x1, x2), _distance_shape(x1, x2))


@shape_rule("aten._pdist_forward.default", "aten.pdist.default")
def pdist(self: Tensor, p: float = 2.0) -> TensorSpec:
    _require_rank(2, self=self)
    count = self.shape[0]
    return TensorSpec(self.dtype, (count * (count - 1) // 2,))


@shape_rule("aten.linalg_cross.default")
def linalg_cross(self: Tensor, other: Tensor, *, dim: int = -1) -> TensorSpec:
    shape = broadcast_shapes(self.shape, other.shape)
    if not (bool(shape) and shape[dim] == 3):
        raise ValueError(f"axis {dim} of {list(shape)} must have 3 elements")
    return TensorSpec(_same_dtype(self, other), shape)


# --- Fourier transforms -----------------------------------------------------------------------------------------
# The format has no complex types: a complex tensor is a real one whose last axis holds real and imaginary part.


def _transformed(dtype: ScalarType, shape: Shape, dim: Shape, normalization: int) -> Shape:
    """The axes that are transformed, counted from the front; `shape` is that of the logical elements."""
    if dtype not in (ScalarType.FLOAT, ScalarType.DOUBLE):
        raise ValueError(f"transforms take float32 and float64, got {dtype.torch_name}")
    if normalization not in (0, 1, 2):
        raise ValueError(f"normalization must be 0 (none), 1 (by root n) or 2 (by n), got {normalization}")
    axes = tuple(normalize_axis(axis, len(shape)) for axis in dim)
    require(bool(shape) and bool(axes) and len(set(axes)) == len(axes), f"dim {list(dim)} must be different axes")
    if min(shape[axis] for axis in axes) == 0:
        raise ValueError(f"the axes {list(axes)} of {list(shape)} must not be empty")
    return axes


def _complex_shape(self: Tensor) -> Shape:
    if not self.shape or self.shape[-1] != 2:
        raise ValueError(f"complex numbers have a last axis of 2, got {list(self.shape)}")
    return self.shape[:-1]


@shape_rule("aten._fft_r2c.default")
def fft_r2c(self: Tensor, dim: Shape, normalization: int, onesided: bool) -> TensorSpec:
    axes = _transformed(self.dtype, self.shape, dim, normalization)
    sizes = list(self.shape)
    if onesided:
        sizes[axes[-1]] = sizes[axes[-1]] // 2 + 1
    return TensorSpec(self.dtype, (*sizes, 2))


@shape_rule("aten._fft_c2c.default")
def fft_c2c(self: Tensor, dim: Shape, normalization: int, forward: bool) -> TensorSpec:
    _transformed(self.dtype, _complex_shape(self), dim, normalization)
    return TensorSpec(self.dtype, self.shape)


@shape_rule("aten._fft_c2r.default")
def fft_c2r(self: Tensor, dim: Shape, normalization: int, last_dim_size: int) -> TensorSpec:
    sizes = list(_complex_shape(self))
    axes = _transformed(self.dtype, tuple(sizes), dim, normalization)
    if last_dim_size < 1:
        raise ValueError(f"last_dim_size must be positive, got {last_dim_size}")
    if sizes[axes[-1]] != last_dim_size // 2 + 1:
        raise ValueError(f"{sizes[axes[-1]]} frequencies do not make {last_dim_size} elements")
    sizes[axes[-1]] = last_dim_size
    return TensorSpec(self.dtype, tuple(sizes))


# --- factors of matrices ----------------------------------------------------------------------------------------


def _matrices(A: Tensor, *, square: bool = True) -> Shape:
    """The batch axes of matrices that can be factored."""
    if A.dtype not in (ScalarType.FLOAT, ScalarType.DOUBLE):
        raise ValueError(f"matrices of float32 or float64 can be factored, not of {A.dtype.torch_name}")
    require(len(A.shape) >= 2, f"expected matrices, got {list(A.shape)}")
    if square and A.shape[-1] != A.shape[-2]:
        raise ValueError(f"expected square matrices, got {list(A.shape)}")
    return A.shape[:-2]


def _pivots(A: Tensor) -> TensorSpec:
    return TensorSpec(ScalarType.INT, (*A.shape[:-2], min(A.shape[-2:])))


def _like(A: Tensor) -> TensorSpec:
    return TensorSpec(A.dtype, A.shape)


@shape_rule("aten.linalg_lu_factor_ex.default")
def linalg_lu_factor_ex(
    A: Tensor, *, pivot: bool = True, check_errors: bool = False
) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    batch = _matrices(A, square=False)
    return _like(A), _pivots(A), TensorSpec(ScalarType.INT, batch)


@shape_rule("aten.linalg_inv_ex.default")
def linalg_inv_ex(A: Tensor, *, check_errors: bool = False) -> tuple[TensorSpec, TensorSpec]:
    return _like(A), TensorSpec(ScalarType.INT, _matrices(A))


@shape_rule("aten._linalg_det.default")
def linalg_det(A: Tensor) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    return TensorSpec(A.dtype, _matrices(A)), _like(A), _pivots(A)


@shape_rule("aten._linalg_slogdet.default")
def linalg_slogdet(A: Tensor) -> tuple[TensorSpec, TensorSpec, TensorSpec, TensorSpec]:
    number = TensorSpec(A.dtype, _matrices(A))
    return number, number, _like(A), _pivots(A)


@shape_rule("aten._linalg_solve_ex.default")
def linalg_solve_ex(
    A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False
) -> tuple[TensorSpec, TensorSpec, TensorSpec, TensorSpec]:
    batch = _matrices(A)
    if B.dtype is not A.dtype:
        raise ValueError(f"A is {A.dtype.torch_name} but B is {B.dtype.torch_name}")
    vector = len(B.shape) == 1 or (len(B.shape) == len(A.shape) - 1 and B.shape == A.shape[:-1])
    require(left or not vector, "vectors can only stand on the right")
    rows = B.shape[-1] if vector or not left else B.shape[-2]
    if rows != A.shape[-1]:
        raise ValueError(f"A {list(A.shape)} and B {list(B.shape)} do not fit together")
    if vector:
        shape = (*broadcast_shapes(batch, B.shape[:-1]), rows)
    else:
        shape = (*broadcast_shapes(batch, B.shape[:-2]), *B.shape[-2:])
    return TensorSpec(A.dtype, shape), _like(A), _pivots(A), TensorSpec(ScalarType.INT, batch)


def _solution(A: Tensor, B: Tensor, *, left: bool = True) -> TensorSpec:
    batch = broadcast_shapes(_matrices(A), _matrices(B, square=False))
    if A.shape[-1] != B.shape[-2 if left else -1]:
        raise ValueError(f"A {list(A.shape)} and B {list(B.shape)} do not fit together")
    return TensorSpec(A.dtype, (*batch, *B.shape[-2:]))


@shape_rule("aten.linalg_lu_solve.default")
def linalg_lu_solve(LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False) -> TensorSpec:
    require(pivots.shape == LU.shape[:-1], f"LU {list(LU.shape)} and pivots {list(pivots.shape)} do not fit")
    return _solution(LU, B, left=left)


@shape_rule("aten.linalg_solve_triangular.default")
def linalg_solve_triangular(
    self: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> TensorSpec:
    return _solution(self, B, left=left)


@shape_rule("aten.triangular_solve.default")
def triangular_solve(
    self: Tensor, A: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[TensorSpec, TensorSpec]:
    solution = _solution(A, self)
    return solution, TensorSpec(A.dtype, (*solution.shape[:-2], *A.shape[-2:]))


@shape_rule("aten.linalg_cholesky_ex.default")
def linalg_cholesky_ex(
    self: Tensor, *, upper: bool = False, check_errors: bool = False
) -> tuple[TensorSpec, TensorSpec]:
    return _like(self), TensorSpec(ScalarType.INT, _matrices(self))


@shape_rule("aten.cholesky.default", "aten.cholesky_inverse.default")
def cholesky(self: Tensor, upper: bool = False) -> TensorSpec:
    _matrices(self)
    return _like(self)


@shape_rule("aten.cholesky_solve.default")
def cholesky_solve(self: Tensor, input2: Tensor, upper: bool = False) -> TensorSpec:
    return _solution(input2, self)


@shape_rule("aten.linalg_qr.default")
def linalg_qr(A: Tensor, mode: str = "reduced") -> tuple[TensorSpec, TensorSpec]:
    batch = _matrices(A, square=False)
    rows, columns = A.shape[-2:]
    if mode not in ("reduced", "complete", "r"):
        raise ValueError(f"mode must be reduced, complete or r, got {mode!r}")
    inner = rows if mode == "complete" else min(rows, columns)
    q = (0,) if mode == "r" else (*batch, rows, inner)
    return TensorSpec(A.dtype, q), TensorSpec(A.dtype, (*batch, inner, columns))


@shape_rule("aten._linalg_svd.default")
def linalg_svd(
    A: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    batch = _matrices(A, square=False)
    rows, columns = A.shape[-2:]
    count = min(rows, columns)
    u = (*batch, rows, rows if full_matrices else count) if compute_uv else (0,)
    vh = (*batch, columns if full_matrices else count, columns) if compute_uv else (0,)
    return TensorSpec(A.dtype, u), TensorSpec(A.dtype, (*batch, count)), TensorSpec(A.dtype, vh)


@shape_rule("aten._linalg_eigh.default")
def linalg_eigh(A: Tensor, UPLO: str = "L", compute_v: bool = True) -> tuple[TensorSpec, TensorSpec]:
    batch = _matrices(A)
    return TensorSpec(A.dtype, (*batch, A.shape[-1])), TensorSpec(A.dtype, A.shape if compute_v else (0,))


@shape_rule("aten.linalg_pinv.atol_rtol_tensor")
def linalg_pinv(
    self: Tensor, *, atol: Tensor | None = None, rtol: Tensor | None = None, hermitian: bool = False
) -> TensorSpec:
    batch = _matrices(self, square=hermitian)
    return TensorSpec(self.dtype, (*batch, self.shape[-1], self.shape[-2]))
