"""Attention and rotary embeddings.

Attention is the exact form in float32: ggml's products, and a softmax of our own that knows PyTorch's masks. ggml's
fused operator rounds masks and values to float16. float64 runs on general kernels.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from ptn_format.dtypes import ScalarType
from ptn_runtime.engine import StaticNode, Value

from ptn_engine_ggml._native import Builder, Tensor
from ptn_engine_ggml.lower.common import call, constant, float32, promoted, rounded
from ptn_engine_ggml.lower.elementwise import kernel
from ptn_engine_ggml.lower.matmul import product
from ptn_engine_ggml.lower.norm import zero_masked_rows
from ptn_engine_ggml.lower.registry import REALS, Outputs, lower

FLOAT = ScalarType.FLOAT

FEW_ROWS = 16
"""Up to so many rows per head the values are summed in place; more pay for transposing them."""


def _check(node: StaticNode) -> str | None:
    mask = node.args.get("attn_mask")
    if isinstance(mask, Value) and not (mask.dtype.is_floating_point or mask.dtype is ScalarType.BOOL):
        return f"the mask is {mask.dtype.torch_name}; it must be bool or floating point."
    query = node.args["query"]
    assert isinstance(query, Value)
    if query.dtype not in REALS:
        return f"'{query.name}' is {query.dtype.torch_name}; attention runs on floating-point types."
    return None


@lower("aten.scaled_dot_product_attention.default", check=_check)
def scaled_dot_product_attention(
    b: Builder,
    out: Outputs,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    result, _ = attend(b, out, query, key, value, attn_mask, is_causal, scale, log_sums=False)
    return result


@lower("aten._scaled_dot_product_flash_attention_for_cpu.default", check=_check)
def flash_attention_for_cpu(
    b: Builder,
    out: Outputs,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    result, log_sums = attend(b, out, query, key, value, attn_mask, is_causal, scale, log_sums=True)
    assert log_sums is not None
    return result, log_sums


def attend(
    b: Builder,
    out: Outputs,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    *,
    log_sums: bool,
) -> tuple[Tensor, Tensor | None]:
    """Softmax(query @ key^T * scale + mask) @ value over any batch axes, and the logarithm of each row's sum.

    Query heads that share a key head form one matrix: [batch, key heads, group * T, D].
    """
    t, width = out.shape[-2:]
    s, d = key.shape[-2], key.shape[-1]
    batch = out.shape[:-2]
    if query.dtype is not ScalarType.DOUBLE:
        query, key, value = (float32(b, x) for x in (query, key, value))
    q, k, v = (_with_batch(b, x, batch) for x in (query, key, value))
    heads = batch[-1] if batch else 1
    if q.shape[1] != heads:  # one query head for several key heads: plain broadcasting
        q = q.expand((q.shape[0], heads, *q.shape[2:]))
    if k.shape[1] != v.shape[1]:
        k, v = _repeat_heads(b, k, heads), _repeat_heads(b, v, heads)
    count, kv_heads = k.shape[:2]
    group = q.shape[1] // kv_heads
    q = b.view(q, (count, kv_heads, group * t, d))
    scores = b.view(product(b, q, k), (count, kv_heads, group, t, s))
    if mask is not None:
        mask = _mask(b, mask, scores.dtype, batch, count, kv_heads, group)
    factor = 1.0 / math.sqrt(d) if scale is None else float(scale)
    softmax = (_softmax_double if query.dtype is ScalarType.DOUBLE else _softmax)(
        b, scores, mask, is_causal, factor, log_sums=log_sums
    )
    probabilities = b.view(softmax[0], (count * kv_heads, group * t, s))
    values = b.view(v, (count * kv_heads, s, width))
    if group * t <= FEW_ROWS and values.dtype is FLOAT:
        shape = (count * kv_heads, group * t, width)
        result = b.custom("attention.values", (probabilities, values), [(int(FLOAT), shape)], (), ())[0]
    else:
        result = product(b, probabilities, values.transpose(1, 2))
    result = b.view(rounded(b, result, out.dtype), out.shape)
    return result, b.view(softmax[1], out[1].shape) if log_sums else None


def _softmax(
    b: Builder, scores: Tensor, mask: Tensor | None, is_causal: bool, factor: float, *, log_sums: bool
) -> tuple[Tensor, ...]:
    """Probabilities, and the logarithms of the rows' sums where asked for; float32."""
    specs = [(int(FLOAT), scores.shape)]
    if log_sums:
        specs.append((int(FLOAT), scores.shape[:-1]))
    inputs = [scores] if mask is None else [scores, mask]
    return b.custom("attention.softmax", inputs, specs, [int(is_causal)], [factor])


def _softmax_double(
    b: Builder, scores: Tensor, mask: Tensor | None, is_causal: bool, factor: float, *, log_sums: bool
) -> tuple[Tensor, ...]:
    """As `_softmax`, in float64 and from general kernels."""
    dtype, shape = ScalarType.DOUBLE, scores.shape
    x = kernel(b, "mul", dtype, shape, dtype, scores, factor)
    if is_causal:
        mask = constant(b, np.tri(*shape[-2:], dtype=np.bool_))
    if mask is not None and mask.dtype is ScalarType.BOOL:
        x = kernel(b, "where", dtype, shape, dtype, mask, x, -math.inf)
    elif mask is not None:
        x = kernel(b, "add", dtype, shape, dtype, x, mask)
    axis = len(shape) - 1
    y = b.custom("reduction.softmax", (x,), [(int(dtype), shape)], [axis], ())[0]
    y = zero_masked_rows(b, Outputs((Value(-1, "probabilities", dtype, shape),)), x, y, axis)
    if not log_sums:
        return (y,)
    sums = b.custom("reduction.logsumexp", (x,), [(int(dtype), shape[:-1])], [1, axis], ())[0]
    masked = kernel(b, "eq", ScalarType.BOOL, shape[:-1], dtype, sums, -math.inf)
    return y, kernel(b, "where", dtype, shape[:-1], dtype, masked, 0.0, sums)


def _with_batch(b: Builder, x: Tensor, batch: tuple[int, ...]) -> Tensor:
    """`x` as [batch, heads, rows, columns]; its own number of heads where that differs from the result's."""
    rows = x.shape[-2:]
    own = (1,) * (len(batch) - x.rank + 2) + x.shape[:-2]
    if not batch:
        return b.view(x, (1, 1, *rows))
    outer = batch[:-1]
    heads = own[-1]
    x = b.view(x, (*own, *rows))
    return b.view(x.expand((*outer, heads, *rows)), (math.prod(outer), heads, *rows))


def _repeat_heads(b: Builder, x: Tensor, heads: int) -> Tensor:
    """Each head as often as query heads share it."""
    count, own, rows, columns = x.shape
    wide = b.view(x, (count, own, 1, rows, columns)).expand((count, own, heads // own, rows, columns))
    return b.view(wide, (count, heads, rows, columns))


def _mask(
    b: Builder, mask: Tensor, dtype: ScalarType, batch: tuple[int, ...], count: int, kv_heads: int, group: int
) -> Tensor:
    """The mask as it broadcasts to [count, key heads, group, T, S]: bool or the scores' type."""
    if mask.dtype is not ScalarType.BOOL:
        mask = promoted(b, mask, dtype)
    rank = len(batch) + 2
    own = (1,) * (rank - mask.rank) + mask.shape
    rows = own[-2:]
    outer = own[:-2]
    mask = b.view(mask, own)
    if all(size == 1 for size in outer):
        return b.view(mask, (1, 1, 1, *rows))
    if any(size != 1 for size in outer[:-1]):
        mask = mask.expand((*batch[:-1], outer[-1], *rows))
    heads = outer[-1]
    split = (kv_heads, group) if heads != 1 else (1, 1)
    first = count if any(size != 1 for size in outer[:-1]) else 1
    return b.view(mask, (first, *split, *rows))


@lower("native.rope.default")
def rope(
    b: Builder,
    out: Outputs,
    input: Tensor,
    position_ids: Tensor,
    inv_freq: Tensor,
    interleaved: bool = False,
    attention_scale: Any = 1.0,
) -> Tensor:
    inputs = (input, position_ids, inv_freq)
    return call(b, "attention.rope", inputs, out, (int(interleaved),), (attention_scale,))
