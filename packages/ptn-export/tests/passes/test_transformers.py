"""The spellings of real models: small ones of Hugging Face's classes, with random weights."""

import pytest
import torch
import transformers
from torch import nn

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
WIDE_HEADS = {"head_dim": 8}

# model -> further settings, the implementation of attention, and what each pass finds in two layers
MODELS = {
    "Llama": ({}, "eager", {"rms_norm": 5, "rope": 4, "attention": 2, "gqa": 2}),
    "Qwen3": (WIDE_HEADS, "sdpa", {"rms_norm": 9, "rope": 4, "attention": 0, "gqa": 2}),
    "Gemma": (WIDE_HEADS, "eager", {"rms_norm": 5, "rope": 4, "attention": 2, "gqa": 2}),
    # Caps its scores, so its attention stays spelled out.
    "Gemma2": (WIDE_HEADS, "eager", {"rms_norm": 9, "rope": 4, "attention": 0, "gqa": 0}),
    "Phi": ({"partial_rotary_factor": 0.5}, "eager", {"rms_norm": 0, "rope": 4, "attention": 2, "gqa": 2}),
    "GPTNeoX": ({"rotary_pct": 0.5}, "eager", {"rms_norm": 0, "rope": 4, "attention": 2, "gqa": 0}),
    "Gemma3Text": (WIDE_HEADS, "sdpa", {"rms_norm": 13, "rope": 4, "attention": 0, "gqa": 2}),
    "Phi3": ({"partial_rotary_factor": 0.5}, "eager", {"rms_norm": 5, "rope": 4, "attention": 2, "gqa": 2}),
    # Channels next to each other, half of them.
    "Glm": (WIDE_HEADS | {"partial_rotary_factor": 0.5}, "eager", {"rms_norm": 5, "rope": 4, "attention": 2, "gqa": 2}),
    # Complex numbers, and a mixture of experts.
    "Llama4Text": (
        {"head_dim": 8, "num_local_experts": 2, "intermediate_size_mlp": 48},
        "eager",
        {"rms_norm": 9, "rope": 4, "attention": 2, "gqa": 2},
    ),
    # Its layer norms are RMS norms of what is left without the mean.
    "Cohere": ({}, "eager", {"rms_norm": 3, "rope": 4, "attention": 2, "gqa": 2}),
}


class Logits(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(input_ids=ids, use_cache=False).logits


@pytest.mark.filterwarnings("ignore")  # of the library, about itself
@pytest.mark.parametrize("name", MODELS)
def test_models(check_rewrite, operators, name):
    settings, attention, expected = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES, **settings)
    config._attn_implementation = attention
    model = Logits(transformers.AutoModelForCausalLM.from_config(config).eval().requires_grad_(False))
    native = check_rewrite(model, (torch.randint(3, 50, (2, 5)),), expect=expected, rtol=1e-3, atol=1e-4)
    assert not set(operators(native)) & {"aten.cos.default", "aten.sin.default"}
    assert "aten._softmax.default" not in operators(native) or name == "Gemma2"
