"""Loads ggml before the extension module is imported, as the engine does."""

from ptn_engine_ggml import libggml

libggml.load()
