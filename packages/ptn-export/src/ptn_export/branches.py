"""Turns constants inside branches and loop bodies into operands.

PyTorch leaves a tensor that is created inside a branch (`torch.tensor([1.0, 2.0])`) as an attribute of the nested
graph, which its own decomposition then trips over. A nested graph of a package has no constants: the method binds
them and passes them down.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, TensorArgument

from ptn_export.passes import bodies

__all__ = ["lift_branch_constants"]

_OPERANDS = {"cond": 3, "map_impl": 2, "scan": 3, "while_loop": 3}
"""Which argument of a higher-order operator takes further operands."""


def lift_branch_constants(program: ExportedProgram) -> None:
    """Changes a private program so that no nested graph holds a tensor; its graph module is replaced by a copy."""
    nested = [body for body in bodies(program.graph_module) if body is not program.graph_module]
    if not any(_tensor_attributes(body) for body in nested):
        return
    module = copy.deepcopy(program.graph_module)
    _lift_from_children(module)
    _lift_to_inputs(program, module)
    module.recompile()
    program._graph_module = module


def _lift_from_children(module: fx.GraphModule) -> None:
    """Moves the tensors of every graph nested in `module` into `module` itself, innermost first."""
    for node in list(module.graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, torch._ops.HigherOrderOperator):
            continue
        place = _OPERANDS.get(str(node.target))
        children = list(_children(module, node))
        for child in children:
            _lift_from_children(child)
        if place is None:
            continue
        for child in children:
            for attribute in _tensor_attributes(child):
                operand = _take_over(module, child, attribute, node)
                arguments = list(node.args)
                arguments[place] = (*arguments[place], operand)
                node.args = tuple(arguments)
                for sibling in children:
                    _add_operand(sibling, attribute if sibling is child else None, operand)
                _forget(child, attribute)
        for child in children:
            child.recompile()


def _children(module: fx.GraphModule, node: fx.Node) -> Iterator[fx.GraphModule]:
    """The nested graphs that a higher-order call names, each once."""
    seen = set()
    for argument in node.args:
        if isinstance(argument, fx.Node) and argument.op == "get_attr" and argument.target not in seen:
            seen.add(argument.target)
            child = getattr(module, str(argument.target))
            if isinstance(child, fx.GraphModule):
                yield child


def _tensor_attributes(module: fx.GraphModule) -> list[str]:
    """Names of the tensors that the graph reads from its own module."""
    names = {
        str(node.target)
        for node in module.graph.nodes
        if node.op == "get_attr" and isinstance(_attribute(module, str(node.target)), torch.Tensor)
    }
    return sorted(names)


def _attribute(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part, None)
    return module


def _forget(module: Any, name: str) -> None:
    """Deletes an attribute that no node reads any more."""
    *path, last = name.split(".")
    delattr(_attribute(module, ".".join(path)) if path else module, last)


def _take_over(module: fx.GraphModule, child: fx.GraphModule, attribute: str, call: fx.Node) -> fx.Node:
    """Makes a tensor of `child` an attribute of `module`; returns the node that reads it."""
    tensor = _attribute(child, attribute)
    name, number = "_branch_constant", 0
    while hasattr(module, f"{name}{number}"):
        number += 1
    name = f"{name}{number}"
    module.register_buffer(name, tensor, persistent=False)
    with module.graph.inserting_before(call):
        node = module.graph.get_attr(name)
    reader = next(node for node in child.graph.nodes if node.op == "get_attr" and node.target == attribute)
    node.meta = dict(reader.meta)
    if "val" not in node.meta:
        mode = detect_fake_mode([other.meta["val"] for other in module.graph.nodes if "val" in other.meta])
        node.meta["val"] = mode.from_tensor(tensor) if mode is not None else tensor
    return node


def _add_operand(child: fx.GraphModule, attribute: str | None, operand: fx.Node) -> None:
    """Adds a last placeholder to `child`, which replaces the attribute where `child` had it."""
    placeholders = [node for node in child.graph.nodes if node.op == "placeholder"]
    with child.graph.inserting_after(placeholders[-1]) if placeholders else child.graph.inserting_before():
        placeholder = child.graph.placeholder(f"{operand.name}_operand")
    placeholder.meta = dict(operand.meta)
    if attribute is not None:
        for node in list(child.graph.nodes):
            if node.op == "get_attr" and node.target == attribute:
                node.replace_all_uses_with(placeholder)
                child.graph.erase_node(node)


def _lift_to_inputs(program: ExportedProgram, module: fx.GraphModule) -> None:
    """Makes the tensors that have reached the top graph constants of the program."""
    specs = list(program.graph_signature.input_specs)
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    first = next((i for i, spec in enumerate(specs) if spec.kind is InputKind.USER_INPUT), len(specs))
    for node in [node for node in module.graph.nodes if node.op == "get_attr"]:
        tensor = _attribute(module, str(node.target))
        if not isinstance(tensor, torch.Tensor):
            continue
        number = len(program._constants)
        while f"lifted_tensor_{number}" in program._constants:
            number += 1
        target = f"lifted_tensor_{number}"
        before = placeholders[first] if first < len(placeholders) else next(iter(module.graph.nodes))
        with module.graph.inserting_before(before):
            placeholder = module.graph.placeholder(f"c_{target}")
        placeholder.meta = {"val": node.meta["val"]}
        node.replace_all_uses_with(placeholder)
        module.graph.erase_node(node)
        _forget(module, str(node.target))
        program._constants[target] = tensor
        specs.insert(first, InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(placeholder.name), target, None))
        placeholders.insert(first, placeholder)
        first += 1
    program._graph_signature = ExportGraphSignature(specs, program.graph_signature.output_specs)
