"""Cases of the family `layout`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from ptn_format.dtypes import ScalarType as T

from ptn_runtime.conformance.case import Array, Case, floats, integers

DTYPES = (T.FLOAT, T.HALF, T.BFLOAT16, T.DOUBLE, T.LONG, T.INT, T.SHORT, T.CHAR, T.BYTE, T.BOOL)
END = 2**63 - 1


def make(*shape: int, dtype: T, seed: int = 0) -> Array:
    if dtype.is_floating_point:
        return floats(*shape, dtype=dtype, seed=seed)
    return integers(*shape, dtype=dtype, low=0, seed=seed)


def of_every_dtype(dtype: T) -> Iterator[Case]:
    x = make(2, 3, 4, dtype=dtype)
    name = dtype.torch_name
    yield Case("aten.view.default", name, {"self": x, "size": (6, 4)})
    yield Case("aten.permute.default", name, {"self": x, "dims": (2, 0, 1)})
    yield Case("aten.expand.default", name, {"self": x[:, :1], "size": (2, 5, 4)})
    yield Case("aten.slice.Tensor", name, {"self": x, "dim": 1, "start": 1, "end": 3})
    yield Case("aten.select.int", name, {"self": x, "dim": 1, "index": -1})
    yield Case("aten.cat.default", name, {"tensors": (x, make(2, 1, 4, dtype=dtype, seed=1)), "dim": 1})
    yield Case("aten.flip.default", name, {"self": x, "dims": (0, 2)})
    yield Case("aten.repeat.default", name, {"self": x, "repeats": (2, 1, 3)})
    yield Case("aten.constant_pad_nd.default", name, {"self": x, "pad": (1, 2), "value": 1})
    yield Case("aten.clone.default", name, {"self": x})


def views() -> Iterator[Case]:
    x = floats(2, 3, 4, 5)
    for size in ((-1,), (6, -1), (2, 3, 20), (1, 2, 3, 1, 4, 5), (2, 12, 5)):
        yield Case("aten.view.default", f"to {list(size)}", {"self": x, "size": size})
    yield Case("aten.view.default", "to 0-d", {"self": floats(1, 1), "size": ()})
    for dims in ((0, 1, 3, 2), (0, 2, 1, 3), (3, 2, 1, 0), (0, 2, 3, 1), (-1, 0, 1, 2)):
        yield Case("aten.permute.default", f"{list(dims)}", {"self": x, "dims": dims})
    yield Case("aten.permute.default", "rank 6", {"self": floats(2, 1, 3, 2, 2, 3), "dims": (5, 0, 3, 1, 4, 2)})
    yield Case("aten.expand.default", "new axes", {"self": floats(3, 1), "size": (2, 4, -1, 5)})
    yield Case("aten.expand.default", "from 0-d", {"self": floats(), "size": (2, 3)})
    for dim in (0, 2, -1):
        yield Case("aten.unsqueeze.default", f"dim {dim}", {"self": floats(2, 3), "dim": dim})
    yield Case("aten.squeeze.dim", "one", {"self": floats(2, 1, 3), "dim": 1})
    yield Case("aten.squeeze.dim", "not one", {"self": floats(2, 1, 3), "dim": 0})
    yield Case("aten.squeeze.dims", "two", {"self": floats(1, 2, 1, 3), "dim": (0, 2)})
    slices = {
        "start": (1, 2, END, 1),
        "end": (1, 0, 2, 1),
        "negative": (1, -2, -1, 1),
        "beyond": (1, -100, 100, 1),
        "step": (1, 0, END, 2),
        "step, last axis": (3, 1, END, 2),
        "step, first axis": (0, 0, 2, 3),
        "nothing": (2, 3, 1, 1),
    }
    for name, (dim, start, end, step) in slices.items():
        yield Case("aten.slice.Tensor", name, {"self": x, "dim": dim, "start": start, "end": end, "step": step})
    yield Case("aten.slice.Tensor", "no bounds", {"self": x, "dim": 0, "start": None, "end": None, "step": 1})
    for dim, index in ((0, 1), (3, 0), (-2, -4)):
        yield Case("aten.select.int", f"dim {dim}, index {index}", {"self": x, "dim": dim, "index": index})
    yield Case("aten.diagonal.default", "plain", {"self": floats(3, 4)})
    yield Case("aten.diagonal.default", "offset", {"self": x, "offset": 1, "dim1": 1, "dim2": 3})
    yield Case(
        "aten.as_strided.default",
        "overlapping",
        {"self": floats(10), "size": (3, 4), "stride": (2, 1), "storage_offset": 1},
    )
    for sizes in ((4, 2), (3,), (2, 1, 2, 5), ()):
        yield Case("aten.resize.default", f"to {list(sizes)}", {"self": x, "size": sizes})
    yield Case("aten.unsafe_split.Tensor", "rest", {"self": x, "split_size": 3, "dim": 2})
    yield Case("aten.unsafe_split_with_sizes.default", "three", {"self": x, "split_sizes": (1, 2, 1), "dim": 2})
    yield Case("aten.split_with_sizes.default", "three", {"self": x, "split_sizes": (1, 2, 1), "dim": 2})


def copies() -> Iterator[Case]:
    x = floats(2, 3, 4, 5)
    yield Case("aten.cat.default", "five", {"tensors": tuple(floats(2, 2, seed=i) for i in range(5)), "dim": 0})
    yield Case("aten.cat.default", "last axis", {"tensors": (x, floats(2, 3, 4, 1)), "dim": -1})
    yield Case("aten.cat.default", "with an empty one", {"tensors": (np.zeros((0,), np.float32), floats(3)), "dim": 0})
    yield Case("aten.cat.default", "promotes", {"tensors": (integers(3), floats(3)), "dim": 0})
    yield Case("aten.cat.default", "one", {"tensors": (x,), "dim": 1})
    yield Case("aten.repeat.default", "more axes", {"self": floats(2, 3), "repeats": (2, 1, 2)})
    yield Case("aten.repeat.default", "none", {"self": floats(2, 3), "repeats": (1, 0)})
    for pad in ((1, 1), (0, 2, 1, 0), (-1, 2), (1, 0, 0, 1, 2, 0), (-1, -1, -1, -1)):
        yield Case("aten.constant_pad_nd.default", f"{list(pad)}", {"self": x, "pad": pad, "value": 0.0})
    yield Case("aten.constant_pad_nd.default", "-inf", {"self": x, "pad": (1, 2), "value": float("-inf")})
    yield Case("aten.reflection_pad1d.default", "float32", {"self": floats(2, 3, 6), "padding": (2, 3)})
    yield Case("aten.reflection_pad2d.default", "float32", {"self": x, "padding": (2, 1, 3, 0)})
    yield Case("aten.replication_pad2d.default", "float32", {"self": x, "padding": (2, 1, 3, 0)})
    yield Case(
        "aten.replication_pad3d.default", "float32", {"self": floats(1, 2, 3, 3, 3), "padding": (1, 1, 0, 2, 1, 0)}
    )


def more_views() -> Iterator[Case]:
    """Other spellings of views, and views that copy."""
    x = floats(2, 3, 4)
    for name in ("alias", "detach", "lift_fresh", "contiguous"):
        for dtype in (T.HALF, T.LONG):
            yield Case(f"aten.{name}.default", dtype.torch_name, {"self": make(2, 3, dtype=dtype)})
    for size in ((6, 4), (-1,), (2, 12)):
        name = f"to {list(size)}"
        yield Case("aten._unsafe_view.default", name, {"self": x, "size": size})
        yield Case("aten.reshape.default", name, {"self": x, "shape": size})
    yield Case("aten._reshape_alias.default", "to [6, 4]", {"self": x, "size": (6, 4), "stride": (4, 1)})
    yield Case("aten.view_as.default", "float32", {"self": x, "other": floats(4, 6)})
    for source, target in ((T.FLOAT, T.INT), (T.LONG, T.INT), (T.BYTE, T.FLOAT), (T.HALF, T.BFLOAT16)):
        name = f"{source.torch_name} as {target.torch_name}"
        yield Case("aten.view.dtype", name, {"self": make(2, 8, dtype=source), "dtype": target})
    for start, end in ((0, -1), (1, 2), (0, 1), (1, 1)):
        yield Case("aten.flatten.using_ints", f"{start} to {end}", {"self": x, "start_dim": start, "end_dim": end})
    yield Case("aten.flatten.using_ints", "0-d", {"self": floats()})
    for sizes in ((2, 2), (-1, 2), (1, 4, 1)):
        yield Case("aten.unflatten.int", f"{list(sizes)}", {"self": x, "dim": -1, "sizes": sizes})
    yield Case("aten.squeeze.default", "all", {"self": floats(1, 2, 1, 3, 1)})
    yield Case("aten.squeeze.default", "nothing", {"self": x})
    for dims in ((0, 1), (-1, 0), (2, 1), (1, 1)):
        args = {"self": x, "dim0": dims[0], "dim1": dims[1]}
        yield Case("aten.transpose.int", f"{dims[0]} and {dims[1]}", args)
    for shape in ((2, 3), (4,), ()):
        yield Case("aten.t.default", f"rank {len(shape)}", {"self": floats(*shape)})
    yield Case("aten.movedim.int", "first to last", {"self": x, "source": 0, "destination": -1})
    yield Case("aten.movedim.intlist", "two", {"self": x, "source": (0, 2), "destination": (2, 1)})
    yield Case("aten.narrow.default", "middle", {"self": x, "dim": 2, "start": 1, "length": 2})
    yield Case("aten.narrow.default", "from the end", {"self": x, "dim": 1, "start": -2, "length": 1})
    for count in (1, 2, 5):
        yield Case("aten.split.Tensor", f"by {count}", {"self": x, "split_size": count, "dim": 2})
        yield Case("aten.chunk.default", f"{count}", {"self": x, "chunks": count, "dim": -1})
        yield Case("aten.tensor_split.sections", f"{count}", {"self": x, "sections": count, "dim": 1})
    for dim in (0, -1):
        yield Case("aten.unbind.int", f"dim {dim}", {"self": x, "dim": dim})
    for length, step in ((2, 1), (3, 2), (1, 3)):
        yield Case(
            "aten.unfold.default", f"{length} by {step}", {"self": x, "dimension": 2, "size": length, "step": step}
        )
    yield Case("aten.expand_as.default", "float32", {"self": floats(3, 1), "other": x})
    yield Case("aten.broadcast_to.default", "float32", {"self": floats(3, 1), "size": (2, 3, 5)})


def arrangements() -> Iterator[Case]:
    x = floats(2, 3, 4)
    for shifts, dims in (((1,), (0,)), ((-2, 5), (1, 2)), ((3,), ())):
        yield Case("aten.roll.default", f"{list(shifts)} on {list(dims)}", {"self": x, "shifts": shifts, "dims": dims})
    for k in (-1, 0, 1, 2, 5):
        yield Case("aten.rot90.default", f"{k} turns", {"self": x, "k": k, "dims": (0, 2)})
    for name in ("tril", "triu"):
        for diagonal in (-1, 0, 2):
            yield Case(f"aten.{name}.default", f"diagonal {diagonal}", {"self": floats(2, 4, 5), "diagonal": diagonal})
        for dtype in (T.HALF, T.LONG, T.BOOL):
            yield Case(f"aten.{name}.default", dtype.torch_name, {"self": make(3, 4, dtype=dtype)})
    for repeats in ((2,), (2, 1, 3), (2, 2, 1, 1)):
        yield Case("aten.tile.default", f"{list(repeats)}", {"self": x, "dims": repeats})
    for dim in (None, 0, -1):
        yield Case("aten.repeat_interleave.self_int", f"dim {dim}", {"self": x, "repeats": 2, "dim": dim})
    each = {"repeats": np.array([2, 0, 3])}
    yield Case("aten.repeat_interleave.Tensor", "size given", {**each, "output_size": 5})
    yield Case("aten.repeat_interleave.Tensor", "size left out", each, data_dependent=True)
    for dim in (0, 1, -1):
        yield Case("aten.stack.default", f"dim {dim}", {"tensors": (floats(2, 3), floats(2, 3, seed=1)), "dim": dim})
    yield Case("aten.stack.default", "promotes", {"tensors": (integers(3), floats(3)), "dim": 0})
    yield Case("aten.meshgrid.default", "three", {"tensors": (floats(2), floats(3), floats(4))})
    yield Case("aten.diag_embed.default", "plain", {"self": floats(2, 3)})
    yield Case("aten.diag_embed.default", "offset", {"self": floats(2, 3), "offset": -1, "dim1": 0, "dim2": 2})
    for factor in (1, 2):
        yield Case("aten.pixel_shuffle.default", f"by {factor}", {"self": floats(2, 8, 3, 2), "upscale_factor": factor})
        args = {"self": floats(2, 3, 4, 6), "downscale_factor": factor}
        yield Case("aten.pixel_unshuffle.default", f"by {factor}", args)
    yield Case("aten.pixel_shuffle.default", "no batch axis", {"self": floats(4, 3, 2), "upscale_factor": 2})
    yield Case("aten.channel_shuffle.default", "two groups", {"self": floats(2, 6, 3, 2), "groups": 2})


def pads() -> Iterator[Case]:
    line, plane, cube = floats(2, 3, 6), floats(2, 3, 4, 5), floats(1, 2, 3, 4, 5)
    yield Case("aten.replication_pad1d.default", "float32", {"self": line, "padding": (2, 7)})
    yield Case("aten.reflection_pad3d.default", "float32", {"self": cube, "padding": (2, 1, 0, 3, 1, 2)})
    yield Case("aten.reflection_pad2d.default", "no batch axis", {"self": plane[0], "padding": (2, 1, 3, 0)})
    for dtype in (T.HALF, T.DOUBLE):
        typed = make(2, 3, 6, dtype=dtype)
        yield Case("aten.replication_pad1d.default", dtype.torch_name, {"self": typed, "padding": (1, 1)})
        yield Case("aten.reflection_pad1d.default", dtype.torch_name, {"self": typed, "padding": (1, 5)})
    for mode in ("reflect", "replicate", "circular"):
        yield Case("aten.pad.default", f"{mode}, 1-d", {"self": line, "pad": (2, 3), "mode": mode})
        yield Case("aten.pad.default", f"{mode}, 2-d", {"self": plane, "pad": (2, 1, 3, 0), "mode": mode})
    yield Case("aten.pad.default", "constant", {"self": plane, "pad": (1, -1), "mode": "constant", "value": 2.5})


def cases() -> Iterator[Case]:
    """Every case of the family."""
    yield from more_views()
    yield from arrangements()
    yield from pads()
    for dtype in DTYPES:
        yield from of_every_dtype(dtype)
    yield from views()
    yield from copies()
