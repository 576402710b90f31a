"""Images at other sizes or places: kernels of `native/kernels/resample.cpp`.

ggml computes the position of the nearest pixel by a division, which disagrees with PyTorch for some sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ptn_format.dtypes import ScalarType

from ptn_engine_ggml._native import Builder, Tensor
from ptn_engine_ggml.lower.common import call
from ptn_engine_ggml.lower.registry import REALS, Outputs, lower

IMAGES = REALS | {ScalarType.BYTE}
Factors = Sequence[float] | None


def _factors(rank: int, scale_factors: Factors, args: dict[str, Any]) -> list[float]:
    """Scale factors per axis as the caller gave them; 0 where the sizes decide."""
    if scale_factors is not None:
        return [float(factor) for factor in scale_factors]
    names = ("scales",) if rank == 1 else ("scales_d", "scales_h", "scales_w")[-rank:]
    return [float(args.get(name) or 0.0) for name in names]


def _nearest(rank: int, exact: bool, *ops: str) -> None:
    def lowering(
        b: Builder, out: Outputs, output_size: Any = None, scale_factors: Factors = None, **args: Any
    ) -> Tensor:
        x = args["input"] if "input" in args else args["self"]
        floats = _factors(rank, scale_factors, args)
        return call(b, "resample.nearest", (x,), out, (rank, int(exact)), floats)

    lower(*ops)(lowering)


def _weighted(kernel: str, rank: int, *ops: str, dtypes: frozenset[ScalarType] = REALS) -> None:
    def lowering(
        b: Builder,
        out: Outputs,
        output_size: Any = None,
        align_corners: bool = False,
        scale_factors: Factors = None,
        **args: Any,
    ) -> Tensor:
        x = args["input"] if "input" in args else args["self"]
        floats = _factors(rank, scale_factors, args)
        return call(b, f"resample.{kernel}", (x,), out, (rank, int(align_corners)), floats)

    lower(*ops, dtypes=dtypes)(lowering)


def _both(name: str) -> tuple[str, str]:
    return f"aten.{name}.default", f"aten.{name}.vec"


for _rank in (1, 2, 3):
    _nearest(_rank, False, *_both(f"upsample_nearest{_rank}d"))
    _nearest(_rank, True, *_both(f"_upsample_nearest_exact{_rank}d"))
_weighted("linear", 1, *_both("upsample_linear1d"))
_weighted("linear", 2, *_both("upsample_bilinear2d"), dtypes=IMAGES)
_weighted("linear", 3, *_both("upsample_trilinear3d"))
_weighted("cubic", 2, *_both("upsample_bicubic2d"), dtypes=IMAGES)
_weighted("linear_aa", 2, *_both("_upsample_bilinear2d_aa"), dtypes=IMAGES)
_weighted("cubic_aa", 2, *_both("_upsample_bicubic2d_aa"), dtypes=IMAGES)


@lower("aten.grid_sampler_2d.default", "aten.grid_sampler_3d.default", "aten.grid_sampler.default", dtypes=REALS)
def grid_sampler(
    b: Builder,
    out: Outputs,
    input: Tensor,
    grid: Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> Tensor:
    ints = (interpolation_mode, padding_mode, int(align_corners))
    return call(b, "resample.grid_sample", (input, grid), out, ints)


@lower("aten.affine_grid_generator.default", dtypes=REALS)
def affine_grid_generator(b: Builder, out: Outputs, theta: Tensor, size: Sequence[int], align_corners: bool) -> Tensor:
    return call(b, "resample.affine_grid", (theta,), out, (int(align_corners),))
