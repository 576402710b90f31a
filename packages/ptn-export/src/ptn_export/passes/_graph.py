"""What passes share: reading nodes, making nodes, and the constants of the method."""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, TensorArgument
from torch.utils import _pytree as pytree

from ptn_export.dims import SCALAR_TYPES, same_size

if TYPE_CHECKING:
    from ptn_export.capture import Captured  # which needs this package

__all__ = [
    "Context",
    "argument",
    "dtype_of",
    "has_value_type",
    "insert",
    "insert_like",
    "is_call",
    "number",
    "operand",
    "operands",
    "place",
    "replace",
    "same_shape",
    "shape_of",
    "sizes_of",
    "tensor_of",
]

_aten = torch.ops.aten
_LIFTED = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


class Context:
    """A program while passes change it.

    Args:
        captured: the decomposed program.
        state: keys of buffers that this or another method of the package changes: they are no constants.

    Attributes:
        program: the decomposed program.
        counts: how often each pass has rewritten something that is worth a line of the report.
    """

    def __init__(self, captured: Captured, state: Collection[str]) -> None:
        self.program = program = captured.program
        self.counts: Counter[str] = Counter()
        self._captured = captured
        self._placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
        self._data: dict[fx.Node, torch.Tensor] = {}
        self._keys: dict[fx.Node, str] = {}
        for spec in program.graph_signature.input_specs:
            if spec.kind in _LIFTED and spec.target and captured.fqn(spec.target) not in state:
                data = program.state_dict.get(spec.target, program.constants.get(spec.target))
                if _is_plain(data):
                    node = self._placeholders[spec.arg.name]
                    self._data[node], self._keys[node] = data, spec.target

    def constant(self, node: Any) -> torch.Tensor | None:
        """The data of a parameter, constant, or buffer that no method changes; None for anything else."""
        return self._data.get(node) if isinstance(node, fx.Node) else None

    def key(self, node: fx.Node) -> str:
        """The name of a constant."""
        return self._keys[node]

    def add_constant(self, data: torch.Tensor, name: str, sources: Sequence[str] = ()) -> fx.Node:
        """A placeholder of the top graph for new data.

        The key holds a digest of the data: equal keys of two methods mean equal data, whatever was folded where.

        Args:
            data: a dense tensor.
            name: what it was made from, for people.
            sources: the keys of all constants that it was made from, for the report.
        """
        # Not `contiguous()`: it leaves one element with any stride as it is, and that cannot be viewed as bytes.
        data = data.detach().clone(memory_format=torch.contiguous_format)
        digest = hashlib.sha256(f"{data.dtype}{tuple(data.shape)}".encode())
        if data.numel():
            digest.update(data.reshape(-1).view(torch.uint8).numpy().data)
        key = f"{name.partition('.folded_')[0]}.folded_{digest.hexdigest()[:16]}"
        self._captured.origins[key] = self._users_keys(sources)
        for other, known in self._keys.items():
            if known == key:
                return other
        program = self.program
        specs = list(program.graph_signature.input_specs)
        place = next((i for i, spec in enumerate(specs) if spec.kind is InputKind.USER_INPUT), len(specs))
        nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
        before = nodes[place] if place < len(nodes) else next(n for n in program.graph.nodes if n.op != "placeholder")
        with program.graph.inserting_before(before):
            node: fx.Node = program.graph.placeholder(f"c_folded_{digest.hexdigest()[:16]}")
        mode = detect_fake_mode([other.meta.get("val") for other in program.graph.nodes])
        node.meta["val"] = mode.from_tensor(data, static_shapes=True) if mode is not None else data.to("meta")
        specs.insert(place, InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(node.name), key, None))
        program._graph_signature = ExportGraphSignature(specs, program.graph_signature.output_specs)
        program._constants = {**program.constants, key: data}
        self._data[node], self._keys[node] = data, key
        return node

    def _users_keys(self, keys: Sequence[str]) -> tuple[str, ...]:
        """The user's own keys behind `keys`, which may be constants that a pass has computed."""
        known = self._captured.origins
        return tuple(dict.fromkeys(key for item in keys for key in known.get(item, (self._captured.fqn(item),))))


def _is_plain(data: Any) -> bool:
    return (
        type(data) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        and data.layout is torch.strided
        and not data.is_meta
        and data.dtype in SCALAR_TYPES
    )


# Reading


def is_call(node: Any, *targets: Any) -> bool:
    """Whether `node` calls one of `targets`."""
    return isinstance(node, fx.Node) and node.op == "call_function" and node.target in targets


def argument(node: fx.Node, name: str) -> Any:
    """An argument of an operator by its schema's name; its default where it was not given."""
    assert isinstance(node.target, torch._ops.OpOverload)
    for i, formal in enumerate(node.target._schema.arguments):
        if formal.name == name:
            if i < len(node.args) and not formal.kwarg_only:
                return node.args[i]
            return node.kwargs.get(name, formal.default_value)
    raise KeyError(name)


def operand(node: Any, index: int) -> Any:
    """A positional argument of a call."""
    return node.args[index]


def operands(node: Any) -> tuple[Any, ...]:
    """The positional arguments of a call."""
    return tuple(node.args)


def dtype_of(node: Any) -> torch.dtype | None:
    """The element type of a node's tensor; None where it is no tensor."""
    value = tensor_of(node)
    return value.dtype if value is not None else None


def tensor_of(node: Any) -> torch.Tensor | None:
    """The fake tensor of a node; None where it is no single tensor."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def shape_of(node: Any) -> tuple[Any, ...]:
    """Sizes of a node's tensor, symbolic ones included; `(None,)` where it is no tensor."""
    value = tensor_of(node)
    return tuple(value.shape) if value is not None else (None,)


def same_shape(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether two shapes are provably equal."""
    return len(left) == len(right) and all(map(same_size, left, right))


def has_value_type(node: Any, other: Any) -> bool:
    """Whether both are tensors of one element type and provably one shape."""
    a, b = tensor_of(node), tensor_of(other)
    return a is not None and b is not None and a.dtype == b.dtype and same_shape(a.shape, b.shape)


def number(value: Any, context: Context) -> float | int | None:
    """A Python number, or the number in a 0-d tensor that does not depend on inputs."""
    if isinstance(value, int | float):
        return value
    if is_call(value, _aten.scalar_tensor.default):
        return value.args[0] if isinstance(value.args[0], int | float) else None
    if is_call(value, _aten.full.default) and not any(isinstance(size, fx.Node) for size in value.args[0]):
        return value.args[1] if isinstance(value.args[1], int | float) else None
    data = context.constant(value)
    if data is not None and data.numel() == 1 and data.dim() == 0:
        item: float | int = data.item()
        return item
    return None


# Making


def insert(before: fx.Node, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
    """A call in front of `before`, at whose source lines it stands, with the value that PyTorch infers."""
    graph = before.graph
    with graph.inserting_before(before):
        node = graph.call_function(target, args, kwargs)
    node.meta = {key: value for key, value in before.meta.items() if key != "val"}
    values = pytree.tree_map_only(fx.Node, lambda item: item.meta["val"], (args, kwargs))
    mode = detect_fake_mode([item for item in pytree.tree_leaves(values) if isinstance(item, torch.Tensor)])
    with mode or contextlib.nullcontext():
        # A few values are plain tensors without data.
        values = pytree.tree_map_only(torch.Tensor, lambda item: _as_fake(item, mode), values)
        node.meta["val"] = target(*values[0], **values[1])
    return node


def insert_like(old: fx.Node, target: Callable[..., Any], *args: Any) -> fx.Node:
    """A call in front of `old` with its value: to infer it could fail on strides, which the graph does not have."""
    return place(old, old.meta["val"], target, *args)


def place(before: fx.Node, value: Any, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
    """A call in front of `before` whose value is known."""
    with before.graph.inserting_before(before):
        node = before.graph.call_function(target, args, kwargs)
    node.meta = {**before.meta, "val": value}
    return node


def sizes_of(node: fx.Node, before: fx.Node) -> list[Any]:
    """The sizes of a tensor as arguments of calls: numbers, and nodes in front of `before` for symbolic ones."""
    return [
        size if isinstance(size, int) else place(before, size, _aten.sym_size.int, node, axis)
        for axis, size in enumerate(shape_of(node))
    ]


def _as_fake(value: torch.Tensor, mode: Any) -> torch.Tensor:
    """A stand-in without strides: packages have none, and PyTorch refuses some views of expanded tensors."""
    if mode is None:
        return value
    return (
        value.new_empty(value.shape) if isinstance(value, FakeTensor) else torch.empty(value.shape, dtype=value.dtype)
    )


def replace(old: fx.Node, new: fx.Node) -> None:
    """Puts `new` in the place of `old`; operands that have become dead go later."""
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)  # at once, because PyTorch counts attention as random, which dead code may not be
