"""Element-wise operators.

All of them are kernels of `native/kernels/elementwise.cpp`, which broadcast, convert and compute in PyTorch's types.
float32 sums, products and SiLU go to ggml's own operators, which are vectorised and run on every device.
"""

from __future__ import annotations

import math
from typing import Any

from ptn_format.dtypes import ScalarType
from ptn_runtime.engine import StaticNode, Value
from ptn_runtime.shapes import TensorSpec, infer

from ptn_engine_ggml._native import Builder, Tensor
from ptn_engine_ggml.lower.common import axis_of, scalar_parameters
from ptn_engine_ggml.lower.registry import ALL, Outputs, lower

Operand = Tensor | bool | int | float
FLOAT = ScalarType.FLOAT


def kernel(
    b: Builder, name: str, dtype: ScalarType, shape: tuple[int, ...], computed: ScalarType, *operands: Operand
) -> Tensor:
    """Calls `elementwise.<name>`.

    Args:
        b: the builder.
        name: the kernel.
        dtype: element type of the result.
        shape: shape of the result, to which the operands broadcast.
        computed: element type that PyTorch computes in (half types through float32).
        operands: tensors of any type, and numbers.
    """
    inputs: list[Tensor] = []
    ints: list[int] = []
    floats: list[float] = []
    mask = 0
    for i, operand in enumerate(operands):
        if isinstance(operand, Tensor):
            inputs.append(operand)
            continue
        mask |= 1 << i
        more_ints, more_floats = scalar_parameters(computed, operand)
        ints += more_ints
        floats += more_floats
    return b.custom(f"elementwise.{name}", inputs, [(int(dtype), shape)], [int(computed), mask, *ints], floats)[0]


def result_type(*operands: Operand) -> ScalarType:
    """The type that PyTorch computes a binary operator in; the shapes need not fit."""
    first, second = (
        TensorSpec(x.dtype, (1,) if x.rank else ()) if isinstance(x, Tensor) else x
        for x in (operands if isinstance(operands[0], Tensor) else operands[::-1])
    )
    return infer("aten.add.Tensor", {"self": first, "other": second})[0].dtype


def arithmetic(b: Builder, name: str, x: Operand, y: Operand) -> Tensor:
    """`add`, `sub`, `mul` or `div` of float32, float64, integers or bools by PyTorch's rules."""
    (spec,) = infer(f"aten.{name}.Tensor", {"self": x, "other": y})
    return _arithmetic(b, name, spec.dtype, spec.shape, x, y)


def _arithmetic(b: Builder, name: str, dtype: ScalarType, shape: tuple[int, ...], x: Operand, y: Operand) -> Tensor:
    if dtype is FLOAT and name in ("add", "sub", "mul", "div"):
        fast = _float_arithmetic(b, name, shape, x, y)
        if fast is not None:
            return fast
    return kernel(b, name, dtype, shape, dtype, x, y)


def _float_arithmetic(b: Builder, name: str, shape: tuple[int, ...], x: Operand, y: Operand) -> Tensor | None:
    """What ggml itself does, where that is exact and not slow."""
    if not isinstance(x, Tensor):
        x, y = y, x
        if name not in ("add", "mul"):
            return None
    assert isinstance(x, Tensor)
    if x.dtype is not FLOAT or x.shape != shape:
        if not (isinstance(y, Tensor) and y.dtype is FLOAT and y.shape == shape and x.dtype is FLOAT):
            return None
        if name not in ("add", "mul"):
            return None
        x, y = y, x
    if isinstance(y, Tensor):
        # ggml repeats a column element by element.
        if y.dtype is not FLOAT or (shape and shape[-1] > 1 and (y.rank == 0 or y.shape[-1] == 1)):
            return None
        result: Tensor = getattr(b, name)(x, y)
        return result
    if name == "mul":
        return b.scale(x, float(y))
    if name in ("add", "sub"):
        return b.scale(x, 1.0, float(y) if name == "add" else -float(y))
    return None


def _numbers(*names: str) -> Any:
    """A check: the arguments `names` are numbers, not tensors that are known only while the graph runs."""

    def check(node: StaticNode) -> str | None:
        for name in names:
            if isinstance(node.args.get(name), Value):
                return f"'{name}' is a tensor, which is known only while the graph runs."
        return None

    return check


# --- one operand ---


def _unary(name: str, *ops: str, dtypes: frozenset[ScalarType] = ALL) -> None:
    """A function computed in the result's type."""

    @lower(*ops, dtypes=dtypes)
    def function(b: Builder, out: Outputs, self: Tensor) -> Tensor:
        return kernel(b, name, out.dtype, out.shape, out.dtype, self)


def _predicate(name: str, *ops: str) -> None:
    """A function computed in the operand's type."""

    @lower(*ops)
    def function(b: Builder, out: Outputs, self: Tensor) -> Tensor:
        return kernel(b, name, out.dtype, out.shape, self.dtype, self)


for _name in ("abs", "square", "relu", "frac", "neg", "bitwise_not"):
    _unary(_name, f"aten.{_name}.default")
for _name in (
    *("exp", "exp2", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tan"),
    *("asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv"),
    *("lgamma", "digamma", "sigmoid", "mish", "log_sigmoid", "hardsigmoid", "hardswish"),
):
    _unary(_name, f"aten.{_name}.default")
_unary("expm1", "aten.expm1.default", "aten.special_expm1.default")
_unary("sign", "aten.sign.default", "aten.sgn.default")
for _name in ("isnan", "isinf", "isfinite", "isposinf", "isneginf", "signbit", "logical_not"):
    _predicate(_name, f"aten.{_name}.default")


@lower("aten.silu.default")
def silu(b: Builder, out: Outputs, self: Tensor) -> Tensor:
    if self.dtype is FLOAT:
        return b.unary("silu", self)
    return kernel(b, "silu", out.dtype, out.shape, out.dtype, self)


@lower("aten.gelu.default")
def gelu(b: Builder, out: Outputs, self: Tensor, approximate: str = "none") -> Tensor:
    name = "gelu" if approximate == "none" else "gelu_tanh"
    return kernel(b, name, out.dtype, out.shape, out.dtype, self)


@lower("aten.positive.default")
def positive(b: Builder, out: Outputs, self: Tensor) -> Tensor:
    return self


def _rounding(name: str) -> None:
    @lower(f"aten.{name}.default")
    def function(b: Builder, out: Outputs, self: Tensor) -> Tensor:
        if not out.dtype.is_floating_point:
            return self
        return kernel(b, name, out.dtype, out.shape, out.dtype, self)


for _name in ("ceil", "floor", "trunc", "round"):
    _rounding(_name)


@lower("aten.round.decimals")
def round_decimals(b: Builder, out: Outputs, self: Tensor, decimals: int) -> Tensor:
    if not out.dtype.is_floating_point:
        return self
    if decimals == 0:
        return kernel(b, "round", out.dtype, out.shape, out.dtype, self)
    # The kernel takes the power of ten, negative where it divides by it.
    power = math.copysign(10.0 ** abs(decimals), decimals)
    return kernel(b, "round_decimals", out.dtype, out.shape, out.dtype, self, power)


@lower("aten.logit.default", "aten.special_logit.default")
def logit(b: Builder, out: Outputs, self: Tensor, eps: float | None = None) -> Tensor:
    return kernel(b, "logit", out.dtype, out.shape, out.dtype, self, -1.0 if eps is None else eps)


@lower("aten.deg2rad.default")
def deg2rad(b: Builder, out: Outputs, self: Tensor) -> Tensor:
    return kernel(b, "mul", out.dtype, out.shape, out.dtype, self, math.pi / 180)


@lower("aten.rad2deg.default")
def rad2deg(b: Builder, out: Outputs, self: Tensor) -> Tensor:
    return kernel(b, "mul", out.dtype, out.shape, out.dtype, self, 180 / math.pi)


@lower("aten.nan_to_num.default")
def nan_to_num(
    b: Builder,
    out: Outputs,
    self: Tensor,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Tensor:
    if not out.dtype.is_floating_point:
        return self
    largest = _largest(out.dtype)
    high = largest if posinf is None else posinf
    low = -largest if neginf is None else neginf
    return kernel(b, "nan_to_num", out.dtype, out.shape, out.dtype, self, nan or 0.0, high, low)


def _largest(dtype: ScalarType) -> float:
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype.numpy).max)


# --- activations with parameters ---


@lower("aten.relu6.default")
def relu6(b: Builder, out: Outputs, self: Tensor) -> Tensor:
    return kernel(b, "clamp", out.dtype, out.shape, out.dtype, self, 0, 6)


@lower("aten.hardtanh.default", check=_numbers("min_val", "max_val"))
def hardtanh(b: Builder, out: Outputs, self: Tensor, min_val: Any = -1, max_val: Any = 1) -> Tensor:
    return kernel(b, "clamp", out.dtype, out.shape, out.dtype, self, min_val, max_val)


@lower("aten.elu.default", check=_numbers("alpha", "scale", "input_scale"))
def elu(b: Builder, out: Outputs, self: Tensor, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Tensor:
    return kernel(b, "elu", out.dtype, out.shape, out.dtype, self, alpha, scale, input_scale)


@lower("aten.celu.default", check=_numbers("alpha"))
def celu(b: Builder, out: Outputs, self: Tensor, alpha: Any = 1.0) -> Tensor:
    return kernel(b, "elu", out.dtype, out.shape, out.dtype, self, alpha, 1.0, 1.0 / alpha)


@lower("aten.selu.default")
def selu(b: Builder, out: Outputs, self: Tensor) -> Tensor:
    # Klambauer et al. 2017, "Self-Normalizing Neural Networks".
    alpha, scale = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
    return kernel(b, "elu", out.dtype, out.shape, out.dtype, self, alpha, scale, 1.0)


@lower("aten.leaky_relu.default", check=_numbers("negative_slope"))
def leaky_relu(b: Builder, out: Outputs, self: Tensor, negative_slope: Any = 0.01) -> Tensor:
    return kernel(b, "leaky_relu", out.dtype, out.shape, out.dtype, self, negative_slope)


@lower("aten.prelu.default", "aten._prelu_kernel.default")
def prelu(b: Builder, out: Outputs, self: Tensor, weight: Tensor) -> Tensor:
    if weight.rank != self.rank:  # one per channel
        channels = weight.numel
        shape = [1] * self.rank
        if self.rank > 1:
            shape[1] = channels
        weight = b.view(weight, shape)
    return kernel(b, "leaky_relu", out.dtype, out.shape, out.dtype, self, weight)


@lower("aten.softplus.default", check=_numbers("beta", "threshold"))
def softplus(b: Builder, out: Outputs, self: Tensor, beta: Any = 1, threshold: Any = 20) -> Tensor:
    return kernel(b, "softplus", out.dtype, out.shape, out.dtype, self, beta, threshold)


@lower("aten.threshold.default", check=_numbers("threshold", "value"))
def threshold(b: Builder, out: Outputs, self: Tensor, threshold: Any, value: Any) -> Tensor:
    return kernel(b, "threshold", out.dtype, out.shape, out.dtype, self, threshold, value)


@lower("aten.hardshrink.default", check=_numbers("lambd"))
def hardshrink(b: Builder, out: Outputs, self: Tensor, lambd: Any = 0.5) -> Tensor:
    return kernel(b, "hardshrink", out.dtype, out.shape, out.dtype, self, lambd)


@lower("aten.softshrink.default", check=_numbers("lambd"))
def softshrink(b: Builder, out: Outputs, self: Tensor, lambd: Any = 0.5) -> Tensor:
    return kernel(b, "softshrink", out.dtype, out.shape, out.dtype, self, lambd)


@lower("aten.glu.default")
def glu(b: Builder, out: Outputs, self: Tensor, dim: int = -1) -> Tensor:
    axis = axis_of(dim, self.rank)
    half = self.shape[axis] // 2
    gate = kernel(b, "sigmoid", out.dtype, out.shape, out.dtype, self.slice(axis, half, 1, half))
    return _arithmetic(b, "mul", out.dtype, out.shape, self.slice(axis, 0, 1, half), gate)


# --- two operands ---


def _scaled_sum(name: str, swapped: bool, *ops: str) -> None:
    """`self + alpha * other`, or with subtraction."""

    @lower(*ops, check=_numbers("alpha"))
    def function(b: Builder, out: Outputs, self: Operand, other: Operand, alpha: Any = 1) -> Tensor:
        x, y = (other, self) if swapped else (self, other)
        if alpha == 1:
            return _arithmetic(b, name, out.dtype, out.shape, x, y)
        return kernel(b, f"{name}_scaled", out.dtype, out.shape, out.dtype, x, y, alpha)


_scaled_sum("add", False, "aten.add.Tensor", "aten.add.Scalar")
_scaled_sum("sub", False, "aten.sub.Tensor", "aten.sub.Scalar")
_scaled_sum("sub", True, "aten.rsub.Tensor", "aten.rsub.Scalar")


def _binary(name: str, *ops: str) -> None:
    """A function computed in the result's type."""

    @lower(*ops)
    def function(b: Builder, out: Outputs, self: Operand, other: Operand) -> Tensor:
        return _arithmetic(b, name, out.dtype, out.shape, self, other)


def _comparison(name: str, *ops: str) -> None:
    """A function computed in the operands' common type."""

    @lower(*ops)
    def function(b: Builder, out: Outputs, self: Operand, other: Operand) -> Tensor:
        return kernel(b, name, out.dtype, out.shape, result_type(self, other), self, other)


_binary("mul", "aten.mul.Tensor", "aten.mul.Scalar")
_binary("div", "aten.div.Tensor", "aten.div.Scalar", "aten.true_divide.Tensor")
_binary("div_floor", "aten.floor_divide.default", "aten.floor_divide.Scalar")
_binary("fmod", "aten.fmod.Tensor", "aten.fmod.Scalar")
_binary("remainder", "aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor")
_binary("copysign", "aten.copysign.Tensor", "aten.copysign.Scalar")
for _name in ("maximum", "minimum", "fmax", "fmin", "atan2", "hypot", "nextafter", "logaddexp", "gcd"):
    _binary(_name, f"aten.{_name}.default")
_binary("xlogy", "aten.xlogy.Tensor")
for _name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    _binary(_name, f"aten.{_name}.Tensor", f"aten.{_name}.Scalar")
_binary(
    "shift_left",
    *("aten.bitwise_left_shift.Tensor", "aten.bitwise_left_shift.Tensor_Scalar"),
    *("aten.__lshift__.Tensor", "aten.__lshift__.Scalar"),
)
_binary(
    "shift_right",
    *("aten.bitwise_right_shift.Tensor", "aten.bitwise_right_shift.Tensor_Scalar"),
    *("aten.__rshift__.Tensor", "aten.__rshift__.Scalar"),
)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _comparison(_name, f"aten.{_name}.Tensor", f"aten.{_name}.Scalar")
for _name in ("logical_and", "logical_or", "logical_xor"):
    _comparison(_name, f"aten.{_name}.default")


@lower("aten.heaviside.default")
def heaviside(b: Builder, out: Outputs, self: Tensor, values: Tensor) -> Tensor:
    return kernel(b, "heaviside", out.dtype, out.shape, out.dtype, self, values)


@lower("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div_mode(b: Builder, out: Outputs, self: Tensor, other: Operand, rounding_mode: str | None) -> Tensor:
    name = {None: "div", "trunc": "div_trunc", "floor": "div_floor"}[rounding_mode]
    return _arithmetic(b, name, out.dtype, out.shape, self, other)


@lower("aten.pow.Tensor_Tensor", "aten.pow.Tensor_Scalar", "aten.pow.Scalar")
def power(b: Builder, out: Outputs, self: Operand, exponent: Operand) -> Tensor:
    if not isinstance(exponent, Tensor) and isinstance(self, Tensor) and exponent == 2:
        return kernel(b, "square", out.dtype, out.shape, out.dtype, self)
    return kernel(b, "pow", out.dtype, out.shape, out.dtype, self, exponent)


# --- three and more operands ---


@lower("aten.lerp.Scalar", "aten.lerp.Tensor")
def lerp(b: Builder, out: Outputs, self: Tensor, end: Tensor, weight: Operand) -> Tensor:
    return kernel(b, "lerp", out.dtype, out.shape, out.dtype, self, end, weight)


@lower("aten.addcmul.default", check=_numbers("value"))
def addcmul(b: Builder, out: Outputs, self: Tensor, tensor1: Tensor, tensor2: Tensor, value: Any = 1) -> Tensor:
    return kernel(b, "addcmul", out.dtype, out.shape, out.dtype, self, tensor1, tensor2, value)


@lower("aten.addcdiv.default", check=_numbers("value"))
def addcdiv(b: Builder, out: Outputs, self: Tensor, tensor1: Tensor, tensor2: Tensor, value: Any = 1) -> Tensor:
    return kernel(b, "addcdiv", out.dtype, out.shape, out.dtype, self, tensor1, tensor2, value)


# --- choice ---


@lower("aten.clamp.default", "aten.clamp.Tensor")
def clamp(b: Builder, out: Outputs, self: Tensor, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    if min is None:
        assert max is not None
        return kernel(b, "minimum", out.dtype, out.shape, out.dtype, self, max)
    if max is None:
        return kernel(b, "maximum", out.dtype, out.shape, out.dtype, self, min)
    return kernel(b, "clamp", out.dtype, out.shape, out.dtype, self, min, max)


@lower("aten.clamp_min.default", "aten.clamp_min.Tensor")
def clamp_min(b: Builder, out: Outputs, self: Tensor, min: Operand) -> Tensor:
    return kernel(b, "maximum", out.dtype, out.shape, out.dtype, self, min)


@lower("aten.clamp_max.default", "aten.clamp_max.Tensor")
def clamp_max(b: Builder, out: Outputs, self: Tensor, max: Operand) -> Tensor:
    return kernel(b, "minimum", out.dtype, out.shape, out.dtype, self, max)


@lower("aten.where.self", "aten.where.Scalar", "aten.where.ScalarSelf", "aten.where.ScalarOther")
def where(b: Builder, out: Outputs, condition: Tensor, self: Operand, other: Operand) -> Tensor:
    return choose(b, out.dtype, out.shape, condition, self, other)


@lower("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(b: Builder, out: Outputs, self: Tensor, mask: Tensor, value: Operand) -> Tensor:
    return choose(b, out.dtype, out.shape, mask, value, self)


def choose(b: Builder, dtype: ScalarType, shape: tuple[int, ...], condition: Tensor, x: Operand, y: Operand) -> Tensor:
    """`x` where `condition`, else `y`."""
    return kernel(b, "where", dtype, shape, dtype, condition, x, y)
