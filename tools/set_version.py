"""Write one release number into every package, its siblings' ranges with it."""

from __future__ import annotations

import re
import sys

from _repository import SIBLING_RANGE, VERSION_LINE, range_files, sibling_range, version_files


def main() -> int:
    """Rewrites the files; 2 where the number is not a release number."""
    if len(sys.argv) != 2 or not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+|\.dev\d+)?", sys.argv[1]):
        print("usage: set_version.py MAJOR.MINOR.PATCH", file=sys.stderr)
        return 2
    version = sys.argv[1]
    low, high = sibling_range(version)
    for path in version_files():
        path.write_text(VERSION_LINE.sub(f'__version__ = "{version}"', path.read_text()))
    for path in range_files():
        path.write_text(SIBLING_RANGE.sub(rf'"\g<1>\g<2>>={low},<{high}"', path.read_text()))
    print(f"set to {version}; add a section '## {version}' to CHANGELOG.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
