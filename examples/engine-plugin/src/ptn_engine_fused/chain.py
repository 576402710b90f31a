"""Chains of element-wise operators, run block by block.

Run one after another, operators on large tensors spend their time moving data between memory and processor. A chain
instead takes a piece that fits the cache through all its operators, then the next piece. What only the chain itself
reads is never written to memory at all: it lives in a few block-sized buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ptn_format.dtypes import ScalarType
from ptn_runtime.engine import Array, StaticNode, Value

__all__ = ["FUSIBLE", "Chain", "is_fusible"]

DTYPES = frozenset({ScalarType.FLOAT, ScalarType.DOUBLE})
"""Element types in which numpy computes as PyTorch does; half and bfloat16 would need a wider working precision."""

Function = Callable[..., Any]


@dataclass(frozen=True)
class Form:
    """How an operator runs on a block.

    Attributes:
        operands: the arguments that it computes with: tensors of the chain's shape, or Python numbers.
        write: writes the result for `operands` into the array `out`, which is none of them.
        required: values that other arguments must have.
    """

    operands: tuple[str, ...]
    write: Function
    required: Mapping[str, Any] = field(default_factory=dict)


def _ufunc(function: Function) -> Function:
    return lambda out, *operands: function(*operands, out=out)


def _sigmoid(out: Array, x: Array) -> None:
    np.negative(x, out=out)
    np.exp(out, out=out)
    np.add(out, 1, out=out)
    np.reciprocal(out, out=out)


def _silu(out: Array, x: Array) -> None:
    _sigmoid(out, x)
    np.multiply(out, x, out=out)


def _relu(out: Array, x: Array) -> None:
    np.maximum(x, 0, out=out)  # NaN stays NaN


def _rsqrt(out: Array, x: Array) -> None:
    np.sqrt(x, out=out)
    np.reciprocal(out, out=out)


_UNARY: dict[str, Function] = {
    "abs": _ufunc(np.abs),
    "cos": _ufunc(np.cos),
    "exp": _ufunc(np.exp),
    "log": _ufunc(np.log),
    "neg": _ufunc(np.negative),
    "reciprocal": _ufunc(np.reciprocal),
    "relu": _relu,
    "rsqrt": _rsqrt,
    "sigmoid": _sigmoid,
    "silu": _silu,
    "sin": _ufunc(np.sin),
    "sqrt": _ufunc(np.sqrt),
    "tanh": _ufunc(np.tanh),
}
_BINARY: dict[str, Function] = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
_PAIR = ("self", "other")

FUSIBLE: dict[str, Form] = {f"aten.{name}.default": Form(("self",), write) for name, write in _UNARY.items()}
for _name, _function in _BINARY.items():
    _required = {"alpha": 1} if _name in ("add", "sub") else {}
    for _overload in ("Tensor", "Scalar"):
        FUSIBLE[f"aten.{_name}.{_overload}"] = Form(_PAIR, _ufunc(_function), _required)
for _name, _function in {"maximum": np.maximum, "minimum": np.minimum}.items():
    FUSIBLE[f"aten.{_name}.default"] = Form(_PAIR, _ufunc(_function))
"""Operators that can be part of a chain, by canonical name."""


def is_fusible(node: StaticNode) -> bool:
    """Whether a node can be part of a chain: all its tensors have one shape and one floating-point dtype."""
    form = FUSIBLE.get(node.op)
    if form is None or node.output.dtype not in DTYPES:
        return False
    if any(node.args[name] != value for name, value in form.required.items() if name in node.args):
        return False
    return all(_fits(node.args[name], node.output) for name in form.operands)


def _fits(arg: Any, result: Value) -> bool:
    if isinstance(arg, Value):
        # A 0-d tensor in the place of a number looks like one of the chain's where all of them are 0-d.
        return bool(arg.shape == result.shape and arg.dtype is result.dtype and result.shape)
    return isinstance(arg, int | float)


@dataclass(frozen=True)
class _Operation:
    """One node of a chain; operands and target are places in the chain's list of pieces."""

    write: Function
    operands: tuple[int, ...]
    target: int


class Chain:
    """Neighbouring nodes of one shape and dtype, run block by block."""

    def __init__(self, nodes: Sequence[StaticNode], kept: Collection[int], block: int) -> None:
        """Plans the chain.

        Args:
            nodes: fusible nodes in execution order, results of one shape and dtype.
            kept: ids of those results that are read after the chain; all others stay in buffers.
            block: elements of a block.
        """
        self.nodes = tuple(nodes)
        self.kept = tuple(node.output.id for node in nodes if node.output.id in kept)
        self._shape = nodes[0].output.shape
        self._dtype = nodes[0].output.dtype.numpy
        self._size = nodes[0].output.numel
        self._block = max(1, min(block, self._size))
        # A piece is a number, a buffer, or what the current block is of a tensor in memory.
        self._pieces: list[Any] = []
        self._tensors: dict[int, int] = {}  # value id -> place
        self._buffers: list[int] = []  # places
        self._operations = self._plan()

    @property
    def num_buffers(self) -> int:
        """Blocks of memory that a run needs beside the tensors that enter and leave the chain."""
        return len(self._buffers)

    def _plan(self) -> list[_Operation]:
        """Gives each result that is not kept a buffer, reused after its last reader."""
        last = {value.id: index for index, node in enumerate(self.nodes) for value in node.inputs()}
        held: dict[int, int] = {}  # value id -> place of its buffer
        free: list[int] = []
        operations = []
        for index, node in enumerate(self.nodes):
            form = FUSIBLE[node.op]
            operands = tuple(self._operand(node.args[name], held) for name in form.operands)
            result = node.output.id
            if result in self.kept:
                target = self._tensor(result)
            else:
                target = held[result] = free.pop() if free else self._new_buffer()
            operations.append(_Operation(form.write, operands, target))
            # Only now: a result must not lie where its own operands do.
            done = {i for i in held if last.get(i, -1) <= index}
            free.extend(held.pop(i) for i in done)
        return operations

    def _place(self, piece: Any) -> int:
        self._pieces.append(piece)
        return len(self._pieces) - 1

    def _new_buffer(self) -> int:
        self._buffers.append(self._place(None))
        return self._buffers[-1]

    def _tensor(self, i: int) -> int:
        if i not in self._tensors:
            self._tensors[i] = self._place(None)
        return self._tensors[i]

    def _operand(self, arg: Any, held: Mapping[int, int]) -> int:
        if not isinstance(arg, Value):
            return self._place(float(arg))
        return held[arg.id] if arg.id in held else self._tensor(arg.id)

    def run(self, values: dict[int, Array]) -> None:
        """Reads the chain's operands from `values` and adds what is kept."""
        for i in self.kept:
            values[i] = np.empty(self._shape, self._dtype)
        tensors = [(place, np.ascontiguousarray(values[i]).reshape(-1)) for i, place in self._tensors.items()]
        pieces = list(self._pieces)  # of this run: contexts of one program may run at the same time
        for place in self._buffers:
            pieces[place] = np.empty(self._block, self._dtype)
        for start in range(0, self._size, self._block):
            stop = start + self._block
            for place, tensor in tensors:
                pieces[place] = tensor[start:stop]
            if stop > self._size:
                for place in self._buffers:
                    pieces[place] = pieces[place][: self._size - start]
            for operation in self._operations:
                operation.write(pieces[operation.target], *[pieces[place] for place in operation.operands])
