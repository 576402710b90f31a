"""Quantising a model by the name of a scheme, with TorchAO.

    small = quantize_module(model, "int4")
    to_native(torch.export.export(small, example)).save("model.ptn")

A scheme says how linear layers, embeddings and, where only weights are quantised, two-dimensional convolutions are
stored. `SCHEMES` lists the names; `int4:64` asks for groups of 64 elements of a row, `int4:row` for one group a row.
What is finer than that is TorchAO's own `quantize_`, whose models export just as well.
Needs the `torchao` package: `pip install 'ptn-export[torchao]'`.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar, cast

import torch
from torch import nn

__all__ = ["SCHEMES", "quantize_module"]

_Module = TypeVar("_Module", bound=nn.Module)
_ROW = 0  # group size: one group a row
_LEAST_GROUP = 8  # elements; with fewer a group's scale and zero point outweigh what is saved


@dataclass(frozen=True, slots=True)
class _Scheme:
    """How weights are stored, and whether activations of linear layers are quantised while the model runs."""

    bits: int
    group: int
    help: str
    activations: bool = False


_WEIGHTS_ONLY = "weights of linear, embedding and conv2d"
_TABLE: dict[str, _Scheme] = {
    "int8": _Scheme(8, _ROW, f"{_WEIGHTS_ONLY} in 8 bits, one scale a row"),
    "int6": _Scheme(6, 32, f"{_WEIGHTS_ONLY} in 6 bits, groups of 32"),
    "int5": _Scheme(5, 32, f"{_WEIGHTS_ONLY} in 5 bits, groups of 32"),
    "int4": _Scheme(4, 32, f"{_WEIGHTS_ONLY} in 4 bits, groups of 32"),
    "int3": _Scheme(3, 32, f"{_WEIGHTS_ONLY} in 3 bits, groups of 32"),
    "int2": _Scheme(2, 32, f"{_WEIGHTS_ONLY} in 2 bits, groups of 32"),
    "8da8w": _Scheme(
        8, _ROW, "linear: 8-bit weights, activations rounded to 8 bits per token; embedding: as int8", activations=True
    ),
    "8da4w": _Scheme(
        4, 32, "linear: 4-bit weights, activations rounded to 8 bits per token; embedding: as int4", activations=True
    ),
}

SCHEMES: Mapping[str, str] = MappingProxyType({name: scheme.help for name, scheme in _TABLE.items()})
"""By name of a scheme, one line for people. All but 8da8w take a group size: `int4:64`, `int4:row`."""


def quantize_module(module: _Module, scheme: str) -> _Module:
    """Quantises the weights of a copy of a module.

    The module itself is left alone. The copy has its own buffers, and shares the parameters that are not quantised:
    those on modules other than linear layers, embeddings and two-dimensional convolutions; those whose groups would
    have fewer than 8 elements, as in depthwise convolutions; weights that are quantised already or parametrised. Tied
    weights stay tied. A row that is no multiple of the group size gets smaller groups: the largest that divide it.

    Args:
        module: the model, its floating-point weights in memory.
        scheme: a name in `SCHEMES`, such as `int4`, or with a group size: `int4:64`, `int8:row`.

    Returns:
        The quantised copy; it runs in PyTorch and can be exported.

    Raises:
        ValueError: there is no such scheme or group size, or the module has no weight to quantise.
        TypeError: the module cannot be copied.
        ImportError: torchao is not installed.
    """
    chosen = _parse(scheme)
    torchao = _torchao()
    # Parameters that are not quantised are shared, so the copy needs memory for the quantised ones only.
    memo: dict[int, Any] = {id(parameter): parameter for parameter in module.parameters()}
    try:
        quantised = copy.deepcopy(module, memo)
    except Exception as error:  # whatever an attribute of the user's module raises
        raise TypeError(
            f"{type(module).__name__} cannot be copied, so its weights cannot be quantised beside it: {error}. "
            "Quantise it in place with torchao.quantization.quantize_, then export it"
        ) from error
    made: dict[int, nn.Parameter] = {}
    count = 0
    for layer in quantised.modules():
        weight = layer._parameters.get("weight")
        group = None if weight is None else _group(layer, weight, chosen)
        if weight is not None and group is not None:
            layer._parameters["weight"] = _quantised(torchao, layer, weight, chosen, group, made)
            count += 1
    if not count:
        raise ValueError(
            f"{type(module).__name__} has no weight that {scheme} quantises: {chosen.help}; rows need at least "
            f"{_LEAST_GROUP} elements"
        )
    return quantised


def _parse(text: str) -> _Scheme:
    """The scheme that a name, and perhaps a group size, stand for."""
    name, colon, size = text.partition(":")
    scheme = _TABLE.get(name)
    if scheme is None:
        known = "\n".join(f"  {name:6} {line}" for name, line in SCHEMES.items())
        raise ValueError(f"there is no scheme {text!r} of quantisation. Known are:\n{known}")
    if not colon:
        return scheme
    if name == "8da8w":
        raise ValueError(f"{text!r}: 8da8w has one scale a row and takes no group size; write 8da8w")
    if size == "row":
        return _with_group(scheme, _ROW)
    if not size.isdecimal() or int(size) < _LEAST_GROUP:
        raise ValueError(
            f"{text!r}: a group size is a number of elements from {_LEAST_GROUP} on, or 'row', got {size!r}; "
            f"write for example {name}:32"
        )
    return _with_group(scheme, int(size))


def _with_group(scheme: _Scheme, group: int) -> _Scheme:
    return _Scheme(scheme.bits, group, scheme.help, scheme.activations)


def _torchao() -> Any:
    silenced = logging.root.manager.disable
    try:
        # What it says while it is imported is about optional parts that nothing here needs.
        logging.disable(logging.WARNING)
        with warnings.catch_warnings(action="ignore"):
            import torchao.quantization
    except ImportError as error:
        raise ImportError(
            f"models are quantised with torchao, which cannot be imported ({error}). "
            "Install it: pip install 'ptn-export[torchao]'"
        ) from error
    finally:
        logging.disable(silenced)
    return torchao.quantization


def _group(layer: nn.Module, weight: nn.Parameter, scheme: _Scheme) -> int | None:
    """Elements of a group of a layer's weight; None where the weight stays as it is."""
    if isinstance(layer, nn.modules.linear.NonDynamicallyQuantizableLinear):  # attention reads its weight itself
        return None
    if isinstance(layer, nn.Embedding):
        if layer.max_norm is not None:  # its weight changes while it is read
            return None
    elif not isinstance(layer, nn.Linear | nn.Conv2d) or (scheme.activations and isinstance(layer, nn.Conv2d)):
        return None
    if type(weight.data) is not torch.Tensor or weight.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return None
    row = weight.shape[1]
    group = row if scheme.group == _ROW else max(i for i in range(1, min(scheme.group, row) + 1) if row % i == 0)
    if group < _LEAST_GROUP and scheme.group != _ROW and row > group:
        group = row  # a row of a prime number of elements
    return group if group >= _LEAST_GROUP else None


def _quantised(
    torchao: Any, layer: nn.Module, weight: nn.Parameter, scheme: _Scheme, group: int, made: dict[int, nn.Parameter]
) -> nn.Parameter:
    """The quantised weight of a layer; layers that share a weight share its integers, scales and zero points."""
    known = made.get(id(weight))
    if known is None:
        block = [1, group] + [1] * (weight.dim() - 2)
        integers = torchao.IntxUnpackedToInt8Tensor.from_hp(weight.detach(), block, getattr(torch, f"int{scheme.bits}"))
        known = made[id(weight)] = nn.Parameter(integers, requires_grad=False)
    if not scheme.activations or not isinstance(layer, nn.Linear):
        return known
    integers = cast(Any, known)
    per_token = torchao.IntxUnpackedToInt8Tensor(
        integers.qdata,
        integers.scale,
        integers.zero_point,
        integers.target_dtype,
        integers.block_size,
        integers.dtype,
        "int8_asym_per_token",
    )
    return nn.Parameter(per_token, requires_grad=False)
