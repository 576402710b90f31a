"""The differences that are meant, each with its reason; any other one fails the comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["READER", "RULES", "Rule", "UnexplainedError", "explain"]


@dataclass(frozen=True)
class Rule:
    """One kind of difference between the graphs of a model.

    Attributes:
        name: for tables.
        theirs: operators of upstream's file, in canonical names, that stand for
        ours: these of ours.
        why: the reason.
        graph: what becomes of the static graph that engines get.
        kept: operator that upstream takes apart; taking it apart first must give upstream's graph.
        computes_otherwise: whether the graphs cannot be the same; then results alone are compared.
    """

    name: str
    theirs: Mapping[str, int]
    ours: Mapping[str, int]
    why: str
    graph: str = "the same"
    kept: str = ""
    computes_otherwise: bool = False


_NUMBERS = "numbers as arguments"
_WHY_NUMBERS = (
    "Upstream turns a Python number beside a tensor into a 0-d constant of its own, with a cast where the types "
    "differ; we keep it as an argument of the operator. The file has fewer constants, and the "
    "same dtypes and values come out."
)
RULES = (
    *(
        Rule(_NUMBERS, {f"aten.{name}.Tensor{mode}": 1}, {f"aten.{name}.Scalar{mode}": 1}, _WHY_NUMBERS)
        for name, mode in (("add", ""), ("sub", ""), ("mul", ""), ("div", ""), ("div", "_mode"))
    ),
    Rule(_NUMBERS, {"aten._to_copy.default": 1}, {}, _WHY_NUMBERS),
    Rule(
        "RMSNorm stays whole",
        {"aten.pow.Tensor_Scalar": 1, "aten.mean.dim": 1, "aten.add.Scalar": 1, "aten.rsqrt.default": 1,
         "aten.mul.Tensor": 2},
        {"aten.rms_norm.default": 1},
        "Executorch 1.5.1 takes it apart into six operators; its later versions keep it, as we do, because engines "
        "have one kernel for it.",
        graph="the same once `aten.rms_norm` is taken apart before the export",
        kept="aten.rms_norm.default",
    ),
    Rule(
        "int8 weights stay weights",
        {"aten._to_copy.default": 1, "aten.mm.default": 1, "aten.mul.Tensor": 1},
        {"torchao.dequantize_affine.default": 1, "aten.linear.default": 1},
        "Upstream writes TorchAO's own product, which converts the integers to float, multiplies, and scales the "
        "result. We write `linear` with a weight read by `dequantize_affine`, as for every other number of bits, so "
        "that engines meet one form.",
        graph="another; results agree within rounding",
        computes_otherwise=True,
    ),
)  # fmt: skip

MERGED = Rule(
    "equal calls and views",
    {},
    {},
    "Upstream always merges equal calls and chains of views, and drops checks of dtypes; here our passes `copies`, "
    "`cse` and `views`, which do the same, are off. Engines get the same graph either way.",
)

READER: Mapping[str, str] = {
    "infinite bound of an operator": "JSONDecodeError",
}
"""By model, the pattern of the error of upstream's reader on our file; it accepts all others."""


class UnexplainedError(Exception):
    """A difference that no rule covers."""


def explain(theirs: Counter[str], ours: Counter[str]) -> list[Rule]:
    """The rules whose sum is the difference of two counts of operators.

    Raises:
        UnexplainedError: there is no such sum; the text names what is left over.
    """
    only_theirs, only_ours = theirs - ours, ours - theirs
    used = []
    for rule in sorted(RULES, key=lambda rule: -len(rule.theirs) - len(rule.ours)):
        left, right = Counter(rule.theirs), Counter(rule.ours)
        while left <= only_theirs and right <= only_ours:
            only_theirs, only_ours = only_theirs - left, only_ours - right
            used.append(rule)
    if only_theirs:
        raise UnexplainedError(
            f"only upstream's file has {_text(only_theirs)}; of what only ours has, {_text(only_ours)}"
        )
    if only_ours:
        used.append(MERGED)
    return used


def _text(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "nothing is left"
