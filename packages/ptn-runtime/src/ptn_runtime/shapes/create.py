"""Shape rules of the family `create`: tensors made from numbers."""

from __future__ import annotations

import math

from ptn_format.dtypes import ScalarType

from ptn_runtime.shapes import DataDependentError, Number, Tensor, TensorSpec, shape_rule
from ptn_runtime.shapes._broadcast import broadcast, require
from ptn_runtime.shapes._promotion import number_type

Sizes = tuple[int, ...]
FLOAT = ScalarType.FLOAT


def _made(size: Sizes, dtype: ScalarType | None, default: ScalarType = FLOAT) -> TensorSpec:
    if min(size, default=0) < 0:
        raise ValueError(f"sizes must not be negative, got {list(size)}")
    return TensorSpec(default if dtype is None else dtype, tuple(size))


@shape_rule("aten.full.default")
def full(
    size: Sizes,
    fill_value: Number,
    *,
    dtype: ScalarType | None = None,
    layout: str | None = None,
    device: str | None = None,
    pin_memory: bool | None = None,
) -> TensorSpec:
    return _made(size, dtype, number_type(fill_value))


@shape_rule("aten.zeros.default", "aten.ones.default")
def zeros(
    size: Sizes,
    *,
    dtype: ScalarType | None = None,
    layout: str | None = None,
    device: str | None = None,
    pin_memory: bool | None = None,
) -> TensorSpec:
    return _made(size, dtype)


@shape_rule("aten.empty.memory_format")
def empty(
    size: Sizes,
    *,
    dtype: ScalarType | None = None,
    layout: str | None = None,
    device: str | None = None,
    pin_memory: bool | None = None,
    memory_format: str | None = None,
) -> TensorSpec:
    return _made(size, dtype)


@shape_rule("aten.empty_strided.default")
def empty_strided(
    size: Sizes,
    stride: Sizes,
    *,
    dtype: ScalarType | None = None,
    layout: str | None = None,
    device: str | None = None,
    pin_memory: bool | None = None,
) -> TensorSpec:
    return _made(size, dtype)


@shape_rule("aten.full_like.default")
def full_like(
    self: Tensor,
    fill_value: Number,
    *,
    dtype: ScalarType | None = None,
    layout: str | None = None,
    device: str | None = None,
    pin_memory: bool | None = None,
    memory_format: str | None = None,
) -> TensorSpec:
    return _made(self.shape, dtype, self.dtype)


@shape_rule("aten.zeros_like.default", "aten.ones_like.default", "aten.empty_like.default")
def zeros_like(
    self: Tensor,
    *,
    dtype: ScalarType | None = None,
    layout: str | None = None,
    device: str | None = None,
    pin_memory: bool | None = None,
    memory_format: str | None = None,
) -> TensorSpec:
    return _made(self.shape, dtype, self.dtype)


@shape_rule("aten.new_zeros.default", "aten.new_ones.default", "aten.new_empty.default")
def new_zeros(
    self: Tensor,
    size: Sizes,
    *,
    dtype: ScalarType | None = None,
    layout: str | None = None,
    device: str | None = None,
    pin_memory: bool | None = None,
) -> TensorSpec:
    return _made(size, dtype, self.dtype)


@shape_rule("aten.new_empty_strided.default")
def new_empty_strided(
    self: Tensor,
    size: Sizes,
    stride: Sizes,
    *,
    dtype: ScalarType | None = None,
    layout: str | None = None,
    device: str | None = None,
    pin_memory: bool | None = None,
) -> TensorSpec:
    return _made(size, dtype, self.dtype)


@shape_rule("aten.new_full.default")
def new_full(
    self: Tensor,
    size: Sizes,
    fill_value: Number,
    *,
    dtype: ScalarType | None = None,
    layout: str | None = None,
    device: str | None = None,
    pin_memory: bool | None = None,
) -> TensorSpec:
    return _made(size, dtype, self.dtype)


@shape_rule("aten.scalar_tensor.default")
def scalar_tensor(
    s: Number,
    *,
    dtype: ScalarType | None = None,
    layout: str | None = None,
    device: str | None = None,
    pin_memory: bool | None = None,
) -> TensorSpec:
    return _made((), dtype)


@shape_rule("aten.fill.Scalar", "aten.fill.Tensor")
def fill(self: Tensor, value: Tensor | Number) -> TensorSpec:
    if isinstance(value, TensorSpec) and value.shape:
        raise ValueError(f"the value must be a number or a tensor of no axes, got {list(value.shape)}")
    return TensorSpec(self.dtype, self.shape)


def _arange(start: Number, end: Number, step: Number, dtype: ScalarType | None) -> TensorSpec:
    numbers = []
    for number in (start, end, step):
        if not isinstance(number, bool | int | float):
            raise DataDependentError("the length of a range depends on its ends")
        numbers.append(number)
    if dtype is ScalarType.LONG:  # PyTorch cuts the ends off first, for this dtype alone
        numbers = [int(number) if math.isfinite(number) else number for number in numbers]
    first, last, by = numbers
    require(by != 0, "step must not be 0")
    if not (math.isfinite(first) and math.isfinite(last)):
        raise ValueError(f"the ends must be finite, got {first} and {last}")
    if not ((last >= first) if by > 0 else (last <= first)):
        raise ValueError(f"step {by} leads away from {last}, starting at {first}")
    if all(isinstance(number, int) for number in numbers):
        count = -((first - last) // by)
        default = ScalarType.LONG
    else:
        count = math.ceil((last - first) / by)
        default = FLOAT
    return TensorSpec(default if dtype is None else dtype, (int(count),))


@shape_rule("aten.arange.start_step")
def arange_start_step(
    start: Number,
    end: Number,
    step: Number = 1,
    *,
    dtype: ScalarType | None = None,
    layout: str | None = None,
    device: str | None = None,
    pin_memory: bool | None = None,
) -> TensorSpec:
    return _arange(start, end, step, dtype)


@shape_rule("aten.arange.start")
def arange_start(
    start: Number,
    end: Number,
    *,
    dtype: ScalarType | None = None,
    layout: str | None = None,
    device: str | None = None,
    pin_memory: bool | None = None,
) -> TensorSpec:
    return _arange(start, end, 1, dtype)


@shape_rule("aten.arange.default")
def arange(
    end: Number,
    *,
    dtype: ScalarType | None = None,
    layout: str | None = None,
    device: str | None = None,
    pin_memory: bool | None = None,
) -> TensorSpec:
    return _arange(0, end, 1, dtype)


@shape_rule("aten.linspace.default")
def linspace(
    start: Number,
    end: Number,
    steps: int,
    *,
    dtype: ScalarType | None = None,
    layout: str | None = None,
    device: str | None = None,
    pin_memory: bool | None = None,
) -> TensorSpec:
    return _made((steps,), dtype)


@shape_rule("aten.eye.default")
def eye(
    n: int,
    *,
    dtype: ScalarType | None = None,
    layout: str | None = None,
    device: str | None = None,
    pin_memory: bool | None = None,
) -> TensorSpec:
    return _made((n, n), dtype)


@shape_rule("aten.eye.m")
def eye_m(
    n: int,
    m: int,
    *,
    dtype: ScalarType | None = None,
    layout: str | None = None,
    device: str | None = None,
    pin_memory: bool | None = None,
) -> TensorSpec:
    return _made((n, m), dtype)


def triangle_count(row: int, col: int, offset: int) -> int:
    """Number of places on and below the diagonal `offset` of a `row` x `col` matrix."""
    if row < 0 or col < 0:
        raise ValueError(f"a matrix of {row} x {col} has no triangle; sizes must not be negative")

    def before(place: int) -> int:
        """Sum of min(max(x, 0), col) over all x < place."""
        ramp = min(max(place, 1), col + 1)
        return ramp * (ramp - 1) // 2 + max(place - 1 - col, 0) * col

    return before(offset + 1 + row) - before(offset + 1)


@shape_rule("aten.tril_indices.default")
def tril_indices(
    row: int,
    col: int,
    offset: int = 0,
    *,
    dtype: ScalarType | None = ScalarType.LONG,
    layout: str | None = None,
    device: str | None = None,
    pin_memory: bool | None = None,
) -> TensorSpec:
    return _made((2, triangle_count(row, col, offset)), dtype, ScalarType.LONG)


@shape_rule("aten.triu_indices.default")
def triu_indices(
    row: int,
    col: int,
    offset: int = 0,
    *,
    dtype: ScalarType | None = ScalarType.LONG,
    layout: str | None = None,
    device: str | None = None,
    pin_memory: bool | None = None,
) -> TensorSpec:
    return _made((2, row * col - triangle_count(row, col, offset - 1)), dtype, ScalarType.LONG)


@shape_rule("aten.rand.default", "aten.randn.default", deterministic=False)
def rand(
    size: Sizes,
    *,
    dtype: ScalarType | None = None,
    layout: str | None = None,
    device: str | None = None,
    pin_memory: bool | None = None,
) -> TensorSpec:
    return _made(size, dtype)


@shape_rule("aten.rand_like.default", "aten.randn_like.default", deterministic=False)
def rand_like(
    self: Tensor,
    *,
    dtype: ScalarType | None = None,
    layout: str | None = None,
    device: str | None = None,
    pin_memory: bool | None = None,
    memory_format: str | None = None,
) -> TensorSpec:
    return _made(self.shape, dtype, self.dtype)


@shape_rule("aten.randperm.default", deterministic=False)
def randperm(
    n: int,
    *,
    dtype: ScalarType | None = ScalarType.LONG,
    layout: str | None = None,
    device: str | None = None,
    pin_memory: bool | None = None,
) -> TensorSpec:
    return _made((n,), dtype, ScalarType.LONG)


@shape_rule("aten.randint.default", deterministic=False)
def randint(
    high: int,
    size: Sizes,
    *,
    dtype: ScalarType | None = ScalarType.LONG,
    layout: str | None = None,
    device: str | None = None,
    pin_memory: bool | None = None,
) -> TensorSpec:
    return _made(size, dtype, ScalarType.LONG)


@shape_rule("aten.randint.low", deterministic=False)
def randint_low(
    low: int,
    high: int,
    size: Sizes,
    *,
    dtype: ScalarType | None = ScalarType.LONG,
    layout: str | None = None,
    device: str | None = None,
    pin_memory: bool | None = None,
) -> TensorSpec:
    return _made(size, dtype, ScalarType.LONG)


@shape_rule("aten.randint_like.default", deterministic=False)
def randint_like(
    self: Tensor,
    high: int,
    *,
    dtype: ScalarType | None = None,
    layout: str | None = None,
    device: str | None = None,
    pin_memory: bool | None = None,
    memory_format: str | None = None,
) -> TensorSpec:
    return _made(self.shape, dtype, self.dtype)


@shape_rule("aten.randint_like.low_dtype", deterministic=False)
def randint_like_low(
    self: Tensor,
    low: int,
    high: int,
    *,
    dtype: ScalarType | None = None,
    layout: str | None = None,
    device: str | None = None,
    pin_memory: bool | None = None,
    memory_format: str | None = None,
) -> TensorSpec:
    return _made(self.shape, dtype, self.dtype)


@shape_rule("aten.empty_permuted.default")
def empty_permuted(
    size: Sizes,
    physical_layout: Sizes,
    *,
    dtype: ScalarType | None = None,
    layout: str | None = None,
    device: str | None = None,
    pin_memory: bool | None = None,
) -> TensorSpec:
    return _made(size, dtype)


# --- random numbers in the place of a tensor's ------------------------------------------------------------------


def _refilled(self: Tensor) -> TensorSpec:
    if not self.dtype.is_floating_point:
        raise ValueError(f"self must be floating point, got {self.dtype.torch_name}")
    return TensorSpec(self.dtype, self.shape)


def _require_probability(p: float) -> None:
    require(0 <= p <= 1, f"p must lie between 0 and 1, got {p}")


@shape_rule("aten.uniform.default", deterministic=False)
def uniform(self: Tensor, from_: float = 0.0, to: float = 1.0) -> TensorSpec:
    require(from_ <= to, f"from = {from_} must not be larger than to = {to}")
    return _refilled(self)


@shape_rule("aten.normal_functional.default", deterministic=False)
def normal_functional(self: Tensor, mean: float = 0.0, std: float = 1.0) -> TensorSpec:
    require(std >= 0, f"std must not be negative, got {std}")
    return _refilled(self)


@shape_rule("aten.normal.Tensor_Tensor", deterministic=False)
def normal_tensors(mean: Tensor, std: Tensor) -> TensorSpec:
    return TensorSpec(mean.dtype, broadcast(mean, std))


@shape_rule("aten.normal.Tensor_float", deterministic=False)
def normal_mean(mean: Tensor, std: float = 1.0) -> TensorSpec:
    return normal_functional(mean, 0.0, std)


@shape_rule("aten.normal.float_Tensor", deterministic=False)
def normal_std(mean: float, std: Tensor) -> TensorSpec:
    return _refilled(std)


@shape_rule("aten.normal.float_float", deterministic=False)
def normal_size(
    mean: float,
    std: float,
    size: Sizes,
    *,
    dtype: ScalarType | None = None,
    layout: str | None = None,
    device: str | None = None,
    pin_memory: bool | None = None,
) -> TensorSpec:
    require(std >= 0, f"std must not be negative, got {std}")
    return _made(size, dtype)


@shape_rule("aten.log_normal.default", deterministic=False)
def log_normal(self: Tensor, mean: float = 1.0, std: float = 2.0) -> TensorSpec:
    require(std > 0, f"std must be positive, got {std}")
    return _refilled(self)


@shape_rule("aten.exponential.default", deterministic=False)
def exponential(self: Tensor, lambd: float = 1.0) -> TensorSpec:
    require(lambd > 0, f"lambd must be positive, got {lambd}")
    return _refilled(self)


@shape_rule("aten.cauchy.default", deterministic=False)
def cauchy(self: Tensor, median: float = 0.0, sigma: float = 1.0) -> TensorSpec:
    require(sigma > 0, f"sigma must be positive, got {sigma}")
    return _refilled(self)


@shape_rule("aten.geometric.default", deterministic=False)
def geometric(self: Tensor, p: float) -> TensorSpec:
    require(0 < p < 1, f"p must lie between 0 and 1, got {p}")
    return TensorSpec(self.dtype, self.shape)


@shape_rule("aten.bernoulli.default", deterministic=False)
def bernoulli(self: Tensor) -> TensorSpec:
    return _refilled(self)


@shape_rule("aten.bernoulli.p", deterministic=False)
def bernoulli_p(self: Tensor, p: float) -> TensorSpec:
    _require_probability(p)
    return TensorSpec(self.dtype, self.shape)


@shape_rule("aten.bernoulli.Tensor", deterministic=False)
def bernoulli_tensor(self: Tensor, p: Tensor) -> TensorSpec:
    require(broadcast(self, p) == self.shape, f"p {list(p.shape)} does not fit self {list(self.shape)}")
    return TensorSpec(self.dtype, self.shape)


@shape_rule("aten.random.default", deterministic=False)
def random(self: Tensor) -> TensorSpec:
    return TensorSpec(self.dtype, self.shape)


@shape_rule("aten.random.to", deterministic=False)
def random_to(self: Tensor, to: int) -> TensorSpec:
    require(to > 0, f"to must be positive, got {to}")
    return TensorSpec(self.dtype, self.shape)


@shape_rule("aten.random.from", deterministic=False)
def random_from(self: Tensor, from_: int, to: int | None) -> TensorSpec:
    if to is not None:
        require(from_ < to, f"from = {from_} must be smaller than to = {to}")
    return TensorSpec(self.dtype, self.shape)


@shape_rule("aten.multinomial.default", deterministic=False)
def multinomial(self: Tensor, num_samples: int, replacement: bool = False) -> TensorSpec:
    require(len(self.shape) in (1, 2), f"expected probabilities of one or two axes, got {list(self.shape)}")
    _refilled(self)
    require(num_samples > 0, f"num_samples must be positive, got {num_samples}")
    if not replacement and num_samples > self.shape[-1]:
        raise ValueError(f"{num_samples} samples without replacement cannot come from {self.shape[-1]} categories")
    return TensorSpec(ScalarType.LONG, (*self.shape[:-1], num_samples))
