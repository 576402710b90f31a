"""Finds what a model that was exported in training mode leaves in the graph."""

from __future__ import annotations

from collections import Counter

import torch
from torch import fx
from torch.export import ExportedProgram

from ptn_export.passes import bodies
from ptn_export.source import source_of

__all__ = ["leftovers"]

_aten = torch.ops.aten
_DROPOUT = ("dropout", "alpha_dropout", "feature_dropout", "native_dropout", "feature_alpha_dropout")
_BATCH_NORM = ("batch_norm", "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional")


def leftovers(program: ExportedProgram) -> list[str]:
    """What is suspicious about a program as the user exported it: one sentence each, with the user's lines."""
    training: Counter[str] = Counter()
    random: Counter[str] = Counter()
    for body in bodies(program.graph_module):
        for node in body.graph.nodes:
            if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
                continue
            where = source_of(node) or f"node '{node.name}'"
            if _in_training(node):
                training[f"{node.target} ({where})"] += 1
            elif torch.Tag.nondeterministic_seeded in node.target.tags and not _is_idle_dropout(node):
                random[f"{node.target} ({where})"] += 1
    remarks = []
    if training:
        remarks.append(
            f"the model was exported in training mode: {_list(training)}. "
            "Call `model.eval()` before torch.export.export."
        )
    if random:
        remarks.append(f"the model draws random numbers, so no two runs are alike: {_list(random)}.")
    return remarks


def _in_training(node: fx.Node) -> bool:
    name = node.target._schema.name.removeprefix("aten::").removesuffix("_")  # type: ignore[union-attr]
    if name in _DROPOUT:
        return _argument(node, "train") is not False
    if name in _BATCH_NORM:
        return _argument(node, "training") is True or _argument(node, "train") is True
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
