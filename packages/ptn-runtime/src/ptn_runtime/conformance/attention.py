"""Cases of the family `attention`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from ptn_format.dtypes import ScalarType as T

from ptn_runtime.conformance.case import Case, floats, integers

SDPA = "aten.scaled_dot_product_attention.default"
ROPE = "native.rope.default"


def heads(
    query_heads: int, heads_kv: int, queries: int, keys: int, dtype: T = T.FLOAT, width: int = 8
) -> dict[str, Any]:
    return {
        "query": floats(2, query_heads, queries, width, dtype=dtype, low=-1, high=1),
        "key": floats(2, heads_kv, keys, width, dtype=dtype, low=-1, high=1, seed=1),
        "value": floats(2, heads_kv, keys, width, dtype=dtype, seed=2),
    }


def attention() -> Iterator[Case]:
    for dtype in (T.FLOAT, T.HALF, T.BFLOAT16, T.DOUBLE):
        yield Case(
            SDPA, dtype.torch_name, heads(4, 4, 5, 7, dtype), rtol=None if dtype in (T.FLOAT, T.DOUBLE) else 4e-2
        )
    yield Case(SDPA, "causal, square", {**heads(2, 2, 6, 6), "is_causal": True})
    yield Case(SDPA, "causal, fewer queries than keys", {**heads(2, 2, 3, 7), "is_causal": True})
    yield Case(SDPA, "causal, more queries than keys", {**heads(2, 2, 7, 3), "is_causal": True})
    keep = integers(2, 1, 5, 7, dtype=T.BOOL)
    keep[..., 0] = True
    yield Case(SDPA, "bool mask", {**heads(2, 2, 5, 7), "attn_mask": keep})
    yield Case(SDPA, "bool mask over keys", {**heads(2, 2, 5, 7), "attn_mask": keep[:, :, :1]})
    yield Case(SDPA, "bool mask of rank 2", {**heads(2, 2, 5, 7), "attn_mask": keep[0, 0]})
    yield Case(SDPA, "float mask", {**heads(2, 2, 5, 7), "attn_mask": floats(1, 2, 5, 7)})
    minus_inf = np.where(keep, np.float32(0), np.float32(-np.inf))
    yield Case(SDPA, "float mask with -inf", {**heads(2, 2, 5, 7), "attn_mask": minus_inf})
    hidden = keep.copy()
    hidden[:, :, 2] = False
    yield Case(SDPA, "a row sees nothing", {**heads(2, 2, 5, 7), "attn_mask": hidden})
    yield Case(SDPA, "scale", {**heads(2, 2, 5, 7), "scale": 0.3})
    yield Case(SDPA, "grouped queries", {**heads(6, 2, 5, 7), "enable_gqa": True})
    yield Case(SDPA, "one key head", {**heads(4, 1, 1, 9), "enable_gqa": True})
    yield Case(SDPA, "grouped queries with mask", {**heads(6, 2, 5, 7), "attn_mask": keep, "enable_gqa": True})
    wide = heads(2, 2, 5, 7)
    wide["value"] = floats(2, 2, 7, 12, seed=2)
    yield Case(SDPA, "values of another width", wide)
    rank_3 = {name: array[0] for name, array in heads(2, 2, 5, 7).items()}
    yield Case(SDPA, "rank 3", rank_3)
    yield Case(SDPA, "one query, long context", heads(4, 4, 1, 300))
    first = heads(4, 4, 5, 7)
    for name in ("query", "key"):
        others = ("value",) if name == "key" else ()
        one = {**first, **{other: first[other][:1] for other in (name, *others)}}
        yield Case(SDPA, f"one {name} for every batch", one)
    yield Case(SDPA, "one query head", {**first, "query": first["query"][:, :1]})


def flash() -> Iterator[Case]:
    op = "aten._scaled_dot_product_flash_attention_for_cpu.default"
    base = heads(2, 2, 5, 7)
    yield Case(op, "plain", base)
    yield Case(op, "causal", {**heads(2, 2, 6, 6), "is_causal": True})
    yield Case(op, "scale", {**base, "scale": 0.3})
    yield Case(op, "float mask", {**base, "attn_mask": floats(2, 2, 5, 7)})
    yield Case(op, "float16", heads(2, 2, 5, 7, T.HALF), rtol=4e-2)


def rope() -> Iterator[Case]:
    frequencies = (10000.0 ** (-np.arange(4) / 4)).astype(np.float32)
    positions = np.array([[0, 1, 2, 7, 100]])
    x = floats(2, 3, 5, 8)
    base = {"input": x, "position_ids": positions, "inv_freq": frequencies}
    for interleaved in (False, True):
        name = "interleaved" if interleaved else "half"
        yield Case(ROPE, name, {**base, "interleaved": interleaved, "attention_scale": 1.0})
        yield Case(
            ROPE,
            f"{name}, partial",
            {**base, "inv_freq": frequencies[:2], "interleaved": interleaved, "attention_scale": 1.0},
        )
        yield Case(ROPE, f"{name}, scaled", {**base, "interleaved": interleaved, "attention_scale": 1.25})
    rows = np.array([[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]])
    yield Case(ROPE, "positions per row", {**base, "position_ids": rows, "interleaved": False, "attention_scale": 1.0})
    for dtype in (T.HALF, T.BFLOAT16):
        typed = {**base, "input": floats(2, 3, 5, 8, dtype=dtype)}
        yield Case(ROPE, dtype.torch_name, {**typed, "interleaved": False, "attention_scale": 1.0})


ROTATED = {
    (False, 1.0): (
        (0.1063097, -0.8369483, -2.1479521, -1.5967209, -0.75, -0.5, -0.25, 0.0),
        (-0.3533381, -0.9621264, -0.7072144, 0.5694847, 1.25, 1.5, 1.75, 2.0),
    ),
    (False, 1.25): (
        (0.1328871, -1.0461854, -2.6849401, -1.9959011, -0.75, -0.5, -0.25, 0.0),
        (-0.4416727, -1.202658, -0.884018, 0.7118559, 1.25, 1.5, 1.75, 2.0),
    ),
    (True, 1.0): (
        (0.3166774, -2.2830277, -0.6175527, -1.4768645, -0.75, -0.5, -0.25, 0.0),
        (-0.3180581, -0.4597162, -0.9444421, 0.8188584, 1.25, 1.5, 1.75, 2.0),
    ),
    (True, 1.25): (
        (0.3958468, -2.8537846, -0.7719408, -1.8460806, -0.75, -0.5, -0.25, 0.0),
        (-0.3975727, -0.5746453, -1.1805526, 1.0235731, 1.25, 1.5, 1.75, 2.0),
    ),
}
"""By (interleaved, attention_scale): the rows [-1.75, -1.5, ..., 0] and [0.25, ..., 2] at the positions 1 and 3, their
first four elements turned by 1 and 0.5 a position. PyTorch computed them in float64 from the formula."""


def literal_rope() -> Iterator[Case]:
    x = np.linspace(-1.75, 2, 16, dtype=np.float32).reshape(1, 1, 2, 8)
    base = {"input": x, "position_ids": np.array([[1, 3]]), "inv_freq": np.array([1, 0.5], np.float32)}
    for (interleaved, scale), rows in ROTATED.items():
        args = {**base, "interleaved": interleaved, "attention_scale": scale}
        name = f"literal, {'pairs' if interleaved else 'halves'}, scale {scale}"
        yield Case(ROPE, name, args, (np.array(rows, np.float32).reshape(x.shape),))


def cases() -> Iterator[Case]:
    """Every case of the family."""
    yield from attention()
    yield from flash()
    yield from rope()
    yield from literal_rope()
