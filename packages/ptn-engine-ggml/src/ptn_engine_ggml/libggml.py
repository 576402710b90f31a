"""Finds, checks and loads the ggml that libggml-python installs, before the extension module asks for it by soname.

Another package's private copy of the same soname may be in the process already; the dynamic loader would then bind our
module to a mix of both. So the libraries are loaded by full path first, and what is mapped is looked up afterwards.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import sys
from pathlib import Path

from ptn_runtime.errors import EngineLoadError

from ptn_engine_ggml._version import __version__

__all__ = ["SUPPORTED", "folder", "load"]

SUPPORTED = "0.20.2"
"""The ggml release that this package is written for and built with."""

_BASES = ("ggml-base", "ggml-cpu", "ggml")
_loaded = False


def folder() -> Path:
    """The folder with ggml's libraries.

    Raises:
        EngineLoadError: libggml-python is not installed, or holds none.
    """
    spec = importlib.util.find_spec("libggml")
    if spec is None or not spec.submodule_search_locations:
        raise EngineLoadError(
            f"ptn-engine-ggml {__version__} needs libggml-python {SUPPORTED}, which is not installed. "
            f"Install it: pip install 'libggml-python=={SUPPORTED}.*'"
        )
    root = Path(next(iter(spec.submodule_search_locations)))
    for name in ("lib64", "lib", "bin"):
        if any((root / name).glob("*ggml-base*")):
            return root / name
    raise EngineLoadError(
        f"{root} holds no ggml libraries. Reinstall: pip install --force-reinstall 'libggml-python=={SUPPORTED}.*'"
    )


def load() -> None:
    """Loads ggml into the process. Idempotent.

    Raises:
        EngineLoadError: it is not installed, of another release, or another copy is in the process already.
    """
    global _loaded
    if _loaded:
        return
    # ggml starts a debugger for a backtrace when it aborts; a library must not do that to its host.
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    libraries = folder()
    _check_release(libraries.parent)
    if sys.platform == "win32":
        os.add_dll_directory(str(libraries))
    else:
        for base in _BASES:
            _preload(libraries, base)
    _check_mapped(libraries)
    _loaded = True


def _check_release(root: Path) -> None:
    text = (root / "_version.py").read_text(encoding="utf-8")
    match = re.search(r"__version__\s*=\s*(?:version\s*=\s*)?['\"]([^'\"]+)['\"]", text)
    installed = match.group(1) if match else "unknown"
    if ".".join(installed.split(".")[:3]) != SUPPORTED:
        raise EngineLoadError(
            f"ptn-engine-ggml {__version__} was built with ggml {SUPPORTED} but libggml-python {installed} is "
            f"installed in {root}. Install the release it was built with: pip install 'libggml-python=={SUPPORTED}.*'"
        )


def _preload(libraries: Path, base: str) -> None:
    name = f"lib{base}.dylib" if sys.platform == "darwin" else f"lib{base}.so.0"
    path = libraries / name
    if not path.exists():
        return  # a build with loadable variants has no libggml-cpu of that name
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        raise EngineLoadError(f"{path} cannot be loaded: {error}") from error


def _check_mapped(libraries: Path) -> None:
    """Refuses a process that holds another copy of ggml's base library, or more than one."""
    for path in _mapped("ggml-base"):
        if not path.exists() or not path.samefile(libraries / path.name):
            raise EngineLoadError(
                f"ptn-engine-ggml {__version__} was built with ggml {SUPPORTED} but {path}{_release_of(path)} is "
                "already loaded in this process. Run the ggml engine before the package that loads it is imported, or "
                "use separate processes."
            )


def _mapped(base: str) -> list[Path]:
    """Paths of the mapped libraries of that name; empty where the platform does not tell."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    found = re.findall(rf"(/\S.*/lib{re.escape(base)}\.so[^\s]*)$", maps, flags=re.MULTILINE)
    return [Path(path) for path in dict.fromkeys(found)]


def _release_of(path: Path) -> str:
    """` (0.19.1)` where the file's name or its link's target tells the release, else nothing."""
    match = re.search(r"\.so\.(\d+\.\d+\.\d+)$", str(path.resolve()))
    return f" ({match.group(1)})" if match else ""
