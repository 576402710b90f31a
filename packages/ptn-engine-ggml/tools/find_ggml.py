"""Prints where libggml-python keeps its headers and libraries: one fact for meson, named by the first argument."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def root() -> Path:
    """The folder of the `libggml` package, found without importing it.

    Raises:
        SystemExit: it is not installed.
    """
    spec = importlib.util.find_spec("libggml")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("libggml-python is not installed: pip install 'libggml-python==0.20.2.*'")
    return Path(next(iter(spec.submodule_search_locations)))


def library_folder() -> Path:
    """`lib64` on Linux, `lib` elsewhere: whichever holds the libraries.

    Raises:
        SystemExit: neither does.
    """
    for name in ("lib64", "lib"):
        folder = root() / name
        if any(folder.glob("*ggml-base*")):
            return folder
    raise SystemExit(f"{root()} holds no ggml libraries: reinstall libggml-python")


def version() -> str:
    """The installed release, such as `0.20.2`."""
    namespace: dict[str, object] = {}
    exec((root() / "_version.py").read_text(encoding="utf-8"), namespace)
    return ".".join(str(namespace["__version__"]).split(".")[:3])


if __name__ == "__main__":
    facts = {
        "include": lambda: root() / "include",
        "libdir": library_folder,
        "libname": lambda: library_folder().name,
        "version": version,
    }
    print(facts[sys.argv[1]]())
