"""Constants that are stored packed: found in each method, agreed on between methods, packed when they are saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from ptn_format.graph import AffineGroup, TensorMeta
from torch import fx

from ptn_export.bodies import Problems
from ptn_export.constants import Constant
from ptn_export.errors import ExportError, Problem
from ptn_export.gguf_graph import gguf_weights
from ptn_export.torchao import PackedConstant, affine_weights

__all__ = ["agreed_packings", "find_packed", "pack", "with_keys"]


def find_packed(
    module: fx.GraphModule, constants: Mapping[str, torch.Tensor], problems: Problems
) -> dict[str, TensorMeta]:
    """Finds the constants of a method that can be stored packed, and lets readers of GGUF blocks read them directly.

    Args:
        module: the decomposed program after all passes; it is changed.
        constants: by placeholder, the data of read-only constants.
        problems: takes what is wrong.

    Returns:
        By placeholder, what the file says of it; keys of scales and zero points are names of placeholders.
    """
    return {**affine_weights(module.graph, constants), **gguf_weights(module, constants, problems)}


def with_keys(meta: TensorMeta, keys: Mapping[str, str]) -> TensorMeta:
    """`meta` with data keys in the place of names of placeholders."""
    quant = meta.quant
    if not isinstance(quant, AffineGroup):
        return meta
    zero_point = quant.zero_point_data_key
    return replace(
        meta,
        quant=replace(
            quant,
            scale_data_key=keys[quant.scale_data_key],
            zero_point_data_key=keys[zero_point] if zero_point is not None else None,
        ),
    )


def agreed_packings(methods: Mapping[str, Mapping[str, TensorMeta | None]]) -> dict[str, TensorMeta]:
    """The constants that every method that uses them reads in the same packed form.

    Args:
        methods: by method and key, the packed form that the method can read; None where it reads the constant plain.

    Raises:
        ExportError: one method reads the blocks of a GGUF weight through their codec, another as plain bytes.
    """
    readings: dict[str, dict[str, TensorMeta | None]] = {}
    for name, packings in methods.items():
        for key, meta in packings.items():
            readings.setdefault(key, {})[name] = meta
    agreed, problems = {}, []
    for key, by_method in readings.items():
        first = next(iter(by_method.values()))
        if first is not None and all(meta == first for meta in by_method.values()):
            agreed[key] = first
        elif any(meta is not None and not isinstance(meta.quant, AffineGroup) for meta in by_method.values()):
            reason = f"methods {', '.join(map(repr, by_method))} read these GGUF blocks in different ways"
            problems.append(
                Problem("constant", reason, "read the weight through linear or embedding", place=f"'{key}'")
            )
    if problems:
        raise ExportError(problems)
    return agreed


def pack(constants: Mapping[str, Constant], packed: Mapping[str, TensorMeta]) -> dict[str, Constant]:
    """`constants`, those of affine schemes in packed form; GGUF blocks are stored as they are."""
    result = dict(constants)
    for key, meta in packed.items():
        if isinstance(meta.quant, AffineGroup):
            result[key] = PackedConstant(constants[key].tensor, meta.quant)
    return result
