"""Where a graph ends because only data tell how it goes on.

A method whose sizes follow from the contents of tensors is specialised in stages. A stage is an ordinary static graph
with a `Cut`: what the runtime does once the stage has run (call one operator in numpy, or read one number), and what
the next stage takes. Stages but the last change neither state nor inputs, so a run that fails on its way leaves both
as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from ptn_format.dtypes import ScalarType
from ptn_format.graph import TensorMeta

from ptn_runtime.lowering.plan import Step
from ptn_runtime.lowering.static import StaticGraph, StaticNode, TensorSpec, Value

__all__ = ["Answer", "Cut", "NeedError", "answer_key", "number_of"]

Array = npt.NDArray[Any]

Answer: TypeAlias = "bytes | tuple[TensorSpec, ...]"
"""What a cut gave, as far as the next stage depends on it: the bytes of a number, or what an operator's results are."""


class NeedError(Exception):
    """A step cannot be specialised before data are there; never leaves lowering.

    Attributes:
        step: the step.
        number: the tensor of one element whose number it needs; None where the step is an operator to be run.
        arguments: the operator's arguments by name.
        outputs: slots of the operator's results.
    """

    def __init__(
        self,
        step: Step,
        reason: str,
        *,
        number: Value | None = None,
        arguments: Mapping[str, Any] | None = None,
        outputs: tuple[int, ...] = (),
    ) -> None:
        super().__init__(reason)
        self.step = step
        self.number = number
        self.arguments = arguments
        self.outputs = outputs


@dataclass(eq=False, slots=True)
class Cut:
    """The end of a stage that is not a method's last one.

    Attributes:
        node: what is asked for: the call that the runtime makes in numpy, its arguments values of this stage; where a
            number is read, `aten._local_scalar_dense.default` with the tensor of one element as `self`.
        is_number: a number is read.
        carried: values of this stage that the next one takes, its first inputs in order. Where an operator is run, its
            results follow.
        names: names of the operator's results.
        metas: what the file says of them.
        path: the answers of the cuts before this one.
        hints: numbers that the program itself compares the wanted number with, upper bounds first.
        resume: the next stage, given the answer; cached.

    `resume` raises `InputError` where an assertion of the program does not hold for what the data gave, and
    `LoweringError` where a node cannot be lowered.
    """

    node: StaticNode
    is_number: bool
    carried: tuple[Value, ...]
    names: tuple[str, ...] = ()
    metas: tuple[TensorMeta | None, ...] = ()
    path: tuple[Answer, ...] = ()
    hints: tuple[int, ...] = ()
    resume: Callable[[Answer], StaticGraph] = field(init=False)

    @property
    def asked(self) -> Value:
        """The tensor whose number is read."""
        value = self.node.args["self"]
        assert isinstance(value, Value)
        return value


def answer_key(cut: Cut, arrays: Sequence[Array]) -> Answer:
    """The answer that these arrays give to `cut`."""
    if cut.is_number:
        return arrays[0].tobytes()
    return tuple([TensorSpec(ScalarType.from_numpy(array.dtype), array.shape) for array in arrays])


def number_of(value: Value, answer: bytes) -> Array:
    """The tensor of one element, read-only, that `answer` stands for."""
    return np.frombuffer(answer, value.dtype.numpy).reshape(value.shape)
