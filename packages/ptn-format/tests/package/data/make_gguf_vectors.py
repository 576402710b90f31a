"""Writes `gguf_vectors.npz`: random blocks of every GGUF type, and the values that ggml's own C code decodes.

Run as `python make_gguf_vectors.py PATH/libggml-base.so`, for ggml 0.20.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import numpy as np
from ptn_format.gguf_blocks import GGUF_TYPES

BLOCKS = 3


class TypeTraits(ctypes.Structure):
    """The first fields of ggml's `struct ggml_type_traits`."""

    _fields_ = [
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
    ]


def main() -> None:
    library = ctypes.CDLL(sys.argv[1])
    library.ggml_get_type_traits.restype = ctypes.POINTER(TypeTraits)
    rng = np.random.default_rng(0)
    arrays = {}
    for kind in GGUF_TYPES.values():
        traits = library.ggml_get_type_traits(kind.ggml_type).contents
        assert traits.type_name.decode().lower() == kind.name
        assert (traits.blck_size, traits.type_size) == (kind.elements, kind.nbytes)
        blocks = rng.integers(0, 256, (BLOCKS, kind.nbytes), np.uint8)
        values = np.empty((BLOCKS, kind.elements), np.float32)
        traits.to_float(blocks.ctypes.data, values.ctypes.data, values.size)
        arrays[f"{kind.name}.blocks"] = blocks
        arrays[f"{kind.name}.values"] = values
    np.savez_compressed(Path(__file__).with_name("gguf_vectors.npz"), **arrays)


if __name__ == "__main__":
    main()
