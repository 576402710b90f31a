"""The family `control`: operators with nested graphs, and assertions on data.

A nested graph arrives as a function from operands to results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ptn_runtime.errors import InputError
from ptn_runtime.reference.registry import Array, Outputs, kernel

__all__ = ["OPERATORS"]

Nested = Callable[[Sequence[Array]], tuple[Array, ...]]


def cond(
    out: Outputs, pred: Array, true_fn: Nested, false_fn: Nested, operands: tuple[Array, ...]
) -> tuple[Array, ...]:
    return true_fn(operands) if pred.item() else false_fn(operands)


def while_loop(
    out: Outputs,
    cond_fn: Nested,
    body_fn: Nested,
    carried_inputs: tuple[Array, ...],
    additional_inputs: tuple[Array, ...] = (),
) -> tuple[Array, ...]:
    carried = carried_inputs
    while cond_fn((*carried, *additional_inputs))[0].item():
        carried = body_fn((*carried, *additional_inputs))
    return carried


def map_(out: Outputs, f: Nested, xs: tuple[Array, ...], pos_args: tuple[Array, ...] = ()) -> tuple[Array, ...]:
    results = tuple(np.empty(spec.shape, spec.dtype.numpy) for spec in out)
    for index in range(xs[0].shape[0]):
        # `...` keeps slices of one axis as 0-d arrays.
        row = f((*(x[index, ...] for x in xs), *pos_args))
        for result, value in zip(results, row, strict=True):
            result[index, ...] = value
    return results


def scan(
    out: Outputs,
    combine_fn: Nested,
    init: tuple[Array, ...],
    xs: tuple[Array, ...],
    additional_inputs: tuple[Array, ...] = (),
) -> tuple[Array, ...]:
    count = len(init)
    carried = init
    stacked = tuple(np.empty(spec.shape, spec.dtype.numpy) for spec in out[count:])
    for index in range(xs[0].shape[0]):
        results = combine_fn((*carried, *(x[index, ...] for x in xs), *additional_inputs))
        carried = results[:count]
        for stack, value in zip(stacked, results[count:], strict=True):
            stack[index, ...] = value
    return (*carried, *stacked)


OPERATORS: Mapping[str, Callable[..., tuple[Array, ...]]] = {
    "control.cond": cond,
    "control.while_loop": while_loop,
    "control.map": map_,
    "control.scan": scan,
}
"""Operators that need the engine to run their nested graphs."""


@kernel("aten._assert_async.msg")
def assert_async(out: Outputs, self: Array, assert_msg: str = "") -> tuple[Array, ...]:
    if not self.item():
        raise InputError(f"an assertion of the program does not hold: {assert_msg or 'no text given'}")
    return ()
