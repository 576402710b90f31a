"""`torch.export.export` with errors that say what to do, and without traces left in the user's module."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from ptn_export.errors import ExportError, Problem
from ptn_export.source import innermost_line, line_of_error

__all__ = ["trace"]

_ASSIGNED = re.compile(r"The tensor attributes? (?P<names>self\..*?) (was|were) assigned during export")
# What PyTorch adds for people who work on PyTorch, or says of its own commands.
_NOISE = re.compile(
    r"The error above occurred when calling torch\.export.*|For (more|extended|C\+\+)[^\n]*|"
    r"If you suspect the guard was triggered from C\+\+[^\n]*|Caused by: \([^\n]*|"
    r"The following call raised this error:.*|If you're using mark_dynamic[^\n]*|"
    r"See https://github\.com/pytorch/functorch[^\n]*|User code:.*|User Stack.*",
    re.DOTALL,
)
_LONGEST = 900
"""Characters of PyTorch's own text that are shown."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """A call of `torch.export.export` that failed.

    Attributes:
        text: PyTorch's message.
        module: the model.
        args: its example inputs.
        kwargs: those given by name.
        dynamic_shapes: as the user gave them.
        error: what was raised.
    """

    text: str
    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    dynamic_shapes: Any
    error: Exception


def trace(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    *,
    method: str = "forward",
) -> tuple[ExportedProgram, list[str]]:
    """Captures `module` as `torch.export.export` does.

    Args:
        module: the model, in the mode (training or evaluation) in which it shall be captured.
        args: example inputs by position.
        kwargs: example inputs by name.
        dynamic_shapes: which axes may vary, as `torch.export.export` takes it.
        method: the method's name, for messages.

    Returns:
        The program, and remarks on what it does not hold although the model's code does it.

    Raises:
        ExportError: PyTorch cannot capture the model; the text is PyTorch's own, with the user's line and what to try.
            The original exception is its `__cause__`.
    """
    before = {id(part): set(vars(part)) for part in module.modules()}
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            program = torch.export.export(module, args, dict(kwargs or {}), dynamic_shapes=dynamic_shapes)
    except Exception as error:  # PyTorch raises many types; each of them means that the model cannot be captured
        text = str(error).strip() or type(error).__name__
        failure = _Failure(text, module, args, kwargs or {}, dynamic_shapes, error)
        raise ExportError([_problem(failure, method)]) from error
    finally:
        _remove_new_attributes(module, before)
    others = [item for item in caught if not _ASSIGNED.search(str(item.message))]
    for warning in others:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return program, _assigned([str(warning.message) for warning in caught])


def _remove_new_attributes(module: torch.nn.Module, before: Mapping[int, set[str]]) -> None:
    """Takes away what `forward` left on the module: tensors of the tracing, which have no data."""
    for part in module.modules():
        for name in set(vars(part)) - before.get(id(part), set(vars(part))):
            if any(isinstance(leaf, FakeTensor) for leaf in pytree.tree_leaves(vars(part)[name])):
                delattr(part, name)


def _assigned(messages: Sequence[str]) -> list[str]:
    """Remarks on state that the model keeps where a package cannot."""
    names = sorted({found["names"] for text in messages if (found := _ASSIGNED.search(text))})
    if not names:
        return []
    return [
        f"the model assigns {', '.join(names)} while it runs, which the package does not keep from call to call. "
        "Register each as a buffer (`register_buffer`), or assign a local variable."
    ]


def _problem(failure: _Failure, method: str) -> Problem:
    hints = [hint for rule in _RULES for hint in rule(failure)] or [_LAST_HINT]
    found = innermost_line(failure.text) or line_of_error(failure.error)
    text = _NOISE.sub("", failure.text)
    text = "\n".join(line.rstrip() for line in text.splitlines() if line.strip())
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
    if type(failure.error) in (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
        text = f"{type(failure.error).__name__}: {text}"
    name = type(failure.module).__name__
    return Problem("torch.export", f"PyTorch cannot capture {name}: {text}", "; ".join(hints), method, source=found)


_LAST_HINT = "check that the model runs with the same inputs in PyTorch; torch.export.draft_export may tell more"

_Rule = Callable[[_Failure], Iterator[str]]


def _size_one(failure: _Failure) -> Iterator[str]:
    text = failure.text
    if "0/1 specialized" in text or ("Constraints violated" in text and "to be a constant (1)" in text):
        yield "give every dynamic axis an example size of 2 or more; PyTorch treats a size of 1 as fixed"


def _fixed_by_code(failure: _Failure) -> Iterator[str]:
    if "Constraints violated" not in failure.text:
        return
    fixed = sorted(set(re.findall(r"You marked (\S+) as dynamic but.*?to be a constant \((\d+)\)", failure.text)))
    fixed = [(name, size) for name, size in fixed if size not in "01"]
    if fixed and any(isinstance(layer, torch.nn.RNNBase) for layer in failure.module.modules()):
        yield "leave the time axis of recurrent layers static; PyTorch unrolls them over the example's length"
    elif fixed:
        axes = ", ".join(f"{name} at {size}" for name, size in fixed)
        yield (
            f"the model's code fixes {axes}, as `x.view({fixed[0][1]}, -1)` or a comparison with a number does: "
            "take the size from `x.shape` there, or leave the axis out of dynamic_shapes"
        )


def _range(failure: _Failure) -> Iterator[str]:
    if "satisfy the generated guard" in failure.text:
        suggested = re.findall(r"^\s*(\w+ = Dim\(.*\))\s*$", failure.text, re.MULTILINE)
        yield (
            "a branch of the model's Python code depends on this size: declare only the sizes of one branch"
            + (f", {', '.join(suggested)}" if suggested else "")
            + ", or export one method for each"
        )


def _equal(failure: _Failure) -> Iterator[str]:
    if found := re.search(r"values of (\w+) = .* and (\w+) = .* must always be equal", failure.text):
        yield f"give both axes the same Dim: use {found[2]} in the place of {found[1]}"


def _out_of_range(failure: _Failure) -> Iterator[str]:
    if re.search(r"\d+ not in range \[", failure.text):
        yield "give example inputs whose sizes lie within the ranges of their Dims"
    if "to be of the form" in failure.text:
        yield "give an example input with a size that the formula of its Dim can have"


def _shapes_structure(failure: _Failure) -> Iterator[str]:
    text = failure.text
    if "structure of `inputs` and `dynamic_shapes`" in text or "top-level keys must be the arg names" in text:
        yield (
            "dynamic_shapes has one entry for each parameter that is given, by position or all by name: "
            "{axis: Dim} for a tensor, None for what stays fixed, the same nesting for lists, tuples and dicts"
            " (`*args` is one tuple)"
        )
    if isinstance(failure.error, IndexError) and failure.dynamic_shapes is not None and "assignment index" in text:
        yield "dynamic_shapes names an axis that a tensor does not have"


def _data_dependent(failure: _Failure) -> Iterator[str]:
    text = failure.text
    if "Could not guard on data-dependent expression" in text:
        yield "replace the Python branch on a tensor's value by torch.where, or by torch.cond"
        if "Size-like symbols: u" in text:
            yield "where only the number of found elements decides, say what it is with torch._check(n <= ...)"
    if "Could not extract specialized integer from data-dependent expression" in text:
        yield (
            "a number read from a tensor is used as a size: take the size from the shape of an input, or use "
            "`n = x.item()` with torch._check(n >= 0) and torch._check(n <= limit) instead of `int(x)`"
        )


def _pytrees(failure: _Failure) -> Iterator[str]:
    text = failure.text
    found = re.search(r"(?:Unsupported input type|Found) <class '([^']+)'>", text)
    if not found or not ("Unsupported input type" in text or "in output, which is not a known type" in text):
        return
    name = found[1].rpartition(".")[2]
    if found[1].startswith("numpy."):
        yield "convert arrays to tensors: torch.from_numpy(x)"
    else:
        yield (
            f"pass and return tensors, numbers, lists, tuples and dicts; or register the class once: "
            f"torch.export.register_dataclass({name}) for a dataclass, "
            f"torch.utils._pytree.register_pytree_node({name}, flatten, unflatten) for others"
        )


def _outside_of_pytorch(failure: _Failure) -> Iterator[str]:
    text = failure.text
    if ".numpy() is not supported" in text:
        yield "compute with torch instead of numpy inside the model"
    if "Cannot access data pointer" in text:
        yield "wrap code that reads the memory of tensors as an operator: torch.library.custom_op with register_fake"


def _no_fake(failure: _Failure) -> Iterator[str]:
    if type(failure.error).__name__ == "UnsupportedOperatorException" or "no fake impl" in failure.text.lower():
        yield "replace the operator, or tell PyTorch the shapes of your own one with torch.library.register_fake"


def _not_a_module(failure: _Failure) -> Iterator[str]:
    if isinstance(failure.module, torch.jit.ScriptModule):
        yield "export the nn.Module that the script was made from"


def _arguments(failure: _Failure) -> Iterator[str]:
    text = failure.text
    is_wrong = isinstance(failure.error, TypeError) and re.search(
        r"missing a required argument|positional arguments? but|got an unexpected keyword|too many positional|"
        r"missing \d+ required",
        text,
    )
    if is_wrong or "Expecting `args` to be a tuple" in text:
        signature = inspect.signature(failure.module.forward)
        yield f"args is one tuple with an example for each parameter of forward{signature}"


def _training(failure: _Failure) -> Iterator[str]:
    if failure.module.training and ("when training" in failure.text or "in training mode" in failure.text):
        yield "call `.eval()` on the model before the export"


_RULES: Sequence[_Rule] = (
    _size_one,
    _fixed_by_code,
    _range,
    _equal,
    _out_of_range,
    _shapes_structure,
    _data_dependent,
    _pytrees,
    _outside_of_pytorch,
    _no_fake,
    _not_a_module,
    _arguments,
    _training,
)
