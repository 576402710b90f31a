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
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from ptn_export import to_native
from torch import nn
from torch.nn import functional as F  # noqa: N812  torch's own convention

T = TypeVar("T")
CONTEXT = 256


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_width = heads, kv_heads, width // heads
        self.query, self.output = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(width, kv_heads * self.head_width, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)
        self.attention_norm, self.feed_forward_norm = (nn.RMSNorm(width, eps=1e-5) for _ in range(2))
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, kv_heads, CONTEXT, self.head_width))

    def forward(self, x, positions, cos, sin, keep):
        length = x.shape[1]
        y = self.attention_norm(x)
        query = self.query(y).view(1, length, self.heads, self.head_width).transpose(1, 2)
        key = self.key(y).view(1, length, self.kv_heads, self.head_width).transpose(1, 2)
        value = self.value(y).view(1, length, self.kv_heads, self.head_width).transpose(1, 2)
        self.keys.index_copy_(2, positions, rotate(key, cos, sin))
        self.values.index_copy_(2, positions, value)
        query = rotate(query, cos, sin)
        y = F.scaled_dot_product_attention(query, self.keys, self.values, attn_mask=keep, enable_gqa=True)
        x = x + self.output(y.transpose(1, 2).reshape(1, length, -1))
        y = self.feed_forward_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """ids int64 [1, T] and positions int64 [T] to the logits of the last position [1, vocabulary]."""

    def __init__(self, layers: int, width: int, heads: int, kv_heads: int, hidden: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, heads, kv_heads, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.head = nn.Linear(width, vocabulary, bias=False)
        half = width // heads // 2
        frequencies = 10000.0 ** (-torch.arange(half, device="cpu").float() / half)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, ids, positions):
        x = self.embedding(ids)
        angles = positions[:, None].float() * self.frequencies[None, :]
        angles = torch.cat((angles, angles), -1)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        keep = torch.arange(CONTEXT)[None, :] <= positions[:, None]
        for layer in self.layers:
            x = layer(x, positions, cos, sin, keep)
        return self.head(self.norm(x[:, -1]))


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


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
