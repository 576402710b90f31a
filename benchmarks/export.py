"""How long an export takes, and how much memory: `python benchmarks/export.py [--layers 16] [--dtype bfloat16] ...`.

A llama-like decoder with a static key-value cache as buffers; the defaults give one of 1.1 billion parameters. Prints
the seconds of `torch.export.export`, `to_native` and `save`, and how far each lifts the peak of the resident memory
above what the process held with the module loaded. `--methods 2` exports `prefill` (dynamic length) and `decode`;
`--profile` prints where `to_native` spends its time.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).parents[1] / "packages/ptn-export/tests/models"))

import torch
from decoder import CONTEXT, Decoder
from ptn_export import to_native
from torch import nn

T = TypeVar("T")


def make(options: argparse.Namespace) -> Decoder:
    """The decoder with cheap weights, no two of them alike, so that the package holds every byte."""
    sizes = options.layers, options.width, options.heads, options.kv_heads, options.hidden, options.vocabulary
    with torch.device("meta"):
        decoder = Decoder(*sizes)
    decoder.to(getattr(torch, options.dtype)).to_empty(device="cpu")
    ramp = torch.arange(1 << 16).sub_(1 << 15).mul(2.0**-20)
    for number, tensor in enumerate((*decoder.parameters(), *decoder.buffers())):
        flat = tensor.detach().view(-1)
        if not isinstance(tensor, nn.Parameter):
            flat.zero_()
            continue
        for start in range(0, len(flat), len(ramp)):
            flat[start : start + len(ramp)] = ramp[: len(flat) - start]
        flat[0] = number
    return decoder.eval().requires_grad_(False)


def capture(decoder: Decoder, methods: int) -> dict[str, torch.export.ExportedProgram]:
    length = torch.export.Dim("length", min=1, max=CONTEXT)
    prompt = torch.zeros(1, 5, dtype=torch.int64), torch.arange(5)
    programs = {"prefill": torch.export.export(decoder, prompt, dynamic_shapes=({1: length}, {0: length}))}
    if methods == 2:
        token = torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
        programs["decode"] = torch.export.export(decoder, token)
    return programs


class Meter:
    """Measures steps: seconds, and the peak of the resident memory above what was held at the start."""

    def __init__(self) -> None:
        self.base = resident()

    def step(self, name: str, work: Callable[[], T]) -> tuple[T, float]:
        reset_peak()
        start, cpu = time.perf_counter(), time.process_time()
        result = work()
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        above = (peak() - self.base) / 2**20
        print(f"{name:<22} {seconds:7.2f} s ({cpu:6.2f} s of CPU time)   peak {above:6.0f} MiB above the module")
        return result, seconds


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def reset_peak() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def peak() -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


def main() -> None:
    """Measures what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (
        ("layers", 16), ("width", 2048), ("heads", 32), ("kv-heads", 8), ("hidden", 8192), ("vocabulary", 32000)
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], default="bfloat16")
    parser.add_argument("--methods", type=int, choices=[1, 2], default=1)
    parser.add_argument("--folder", help="where to write the package; by default a temporary folder")
    parser.add_argument("--profile", action="store_true", help="print the 40 costliest functions of to_native")
    options = parser.parse_args()
    decoder = make(options)
    tensors = (*decoder.parameters(), *decoder.buffers())
    weights = sum(tensor.nbytes for tensor in tensors)
    print(f"{sum(p.numel() for p in decoder.parameters()) / 1e9:.2f} billion parameters, {weights / 2**20:.0f} MiB")
    capture(Decoder(1, 64, 2, 1, 64, 64).eval(), 1)  # what PyTorch loads on its first use
    meter = Meter()
    exported, export_seconds = meter.step("torch.export.export", lambda: capture(decoder, options.methods))
    profiler = cProfile.Profile() if options.profile else None
    native, native_seconds = meter.step("to_native", lambda: run(profiler, lambda: to_native(exported)))
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = os.path.join(folder, "model.ptn")
        meter.step("as many plain bytes", lambda: write_plain(path, weights))
        _, save_seconds = meter.step("save", lambda: native.save(path))
        print(f"{os.path.getsize(path):,} bytes")
    print(f"to_native + save take {(native_seconds + save_seconds) / export_seconds:.2f} times the capture")
    if profiler is not None:
        pstats.Stats(profiler).sort_stats("cumulative").print_stats(40)


def write_plain(path: str, size: int) -> None:
    """What the disk takes; besides, a virtual machine then has the memory for the file, which is slow to get."""
    chunk = bytes(1 << 24)
    with open(path, "wb") as file:
        for _ in range(0, size, len(chunk)):
            file.write(chunk)
        os.fsync(file.fileno())
    os.unlink(path)


def run(profiler: cProfile.Profile | None, work: Callable[[], Any]) -> Any:
    return work() if profiler is None else profiler.runcall(work)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
