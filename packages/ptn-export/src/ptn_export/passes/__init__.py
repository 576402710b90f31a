"""Graph rewriting before serialisation: one file per pass, whose `run` changes a decomposed graph in place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from torch import fx
from torch.export import ExportedProgram

from ptn_export.passes import (
    asserts,
    attention,
    attention_rank,
    gqa,
    no_ops,
    numbers,
    rms_norm,
    rope,
)
from ptn_export.passes._graph import Context

__all__ = ["PASSES", "bodies", "check_names", "run_all"]

Pass = Callable[[fx.GraphModule, Context], None]

PASSES: Mapping[str, Pass] = {
    "copies": lambda body, _: no_ops.run(body),
    "asserts": lambda body, context: asserts.run(body, context.program.range_constraints),
    "rms_norm": rms_norm.run,
    "rope": rope.run,
    "attention": attention.run,
    "gqa": gqa.run,
    "attention_rank": attention_rank.run,
}
"""Every pass that can be switched off, in the order in which they run."""


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


def run_all(program: ExportedProgram, disabled: Collection[str] = ()) -> dict[str, int]:
    """Runs every pass over the program's graph and its nested graphs, and drops what has become dead.

    Args:
        program: a decomposed program of one's own; its graph, signature and constants change.
        disabled: names of passes to leave out.

    Returns:
        By pass, how often it rewrote something; passes that only tidy up are not counted.
    """
    context = Context(program)
    graphs = list(bodies(program.graph_module))
    for body in graphs:
        numbers.run(body)  # not optional: the file has no tensors that are numbers
    for name in PASSES:
        if name not in disabled:
            for body in graphs:
                PASSES[name](body, context)
                body.graph.eliminate_dead_code()
    for body in graphs:
        body.graph.eliminate_dead_code()
        body.graph.lint()
    return dict(context.counts)


def bodies(module: fx.GraphModule) -> Iterator[fx.GraphModule]:
    """`module` and every graph nested in it: branches and bodies of higher-order operators."""
    for _, child in module.named_modules():
        if isinstance(child, fx.GraphModule):
            yield child
