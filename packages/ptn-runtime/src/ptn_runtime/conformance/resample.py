"""Cases of the family `resample`."""

from __future__ import annotations

from collections.abc import Iterator

from ptn_format.dtypes import ScalarType as T

from ptn_runtime.conformance.case import Case, floats

SIZES = ((14, 18), (10, 9), (3, 4), (1, 1), (7, 9), (21, 5))


def cases() -> Iterator[Case]:
    """Every case of the family."""
    x = floats(2, 3, 7, 9)
    nearest, bilinear = "aten.upsample_nearest2d.vec", "aten.upsample_bilinear2d.vec"
    for size in SIZES:
        name = f"to {size[0]}x{size[1]}"
        yield Case(nearest, name, {"input": x, "output_size": size, "scale_factors": None})
        for align in (False, True):
            corners = "corners" if align else "centres"
            args = {"input": x, "output_size": size, "align_corners": align, "scale_factors": None}
            yield Case(bilinear, f"{name}, {corners}", args)
    for factors in ((2.0, 2.0), (1.5, 0.7), (3.0, 1.0)):
        name = f"by {factors[0]}x{factors[1]}"
        yield Case(nearest, name, {"input": x, "output_size": None, "scale_factors": factors})
        args = {"input": x, "output_size": None, "align_corners": False, "scale_factors": factors}
        yield Case(bilinear, name, args)
    yield Case(nearest, "2 to 82", {"input": floats(1, 1, 2, 2), "output_size": (82, 82), "scale_factors": None})
    for dtype in (T.HALF, T.BFLOAT16, T.DOUBLE):
        typed = floats(1, 2, 5, 5, dtype=dtype)
        yield Case(nearest, dtype.torch_name, {"input": typed, "output_size": (9, 9), "scale_factors": None})
        args = {"input": typed, "output_size": (9, 9), "align_corners": False, "scale_factors": None}
        yield Case(bilinear, dtype.torch_name, args)
    grid = floats(2, 4, 5, 2, low=-1.3, high=1.3, seed=1)
    for mode, mode_name in ((0, "bilinear"), (1, "nearest")):
        for padding, padding_name in ((0, "zeros"), (1, "border"), (2, "reflection")):
            for align in (False, True):
                name = f"{mode_name}, {padding_name}{', corners' if align else ''}"
                args = {
                    "input": x,
                    "grid": grid,
                    "interpolation_mode": mode,
                    "padding_mode": padding,
                    "align_corners": align,
                }
                yield Case("aten.grid_sampler_2d.default", name, args, atol=1e-4)
