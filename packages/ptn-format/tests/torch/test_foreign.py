"""What PyTorch's own files are called."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable

import pytest
import torch
from ptn_format.errors import NotAPackageError
from ptn_format.package import open_package


class Module(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def save(buffer: io.BytesIO) -> None:
    torch.save({"weight": torch.ones(2)}, buffer)


def save_legacy(buffer: io.BytesIO) -> None:
    torch.save({"weight": torch.ones(2)}, buffer, _use_new_zipfile_serialization=False)


def save_script(buffer: io.BytesIO) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.trace(Module(), torch.ones(2)), buffer)


def save_exported(buffer: io.BytesIO) -> None:
    torch.export.save(torch.export.export(Module(), (torch.ones(2),)), buffer)


@pytest.mark.parametrize(
    ("write", "text"),
    [
        (save, "it looks like a PyTorch checkpoint (torch.save). Export the module with torch.export"),
        (save_legacy, "it looks like a Python pickle (an old PyTorch checkpoint?)"),
        (save_script, "it looks like a PyTorch TorchScript module (torch.jit.save)"),
        (save_exported, "it looks like a torch.export file (.pt2). Load it with torch.export.load"),
    ],
)
def test_files_of_pytorch(write: Callable[[io.BytesIO], None], text: str) -> None:
    buffer = io.BytesIO()
    write(buffer)
    with pytest.raises(NotAPackageError) as caught:
        open_package(buffer)
    assert text in str(caught.value)
