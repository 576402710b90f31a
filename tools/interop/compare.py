"""Two programs side by side: operators, constants, inputs, and the static graphs that engines get."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from ptn_format import Graph, Method, Package, Program
from ptn_format.graph import GraphArg
from ptn_runtime.lowering.names import canonical_name, functional_name, is_in_place
from ptn_runtime.lowering.program import LoweredProgram
from ptn_runtime.lowering.static import StaticGraph, StaticNode, Value, ValueKind

__all__ = ["constants_differ", "fingerprint", "interface", "operators", "rounded", "spelled"]

_DECIMALS = 12


def rounded(number: float) -> float:
    """A literal as upstream's tools keep it: they pass programs through JSON with 12 decimals."""
    return round(number, _DECIMALS)


def _calls(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        if node.target:
            yield node.target.removeprefix("torch.ops.")
        for item in node.inputs:
            if isinstance(item.arg, GraphArg):
                yield from _calls(item.arg.graph)


def spelled(program: Program) -> Counter[str]:
    """How often each operator is called, as the file spells it."""
    return Counter(name for method in program.methods for name in _calls(method.graph))


def operators(program: Program) -> Counter[str]:
    """How often each operator is called: in-place forms as functional ones, `_copy` views as views."""
    counts: Counter[str] = Counter()
    for name, count in spelled(program).items():
        canonical = canonical_name(name)
        counts[functional_name(canonical) if is_in_place(canonical) else canonical] += count
    return counts


def interface(method: Method) -> dict[str, Any]:
    """What a caller sees of a method: inputs with dtypes and ranges, results with what becomes of them."""
    values = method.graph.tensor_values
    return {
        "inputs": [(values[name].dtype.name, [str(dim) for dim in values[name].sizes]) for name in method.graph.inputs],
        "results": [(spec.kind.name, spec.target if spec.kind.name == "BUFFER_MUTATION" else None)
                    for spec in method.output_specs],
        "state": sorted({ref.data_key for ref in method.constants if ref.mutated}
                        | {spec.fqn for spec in method.mutable_buffers}),
    }  # fmt: skip


def constants_differ(theirs: Package, ours: Package) -> list[str]:
    """Keys in both files whose data differ in dtype, shape or any bit."""
    different = []
    for key in sorted(set(theirs.constant_keys) & set(ours.constant_keys)):
        left, right = theirs.constant(key), ours.constant(key)
        if left.dtype != right.dtype or left.shape != right.shape or left.tobytes() != right.tobytes():
            different.append(f"{key}: {left.dtype}{list(left.shape)} and {right.dtype}{list(right.shape)}")
    return different


def fingerprint(package: Package, method: str, shapes: Sequence[tuple[int, ...]]) -> str:
    """A digest of what a method computes for some shapes: equal where engines get the same static graph.

    Names and the order of nodes do not matter; operators, arguments, bits of constants and folded numbers do.
    """
    graph = LoweredProgram(package).method(method).specialize(tuple(shapes))
    digests = _digests(graph, package, {})
    parts = [digests[value.id] for value in graph.outputs]
    parts += sorted(f"{update.old.key}={digests[update.new.id]}" for update in graph.state_updates)
    parts += [f"{graph.inputs.index(old)}={digests[new.id]}" for old, new in graph.input_updates]
    return _digest(*parts)


def _digest(*parts: object) -> str:
    return hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest()


def _array(array: npt.NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def _digests(graph: StaticGraph, package: Package, outer: Mapping[int, str]) -> dict[int, str]:
    """By value id."""
    digests = dict(outer)
    for index, value in enumerate(graph.inputs):
        digests[value.id] = _digest("input", len(outer), index, value.dtype.name, value.shape)
    for value in graph.states:
        digests[value.id] = _digest("state", value.key, value.dtype.name, value.shape)
    for value in graph.constants:
        data = package.constant(value.key) if value.key is not None else value.data
        assert data is not None
        digests[value.id] = _digest("constant", value.dtype.name, value.shape, _array(data))
    for node in graph.nodes:
        whole = _node(node, digests, package)
        for index, value in enumerate(node.outputs):
            digests[value.id] = _digest(whole, index, value.dtype.name, value.shape)
    return digests


_WITH_NUMBER = {
    f"aten.{name}.Scalar{mode}": f"aten.{name}.Tensor{mode}"
    for name, mode in (("add", ""), ("sub", ""), ("mul", ""), ("div", ""), ("div", "_mode"))
}


def _node(node: StaticNode, digests: dict[int, str], package: Package) -> str:
    number = node.args.get("other")
    takes_number = node.op in _WITH_NUMBER or node.op in _WITH_NUMBER.values()

    def of(arg: Any) -> str:
        if takes_number and arg is number and (single := _number(arg, package)) is not None:
            # The number as the operator sees it, whether it is an argument or a constant.
            dtype = node.output.dtype.numpy
            return repr(rounded(np.asarray(single, dtype).item() if np.dtype(dtype).kind == "f" else float(single)))
        match arg:
            case Value():
                return digests[arg.id]
            case StaticGraph():
                inner = _digests(arg, package, digests)
                return _digest("graph", *(inner[value.id] for value in arg.outputs))
            case tuple():
                return _digest("list", *map(of, arg))
            case int() | float() if not isinstance(arg, bool):
                return repr(rounded(float(arg)))  # an integer and an equal float are one number to every operator
            case _:
                return repr(arg)

    op = _WITH_NUMBER.get(node.op, node.op)
    return _digest(op, *(f"{name}={of(arg)}" for name, arg in sorted(node.args.items())))


def _number(arg: Any, package: Package) -> float | None:
    """The number that an argument is: literal, or a 0-d constant."""
    if isinstance(arg, int | float):
        return float(arg)
    if isinstance(arg, Value) and arg.kind is ValueKind.CONSTANT and arg.shape == ():
        data = package.constant(arg.key) if arg.key is not None else arg.data
        return None if data is None else float(data.item())
    return None
