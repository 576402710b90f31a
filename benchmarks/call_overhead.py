"""What `model(x)` adds to the engine's own run of a small MLP, and what importing the runtime costs.

Run: python benchmarks/call_overhead.py [ENGINE]
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import ptn_runtime

MLP = Path(ptn_runtime.__file__).parent / "conformance" / "data" / "golden" / "mlp_dyn" / "model.ptn"


def median_us(function: Callable[[], Any], other: Callable[[], Any], rounds: int = 40, calls: int = 100) -> list[float]:
    """Microseconds per call of both, taken in turns."""
    taken: list[list[float]] = [[], []]
    for _ in range(rounds):
        for item, times in zip((function, other), taken, strict=True):
            start = time.perf_counter()
            for _ in range(calls):
                item()
            times.append((time.perf_counter() - start) / calls * 1e6)
    return [float(np.median(times)) for times in taken]


def main() -> None:
    engine = sys.argv[1] if len(sys.argv) > 1 else "reference"
    x = np.ones((4, 16), np.float32)
    with ptn_runtime.load(MLP, engine=engine) as model:
        model(x)
        build = model._callers["forward"]._executable.build((x.shape,))
        for label, call in {
            "exact array": lambda: model(x),
            "by name": lambda: model(input_1=x),
            "strided": lambda: model(np.ones((16, 4), np.float32).T),
        }.items():
            whole, inner = median_us(call, lambda: build.run([x]))
            print(f"{label:12} {whole:7.1f} us, engine alone {inner:7.1f} us, added {whole - inner:6.1f} us")
    code = (
        "import time; t = time.perf_counter(); import ptn_runtime; a = time.perf_counter(); ptn_runtime.load; "
        "b = time.perf_counter(); print((a - t) * 1e3, (b - t) * 1e3)"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(7)]
    bare, loaded = np.median([[float(v) for v in run.stdout.split()] for run in runs], axis=0)
    print(f"import ptn_runtime {bare:.0f} ms; with `load`, which needs numpy, {loaded:.0f} ms")


if __name__ == "__main__":
    main()
