"""Models of language."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn

from zoo.entry import VOCABULARY, Entry, floats, mask, tokens

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
DECODER = {**SIZES, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LATENT = {  # keys and values of few channels, experts in groups
    "num_key_value_heads": 4,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
}
IDS = tokens("batch", "length")
MASK = mask("batch", "length")


def decoder(family: str, **settings: Any) -> nn.Module:
    """A causal model of `transformers` that gives logits and keeps no cache."""
    model = getattr(transformers, f"{family}ForCausalLM")
    return model(model.config_class(**{**DECODER, "use_cache": False, **settings}))


def gpt2() -> nn.Module:
    sizes = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, use_cache=False))


def t5() -> nn.Module:
    sizes = {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, use_cache=False))


def clip() -> nn.Module:
    text = {**SIZES, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    vision = {k: v for k, v in SIZES.items() if k not in ("vocab_size", "max_position_embeddings")}
    vision |= {"image_size": 32, "patch_size": 8}
    return transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=24))


class Tagger(nn.Module):
    """Scores of each tag for each token: a bidirectional LSTM over embeddings."""

    def __init__(self, width: int = 32, tags: int = 9) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.lstm = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, tags)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embedding(ids))[0])


ENTRIES = (
    Entry(
        "BERT",
        "transformers.BertModel",
        lambda: transformers.BertModel(transformers.BertConfig(**SIZES)),
        {"input_ids": IDS, "attention_mask": MASK},
    ),
    Entry("GPT-2", "transformers.GPT2LMHeadModel", gpt2, {"input_ids": IDS}),
    Entry(
        "Llama",
        "transformers.LlamaForCausalLM",
        lambda: decoder("Llama"),
        {"input_ids": IDS, "attention_mask": MASK},
    ),
    Entry("Qwen3", "transformers.Qwen3ForCausalLM", lambda: decoder("Qwen3", head_dim=8), {"input_ids": IDS}),
    Entry(
        "Gemma-3",
        "transformers.Gemma3ForCausalLM",
        lambda: decoder("Gemma3", head_dim=8, sliding_window=4, query_pre_attn_scalar=8),
        {"input_ids": IDS},
    ),
    Entry(
        "Phi-3",
        'transformers.Phi3ForCausalLM, attn_implementation="eager"',
        lambda: decoder("Phi3", attn_implementation="eager", partial_rotary_factor=0.5),
        {"input_ids": IDS},
    ),
    Entry(
        "Mixtral",
        "transformers.MixtralForCausalLM",
        lambda: decoder("Mixtral", num_local_experts=4, num_experts_per_tok=2),
        {"input_ids": IDS},
    ),
    Entry(
        "DeepSeek-V3",
        'transformers.DeepseekV3ForCausalLM, experts_implementation="batched_mm"',
        lambda: decoder("DeepseekV3", **LATENT, experts_implementation="batched_mm"),
        {"input_ids": IDS},
    ),
    Entry(
        "T5",
        "transformers.T5ForConditionalGeneration",
        t5,
        {"input_ids": IDS, "attention_mask": MASK, "decoder_input_ids": tokens("batch", "written")},
        sizes=(
            {"batch": 2, "length": 7, "written": 5},
            {"batch": 1, "length": 16, "written": 1},
            {"batch": 3, "length": 2, "written": 9},
        ),
        bounds={"written": (1, 64)},
    ),
    Entry(
        "CLIP",
        "transformers.CLIPModel",
        clip,
        {
            "input_ids": tokens("texts", "length"),
            "pixel_values": floats("images", 3, 32, 32),
            "attention_mask": mask("texts", "length"),
        },
        sizes=(
            {"texts": 3, "length": 7, "images": 2},
            {"texts": 1, "length": 16, "images": 4},
            {"texts": 5, "length": 2, "images": 1},
        ),
        bounds={"texts": (1, 8), "images": (1, 8)},
    ),
    Entry("LSTM-tagger", "an own class: embedding, bidirectional LSTM, linear", Tagger, {"ids": tokens("batch", 5)}),
)
