"""Models of speech."""

from __future__ import annotations

import transformers

from zoo.entry import VOCABULARY, Entry, floats, tokens

FRAMES = 64  # of the spectrogram; the encoder takes all of it at once, and halves it


def whisper() -> transformers.WhisperModel:
    sizes = {
        "vocab_size": VOCABULARY,
        "num_mel_bins": 8,
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
        "max_source_positions": FRAMES // 2,
        "max_target_positions": 64,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 1,
    }
    return transformers.WhisperModel(transformers.WhisperConfig(**sizes, use_cache=False))


ENTRIES = (
    Entry(
        "Whisper-encoder",
        "transformers.WhisperModel(...).encoder",
        lambda: whisper().encoder,
        {"input_features": floats("batch", 8, FRAMES)},
        sizes=({"batch": 2}, {"batch": 1}, {"batch": 5}),
    ),
    Entry(
        "Whisper-decoder",
        "transformers.WhisperModel(...).decoder",
        lambda: whisper().decoder,
        {"input_ids": tokens("batch", "length"), "encoder_hidden_states": floats("batch", FRAMES // 2, 32)},
    ),
)
