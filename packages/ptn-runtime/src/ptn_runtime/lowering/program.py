"""The lowered program: what `EngineHost.create_context` gets. Methods are decoded and lowered when first used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptn_format.dtypes import ScalarType
from ptn_format.graph import Dim
from ptn_format.signature import Signature

from ptn_runtime.errors import InputError
from ptn_runtime.lowering.static import StaticGraph

if TYPE_CHECKING:
    from ptn_format.package import Package

__all__ = ["InputSpec", "LoweredMethod", "LoweredProgram", "StateSpec"]


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One user input of a method.

    Attributes:
        name: what users call it, such as `x` or `batch.ids`.
        dtype: element type.
        dims: allowed sizes per axis.
        mutated: the method writes to it.
    """

    name: str
    dtype: ScalarType
    dims: tuple[Dim, ...]
    mutated: bool = False

    @property
    def initial_shape(self) -> tuple[int, ...]:
        """Upper bounds; an axis without one takes its lower bound."""
        return tuple(dim.max if dim.max >= 0 else dim.min for dim in self.dims)

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raises `InputError` where `shape` does not fit."""
        if len(shape) != len(self.dims):
            raise InputError(
                f"input '{self.name}' takes {len(self.dims)} axes {self.describe_dims()}, "
                f"got {len(shape)}: {list(shape)}"
            )
        for axis, (size, dim) in enumerate(zip(shape, self.dims, strict=True)):
            if not dim.contains(size):
                raise InputError(
                    f"input '{self.name}': size {size} of axis {axis} is out of range; "
                    f"allowed {self.describe_dims()}, got {list(shape)}"
                )

    def describe_dims(self) -> str:
        """The shape range for messages: `[1..8, 384]`."""
        return "[" + ", ".join(str(dim) for dim in self.dims) + "]"


@dataclass(frozen=True, slots=True)
class StateSpec:
    """One mutable buffer, shared by all methods that name its key.

    Attributes:
        key: the buffer's fully qualified name.
        dtype: element type.
        shape: its shape.
        has_data: the package holds the initial value under `key`; else it starts as zeros.
    """

    key: str
    dtype: ScalarType
    shape: tuple[int, ...]
    has_data: bool


class LoweredMethod:
    """One method: its interface, and static graphs for concrete input shapes (cached, safe to call from threads).

    Attributes:
        name: the method's name.
        inputs: the user inputs in the graph's order.
        signature: how users call it and what they get back.
    """

    name: str
    inputs: tuple[InputSpec, ...]
    signature: Signature

    def specialize(self, shapes: tuple[tuple[int, ...], ...]) -> StaticGraph:
        """The static graph for these input shapes.

        Raises:
            InputError: a shape is out of bounds, or an assertion of the program does not hold for it.
            LoweringError: a node has no shape rule, or depends on data in a way that cannot be lowered.
        """
        raise NotImplementedError


class LoweredProgram:
    """A package's program. Immutable; shared by all contexts and sessions.

    Attributes:
        methods: names of the methods.
        states: every mutable buffer of the program, by key.
    """

    methods: tuple[str, ...]
    states: Mapping[str, StateSpec]

    def __init__(self, package: Package) -> None:
        self.package = package

    def method(self, name: str) -> LoweredMethod:
        """Returns the method, lowering it on first use.

        Raises:
            MethodNotFoundError: there is none; the text lists those that exist.
        """
        raise NotImplementedError
