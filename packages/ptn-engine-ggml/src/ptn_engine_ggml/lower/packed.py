"""Weights that stay packed: a linear layer and an embedding read them through kernels that decode a few rows at a time.

In the static graph a packed constant is read by explicit nodes (`ptn.dequantize_packed`, `torchao.dequantize_affine` of
integers, ...). Where nothing but `linear` and `embedding` reads the result, no node is made for it: its value is a
`PackedWeight`, which those two lowerings take in the place of a tensor. The numbers are those of the decoded weight,
multiplied and summed in float32. Where something else reads it, such as a convolution, it is decoded once per context
and kept.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ptn_format.dtypes import ScalarType
from ptn_format.errors import ConstantError
from ptn_format.graph import AffineGroup, PackedQuant
from ptn_format.quant import affine_bits, gguf_type
from ptn_runtime.engine import StaticNode, Value

from ptn_engine_ggml.lower.common import float32
from ptn_engine_ggml.lower.registry import FLOATS

if TYPE_CHECKING:
    from ptn_engine_ggml._native import Builder, Tensor

__all__ = ["PackedWeight", "Plan", "packed_linear", "packed_rows", "plan"]

_BLOCKS, _STREAM, _INT8 = 0, 1, 2
"""Kinds of `native/kernels/quant_product.cpp`."""
_UNPACK = "ptn.unpack_affine.default"
_DECODERS = frozenset(
    {
        "ptn.dequantize_packed.default",
        "torchao.dequantize_affine.default",
        "torchao.dequantize_gguf.default",
        "torchao.dequantize_int4_tensor.default",
        "quantized_decomposed.dequantize_per_tensor.default",
        "quantized_decomposed.dequantize_per_channel.default",
        "quantized_decomposed.dequantize_per_channel_group.default",
    }
)
_READERS: Mapping[str, str] = {"aten.linear.default": "input", "aten.embedding.default": "indices"}
"""Operators that take packed weights, with their other tensor that may be anything but the weight itself."""


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A matrix in packed form.

    Attributes:
        dtype: what its values are rounded to.
        shape: rows and columns.
        tensors: ids of the values that the kernels read: bytes, scales, zero points.
        ints: kind and parameters of the kernels.
    """

    dtype: ScalarType
    shape: tuple[int, ...]
    tensors: tuple[int, ...]
    ints: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of the nodes that decode constants.

    Attributes:
        packed: by id of a node's result, the weight that its readers take in packed form.
        once: by id of a node's result, the nodes that compute it from constants alone, for the first build of a
            context to run; later ones and those of forks find the result among the constants.
        skipped: ids of results that only nodes of these two kinds read.
    """

    packed: Mapping[int, PackedWeight]
    once: Mapping[int, tuple[StaticNode, ...]]
    skipped: Collection[int]


def plan(nodes: Sequence[StaticNode], constants: Sequence[Value], wanted: Collection[int]) -> Plan:
    """Finds the nodes that need not be built into a graph.

    Args:
        nodes: those that are about to be lowered.
        constants: the values that constants fill.
        wanted: ids of values that must exist as tensors of their own.
    """
    readers: dict[int, list[StaticNode]] = {}
    for node in nodes:
        for value in node.inputs():
            readers.setdefault(value.id, []).append(node)
    known = {value.id for value in constants}
    keyed = {value.id for value in constants if value.key is not None}
    unpacked = {node.outputs[0].id: node for node in nodes if node.op == _UNPACK}
    packed: dict[int, PackedWeight] = {}
    once: dict[int, tuple[StaticNode, ...]] = {}
    for node in nodes:
        if node.op not in _DECODERS or node.outputs[0].id in wanted:
            continue
        result = node.outputs[0]
        weight = None
        if all(_reads_rows(reader, result) for reader in readers.get(result.id, ())):
            weight = _weight(node, known, unpacked)
        if weight is not None:
            packed[result.id] = weight
            continue
        before = tuple(unpacked[value.id] for value in node.inputs() if value.id in unpacked)
        sources = {value.id for each in (node, *before) for value in each.inputs()} - unpacked.keys()
        if sources <= keyed and result.numel:
            once[result.id] = (*before, node)
    decoded = packed.keys() | once.keys()
    skipped = {
        id_
        for id_ in unpacked
        if id_ not in wanted and all(reader.outputs[0].id in decoded for reader in readers.get(id_, ()))
    }
    return Plan(packed, once, skipped)


def packed_linear(b: Builder, x: Tensor, weight: tuple[PackedWeight, Sequence[Tensor]]) -> Tensor:
    """`x @ weight.T` in float32: x [..., K], weight [N, K] -> [..., N]."""
    packed, tensors = weight
    shape = (*x.shape[:-1], packed.shape[0])
    inputs = (float32(b, x), *tensors)
    return b.custom("quant.linear", inputs, [(int(ScalarType.FLOAT), shape)], packed.ints, ())[0]


def packed_rows(b: Builder, weight: tuple[PackedWeight, Sequence[Tensor]], indices: Tensor) -> Tensor:
    """Rows of a packed matrix: [*indices.shape, K] of the weight's dtype."""
    packed, tensors = weight
    shape = (*indices.shape, packed.shape[1])
    return b.custom("quant.rows", (indices, *tensors), [(int(packed.dtype), shape)], packed.ints, ())[0]


def _reads_rows(node: StaticNode, weight: Value) -> bool:
    """Whether `node` takes `weight` as its packed matrix, and nowhere else."""
    other = _READERS.get(node.op)
    if other is None:
        return False
    if (
        sum(value.id == weight.id for value in node.inputs()) != 1
        or getattr(node.args.get("weight"), "id", None) != weight.id
    ):
        return False
    operand = node.args[other]
    if not isinstance(operand, Value) or operand.numel == 0 or node.outputs[0].numel == 0:
        return False
    return other == "indices" or operand.dtype in FLOATS


def _weight(node: StaticNode, constants: Collection[int], unpacked: Mapping[int, StaticNode]) -> PackedWeight | None:
    """What the kernels need to read the result of `node`; None where they cannot."""
    result = node.outputs[0]
    if result.dtype not in FLOATS or len(result.shape) != 2 or result.numel == 0:
        return None
    args: Mapping[str, Any] = node.args
    if node.op == "torchao.dequantize_gguf.default":
        found = _blocks(args["weight"], str(args["ggml_type"]))
    elif node.op == "torchao.dequantize_affine.default":
        found = _affine(args, result, unpacked)
    elif node.op == "quantized_decomposed.dequantize_per_channel.default":
        found = _channels(args, result)
    elif node.op != "ptn.dequantize_packed.default":
        return None
    elif isinstance(args["scheme"], PackedQuant):
        found = _blocks(args["packed"], args["scheme"].codec.removeprefix("gguf:"))
    else:
        group = args["scheme"].group_size or result.shape[1]
        found = _stream(args["packed"], args["scheme"], group, args.get("scale"), args.get("zero_point"))
    if found is None:
        return None
    tensors, ints = found
    if not all(value.id in constants for value in tensors):
        return None
    rows, columns = result.shape
    return PackedWeight(
        result.dtype, result.shape, tuple(value.id for value in tensors), (rows, columns, int(result.dtype), *ints)
    )


_Found = tuple[tuple[Value, ...], tuple[int, ...]]


def _blocks(blocks: Value, name: str) -> _Found | None:
    try:
        kind = gguf_type(f"gguf:{name}")
    except ConstantError:
        return None
    return (blocks,), (_BLOCKS, kind.ggml_type)


def _stream(
    packed: Value, scheme: AffineGroup, group: int, scale: Value | None, zero_point: Value | None
) -> _Found | None:
    if scale is None:
        return None
    tensors = (packed, scale) if zero_point is None else (packed, scale, zero_point)
    return tensors, (_STREAM, affine_bits(scheme), scheme.quant_min, group, int(zero_point is not None))


def _affine(args: Mapping[str, Any], result: Value, unpacked: Mapping[int, StaticNode]) -> _Found | None:
    """`torchao.dequantize_affine` of a packed constant's integers, or of an int8 constant."""
    block, scale, zero_point = args["block_size"], args["scale"], args["zero_point"]
    if (block[0] != 1 and result.shape[0] != 1) or block[1] <= 0 or result.shape[1] % block[1]:
        return None
    if scale.numel != result.numel // block[1]:
        return None
    if zero_point is not None and zero_point.numel == 0:
        zero_point = None
    integers = args["input"]
    source = unpacked.get(integers.id)
    if source is not None:
        given: Mapping[str, Any] = source.args
        return _stream(given["packed"], given["scheme"], block[1], scale, zero_point)
    return _int8(integers, block[1], scale, zero_point)


def _channels(args: Mapping[str, Any], result: Value) -> _Found | None:
    """`quantized_decomposed.dequantize_per_channel` of an int8 constant, one scale a row."""
    if args["axis"] not in (0, -2) or args["scales"].numel != result.shape[0]:
        return None
    return _int8(args["input"], result.shape[1], args["scales"], args["zero_points"])


def _int8(integers: Value, group: int, scale: Value, zero_point: Value | None) -> _Found | None:
    if integers.dtype is not ScalarType.CHAR:
        return None
    tensors = (integers, scale) if zero_point is None else (integers, scale, zero_point)
    return tensors, (_INT8, group, int(zero_point is not None))
