"""Shape rules of the family `resample`: images at other sizes or places."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ptn_format.dtypes import ScalarType

from ptn_runtime.shapes import Tensor, TensorSpec, shape_rule
from ptn_runtime.shapes._broadcast import require

Sizes = tuple[int, ...]
Scales = tuple[float, ...]


def scaled_sizes(sizes: Sequence[int], output_size: Sizes | None, scale_factors: Scales | None) -> Sizes:
    """The spatial sizes of a `.vec` operator, which gets either `output_size` or `scale_factors`."""
    require((output_size is None) != (scale_factors is None), "give either output_size or scale_factors")
    if output_size is not None:
        if len(output_size) != len(sizes):
            raise ValueError(f"output_size takes {len(sizes)} values, got {list(output_size)}")
        return tuple(output_size)
    assert scale_factors is not None
    if len(scale_factors) != len(sizes):
        raise ValueError(f"scale_factors takes {len(sizes)} values, got {list(scale_factors)}")
    return tuple(math.floor(float(size) * scale) for size, scale in zip(sizes, scale_factors, strict=True))


def _interpolated(
    input: Tensor, output_size: Sizes | None, scale_factors: Scales | None = None, *, or_bytes: bool = False
) -> TensorSpec:
    if not (input.dtype.is_floating_point or (or_bytes and input.dtype is ScalarType.BYTE)):
        expected = "a floating-point or uint8 image" if or_bytes else "a floating-point image"
        raise ValueError(f"expected {expected}, got {input.dtype.torch_name}; cast it first")
    return _resized(input, output_size, scale_factors)


def _resized(input: Tensor, output_size: Sizes | None, scale_factors: Scales | None = None) -> TensorSpec:
    if len(input.shape) not in (3, 4, 5):
        raise ValueError(f"expected [N, C, ...], got {list(input.shape)}")
    spatial = scaled_sizes(input.shape[2:], output_size, scale_factors)
    if min((*spatial, *input.shape[2:])) <= 0:
        raise ValueError(f"{list(input.shape[2:])} cannot be resized to {list(spatial)}")
    return TensorSpec(input.dtype, (*input.shape[:2], *spatial))


@shape_rule(
    *(
        f"aten.{prefix}nearest{suffix}{rank}d.vec"
        for prefix, suffix in (("upsample_", ""), ("_upsample_", "_exact"))
        for rank in (1, 2, 3)
    )
)
def upsample_nearest_vec(input: Tensor, output_size: Sizes | None, scale_factors: Scales | None) -> TensorSpec:
    return _resized(input, output_size, scale_factors)


@shape_rule("aten.upsample_linear1d.vec", "aten.upsample_trilinear3d.vec")
def upsample_linear_vec(
    input: Tensor, output_size: Sizes | None, align_corners: bool, scale_factors: Scales | None
) -> TensorSpec:
    return _interpolated(input, output_size, scale_factors)


@shape_rule(
    "aten.upsample_bilinear2d.vec",
    "aten.upsample_bicubic2d.vec",
    "aten._upsample_bilinear2d_aa.vec",
    "aten._upsample_bicubic2d_aa.vec",
)
def upsample_image_vec(
    input: Tensor, output_size: Sizes | None, align_corners: bool, scale_factors: Scales | None
) -> TensorSpec:
    return _interpolated(input, output_size, scale_factors, or_bytes=True)


@shape_rule("aten.upsample_nearest1d.default", "aten._upsample_nearest_exact1d.default")
def upsample_nearest1d(self: Tensor, output_size: Sizes, scales: float | None = None) -> TensorSpec:
    return _resized(self, output_size)


@shape_rule("aten.upsample_nearest2d.default", "aten._upsample_nearest_exact2d.default")
def upsample_nearest2d(
    self: Tensor, output_size: Sizes, scales_h: float | None = None, scales_w: float | None = None
) -> TensorSpec:
    return _resized(self, output_size)


@shape_rule("aten.upsample_nearest3d.default", "aten._upsample_nearest_exact3d.default")
def upsample_nearest3d(
    self: Tensor,
    output_size: Sizes,
    scales_d: float | None = None,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> TensorSpec:
    return _resized(self, output_size)


@shape_rule("aten.upsample_linear1d.default")
def upsample_linear1d(self: Tensor, output_size: Sizes, align_corners: bool, scales: float | None = None) -> TensorSpec:
    return _interpolated(self, output_size)


@shape_rule(
    "aten.upsample_bilinear2d.default",
    "aten.upsample_bicubic2d.default",
    "aten._upsample_bilinear2d_aa.default",
    "aten._upsample_bicubic2d_aa.default",
)
def upsample_bilinear2d(
    self: Tensor,
    output_size: Sizes,
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> TensorSpec:
    return _interpolated(self, output_size, or_bytes=True)


@shape_rule("aten.upsample_trilinear3d.default")
def upsample_trilinear3d(
    self: Tensor,
    output_size: Sizes,
    align_corners: bool,
    scales_d: float | None = None,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> TensorSpec:
    return _interpolated(self, output_size)


@shape_rule("aten.grid_sampler_2d.default", "aten.grid_sampler_3d.default", "aten.grid_sampler.default")
def grid_sampler(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> TensorSpec:
    rank = len(input.shape) - 2
    if rank not in (2, 3):
        raise ValueError(f"input must have 4 or 5 axes, got {list(input.shape)}")
    if not (len(grid.shape) == rank + 2 and grid.shape[-1] == rank and grid.shape[0] == input.shape[0]):
        raise ValueError(
            f"grid {list(grid.shape)} does not go with input {list(input.shape)}: expected [N, ..., {rank}]"
        )
    if input.dtype is not grid.dtype:
        raise ValueError(f"input is {input.dtype.torch_name} but grid is {grid.dtype.torch_name}")
    modes = (0, 1, 2) if rank == 2 else (0, 1)
    if interpolation_mode not in modes:
        raise ValueError(f"interpolation_mode must be one of {modes}, got {interpolation_mode}")
    if padding_mode not in (0, 1, 2):
        raise ValueError(f"padding_mode must be 0, 1 or 2, got {padding_mode}")
    if min(input.shape[2:]) <= 0:
        raise ValueError(f"there is nothing to sample in {list(input.shape)}")
    return TensorSpec(input.dtype, (*input.shape[:2], *grid.shape[1:-1]))


@shape_rule("aten.affine_grid_generator.default")
def affine_grid_generator(theta: Tensor, size: Sizes, align_corners: bool) -> TensorSpec:
    rank = len(size) - 2
    if rank not in (2, 3):
        raise ValueError(f"size must have 4 or 5 values, got {list(size)}")
    expected = (size[0], rank, rank + 1)
    if theta.shape != expected:
        raise ValueError(f"theta must be {list(expected)}, got {list(theta.shape)}")
    return TensorSpec(theta.dtype, (size[0], *size[2:], rank))
