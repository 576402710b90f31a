"""A llama-like decoder with random weights and a static key-value cache as buffers."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

CONTEXT = 96


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Block(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_width = heads, kv_heads, width // heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, kv_heads * self.head_width, bias=False)
        self.value = nn.Linear(width, kv_heads * self.head_width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        self.attention_norm = nn.RMSNorm(width, eps=1e-5)
        self.feed_forward_norm = nn.RMSNorm(width, eps=1e-5)
        self.register_buffer("keys", torch.zeros(1, kv_heads, CONTEXT, self.head_width))
        self.register_buffer("values", torch.zeros(1, kv_heads, CONTEXT, self.head_width))

    def forward(self, x, positions, cos, sin, keep):
        length = x.shape[1]
        y = self.attention_norm(x)
        query = self.query(y).view(1, length, self.heads, self.head_width).transpose(1, 2)
        key = self.key(y).view(1, length, self.kv_heads, self.head_width).transpose(1, 2)
        value = self.value(y).view(1, length, self.kv_heads, self.head_width).transpose(1, 2)
        self.keys.index_copy_(2, positions, rotate(key, cos, sin))
        self.values.index_copy_(2, positions, value)
        attended = F.scaled_dot_product_attention(
            rotate(query, cos, sin), self.keys, self.values, attn_mask=keep, enable_gqa=True
        )
        x = x + self.output(attended.transpose(1, 2).reshape(1, length, -1))
        y = self.feed_forward_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """ids int64 [1, T] and positions int64 [T] to the logits of the last position, float32 [1, vocabulary]."""

    def __init__(self, layers=3, width=64, heads=8, kv_heads=2, hidden=160, vocabulary=256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads, kv_heads, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.head = nn.Linear(width, vocabulary, bias=False)
        half = width // heads // 2
        frequencies = torch.outer(torch.arange(CONTEXT).float(), 10000.0 ** (-torch.arange(half).float() / half))
        self.register_buffer("cos", torch.cat((frequencies.cos(),) * 2, -1), persistent=False)
        self.register_buffer("sin", torch.cat((frequencies.sin(),) * 2, -1), persistent=False)
        self.register_buffer("slots", torch.arange(CONTEXT), persistent=False)

    def forward(self, ids, positions):
        x = self.embedding(ids)
        keep = self.slots[None, :] <= positions[:, None]
        cos, sin = self.cos[positions], self.sin[positions]
        for block in self.blocks:
            x = block(x, positions, cos, sin, keep)
        return self.head(self.norm(x[:, -1]))


def make_decoder() -> Decoder:
    torch.manual_seed(0)
    decoder = Decoder()
    for module in decoder.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=2.0 * module.in_features**-0.5)
    return decoder.eval().requires_grad_(False)


def export_methods(decoder: Decoder) -> dict[str, torch.export.ExportedProgram]:
    """`prefill` with 1 to CONTEXT tokens and `decode` with one, over the same weights and caches."""
    length = torch.export.Dim("length", min=1, max=CONTEXT)
    prompt = torch.zeros(1, 5, dtype=torch.int64), torch.arange(5)
    dynamic = {"ids": {1: length}, "positions": {0: length}}
    token = torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    return {
        "prefill": torch.export.export(decoder, prompt, dynamic_shapes=dynamic),
        "decode": torch.export.export(decoder, token),
    }


def generate(step, prompt: list[int], count: int) -> list[int]:
    """Greedy tokens; `step(ids, positions)` takes int64 numpy-convertible tensors and gives logits [1, vocabulary]."""
    logits = step(torch.tensor([prompt]), torch.arange(len(prompt)))
    tokens = [int(logits[0].argmax())]
    while len(tokens) < count:
        position = torch.tensor([len(prompt) + len(tokens) - 1])
        logits = step(torch.tensor([tokens[-1:]]), position)
        tokens.append(int(logits[0].argmax()))
    return tokens
