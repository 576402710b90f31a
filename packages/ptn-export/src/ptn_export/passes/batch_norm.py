"""Folds batch norm in eval mode into the convolution or linear layer in front of it.

With fixed statistics the norm is one factor and one summand per channel, which the layer's own weight and bias can
hold: the norm then costs nothing. New weights are computed once, in float64, and get keys of their own, because
another layer or method may use the old ones as they are. The layer's result must go into the norm only, and the norm
must not change its statistics; a linear layer must have two axes, since channels of the norm are the second axis.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ptn_export.passes._graph import Context, argument, insert, is_call, operand, replace, shape_of

__all__ = ["run"]

_aten = torch.ops.aten
_NORM = _aten._native_batch_norm_legit_no_training.default


@dataclass(frozen=True, slots=True)
class _Affine:
    """The norm as `x * factor + summand`, float64 of shape [channels], and the keys of what it was made from."""

    factor: torch.Tensor
    summand: torch.Tensor
    sources: tuple[str, ...]


def run(module: fx.GraphModule, context: Context) -> None:
    """Folds every batch norm of `module` that follows a layer with constant weights."""
    for node in list(module.graph.nodes):
        if is_call(node, operator.getitem) and operand(node, 1) == 0 and is_call(operand(node, 0), _NORM):
            norm = operand(node, 0)
            layer = argument(norm, "input")
            affine = _affine(norm, context)
            if affine is None or len(layer.users) != 1 or len(norm.users) != 1:
                continue
            folded = _fold(layer, affine, context)
            if folded is not None:
                replace(node, folded)
                context.counts["batch_norm"] += 1


def _affine(norm: fx.Node, context: Context) -> _Affine | None:
    """The norm's factor and summand; None where one of its parameters is no constant."""
    parameters, sources = [], []
    for name in ("weight", "bias", "running_mean", "running_var"):
        node = argument(norm, name)
        data = context.constant(node)
        if node is not None and data is None:
            return None
        sources += [context.key(node)] if data is not None else []
        parameters.append(data.detach().double() if data is not None else None)
    weight, bias, mean, variance = parameters
    if mean is None or variance is None:
        return None
    factor = (variance + argument(norm, "eps")).rsqrt()
    factor = factor if weight is None else factor * weight
    summand = -mean * factor
    return _Affine(factor, summand if bias is None else summand + bias, tuple(sources))


def _fold(layer: Any, affine: _Affine, context: Context) -> fx.Node | None:
    """A layer that includes the norm; None where `layer` is none that can."""
    is_linear = is_call(layer, _aten.linear.default) and len(shape_of(layer)) == 2
    if not is_linear and not is_call(layer, _aten.convolution.default):
        return None
    weight_node, bias_node = argument(layer, "weight"), argument(layer, "bias")
    weight, bias = context.constant(weight_node), context.constant(bias_node)
    if weight is None or (bias is None and bias_node is not None) or not weight.is_floating_point():
        return None
    is_transposed = not is_linear and argument(layer, "transposed")
    groups = 1 if is_linear else argument(layer, "groups")
    scaled = _scaled(weight.detach().double(), affine.factor, is_transposed, groups)
    summand = affine.summand if bias is None else bias.detach().double() * affine.factor + affine.summand
    key = context.key(weight_node)
    new_weight = context.add_constant(scaled.to(weight.dtype), key, (key, *affine.sources))
    bias_key = context.key(bias_node) if bias is not None else f"{key.removesuffix('.weight')}.bias"
    old_bias = (bias_key,) if bias is not None else ()
    new_bias = context.add_constant(summand.to(weight.dtype), bias_key, (*old_bias, *affine.sources))
    return insert(layer, layer.target, operand(layer, 0), new_weight, new_bias, *layer.args[3:], **layer.kwargs)


def _scaled(weight: torch.Tensor, factor: torch.Tensor, is_transposed: bool, groups: int) -> torch.Tensor:
    """`weight` with every output channel multiplied by its factor."""
    if not is_transposed:
        return weight * factor.reshape(-1, *(1,) * (weight.dim() - 1))
    # [in, out / groups, ...], where a run of input channels belongs to each group.
    grouped = weight.reshape(groups, -1, *weight.shape[1:])
    return (grouped * factor.reshape(groups, 1, -1, *(1,) * (weight.dim() - 2))).reshape(weight.shape)
