"""Run in a clean environment that has only the deploy side's wheels: import, list engines, run a package."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

GOLDEN = Path(__file__).resolve().parent.parent / "packages/ptn-runtime/src/ptn_runtime/conformance/data/golden"


def ptn(*arguments: str) -> str:
    """Runs the `ptn` command of this environment and returns what it prints."""
    command = shutil.which("ptn", path=str(Path(sys.executable).parent))
    if command is None:
        raise SystemExit("the wheel of ptn-runtime brought no `ptn` command")
    print("+ ptn", *arguments, flush=True)
    done = subprocess.run([command, *arguments], check=True, capture_output=True, text=True)
    print(done.stdout, flush=True)
    return done.stdout


def main() -> int:
    """Raises where something is missing."""
    for name in ("torch", "ptn_export"):
        if importlib.util.find_spec(name) is not None:
            raise SystemExit(f"{name} is installed: this is not a clean deploy environment")
    for name in ("ptn_format", "ptn_runtime", "ptn_engine_ggml", "ptn_engine_vulkan"):
        module = __import__(name)
        if Path(module.__file__ or "").is_relative_to(Path(__file__).resolve().parent.parent / "packages"):
            raise SystemExit(f"{name} was imported from the source tree, not from its wheel")
    engines = ptn("engines")
    for name in ("reference", "ggml", "vulkan"):
        if name not in engines:
            raise SystemExit(f"engine {name} is not listed")
    ptn("doctor")
    model = str(GOLDEN / "mlp" / "model.ptn")
    ptn("show", model)
    ptn("verify", model)
    ptn("run", model, "--random", "--engine", "ggml")
    return 0


if __name__ == "__main__":
    sys.exit(main())
