"""Linear algebra, random numbers, counting and uint8 images: exported whole, run on the reference engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import ptn_runtime
import pytest
import torch
from ptn_export import ExportWarning, to_native


class Algebra(torch.nn.Module):
    """What `torch.linalg` checks for errors in eager mode; a package has the results alone."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = x @ x.mT + 3 * torch.eye(3)
        u, s, vh = torch.linalg.svd(x, full_matrices=False)
        factors, pivots = torch.linalg.lu_factor(a)
        return (
            torch.linalg.inv(a),
            torch.inverse(a + 1),
            torch.linalg.cholesky(a),
            torch.linalg.solve(a, x),
            torch.linalg.lu_solve(factors, pivots, x),
            *torch.linalg.slogdet(a),
            u * s @ vh,
            torch.linalg.pinv(x),
        )


class Counting(torch.nn.Module):
    def forward(self, ids: torch.Tensor, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        runs, lengths = torch.unique_consecutive(ids, return_counts=True)
        smooth = torch.nn.functional.interpolate(image, size=(7, 9), mode="bicubic", antialias=True)
        return torch.bincount(ids, minlength=3), runs, lengths, torch.mode(ids).values, smooth


class Sampling(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        noise = torch.empty_like(x).uniform_(2, 3)
        noise[0].normal_(50, 1)
        choice = torch.nn.functional.gumbel_softmax(x, hard=True)
        return noise, choice, torch.multinomial(x.softmax(-1), 2)


def run(module: torch.nn.Module, folder: Path, *inputs: torch.Tensor) -> tuple[np.ndarray, ...]:
    """The results of the exported module on the reference engine."""
    path = folder / "model.ptn"
    to_native(torch.export.export(module, inputs)).save(path)
    with ptn_runtime.load(path, engine="reference") as model:
        return tuple(model(*(tensor.numpy() for tensor in inputs)))


def check(module: torch.nn.Module, folder: Path, *inputs: torch.Tensor) -> None:
    for found, want in zip(run(module, folder, *inputs), module(*inputs), strict=True):
        np.testing.assert_allclose(found, want.numpy(), rtol=1e-4, atol=1e-5)


def test_linear_algebra(tmp_path: Path) -> None:
    check(Algebra(), tmp_path, torch.randn(3, 4, generator=torch.Generator().manual_seed(0)))


def test_counting_and_images(tmp_path: Path) -> None:
    image = torch.randint(0, 256, (1, 3, 12, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    check(Counting(), tmp_path, torch.tensor([1, 1, 4, 0, 4]), image)


def test_random_numbers(tmp_path: Path) -> None:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    with pytest.warns(ExportWarning, match="draws random numbers"):
        noise, choice, drawn = run(Sampling(), tmp_path, x)
    assert ((noise[1:] >= 2) & (noise[1:] < 3)).all()
    assert ((noise[0] > 40) & (noise[0] < 60)).all()
    np.testing.assert_allclose(np.sort(choice), [[0, 0, 0, 1]] * 3, atol=1e-6)
    assert ((drawn >= 0) & (drawn < 4)).all()
    assert (drawn[:, 0] != drawn[:, 1]).all()


class Twice(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.topk(x, 2)[0], x + 1, torch.topk(x, 2)[0], torch.topk(x, 2)[1]


def test_equal_calls_whose_elements_are_results(tmp_path: Path) -> None:
    check(Twice(), tmp_path, torch.randn(3, 4, generator=torch.Generator().manual_seed(0)))
