"""Models of language."""

from __future__ import annotations

import transformers

from zoo.entry import VOCABULARY, Entry, mask, tokens

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
IDS = tokens("batch", "length")

ENTRIES = (
    Entry(
        "BERT",
        "transformers.BertModel",
        lambda: transformers.BertModel(transformers.BertConfig(**SIZES)),
        {"input_ids": IDS, "attention_mask": mask("batch", "length")},
    ),
)
