"""Numpy kernels of the family `attention`."""

from __future__ import annotations

import math

import numpy as np

from ptn_runtime.reference._numerics import finish, widen
from ptn_runtime.reference.registry import Array, Outputs, kernel


def _scores(query: Array, key: Array, attn_mask: Array | None, is_causal: bool, scale: float | None) -> Array:
    """Scaled products with the mask applied: -inf where a position must not be seen."""
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = np.asarray(np.matmul(query * query.dtype.type(factor), key.swapaxes(-1, -2)))
    if is_causal:
        # Anchored top-left: query i sees keys 0..i, however many keys there are.
        rows, columns = scores.shape[-2:]
        scores = np.where(np.tri(rows, columns, dtype=np.bool_), scores, -np.inf).astype(scores.dtype)
    elif attn_mask is not None and attn_mask.dtype == np.bool_:
        scores = np.where(attn_mask, scores, np.asarray(-np.inf, scores.dtype))
    elif attn_mask is not None:
        scores = scores + widen(attn_mask).astype(scores.dtype, copy=False)
    return scores


def _attend(scores: Array, value: Array) -> tuple[Array, Array]:
    """The weighted values, and the logarithm of each row's weights' sum; a fully masked row gives zeros."""
    if not scores.shape[-1]:
        shape = (*np.broadcast_shapes(scores.shape[:-2], value.shape[:-2]), scores.shape[-2], value.shape[-1])
        return np.zeros(shape, scores.dtype), np.full(scores.shape[:-1], -np.inf, scores.dtype)
    top = scores.max(axis=-1, keepdims=True)
    top = np.where(top == -np.inf, np.zeros((), scores.dtype), top)
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    result = np.matmul(weights, value) / np.where(total == 0, np.ones((), scores.dtype), total)
    return np.asarray(result), np.asarray((np.log(total) + top)[..., 0])


def _heads(x: Array, count: int) -> Array:
    """Each key or value head serves a run of query heads."""
    return x if x.shape[-3] == count else np.repeat(x, count // x.shape[-3], axis=-3)


@kernel("aten.scaled_dot_product_attention.default")
def scaled_dot_product_attention(
    out: Outputs,
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Array:
    q, k, v = widen(query), widen(key), widen(value)
    if enable_gqa and q.ndim > 2:
        k, v = _heads(k, q.shape[-3]), _heads(v, q.shape[-3])
    result, _ = _attend(_scores(q, k, attn_mask, is_causal, scale), v)
    return finish(result, out.dtype)


@kernel("aten._scaled_dot_product_flash_attention_for_cpu.default")
def flash_attention_for_cpu(
    out: Outputs,
    query: Array,
    key: Array,
    value: Array,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Array | None = None,
    scale: float | None = None,
) -> tuple[Array, Array]:
    q, k, v = widen(query), widen(key), widen(value)
    if q.ndim > 2:
        k, v = _heads(k, q.shape[-3]), _heads(v, q.shape[-3])
    result, logsumexp = _attend(_scores(q, k, attn_mask, is_causal, scale), v)
    return finish(result, out.dtype), finish(logsumexp, out[1].dtype)


@kernel("native.rope.default")
def rope(
    out: Outputs,
    input: Array,
    position_ids: Array,
    inv_freq: Array,
    interleaved: bool = False,
    attention_scale: float = 1.0,
) -> Array:
    phase = position_ids.astype(np.float32)[..., None] * widen(inv_freq).astype(np.float32)
    phase = np.repeat(phase, 2, axis=-1) if interleaved else np.concatenate([phase, phase], axis=-1)
    scale = np.float32(attention_scale)
    # The tables are rounded to the input's dtype, as are the products: PyTorch computes with them step by step.
    cos, sin = (finish(function(phase) * scale, out.dtype)[:, None] for function in (np.cos, np.sin))
    width = phase.shape[-1]
    x = input[..., :width]
    if interleaved:
        rotated = np.stack([-x[..., 1::2], x[..., 0::2]], axis=-1).reshape(x.shape)
    else:
        half = width // 2
        rotated = np.concatenate([-x[..., half:], x[..., :half]], axis=-1)
    direct = widen(finish(widen(x) * widen(cos), out.dtype))
    turned = widen(finish(widen(rotated) * widen(sin), out.dtype))
    result = finish(direct + turned, out.dtype)
    return np.concatenate([result, input[..., width:]], axis=-1) if width < input.shape[-1] else result
