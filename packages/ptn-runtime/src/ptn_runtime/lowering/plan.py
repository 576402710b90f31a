"""The canonical graph: what is left to do per set of input shapes, prepared once per method.

Every tensor and scalar of a graph body has a slot, a dense number. A step reads slots and fills slots; all that does
not depend on input shapes (names, defaults, argument order, rules) is resolved here already. `canonical.py` makes
these graphs, `specialize.py` runs their steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ptn_format.dtypes import ScalarType
from ptn_format.graph import TensorMeta

from ptn_runtime.shapes import Operator

__all__ = [
    "Assertion",
    "Binding",
    "Call",
    "CanonicalGraph",
    "Control",
    "Item",
    "Ref",
    "ScalarCall",
    "Scatter",
    "Settle",
    "Step",
    "Unknown",
    "describe",
]


@dataclass(frozen=True, slots=True)
class Ref:
    """Stands for the contents of a slot among arguments."""

    slot: int


@dataclass(eq=False, slots=True)
class Call:
    """A call of an operator that computes tensors.

    Attributes:
        name: the node's name in the file.
        operator: the catalogue's entry.
        args: every argument by name in the schema's order; those filled per shape hold None here.
        tensors: (argument, slot) for tensor arguments.
        scalars: (argument, slot, whether a number known only while the graph runs may stand there).
        lists: (argument, items) for lists with `Ref`s among their items.
        outputs: slots of the results.
        names: names of the results.
        metas: what the file says of the results, or None.
        foldable: with constant arguments the results are constants.
        shape_free: reads only constants and results of other such steps, so no input shape matters.
        window: for an operator on a window that starts at a number from data, the window's size, where it is known.
        effect: must be kept although nobody reads a result.
        source: the user's `file:line`.
    """

    name: str
    operator: Operator
    args: dict[str, Any]
    tensors: tuple[tuple[str, int], ...]
    scalars: tuple[tuple[str, int, bool], ...]
    lists: tuple[tuple[str, tuple[Any, ...]], ...]
    outputs: tuple[int, ...]
    names: tuple[str, ...]
    metas: tuple[TensorMeta | None, ...]
    foldable: bool
    effect: bool = False
    source: str | None = None
    shape_free: bool = False
    window: int | None = None

    @property
    def op(self) -> str:
        """Canonical operator name."""
        return self.operator.name

    def reads(self) -> Iterator[int]:
        """The slots that the step reads."""
        for _, slot in self.tensors:
            yield slot
        for _, slot, _ in self.scalars:
            yield slot
        for _, items in self.lists:
            yield from _slots(items)


@dataclass(eq=False, slots=True)
class ScalarCall:
    """Arithmetic on Python scalars, or a size of a tensor.

    Attributes:
        name: the node's name in the file.
        op: the function as the file spells it, such as `_operator.mul`.
        function: computes the result.
        args: scalars, or `Ref`s to scalars or tensors.
        output: slot of the result.
        takes_tensors: the function reads shapes of tensors; else a tensor among the arguments is a number known only
            while the graph runs.
        source: the user's `file:line`.
    """

    name: str
    op: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    output: int
    takes_tensors: bool
    source: str | None = None

    @property
    def outputs(self) -> tuple[int, ...]:
        """The slot that the step fills."""
        return (self.output,)

    def reads(self) -> Iterator[int]:
        """The slots that the step reads."""
        return _slots(self.args)


@dataclass(eq=False, slots=True)
class Item:
    """`Tensor.item()`: a Python scalar where the tensor is constant, else a 0-d tensor that stands for one.

    Attributes:
        name: the node's name in the file.
        tensor: slot of the tensor.
        output: slot of the number.
        source: the user's `file:line`.
        op: canonical operator name.
        is_size: a size or position is computed from it, so the number itself is needed.
    """

    name: str
    tensor: int
    output: int
    source: str | None = None
    op: str = "aten._local_scalar_dense.default"
    is_size: bool = False

    @property
    def outputs(self) -> tuple[int, ...]:
        """The slot that the step fills."""
        return (self.output,)

    def reads(self) -> Iterator[int]:
        """The slots that the step reads."""
        yield self.tensor


@dataclass(eq=False, slots=True)
class Assertion:
    """A condition of the program on sizes.

    Attributes:
        name: the node's name in the file.
        op: canonical operator name.
        holds: whether the condition holds for the values of `args`.
        args: scalars and `Ref`s.
        message: the program's own text.
        origins: (input name, axis) of the sizes that the condition depends on.
        source: the user's `file:line`.
    """

    name: str
    op: str
    holds: Callable[..., bool]
    args: tuple[Any, ...]
    message: str
    origins: tuple[tuple[str, int], ...] = ()
    source: str | None = None
    outputs: tuple[int, ...] = ()

    def reads(self) -> Iterator[int]:
        """The slots that the step reads."""
        return _slots(self.args)


@dataclass(eq=False, slots=True)
class Control:
    """A call of a higher-order operator.

    Attributes:
        name: the node's name in the file.
        op: `control.cond`, `control.while_loop`, `control.map` or `control.scan`.
        graphs: the nested graphs in the operator's order.
        predicate: for `control.cond` the condition, a literal or `Ref`.
        operands: lists of operands in the operator's order; items are `Ref`s or scalars.
        outputs: slots of the results.
        names: names of the results.
        source: the user's `file:line`.
    """

    name: str
    op: str
    graphs: tuple[CanonicalGraph, ...]
    predicate: Any
    operands: tuple[tuple[Any, ...], ...]
    outputs: tuple[int, ...]
    names: tuple[str, ...]
    source: str | None = None

    def reads(self) -> Iterator[int]:
        """The slots that the step reads."""
        yield from _slots((self.predicate,))
        for items in self.operands:
            yield from _slots(items)


@dataclass(eq=False, slots=True)
class Settle:
    """Gives the functional result of an in-place operator the element type of the tensor that it replaces."""

    name: str
    op: str
    old: int
    new: int
    output: int
    source: str | None = None

    @property
    def outputs(self) -> tuple[int, ...]:
        """The slot that the step fills."""
        return (self.output,)

    def reads(self) -> Iterator[int]:
        """The slots that the step reads."""
        yield self.old
        yield self.new


@dataclass(eq=False, slots=True)
class Scatter:
    """Writes the new contents of a view back into its base.

    Attributes:
        view: the call that made the view.
        index: which result of `view`.
        base: slot of the base's contents.
        new: slot of the view's new contents.
        output: slot of the base's new contents.
    """

    view: Call
    index: int
    base: int
    new: int
    output: int

    @property
    def name(self) -> str:
        """The name of the view's node."""
        return self.view.name

    @property
    def op(self) -> str:
        """The view's operator."""
        return self.view.op

    @property
    def source(self) -> str | None:
        """Where the user made the view."""
        return self.view.source

    @property
    def outputs(self) -> tuple[int, ...]:
        """The slot that the step fills."""
        return (self.output,)

    def reads(self) -> Iterator[int]:
        """The slots that the step reads."""
        yield self.base
        yield self.new
        yield from self.view.reads()


@dataclass(eq=False, slots=True)
class Unknown:
    """A node that cannot be bound; an error once it turns out that a result depends on it.

    Attributes:
        reason: why, as a clause.
    """

    name: str
    op: str
    reason: str
    slots: tuple[int, ...]
    outputs: tuple[int, ...]
    effect: bool = False
    source: str | None = None

    def reads(self) -> Iterator[int]:
        """The slots that the step reads."""
        return iter(self.slots)


Step: TypeAlias = Call | ScalarCall | Item | Assertion | Control | Settle | Scatter | Unknown


@dataclass(frozen=True, slots=True)
class Binding:
    """A constant or a state that enters a graph.

    Attributes:
        slot: where its value goes.
        name: SSA name in the file.
        key: data key (of the owner, for constants) or state key.
        dtype: element type; physical for packed constants.
        shape: shape; physical for packed constants.
    """

    slot: int
    name: str
    key: str
    dtype: ScalarType
    shape: tuple[int, ...]


@dataclass(eq=False, slots=True)
class CanonicalGraph:
    """A functional graph body whose shapes are open.

    Attributes:
        name: the method's name; for nested graphs with a suffix.
        num_slots: number of slots.
        inputs: (slot, name) of user inputs, or of operands.
        constants: constants of the package; a key occurs once.
        states: states that the graph reads or writes.
        steps: what to run, in order; dead steps are gone.
        results: user results: `Ref`s, scalars or None.
        state_updates: (state's slot, slot of its new contents).
        input_updates: (input's slot, slot of its new contents).
        folded: results of folding that hold for all input shapes, by the slot of the first result.
    """

    name: str
    num_slots: int
    inputs: tuple[tuple[int, str], ...]
    constants: tuple[Binding, ...]
    states: tuple[Binding, ...]
    steps: tuple[Step, ...]
    results: tuple[Any, ...]
    state_updates: tuple[tuple[int, int], ...] = ()
    input_updates: tuple[tuple[int, int], ...] = ()
    folded: dict[int, Any] = field(default_factory=dict)


def describe(step: Step) -> str:
    """The step for messages: name, operator and where the user wrote it."""
    text = f"node '{step.name}' ({step.op})"
    return f"{text} from {step.source}" if step.source else text


def _slots(items: tuple[Any, ...]) -> Iterator[int]:
    for item in items:
        if type(item) is Ref:
            yield item.slot
