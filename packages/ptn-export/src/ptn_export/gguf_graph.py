"""Weights in GGUF blocks in a graph: their readers are made to read the blocks themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from ptn_format.dtypes import ScalarType
from ptn_format.errors import ConstantError
from ptn_format.graph import Dim, PackedQuant, TensorMeta
from ptn_format.quant import GGUFType, gguf_type
from torch import fx

from ptn_export.bodies import Problems

__all__ = ["gguf_weights"]

_aten = torch.ops.aten
_DEQUANTIZE = frozenset({"ptn.dequantize_gguf.default", "torchao.dequantize_gguf.default"})
"""Ours, and that of executorch: `(Tensor blocks, str ggml_type, ScalarType output_dtype=bfloat16)`."""
_WEIGHT_PLACE: dict[Any, int] = {_aten.linear.default: 1, _aten.embedding.default: 0}


def gguf_weights(
    module: fx.GraphModule, constants: Mapping[str, torch.Tensor], problems: Problems
) -> dict[str, TensorMeta]:
    """Takes the nodes that decode GGUF blocks out of a graph, where every reader of the blocks decodes them.

    A linear or an embedding reads the blocks in the place of its weight. Any other reader gets the values from a
    `_to_copy` of the blocks, whose result says to which type they are decoded.

    Args:
        module: the decomposed program after all passes; it is changed.
        constants: by placeholder, the data of read-only constants.
        problems: takes what cannot be expressed.

    Returns:
        By placeholder, what the file says of the blocks.
    """
    found: dict[str, TensorMeta] = {}
    refused: set[fx.Node] = set()
    for node in list(module.graph.nodes):
        data = constants.get(node.name) if node.op == "placeholder" else None
        readers = list(node.users)
        if data is None or not readers or not all(_is_dequantize(user) for user in readers):
            continue
        types = {str(user.args[1]) for user in readers}
        kind = _known(types.pop()) if len(types) == 1 else None
        if kind is None or data.dtype is not torch.uint8 or data.dim() != 2:
            continue
        if data.shape[1] % kind.nbytes:
            problems.add(
                "GGUF weight",
                f"a row has {data.shape[1]} bytes, which is no multiple of the {kind.nbytes} bytes of a {kind.name} "
                "block",
                "read the file anew; a matrix whose rows are not whole blocks cannot be quantised to this type",
                readers[0],
                place=f"'{node.name}'",
            )
            refused.update(readers)
            continue
        sizes = (data.shape[0], data.shape[1] // kind.nbytes * kind.elements)
        for reader in readers:
            _read_directly(module.graph, reader, node)
        codec = PackedQuant(f"gguf:{kind.name}")
        found[node.name] = TensorMeta(ScalarType.BYTE, tuple(Dim(size, size) for size in sizes), quant=codec)
    for body in module.modules():
        for node in body.graph.nodes if isinstance(body, fx.GraphModule) else ():
            if node.op == "call_function" and str(node.target) == "ptn.dequantize_gguf.default" and node not in refused:
                problems.add(
                    "GGUF weight",
                    "its blocks are read where a package cannot name their codec: in a branch or a loop, or together "
                    "with other uses of the raw bytes",
                    "dequantise this weight before the export (`weight.dequantize()`)",
                    node,
                )
    return found


def _is_dequantize(node: fx.Node) -> bool:
    return node.op == "call_function" and str(node.target) in _DEQUANTIZE


def _known(name: str) -> GGUFType | None:
    try:
        return gguf_type(f"gguf:{name}")
    except ConstantError:
        return None


def _read_directly(graph: fx.Graph, dequantize: fx.Node, blocks: fx.Node) -> None:
    """Lets the readers of `dequantize` read `blocks`."""
    values = dequantize.meta["val"]
    copy: fx.Node | None = None
    for user in list(dequantize.users):
        place = _WEIGHT_PLACE.get(user.target)
        places = [i for i, argument in enumerate(user.args) if argument is dequantize]
        if place is not None and places == [place] and _dtype(user) is values.dtype:
            user.update_arg(place, blocks)
            continue
        if copy is None:
            with graph.inserting_before(dequantize):
                copy = graph.call_function(_aten._to_copy.default, (blocks,), {"dtype": values.dtype})
            copy.meta = dict(dequantize.meta)
        user.replace_input_with(dequantize, copy)
    graph.erase_node(dequantize)


def _dtype(node: fx.Node) -> Any:
    value = node.meta.get("val")
    return value.dtype if isinstance(value, torch.Tensor) else None
