"""Tensors made of numbers alone.

They are computed once, while the graph is built, by the reference engine's kernels: one element spread over the shape
where all are equal, which takes no memory, else the whole tensor.
"""

from __future__ import annotations

from typing import Any

from ptn_runtime.reference import evaluate

from ptn_engine_ggml._native import Builder, Tensor
from ptn_engine_ggml.lower.common import constant, promoted, scalar_tensor
from ptn_engine_ggml.lower.registry import Outputs, lower


def _spread(b: Builder, out: Outputs, value: Any) -> Tensor:
    """`value`, a number or a 0-d tensor, everywhere."""
    one = promoted(b, value, out.dtype) if isinstance(value, Tensor) else scalar_tensor(b, out.dtype, value)
    return one.expand(out.shape)


@lower(
    "aten.full.default",
    "aten.full_like.default",
    "aten.new_full.default",
    scalars=("fill_value",),
    empty=True,
)
def full(b: Builder, out: Outputs, fill_value: Any, **_: Any) -> Tensor:
    return _spread(b, out, fill_value)


@lower("aten.fill.Scalar", "aten.fill.Tensor", scalars=("value",), empty=True)
def fill(b: Builder, out: Outputs, self: Tensor, value: Any) -> Tensor:
    return _spread(b, out, value)


@lower("aten.scalar_tensor.default", scalars=("s",))
def scalar(b: Builder, out: Outputs, s: Any, **_: Any) -> Tensor:
    return _spread(b, out, s)


@lower(
    "aten.zeros.default",
    "aten.zeros_like.default",
    "aten.new_zeros.default",
    # What PyTorch leaves undefined is zero here, so that runs repeat.
    "aten.empty.memory_format",
    "aten.empty_like.default",
    "aten.empty_strided.default",
    "aten.new_empty.default",
    "aten.new_empty_strided.default",
    empty=True,
)
def zeros(b: Builder, out: Outputs, **_: Any) -> Tensor:
    return _spread(b, out, 0)


@lower("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default", empty=True)
def ones(b: Builder, out: Outputs, **_: Any) -> Tensor:
    return _spread(b, out, 1)


def _evaluated(op: str) -> None:
    """An operator of numbers alone, evaluated while the graph is built."""

    @lower(op)
    def function(b: Builder, out: Outputs, **args: Any) -> Tensor:
        (array,) = evaluate(op, args, out)
        return constant(b, array)


for _name in (
    *("arange.start_step", "arange.start", "arange.default", "linspace.default", "eye.default", "eye.m"),
    *("tril_indices.default", "triu_indices.default"),
):
    _evaluated(f"aten.{_name}")
