"""That the comparison can fail: pairs of models that differ in one thing, which it must see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from ptn_export import PASSES, to_native
from ptn_format import open_package
from torch import Tensor

from interop import compare
from interop.case import Function
from interop.differences import UnexplainedError, explain

__all__ = ["blind_spots"]

_Function = Callable[[Tensor], Tensor]
_ROW = torch.tensor([1.0, 2.0, 3.0, 4.0])
PAIRS: dict[str, tuple[_Function, _Function]] = {
    "operator": (lambda x: x.relu(), lambda x: x.sigmoid()),
    "number": (lambda x: x * 1.5, lambda x: x * 1.25),
    "argument": (lambda x: x.sum(0), lambda x: x.sum(1)),
    "bits of a constant": (lambda x: x + _ROW, lambda x: x + _ROW.nextafter(_ROW + 1)),
    "order of operands": (lambda x: x - x.exp(), lambda x: x.exp() - x),
    "type of a result": (lambda x: x.long(), lambda x: x.int()),
}


def blind_spots(folder: Path) -> list[str]:
    """Differences that the comparison of static graphs, or of operators, does not see."""
    problems = []
    for name, functions in PAIRS.items():
        digests = set()
        for index, function in enumerate(functions):
            path = folder / f"self{index}.ptn"
            exported = torch.export.export(Function(function), (torch.ones(4, 4),))
            to_native(exported, disable_passes=tuple(PASSES)).save(path)
            with open_package(path) as package:
                digests.add(compare.fingerprint(package, "forward", [(4, 4)]))
        if len(digests) != len(functions):
            problems.append(f"the comparison does not see another {name}")
    try:
        explain(Counter({"aten.erf.default": 1}), Counter())
        problems.append("an operator that only upstream's file has is explained")
    except UnexplainedError:
        pass
    return problems
