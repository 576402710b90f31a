"""How long lowering takes: `python benchmarks/lowering.py [nodes]`, or with a package `... FILE.ptn`.

Prints the time of the canonical form (once per method) and of a static graph for a new input shape (best of 5). The
generated model is a stack of attention and feed-forward layers with dynamic batch and sequence.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "packages/ptn-runtime/tests/lowering"))

import numpy as np
from lowering_graphs import FakePackage, GraphBuilder, T, dims
from ptn_format.dtypes import ScalarType
from ptn_format.graph import Method, TensorMeta
from ptn_format.package import open_package
from ptn_runtime.lowering.program import LoweredMethod, LoweredProgram

F32 = ScalarType.FLOAT
WIDTH, HEADS = 64, 4
DYNAMIC = ((1, 8), (1, 512))


def transformer(num_nodes: int) -> tuple[Method, dict[str, np.ndarray]]:
    """A method of at least `num_nodes` calls and its weights."""
    g = GraphBuilder()
    weights: dict[str, np.ndarray] = {}

    def weight(name: str, *shape: int) -> T:
        weights[name] = np.zeros(shape, np.float32)
        return g.constant(name, weights[name])

    def call(target: str, *args: Any, sizes: tuple[Any, ...] = (*DYNAMIC, WIDTH), **named: Any) -> T:
        return g.call(target, *args, meta=TensorMeta(F32, dims(sizes)), **named)

    layers = []
    while len(layers) * 26 < num_nodes:
        i = len(layers)
        names = [f"l{i}_{n}" for n in ("q", "k", "v", "o", "up", "down")]
        layers.append([weight(n, WIDTH, WIDTH) for n in names] + [weight(f"l{i}_norm", WIDTH)])
    x = g.input("x", F32, *DYNAMIC, WIDTH)
    batch = g.scalar("torch.ops.aten.sym_size.int", x, 0)
    length = g.scalar("torch.ops.aten.sym_size.int", x, 1)
    heads = (*DYNAMIC, HEADS, WIDTH // HEADS)
    swapped = (DYNAMIC[0], HEADS, DYNAMIC[1], WIDTH // HEADS)
    for q_w, k_w, v_w, o_w, up_w, down_w, norm_w in layers:
        square = call("torch.ops.aten.pow.Tensor_Scalar", x, 2)
        mean = call("torch.ops.aten.mean.dim", square, [-1], True, sizes=(*DYNAMIC, 1))
        shifted = call("torch.ops.aten.add.Scalar", mean, 1e-6, sizes=(*DYNAMIC, 1))
        inverse = call("torch.ops.aten.rsqrt.default", shifted, sizes=(*DYNAMIC, 1))
        normed = call("torch.ops.aten.mul.Tensor", x, inverse)
        normed = call("torch.ops.aten.mul.Tensor", normed, norm_w)
        parts = []
        for w in (q_w, k_w, v_w):
            part = call("torch.ops.aten.linear.default", normed, w)
            part = call("torch.ops.aten.view_copy.default", part, [batch, length, HEADS, WIDTH // HEADS], sizes=heads)
            parts.append(call("torch.ops.aten.permute_copy.default", part, [0, 2, 1, 3], sizes=swapped))
        attended = call("torch.ops.aten.scaled_dot_product_attention.default", *parts, sizes=swapped)
        attended = call("torch.ops.aten.permute_copy.default", attended, [0, 2, 1, 3], sizes=heads)
        attended = call("torch.ops.aten.view_copy.default", attended, [batch, length, WIDTH])
        x = call("torch.ops.aten.add.Tensor", x, call("torch.ops.aten.linear.default", attended, o_w))
        up = call("torch.ops.aten.linear.default", x, up_w)
        up = call("torch.ops.aten.mul.Tensor", up, call("torch.ops.aten.sigmoid.default", up))
        x = call("torch.ops.aten.add.Tensor", x, call("torch.ops.aten.linear.default", up, down_w))
    return g.build(x), weights


def measure(
    method: LoweredMethod,
    shapes: list[tuple[tuple[int, ...], ...]],
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, float, int]:
    """Seconds of the canonical form, best seconds of one new shape, number of nodes."""
    start = clock()
    _ = method.canonical
    canonical = clock() - start
    best, nodes = float("inf"), 0
    for shape in shapes:
        start = clock()
        nodes = len(method.specialize(shape).nodes)
        best = min(best, clock() - start)
    return canonical, best, nodes


def main() -> None:
    """Measures what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="2000", help="number of nodes, or a package")
    what = parser.parse_args().what
    if what.isdigit():
        method, weights = transformer(int(what))
        lowered = LoweredProgram(FakePackage(method, constants=weights)).method("forward")  # type: ignore[arg-type]
        report("generated", *measure(lowered, [((2, 16 + i, WIDTH),) for i in range(5)]))
        return
    with open_package(what) as package:
        for name in package.method_names:
            lowered = LoweredProgram(package).method(name)
            largest = tuple(spec.initial_shape for spec in lowered.inputs)
            smallest = tuple(tuple(dim.min for dim in spec.dims) for spec in lowered.inputs)
            report(name, *measure(lowered, [largest, smallest]))


def report(name: str, canonical: float, best: float, nodes: int) -> None:
    """Prints one line."""
    print(
        f"{name}: {nodes} nodes, canonical {canonical * 1e3:.1f} ms, "
        f"new shape {best * 1e3:.1f} ms ({best / max(nodes, 1) * 1e6:.1f} us a node)"
    )


if __name__ == "__main__":
    main()
