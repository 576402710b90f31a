"""Graph rewriting before serialisation: one file per pass, whose `run` changes a decomposed graph in place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from torch import fx

from ptn_export.passes import (
    asserts,
    attention,
    attention_rank,
    batch_norm,
    complex,
    cse,
    dft,
    fold,
    gqa,
    no_ops,
    non_finite,
    numbers,
    out_dtype,
    quantised,
    rms_norm,
    rope,
    views,
)
from ptn_export.passes._graph import Context

if TYPE_CHECKING:
    from ptn_export.bodies import Problems
    from ptn_export.capture import Captured  # which imports `bodies` from here

__all__ = ["PASSES", "bodies", "check_names", "run_all"]

Pass = Callable[[fx.GraphModule, Context], None]

PASSES: Mapping[str, Pass] = {
    "copies": lambda body, _: no_ops.run(body),
    "asserts": lambda body, context: asserts.run(body, context.program.range_constraints),
    "cse": cse.run,
    "views": views.run,
    "dft": dft.run,
    "rms_norm": rms_norm.run,
    "rope": rope.run,
    "fold": fold.run,
    "attention": attention.run,
    "gqa": gqa.run,
    "attention_rank": attention_rank.run,
    "batch_norm": batch_norm.run,
}
"""Every pass that can be switched off, in the order in which they run.

Rotary embeddings come before folding, which would turn sines and cosines of constant positions into tables; attention
comes after it, because it looks at masks that are constant.
"""

_TIDY_AFTER = {"dft": ("views",), "rope": ("views",), "attention": ("views",), "batch_norm": ("views", "cse")}
"""Passes that run once more behind another, on what it has put in: `gqa` looks at the axes in front of attention."""


def check_names(names: Collection[str]) -> frozenset[str]:
    """`names` as a set.

    Raises:
        TypeError: it is one string.
        ValueError: there is no pass of one of the names.
    """
    if isinstance(names, str):
        raise TypeError(f"disable_passes is a collection of names, got the string {names!r}; write ({names!r},)")
    unknown = sorted(set(names) - set(PASSES))
    if unknown:
        raise ValueError(f"there is no pass {', '.join(map(repr, unknown))}; the passes are {', '.join(PASSES)}")
    return frozenset(names)


def run_all(
    captured: Captured, disabled: Collection[str], state: Collection[str], problems: Problems
) -> dict[str, int]:
    """Runs every pass over the program's graph and its nested graphs, and drops what has become dead.

    Args:
        captured: a decomposed program of one's own; its graph, signature and constants change.
        disabled: names of passes to leave out.
        state: keys of the buffers that any method of the package changes.
        problems: takes what has no form that the file could hold.

    Returns:
        By pass, how often it rewrote something; passes that only tidy up are not counted.
    """
    graphs = list(bodies(captured.program.graph_module))
    complex.run(captured, graphs, problems)  # not optional, as the next: the file has no complex tensors
    context = Context(captured, state)
    quantised.run(captured.program.graph_module, context, problems)  # not optional: else some weights have no form
    for body in graphs:
        numbers.run(body)  # not optional: the file has no tensors that are numbers
        out_dtype.run(body)  # not optional: the file has no such operator
    order = [step for name in PASSES for step in (name, *_TIDY_AFTER.get(name, ()))]
    for name in order:
        if name not in disabled:
            for body in graphs:
                PASSES[name](body, context)
                body.graph.eliminate_dead_code()
    for body in graphs:
        non_finite.run(body, context)  # not optional, and last: other passes look for literals
        body.graph.eliminate_dead_code()
        body.graph.lint()
    return dict(context.counts)


def bodies(module: fx.GraphModule) -> Iterator[fx.GraphModule]:
    """`module` and every graph nested in it: branches and bodies of higher-order operators."""
    for _, child in module.named_modules():
        if isinstance(child, fx.GraphModule):
            yield child
