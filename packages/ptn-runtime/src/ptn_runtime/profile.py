"""Where the time of a call goes, node by node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ptn_runtime.engine import Array, Prepared

__all__ = ["NodeTime", "Profile", "profile_build"]


@dataclass(frozen=True, slots=True)
class NodeTime:
    """One node that ran.

    Attributes:
        name: the node's name in the file.
        op: canonical name of the operator.
        source: the user's `file:line`, where the file has it.
        seconds: median over the runs.
        shape: shape of its first result.
    """

    name: str
    op: str
    source: str | None
    seconds: float
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Profile:
    """The times of one method for one set of input shapes; `print` shows the table.

    Attributes:
        method: the method's name.
        engine: the engine's name.
        nodes: every node that was timed, in execution order.
    """

    method: str
    engine: str
    nodes: tuple[NodeTime, ...]

    @property
    def seconds(self) -> float:
        """The sum over all nodes."""
        return sum(node.seconds for node in self.nodes)

    def by_operator(self) -> list[tuple[str, int, float]]:
        """Operator, number of calls and seconds; the most expensive first."""
        sums: dict[str, tuple[int, float]] = {}
        for node in self.nodes:
            count, seconds = sums.get(node.op, (0, 0.0))
            sums[node.op] = (count + 1, seconds + node.seconds)
        rows = [(op, count, seconds) for op, (count, seconds) in sums.items()]
        return sorted(rows, key=lambda row: -row[2])

    def slowest(self, count: int = 10) -> list[NodeTime]:
        """The most expensive nodes, the slowest first."""
        return sorted(self.nodes, key=lambda node: -node.seconds)[:count]

    def __str__(self) -> str:
        total = self.seconds or 1.0
        lines = [f"{self.method} on {self.engine}: {self.seconds * 1e3:.3f} ms in {len(self.nodes)} nodes"]
        rows = self.by_operator()
        width = max((len(op) for op, _, _ in rows), default=0)
        lines += [
            f"  {op:<{width}}  {count:5d} x  {seconds * 1e3:9.3f} ms  {100 * seconds / total:5.1f}%"
            for op, count, seconds in rows
        ]
        lines.append("  slowest nodes:")
        for node in self.slowest(5):
            where = f" from {node.source}" if node.source else ""
            lines.append(f"    {node.seconds * 1e3:9.3f} ms  {node.name} ({node.op}) -> {list(node.shape)}{where}")
        return "\n".join(lines)


def profile_build(prepared: Prepared, inputs: Sequence[Array], method: str, engine: str, repeat: int) -> Profile:
    """Runs a build `repeat` times and takes the median time of each node.

    Raises:
        NotImplementedError: the engine does not time single nodes.
    """
    runs = [prepared.build.profile(inputs) for _ in range(max(repeat, 1))]
    nodes = prepared.graph.nodes
    times = [
        NodeTime(
            nodes[index].name,
            nodes[index].op,
            nodes[index].source,
            float(np.median([run[index] for run in runs if index in run])),
            nodes[index].outputs[0].shape if nodes[index].outputs else (),
        )
        for index in sorted(runs[-1])
    ]
    return Profile(method, engine, tuple(times))
