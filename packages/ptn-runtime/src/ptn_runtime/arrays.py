"""From what users pass to the arrays that engines take, and from engines' results to the exported structure."""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from ptn_format.dtypes import ScalarType
from ptn_format.errors import SignatureError
from ptn_format.signature import Constant, Container, Leaf, Parameter, Signature, Tree, build, leaves, named_leaves

from ptn_runtime.engine import RunResult
from ptn_runtime.errors import ExecutionError, InputError
from ptn_runtime.lowering.program import InputSpec
from ptn_runtime.lowering.static import StaticGraph, Value

__all__ = ["Binder", "Bound", "Results", "describe_input", "flatten_result", "to_array"]

Array = npt.NDArray[Any]
Bound = tuple[list[Array], list[tuple[int, Array]]]
"""The flat inputs, and for each mutated input its index and the caller's array that the new contents go to."""

_PLAN = "ptn_runtime.arrays.plan"


def describe_input(spec: InputSpec) -> str:
    """What an input takes, for messages: `float32[1..8, 384]`."""
    return f"{spec.dtype.torch_name}{spec.describe_dims()}"


def to_array(value: Any, subject: str, dtype: ScalarType, takes: str, scalar: bool) -> Array:
    """Turns a user's value into a C-contiguous, aligned array of native byte order and exactly `dtype`.

    Args:
        value: anything with `__array__`, the buffer protocol or DLPack; for a 0-d tensor also a Python number.
        subject: what the value is for, such as `input 'x'`.
        dtype: the element type asked for.
        takes: the type and shape asked for, for messages.
        scalar: whether the tensor is 0-d.

    Raises:
        InputError: it cannot be read as an array, or not be given `dtype` without changing values.
    """
    if isinstance(value, bool | int | float) and not isinstance(value, np.generic):
        return _number(value, subject, dtype, takes, scalar)
    array = _read(value, subject, takes)
    wanted = dtype.numpy
    if array.dtype != wanted:
        swapped = array.dtype.newbyteorder("=") == wanted
        integers = array.dtype.kind in "iu" and wanted.kind in "iu"
        if not swapped and not (integers and np.can_cast(array.dtype, wanted, "safe")):
            raise InputError(_dtype_text(array.dtype, subject, dtype, takes))
        array = array.astype(wanted)
    if not (array.flags.c_contiguous and array.flags.aligned):
        array = np.array(array, order="C", copy=True)
    return array


def _number(value: bool | int | float, subject: str, dtype: ScalarType, takes: str, scalar: bool) -> Array:
    given = f"the Python {type(value).__name__} {value!r}"
    if not scalar:
        raise InputError(f"{subject} takes {takes}, got {given}; only 0-d tensors take Python numbers: pass an array.")
    fits = isinstance(value, bool) == (dtype is ScalarType.BOOL) and (
        not isinstance(value, float) or dtype.is_floating_point
    )
    if not fits:
        raise InputError(f"{subject} takes {takes}, got {given}.")
    try:
        with np.errstate(over="ignore"):
            array = np.array(value, dtype=dtype.numpy)
    except OverflowError as error:
        raise InputError(f"{subject} takes {takes}, and {given} is out of its range.") from error
    if dtype.is_floating_point and math.isfinite(value) and not np.isfinite(array):
        raise InputError(f"{subject} takes {takes}, and {given} is out of its range.")
    return array


def _read(value: Any, subject: str, takes: str) -> Array:
    """Any array-like as an array of its own dtype, without a copy where that is possible."""
    if type(value) is np.ndarray:
        return value
    if isinstance(value, np.ndarray) and hasattr(value, "filled"):
        raise InputError(
            f"{subject} got a masked array, whose mask would be lost; pass value.filled(...) and the mask apart."
        )
    try:
        if _is_torch(value):
            return _from_torch(value)
        if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
            return np.asarray(value)
        if hasattr(value, "__dlpack__"):
            return np.from_dlpack(value)
        if isinstance(value, str | list | tuple | dict | set) or value is None:
            raise TypeError("not an array")
        return np.asarray(memoryview(value))
    except Exception as error:  # the value's own code runs here; whatever it raises says why it is no array
        kind = "None" if value is None else f"a {type(value).__name__}"
        text = f"{subject} takes {takes}, got {kind}"
        if isinstance(value, list | tuple):
            text += "; pass an array: numpy.array(value, dtype=...)."
        elif value is None or str(error) in ("", "not an array"):
            text += "; pass a numpy array."
        else:
            text += f", which cannot be read as an array: {type(error).__name__}: {error}"
        raise InputError(text) from error


def _is_torch(value: Any) -> bool:
    """Whether it is a tensor of a torch that the user has imported."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return isinstance(tensor, type) and isinstance(value, tensor)


def _from_torch(value: Any) -> Array:
    """A CPU tensor as an array. torch itself offers no bfloat16 to numpy, so its bits are reinterpreted."""
    torch = sys.modules["torch"]
    plain = value.detach().resolve_conj().resolve_neg()
    if plain.dtype is torch.bfloat16:
        bits: Array = np.asarray(plain.view(torch.int16))
        return bits.view(ScalarType.BFLOAT16.numpy)
    return np.asarray(plain)


def _dtype_text(given: np.dtype[Any], subject: str, dtype: ScalarType, takes: str) -> str:
    text = f"{subject} takes {takes}, got {given.name}"
    if given.kind not in "biufV" or given.names is not None:
        return f"{text}."
    spelling = "ml_dtypes.bfloat16" if dtype is ScalarType.BFLOAT16 else f"numpy.{dtype.numpy.name}"
    if dtype is ScalarType.BOOL:
        spelling = "bool"
    return f"{text}. It is not converted, since values could change; if that is meant, pass value.astype({spelling})."


class Binder:
    """Binds the arguments of a call to the flat inputs of one method."""

    def __init__(self, method: str, inputs: Sequence[InputSpec], signature: Signature) -> None:
        """Raises `SignatureError` where the signature and the inputs do not belong together."""
        self._method = method
        self._inputs = tuple(inputs)
        self._texts = tuple((f"input '{spec.name}'", describe_input(spec)) for spec in inputs)
        self._parameters = signature.parameters
        self._by_name = {parameter.name: parameter for parameter in signature.parameters}
        self._positional = tuple(p for p in signature.parameters if not p.keyword_only)
        self._leaf_names = {
            name: leaf.index for p in signature.parameters for name, leaf in named_leaves(p.name, p.tree)
        }
        places = [leaf.index for parameter in signature.parameters for leaf in leaves(parameter.tree)]
        if sorted(set(places)) != list(range(len(self._inputs))):
            raise SignatureError(
                f"the signature of method '{method}' names the inputs {sorted(set(places))}, "
                f"the graph has {len(self._inputs)}; the file is damaged or was edited."
            )
        self.flat = (
            len(self._positional) == len(self._inputs) == len(self._parameters)
            and places == list(range(len(self._inputs)))
            and all(isinstance(p.tree, Leaf) for p in self._parameters)
            and not any(spec.mutated for spec in self._inputs)
        )
        """Positional arguments are the inputs in order, so that arrays that fit need no binding at all."""

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Bound:
        """The flat inputs for one call.

        Raises:
            InputError: a wrong count, name, structure, dtype, rank or size; the text names the input.
        """
        found: dict[int, Any] = {}
        given = self._by_parameter(args, kwargs, found)
        for parameter in self._parameters:
            if parameter.name in given:
                self._fill(parameter.tree, given[parameter.name], parameter.name, found)
        missing = [spec for i, spec in enumerate(self._inputs) if i not in found]
        if missing:
            names = ", ".join(f"'{spec.name}' ({describe_input(spec)})" for spec in missing)
            raise InputError(
                f"method '{self._method}' got no value for its input{'s' if len(missing) > 1 else ''} {names}."
            )
        arrays = []
        written = []
        for i, (spec, (subject, takes)) in enumerate(zip(self._inputs, self._texts, strict=True)):
            array = to_array(found[i], subject, spec.dtype, takes, not spec.dims)
            spec.check_shape(array.shape)
            arrays.append(array)
            if spec.mutated:
                written.append((i, _writable(found[i], spec)))
        return arrays, written

    def _by_parameter(self, args: Sequence[Any], kwargs: Mapping[str, Any], found: dict[int, Any]) -> dict[str, Any]:
        """Arguments by parameter name; leaves that are given by their own dotted names go to `found`."""
        if len(args) > len(self._positional):
            names = ", ".join(p.name for p in self._positional)
            keywords = ", ".join(p.name for p in self._parameters if p.keyword_only)
            count = len(self._positional)
            takes = f"{count} positional argument{'s' if count != 1 else ''} ({names})" if count else "no arguments"
            raise InputError(
                f"method '{self._method}' takes {takes}{' by position' if keywords and not count else ''}, "
                f"got {len(args)}{f'; by keyword only: {keywords}' if keywords else ''}."
            )
        given = {parameter.name: value for parameter, value in zip(self._positional, args, strict=False)}
        for name, value in kwargs.items():
            if name in given:
                raise InputError(f"method '{self._method}' got '{name}' twice: by position and by name.")
            if name in self._by_name:
                given[name] = value
            elif name in self._leaf_names:
                found[self._leaf_names[name]] = value
            else:
                raise InputError(self._unknown_name(name))
        return given

    def _unknown_name(self, name: str) -> str:
        names = [p.name for p in self._parameters] + [n for n in self._leaf_names if n not in self._by_name]
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        return f"method '{self._method}' has no input '{name}'. Its inputs: {', '.join(names) or 'none'}.{hint}"

    def _fill(self, tree: Tree, value: Any, path: str, found: dict[int, Any]) -> None:
        if isinstance(tree, Leaf):
            if tree.index in found and found[tree.index] is not value:
                raise InputError(f"method '{self._method}' got '{path}' twice.")
            found[tree.index] = value
        elif isinstance(tree, Constant):
            _check_constant(tree, value, path)
        else:
            for key, item, child in _children(tree, value, path):
                dotted = isinstance(key, str) and key.isidentifier()
                self._fill(item, child, f"{path}.{key}" if dotted else f"{path}[{key!r}]", found)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters of the exported function."""
        return self._parameters


def _writable(value: Any, spec: InputSpec) -> Array:
    """The caller's own array, which a method that mutates this input writes back to."""
    if isinstance(value, np.ndarray) and value.flags.writeable and value.dtype == spec.dtype.numpy:
        return value
    if not isinstance(value, np.ndarray):
        problem = f"a {type(value).__name__}"
    elif not value.flags.writeable:
        problem = "a read-only array"
    else:
        problem = f"an array of {value.dtype}"
    raise InputError(
        f"input '{spec.name}' is changed by the method, so it needs a writable numpy array of "
        f"{spec.dtype.torch_name}; got {problem}."
    )


def _check_constant(tree: Constant, value: Any, path: str) -> None:
    fixed = tree.value
    same = value is fixed
    if not same and isinstance(fixed, int | float) and isinstance(value, int | float | np.number | np.bool_):
        is_bool = isinstance(value, bool | np.bool_)
        same = isinstance(fixed, bool) == is_bool and bool(value == fixed or (value != value and fixed != fixed))
    elif not same and isinstance(fixed, str):
        same = isinstance(value, str) and value == fixed
    if not same:
        raise InputError(
            f"argument '{path}' was fixed to {fixed!r} when the model was exported, got {_short(value)}. "
            f"Leave it out, or export the model with the other value."
        )


def _short(value: Any) -> str:
    if isinstance(value, bool | int | float | str | None):
        text = repr(value)
        return text if len(text) <= 60 else text[:57] + "..."
    return f"a {type(value).__name__}"


def _children(tree: Container, value: Any, path: str) -> list[tuple[str | int, Tree, Any]]:
    """Key, sub-tree and the user's value for each child.

    Raises:
        InputError: the value is not such a container, or has other keys.
    """
    keys: Sequence[str | int] = tree.keys or range(len(tree.items))
    label = {"namedtuple": tree.type_name or "namedtuple", "object": tree.type_name or "object"}.get(
        tree.kind, tree.kind
    )
    if isinstance(value, Mapping) and tree.keys:
        missing = [key for key in keys if key not in value]
        unknown = [key for key in value if key not in keys]
        if missing or unknown:
            parts = [f"has no key {', '.join(map(repr, missing))}"] if missing else []
            parts += [f"has the unknown key {', '.join(map(repr, unknown))}"] if unknown else []
            raise InputError(f"argument '{path}' {' and '.join(parts)}. Its keys: {', '.join(map(str, keys))}.")
        return [(key, item, value[key]) for key, item in zip(keys, tree.items, strict=True)]
    if isinstance(value, tuple | list) and tree.kind in ("tuple", "list", "namedtuple"):
        if len(value) != len(tree.items):
            raise InputError(f"argument '{path}' is a {label} of {len(tree.items)} items, got {len(value)}.")
        return [(key, item, child) for key, item, child in zip(keys, tree.items, value, strict=True)]
    if tree.kind == "object" and all(isinstance(key, str) and hasattr(value, key) for key in keys):
        return [(key, item, getattr(value, str(key))) for key, item in zip(keys, tree.items, strict=True)]
    shown = f" with keys {', '.join(map(str, keys))}" if tree.keys else f" of {len(tree.items)} items"
    raise InputError(f"argument '{path}' takes a {label}{shown}, got {_short(value)}.")


class Results:
    """Puts an engine's results into the structure that the exported function returned.

    Args:
        method: the method's name, for messages.
        signature: says the structure.
        numbers: positions of results that are Python numbers, even where the engine computes them.
    """

    def __init__(self, method: str, signature: Signature, numbers: Collection[int] = ()) -> None:
        self._method = method
        self._numbers = numbers
        self._tree = signature.result
        tree = self._tree
        self._single = isinstance(tree, Leaf)
        self._flat_tuple = (
            isinstance(tree, Container)
            and tree.kind == "tuple"
            and [item.index if isinstance(item, Leaf) else None for item in tree.items] == list(range(len(tree.items)))
        )

    def build(self, graph: StaticGraph, result: RunResult) -> Any:
        """The user's result of one run of `graph`."""
        plan = graph.extra.get(_PLAN)
        if plan is None:
            plan = graph.extra[_PLAN] = self._plan(graph)
        outputs = result.outputs
        if len(outputs) != len(graph.outputs):
            raise ExecutionError(
                f"method '{self._method}' has {len(graph.outputs)} tensor outputs, the engine gave {len(outputs)}; "
                "this is a fault of the engine."
            )
        if plan is _ALL_TENSORS:
            if self._single:
                return outputs[0]
            if self._flat_tuple:
                return tuple(outputs)
            return build(self._tree, outputs.__getitem__)
        return build(self._tree, lambda index: self._result(index, plan[index], outputs))

    def _result(self, index: int, planned: tuple[int | None, Any], outputs: Sequence[Array]) -> Any:
        place, value = planned
        if place is None:
            return value
        return outputs[place].item() if index in self._numbers else outputs[place]

    def _plan(self, graph: StaticGraph) -> Any:
        """For each result its place among the outputs, or the scalar that it is for these shapes."""
        needed = {leaf.index for leaf in leaves(self._tree)}
        if needed and max(needed) >= len(graph.results):
            raise SignatureError(
                f"the signature of method '{self._method}' names result {max(needed)}, the graph has "
                f"{len(graph.results)} results; the file is damaged or was edited."
            )
        plan: list[tuple[int | None, Any]] = []
        count = 0
        for item in graph.results:
            if isinstance(item, Value):
                plan.append((count, None))
                count += 1
            else:
                plan.append((None, item))
        whole = len(plan) == count and not self._numbers and (not self._flat_tuple or len(needed) == count)
        return _ALL_TENSORS if whole else plan


_ALL_TENSORS = object()


def flatten_result(tree: Tree, value: Any, name: str = "output") -> list[tuple[str, Any]]:
    """The leaves of a result with the names that `describe` gives them: the inverse of putting it together."""
    if isinstance(tree, Leaf):
        return [(name, value)]
    if isinstance(tree, Constant):
        return []
    found = []
    for i, item in enumerate(tree.items):
        key = tree.keys[i] if tree.keys else i
        child = value[key] if tree.kind in ("dict", "object") else value[i]
        dotted = isinstance(key, str) and key.isidentifier()
        found += flatten_result(item, child, f"{name}.{key}" if dotted else f"{name}[{key!r}]")
    return found
