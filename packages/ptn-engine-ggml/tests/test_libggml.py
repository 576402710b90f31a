"""Loading ggml: the right release, by full path, and no second copy in the process."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ptn_engine_ggml import __version__, libggml
from ptn_runtime.errors import EngineLoadError


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


def test_the_libraries_are_those_of_libggml_python() -> None:
    code = (
        "from ptn_engine_ggml import libggml\n"
        "import ptn_engine_ggml.engine\n"
        "print(*libggml._mapped('ggml-base'), sep='\\n')\n"
    )
    result = python(code)
    assert result.returncode == 0, result.stderr
    (path,) = result.stdout.split()
    assert Path(path).samefile(libggml.folder() / Path(path).name)


def test_importing_the_package_loads_nothing_native() -> None:
    code = (
        "import sys, ptn_engine_ggml\n"
        "assert ptn_engine_ggml.SPEC.name == 'ggml'\n"
        "assert not [m for m in sys.modules if m.startswith('ptn_engine_ggml.')"
        " and m != 'ptn_engine_ggml._version'], sys.modules\n"
        "assert 'ggml' not in open('/proc/self/maps').read().replace('ptn_engine_ggml', '').replace('ptn-engine', '')\n"
    )
    result = python(code)
    assert result.returncode == 0, result.stderr


def test_another_copy_in_the_process_is_refused(tmp_path: Path) -> None:
    source = next(path for path in libggml.folder().glob("libggml-base.so.0.*"))
    foreign = tmp_path / "libggml-base.so.0"
    shutil.copy(source, foreign)
    code = (
        "import ctypes, ptn_runtime.errors\n"
        f"ctypes.CDLL({str(foreign)!r})\n"
        "try:\n"
        "    import ptn_engine_ggml.engine\n"
        "except ptn_runtime.errors.EngineLoadError as error:\n"
        "    print(error)\n"
    )
    result = python(code)
    assert result.stdout.strip() == (
        f"ptn-engine-ggml {__version__} was built with ggml {libggml.SUPPORTED} but {foreign} is already loaded in "
        "this process. Run the ggml engine before the package that loads it is imported, or use separate processes."
    ), result.stderr


def test_another_release_is_refused(tmp_path: Path) -> None:
    (tmp_path / "_version.py").write_text("__version__ = version = '0.19.1'\n")
    with pytest.raises(
        EngineLoadError, match=re.escape(f"built with ggml {libggml.SUPPORTED} but libggml-python 0.19.1")
    ):
        libggml._check_release(tmp_path)


def test_a_missing_installation_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libggml.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EngineLoadError, match=r"needs libggml-python .* pip install 'libggml-python=="):
        libggml.folder()
