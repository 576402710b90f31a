"""Gives quantised weights one form: integers along rows, read by `dequantize_affine`, in front of plain operators.

TorchAO's tensor subclasses come apart into several forms. Those that engines could not read in packed form, or that
are made for one machine, are rewritten:

* int8 weights of one scale a row, which are multiplied first and scaled afterwards, and those of several, which are
  transposed: `linear` of a dequantised weight.
* int4 weights in the layout of PyTorch's CPU or CUDA kernels: the integers are read back from the kernel itself, by
  multiplying unit vectors, and stored in the layout of the file.
* convolutions, whose groups lie along the input channels: the weight is stored with that axis last, and turned back
  behind `dequantize_affine`.

Weights that no operator here can read are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from ptn_export.passes._graph import Context, argument, dtype_of, insert, is_call, operand, operands, replace, shape_of

if TYPE_CHECKING:
    from ptn_export.bodies import Problems

__all__ = ["run"]

_aten = torch.ops.aten
_DEQUANTIZE = "torchao.dequantize_affine.default"
_INT4_PRODUCTS: dict[str, tuple[torch.dtype, int]] = {
    "aten._weight_int4pack_mm_for_cpu.default": (torch.float32, 4),
    "aten._weight_int4pack_mm.default": (torch.bfloat16, 1),
}
"""Kernels for int4 weights in a layout of their own: the type they multiply, and how many integers their sums hold."""
_OPAQUE: dict[str, str] = {
    "mslk": "Int4Tensor or Int4PreshuffledTensor (kernels of the mslk package)",
    "aten._weight_int4pack_mm_with_scales_and_zeros": "Int4PlainInt32Tensor (kernels for Intel GPUs)",
    "torchao.da8w4_linear_cpu": "Int4OpaqueTensor with quantised activations",
    "torchao._linear_8bit_act_": "IntxOpaqueTensor",
    "aten._dyn_quant_matmul_4bit": "IntxOpaqueTensor",
}
"""Operators of weights whose layout only they know, by the start of their name: TorchAO's class."""


def run(module: fx.GraphModule, context: Context, problems: Problems) -> None:
    """Rewrites the quantised weights of `module`; adds those that cannot be read to `problems`."""
    for node in list(module.graph.nodes):
        if node.op != "call_function":
            continue
        name = str(node.target)
        if name in _INT4_PRODUCTS:
            _int4_product(node, context, problems)
        elif name == _DEQUANTIZE:
            _last_axis(node, context)
        elif node.target is _aten.mul.Tensor:
            _scaled_product(node, context)
        elif node.target is _aten.mm.default:
            _transposed_product(node)
        else:
            _refuse_opaque(name, node, problems)


def _derived(context: Context, data: torch.Tensor, source: fx.Node) -> fx.Node:
    """A constant that was made from another one."""
    key = context.key(source)
    return context.add_constant(data.cpu(), key, (key,))


# Linear layers


def _linear(node: fx.Node, x: fx.Node, weight: fx.Node) -> None:
    replace(node, insert(node, _aten.linear.default, x, weight))


def _is_transposed(node: Any) -> bool:
    return is_call(node, _aten.permute.default) and list(operand(node, 1)) == [1, 0]


def _transposed_product(node: fx.Node) -> None:
    """`mm(x, dequantize_affine(...).T)`."""
    x, right = node.args
    if (
        isinstance(x, fx.Node)
        and _is_transposed(right)
        and str(getattr(operand(right, 0), "target", "")) == _DEQUANTIZE
    ):
        _linear(node, x, operand(right, 0))


def _scaled_product(node: fx.Node, context: Context) -> None:
    """`mm(x, integers.T.to(x.dtype)) * scale`, of Int8WeightOnly with a scale for each row or one for all."""
    product, scale = operands(node)
    if not is_call(product, _aten.mm.default) or len(product.users) != 1:
        return
    x, right = operand(product, 0), operand(product, 1)
    if not is_call(right, _aten._to_copy.default) or not _is_transposed(operand(right, 0)):
        return
    source = operand(operand(right, 0), 0)
    while is_call(scale, _aten.view.default, _aten._to_copy.default):
        scale = operand(scale, 0)
    integers, factors = context.constant(source), context.constant(scale)
    if integers is None or factors is None or integers.dtype is not torch.int8 or not factors.is_floating_point():
        return
    rows, columns = integers.shape
    if factors.numel() not in (1, rows) or dtype_of(x) is not dtype_of(node):
        return
    if factors.numel() != rows:
        scale = _derived(context, factors.detach().reshape(1, 1).expand(rows, 1), scale)
    weight = _dequantize(node, source, [1, columns], scale, None, (-128, 127), dtype_of(x))
    _linear(node, x, weight)


def _dequantize(
    before: fx.Node,
    integers: fx.Node,
    block: list[int],
    scale: fx.Node,
    zero_point: fx.Node | None,
    limits: tuple[int, int],
    dtype: torch.dtype | None,
) -> fx.Node:
    import torchao.quantization  # noqa: F401  registers the operator

    operator = torch.ops.torchao.dequantize_affine.default
    return insert(before, operator, integers, block, scale, zero_point, torch.int8, *limits, output_dtype=dtype)


# int4 weights in a kernel's own layout


def _int4_product(node: fx.Node, context: Context, problems: Problems) -> None:
    """`_weight_int4pack_mm(x, packed, group, scales and zeros [K / group, N, 2])`: `(integer - 8) * scale + zero`."""
    x, packed, group, parameters = operands(node)
    data, both = context.constant(packed), context.constant(parameters)
    if data is None or both is None or not isinstance(x, fx.Node) or not isinstance(group, int):
        problems.add(str(node.target), "its weight is computed while the model runs", _WAY_OUT, node)
        return
    target: Any = node.target
    dtype, digits = _INT4_PRODUCTS[str(target)]
    columns, rows = both.shape[0] * group, both.shape[1]
    with torch.no_grad():
        integers = _read_back(
            lambda units, one: target(units, data, group, one), rows, columns, group, dtype, digits, data.device
        )
        scale, zero = (both[..., i].t().cpu() for i in range(2))
        offset = zero.float() / scale.float()
        zero_point = torch.where(zero == 0, 0.0, -offset)
    if not torch.isfinite(zero_point).all():
        problems.add(str(node.target), "a group of its weight has the scale 0 and another value than 0", _WAY_OUT, node)
        return
    weight = _dequantize(
        node,
        _derived(context, integers, packed),
        [1, group],
        _derived(context, scale, parameters),
        _derived(context, zero_point, parameters),
        (-8, 7),
        torch.float32,
    )
    # In float32, whatever the model's type: a zero point of a half type would be off by parts of a step.
    result = dtype_of(node)
    wide = x if dtype_of(x) is torch.float32 else insert(node, _aten._to_copy.default, x, dtype=torch.float32)
    if shape_of(x)[-1] != columns:
        problems.add(
            str(node.target), f"its weight has rows of {columns}, its input of {shape_of(x)[-1]}", _WAY_OUT, node
        )
        return
    product = insert(node, _aten.linear.default, wide, weight)
    replace(node, product if result is torch.float32 else insert(node, _aten._to_copy.default, product, dtype=result))


def _read_back(
    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    rows: int,
    columns: int,
    group: int,
    dtype: torch.dtype,
    digits: int,
    device: torch.device,
) -> torch.Tensor:
    """The integers -8..7 of a packed weight, int8 [rows, columns].

    A product with scale 1, zero 0 and a unit vector gives one column. Where sums are exact far enough, a vector has
    several ones, the first times 1, the next times 16, and so on, and the sum is taken apart again.
    """
    one = torch.zeros(columns // group, rows, 2, dtype=dtype, device=device)
    one[..., 0] = 1
    result = torch.empty(rows, columns, dtype=torch.int8)
    span = -(-columns // digits)
    for first in range(0, span, 256):
        count = min(256, span - first)
        units = torch.zeros(count, columns, dtype=dtype, device=device)
        taken = []
        for digit in range(digits):
            places = torch.arange(first, first + count, device=device) + digit * span
            inside = places < columns
            units[torch.arange(count, device=device)[inside], places[inside]] = float(16**digit)
            taken.append((inside.cpu(), places[inside].cpu()))
        sums = multiply(units, one).to(torch.int64).cpu()
        for inside, places in taken:
            digit_values = (sums + 8) % 16 - 8
            result[:, places] = digit_values[inside].t().to(torch.int8)
            sums = (sums - digit_values) // 16
    return result


_WAY_OUT = (
    "quantise with IntxWeightOnlyConfig(torch.int4, PerGroup(32)), or with ptn_export.quantize.quantize_module(model, "
    "'int4'): the file is packed all the same"
)


def _refuse_opaque(name: str, node: fx.Node, problems: Problems) -> None:
    for start, kind in _OPAQUE.items():
        if name.startswith(start):
            reason = f"it multiplies a weight whose layout only this operator knows: TorchAO's {kind}"
            problems.add(name, reason, _WAY_OUT, node)


# Convolutions


def _last_axis(node: fx.Node, context: Context) -> None:
    """Moves the axis along which the groups of a constant lie to the end."""
    block = argument(node, "block_size")
    along = [axis for axis, size in enumerate(block) if size != 1]
    if len(along) != 1 or along[0] in (0, len(block) - 1):
        return
    (axis,) = along
    source, scale, zero_point = (argument(node, name) for name in ("input", "scale", "zero_point"))
    parts = [part for part in (source, scale, zero_point) if part is not None]
    data = [context.constant(part) for part in parts]
    if any(part is None or part.dim() != len(block) for part in data):
        return
    order = [i for i in range(len(block)) if i != axis] + [axis]
    moved = [
        _derived(context, part.detach().permute(order), place)
        for part, place in zip(data, parts, strict=True)
        if part is not None
    ]
    limits = argument(node, "quant_min"), argument(node, "quant_max")
    types = argument(node, "input_dtype"), *limits
    target: Any = node.target
    values = insert(
        node,
        target,
        moved[0],
        [block[i] for i in order],
        moved[1],
        moved[2] if zero_point is not None else None,
        *types,
        output_dtype=dtype_of(node),
    )
    replace(node, insert(node, _aten.permute.default, values, [order.index(i) for i in range(len(block))]))
