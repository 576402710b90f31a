"""Quantised constants: explicit nodes that unpack them, so that every value's dtype and shape are plain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ptn_format.dtypes import ScalarType
from ptn_format.graph import AffineGroup, TensorMeta

from ptn_runtime.lowering.arguments import BindError
from ptn_runtime.lowering.plan import Call
from ptn_runtime.shapes import OPERATORS

if TYPE_CHECKING:
    from ptn_runtime.lowering.canonical import Body

__all__ = ["PackedConstants"]

UNPACK = "ptn.unpack_affine.default"
DEQUANTIZE = "ptn.dequantize_packed.default"
_READS_INTEGERS = frozenset({"torchao.dequantize_affine.default"})
"""Operators that take the integers of an affine constant; all others take its values."""


class PackedConstants:
    """The quantised constants of one graph body, and the nodes that read them."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._constants: dict[str, tuple[int, TensorMeta]] = {}
        self._read: dict[tuple[Any, ...], int] = {}

    def add(self, name: str, slot: int, meta: TensorMeta) -> None:
        """Enters the constant `name`, whose physical bytes `slot` holds."""
        self._constants[name] = (slot, meta)

    def __contains__(self, name: str) -> bool:
        return name in self._constants

    def slot(self, name: str, op: str = "", result: TensorMeta | None = None) -> int:
        """The slot of what `op` reads of the constant `name`.

        Args:
            name: a quantised constant.
            op: canonical name of the operator that reads it.
            result: what the file says of that operator's result: values are decoded to its floating-point type.
        """
        packed, meta = self._constants[name]
        scheme = meta.quant
        sizes = tuple(dim.min for dim in meta.sizes)
        if isinstance(scheme, AffineGroup) and op in _READS_INTEGERS:
            return self._node(name, None, UNPACK, packed, {"scheme": scheme, "sizes": sizes})
        affine = scheme if isinstance(scheme, AffineGroup) else None
        dtype = affine.scale_dtype if affine is not None else ScalarType.FLOAT
        if result is not None and result.dtype.is_floating_point:
            dtype = result.dtype
        args: dict[str, Any] = {"scheme": scheme, "sizes": sizes, "dtype": dtype}
        if affine is not None:
            args["scale"] = self._body.constant_slot(affine.scale_data_key, affine.scale_data_key)
            if affine.zero_point_data_key:
                args["zero_point"] = self._body.constant_slot(affine.zero_point_data_key, affine.zero_point_data_key)
        return self._node(name, dtype, DEQUANTIZE, packed, args)

    def _node(self, name: str, dtype: ScalarType | None, op: str, packed: int, given: dict[str, Any]) -> int:
        # Constants that share their data share what is read of them.
        identity = (op, packed, dtype, given["scheme"], given["sizes"])
        known = self._read.get(identity)
        if known is not None:
            return known
        operator = OPERATORS.get(op)
        if operator is None:
            raise BindError(f"reads the quantised constant '{name}', and {op} has no shape rule")
        tensors = [("packed", packed)]
        args: dict[str, Any] = {}
        for parameter in operator.parameters:
            value = given.get(parameter)
            if parameter in ("scale", "zero_point") and value is not None:
                tensors.append((parameter, value))
                value = None
            args[parameter] = value
        output = self._body.new_slot()
        self._body.steps.append(
            Call(
                name=f"{name}.{'integers' if op == UNPACK else 'values'}",
                operator=operator,
                args=args,
                tensors=tuple(tensors),
                scalars=(),
                lists=(),
                outputs=(output,),
                names=(f"{name}.{'integers' if op == UNPACK else 'values'}",),
                metas=(None,),
                # Engines keep quantised weights packed, so these stay nodes.
                foldable=False,
            )
        )
        self._read[identity] = output
        return output
