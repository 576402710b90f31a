"""What a method takes and gives, for people and programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from ptn_format.graph import BoolArg, Dim, FloatArg, IntArg, NoneArg, TensorArg, TensorMeta
from ptn_format.signature import Constant, Container, Leaf, Parameter, Signature, Tree, named_leaves

from ptn_runtime.lowering.program import user_results

if TYPE_CHECKING:
    from ptn_format.graph import Argument, Method

    from ptn_runtime.lowering.program import LoweredMethod, StateSpec

__all__ = ["MethodInfo", "TensorInfo", "describe_method"]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One input, output or state.

    Attributes:
        name: what it is called: `x`, `batch.ids`, `output[0]`, `cache.keys`.
        dtype: element type; bfloat16 is `ml_dtypes.bfloat16`.
        shape: the allowed sizes of each axis.
        mutated: the method writes to it (inputs only).
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[Dim, ...]
    mutated: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.type_text}"

    @property
    def type_text(self) -> str:
        """Type and shape range: `float32[1..8, 384]`."""
        text = f"{self.dtype.name}[{', '.join(map(str, self.shape))}]"
        return f"{text} (changed in place)" if self.mutated else text


@dataclass(frozen=True, slots=True)
class MethodInfo:
    """What a method takes and gives.

    Attributes:
        name: the method's name.
        inputs: the tensors that it takes, nested ones under dotted names.
        outputs: the tensors that it gives, in order.
        call: how it is called, such as `forward(ids, *, mask) -> tuple of 2`.
        fixed: arguments that were fixed at export, with their values.
        signature: the structure of arguments and results.
    """

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    call: str
    fixed: tuple[tuple[str, object], ...]
    signature: Signature

    def __str__(self) -> str:
        rows = [("inputs", self.inputs), ("outputs", self.outputs)]
        width = max((len(item.name) for _, items in rows for item in items), default=0)
        lines = [self.call]
        for title, items in rows:
            lines.append(f"  {title}:" if items else f"  {title}: none")
            lines += [f"    {item.name:<{width}}  {item.type_text}" for item in items]
        if self.fixed:
            lines.append("  fixed at export: " + ", ".join(f"{name}={value!r}" for name, value in self.fixed))
        return "\n".join(lines)


def describe_method(method: Method, lowered: LoweredMethod) -> MethodInfo:
    """The description of a method of a package."""
    signature = lowered.signature
    inputs = tuple(TensorInfo(spec.name, spec.dtype.numpy, spec.dims, spec.mutated) for spec in lowered.inputs)
    results = user_results(method)
    outputs = _outputs(method, lowered, results)
    return MethodInfo(
        method.name, inputs, outputs, _call(method.name, signature, results), _fixed(signature), signature
    )


def describe_state(spec: StateSpec) -> TensorInfo:
    """The description of a state."""
    return TensorInfo(spec.key, spec.dtype.numpy, tuple(Dim(size, size) for size in spec.shape))


def _outputs(method: Method, lowered: LoweredMethod, results: list[Argument]) -> tuple[TensorInfo, ...]:
    metas = {ref.name: ref.meta for ref in method.constants} | dict(method.graph.tensor_values)
    found = []
    ranges = _corrected_ranges(method, lowered)
    for name, leaf in named_leaves("output", lowered.signature.result):
        info = _output(name, results[leaf.index], metas) if leaf.index < len(results) else None
        if info is not None:
            found.append(replace(info, shape=tuple(ranges.get(dim, dim) for dim in info.shape)))
    return tuple(found)


def _corrected_ranges(method: Method, lowered: LoweredMethod) -> dict[Dim, Dim]:
    """Ranges of the file's inputs that lowering corrects (upstream's exporter writes a minimum of 1 as 2)."""
    found = {}
    for name, spec in zip(method.graph.inputs, lowered.inputs, strict=True):
        meta = method.graph.tensor_values.get(name)
        if meta is not None:
            found.update({old: new for old, new in zip(meta.sizes, spec.dims, strict=True) if old != new})
    return found


def _output(name: str, arg: Argument, metas: dict[str, TensorMeta]) -> TensorInfo | None:
    if isinstance(arg, TensorArg):
        meta = metas.get(arg.name)
        return TensorInfo(name, meta.dtype.numpy, meta.sizes) if meta is not None else None
    scalar = {IntArg: np.int64, FloatArg: np.float64, BoolArg: np.bool_}.get(type(arg))
    if scalar is None or isinstance(arg, NoneArg):
        return None
    return TensorInfo(name, np.dtype(scalar), ())


def _call(name: str, signature: Signature, results: list[Argument]) -> str:
    words = []
    starred = False
    for parameter in signature.parameters:
        if parameter.keyword_only and not starred:
            words.append("*")
            starred = True
        words.append(_parameter(parameter))
    return f"{name}({', '.join(words)}) -> {_structure(signature.result, results)}"


def _parameter(parameter: Parameter) -> str:
    if isinstance(parameter.tree, Leaf):
        return parameter.name
    if isinstance(parameter.tree, Constant):
        return f"{parameter.name}={parameter.tree.value!r}"
    return f"{parameter.name}: {_structure(parameter.tree, ())}"


def _structure(tree: Tree, results: Sequence[Argument]) -> str:
    """The structure in words; `results` tells which leaves are no tensors."""
    if isinstance(tree, Leaf):
        return _kind(results[tree.index]) if tree.index < len(results) else "tensor"
    if isinstance(tree, Constant):
        return repr(tree.value)
    items = [_structure(item, results) for item in tree.items]
    if tree.kind == "list":
        return f"[{', '.join(items)}]"
    if tree.kind == "tuple":
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    pairs = ", ".join(f"{key}: {item}" for key, item in zip(tree.keys, items, strict=True))
    return f"{{{pairs}}}" if tree.kind == "dict" else f"{tree.type_name}({pairs})"


def _kind(arg: Argument) -> str:
    """A result in a word: `tensor`, the kind of a computed number, or the value of a fixed one."""
    if isinstance(arg, NoneArg):
        return "None"
    for kind, word in ((IntArg, "int"), (FloatArg, "float"), (BoolArg, "bool")):
        if isinstance(arg, kind):
            return word if arg.ref is not None else repr(arg.value)
    return "tensor"


def _fixed(signature: Signature) -> tuple[tuple[str, object], ...]:
    return tuple(item for parameter in signature.parameters for item in _constants(parameter.name, parameter.tree))


def _constants(name: str, tree: Tree) -> list[tuple[str, object]]:
    if isinstance(tree, Constant):
        return [(name, tree.value)]
    if not isinstance(tree, Container):
        return []
    keys = tree.keys or tuple(range(len(tree.items)))
    return [
        found
        for key, item in zip(keys, tree.items, strict=True)
        for found in _constants(f"{name}.{key}" if isinstance(key, str) else f"{name}[{key}]", item)
    ]
