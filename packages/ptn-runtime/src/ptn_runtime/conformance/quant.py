"""Cases of the family `quant`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from ptn_format.dtypes import ScalarType as T
from ptn_format.graph import AffineGroup, Dim, IntListArg, PackedQuant, QuantScheme, ScalarTypeArg, TensorMeta
from ptn_format.quant import pack_affine

from ptn_runtime.conformance.case import Array, Case, floats, integers
from ptn_runtime.conformance.programs import MethodBuilder, pack, static_meta

CHOOSE = "torchao.choose_qparams_affine.default"
QUANTIZE = "torchao.quantize_affine.default"
DEQUANTIZE = "torchao.dequantize_affine.default"
WEIGHTS = frozenset({"scale", "zero_point"})


def packed_constant(args: Mapping[str, Any], scheme: QuantScheme) -> tuple[MethodBuilder, dict[str, Array]]:
    """A method that has `args["packed"]` as the constant `weight`, and the package's constants."""
    method = MethodBuilder("forward")
    sizes = tuple(Dim(size, size) for size in args["sizes"])
    constants = {"weight": args["packed"]}
    method.constant("weight", args["packed"], TensorMeta(T.BYTE, sizes, quant=scheme))
    for name in ("scale", "zero_point"):
        if args.get(name) is not None:
            constants[name] = args[name]
            method.constant(name, args[name])
    return method, constants


def affine(args: Mapping[str, Any]) -> AffineGroup:
    """The scheme of a case's constant."""
    low, high, group = args["range"]
    zero_point = args["zero_point"]
    return AffineGroup(
        "scale",
        T.from_numpy(args["scale"].dtype),
        low,
        high,
        group,
        None if zero_point is None else "zero_point",
        T.BYTE if zero_point is None else T.from_numpy(zero_point.dtype),
    )


def packed_linear(args: Mapping[str, Any]) -> tuple[bytes, list[Array]]:
    """`linear(x, weight)` where the file has the weight packed."""
    x = args["x"]
    method, constants = packed_constant(args, affine(args) if "range" in args else PackedQuant(args["codec"]))
    method.input("x", *x.shape, dtype=T.from_numpy(x.dtype))
    shape = (Dim(x.shape[0], x.shape[0]), Dim(args["sizes"][0], args["sizes"][0]))
    meta = TensorMeta(T.from_numpy(x.dtype), shape)
    method.call("y", "aten.linear.default", meta, input="x", weight="weight", bias=None)
    method.result("y")
    return pack([method.build()], constants), [x]


def packed_integers(args: Mapping[str, Any]) -> tuple[bytes, list[Array]]:
    """`dequantize_affine(weight, ...)` where the file has the integers packed; `offset` is added to the result."""
    low, high, group = args["range"]
    rows, columns = args["sizes"]
    method, constants = packed_constant(args, affine(args))
    method.input("offset", rows, columns)
    meta = static_meta(args["offset"])
    method.call(
        "values",
        "torchao.dequantize_affine.default",
        meta,
        input="weight",
        block_size=IntListArg((1, group or columns)),
        scale="scale",
        zero_point="zero_point" if "zero_point" in constants else None,
        input_dtype=ScalarTypeArg(T.CHAR),
        quant_min=low,
        quant_max=high,
        output_dtype=ScalarTypeArg(T.FLOAT),
    )
    method.call("y", "aten.add.Tensor", meta, self="values", other="offset")
    method.result("y")
    return pack([method.build()], constants), [args["offset"]]


def packed() -> Iterator[Case]:
    """Constants that the file keeps packed. The expected values are computed here, from the unpacked integers."""
    x, offset = floats(3, 64, low=-1, high=1), floats(4, 64, seed=1)
    for bits, group, zeros in (
        (4, 32, False),
        (4, 32, True),
        (4, 64, True),
        (2, 16, False),
        (8, 0, False),
        (3, 32, True),
    ):
        low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        values = integers(4, 64, dtype=T.CHAR, low=low, high=high + 1)
        groups = 64 // (group or 64)
        scale = floats(4, groups, low=0.01, high=0.1)
        zero_point = integers(4, groups, dtype=T.CHAR, low=low, high=high, seed=1) if zeros else None
        scheme = AffineGroup("scale", T.FLOAT, low, high, group)
        args = {"x": x, "packed": pack_affine(values, scheme), "sizes": (4, 64), "range": (low, high, group)}
        args |= {"scale": scale, "zero_point": zero_point}
        shifted = values.reshape(4, groups, -1).astype(np.float32) - (
            0 if zero_point is None else zero_point[..., None]
        )
        weight = (shifted * scale[..., None]).reshape(4, 64).astype(np.float32)
        name = f"{bits} bits, groups of {group or 64}{', zero points' if zeros else ''}"
        yield Case("ptn.dequantize_packed.default", name, args, (x @ weight.T,), program=packed_linear, atol=1e-4)
        with_offset = {"offset": offset, **{key: value for key, value in args.items() if key != "x"}}
        yield Case("ptn.unpack_affine.default", name, with_offset, (weight + offset,), program=packed_integers)
    scales = np.linspace(0.01, 0.05, 8).astype(np.float16).reshape(4, 2, 1)
    bytes_of_scales = scales.view(np.uint8)
    eight = integers(4, 2, 32, dtype=T.CHAR, low=-127, high=128)
    blocks = {"gguf:q8_0": (np.concatenate([bytes_of_scales, eight.view(np.uint8)], axis=-1), eight)}
    nibbles = integers(4, 2, 32, dtype=T.BYTE, low=0, high=16)
    halves = nibbles[..., :16] | nibbles[..., 16:] << 4
    blocks["gguf:q4_0"] = (np.concatenate([bytes_of_scales, halves], axis=-1), nibbles.astype(np.int8) - 8)
    for codec, (data, quants) in blocks.items():
        weight = (scales.astype(np.float32) * quants).reshape(4, 64)
        args = {"x": x, "packed": data.reshape(4, -1), "sizes": (4, 64), "codec": codec}
        yield Case("ptn.dequantize_packed.default", codec, args, (x @ weight.T,), program=packed_linear, atol=1e-4)


def blocks_and_nibbles() -> Iterator[Case]:
    for ggml_type, nbytes, places in (("q4_k", 144, (0,)), ("q5_k", 176, (0,)), ("q6_k", 210, (208,))):
        weight = integers(3, 2, nbytes, dtype=T.BYTE, low=0, high=256)
        for place in places:  # the scales are float16: keep them in range
            weight[..., place : place + 2] = np.array([0.01], np.float16).view(np.uint8)
        if ggml_type != "q6_k":
            weight[..., 2:4] = np.array([0.002], np.float16).view(np.uint8)
        args = {"weight": weight.reshape(3, -1), "ggml_type": ggml_type}
        for dtype in (T.FLOAT, T.BFLOAT16):
            name = f"{ggml_type} to {dtype.torch_name}"
            yield Case("torchao.dequantize_gguf.default", name, {**args, "output_dtype": dtype},
                       constants=frozenset({"weight"}))  # fmt: skip
    qdata = np.array([[0x21, 0x43], [0xF0, 0x8A]], np.uint8)
    scale, zero_point = np.array([[0.5, 2.0]], np.float32), np.array([[1.0, 8.0]], np.float32)
    args = {"qdata": qdata, "scale": scale, "zero_point": zero_point, "group_size": 4}
    expected = (np.array([[0, 0.5, 1, 1.5], [-16, 14, 4, 0]], np.float32),)
    for dtype in (T.FLOAT, T.BFLOAT16):
        typed = (expected[0].astype(dtype.numpy),)
        yield Case("torchao.dequantize_int4_tensor.default", dtype.torch_name, {**args, "output_dtype": dtype}, typed)
    table = {
        "weight": np.array([[0x8F, 0x07], [0x9A, 0x80]], np.uint8),
        "weight_scales": np.array([0.5, 2.0], np.float32),
        "weight_zero_points": None,
        "weight_quant_min": -8,
        "weight_quant_max": 7,
        "indices": np.array([1, 0, 1]),
    }
    first, second = [0, 3.5, -4, -0.5], [2, 4, 0, -16]
    rows = (np.array([second, first, second], np.float32),)
    yield Case("quantized_decomposed.embedding_4bit.default", "scale per row", table, rows)
    half = {**table, "dtype": T.HALF}
    yield Case("quantized_decomposed.embedding_4bit.dtype", "to float16", half, (rows[0].astype(np.float16),))
    grouped = {**table, "weight_scales": np.array([[0.5, 1], [2, 1]], np.float32)}
    apart = (np.array([[2, 4, 0, -8], [0, 3.5, -8, -1], [2, 4, 0, -8]], np.float32),)
    yield Case("quantized_decomposed.embedding_4bit.default", "scale per group", grouped, apart)
    beyond = {**table, "indices": np.array([2])}
    yield Case("quantized_decomposed.embedding_4bit.default", "out of range", beyond, raises="IndexOutOfRangeError")


def decomposed() -> Iterator[Case]:
    """PyTorch's own quantisation operators."""
    prefix = "quantized_decomposed"
    x, q = floats(3, 8, low=-9, high=9), integers(3, 8, dtype=T.CHAR, low=-128, high=128)
    limits = {"quant_min": -128, "quant_max": 127, "dtype": T.CHAR}
    narrow = {"quant_min": -7, "quant_max": 7, "dtype": T.CHAR}
    unsigned = {"quant_min": 0, "quant_max": 255, "dtype": T.BYTE}
    plain = {"scale": 0.05, "zero_point": 3}
    tensors = {"scale": np.array([0.05]), "zero_point": np.array([3])}
    bounds = {"quant_min": np.array(-128), "quant_max": np.array(127), "dtype": T.CHAR}
    for op, source in (("quantize_per_tensor", x), ("dequantize_per_tensor", q)):
        yield Case(f"{prefix}.{op}.default", "int8", {"input": source, **plain, **limits})
        yield Case(f"{prefix}.{op}.tensor", "int8", {"input": source, **tensors, **limits})
        yield Case(f"{prefix}.{op}.tensor2", "int8", {"input": source, **tensors, **bounds})
    yield Case(f"{prefix}.quantize_per_tensor.default", "narrow range", {"input": x, **plain, **narrow})
    yield Case(f"{prefix}.quantize_per_tensor.default", "uint8", {"input": x, **plain, **unsigned})
    ties = {"input": np.array([0.25, 0.75, 1.25, -0.25], np.float32), "scale": 0.5, "zero_point": 0, **limits}
    yield Case(f"{prefix}.quantize_per_tensor.default", "half to even", ties, (np.array([0, 2, 2, 0], np.int8),))
    to_half = {"input": q, **plain, **limits, "out_dtype": T.HALF}
    yield Case(f"{prefix}.dequantize_per_tensor.default", "to float16", to_half)
    for axis in (0, 1):
        count = x.shape[axis]
        channels = {"scales": floats(count, low=0.05, high=0.2), "axis": axis}
        zero_points = integers(count, low=-3, high=4)
        for op, source in (("quantize_per_channel", x), ("dequantize_per_channel", q)):
            args = {"input": source, **channels, "zero_points": zero_points, **limits}
            yield Case(f"{prefix}.{op}.default", f"axis {axis}", args)
    token = {"scales": np.array([[0.1], [0.07], [0.2]]), "zero_points": np.array([[1], [0], [-4]])}
    yield Case(f"{prefix}.quantize_per_token.default", "int8", {"input": x, **token, **limits})
    back = {"input": q, **token, **limits, "output_dtype": T.FLOAT}
    yield Case(f"{prefix}.dequantize_per_token.default", "int8", back)
    groups = {"scales": floats(3, 2, low=0.05, high=0.2), "zero_points": integers(3, 2, dtype=T.INT, low=-3, high=4)}
    yield Case(
        f"{prefix}.quantize_per_channel_group.default", "groups of 4", {"input": x, **groups, **limits, "group_size": 4}
    )
    back = {"input": q, **groups, **limits, "group_size": 4, "output_dtype": T.FLOAT}
    yield Case(f"{prefix}.dequantize_per_channel_group.default", "groups of 4", back)
    for dtype in (T.HALF, T.LONG):
        yield Case(f"{prefix}.convert_element_type.no_fuse", dtype.torch_name, {"input": x, "dtype": dtype})


def cases() -> Iterator[Case]:
    """Every case of the family."""
    yield from packed()
    yield from blocks_and_nibbles()
    yield from decomposed()
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
