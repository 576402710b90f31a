"""Weights that TorchAO quantised: found in the graph as `dequantize_affine` of a constant, stored packed.

`torchao.quantization.quantize_` replaces weights by tensor subclasses, which PyTorch unwraps while it decomposes the
program: what is left is `torchao.dequantize_affine(integers, block_size, scale, zero_point, ...)`, the integers in
one byte each. Here they are recognised, so that the file holds them with as many bits as they have, described by an
`AffineGroup`: integers `q - quant_min` in one stream of bits, lowest bit first (with 4 bits the even element is in the
low half of its byte). The node stays and reads the packed constant; scales and zero points stay constants.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from ptn_format.dtypes import ScalarType
from ptn_format.errors import ConstantError
from ptn_format.graph import AffineGroup, Dim, TensorMeta
from ptn_format.quant import affine_bits, group_shape, pack_affine, packed_shape
from torch import fx

from ptn_export.constants import Constant
from ptn_export.dims import SCALAR_TYPES

__all__ = ["PackedConstant", "affine_weights", "is_kept"]

_DEQUANTIZE = "torchao.dequantize_affine.default"
_KEPT = frozenset({"torchao.choose_qparams_affine.default", "torchao.quantize_affine.default", _DEQUANTIZE})

Constants = Mapping[str, torch.Tensor]


def is_kept(operator: Any) -> bool:
    """Whether an operator of TorchAO stays whole, because packages give it a meaning that engines make use of."""
    return str(operator) in _KEPT


class PackedConstant(Constant):
    """Integers that are packed when they are asked for.

    Attributes:
        tensor: the integers, one an element.
        scheme: their range; group size and keys are not looked at.
    """

    def __init__(self, tensor: torch.Tensor, scheme: AffineGroup) -> None:
        super().__init__(tensor)
        self.scheme = scheme

    @property
    def dtype(self) -> np.dtype[Any]:
        """uint8."""
        return np.dtype(np.uint8)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the bytes: one row of bytes per row where a row is whole bytes, else all in one axis."""
        return packed_shape(self.scheme, tuple(self.tensor.shape))

    @property
    def nbytes(self) -> int:
        """Bytes of the packed integers."""
        return math.prod(self.shape)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.asarray(pack_affine(super().__array__(), self.scheme), dtype=dtype)


def affine_weights(graph: fx.Graph, constants: Constants) -> dict[str, TensorMeta]:
    """Finds the constants that can be packed.

    A constant qualifies where every reader is a `dequantize_affine` with the same parameters, its groups lie along
    the last axis, its range has a power of two of levels, and all values are within the range.

    Args:
        graph: a decomposed graph.
        constants: by placeholder, the data of read-only constants.

    Returns:
        By placeholder, what the file says of it. The keys in the scheme are as yet the names of the placeholders of
        scale and zero point.
    """
    found: dict[str, TensorMeta] = {}
    for node in graph.nodes:
        data = constants.get(node.name) if node.op == "placeholder" and node.users else None
        if data is None or data.dtype not in (torch.int8, torch.uint8):
            continue
        schemes = [_scheme(user, node, data, constants) for user in node.users]
        scheme = schemes[0]
        if scheme is not None and all(other == scheme for other in schemes) and _in_range(data, scheme):
            sizes = tuple(Dim(size, size) for size in data.shape)
            found[node.name] = TensorMeta(ScalarType.BYTE, sizes, quant=scheme)
    return found


def _scheme(user: fx.Node, weight: fx.Node, data: torch.Tensor, constants: Constants) -> AffineGroup | None:
    """How `user` reads the integers `weight`; None where an `AffineGroup` cannot say it."""
    if user.op != "call_function" or str(user.target) != _DEQUANTIZE:
        return None
    arguments = _arguments(user)
    scale, zero_point = arguments["scale"], arguments["zero_point"]
    parameters = [scale] if zero_point is None else [scale, zero_point]
    if arguments["input"] is not weight or any(item is weight for item in parameters):
        return None
    tensors = [constants.get(item.name) if isinstance(item, fx.Node) else None for item in parameters]
    group = _group_size(arguments["block_size"], tuple(data.shape))
    limits = _limits(arguments, data.dtype)
    if group is None or limits is None or any(tensor is None for tensor in tensors):
        return None
    plain = [tensor for tensor in tensors if tensor is not None]
    if not plain[0].is_floating_point() or any(tensor.dtype not in SCALAR_TYPES for tensor in plain):
        return None
    scheme = AffineGroup(
        scale_data_key=scale.name,
        scale_dtype=SCALAR_TYPES[plain[0].dtype],
        quant_min=limits[0],
        quant_max=limits[1],
        group_size=group,
        zero_point_data_key=zero_point.name if zero_point is not None else None,
        **({"zero_point_dtype": SCALAR_TYPES[plain[1].dtype]} if zero_point is not None else {}),
    )
    try:
        affine_bits(scheme)
        groups = math.prod(group_shape(scheme, tuple(data.shape)))
    except ConstantError:
        return None
    return scheme if all(tensor.numel() == groups for tensor in plain) else None


def _arguments(node: fx.Node) -> Mapping[str, Any]:
    """The arguments of a call by name, defaults filled in."""
    values: dict[str, Any] = {}
    for i, formal in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]  # the caller checked it
        default = formal.default_value if formal.has_default_value() else None
        values[formal.name] = node.args[i] if i < len(node.args) else node.kwargs.get(formal.name, default)
    return values


def _group_size(block_size: Any, shape: tuple[int, ...]) -> int | None:
    """Elements of a group; None where blocks reach over more than the last axis."""
    if not shape or len(block_size) != len(shape) or not all(isinstance(size, int) for size in block_size):
        return None
    spans = [size for size, whole in zip(block_size[:-1], shape[:-1], strict=True) if size != 1 and whole != 1]
    last = int(block_size[-1])
    return last if not spans and last > 0 and shape[-1] % last == 0 else None


def _limits(arguments: Mapping[str, Any], dtype: torch.dtype) -> tuple[int, int] | None:
    info = torch.iinfo(dtype)
    low, high = arguments["quant_min"], arguments["quant_max"]
    low, high = (info.min if low is None else low), (info.max if high is None else high)
    return (int(low), int(high)) if int(low) == low and int(high) == high else None


def _in_range(data: torch.Tensor, scheme: AffineGroup) -> bool:
    if not data.numel():
        return False
    low, high = torch.aminmax(data)
    return scheme.quant_min <= int(low) and int(high) <= scheme.quant_max
