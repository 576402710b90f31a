"""Check what no linter knows: one version everywhere, sibling ranges, file lengths, nothing that must stay out."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from _repository import ROOT, SIBLING_RANGE, VERSION_LINE, range_files, sibling_range, version_files

MAX_LINES = 900
MAX_BYTES = 1 << 20
SOURCE_SUFFIXES = {".py", ".pyi", ".cpp", ".h", ".comp", ".glsl"}
# A class of one letter in each, so that this file need not be left out.
FORBIDDEN = re.compile(r"(?<![\w.])(?:/wor[k]/|/roo[t]/|\.\./share[d]\b)|files\.pythonhoste[d]\.org")


def tracked_files() -> list[Path]:
    """Every file that git tracks or would track."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [path for name in listing.stdout.splitlines() if (path := ROOT / name).is_file()]


def version_problems() -> list[str]:
    """Versions and sibling ranges that differ from the others."""
    problems = []
    versions: dict[str, list[str]] = {}
    for path in version_files():
        match = VERSION_LINE.search(path.read_text())
        found = match.group(1) if match else "(none)"
        versions.setdefault(found, []).append(str(path.relative_to(ROOT)))
    if len(versions) != 1:
        return [f"the packages' versions differ: {versions}"]
    version = next(iter(versions))
    expected = sibling_range(version)
    for path in range_files():
        for name, _, low, high in SIBLING_RANGE.findall(path.read_text()):
            if (low, high) != expected:
                problems.append(
                    f"{path.relative_to(ROOT)}: {name}>={low},<{high}, expected >={expected[0]},<{expected[1]}"
                )
    if f"## {version}" not in (ROOT / "CHANGELOG.md").read_text():
        problems.append(f"CHANGELOG.md has no section '## {version}'")
    return problems


def file_problems() -> list[str]:
    """Files that are too long, too large, or name what must not be named."""
    problems = []
    for path in tracked_files():
        name = str(path.relative_to(ROOT))
        if path.stat().st_size > MAX_BYTES:
            problems.append(f"{name}: {path.stat().st_size} bytes, at most {MAX_BYTES}")
        if path.suffix in {".ptn", ".npz", ".png"}:
            continue
        text = path.read_text(encoding="utf-8")
        if path.suffix in SOURCE_SUFFIXES and "_generated" not in path.parts and text.count("\n") > MAX_LINES:
            problems.append(f"{name}: {text.count(chr(10))} lines, at most {MAX_LINES}")
        if match := FORBIDDEN.search(text):
            problems.append(f"{name}: contains {match.group(0)!r}")
    readme = (ROOT / "README.md").read_text().count("\n")
    if readme > 80:
        problems.append(f"README.md: {readme} lines, at most 80")
    return problems


def main() -> int:
    """Prints the problems; 1 where there are any."""
    problems = version_problems() + file_problems()
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
