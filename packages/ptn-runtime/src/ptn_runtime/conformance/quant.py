"""Cases of the family `quant`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from ptn_format.dtypes import ScalarType as T

from ptn_runtime.conformance.case import Case, floats, integers

CHOOSE = "torchao.choose_qparams_affine.default"
QUANTIZE = "torchao.quantize_affine.default"
DEQUANTIZE = "torchao.dequantize_affine.default"
WEIGHTS = frozenset({"scale", "zero_point"})


def cases() -> Iterator[Case]:
    """Every case of the family."""
    x = floats(2, 3, 32)
    for mapping in ("SYMMETRIC", "ASYMMETRIC", "SYMMETRIC_NO_CLIPPING_ERR"):
        for keepdim in (False, True):
            args = {
                "input": x,
                "mapping_type": mapping,
                "block_size": (1, 1, 32),
                "target_dtype": T.CHAR,
                "quant_min": -128,
                "quant_max": 127,
                "eps": None,
                "scale_dtype": None,
                "zero_point_dtype": T.CHAR,
                "keepdim": keepdim,
            }
            yield Case(CHOOSE, f"{mapping.lower()}{', kept' if keepdim else ''}", args)
    scale = floats(4, 2, low=0.01, high=0.1)
    zero_point = integers(4, 2, dtype=T.CHAR, low=-3, high=4)
    common = {"block_size": (1, 16), "scale": scale}
    q = integers(4, 32, dtype=T.CHAR, low=-8, high=8)
    to_float = {"input_dtype": T.CHAR, "quant_min": -8, "quant_max": 7, "output_dtype": T.FLOAT}
    yield Case(
        DEQUANTIZE,
        "groups",
        {"input": q, **common, "zero_point": zero_point, **to_float},
        constants=WEIGHTS | {"input"},
    )
    yield Case(DEQUANTIZE, "symmetric", {"input": q, **common, "zero_point": None, **to_float})
    channels = {"block_size": (1, 32), "scale": scale[:, :1], "zero_point": zero_point[:, :1]}
    yield Case(DEQUANTIZE, "channels", {"input": q, **channels, **to_float})
    half = {**to_float, "output_dtype": T.HALF}
    yield Case(DEQUANTIZE, "to float16", {"input": q, **common, "zero_point": zero_point, **half})
    to_int = {"output_dtype": T.CHAR, "quant_min": -128, "quant_max": 127}
    ties = np.array([[-0.75, -0.25, 0.25, 0.75]], np.float32)
    one = {"block_size": (1, 4), "scale": np.array([[0.5]], np.float32), "zero_point": np.array([[0]], np.int8)}
    even = (np.array([[-2, 0, 0, 2]], np.int8),)
    yield Case(QUANTIZE, "half to even", {"input": ties, **one, **to_int}, even)
    yield Case(QUANTIZE, "groups", {"input": floats(4, 32), **common, "zero_point": zero_point, **to_int})
    yield Case(
        QUANTIZE, "clamps", {"input": floats(4, 32, low=-99, high=99), **common, "zero_point": zero_point, **to_int}
    )
