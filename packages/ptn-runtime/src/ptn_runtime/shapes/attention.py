"""Shape rules of the family `attention`."""

from __future__ import annotations

from ptn_format.dtypes import ScalarType

from ptn_runtime.shapes import Tensor, TensorSpec, shape_rule
from ptn_runtime.shapes._broadcast import broadcast_shapes, require


def _attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, enable_gqa: bool) -> TensorSpec:
    q, k, v = query.shape, key.shape, value.shape
    if not (query.dtype is key.dtype is value.dtype):
        raise ValueError(
            f"query, key and value must have one dtype, got {query.dtype.torch_name}, {key.dtype.torch_name}, "
            f"{value.dtype.torch_name}"
        )
    require(min(len(q), len(k), len(v)) >= 2, "query, key and value need at least two axes")
    if q[-1] != k[-1]:
        raise ValueError(f"query has {q[-1]} features, key has {k[-1]}")
    if k[-2] != v[-2]:
        raise ValueError(f"key has {k[-2]} positions, value has {v[-2]}")
    if enable_gqa and len(q) > 2:
        heads, key_heads, value_heads = q[-3], k[-3], v[-3]
        if not (heads % key_heads == 0 and heads % value_heads == 0):
            raise ValueError(f"{heads} query heads do not divide among {key_heads} key and {value_heads} value heads")
        batch = (*broadcast_shapes(q[:-3], k[:-3], v[:-3]), heads)
    else:
        batch = broadcast_shapes(q[:-2], k[:-2], v[:-2])
    if attn_mask is not None:
        scores = (*batch, q[-2], k[-2])
        if broadcast_shapes(attn_mask.shape, scores) != scores:
            raise ValueError(f"attn_mask {list(attn_mask.shape)} does not broadcast to the scores {list(scores)}")
    return TensorSpec(query.dtype, (*batch, q[-2], v[-1]))


@shape_rule("aten.scaled_dot_product_attention.default")
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> TensorSpec:
    require(not (is_causal and attn_mask is not None), "give either attn_mask or is_causal, not both")
    if dropout_p != 0.0:
        raise ValueError(f"attention with dropout {dropout_p} cannot be run; export the model in eval mode")
    return _attention(query, key, value, attn_mask, enable_gqa)


@shape_rule("aten._scaled_dot_product_flash_attention_for_cpu.default")
def flash_attention_for_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[TensorSpec, TensorSpec]:
    if dropout_p != 0.0:
        raise ValueError(f"attention with dropout {dropout_p} cannot be run; export the model in eval mode")
    result = _attention(query, key, value, attn_mask, True)
    wide = result.dtype if result.dtype is ScalarType.DOUBLE else ScalarType.FLOAT
    return result, TensorSpec(wide, result.shape[:-1])


@shape_rule("native.rope.default")
def rope(
    input: Tensor, position_ids: Tensor, inv_freq: Tensor, interleaved: bool = False, attention_scale: float = 1.0
) -> TensorSpec:
    if not (input.dtype.is_floating_point):
        raise ValueError(f"input must be floating point, got {input.dtype.torch_name}")
    if len(input.shape) != 4:
        raise ValueError(f"input must have shape [B, H, T, D], got {list(input.shape)}")
    if len(position_ids.shape) != 2:
        raise ValueError(f"position_ids must have shape [B, T], got {list(position_ids.shape)}")
    if len(inv_freq.shape) != 1:
        raise ValueError(f"inv_freq must have shape [R / 2], got {list(inv_freq.shape)}")
    batch, _, length, width = input.shape
    if position_ids.shape[0] not in (1, batch):
        raise ValueError(f"position batch {position_ids.shape[0]} is neither 1 nor the input's {batch}")
    if position_ids.shape[1] != length:
        raise ValueError(f"sequence length {position_ids.shape[1]} of position_ids differs from the input's {length}")
    rotary = 2 * inv_freq.shape[0]
    if rotary > width:
        raise ValueError(f"rotary width {rotary} exceeds the input's {width} channels")
    return TensorSpec(input.dtype, input.shape)
