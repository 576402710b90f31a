"""From an `ExportedProgram` to a functional graph of the operators that packages hold.

The input is never changed: everything runs on a private copy that shares nothing but the tensors themselves.
"""

from __future__ import annotations

import copy
import keyword
import warnings
from dataclasses import dataclass, field

from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputSpec, OutputKind, OutputSpec

from ptn_export.aliases import merge_aliases
from ptn_export.branches import lift_branch_constants
from ptn_export.decompositions import KEPT, decomposition_table
from ptn_export.experts import name_grouped_products
from ptn_export.repeats import NotSimpleError, decompose_repeats

__all__ = ["Captured", "capture"]


@dataclass(frozen=True, slots=True)
class Captured:
    """A decomposed program with what is needed to read it.

    Attributes:
        program: the decomposed program; its graph may be changed freely.
        original_fqns: true name of each parameter, buffer or constant that had to be renamed for PyTorch.
        origins: by key of each constant that a pass has computed, the keys of the user's constants that it comes from.
    """

    program: ExportedProgram
    original_fqns: dict[str, str]
    origins: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def fqn(self, target: str) -> str:
        """The user's own name of a parameter, buffer or constant."""
        if target in self.original_fqns:
            return self.original_fqns[target]
        # Tensor subclasses are unwrapped into `<name>.parametrizations.<attribute>.original0`, ...
        for renamed, original in self.original_fqns.items():
            if target.startswith(renamed + "."):
                return original + target[len(renamed) :]
        return target


def capture(program: ExportedProgram) -> Captured:
    """Decomposes a private copy of `program`."""
    private, original_fqns = _private_copy(program)
    merge_aliases(private)
    lift_branch_constants(private)
    # What PyTorch warns of here concerns its own internals; the user can do nothing about it.
    with warnings.catch_warnings(action="ignore"):
        try:
            decomposed = decompose_repeats(private, decomposition_table(), KEPT)
        except NotSimpleError:
            decomposed = private.run_decompositions(decomposition_table())
    name_grouped_products(decomposed.graph_module)
    return Captured(decomposed, original_fqns)


def _private_copy(program: ExportedProgram) -> tuple[ExportedProgram, dict[str, str]]:
    """A copy that can be decomposed: own containers, the same tensors, and names that PyTorch can work with.

    PyTorch generates Python code that reads attributes by name, and fails where a part of the name is a keyword
    (`self.lambda`).
    """
    private = copy.copy(program)
    taken = {spec.target for spec in program.graph_signature.input_specs if spec.target}
    renamed: dict[str, str] = {}
    for name in [*taken, *program.state_dict, *program.constants]:
        parts = name.split(".")
        if any(map(keyword.iskeyword, parts)):
            safe = ".".join(part + "_" if keyword.iskeyword(part) else part for part in parts)
            while safe in taken:
                safe += "_"
            taken.add(safe)
            renamed[name] = safe
    private._state_dict = {renamed.get(name, name): value for name, value in program.state_dict.items()}
    private._constants = {renamed.get(name, name): value for name, value in program.constants.items()}
    private._graph_signature = _renamed_signature(program.graph_signature, renamed)
    private._module_call_graph = copy.copy(program.module_call_graph)
    private._guards_code = []  # checks of example inputs; the retracing runs with symbolic ones
    private._range_constraints = dict(program.range_constraints)
    return private, {safe: name for name, safe in renamed.items()}


def _renamed_signature(signature: ExportGraphSignature, renamed: dict[str, str]) -> ExportGraphSignature:
    """`signature` with new targets of parameters, buffers and constants."""

    def new(target: str | None) -> str | None:
        return renamed.get(target, target) if target is not None else None

    inputs = [InputSpec(spec.kind, spec.arg, new(spec.target), spec.persistent) for spec in signature.input_specs]
    outputs = [
        # The target of a mutated user input is a node, not a name of the user.
        OutputSpec(
            spec.kind, spec.arg, spec.target if spec.kind is OutputKind.USER_INPUT_MUTATION else new(spec.target)
        )
        for spec in signature.output_specs
    ]
    return ExportGraphSignature(inputs, outputs)
