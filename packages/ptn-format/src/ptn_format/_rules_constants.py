"""Rules of what a method binds: constants, buffers, quantisation, and the bytes that the package has for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ptn_format._rules_graph import Say, check_meta
from ptn_format.dtypes import ScalarType
from ptn_format.errors import ConstantError
from ptn_format.gguf_blocks import gguf_type
from ptn_format.graph import AffineGroup, InputKind, Method, NamedTensorRef, PackedQuant, TensorMeta
from ptn_format.limits import MAX_TENSOR_BYTES

if TYPE_CHECKING:
    from ptn_format.weights import ConstantInfo

__all__ = ["check_constants", "check_quantised", "fixed_shape"]

Infos = Mapping[str, "ConstantInfo"]


def check_constants(method: Method, place: str, say: Say, infos: Infos | None) -> None:
    """Reports the problems of a method's bindings to constants.

    Args:
        method: the method.
        place: where it is, for messages.
        say: called with each problem.
        infos: what the package says of each constant's bytes, by key; None skips the comparison.
    """
    bound = {ref.data_key: ref for ref in method.constants}
    for ref in method.constants:
        here = f"{place}, constant '{ref.name}'"
        check_meta(ref.meta, here, say)
        _check_role(ref, here, say)
        shape = fixed_shape(ref.meta)
        if shape is None:
            sizes = ", ".join(str(dim) for dim in ref.meta.sizes)
            say(here, f"its sizes [{sizes}] are not fixed", "a constant has exactly one shape")
        elif ref.meta.quant is not None:
            check_quantised(ref.meta, shape, here, say, bound)
            if infos is not None:
                _check_packed(ref, ref.meta.quant, shape, here, say, infos)
        elif infos is not None:
            _check_plain(ref, shape, here, say, infos)


def check_quantised(
    meta: TensorMeta,
    shape: tuple[int, ...],
    place: str,
    say: Say,
    bound: Mapping[str, NamedTensorRef],
) -> None:
    """Reports the problems of a quantisation scheme.

    Args:
        meta: metadata of the quantised tensor.
        shape: its logical shape.
        place: where it is, for messages.
        say: called with each problem.
        bound: the method's constants by data key.
    """
    quant = meta.quant
    if isinstance(quant, PackedQuant):
        if not quant.codec:
            say(place, "its packed blocks name no codec", "name one such as 'gguf:q4_k'")
        return
    if not isinstance(quant, AffineGroup):
        return
    levels = quant.quant_max - quant.quant_min + 1
    if levels not in (2, 4, 8, 16, 32, 64, 128, 256):
        say(
            place,
            f"its range {quant.quant_min}..{quant.quant_max} has {levels} levels",
            "quant_max - quant_min + 1 must be a power of two from 2 to 256",
        )
    if not shape:
        say(place, "a 0-d tensor is quantised in groups", "groups lie along the last axis, so there must be one")
        return
    if quant.group_size < 0 or shape[-1] % (quant.group_size or 1):
        say(
            place,
            f"groups of {quant.group_size} do not divide the last axis of {list(shape)}",
            "group_size divides the last axis; 0 stands for all of it",
        )
        return
    groups = math.prod(shape[:-1]) * (shape[-1] // quant.group_size if quant.group_size else 1)
    _check_parameter("scale", quant.scale_data_key, quant.scale_dtype, groups, place, say, bound)
    if quant.zero_point_data_key is not None:
        _check_parameter("zero point", quant.zero_point_data_key, quant.zero_point_dtype, groups, place, say, bound)


def _check_parameter(
    what: str,
    key: str,
    dtype: ScalarType,
    groups: int,
    place: str,
    say: Say,
    bound: Mapping[str, NamedTensorRef],
) -> None:
    """The scales and zero points of a quantised tensor are constants of the same method: one element a group."""
    ref = bound.get(key)
    if what == "scale" and not dtype.is_floating_point:
        say(place, f"its scales are {dtype.torch_name}", "scales are floating-point numbers")
    if ref is None:
        say(place, f"its {what}s '{key}' are not bound in the method", f"bind the {what}s as a constant of the method")
    else:
        shape = fixed_shape(ref.meta)
        if ref.mutated or ref.meta.quant is not None or ref.meta.dtype is not dtype:
            state = "mutated " if ref.mutated else "quantised " if ref.meta.quant is not None else ""
            say(
                place,
                f"its {what}s '{key}' are {state}{ref.meta.dtype.torch_name}",
                f"they must be a plain read-only constant of dtype {dtype.torch_name}",
            )
        if shape is not None and math.prod(shape) != groups:
            say(
                place,
                f"its {what}s '{key}' have {math.prod(shape)} elements",
                f"one for each of the {groups} groups is needed",
            )


def _check_role(ref: NamedTensorRef, place: str, say: Say) -> None:
    if not ref.data_key:
        say(place, "it has no data key", "name the constant whose bytes it stands for")
    if ref.kind is InputKind.USER_INPUT:
        say(place, "its role is USER_INPUT", "a constant is a PARAMETER, BUFFER or CONSTANT_TENSOR")
    if ref.mutated and ref.kind is not InputKind.BUFFER:
        say(place, f"it is mutated but a {ref.kind.name}", "only buffers change; register it as a buffer")
    if ref.mutated and ref.meta.quant is not None:
        say(place, "it is mutated but quantised", "only plain buffers change")
    order = ref.meta.dim_order
    if order is not None and sorted(order) == list(range(len(order))) != list(order):
        say(
            place,
            f"its dim_order {list(order)} is not contiguous",
            "constants are stored contiguously: permute the data and leave dim_order out",
        )


def _check_plain(ref: NamedTensorRef, shape: tuple[int, ...], place: str, say: Say, infos: Infos) -> None:
    info = infos.get(ref.data_key)
    if info is None:
        _missing(ref.data_key, place, say)
        return
    if info.dtype is not ref.meta.dtype or tuple(info.shape) != shape:
        say(
            place,
            f"the program says {_describe(ref.meta.dtype, shape)}, the package holds "
            f"{_describe(info.dtype, info.shape)} under '{ref.data_key}'",
            "program and weights do not belong together; export the model again",
        )
    elif info.nbytes != math.prod(shape) * ref.meta.dtype.itemsize:
        say(
            place,
            f"the package holds {info.nbytes} bytes for {_describe(info.dtype, shape)} under '{ref.data_key}'",
            "the weights are damaged",
        )


def _check_packed(
    ref: NamedTensorRef,
    quant: AffineGroup | PackedQuant,
    shape: tuple[int, ...],
    place: str,
    say: Say,
    infos: Infos,
) -> None:
    info = infos.get(ref.data_key)
    if info is None:
        _missing(ref.data_key, place, say)
        return
    if info.dtype is not ScalarType.BYTE:
        say(
            place,
            f"the package holds {info.dtype.torch_name} under '{ref.data_key}'",
            "packed values are stored as uint8",
        )
        return
    expected, layout = _packed_bytes(quant, shape)
    if expected is not None and info.nbytes != expected:
        say(
            place,
            f"the package holds {info.nbytes} bytes under '{ref.data_key}'",
            f"{list(shape)} packed as {layout} has {expected} bytes",
        )
    elif expected is None and layout:
        say(place, f"its shape {list(shape)} cannot be packed as {layout}", "the last axis must be whole blocks")


def _packed_bytes(quant: AffineGroup | PackedQuant, shape: tuple[int, ...]) -> tuple[int | None, str]:
    """Bytes of a packed tensor, and what the packing is called; None and "" where this release can't tell."""
    if isinstance(quant, AffineGroup):
        levels = quant.quant_max - quant.quant_min + 1
        if levels < 2 or levels & (levels - 1):
            return None, ""
        bits = levels.bit_length() - 1
        return (math.prod(shape) * bits + 7) // 8, f"{bits}-bit integers"
    try:
        block = gguf_type(quant.codec)
    except ConstantError:
        return None, ""  # opaque blocks of a codec that only some engine knows
    try:
        return math.prod(block.packed_shape(shape)), quant.codec
    except ConstantError:
        return None, quant.codec


def _missing(key: str, place: str, say: Say) -> None:
    say(place, f"the package has no constant '{key}'", "program and weights do not belong together; export again")


def fixed_shape(meta: TensorMeta) -> tuple[int, ...] | None:
    """The only shape that the metadata allows; None where it allows several, or one that cannot be."""
    if not all(dim.is_static and dim.min >= 0 for dim in meta.sizes):
        return None
    shape = tuple(dim.min for dim in meta.sizes)
    return shape if math.prod(shape) * meta.dtype.itemsize <= MAX_TENSOR_BYTES else None


def _describe(dtype: ScalarType, shape: tuple[int, ...]) -> str:
    return f"{dtype.torch_name} {list(shape)}"
