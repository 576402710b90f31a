"""Gives memory that a program knows by two names one name.

A module may keep a tensor outside its registered buffers, in a cache object or a list, for example, and register it
as a buffer too: so do the modules of `transformers` that export a static cache. `torch.export` then has the buffer, and
a constant of a name that it made up, for one and the same tensor. PyTorch cannot decompose such a program once it
changes the tensor, and a package would hold the old contents beside the state.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec

__all__ = ["merge_aliases"]


def merge_aliases(program: ExportedProgram) -> None:
    """Changes a private program so that it reads constants that are buffers as those buffers.

    The graph module is replaced by a copy where there is something to do.
    """
    buffers: dict[Any, str] = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.BUFFER and (identity := _identity(program, spec)) is not None:
            buffers.setdefault(identity, spec.arg.name)
    aliases = {
        spec.arg.name: buffers[identity]
        for spec in program.graph_signature.input_specs
        if spec.kind is InputKind.CONSTANT_TENSOR and (identity := _identity(program, spec)) in buffers
    }
    if not aliases:
        return
    module = copy.deepcopy(program.graph_module)
    placeholders = {node.name: node for node in module.graph.nodes if node.op == "placeholder"}
    for alias, name in aliases.items():
        buffer, node = placeholders[name], placeholders[alias]
        node.replace_all_uses_with(buffer)
        module.graph.erase_node(node)
    module.recompile()
    program._graph_module = module
    signature = program.graph_signature
    kept = [spec for spec in signature.input_specs if spec.arg.name not in aliases]
    program._graph_signature = ExportGraphSignature(kept, signature.output_specs)
    used = {spec.target for spec in kept}
    program._constants = {name: value for name, value in program.constants.items() if name in used}


def _identity(program: ExportedProgram, spec: InputSpec) -> Any:
    """Equal for inputs that are the same dense tensor; None for everything else."""
    data = program.state_dict.get(spec.target or "")
    data = program.constants.get(spec.target or "") if data is None else data
    if type(data) not in (torch.Tensor, torch.nn.Buffer) or data.layout is not torch.strided or not data.numel():
        return None
    return data.data_ptr(), data.device, data.dtype, tuple(data.shape), data.stride()
