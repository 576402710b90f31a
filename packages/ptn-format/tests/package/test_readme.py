"""The README's examples run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


def test_examples(
    tmp_path: Path, package: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.ptn").write_bytes(package)
    examples = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(examples) == 2
    names: dict[str, object] = {}
    for example in examples:
        exec(example, names)
    assert Path("copy.ptn").read_bytes() == package
    assert capsys.readouterr().out.startswith("('forward',)\n")
