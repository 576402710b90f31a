"""Shape rules of the family `elementwise`: one result element per (broadcast) argument element."""

from __future__ import annotations

from ptn_format.dtypes import ScalarType

from ptn_runtime.shapes import Number, Tensor, TensorSpec, shape_rule
from ptn_runtime.shapes._broadcast import broadcast, normalize_axis, require
from ptn_runtime.shapes._promotion import as_number, float_type, is_integral, result_type

BOOL = ScalarType.BOOL


def _require_integral(*operands: Tensor | Number) -> ScalarType:
    dtype = result_type(*operands)
    if not (dtype is BOOL or is_integral(dtype)):
        raise ValueError(f"expected integers or bools, got {dtype.torch_name}")
    return dtype


def _require_float(tensor: Tensor) -> TensorSpec:
    if not (tensor.dtype.is_floating_point):
        raise ValueError(f"expected a floating-point tensor, got {tensor.dtype.torch_name}")
    return TensorSpec(tensor.dtype, tensor.shape)


# --- one argument -----------------------------------------------------------------------------------------------


@shape_rule(
    *(
        f"aten.{name}.default"
        for name in [
            "acos",
            "acosh",
            "asin",
            "asinh",
            "atan",
            "atanh",
            "cos",
            "cosh",
            "deg2rad",
            "digamma",
            "erf",
            "erfc",
            "erfinv",
            "exp",
            "exp2",
            "expm1",
            "i0",
            "lgamma",
            "log",
            "log10",
            "log1p",
            "log2",
            "rad2deg",
            "reciprocal",
            "rsqrt",
            "sigmoid",
            "sin",
            "sinc",
            "sinh",
            "special_expm1",
            "special_entr",
            "sqrt",
            "tan",
            "tanh",
        ]
    )
)
def unary_float(self: Tensor) -> TensorSpec:
    return TensorSpec(float_type(self.dtype), self.shape)


@shape_rule("aten.logit.default", "aten.special_logit.default")
def logit(self: Tensor, eps: float | None = None) -> TensorSpec:
    return TensorSpec(float_type(self.dtype), self.shape)


@shape_rule("aten.sign.default", "aten.sgn.default", "aten.relu.default")
def unary_same(self: Tensor) -> TensorSpec:
    return TensorSpec(self.dtype, self.shape)


@shape_rule("aten.abs.default", "aten.ceil.default", "aten.floor.default", "aten.round.default", "aten.trunc.default")
def unary_rounding(self: Tensor) -> TensorSpec:
    return TensorSpec(self.dtype, self.shape)


@shape_rule("aten.neg.default", "aten.positive.default")
def neg(self: Tensor) -> TensorSpec:
    require(self.dtype is not BOOL, "not defined for bool; use logical_not")
    return TensorSpec(self.dtype, self.shape)


@shape_rule("aten.square.default")
def square(self: Tensor) -> TensorSpec:
    return TensorSpec(result_type(self, 2), self.shape)


@shape_rule("aten.frac.default")
def frac(self: Tensor) -> TensorSpec:
    return _require_float(self)


@shape_rule("aten.round.decimals")
def round_decimals(self: Tensor, *, decimals: int) -> TensorSpec:
    require(decimals == 0 or self.dtype.is_floating_point, "rounding to decimals needs a floating-point tensor")
    return TensorSpec(self.dtype, self.shape)


@shape_rule("aten.bitwise_not.default")
def bitwise_not(self: Tensor) -> TensorSpec:
    return TensorSpec(_require_integral(self), self.shape)


@shape_rule(
    "aten.isnan.default",
    "aten.isinf.default",
    "aten.isfinite.default",
    "aten.isposinf.default",
    "aten.isneginf.default",
    "aten.signbit.default",
    "aten.logical_not.default",
)
def predicate(self: Tensor) -> TensorSpec:
    return TensorSpec(BOOL, self.shape)


@shape_rule("aten.nan_to_num.default")
def nan_to_num(
    self: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> TensorSpec:
    return TensorSpec(self.dtype, self.shape)


# --- activations ------------------------------------------------------------------------------------------------


@shape_rule("aten.silu.default", "aten.mish.default", "aten.selu.default", "aten.log_sigmoid.default")
def activation(self: Tensor) -> TensorSpec:
    return _require_float(self)


@shape_rule("aten.hardswish.default", "aten.hardsigmoid.default")
def hard_activation(self: Tensor) -> TensorSpec:
    return _require_float(self)


@shape_rule("aten.relu6.default")
def relu6(self: Tensor) -> TensorSpec:
    return TensorSpec(self.dtype, self.shape)


@shape_rule("aten.log_sigmoid_forward.default")
def log_sigmoid_forward(self: Tensor) -> tuple[TensorSpec, TensorSpec]:
    result = _require_float(self)
    return result, result


@shape_rule("aten.gelu.default")
def gelu(self: Tensor, *, approximate: str = "none") -> TensorSpec:
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate must be 'none' or 'tanh', got {approximate!r}")
    return _require_float(self)


@shape_rule("aten.hardtanh.default")
def hardtanh(self: Tensor, min_val: Number = -1, max_val: Number = 1) -> TensorSpec:
    require(self.dtype is not BOOL, "not defined for bool")
    return TensorSpec(self.dtype, self.shape)


@shape_rule("aten.elu.default")
def elu(self: Tensor, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> TensorSpec:
    return _require_float(self)


@shape_rule("aten.celu.default")
def celu(self: Tensor, alpha: Number = 1.0) -> TensorSpec:
    return _require_float(self)


@shape_rule("aten.leaky_relu.default")
def leaky_relu(self: Tensor, negative_slope: Number = 0.01) -> TensorSpec:
    return _require_float(self)


@shape_rule("aten.softplus.default")
def softplus(self: Tensor, beta: Number = 1, threshold: Number = 20) -> TensorSpec:
    return _require_float(self)


@shape_rule("aten.threshold.default")
def threshold(self: Tensor, threshold: Number, value: Number) -> TensorSpec:
    return TensorSpec(self.dtype, self.shape)


@shape_rule("aten.hardshrink.default", "aten.softshrink.default")
def shrink(self: Tensor, lambd: Number = 0.5) -> TensorSpec:
    return _require_float(self)


@shape_rule("aten.prelu.default", "aten._prelu_kernel.default")
def prelu(self: Tensor, weight: Tensor) -> TensorSpec:
    if self.dtype is not weight.dtype:
        raise ValueError(f"self is {self.dtype.torch_name} but weight is {weight.dtype.torch_name}")
    return _require_float(self)


@shape_rule("aten.glu.default")
def glu(self: Tensor, dim: int = -1) -> TensorSpec:
    axis = normalize_axis(dim, len(self.shape))
    if self.shape[axis] % 2 != 0:
        raise ValueError(f"axis {axis} has {self.shape[axis]} elements, an odd number")
    halved = (*self.shape[:axis], self.shape[axis] // 2, *self.shape[axis + 1 :])
    return TensorSpec(_require_float(self).dtype, halved)


# --- arithmetic -------------------------------------------------------------------------------------------------


@shape_rule("aten.add.Tensor", "aten.sub.Tensor", "aten.rsub.Tensor")
def add(self: Tensor, other: Tensor | Number, *, alpha: Number = 1) -> TensorSpec:
    return TensorSpec(result_type(self, other), broadcast(self, other))


@shape_rule("aten.add.Scalar", "aten.sub.Scalar", "aten.rsub.Scalar")
def add_scalar(self: Tensor, other: Number, alpha: Number = 1) -> TensorSpec:
    return TensorSpec(result_type(self, as_number(other)), self.shape)


@shape_rule(
    "aten.mul.Tensor",
    "aten.remainder.Tensor",
    "aten.fmod.Tensor",
    "aten.floor_divide.default",
    "aten.fmin.default",
    "aten.fmax.default",
    "aten.gcd.default",
    "aten.lcm.default",
)
def mul(self: Tensor, other: Tensor | Number) -> TensorSpec:
    return TensorSpec(result_type(self, other), broadcast(self, other))


@shape_rule("aten.maximum.default", "aten.minimum.default")
def maximum(self: Tensor, other: Tensor) -> TensorSpec:
    return TensorSpec(result_type(self, other), broadcast(self, other))


@shape_rule("aten.mul.Scalar", "aten.remainder.Scalar", "aten.fmod.Scalar", "aten.floor_divide.Scalar")
def mul_scalar(self: Tensor, other: Number) -> TensorSpec:
    return TensorSpec(result_type(self, as_number(other)), self.shape)


@shape_rule("aten.remainder.Scalar_Tensor")
def remainder_of_scalar(self: Number, other: Tensor) -> TensorSpec:
    return TensorSpec(result_type(as_number(self), other), other.shape)


@shape_rule(
    "aten.div.Tensor",
    "aten.true_divide.Tensor",
    "aten.atan2.default",
    "aten.xlogy.Tensor",
    "aten.copysign.Tensor",
    "aten.ldexp.Tensor",
)
def div(self: Tensor, other: Tensor | Number) -> TensorSpec:
    return TensorSpec(float_type(result_type(self, other)), broadcast(self, other))


@shape_rule("aten.hypot.default", "aten.logaddexp.default", "aten.logaddexp2.default")
def binary_float(self: Tensor, other: Tensor) -> TensorSpec:
    dtype = result_type(self, other)
    if not (dtype.is_floating_point):
        raise ValueError(f"expected floating-point tensors, got {dtype.torch_name}")
    return TensorSpec(dtype, broadcast(self, other))


@shape_rule("aten.nextafter.default")
def nextafter(self: Tensor, other: Tensor) -> TensorSpec:
    dtype = result_type(self, other)
    if not (dtype.is_floating_point):
        raise ValueError(f"expected floating-point tensors, got {dtype.torch_name}")
    return TensorSpec(dtype, broadcast(self, other))


@shape_rule("aten.heaviside.default")
def heaviside(self: Tensor, values: Tensor) -> TensorSpec:
    if self.dtype is not values.dtype:
        raise ValueError(f"self is {self.dtype.torch_name} but values is {values.dtype.torch_name}")
    return TensorSpec(self.dtype, broadcast(self, values))


@shape_rule("aten.div.Scalar", "aten.copysign.Scalar")
def div_scalar(self: Tensor, other: Number) -> TensorSpec:
    return TensorSpec(float_type(result_type(self, as_number(other))), self.shape)


def _rounded_quotient(self: Tensor, other: Tensor | Number, rounding_mode: str | None) -> TensorSpec:
    if rounding_mode not in (None, "trunc", "floor"):
        raise ValueError(f"rounding_mode must be None, 'trunc' or 'floor', got {rounding_mode!r}")
    dtype = result_type(self, other)
    return TensorSpec(float_type(dtype) if rounding_mode is None else dtype, broadcast(self, other))


@shape_rule("aten.div.Tensor_mode")
def div_mode(self: Tensor, other: Tensor | Number, *, rounding_mode: str | None) -> TensorSpec:
    return _rounded_quotient(self, other, rounding_mode)


@shape_rule("aten.div.Scalar_mode")
def div_scalar_mode(self: Tensor, other: Number, *, rounding_mode: str | None) -> TensorSpec:
    return _rounded_quotient(self, as_number(other), rounding_mode)


@shape_rule("aten.pow.Tensor_Tensor")
def pow_tensor(self: Tensor, exponent: Tensor | Number) -> TensorSpec:
    return TensorSpec(result_type(self, exponent), broadcast(self, exponent))


@shape_rule("aten.pow.Tensor_Scalar")
def pow_scalar(self: Tensor, exponent: Number) -> TensorSpec:
    dtype = result_type(self, as_number(exponent))
    negative = isinstance(exponent, int) and exponent < 0
    if negative and is_integral(dtype):
        raise ValueError(f"an integer tensor cannot be raised to {exponent}; cast it to float")
    return TensorSpec(dtype, self.shape)


@shape_rule("aten.pow.Scalar")
def pow_of_scalar(self: Number, exponent: Tensor) -> TensorSpec:
    return TensorSpec(result_type(as_number(self), exponent), exponent.shape)


@shape_rule("aten.lerp.Scalar")
def lerp_scalar(self: Tensor, end: Tensor, weight: Number) -> TensorSpec:
    if self.dtype is not end.dtype:
        raise ValueError(f"self is {self.dtype.torch_name} but end is {end.dtype.torch_name}")
    return TensorSpec(_require_float(self).dtype, broadcast(self, end))


@shape_rule("aten.lerp.Tensor")
def lerp(self: Tensor, end: Tensor, weight: Tensor) -> TensorSpec:
    if self.dtype is not end.dtype:
        raise ValueError(f"self is {self.dtype.torch_name} but end is {end.dtype.torch_name}")
    return TensorSpec(_require_float(self).dtype, broadcast(self, end, weight))


@shape_rule("aten.addcmul.default")
def addcmul(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> TensorSpec:
    return TensorSpec(result_type(self, tensor1, tensor2), broadcast(self, tensor1, tensor2))


@shape_rule("aten.addcdiv.default")
def addcdiv(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> TensorSpec:
    dtype = result_type(self, tensor1, tensor2)
    require(dtype.is_floating_point, "integer division with addcdiv is not supported; cast to float")
    return TensorSpec(dtype, broadcast(self, tensor1, tensor2))


# --- bits, logic, comparison ------------------------------------------------------------------------------------


@shape_rule(
    "aten.bitwise_and.Tensor",
    "aten.bitwise_or.Tensor",
    "aten.bitwise_xor.Tensor",
    "aten.bitwise_left_shift.Tensor",
    "aten.bitwise_right_shift.Tensor",
    "aten.__lshift__.Tensor",
    "aten.__rshift__.Tensor",
)
def bitwise(self: Tensor, other: Tensor | Number) -> TensorSpec:
    return TensorSpec(_require_integral(self, other), broadcast(self, other))


@shape_rule(
    "aten.bitwise_and.Scalar",
    "aten.bitwise_or.Scalar",
    "aten.bitwise_xor.Scalar",
    "aten.bitwise_left_shift.Tensor_Scalar",
    "aten.bitwise_right_shift.Tensor_Scalar",
    "aten.__lshift__.Scalar",
    "aten.__rshift__.Scalar",
)
def bitwise_scalar(self: Tensor, other: Number) -> TensorSpec:
    return TensorSpec(_require_integral(self, as_number(other)), self.shape)


@shape_rule("aten.logical_and.default", "aten.logical_or.default", "aten.logical_xor.default")
def logical(self: Tensor, other: Tensor) -> TensorSpec:
    return TensorSpec(BOOL, broadcast(self, other))


@shape_rule(*(f"aten.{name}.Tensor" for name in ("eq", "ne", "lt", "le", "gt", "ge")))
def compare(self: Tensor, other: Tensor | Number) -> TensorSpec:
    return TensorSpec(BOOL, broadcast(self, other))


@shape_rule(*(f"aten.{name}.Scalar" for name in ("eq", "ne", "lt", "le", "gt", "ge")))
def compare_scalar(self: Tensor, other: Number) -> TensorSpec:
    return TensorSpec(BOOL, self.shape)


# --- choice -----------------------------------------------------------------------------------------------------


@shape_rule("aten.clamp.default")
def clamp(self: Tensor, min: Number | None = None, max: Number | None = None) -> TensorSpec:
    bounds = [as_number(bound) for bound in (min, max) if bound is not None]
    require(bool(bounds), "at least one of min and max must be given")
    return TensorSpec(result_type(self, *bounds), self.shape)


@shape_rule("aten.clamp.Tensor")
def clamp_tensor(self: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> TensorSpec:
    bounds = [bound for bound in (min, max) if bound is not None]
    require(bool(bounds), "at least one of min and max must be given")
    return TensorSpec(result_type(self, *bounds), broadcast(self, *bounds))


@shape_rule("aten.clamp_min.default")
def clamp_min(self: Tensor, min: Number) -> TensorSpec:
    return TensorSpec(result_type(self, as_number(min)), self.shape)


@shape_rule("aten.clamp_max.default")
def clamp_max(self: Tensor, max: Number) -> TensorSpec:
    return TensorSpec(result_type(self, as_number(max)), self.shape)


@shape_rule("aten.clamp_min.Tensor")
def clamp_min_tensor(self: Tensor, min: Tensor) -> TensorSpec:
    return TensorSpec(result_type(self, min), broadcast(self, min))


@shape_rule("aten.clamp_max.Tensor")
def clamp_max_tensor(self: Tensor, max: Tensor) -> TensorSpec:
    return TensorSpec(result_type(self, max), broadcast(self, max))


def _where(condition: Tensor, self: Tensor | Number, other: Tensor | Number) -> TensorSpec:
    if condition.dtype not in (BOOL, ScalarType.BYTE):
        raise ValueError(f"the condition must be bool, got {condition.dtype.torch_name}")
    return TensorSpec(result_type(self, other), broadcast(condition, self, other))


@shape_rule("aten.where.self")
def where(condition: Tensor, self: Tensor | Number, other: Tensor | Number) -> TensorSpec:
    return _where(condition, self, other)


@shape_rule("aten.where.Scalar")
def where_scalar(condition: Tensor, self: Number, other: Number) -> TensorSpec:
    return _where(condition, as_number(self), as_number(other))


@shape_rule("aten.where.ScalarSelf")
def where_scalar_self(condition: Tensor, self: Number, other: Tensor) -> TensorSpec:
    return _where(condition, as_number(self), other)


@shape_rule("aten.where.ScalarOther")
def where_scalar_other(condition: Tensor, self: Tensor, other: Number) -> TensorSpec:
    return _where(condition, self, as_number(other))


@shape_rule("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(self: Tensor, mask: Tensor, value: Tensor | Number) -> TensorSpec:
    if mask.dtype is not BOOL:
        raise ValueError(f"the mask must be bool, got {mask.dtype.torch_name}")
    if isinstance(value, TensorSpec) and value.shape:
        raise ValueError(f"the value must be a number or a tensor of no axes, got {list(value.shape)}")
    return TensorSpec(self.dtype, broadcast(self, mask))


@shape_rule("aten.isin.Tensor_Tensor")
def isin(elements: Tensor, test_elements: Tensor, *, assume_unique: bool = False, invert: bool = False) -> TensorSpec:
    return TensorSpec(BOOL, elements.shape)


@shape_rule("aten.isclose.default")
def isclose(
    self: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> TensorSpec:
    return TensorSpec(BOOL, broadcast(self, other))


@shape_rule("aten.frexp.Tensor")
def frexp(self: Tensor) -> tuple[TensorSpec, TensorSpec]:
    if not self.dtype.is_floating_point:
        raise ValueError(f"self must be floating point, got {self.dtype.torch_name}")
    return TensorSpec(self.dtype, self.shape), TensorSpec(ScalarType.INT, self.shape)
