"""Finds what is legal in a graph but probably a mistake: training mode, random numbers, inputs that were one tensor."""

from __future__ import annotations

from collections import Counter

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from ptn_export.passes import bodies
from ptn_export.source import module_of, module_type_of, source_of

__all__ = ["leftovers"]

_aten = torch.ops.aten
_DROPOUT = ("dropout", "alpha_dropout", "feature_dropout", "native_dropout", "feature_alpha_dropout")
_NORMS = (
    "batch_norm",
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "instance_norm",
)


def leftovers(program: ExportedProgram) -> list[str]:
    """What is suspicious about a program as the user exported it: one sentence each, with the user's lines."""
    training: Counter[str] = Counter()
    random: Counter[str] = Counter()
    for body in bodies(program.graph_module):
        for node in body.graph.nodes:
            if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
                continue
            if _in_training(node):
                training[f"{node.target} ({_where(node)})"] += 1
            elif torch.Tag.nondeterministic_seeded in node.target.tags and not _is_idle_dropout(node):
                random[f"{node.target} ({_where(node)})"] += 1
    remarks = []
    if training:
        remarks.append(
            f"the model was exported in training mode: {_list(training)}. "
            "Call `model.eval()` before torch.export.export."
        )
    if random:
        remarks.append(f"the model draws random numbers, so no two runs are alike: {_list(random)}.")
    return [*remarks, *_merged_inputs(program)]


def _where(node: fx.Node) -> str:
    """`model.py:12, module 'layers.3.drop' (Dropout)`, as far as it is known."""
    line, module, kind = source_of(node), module_of(node), module_type_of(node)
    if module is not None:
        module = f"module '{module}'" + (f" ({kind})" if kind else "")
    return ", ".join(part for part in (line, module) if part) or f"node '{node.name}'"


def _merged_inputs(program: ExportedProgram) -> list[str]:
    """Inputs that PyTorch took for one, because the same tensor was the example for both: it reads only one of them."""
    if program.example_inputs is None:
        return []
    leaves = pytree.tree_leaves(program.example_inputs)
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    names = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    groups: dict[int, list[str]] = {}
    for leaf, name in zip(leaves, names, strict=False):
        if isinstance(leaf, torch.Tensor):
            groups.setdefault(id(leaf), []).append(name)
    remarks = []
    for group in groups.values():
        read = [name for name in group if placeholders[name].users]
        if len(group) > 1 and len(read) == 1:
            remarks.append(
                f"the inputs {', '.join(group)} were one and the same tensor at the export, and the graph reads only "
                f"{read[0]} in the place of all. Give each its own example tensor (`.clone()`)."
            )
    return remarks


def _in_training(node: fx.Node) -> bool:
    name = node.target._schema.name.removeprefix("aten::").removesuffix("_")  # type: ignore[union-attr]
    if name in _DROPOUT:
        return _argument(node, "train") is not False
    if name in _NORMS and _argument(node, "running_mean") is not None:  # without them the input's count in either mode
        return any(_argument(node, flag) is True for flag in ("training", "train", "use_input_stats"))
    return False


def _is_idle_dropout(node: fx.Node) -> bool:
    """Operators with a dropout argument count as random by tag, although a rate of 0 draws nothing."""
    rate = _argument(node, "dropout_p")
    if rate is None:
        rate = _argument(node, "dropout")
    if rate is not None:
        return rate == 0.0 or _argument(node, "train") is False
    return _argument(node, "train") is False or _argument(node, "training") is False


def _argument(node: fx.Node, name: str) -> object:
    """The value of an argument, its default where it was not given, None where there is no such argument."""
    for i, formal in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if formal.name == name:
            if i < len(node.args):
                return node.args[i]
            return node.kwargs.get(name, formal.default_value if formal.has_default_value() else None)
    return None


def _list(counts: Counter[str]) -> str:
    shown = [f"{text} x{count}" if count > 1 else text for text, count in counts.most_common(4)]
    more = len(counts) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")
