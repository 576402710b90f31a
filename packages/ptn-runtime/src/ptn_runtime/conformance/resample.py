"""Cases of the family `resample`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from ptn_format.dtypes import ScalarType as T

from ptn_runtime.conformance.case import Case, floats, integers

NEAREST = ("upsample_nearest", "_upsample_nearest_exact")
SMOOTH = {"linear1d": 1, "bilinear2d": 2, "bicubic2d": 2, "trilinear3d": 3}
SCALES = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}
SIZES = ((14, 18), (10, 9), (3, 4), (1, 1), (7, 9), (21, 5))


def by_rank() -> Iterator[Case]:
    """Every interpolation but the two that `cases` treats at length, by the size and by the factor."""
    shapes = {1: (2, 3, 7), 2: (2, 3, 5, 6), 3: (1, 2, 3, 4, 5)}
    names = (
        *((f"{kind}{axes}d", axes, False) for kind in NEAREST for axes in (1, 2, 3)),
        *((f"upsample_{kind}", axes, True) for kind, axes in SMOOTH.items()),
        *((f"_upsample_{kind}2d_aa", 2, True) for kind in ("bilinear", "bicubic")),
    )
    for name, axes, smooth in names:
        x = floats(*shapes[axes])
        sizes = ((13, 9, 8)[:axes], (2, 3, 1)[:axes], shapes[axes][2:])
        scale_names = SCALES[axes]
        for align in (False, True) if smooth else (None,):
            flag = {} if align is None else {"align_corners": align}
            label = {None: "", False: ", centres", True: ", corners"}[align]
            for size in sizes:
                args = {"output_size": size, **flag}
                yield Case(f"aten.{name}.vec", f"to {list(size)}{label}", {"input": x, **args, "scale_factors": None})
                yield Case(f"aten.{name}.default", f"to {list(size)}{label}", {"self": x, **args})
            factors = (1.7, 0.6, 2.0)[:axes]
            vec = {"input": x, "output_size": None, **flag, "scale_factors": factors}
            yield Case(f"aten.{name}.vec", f"by {list(factors)}{label}", vec)
            scaled = tuple(int(length * factor) for length, factor in zip(x.shape[2:], factors, strict=True))
            kept = dict(zip(scale_names, factors, strict=True))
            plain = {"self": x, "output_size": scaled, **flag, **kept}
            yield Case(f"aten.{name}.default", f"by {list(factors)}{label}", plain)
        if name.endswith("_aa"):
            continue  # PyTorch has it for float32 and float64 only
        flag = {"align_corners": False} if smooth else {}
        half = {"self": floats(*shapes[axes], dtype=T.HALF), "output_size": sizes[0], **flag}
        yield Case(f"aten.{name}.default", "float16", half)


def byte_images() -> Iterator[Case]:
    """uint8 is resized in fixed point, one axis after the other, each rounded to uint8: no result may differ."""
    x = integers(2, 3, 7, 9, dtype=T.BYTE, low=0, high=256)
    stark = integers(1, 5, 8, 6, dtype=T.BYTE, low=0, high=2) * np.uint8(255)  # overshoots are clipped
    for kind in ("upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"):
        for align in (False, True):
            corners = "corners" if align else "centres"
            for size in ((14, 5), (3, 20), (7, 13), (7, 9)):
                args = {"self": x, "output_size": size, "align_corners": align}
                yield Case(f"aten.{kind}.default", f"uint8 to {list(size)}, {corners}", args)
            args = {"self": stark, "output_size": (19, 4), "align_corners": align}
            yield Case(f"aten.{kind}.default", f"uint8, black and white, {corners}", args)
            factors = {"input": x, "output_size": None, "align_corners": align, "scale_factors": (1.7, 0.6)}
            yield Case(f"aten.{kind}.vec", f"uint8 by factors, {corners}", factors)
        # A factor does not matter where the size stays: PyTorch leaves the axis out.
        if kind != "upsample_bicubic2d":
            same = {"self": floats(1, 2, 5, 6), "output_size": (5, 11), "align_corners": False}
            yield Case(
                f"aten.{kind}.default", "factors of an axis that stays", {**same, "scales_h": 1.1, "scales_w": 1.9}
            )


def odd_grids() -> Iterator[Case]:
    """Places that are NaN, infinite or far outside: two axes and three follow different rules in PyTorch."""
    inf, nan = float("inf"), float("nan")
    places = [(inf, 0), (-inf, 0), (nan, 0), (0, nan), (0, inf), (1e30, 0), (-1e30, -1e30), (3e9, 0), (1e5, 1), (1, 1)]
    flat = np.array(places, np.float32).reshape(1, 1, -1, 2)
    cube = np.insert(flat, 0, np.float32(0.1), axis=-1).reshape(1, 1, 1, -1, 3)
    image = np.arange(1, 25, dtype=np.float32)
    for padding, padding_name in enumerate(("zeros", "border", "reflection")):
        for mode, mode_name in enumerate(("bilinear", "nearest", "bicubic")):
            for align in (False, True):
                name = f"odd places, {mode_name}, {padding_name}{', corners' if align else ''}"
                args = {"interpolation_mode": mode, "padding_mode": padding, "align_corners": align}
                two = {"input": image.reshape(1, 2, 3, 4), "grid": flat, **args}
                yield Case("aten.grid_sampler.default" if mode == 2 else "aten.grid_sampler_2d.default", name, two)
                if mode < 2:
                    three = {"input": image.reshape(1, 1, 2, 3, 4), "grid": cube, **args}
                    yield Case("aten.grid_sampler_3d.default", name, three)


def grids() -> Iterator[Case]:
    x = floats(1, 2, 3, 4, 5)
    grid = floats(1, 2, 3, 2, 3, low=-1.3, high=1.3, seed=1)
    image = {"input": floats(2, 3, 7, 9), "grid": floats(2, 4, 5, 2, low=-1.3, high=1.3, seed=1)}
    for padding, name in enumerate(("zeros", "border", "reflection")):
        for mode, mode_name in enumerate(("bilinear", "nearest")):
            args = {"interpolation_mode": mode, "padding_mode": padding, "align_corners": bool(mode)}
            for op in ("aten.grid_sampler_3d.default", "aten.grid_sampler.default"):
                yield Case(op, f"{mode_name}, {name}", {"input": x, "grid": grid, **args}, atol=1e-4)
        cubic = {"interpolation_mode": 2, "padding_mode": padding, "align_corners": False}
        yield Case("aten.grid_sampler.default", f"bicubic, {name}", {**image, **cubic}, atol=1e-4)
    for align in (False, True):
        name = "corners" if align else "centres"
        flat = {"theta": floats(2, 2, 3), "size": (2, 3, 4, 5), "align_corners": align}
        yield Case("aten.affine_grid_generator.default", f"2-d, {name}", flat)
        cube = {"theta": floats(1, 3, 4), "size": (1, 2, 3, 4, 2), "align_corners": align}
        yield Case("aten.affine_grid_generator.default", f"3-d, {name}", cube)


def cases() -> Iterator[Case]:
    """Every case of the family."""
    yield from by_rank()
    yield from byte_images()
    yield from grids()
    yield from odd_grids()
    x = floats(2, 3, 7, 9)
    nearest, bilinear = "aten.upsample_nearest2d.vec", "aten.upsample_bilinear2d.vec"
    for size in SIZES:
        name = f"to {size[0]} x {size[1]}"
        yield Case(nearest, name, {"input": x, "output_size": size, "scale_factors": None})
        for align in (False, True):
            corners = "corners" if align else "centres"
            args = {"input": x, "output_size": size, "align_corners": align, "scale_factors": None}
            yield Case(bilinear, f"{name}, {corners}", args)
    for factors in ((2.0, 2.0), (1.5, 0.7), (3.0, 1.0)):
        name = f"by {factors[0]} x {factors[1]}"
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
