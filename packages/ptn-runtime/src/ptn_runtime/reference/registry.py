"""The table of numpy kernels, and how one of them is run on its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from ptn_format.dtypes import ScalarType

from ptn_runtime.lowering.static import TensorSpec
from ptn_runtime.shapes import FAMILIES, OPERATORS, DataDependentError, Tensor, infer
from ptn_runtime.shapes._table import FamilyTable

__all__ = ["KERNELS", "Array", "Number", "Outputs", "check_results", "evaluate", "kernel"]

Array: TypeAlias = npt.NDArray[Any]
Number: TypeAlias = bool | int | float
Kernel: TypeAlias = Callable[..., "Array | tuple[Array, ...]"]
_K = TypeVar("_K", bound=Kernel)


KERNELS: FamilyTable[Kernel] = FamilyTable(__name__.rpartition(".")[0], FAMILIES, "kernel")
"""Every kernel by canonical operator name. Operators with nested graphs are run by the engine itself."""


class Outputs(tuple[TensorSpec, ...]):
    """The dtypes and shapes of a kernel's results: `out[i]`, and `out.dtype`, `out.shape` of the first."""

    @property
    def dtype(self) -> ScalarType:
        """Element type of the first result."""
        return self[0].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first result."""
        return self[0].shape


def kernel(*names: str) -> Callable[[_K], _K]:
    """Enters the decorated kernel into `KERNELS` under each of `names`.

    A kernel takes an `Outputs`, then the operator's arguments under their schema's names: tensors as arrays, lists as
    tuples. It returns one array, or a tuple, of exactly the dtypes and shapes of the `Outputs`; it never writes to its
    arguments, and may return a view of one. Where the shape depends on the data, its `Outputs` are empty.
    """

    def register(function: _K) -> _K:
        for name in names:
            KERNELS.enter(name, function)
        return function

    return register


def evaluate(op: str, args: Mapping[str, Any], outputs: Sequence[Tensor] | None = None) -> tuple[Array, ...]:
    """Runs one operator.

    Args:
        op: canonical operator name.
        args: arguments by name, tensors as arrays. Arguments with a default may be left out.
        outputs: dtype and shape of each result; inferred where left out, as far as they do not depend on data.

    Returns:
        One array per result; they may be views of arguments.

    Raises:
        KeyError: there is no kernel for `op`.
        ValueError: the arguments do not fit.
        IndexOutOfRangeError: an index in the data lies outside its axis.
    """
    function = KERNELS[op]
    operator = OPERATORS[op]
    bound = {**operator.defaults, **args}
    for name in operator.numbers:
        if isinstance(bound.get(name), np.ndarray):
            bound[name] = bound[name].item()
    if outputs is None:
        outputs = _inferred(op, bound)
    specs = Outputs(TensorSpec(spec.dtype, spec.shape) for spec in outputs)
    with np.errstate(all="ignore"):
        results = function(specs, **bound)
    tuple_of = results if isinstance(results, tuple) else (results,)
    if specs:
        check_results(op, specs, tuple_of)
    return tuple_of


def _inferred(op: str, args: Mapping[str, Any]) -> tuple[TensorSpec, ...]:
    try:
        return infer(op, {name: _described(value) for name, value in args.items()})
    except DataDependentError:
        return ()


def _described(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return TensorSpec(ScalarType.from_numpy(value.dtype), value.shape)
    if isinstance(value, tuple):
        return tuple(_described(item) for item in value)
    return value


def check_results(op: str, specs: Sequence[TensorSpec], results: Sequence[Any]) -> None:
    """Raises `TypeError` where a kernel's results are not what the shape rule says: one of the two has a fault."""
    if len(specs) != len(results):
        raise TypeError(f"the kernel of {op} gives {len(results)} results, its shape rule says {len(specs)}")
    for index, (spec, array) in enumerate(zip(specs, results, strict=True)):
        if not isinstance(array, np.ndarray) or array.dtype != spec.dtype.numpy or array.shape != spec.shape:
            kind = getattr(array, "dtype", type(array).__name__)
            raise TypeError(
                f"the kernel of {op} gives {kind}{list(getattr(array, 'shape', ()))} as result {index}, "
                f"its shape rule says {spec.dtype.torch_name}{list(spec.shape)}"
            )
