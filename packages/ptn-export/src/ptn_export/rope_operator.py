"""`native::rope` as a PyTorch operator, so that a graph can call it and PyTorch can run that graph."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

__all__ = ["rope", "rope_operator"]

_SCHEMA = (
    "rope(Tensor input, Tensor position_ids, Tensor inv_freq, bool interleaved=False, float attention_scale=1.0) "
    "-> Tensor"
)


def rope(
    input: Tensor, position_ids: Tensor, inv_freq: Tensor, interleaved: bool = False, attention_scale: float = 1.0
) -> Tensor:
    """Rotates pairs of channels by angles that grow with the position.

    Args:
        input: floating point, [B, H, T, D].
        position_ids: integers, [1 or B, T].
        inv_freq: angle per position of each pair in radians, [R / 2]; channels from R on are passed through.
        interleaved: channels 2i and 2i + 1 are a pair; else channels i and i + R / 2.
        attention_scale: factor of sine and cosine.

    Returns:
        The rotated input. Angles are float32 (float64 for float64 frequencies); sine and cosine are rounded to the
        input's type.
    """
    wide = torch.float64 if inv_freq.dtype is torch.float64 else torch.float32
    phase = position_ids.to(wide)[..., None] * inv_freq.to(wide)
    phase = phase.repeat_interleave(2, -1) if interleaved else torch.cat((phase, phase), -1)
    cos, sin = ((table * attention_scale).to(input.dtype)[:, None] for table in (phase.cos(), phase.sin()))
    width = phase.shape[-1]
    x, rest = input[..., :width], input[..., width:]
    if interleaved:
        rotated = torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)
    else:
        rotated = torch.cat((-x[..., width // 2 :], x[..., : width // 2]), -1)
    return torch.cat((x * cos + rotated * sin, rest), -1)


@functools.cache
def rope_operator() -> Any:
    """`torch.ops.native.rope.default`, registered on first use unless another package has done so."""
    if not hasattr(torch.ops.native, "rope"):
        torch.library.define("native::rope", _SCHEMA.removeprefix("rope"))
        torch.library.impl("native::rope", "CompositeExplicitAutograd", rope)

        @torch.library.register_fake("native::rope")  # type: ignore[untyped-decorator]
        def fake(
            input: Tensor,
            position_ids: Tensor,  # noqa: ARG001  # named by the schema
            inv_freq: Tensor,  # noqa: ARG001
            interleaved: bool = False,  # noqa: ARG001
            attention_scale: float = 1.0,  # noqa: ARG001
        ) -> Tensor:
            return torch.empty_like(input, memory_format=torch.contiguous_format)

    return torch.ops.native.rope.default
