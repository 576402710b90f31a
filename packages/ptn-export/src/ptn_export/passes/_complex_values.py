"""Complex tensors as real ones: the two forms that the `complex` pass keeps them in, and how it writes real calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from ptn_export.passes._graph import dtype_of, insert, place, same_shape, shape_of, sizes_of, tensor_of

__all__ = ["REAL_TYPES", "Complex", "NoRealFormError", "Part", "Writer", "as_real_value"]

_aten = torch.ops.aten

REAL_TYPES = {torch.complex64: torch.float32, torch.complex128: torch.float64}
"""Element type of the parts of each complex type that is rewritten."""

Part = fx.Node | float
"""Real or imaginary part: a node, or one number for every element."""


class NoRealFormError(Exception):
    """An operator cannot be rewritten to real numbers; the text says why."""


@dataclass(slots=True, eq=False)
class Complex:
    """A complex tensor. One of the two forms is there from the beginning, the other is made when it is needed.

    Attributes:
        dtype: element type of the parts.
        parts: real and imaginary part, each of the tensor's shape or a number.
        joint: a tensor with one axis more, the last, which holds the two parts.
    """

    dtype: torch.dtype
    parts: tuple[Part, Part] | None = None
    joint: fx.Node | None = None


def as_real_value(value: Any) -> Any:
    """The fake tensor of the joint form; for a list, of each complex tensor in it."""

    def convert(item: torch.Tensor) -> torch.Tensor:
        if item.dtype not in REAL_TYPES:
            return item
        return item.new_empty((*item.shape, 2), dtype=REAL_TYPES[item.dtype])

    return pytree.tree_map_only(torch.Tensor, convert, value)


class Writer:
    """Writes real calls in front of one complex call.

    Its arithmetic takes numbers for tensors and leaves out what they make superfluous, such as products with 0.

    Attributes:
        node: the call to be replaced.
        dtype: element type of the parts of its result; of its operands where the result is real.
    """

    def __init__(self, node: fx.Node, dtype: torch.dtype) -> None:
        self.node = node
        self.dtype = dtype

    def __call__(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        """A call with the value that PyTorch infers."""
        return insert(self.node, target, *args, **kwargs)

    def place(self, value: Any, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        """A call whose value is known."""
        return place(self.node, value, target, *args, **kwargs)

    # The forms of a complex tensor

    def joint(self, z: Complex) -> fx.Node:
        """The form with an axis for the parts."""
        if z.joint is None:
            parts = [self(_aten.unsqueeze.default, part, -1) for part in self.nodes(z)]
            z.joint = self(_aten.cat.default, parts, -1)
        return z.joint

    def parts(self, z: Any) -> tuple[Part, Part]:
        """Real and imaginary part, in the writer's element type, of a complex or real tensor or a number."""
        if isinstance(z, bool | int | float | complex):
            return z.real, z.imag
        if isinstance(z, fx.Node):
            return self.cast(z if tensor_of(z) is not None else self._scalar(z)), 0.0
        assert isinstance(z, Complex)
        if z.parts is None:
            assert z.joint is not None
            last = len(shape_of(z.joint)) - 1
            z.parts = (self(_aten.select.int, z.joint, last, 0), self(_aten.select.int, z.joint, last, 1))
        re, im = z.parts
        return self.cast(re), self.cast(im)

    def _scalar(self, number: fx.Node) -> fx.Node:
        """A 0-d tensor of a number that is computed from sizes or data."""
        pattern = next(value for value in map(tensor_of, (self.node, *self.node.all_input_nodes)) if value is not None)
        value = pattern.new_empty((), dtype=self.dtype)
        return self.place(value, _aten.scalar_tensor.default, number, dtype=self.dtype)

    def nodes(self, z: Any) -> tuple[fx.Node, fx.Node]:
        """As `parts`, with tensors in the place of numbers; `z` is no number itself."""
        re, im = self.parts(z)
        pattern = re if isinstance(re, fx.Node) else im
        assert isinstance(pattern, fx.Node)
        first, second = (
            part if isinstance(part, fx.Node) else self(_aten.full_like.default, pattern, float(part))
            for part in (re, im)
        )
        return first, second

    def cast(self, part: Part) -> Part:
        """The part in the writer's element type."""
        if not isinstance(part, fx.Node) or dtype_of(part) == self.dtype:
            return part
        return self(_aten._to_copy.default, part, dtype=self.dtype)

    def result(self, re: Part, im: Part) -> Complex:
        """A complex result of the call; a part that broadcasting has left smaller is expanded."""
        want = tensor_of(self.node)
        assert want is not None
        parts = [self.cast(part) for part in (re, im)]
        whole = next((p for p in parts if isinstance(p, fx.Node) and same_shape(shape_of(p), want.shape)), None)
        if whole is None:
            raise NoRealFormError("its result is one number, repeated")
        sizes: list[Any] = []
        for i, part in enumerate(parts):
            if isinstance(part, fx.Node) and not same_shape(shape_of(part), want.shape):
                sizes = sizes or sizes_of(whole, self.node)
                value = want.new_empty(want.shape, dtype=self.dtype)
                parts[i] = self.place(value, _aten.expand.default, part, sizes)
        return Complex(self.dtype, (parts[0], parts[1]))

    # Arithmetic on parts

    def add(self, a: Part, b: Part) -> Part:
        """`a + b`."""
        if not isinstance(a, fx.Node):
            a, b = b, a
        if not isinstance(a, fx.Node):
            return a + b  # type: ignore[operator]  # both are numbers
        return a if b == 0 else self(_aten.add.Tensor, a, b)

    def sub(self, a: Part, b: Part) -> Part:
        """`a - b`."""
        if not isinstance(b, fx.Node):
            return self.add(a, -b)
        return self.neg(b) if a == 0 else self(_aten.sub.Tensor, self._tensor(a, b), b)

    def neg(self, a: Part) -> Part:
        """`-a`."""
        return self(_aten.neg.default, a) if isinstance(a, fx.Node) else -a

    def mul(self, a: Part, b: Part) -> Part:
        """`a * b`; a factor of 0 makes it 0, infinite values included."""
        if not isinstance(a, fx.Node):
            a, b = b, a
        if not isinstance(a, fx.Node):
            return a * b  # type: ignore[operator]  # both are numbers
        if isinstance(b, fx.Node):
            return self(_aten.mul.Tensor, a, b)
        if b in (0, 1):
            return a if b == 1 else 0.0
        return self.neg(a) if b == -1 else self(_aten.mul.Tensor, a, b)

    def div(self, a: Part, b: Part) -> Part:
        """`a / b`."""
        if not isinstance(b, fx.Node):
            if not isinstance(a, fx.Node):
                return a / b
            return a if b == 1 else self(_aten.div.Tensor, a, b)
        return 0.0 if a == 0 else self(_aten.div.Tensor, self._tensor(a, b), b)

    def apply(self, target: Callable[..., Any], *parts: Part) -> fx.Node:
        """A function of parts; numbers become tensors of the shape of the first part that is one."""
        pattern = next(part for part in parts if isinstance(part, fx.Node))
        return self(target, *(self._tensor(part, pattern) for part in parts))

    def _tensor(self, part: Part, pattern: fx.Node) -> fx.Node:
        return part if isinstance(part, fx.Node) else self(_aten.full_like.default, pattern, float(part))
