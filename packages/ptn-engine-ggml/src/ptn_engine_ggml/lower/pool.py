"""Pooling: kernels of `native/kernels/pool.cpp`, for any element type and 1 to 3 spatial axes.

ggml's own pooling knows neither indices, ceil_mode, dilation nor a divisor, and takes -FLT_MAX for -inf.
"""

from __future__ import annotations

from collections.abc import Sequence

from ptn_engine_ggml._native import Builder, Tensor
from ptn_engine_ggml.lower.common import call_all
from ptn_engine_ggml.lower.registry import Outputs, lower

Sizes = int | Sequence[int]


def _per_axis(value: Sizes, rank: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * rank if len(values) == 1 else values


def _geometry(rank: int, kernel_size: Sizes, stride: Sizes, *rest: Sizes) -> list[int]:
    """The kernel's integers: number of axes, then kernel, stride, padding (and dilation) per axis."""
    kernel = _per_axis(kernel_size, rank)
    strides = kernel if not isinstance(stride, int) and len(stride) == 0 else _per_axis(stride, rank)
    return [rank, *kernel, *strides, *(value for sizes in rest for value in _per_axis(sizes, rank))]


def _max(rank: int) -> None:
    def lowering(
        b: Builder,
        out: Outputs,
        self: Tensor,
        kernel_size: Sizes,
        stride: Sizes = (),
        padding: Sizes = 0,
        dilation: Sizes = 1,
        ceil_mode: bool = False,
    ) -> tuple[Tensor, ...]:
        return call_all(b, "pool.max", (self,), out, _geometry(rank, kernel_size, stride, padding, dilation))

    lower(f"aten.max_pool{rank}d.default", f"aten.max_pool{rank}d_with_indices.default")(lowering)


def _avg(rank: int) -> None:
    def lowering(
        b: Builder,
        out: Outputs,
        self: Tensor,
        kernel_size: Sizes,
        stride: Sizes = (),
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> tuple[Tensor, ...]:
        ints = [*_geometry(rank, kernel_size, stride, padding), int(count_include_pad), divisor_override or 0]
        return call_all(b, "pool.avg", (self,), out, ints)

    lower(f"aten.avg_pool{rank}d.default")(lowering)


def _adaptive(kernel: str, rank: int, *ops: str) -> None:
    def lowering(b: Builder, out: Outputs, self: Tensor, output_size: Sizes) -> tuple[Tensor, ...]:
        return call_all(b, f"pool.{kernel}", (self,), out, (rank,))

    lower(*ops)(lowering)


for _rank in (1, 2, 3):
    _max(_rank)
    _avg(_rank)
    _adaptive("adaptive_max", _rank, f"aten.adaptive_max_pool{_rank}d.default")
    _names = [f"aten.adaptive_avg_pool{_rank}d.default"]
    if _rank > 1:
        _names.append(f"aten._adaptive_avg_pool{_rank}d.default")
    _adaptive("adaptive_avg", _rank, *_names)
