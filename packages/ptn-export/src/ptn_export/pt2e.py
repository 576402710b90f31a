"""Models that PT2E quantised: `quantized_decomposed` operators.

Quantising and dequantising stay whole. Choosing scales and zero points is taken apart, since no package has operators
for it; the roundings are those of `torch.ao.quantization.utils.determine_qparams`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["rules"]


def rules() -> dict[Any, Callable[..., Any]]:
    """Decompositions of the operators that choose parameters; none where PyTorch has not registered them yet."""
    found: dict[Any, Callable[..., Any]] = {}
    for name, rule in _RULES.items():
        packet, _, overload = name.partition(".")
        operators = getattr(torch.ops.quantized_decomposed, packet, None)
        if operators is not None:
            found[getattr(operators, overload)] = rule
    return found


def _choose_qparams(
    input: Tensor,
    quant_min: int,
    quant_max: int,
    eps: float,
    dtype: torch.dtype,  # noqa: ARG001  the operator's schema
) -> tuple[Tensor, Tensor]:
    low, high = _range_with_zero(input)
    scale = (high - low) / float(quant_max - quant_min)
    scale = torch.maximum(scale, torch.full((1,), eps, dtype=torch.float32))
    zero_point = quant_min - torch.round(low / scale).to(torch.int32)
    return scale.to(torch.float64), torch.clamp(zero_point, quant_min, quant_max).to(torch.int64)


def _choose_qparams_symmetric(
    input: Tensor, quant_min: int, quant_max: int, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    low, high = _range_with_zero(input)
    scale = torch.maximum(-low, high) / (float(quant_max - quant_min) / 2)
    scale = torch.maximum(scale, torch.full((1,), eps, dtype=torch.float32))
    return scale.to(torch.float64), torch.full((1,), 128 if dtype is torch.uint8 else 0, dtype=torch.int64)


def _choose_qparams_per_token_asymmetric(input: Tensor, dtype: torch.dtype) -> Any:
    return torch.ops.quantized_decomposed._choose_qparams_per_token_asymmetric_impl(input, dtype)


def _range_with_zero(input: Tensor) -> tuple[Tensor, Tensor]:
    """Least and greatest element, widened to hold 0."""
    low, high = torch.amin(input, ()), torch.amax(input, ())
    return torch.minimum(low, torch.zeros_like(low)), torch.maximum(high, torch.zeros_like(high))


_RULES: dict[str, Callable[..., Any]] = {
    "choose_qparams.tensor": _choose_qparams,
    "choose_qparams_symmetric.tensor": _choose_qparams_symmetric,
    "choose_qparams_per_token_asymmetric.default": _choose_qparams_per_token_asymmetric,
}
