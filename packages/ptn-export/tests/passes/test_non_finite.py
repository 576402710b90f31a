"""Infinities and NaN go into the file as constants, which every reader can read."""

import math

import torch
from ptn_format.graph import FloatArg
from torch import nn
from torch.export import Dim


class Fills(nn.Module):
    """A number among tensors, and tensors full of one, of fixed, dynamic and no sizes."""

    def forward(self, x):
        low, high = torch.full((x.shape[0], 1), float("-inf")), torch.full((2, 3), float("inf"), dtype=torch.float64)
        masked = torch.where(x > 0, x, float("-inf"))
        return masked, torch.maximum(x, low), high * 2, torch.full((), float("nan")) + x.sum()


def literals(program):
    return [
        item.arg.value
        for method in program.methods
        for node in method.graph.nodes
        for item in node.inputs
        if isinstance(item.arg, FloatArg)
    ]


def test_fills_are_constants(check):
    sizes = ({0: Dim("rows", min=2, max=5)},)
    native = check(Fills(), (torch.randn(3, 4),), (torch.randn(5, 4),), dynamic_shapes=sizes)
    assert all(map(math.isfinite, literals(native.program)))
    keys = [key for key in native.constants if key.startswith("literal.folded_")]
    assert len(keys) == 3  # -inf once, inf as float64, NaN


def test_other_numbers_and_types_stay(check):
    native = check(lambda_module(lambda x: x + torch.full((3,), 2.5) + torch.full((3,), 7)), (torch.randn(3),))
    assert not native.constants


def test_results_of_the_graph(check):
    native = check(lambda_module(lambda x: (x + 1, torch.full((2,), float("inf")))), (torch.randn(3),))
    assert all(map(math.isfinite, literals(native.program)))


def lambda_module(function):
    class Module(nn.Module):
        def forward(self, x):
            return function(x)

    return Module()
