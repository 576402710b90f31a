"""Numpy kernels of the family `create`."""

from __future__ import annotations

from typing import Any

import numpy as np
from ml_dtypes import finfo
from ptn_format.dtypes import ScalarType

from ptn_runtime.reference._numerics import cast, finish, number, widen, working_dtype
from ptn_runtime.reference.registry import Array, Number, Outputs, kernel

Sizes = tuple[int, ...]


def _filled(out: Outputs, value: Array | Number) -> Array:
    one = cast(value, out.dtype.numpy) if isinstance(value, np.ndarray) else number(value, out.dtype)
    return np.full(out.shape, one, out.dtype.numpy)


@kernel("aten.full.default", "aten.full_like.default", "aten.new_full.default")
def full(out: Outputs, *, fill_value: Number, **_: Any) -> Array:
    return _filled(out, fill_value)


@kernel("aten.fill.Scalar", "aten.fill.Tensor")
def fill(out: Outputs, self: Array, value: Array | Number) -> Array:
    return _filled(out, value)


@kernel("aten.scalar_tensor.default")
def scalar_tensor(out: Outputs, s: Number, **_: Any) -> Array:
    return _filled(out, s)


@kernel(
    "aten.zeros.default",
    "aten.zeros_like.default",
    "aten.new_zeros.default",
    # PyTorch leaves these uninitialised; zeros at least are the same in every run.
    "aten.empty.memory_format",
    "aten.empty_like.default",
    "aten.empty_strided.default",
    "aten.new_empty.default",
    "aten.new_empty_strided.default",
    "aten.empty_permuted.default",
)
def zeros(out: Outputs, **_: Any) -> Array:
    return np.zeros(out.shape, out.dtype.numpy)


@kernel("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default")
def ones(out: Outputs, **_: Any) -> Array:
    return np.ones(out.shape, out.dtype.numpy)


def _range(out: Outputs, start: Number, step: Number) -> Array:
    (count,) = out.shape
    if out.dtype.is_floating_point:
        return finish(float(start) + np.arange(count, dtype=np.float64) * float(step), out.dtype)
    return cast(int(start) + np.arange(count, dtype=np.int64) * int(step), out.dtype.numpy)


@kernel("aten.arange.start_step", "aten.arange.start")
def arange_start_step(out: Outputs, start: Number, end: Number, step: Number = 1, **_: Any) -> Array:
    return _range(out, start, step)


@kernel("aten.arange.default")
def arange(out: Outputs, end: Number, **_: Any) -> Array:
    return _range(out, 0, 1)


@kernel("aten.linspace.default")
def linspace(out: Outputs, start: Number, end: Number, steps: int, **_: Any) -> Array:
    if steps == 1:
        return _filled(out, start)
    kind = working_dtype(out.dtype)
    wide = kind
    if kind.kind != "f":  # integers cut the ends off first, then step in float64
        wide, start, end = np.dtype(np.float64), int(start), int(end)
    first, last = wide.type(float(start)), wide.type(float(end))
    step = (last - first) / wide.type(steps - 1)
    index = np.arange(steps).astype(wide)
    # Both halves start from their own end, so that both ends are exact.
    values = np.where(index < steps // 2, first + step * index, last - step * (steps - 1 - index))
    return finish(values, out.dtype)


@kernel("aten.eye.default", "aten.eye.m")
def eye(out: Outputs, n: int, **_: Any) -> Array:
    return np.eye(*out.shape, dtype=out.dtype.numpy)


@kernel("aten.tril_indices.default")
def tril_indices(out: Outputs, row: int, col: int, offset: int = 0, **_: Any) -> Array:
    return cast(np.stack(np.tril_indices(row, offset, col)), out.dtype.numpy)


@kernel("aten.triu_indices.default")
def triu_indices(out: Outputs, row: int, col: int, offset: int = 0, **_: Any) -> Array:
    return cast(np.stack(np.triu_indices(row, offset, col)), out.dtype.numpy)


def _random() -> np.random.Generator:
    return np.random.default_rng()


@kernel("aten.rand.default", "aten.rand_like.default")
def rand(out: Outputs, **_: Any) -> Array:
    # Whole numbers of the last place below 1, as PyTorch takes them: rounding to a narrow dtype could give 1 itself.
    steps = 2 ** (finfo(out.dtype.numpy).nmant + 1)
    return cast(np.asarray(_random().integers(0, steps, out.shape) / steps), out.dtype.numpy)


@kernel("aten.randn.default", "aten.randn_like.default")
def randn(out: Outputs, **_: Any) -> Array:
    return finish(np.asarray(_random().standard_normal(out.shape, np.float32)), out.dtype)


@kernel("aten.randperm.default")
def randperm(out: Outputs, n: int, **_: Any) -> Array:
    return cast(_random().permutation(n), out.dtype.numpy)


@kernel("aten.randint.default", "aten.randint_like.default")
def randint(out: Outputs, high: int, **_: Any) -> Array:
    return cast(np.asarray(_random().integers(0, high, out.shape)), out.dtype.numpy)


@kernel("aten.randint.low", "aten.randint_like.low_dtype")
def randint_low(out: Outputs, low: int, high: int, **_: Any) -> Array:
    return cast(np.asarray(_random().integers(low, high, out.shape)), out.dtype.numpy)


# --- random numbers in the place of a tensor's ------------------------------------------------------------------


def _rounded(out: Outputs, values: Any) -> Array:
    """Numbers in the dtype of the result; what numpy makes of no axes is an array again."""
    return finish(np.asarray(values), out.dtype)


def _converted(out: Outputs, values: Any) -> Array:
    return cast(np.asarray(values), out.dtype.numpy)


@kernel("aten.uniform.default")
def uniform(out: Outputs, self: Array, to: float = 1.0, **rest: float) -> Array:
    low = rest.get("from", 0.0)
    wide = rand(out).astype(np.float64)
    # A sum that rounds up to the end itself would leave the range.
    values = _converted(out, low + wide * (to - low))
    return np.asarray(np.where(values >= number(to, out.dtype), number(low, out.dtype), values))


@kernel(
    "aten.normal_functional.default",
    "aten.normal.Tensor_Tensor",
    "aten.normal.Tensor_float",
    "aten.normal.float_Tensor",
    "aten.normal.float_float",
)
def normal(out: Outputs, mean: Array | float = 0.0, std: Array | float = 1.0, **_: Any) -> Array:
    if isinstance(std, np.ndarray) and bool((std < 0).any()):
        raise ValueError("std holds negative numbers")
    centre, spread = (widen(x) if isinstance(x, np.ndarray) else np.float32(x) for x in (mean, std))
    return _rounded(out, centre + spread * _random().standard_normal(out.shape, np.float32))


@kernel("aten.log_normal.default")
def log_normal(out: Outputs, self: Array, mean: float = 1.0, std: float = 2.0) -> Array:
    return _rounded(out, _random().lognormal(mean, std, out.shape))


@kernel("aten.exponential.default")
def exponential(out: Outputs, self: Array, lambd: float = 1.0) -> Array:
    # Never 0 itself: programs divide by it.
    least = float(finfo(out.dtype.numpy).smallest_normal)
    return _rounded(out, np.maximum(_random().standard_exponential(out.shape) / lambd, least))


@kernel("aten.cauchy.default")
def cauchy(out: Outputs, self: Array, median: float = 0.0, sigma: float = 1.0) -> Array:
    return _rounded(out, median + sigma * _random().standard_cauchy(out.shape))


@kernel("aten.geometric.default")
def geometric(out: Outputs, self: Array, p: float) -> Array:
    return _converted(out, _random().geometric(p, out.shape))


@kernel("aten.bernoulli.default")
def bernoulli(out: Outputs, self: Array) -> Array:
    return _drawn(out, self)


@kernel("aten.bernoulli.p", "aten.bernoulli.Tensor")
def bernoulli_p(out: Outputs, self: Array, p: Array | float) -> Array:
    return _drawn(out, p)


def _drawn(out: Outputs, p: Array | float) -> Array:
    """1 with the probability `p`, else 0."""
    chance = widen(p) if isinstance(p, np.ndarray) else np.asarray(p)
    if not bool(((chance >= 0) & (chance <= 1)).all()):
        raise ValueError("a probability lies outside 0..1")
    return _converted(out, _random().random(out.shape) < chance)


@kernel("aten.random.default")
def random(out: Outputs, self: Array) -> Array:
    return _whole(out, 0, None)


@kernel("aten.random.to")
def random_to(out: Outputs, self: Array, to: int) -> Array:
    return _whole(out, 0, to)


@kernel("aten.random.from")
def random_from(out: Outputs, self: Array, to: int | None, **rest: int) -> Array:
    return _whole(out, rest["from"], to)


def _whole(out: Outputs, low: int, high: int | None) -> Array:
    """Whole numbers from `low` to below `high`, or to the last up to which the dtype holds all."""
    if high is None:
        kind = out.dtype.numpy
        if out.dtype is ScalarType.BOOL:
            high = 2
        elif out.dtype.is_floating_point:
            high = 2 ** (finfo(kind).nmant + 1) + 1
        else:
            high = min(int(np.iinfo(kind).max), 2**63 - 1) + 1
    # The last number that int64 holds can only be drawn inclusively.
    return _converted(out, _random().integers(low, high - 1, out.shape, endpoint=True))


@kernel("aten.multinomial.default")
def multinomial(out: Outputs, self: Array, num_samples: int, replacement: bool = False) -> Array:
    weights = widen(self).astype(np.float64)
    if not (np.isfinite(weights).all() and bool((weights >= 0).all()) and bool((weights.sum(-1) > 0).all())):
        raise ValueError("the weights must be finite, not negative, and not all 0 in a row")
    if not replacement:
        # The categories in the order in which exponential clocks of these rates ring.
        waits = _random().standard_exponential(weights.shape)
        rates = np.divide(weights, waits, out=np.zeros_like(weights), where=waits > 0)
        return np.asarray(np.argsort(-rates, axis=-1, kind="stable")[..., :num_samples])
    rows = weights.reshape(-1, weights.shape[-1])
    ends = np.cumsum(rows, axis=-1)
    ends /= ends[:, -1:]
    # All rows at once: row r stands in r..r + 1.
    steps = (ends + np.arange(len(rows))[:, None]).reshape(-1)
    draws = _random().random((len(rows), num_samples)) + np.arange(len(rows))[:, None]
    places = np.searchsorted(steps, draws, side="right") - np.arange(len(rows))[:, None] * rows.shape[-1]
    last = rows.shape[-1] - 1 - np.argmax(rows[:, ::-1] > 0, axis=-1)  # rounding must not lead beyond the last weight
    return np.asarray(np.minimum(places, last[:, None]).reshape(out.shape))
