"""Quickstart: all-MiniLM-L6-v2 from PyTorch to a .ptn file to sentence embeddings without PyTorch.

Exports the encoder, shows the file, runs it on the reference engine and on ggml, and compares both with PyTorch.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import minilm
import numpy as np
import ptn_runtime
import torch
from ptn_export import to_native

SENTENCES = [
    "A cat sits on the mat.",
    "A kitten is resting on a rug.",
    "The stock market fell sharply today.",
    "Shares lost much of their value this morning.",
]
TOLERANCE = 1e-4
ROUNDS = 15


def interleaved_medians(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median milliseconds of each call; rounds are interleaved so that load on the machine hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for round_number in range(rounds + 2):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if round_number >= 2:
                times[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> int:
    """Returns 1 where an engine differs from PyTorch by more than the tolerance."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("minilm.ptn"), help="where to write the package")
    output: Path = parser.parse_args().output

    print("1. Export with torch.export and ptn_export")
    encoder = minilm.load_encoder()
    start = time.perf_counter()
    program = to_native(minilm.export_encoder(encoder))
    program.save(output)
    print(f"   wrote {output} ({output.stat().st_size / 1e6:.1f} MB) in {time.perf_counter() - start:.1f} s\n")

    print(f"2. What is in it: ptn show {output}", flush=True)
    subprocess.run([sys.executable, "-m", "ptn_runtime", "show", str(output)], check=True)

    print("\n3. Run it, compare with PyTorch")
    ids, mask = minilm.Tokenizer()(SENTENCES)
    with torch.inference_mode():
        expected = encoder(ids, mask).numpy()
    calls: dict[str, Callable[[], Any]] = {"torch eager": lambda: encoder(ids, mask)}
    worst = 0.0
    models = {name: ptn_runtime.load(output, engine=name) for name in ("ggml", "reference")}
    embeddings = expected
    for name, model in models.items():
        embeddings = model(ids.numpy(), mask.numpy())
        difference = float(np.abs(embeddings - expected).max())
        worst = max(worst, difference)
        print(f"   {name + ' on ' + model.device:20} largest difference from PyTorch: {difference:.1e}")
        calls[name] = lambda model=model: model(ids.numpy(), mask.numpy())

    with torch.inference_mode():
        medians = interleaved_medians(calls, ROUNDS)
    print(f"\n   {'':20} {'ms':>8}  speed beside torch ({len(SENTENCES)} sentences, {ids.shape[1]} tokens each)")
    for name, median in medians.items():
        print(f"   {name:20} {median:8.2f}  {medians['torch eager'] / median:.2f}x")

    print("\n4. Which sentences are alike (cosine)")
    similarity = embeddings @ embeddings.T
    for row, sentence in enumerate(SENTENCES):
        print("   " + " ".join(f"{value:5.2f}" for value in similarity[row]), "", sentence)
    for model in models.values():
        model.close()

    if worst > TOLERANCE:
        print(f"\nAn engine differs from PyTorch by {worst:.1e}, more than {TOLERANCE:.0e}.", file=sys.stderr)
        return 1
    print(
        f"""
What next
   {output} runs on any machine with:  pip install ptn-runtime ptn-engine-ggml
   ptn check {output}          which engines and devices accept it
   ptn bench {output}          engines side by side
   ptn doctor                     what this machine has and lacks
   Your own model:                torch.export.export(...), then ptn_export.to_native(...).save(...); see README.md"""
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
