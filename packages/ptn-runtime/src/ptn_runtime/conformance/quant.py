"""Cases of the family `quant`."""

from __future__ import annotations

import base64
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


GGUF_VALUES = {
    "q4_k": (
        "7wCa/zUA0ABrARYAsQBMAff/kgAtAdj/cwAOAbn/VADvAJr/NQDQAGsBFgCxAEwB9/+SAC0B2P9zAA4Buf9UAOT/8P/4/wAACADU"
        "/9z/5P/w//j/AAAMANT/3P/o//D/+P8EAAwA1P/c/+j/8P/4/wQADADU/+D/6P/w//z/BABJAYb/UwAgAe0BKgD3AMQBAQDOAJsB"
        "2P+lAHIBr/98AEkBhv9TACAB7QEqAPcAxAEBAM4AmwHY/6UAcgGv/3wAjgDY//T/EAAsAFYAcgCOANj/9P8QADoAVgByALz/2P/0"
        "/x4AOgBWAHIAvP/Y//T/HgA6AFYAgAC8/9j/AgAeAJUB6P+rAG4BMQKEAEcBCgJdACAB4wE2APkAvAEPANIAlQHo/6sAbgExAoQA"
        "RwEKAl0AIAHjATYA+QC8AQ8A0gDgAZQCDAPE/zwA8ABoAeABlAIMA8T/eADwAGgBHAKUAgwDAAB4APAAaAEcApQCDAMAAHgA8ACk"
        "ARwClAJIAwAA+QHe/9MAyAG9AqIAlwGMAnEAZgFbAkAANQEqAg8ABAH5Ad7/0wDIAb0CogCXAYwCcQBmAVsCQAA1ASoCDwAEAcz/"
        "3v/q//b/AgAUAMD/zP/e/+r/9v8IABQAwP/S/97/6v/8/wgAFADA/9L/3v/q//z/CAAUAMb/0v/e//D//P8="
    ),
    "q5_k": (
        "3wKa/yUC0ABbAxYAoQJMAecBkgAdA9j/YwIOAakBVADfApr/JQLQAFsDFgChAkwB5wGSAB0D2P9jAg4BqQFUAEwA2P/g/ygAMAD8"
        "/wQATAAYAOD/6P80ADwABADQ/xgAIADs//T/PABEAND/2P8gACwA9P/8/0gAEADY/+T/LABJAYb/4wIgAX0EugL3AFQEAQDOACsE"
        "2P81AwIEr/8MA0kBhv/jAiABfQS6AvcAVAQBAM4AKwTY/zUDAgSv/wwDGgFkAIAAnAC4AAIA/gAaAWQAYAGcAOb/AgD+AEgAZABg"
        "Acr/5v/iAP4ASABEAWAByv/GAOIALABIAEQBjgDK/wUE6P+rAG4BMQL0ArcDegRdACAB4wGmAmkDLAQPANIAlQFYAhsD3gOhBIQA"
        "RwEKAs0CkANTBDYA+QC8AX8CQgN4ACwBZAUcAlQGSAPAA3gALAFkBRwCkAZIA8ADdAQsAWQFWAKQBkgDwAN0BCwBZAVYApAGSAM8"
        "AHQELAGgBVgCCQXe/9MA2ATNBaIAlwGcBXEAZgFrBVADNQEqAh8DBAH5Ae4C4wPIAb0CsgOXAYwCgQN2BFsCUANFBCoCDwAUBAgA"
        "GgAmADIAPgDw//z/CAAaACYAMgBEAPD//P8OABoAJgA4AEQA8P/8/w4AGgAmADgARADw/wIADgAaACwAOAA="
    ),
    "q6_k": (
        "afqgBkcC7v2V+cwFcwEa/RH8+ASfAJb/PfskBBsDwv5Q/gACsABg/xD+wAFwACD/0P6AATAA4P+Q/kAB8ACg/+cAYP0Z/9IAiwIE"
        "/70AdgKf/agAYQKK/UP/TAJ1/S7/fgLA+IL9RAIGB0j9CgLMBm750AGSBjT59v1YBvr4vP0g9A0H6/uJCGf9lPgyBSD0DQfr+4kI"
        "tgOU+DIFb/oNB1QFoAso+7AJOPlEB8z2VAWgCyj7sAn88EQHzPYY/aALmvyV+3f1OfrbCWYDuAKa/JX7d/U5+oQJZgO4AkP8lfvy"
        "+dwFeAX0AZAB2v12/fL53AV4BfQBXgHa/Xb94PzcBaH+oAGPAH7/bf5sAVsASv8J/zgBJwDm/9X+BAHDALL/iAIA/fj+8ADoAmD9"
        "WP9QAcgBwP24/zAAKAIg/pj+kACfAmD4Yf1iAmMHJP0lAiYHF/noAekG2vjb/awGnfie/TYEwPPK+9QD3gto+3IDfAvm9BADGguE"
        "9I78uAoi9Cz8HP5BBC/0XQJL8gAALg4c/kEEL/RdAoIIAAAuDhP2QQTM9xD86AUAANgJHPn0Asz3EPzoBQAARAQc+fQCOAcQ/E4D"
        "wQJjAhX/t/46+6wDTgPBAmMCFf+Y+zr7rAMfA8ECggDE/xD//P7IAKoAlgCCAMT/EP/8/r4AqgCWANj/xP8="
    ),
}
"""What ggml's own decoder makes of the block whose byte `i` is `(37 * i + 11) % 256`, with 2**-6 as its scale and 2**-5
as its scale of minima: 64 times the values as little-endian int16 in base64."""


def literal_blocks() -> Iterator[Case]:
    """One block of each type that the file has an operator for."""
    for ggml_type, nbytes, scale_at in (("q4_k", 144, 0), ("q5_k", 176, 0), ("q6_k", 210, 208)):
        block = ((np.arange(nbytes) * 37 + 11) % 256).astype(np.uint8)
        block[scale_at : scale_at + 2] = np.array([2.0**-6], np.float16).view(np.uint8)
        if ggml_type != "q6_k":
            block[2:4] = np.array([2.0**-5], np.float16).view(np.uint8)
        wide = np.frombuffer(base64.b64decode(GGUF_VALUES[ggml_type]), "<i2").astype(np.float32) / 64
        for dtype in (T.FLOAT, T.HALF, T.BFLOAT16):
            args = {"weight": block.reshape(1, -1), "ggml_type": ggml_type, "output_dtype": dtype}
            expected = (wide.reshape(1, -1).astype(dtype.numpy),)
            yield Case("torchao.dequantize_gguf.default", f"{ggml_type}, literal, {dtype.torch_name}", args, expected)


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


def chosen(prefix: str) -> Iterator[Case]:
    """Ranges for tensors and for their rows."""
    sources = {
        "mixed signs": floats(4, 6, low=-3, high=9),
        "positive": floats(2, 3, low=2, high=5),
        "negative": floats(2, 3, low=-5, high=-2),
        "zeros": np.zeros((2, 3), np.float32),
        "infinite": np.array([[1, -np.inf], [np.inf, 3]], np.float32),
        "NaN": np.array([[1, np.nan], [2, 3]], np.float32),
    }
    sources |= {f"{dtype.torch_name}": floats(4, 6, dtype=dtype, low=-3, high=9) for dtype in (T.HALF, T.BFLOAT16)}
    limits = {T.CHAR: {"quant_min": -128, "quant_max": 127}, T.BYTE: {"quant_min": 0, "quant_max": 255}}
    for name, x in sources.items():
        # Integers made of NaN are what the processor makes of them.
        free = frozenset() if np.isfinite(x.astype(np.float32)).all() else frozenset({1})
        for dtype, bounds in limits.items():
            args = {"input": x, **bounds, "eps": 1e-5, "dtype": dtype}
            for op in (f"{prefix}.tensor", f"{prefix}_symmetric.tensor"):
                yield Case(op, f"{name}, {dtype.torch_name}", args, free_results=free)
        row = {"input": x, "dtype": T.CHAR}
        implementation = prefix.replace("choose", "_choose") + "_per_token_asymmetric_impl"
        for op in (f"{prefix}_per_token", f"{prefix}_per_token_asymmetric", implementation):
            yield Case(f"{op}.default", name, row, free_results=free)
    ends = {"input": np.array([-1, 4], np.float32), "quant_min": -128, "quant_max": 127, "eps": 1e-5, "dtype": T.CHAR}
    step = float(np.float32(5) / np.float32(255))
    yield Case(f"{prefix}.tensor", "literal", ends, (np.array([step]), np.array([-77])))
    half = {**ends, "input": np.array([-1, 127.5], np.float32)}
    yield Case(f"{prefix}_symmetric.tensor", "literal", half, (np.array([1.0]), np.array([0])))


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
    # With the limits exchanged the upper one holds, as in torch.clamp.
    exchanged = {"quant_min": 5, "quant_max": -5, "dtype": T.CHAR}
    row = {"input": np.array([-5, -0.3, 0, 0.3, 5], np.float32), "scale": 0.1, "zero_point": 0}
    fives = (np.full(5, -5, np.int8),)
    yield Case(f"{prefix}.quantize_per_tensor.default", "limits exchanged", {**row, **exchanged}, fives)
    column = {"input": row["input"], "scales": np.full(5, 0.1, np.float32), "zero_points": np.zeros(5, np.int64)}
    yield Case(f"{prefix}.quantize_per_channel.default", "limits exchanged", {**column, "axis": 0, **exchanged}, fives)
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
    yield from chosen(f"{prefix}.choose_qparams")
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
    yield from literal_blocks()
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
    exchanged = {"output_dtype": T.CHAR, "quant_min": 5, "quant_max": -5}
    upper = (np.full((1, 4), -5, np.int8),)
    yield Case(QUANTIZE, "limits exchanged", {"input": ties, **one, **exchanged}, upper)
    yield Case(QUANTIZE, "groups", {"input": floats(4, 32), **common, "zero_point": zero_point, **to_int})
    yield Case(
        QUANTIZE, "clamps", {"input": floats(4, 32, low=-99, high=99), **common, "zero_point": zero_point, **to_int}
    )
