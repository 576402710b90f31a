"""Graph clean-up before serialisation: one file per pass, whose `run` changes a decomposed graph in place."""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx

from ptn_export.dims import Ranges
from ptn_export.passes import asserts, no_ops, numbers

__all__ = ["bodies", "run_all"]


def run_all(module: fx.GraphModule, ranges: Ranges) -> None:
    """Runs every pass over `module` and its nested graphs, then drops what has become dead."""
    for body in bodies(module):
        numbers.run(body)
        no_ops.run(body)
        asserts.run(body, ranges)
        body.graph.eliminate_dead_code()
        body.graph.lint()


def bodies(module: fx.GraphModule) -> Iterator[fx.GraphModule]:
    """`module` and every graph nested in it: branches and bodies of higher-order operators."""
    for _, child in module.named_modules():
        if isinstance(child, fx.GraphModule):
            yield child
