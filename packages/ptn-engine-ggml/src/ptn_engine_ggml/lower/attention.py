"""Attention and rotary embeddings.

Attention is the exact form in float32: ggml's products, and a softmax of our own that knows PyTorch's masks. ggml's
fused operator rounds masks and values to float16.
"""

from __future__ import annotations

import math
from typing import Any

from ptn_format.dtypes import ScalarType
from ptn_runtime.engine import StaticNode, Value

from ptn_engine_ggml._native import Builder, Tensor
from ptn_engine_ggml.lower.common import call, float32, rounded
from ptn_engine_ggml.lower.elementwise import kernel
from ptn_engine_ggml.lower.matmul import product
from ptn_engine_ggml.lower.registry import FLOATS, Outputs, lower

FLOAT = ScalarType.FLOAT

FEW_ROWS = 16
"""Up to so many rows per head the values are summed in place; more pay for transposing them."""


def _check(node: StaticNode) -> str | None:
    mask = node.args.get("attn_mask")
    if isinstance(mask, Value) and not (mask.dtype.is_floating_point or mask.dtype is ScalarType.BOOL):
        return f"the mask is {mask.dtype.torch_name}; it must be bool or floating point."
    query, value = node.args["query"], node.args["value"]
    assert isinstance(query, Value)
    assert isinstance(value, Value)
    for tensor in (query, value):
        if tensor.dtype not in FLOATS:
            return f"'{tensor.name}' is {tensor.dtype.torch_name}; attention runs on float16, bfloat16 and float32."
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
    q, k, v = (_with_batch(b, float32(b, x), batch) for x in (query, key, value))
    if k.shape[1] != v.shape[1]:
        heads = batch[-1]
        k, v = _repeat_heads(b, k, heads), _repeat_heads(b, v, heads)
    count, kv_heads = k.shape[:2]
    group = q.shape[1] // kv_heads
    q = b.view(q, (count, kv_heads, group * t, d))
    scores = b.view(product(b, q, k), (count, kv_heads, group, t, s))
    inputs = [scores]
    if mask is not None:
        inputs.append(_mask(b, mask, batch, count, kv_heads, group))
    factor = 1.0 / math.sqrt(d) if scale is None else float(scale)
    specs = [(int(FLOAT), scores.shape)]
    if log_sums:
        specs.append((int(FLOAT), scores.shape[:-1]))
    softmax = b.custom("attention.softmax", inputs, specs, [int(is_causal)], [factor])
    probabilities = b.view(softmax[0], (count * kv_heads, group * t, s))
    values = b.view(v, (count * kv_heads, s, width))
    if group * t <= FEW_ROWS:
        shape = (count * kv_heads, group * t, width)
        result = b.custom("attention.values", (probabilities, values), [(int(FLOAT), shape)], (), ())[0]
    else:
        result = product(b, probabilities, values.transpose(1, 2))
    result = b.view(rounded(b, result, out.dtype), out.shape)
    return result, b.view(softmax[1], out[1].shape) if log_sums else None


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


def _mask(b: Builder, mask: Tensor, batch: tuple[int, ...], count: int, kv_heads: int, group: int) -> Tensor:
    """The mask as it broadcasts to [count, key heads, group, T, S]: bool or float32."""
    if mask.dtype is not ScalarType.BOOL:
        mask = to_float32(b, mask)
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


def to_float32(b: Builder, x: Tensor) -> Tensor:
    """`x` of any type as float32."""
    if x.dtype in FLOATS:
        return float32(b, x)
    return kernel(b, "copy", FLOAT, x.shape, FLOAT, x)


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
    return call(b, "attention.rope", inputs, out, (int(interleaved),), (attention_scale,))  # type: ignore[no-any-return]
