"""Turns short Fourier transforms into products with constant matrices.

A fast transform is an operator that few engines have, and complex numbers make it no easier to add. A short one is as
well a product with the matrix of its cosines and sines, which every engine has, and fast: the 400 samples of a speech
front end take 0.6 MiB. The matrix grows with the square of the length, so that longer transforms, and those of a length
that varies, stay operators. Measured for 1000 frames of 400 samples: 12 ms as an operator on the reference engine and
30 ms as a product; of 2048 samples the product would take 15 times as long, and 16 MiB in the file.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from ptn_export.passes._graph import Context, insert, is_call, operand, operands, replace, shape_of, sizes_of, tensor_of

__all__ = ["run"]

_aten = torch.ops.aten
_LARGEST = 4 * 1024 * (1024 + 2)
"""Bytes of a matrix: that of 1024 float32 samples from or to half of their spectrum."""


def run(module: fx.GraphModule, context: Context) -> None:
    """Replaces every short transform of `module`, which must be the method's own graph."""
    if module is not context.program.graph_module:
        return  # nested graphs have no constants of their own
    for node in list(module.graph.nodes):
        new = _product(node, context)
        if new is not None:
            replace(node, new)
            context.counts["dft"] += 1
    module.graph.eliminate_dead_code()


def _product(node: fx.Node, context: Context) -> fx.Node | None:
    """The transform whose real result is `node` as products; None where it is none, or too long."""
    if is_call(node, _aten._fft_c2r.default):
        return _to_real(node, context)
    transform = operand(node, 0) if is_call(node, _aten.view_as_real.default) else None
    if is_call(transform, _aten._fft_r2c.default):
        return _from_real(node, transform, context)
    if not is_call(transform, _aten._fft_c2c.default):
        return None
    numbers, dim, normalization, forward = operands(transform)
    x, lengths = _pairs(numbers), _lengths(numbers, dim)
    if x is None or lengths is None or not _are_short(lengths, x):
        return None
    return _whole(x, dim, lengths, forward, _scale(lengths, normalization), node, context)


def _from_real(node: fx.Node, transform: Any, context: Context) -> fx.Node | None:
    x, dim, normalization, onesided = operands(transform)
    lengths = _lengths(x, dim)
    if lengths is None or not _are_short(lengths, x, real=True):
        return None
    matrix = _half_spectrum(lengths[-1], onesided) * _scale(lengths, normalization)
    x = _along(x, dim[-1], matrix, (matrix.shape[1] // 2, 2), node, context)
    return _whole(x, dim[:-1], lengths[:-1], True, 1.0, node, context)


def _to_real(node: fx.Node, context: Context) -> fx.Node | None:
    numbers, dim, normalization, last = operands(node)
    x, lengths = _pairs(numbers), _lengths(numbers, dim)
    if x is None or lengths is None or not isinstance(last, int):
        return None
    lengths = [*lengths[:-1], last]
    if not _are_short(lengths, x, real=True):
        return None
    x = _whole(x, dim[:-1], lengths[:-1], False, 1.0, node, context)
    matrix = _from_half_spectrum(last) * _scale(lengths, normalization)
    return _along(x, dim[-1], matrix, (last,), node, context)


def _pairs(numbers: Any) -> fx.Node | None:
    """The real tensor behind a complex one."""
    source = operand(numbers, 0) if is_call(numbers, _aten.view_as_complex.default) else None
    return source if isinstance(source, fx.Node) else None


def _lengths(x: Any, dim: list[int]) -> list[int] | None:
    """Sizes of the axes `dim`; None where one of them varies."""
    sizes = [shape_of(x)[axis] for axis in dim]
    return sizes if all(isinstance(size, int) for size in sizes) else None


def _are_short(lengths: list[int], x: Any, real: bool = False) -> bool:
    """Whether every matrix is small enough; `real`: that of the last axis has real numbers on one side."""
    value = tensor_of(x)
    assert value is not None
    counts = [(2 * n) ** 2 for n in lengths]
    if real:
        counts[-1] = lengths[-1] * (lengths[-1] + 2)  # half of the spectrum
    return max(counts) * value.element_size() <= _LARGEST


def _scale(lengths: list[int], normalization: int) -> float:
    count = math.prod(lengths)
    return (1.0, count**-0.5, 1.0 / count)[normalization]


# Matrices, in float64


def _angles(rows: int, columns: int, n: int) -> torch.Tensor:
    """2 pi j k / n, reduced to one turn while it is a whole number."""
    return (torch.arange(rows)[:, None] * torch.arange(columns) % n).double() * (2 * math.pi / n)


def _half_spectrum(n: int, onesided: bool) -> torch.Tensor:
    """From n real numbers to their spectrum, parts next to each other: [n, 2 m]."""
    angles = _angles(n, n // 2 + 1 if onesided else n, n)
    return torch.stack((angles.cos(), -angles.sin()), -1).flatten(1)


def _from_half_spectrum(n: int) -> torch.Tensor:
    """From m = n // 2 + 1 frequencies to n real numbers: [2 m, n]. The others are their conjugates."""
    angles = _angles(n // 2 + 1, n, n)
    weights = torch.full((n // 2 + 1, 1), 2.0, dtype=torch.float64)
    weights[0] = 1
    if n % 2 == 0:
        weights[-1] = 1
    return torch.stack((weights * angles.cos(), -weights * angles.sin()), 1).flatten(0, 1)


def _spectrum(n: int, forward: bool) -> torch.Tensor:
    """From n complex numbers to their spectrum, or back: [2 n, 2 n]."""
    angles = _angles(n, n, n)
    cos, sin = angles.cos(), angles.sin() * (-1 if forward else 1)
    return torch.stack((torch.stack((cos, sin), -1), torch.stack((-sin, cos), -1)), 1).reshape(2 * n, 2 * n)


# Products


def _whole(
    x: fx.Node, dim: list[int], lengths: list[int], forward: bool, scale: float, before: fx.Node, context: Context
) -> fx.Node:
    """Transforms pairs along each of the axes `dim`."""
    for axis, n in zip(dim, lengths, strict=True):
        x = _along(x, axis, _spectrum(n, forward) * scale, (n, 2), before, context)
        scale = 1.0
    return x


def _along(
    x: fx.Node, axis: int, matrix: torch.Tensor, ending: tuple[int, ...], before: fx.Node, context: Context
) -> fx.Node:
    """Multiplies along one axis.

    Args:
        x: real numbers, or pairs in the last axis, which are multiplied together with `axis`.
        axis: the axis that is transformed.
        matrix: [size of the axis, or twice that for pairs; size of `ending`].
        ending: what takes the place of the axis: its new size, and 2 where the results are pairs.
        before: where the calls go.
        context: takes the matrix.
    """
    value = tensor_of(x)
    assert value is not None
    pairs = matrix.shape[0] == 2 * value.shape[axis]
    rank = value.dim() - pairs
    axis %= rank
    order = [i for i in range(rank) if i != axis] + [axis]
    if axis != rank - 1:
        x = insert(before, _aten.permute.default, x, [*order, rank] if pairs else order)
    sizes = sizes_of(x, before)[: rank - 1]
    if pairs:
        x = insert(before, _aten.view.default, x, [*sizes, matrix.shape[0]])
    constant = context.add_constant(matrix.to(value.dtype), f"dft_{matrix.shape[0]}_{matrix.shape[1]}")
    x = insert(before, _aten.matmul.default, x, constant)
    if len(ending) == 2:
        x = insert(before, _aten.view.default, x, [*sizes, *ending])
    if axis != rank - 1:
        back = sorted(range(rank), key=order.__getitem__)
        x = insert(before, _aten.permute.default, x, [*back, rank] if len(ending) == 2 else back)
    return x
