"""Reductions and running results: kernels of `native/kernels/reduction*.cpp` with PyTorch's rules for NaN and ties."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ptn_format.dtypes import ScalarType
from ptn_runtime.engine import StaticNode, Value

from ptn_engine_ggml._native import Builder, Tensor
from ptn_engine_ggml.lower.common import call, call_all
from ptn_engine_ggml.lower.elementwise import choose, kernel
from ptn_engine_ggml.lower.registry import Outputs, lower

Axes = int | Sequence[int] | None


def _axes(dim: Axes) -> list[int]:
    """Number of axes, axes: none means all."""
    axes = [] if dim is None else [dim] if isinstance(dim, int) else list(dim)
    return [len(axes), *axes]


def _reduction(name: str, *ops: str) -> None:
    """A reduction over `dim` (or all axes) whose result has its final type."""

    @lower(*ops, empty=True)
    def function(
        b: Builder,
        out: Outputs,
        self: Tensor,
        dim: Axes = None,
        keepdim: bool = False,
        dtype: ScalarType | None = None,
    ) -> tuple[Tensor, ...]:
        return call_all(b, f"reduction.{name}", (self,), out, _axes(dim))


_reduction("sum", "aten.sum.default", "aten.sum.dim_IntList")
_reduction("prod", "aten.prod.default", "aten.prod.dim_int")
_reduction("mean", "aten.mean.default", "aten.mean.dim")
_reduction("amax", "aten.amax.default", "aten.max.default")
_reduction("amin", "aten.amin.default", "aten.min.default")
_reduction("max", "aten.max.dim")
_reduction("min", "aten.min.dim")
_reduction("argmax", "aten.argmax.default")
_reduction("argmin", "aten.argmin.default")
_reduction("any", "aten.any.default", "aten.any.dim", "aten.any.dims")
_reduction("all", "aten.all.default", "aten.all.dim", "aten.all.dims")
_reduction("count_nonzero", "aten.count_nonzero.default", "aten.count_nonzero.dim_IntList")
_reduction("logsumexp", "aten.logsumexp.default")


@lower("aten.aminmax.default")
def aminmax(
    b: Builder, out: Outputs, self: Tensor, dim: int | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    low = call(b, "reduction.amin", (self,), out[:1], _axes(dim))
    high = call(b, "reduction.amax", (self,), out[1:], _axes(dim))
    return low, high


@lower("aten.nansum.default", empty=True)
def nansum(
    b: Builder, out: Outputs, self: Tensor, dim: Axes = None, keepdim: bool = False, dtype: ScalarType | None = None
) -> Tensor:
    x = self
    if self.dtype.is_floating_point and self.numel:
        isnan = kernel(b, "isnan", ScalarType.BOOL, self.shape, self.dtype, self)
        x = choose(b, self.dtype, self.shape, isnan, 0.0, self)
    return call(b, "reduction.sum", (x,), out, _axes(dim))


def _number_check(node: StaticNode) -> str | None:
    for name in ("correction", "ord", "p"):
        if isinstance(node.args.get(name), Value):
            return f"'{name}' is a tensor, which is known only while the graph runs."
    return None


def _variance(name: str, *ops: str) -> None:
    @lower(*ops, check=_number_check, empty=True)
    def function(
        b: Builder,
        out: Outputs,
        self: Tensor,
        dim: Axes = None,
        unbiased: bool = True,
        correction: Any = None,
        keepdim: bool = False,
    ) -> tuple[Tensor, ...]:
        if correction is None:
            correction = 1 if unbiased else 0
        return call_all(b, f"reduction.{name}", (self,), out, _axes(dim), (float(correction),))


_variance("var", "aten.var.correction", "aten.var.dim", "aten.var.default", "aten.var_mean.correction")
_variance("std", "aten.std.correction", "aten.std.dim", "aten.std.default", "aten.std_mean.correction")


@lower("aten.linalg_vector_norm.default", check=_number_check, empty=True)
def linalg_vector_norm(
    b: Builder,
    out: Outputs,
    self: Tensor,
    ord: Any = 2,
    dim: Axes = None,
    keepdim: bool = False,
    dtype: ScalarType | None = None,
) -> Tensor:
    return call(b, "reduction.norm", (self,), out, _axes(dim), (float(ord),))


@lower("aten.norm.Scalar", "aten.norm.ScalarOpt_dim", check=_number_check, empty=True)
def norm(b: Builder, out: Outputs, self: Tensor, p: Any = 2, dim: Axes = None, keepdim: bool = False) -> Tensor:
    return call(b, "reduction.norm", (self,), out, _axes(dim), (2.0 if p is None else float(p),))


# --- running results ---


def _running(name: str, *ops: str) -> None:
    @lower(*ops)
    def function(
        b: Builder, out: Outputs, self: Tensor, dim: int, dtype: ScalarType | None = None
    ) -> tuple[Tensor, ...]:
        return call_all(b, f"reduction.{name}", (self,), out, (dim,))


for _name in ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"):
    _running(_name, f"aten.{_name}.default")
