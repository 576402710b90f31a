"""Generate `ptn_format._generated` from the schema with flatc, and compare it with what is committed."""

from __future__ import annotations

import argparse
import filecmp
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from _repository import PACKAGES, ROOT

SCHEMA = ROOT / "schema" / "native_graph.fbs"
COMMITTED = PACKAGES / "ptn-format" / "src" / "ptn_format" / "_generated"


def generate(target: Path) -> None:
    """Runs flatc into `target`."""
    subprocess.run(["flatc", "--python", "--gen-onefile", "-o", str(target), str(SCHEMA)], check=True)


def differences(fresh: Path, committed: Path) -> list[str]:
    """Names of generated files that are missing, left over or different."""
    names = {str(p.relative_to(fresh)) for p in fresh.rglob("*.py")}
    names |= {str(p.relative_to(committed)) for p in committed.rglob("*.py")}
    return sorted(
        name
        for name in names
        if not ((fresh / name).exists() and (committed / name).exists())
        or not filecmp.cmp(fresh / name, committed / name, shallow=False)
    )


def main() -> int:
    """Compares, or writes with `--write`; 1 where the committed code is not what the schema gives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="replace the committed code")
    write = parser.parse_args().write
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        generate(fresh)
        (fresh / "__init__.py").touch()
        if write:
            shutil.rmtree(COMMITTED, ignore_errors=True)
            shutil.copytree(fresh, COMMITTED)
            return 0
        stale = differences(fresh, COMMITTED)
    for name in stale:
        print(f"{COMMITTED.relative_to(ROOT)}/{name} is not what the schema gives; run: nox -s schema -- --write")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
