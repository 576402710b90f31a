"""The lists of operators in tests/shapes against the tags of the PyTorch that is installed."""

from __future__ import annotations

from pathlib import Path

import torch

FOLDER = Path(__file__).parents[1] / "shapes"


def tagged(tag: torch.Tag) -> set[str]:
    """Overloads of aten that bear a tag, as `name.overload`."""
    found = set()
    for schema in torch._C._jit_get_all_schemas():
        if not schema.name.startswith("aten::"):
            continue
        name, overload = schema.name.removeprefix("aten::"), schema.overload_name or "default"
        packet = getattr(torch.ops.aten, name)
        if overload in packet.overloads() and tag in getattr(packet, overload).tags:
            found.add(f"{name}.{overload}")
    return found


def listed(file: str) -> set[str]:
    return set((FOLDER / file).read_text(encoding="ascii").split())


def test_core() -> None:
    assert listed("core.txt") == tagged(torch.Tag.core)


def test_view_copies() -> None:
    assert listed("view_copies.txt") == {name for name in tagged(torch.Tag.view_copy) if not name.endswith("out")}
