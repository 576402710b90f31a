"""What `torch.export.export` refuses, in the exporter's words: the user's line, and what to do."""

import copy
import dataclasses
import inspect
import warnings

import numpy as np
import pytest
import torch
from ptn_export import ExportError, export
from torch import nn

Dim = torch.export.Dim
ones = torch.ones


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Add(nn.Module):
    def forward(self, x, y):
        return x + y


@dataclasses.dataclass
class Pair:
    left: torch.Tensor


def branch(x):
    return x + 1 if x.sum() > 0 else x


def branch_on_count(x):
    found = x.nonzero()
    return found if found.shape[0] > 2 else x


def size_from_data(x):
    return torch.zeros(int(x[0]))


def loop(x):
    for _ in range(int(x.sum())):
        x = x + 1
    return x


def to_numpy(x):
    return torch.from_numpy(x.numpy() + 1)


def own_error(x):
    raise ValueError(f"the sequence is too long: {x.shape[0]}")


class Training(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x):
        return self.norm(x)


CASES = {
    # module, arguments, dynamic shapes, what the text says, what it advises
    "branch": (Call(branch), (ones(3),), None, "Could not guard on data-dependent", "by torch.where, or by torch.cond"),
    "count": (Call(branch_on_count), (ones(3),), None, "u0 > 2", "say what it is with torch._check"),
    "loop": (Call(loop), (ones(3),), None, "data-dependent expression", "by torch.where, or by torch.cond"),
    "size": (Call(size_from_data), (torch.tensor([3]),), None, "Could not extract", "`n = x.item()` with torch._check"),
    "numpy": (Call(to_numpy), (ones(3),), None, ".numpy() is not supported", "compute with torch instead of numpy"),
    "copy": (Call(copy.deepcopy), (ones(3),), None, "Cannot access data pointer", "torch.library.custom_op"),
    "own": (Call(own_error), (ones(3),), None, "ValueError: the sequence is too long: 3", "check that the model runs"),
    "class in": (Call(lambda x: x.left), (Pair(ones(3)),), None, "Unsupported input type", "register_dataclass(Pair)"),
    "class out": (Call(Pair), (ones(3),), None, "not a known type", "torch.export.register_dataclass(Pair)"),
    "array": (Call(torch.neg), (np.ones(3),), None, "Unsupported input type", "torch.from_numpy(x)"),
    "size 1": (Add(), (ones(1, 3), ones(1, 3)), ({0: Dim("b")},) * 2, "constant (1)", "an example size of 2 or more"),
    "hint 1": (Add(), (ones(1), ones(1)), ({0: Dim.DYNAMIC},) * 2, "0/1 specialized", "an example size of 2 or more"),
    "fixed": (
        Call(lambda x: x.view(4, 3)), (ones(4, 3),), ({0: Dim("b")},), "constant (4)",
        "the model's code fixes b at 4, as `x.view(4, -1)`",
    ),
    "recurrent": (
        nn.LSTM(3, 2, batch_first=True), (ones(2, 5, 3),), ({1: Dim("time")},), "constant (5)",
        "leave the time axis of recurrent layers static",
    ),
    "range": (
        Call(lambda x: x if x.shape[0] > 4 else x + 1), (ones(6),), ({0: Dim("b", min=2, max=9)},),
        "satisfy the generated guard", "declare only the sizes of one branch, b = Dim('b', min=5, max=9)",
    ),
    "equal": (
        Add(), (ones(4), ones(4)), ({0: Dim("b")}, {0: Dim("c")}), "must always be equal", "use b in the place of c",
    ),
    "outside": (Call(torch.neg), (ones(4),), ({0: Dim("b", max=3)},), "not in range [2, 3]", "within the ranges"),
    "derived": (Call(torch.neg), (ones(5),), ({0: 2 * Dim("b")},), "of the form 2*b", "that the formula"),
    "few": (Add(), (ones(4), ones(4)), ({0: Dim("b")},), "has 1 elements", "one entry for each parameter"),
    "names": (Add(), (ones(4), ones(4)), {"x": {0: Dim("b")}}, "top-level keys", "one entry for each parameter"),
    "axis": (Call(torch.neg), (ones(4),), ({2: Dim("b")},), "IndexError", "an axis that a tensor does not have"),
    "missing": (Add(), (ones(2),), None, "missing a required argument: 'y'", "for each parameter of forward(x, y)"),
    "many": (Call(torch.neg), (ones(2), ones(2)), None, "too many positional", "for each parameter of forward(x)"),
    "training": (Training().train(), (ones(1, 2),), None, "when training", "call `.eval()` on the model"),
    "nested": (
        Call(lambda x: torch.nested.nested_tensor([x, x])), (ones(3),), None, "aten._nested_tensor",
        "replace the operator",
    ),
    "script": (torch.jit.script, (ones(1, 2),), None, "ScriptModule is not supported", "export the nn.Module"),
}  # fmt: skip
LINES = {
    "branch": branch, "count": branch_on_count, "size": size_from_data,
    "loop": loop, "numpy": to_numpy, "own": own_error,
}  # fmt: skip


def refusal(module, args, dynamic_shapes=None):
    with pytest.raises(ExportError) as caught, warnings.catch_warnings(action="ignore"):
        export(module, args, None, dynamic_shapes=dynamic_shapes)
    (problem,) = caught.value.problems
    return caught.value, problem


@pytest.mark.parametrize("name", CASES)
def test_what_pytorch_cannot_capture(name):
    module, args, dynamic_shapes, reason, hint = CASES[name]
    if name == "script":
        with warnings.catch_warnings(action="ignore"):
            module = module(nn.Linear(2, 2))
    module = module if name == "training" else module.eval()
    error, problem = refusal(module, args, dynamic_shapes)
    assert problem.subject == "torch.export"
    assert problem.reason.startswith(f"PyTorch cannot capture {type(module).__name__}: ")
    assert reason in problem.reason
    assert hint in problem.hint
    for noise in ("TORCH_LOGS", "draft_export() ", "mark_dynamic", "Caused by", "C++", "docs.google"):
        assert noise not in problem.reason
    assert error.__cause__ is not None
    if name in LINES:
        lines, start = inspect.getsourcelines(LINES[name])
        file, _, line = problem.source.partition(":")
        assert file == "test_capture_errors.py"
        assert start < int(line) < start + len(lines)


def test_the_whole_text():
    error, _ = refusal(Call(own_error).eval(), (ones(3),))
    line = inspect.getsourcelines(own_error)[1] + 1
    assert str(error) == (
        "cannot export: 1 problem\n"
        "\n"
        "* torch.export: PyTorch cannot capture Call: ValueError: the sequence is too long: 3\n"
        f"    at test_capture_errors.py:{line} in method 'forward'\n"
        "    what to do: check that the model runs with the same inputs in PyTorch; torch.export.draft_export may tell "
        "more"
    )
