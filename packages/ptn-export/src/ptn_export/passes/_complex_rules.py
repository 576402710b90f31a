"""What each operator on complex tensors is in real numbers.

A rule gets a `Writer` and the arguments of the call, complex tensors as `Complex`. It returns the result: a `Complex`
or a real node. Formulas keep to what PyTorch computes for finite numbers, overflow included (`hypot`, scaled division);
products with infinite parts may give infinities where PyTorch gives NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from ptn_export.passes._complex_values import REAL_TYPES, Complex, NoRealFormError, Part, Writer, as_real_value
from ptn_export.passes._graph import is_call, operand, sizes_of, tensor_of

__all__ = ["PARTWISE", "RULES"]

_aten = torch.ops.aten

Rule = Callable[..., Complex | fx.Node]
RULES: dict[Any, Rule] = {}

PARTWISE: Mapping[Any, tuple[str, ...]] = {
    # Operators that do the same to both parts, with the arguments that hold elements of the result.
    _aten._unsafe_index_put.default: ("self", "values"),
    _aten._unsafe_view.default: ("self",),
    _aten.as_strided.default: ("self",),
    _aten.cat.default: ("tensors",),
    _aten.constant_pad_nd.default: ("self", "value"),
    _aten.copy.default: ("self", "src"),
    _aten.cumsum.default: ("self",),
    _aten.diagonal.default: ("self",),
    _aten.expand.default: ("self",),
    _aten.flip.default: ("self",),
    _aten.gather.default: ("self",),
    _aten.index.Tensor: ("self",),
    _aten.index_put.default: ("self", "values"),
    _aten.index_select.default: ("self",),
    _aten.masked_scatter.default: ("self", "source"),
    _aten.mean.default: ("self",),
    _aten.mean.dim: ("self",),
    _aten.permute.default: ("self",),
    _aten.repeat.default: ("self",),
    _aten.reshape.default: ("self",),
    _aten.roll.default: ("self",),
    _aten.scatter.src: ("self", "src"),
    _aten.scatter.value: ("self", "value"),
    _aten.scatter_add.default: ("self", "src"),
    _aten.select.int: ("self",),
    _aten.select_scatter.default: ("self", "src"),
    _aten.slice.Tensor: ("self",),
    _aten.slice_scatter.default: ("self", "src"),
    _aten.split_with_sizes.default: ("self",),
    _aten.squeeze.default: ("self",),
    _aten.squeeze.dim: ("self",),
    _aten.squeeze.dims: ("self",),
    _aten.sum.default: ("self",),
    _aten.sum.dim_IntList: ("self",),
    _aten.transpose.int: ("self",),
    _aten.tril.default: ("self",),
    _aten.triu.default: ("self",),
    _aten.unbind.int: ("self",),
    _aten.unfold.default: ("self",),
    _aten.unsqueeze.default: ("self",),
    _aten.view.default: ("self",),
    _aten.where.self: ("self", "other"),
}


def _rule(*targets: Any) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(targets, rule))
        return rule

    return register


# Between real and complex


@_rule(_aten.complex.default)
def _complex(w: Writer, real: fx.Node, imag: fx.Node) -> Complex:
    return w.result(real, imag)


@_rule(_aten.polar.default)
def _polar(w: Writer, abs: fx.Node, angle: fx.Node) -> Complex:
    # `ones_like(angle)` is how a radius of 1 has to be written.
    filled = is_call(abs, _aten.full_like.default, _aten.full.default)
    radius = operand(abs, 1) if filled and isinstance(operand(abs, 1), int | float) else abs
    return w.result(*_turned(w, radius, angle))


def _turned(w: Writer, radius: Part, angle: Part) -> tuple[Part, Part]:
    """`radius * exp(i * angle)`."""
    if not isinstance(angle, fx.Node):
        return w.mul(radius, math.cos(angle)), w.mul(radius, math.sin(angle))
    return w.mul(radius, w(_aten.cos.default, angle)), w.mul(radius, w(_aten.sin.default, angle))


@_rule(_aten.view_as_complex.default)
def _view_as_complex(w: Writer, self: fx.Node) -> Complex:
    return Complex(w.dtype, joint=self)


@_rule(_aten.view_as_real.default)
def _view_as_real(w: Writer, self: Complex) -> fx.Node:
    return w.joint(self)


@_rule(_aten.view.dtype)
def _view_dtype(w: Writer, self: Any, dtype: torch.dtype) -> Complex | fx.Node:
    if not isinstance(self, Complex):
        sizes = sizes_of(self, w.node)[:-1]
        return Complex(w.dtype, joint=w(_aten.view.default, self, [*sizes, -1, 2]))
    if dtype in REAL_TYPES and REAL_TYPES[dtype] is self.dtype:
        return self
    if dtype is not self.dtype:
        raise NoRealFormError(f"it reads the bytes of a complex tensor as {str(dtype).removeprefix('torch.')}")
    joint = w.joint(self)
    return w(_aten.view.default, joint, [*sizes_of(joint, w.node)[:-2], -1])


@_rule(_aten._to_copy.default)
def _to_copy(w: Writer, self: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Complex | fx.Node:
    value = tensor_of(w.node)
    assert value is not None
    if value.dtype.is_complex:
        return w.result(*w.parts(self))
    if value.dtype is torch.bool:
        return _ne(w, self, 0)
    re, _im = w.nodes(self)
    return w(_aten._to_copy.default, re, dtype=dtype)


@_rule(_aten.scalar_tensor.default)
def _scalar_tensor(w: Writer, s: complex, **_: Any) -> Complex:
    re, im = (w(_aten.scalar_tensor.default, float(x), dtype=w.dtype) for x in (s.real, s.imag))
    return Complex(w.dtype, (re, im))


@_rule(_aten.full.default)
def _full(w: Writer, size: Any, fill_value: complex, **_: Any) -> Complex:
    re, im = (w(_aten.full.default, size, float(x), dtype=w.dtype) for x in (fill_value.real, fill_value.imag))
    return Complex(w.dtype, (re, im))


@_rule(_aten.full_like.default)
def _full_like(w: Writer, self: Any, fill_value: complex, **_: Any) -> Complex | fx.Node:
    pattern = next(part for part in w.parts(self) if isinstance(part, fx.Node))
    value = tensor_of(w.node)
    assert value is not None
    if not value.dtype.is_complex:
        return w(_aten.full_like.default, pattern, fill_value, dtype=value.dtype)
    re, im = (w(_aten.full_like.default, pattern, float(x), dtype=w.dtype) for x in (fill_value.real, fill_value.imag))
    return Complex(w.dtype, (re, im))


@_rule(_aten.abs.default)
def _abs(w: Writer, self: Complex) -> fx.Node:
    return w.apply(_aten.hypot.default, *w.parts(self))


@_rule(_aten.angle.default)
def _angle(w: Writer, self: Complex) -> fx.Node:
    re, im = w.parts(self)
    return w.apply(_aten.atan2.default, im, re)


@_rule(_aten.var.correction)
def _var(w: Writer, self: Complex, dim: Any = None, **options: Any) -> fx.Node:
    first, second = (w(_aten.var.correction, part, dim, **options) for part in w.nodes(self))
    return w(_aten.add.Tensor, first, second)


# Sums and products


@_rule(_aten._conj.default, _aten._conj_physical.default, _aten.conj_physical.default)
def _conj(w: Writer, self: Complex) -> Complex:
    re, im = w.parts(self)
    return w.result(re, w.neg(im))


@_rule(
    _aten.alias.default,
    _aten.clone.default,
    _aten.detach.default,
    _aten.lift_fresh_copy.default,
    _aten.positive.default,
    _aten.resolve_conj.default,
    _aten.resolve_neg.default,
)
def _same(w: Writer, self: Complex, **_: Any) -> Complex:  # noqa: ARG001  # as rules are called
    return self


@_rule(_aten.neg.default, _aten._neg_view.default)
def _neg(w: Writer, self: Complex) -> Complex:
    re, im = w.parts(self)
    return w.result(w.neg(re), w.neg(im))


@_rule(_aten.add.Tensor, _aten.add.Scalar)
def _add(w: Writer, self: Any, other: Any, alpha: complex = 1) -> Complex:
    a, b = w.parts(self)
    c, d = _product(w, w.parts(other), w.parts(alpha))
    return w.result(w.add(a, c), w.add(b, d))


@_rule(_aten.sub.Tensor, _aten.sub.Scalar)
def _sub(w: Writer, self: Any, other: Any, alpha: complex = 1) -> Complex:
    a, b = w.parts(self)
    c, d = _product(w, w.parts(other), w.parts(alpha))
    return w.result(w.sub(a, c), w.sub(b, d))


@_rule(_aten.mul.Tensor, _aten.mul.Scalar)
def _mul(w: Writer, self: Any, other: Any) -> Complex:
    if isinstance(other, int | float | complex) and other == 0:
        re, im = (w(_aten.mul.Tensor, part, 0.0) for part in w.nodes(self))
        return Complex(w.dtype, (re, im))
    return w.result(*_product(w, w.parts(self), w.parts(other)))


def _product(w: Writer, x: tuple[Part, Part], y: tuple[Part, Part]) -> tuple[Part, Part]:
    (a, b), (c, d) = x, y
    return w.sub(w.mul(a, c), w.mul(b, d)), w.add(w.mul(a, d), w.mul(b, c))


@_rule(_aten.div.Tensor, _aten.div.Scalar)
def _div(w: Writer, self: Any, other: Any) -> Complex:
    return w.result(*_quotient(w, w.parts(self), w.parts(other)))


@_rule(_aten.reciprocal.default)
def _reciprocal(w: Writer, self: Complex) -> Complex:
    return w.result(*_quotient(w, (1.0, 0.0), w.parts(self)))


def _quotient(w: Writer, x: tuple[Part, Part], y: tuple[Part, Part]) -> tuple[Part, Part]:
    """Both parts of the divisor are scaled by the larger, so that their squares stay in range."""
    (a, b), (c, d) = x, y
    if not isinstance(d, fx.Node) and d == 0:
        return w.div(a, c), w.div(b, c)
    if not isinstance(c, fx.Node) and not isinstance(d, fx.Node):
        inverse = 1 / complex(c, d)
        return _product(w, x, (inverse.real, inverse.imag))
    size = w.apply(_aten.maximum.default, *(_magnitude(w, part) for part in (c, d)))
    e, f = w.div(c, size), w.div(d, size)
    square = w.add(w.mul(c, e), w.mul(d, f))
    re = w.div(w.add(w.mul(a, e), w.mul(b, f)), square)
    return re, w.div(w.sub(w.mul(b, e), w.mul(a, f)), square)


def _magnitude(w: Writer, part: Part) -> Part:
    return w(_aten.abs.default, part) if isinstance(part, fx.Node) else abs(part)


# Comparisons


@_rule(_aten.eq.Tensor, _aten.eq.Scalar)
def _eq(w: Writer, self: Any, other: Any) -> fx.Node:
    (a, b), (c, d) = w.parts(self), w.parts(other)
    return w(_aten.logical_and.default, w.apply(_aten.eq.Tensor, a, c), w.apply(_aten.eq.Tensor, b, d))


@_rule(_aten.ne.Tensor, _aten.ne.Scalar)
def _ne(w: Writer, self: Any, other: Any) -> fx.Node:
    (a, b), (c, d) = w.parts(self), w.parts(other)
    return w(_aten.logical_or.default, w.apply(_aten.ne.Tensor, a, c), w.apply(_aten.ne.Tensor, b, d))


def _either(test: Any) -> Rule:
    def rule(w: Writer, self: Complex) -> fx.Node:
        re, im = w.nodes(self)
        return w(_aten.logical_or.default, w(test, re), w(test, im))

    return rule


RULES.update({test: _either(test) for test in (_aten.isnan.default, _aten.isinf.default)})


# Functions


@_rule(_aten.exp.default)
def _exp(w: Writer, self: Complex) -> Complex:
    return w.result(*_exponential(w, w.parts(self)))


def _exponential(w: Writer, z: tuple[Part, Part]) -> tuple[Part, Part]:
    re, im = z
    return _turned(w, w(_aten.exp.default, re) if isinstance(re, fx.Node) else math.exp(re), im)


def _logarithm(base: float) -> Rule:
    def rule(w: Writer, self: Complex) -> Complex:
        re, im = _natural_logarithm(w, w.parts(self))
        return w.result(w.mul(re, 1 / math.log(base)), w.mul(im, 1 / math.log(base)))

    return rule


def _natural_logarithm(w: Writer, z: tuple[Part, Part]) -> tuple[Part, Part]:
    re, im = z
    radius = w.apply(_aten.hypot.default, re, im)
    return w(_aten.log.default, radius), w.apply(_aten.atan2.default, im, re)


RULES.update({_aten.log.default: _logarithm(math.e), _aten.log2.default: _logarithm(2)})
RULES[_aten.log10.default] = _logarithm(10)


@_rule(_aten.sqrt.default)
def _sqrt(w: Writer, self: Complex) -> Complex:
    return w.result(*_root(w, self))


@_rule(_aten.rsqrt.default)
def _rsqrt(w: Writer, self: Complex) -> Complex:
    return w.result(*_quotient(w, (1.0, 0.0), _root(w, self)))


def _root(w: Writer, z: Complex) -> tuple[Part, Part]:
    """The root with a real part of at least 0; the half that would cancel is got by division from the other."""
    re, im = w.nodes(z)
    large = w.mul(w.add(w(_aten.hypot.default, re, im), w(_aten.abs.default, re)), 0.5)
    root = w.apply(_aten.sqrt.default, large)
    divisor = w(_aten.where.self, w(_aten.eq.Scalar, root, 0), w(_aten.full_like.default, root, 1.0), root)
    other = w.mul(w.div(im, divisor), 0.5)
    right = w(_aten.ge.Scalar, re, 0)
    return (
        w(_aten.where.self, right, root, w.apply(_aten.abs.default, other)),
        w(_aten.where.self, right, other, w(_aten.copysign.Tensor, root, im)),
    )


@_rule(_aten.pow.Tensor_Scalar)
def _pow_scalar(w: Writer, self: Complex, exponent: complex) -> Complex:
    z = w.parts(self)
    if exponent in (0.5, -0.5):
        root = _root(w, self)
        return w.result(*(root if exponent == 0.5 else _quotient(w, (1.0, 0.0), root)))
    if exponent == 0:
        return _full_like(w, self, 1.0)  # type: ignore[return-value]  # the result is complex
    if exponent == int(exponent.real) and abs(exponent) <= _LARGEST_POWER:
        power = _whole_power(w, z, abs(int(exponent.real)))
        return w.result(*(power if exponent.real > 0 else _quotient(w, (1.0, 0.0), power)))
    return _general_power(w, z, w.parts(exponent))


_LARGEST_POWER = 16


def _whole_power(w: Writer, z: tuple[Part, Part], exponent: int) -> tuple[Part, Part]:
    """By squaring."""
    if exponent == 1:
        return z
    half = _whole_power(w, z, exponent // 2)
    square = _product(w, half, half)
    return _product(w, square, z) if exponent % 2 else square


@_rule(_aten.pow.Tensor_Tensor, _aten.pow.Scalar)
def _pow(w: Writer, self: Any, exponent: Any) -> Complex:
    return _general_power(w, w.parts(self), w.parts(exponent))


def _general_power(w: Writer, base: tuple[Part, Part], exponent: tuple[Part, Part]) -> Complex:
    """`exp(exponent * log(base))`, where 0 to the power 0 is 1, and to every other 0."""
    if not any(isinstance(part, fx.Node) for part in base):
        number = complex(*base)  # type: ignore[arg-type]  # both are numbers
        if number == 0:
            raise NoRealFormError("its base is the number 0")
        logarithm: tuple[Part, Part] = (math.log(abs(number)), math.atan2(number.imag, number.real))
        return w.result(*_exponential(w, _product(w, exponent, logarithm)))
    radius = w.apply(_aten.hypot.default, *base)
    zero = w(_aten.eq.Scalar, radius, 0)
    safe = w(_aten.where.self, zero, w(_aten.full_like.default, radius, 1.0), radius)
    logarithm = (w(_aten.log.default, safe), w.apply(_aten.atan2.default, base[1], base[0]))
    re, im = _exponential(w, _product(w, exponent, logarithm))
    # What the power of 0 is: exp(0) where the exponent is 0.
    if any(isinstance(part, fx.Node) for part in exponent):
        none = w.apply(_aten.eq.Tensor, w.apply(_aten.hypot.default, *exponent), 0.0)
        ones = w(_aten._to_copy.default, none, dtype=w.dtype)
    else:
        ones = w(_aten.full_like.default, radius, float(exponent == (0.0, 0.0)))
    first = w(_aten.where.self, zero, ones, w.apply(_aten.add.Tensor, re, 0.0))
    return w.result(first, w(_aten.where.self, zero, w(_aten.full_like.default, radius, 0.0), im))


def _trigonometric(first: tuple[Any, Any], second: tuple[Any, Any], sign: int) -> Rule:
    """`f(a) g(b) + i h(a) k(b)` for `a + ib`."""

    def rule(w: Writer, self: Complex) -> Complex:
        a, b = w.nodes(self)
        re = w.mul(w(first[0], a), w(first[1], b))
        im = w.mul(w(second[0], a), w(second[1], b))
        return w.result(re, im if sign > 0 else w.neg(im))

    return rule


_SIN, _COS, _SINH, _COSH = (getattr(_aten, name).default for name in ("sin", "cos", "sinh", "cosh"))
RULES[_SIN] = _trigonometric((_SIN, _COSH), (_COS, _SINH), 1)
RULES[_COS] = _trigonometric((_COS, _COSH), (_SIN, _SINH), -1)
RULES[_SINH] = _trigonometric((_SINH, _COS), (_COSH, _SIN), 1)
RULES[_COSH] = _trigonometric((_COSH, _COS), (_SINH, _SIN), 1)


@_rule(_aten.tanh.default)
def _tanh(w: Writer, self: Complex) -> Complex:
    """`(t + i u) / (1 + i t u)` for t = tanh(a), u = tan(b)."""
    a, b = w.nodes(self)
    t, u = w(_aten.tanh.default, a), w(_aten.tan.default, b)
    return w.result(*_quotient(w, (t, u), (1.0, w.mul(t, u))))


@_rule(_aten.sigmoid.default)
def _sigmoid(w: Writer, self: Complex) -> Complex:
    """`1 / (1 + exp(-z))`."""
    re, im = w.parts(self)
    e, f = _exponential(w, (w.neg(re), w.neg(im)))
    return w.result(*_quotient(w, (1.0, 0.0), (w.add(e, 1.0), f)))


# Products of matrices, and what is linear in two operands otherwise


def _multiplied(w: Writer, x: Any, y: Any, multiply: Callable[[fx.Node, fx.Node], fx.Node]) -> tuple[Part, Part]:
    """A product from real ones: four of them, two where one operand is real."""
    (a, b), (c, d) = _factors(w, x), _factors(w, y)

    def product(left: Part, right: Part) -> Part:
        return multiply(left, right) if isinstance(left, fx.Node) and isinstance(right, fx.Node) else 0.0

    return w.sub(product(a, c), product(b, d)), w.add(product(a, d), product(b, c))


def _factors(w: Writer, z: Any) -> tuple[Part, Part]:
    """Parts that are tensors or 0."""
    parts = w.parts(z)
    return parts if all(isinstance(part, fx.Node) or part == 0 for part in parts) else w.nodes(z)


def _matrix_product(target: Any) -> Rule:
    def rule(w: Writer, self: Any, other: Any) -> Complex:
        return w.result(*_multiplied(w, self, other, lambda a, b: w(target, a, b)))

    return rule


for _name in ("bmm", "dot", "matmul", "mm", "mv"):
    RULES[getattr(_aten, _name).default] = _matrix_product(getattr(_aten, _name).default)


@_rule(_aten.vdot.default)
def _vdot(w: Writer, self: Complex, other: Complex) -> Complex:
    a, b = w.nodes(self)
    turned = Complex(w.dtype, (a, w.neg(b)))
    return w.result(*_multiplied(w, turned, other, lambda left, right: w(_aten.dot.default, left, right)))


def _sum_with_product(target: Any) -> Rule:
    def rule(w: Writer, self: Any, x: Any, y: Any, *, beta: complex = 1, alpha: complex = 1) -> Complex:
        a, b = _multiplied(w, x, y, lambda left, right: w(target, left, right))
        product = _product(w, (a, b), w.parts(alpha))
        first = _product(w, w.parts(self), w.parts(beta)) if beta != 0 else (0.0, 0.0)
        return w.result(w.add(first[0], product[0]), w.add(first[1], product[1]))

    return rule


RULES[_aten.addmm.default] = _sum_with_product(_aten.mm.default)
RULES[_aten.baddbmm.default] = _sum_with_product(_aten.bmm.default)


@_rule(_aten.linear.default)
def _linear(w: Writer, input: Any, weight: Any, bias: Any = None) -> Complex:
    a, b = _multiplied(w, input, weight, lambda left, right: w(_aten.linear.default, left, right))
    c, d = w.parts(bias) if bias is not None else (0.0, 0.0)
    return w.result(w.add(a, c), w.add(b, d))


# Fourier transforms: operators of the catalogue; the file describes their complex tensors by the joint form


@_rule(_aten._fft_r2c.default)
def _fft_r2c(w: Writer, self: fx.Node, dim: list[int], normalization: int, onesided: bool) -> Complex:
    return _spectrum(w, _aten._fft_r2c.default, w.cast(self), dim, normalization, onesided)


@_rule(_aten._fft_c2c.default)
def _fft_c2c(w: Writer, self: Complex, dim: list[int], normalization: int, forward: bool) -> Complex:
    re, im = w.parts(self) if self.parts is not None else (0.0, 1.0)
    if forward and isinstance(re, fx.Node) and im == 0:
        return _spectrum(w, _aten._fft_r2c.default, re, dim, normalization, False)
    return _spectrum(w, _aten._fft_c2c.default, _for_transform(w, self), dim, normalization, forward)


@_rule(_aten._fft_c2r.default)
def _fft_c2r(w: Writer, self: Complex, dim: list[int], normalization: int, last_dim_size: Any) -> fx.Node:
    value = w.node.meta["val"]
    return w.place(value, _aten._fft_c2r.default, _for_transform(w, self), dim, normalization, last_dim_size)


def _for_transform(w: Writer, z: Complex) -> fx.Node:
    joint = w.joint(z)
    value = tensor_of(joint)
    assert value is not None
    numbers = value.new_empty(value.shape[:-1], dtype=value.dtype.to_complex())
    return w.place(numbers, _aten.view_as_complex.default, joint)


def _spectrum(w: Writer, target: Any, *args: Any) -> Complex:
    value = tensor_of(w.node)
    assert value is not None
    spectrum = w.place(value, target, *args)
    return Complex(w.dtype, joint=w.place(as_real_value(value), _aten.view_as_real.default, spectrum))


# Sizes


@_rule(_aten.sym_size.int, _aten.sym_numel.default)
def _size(w: Writer, self: Complex, *dim: int) -> fx.Node:
    assert isinstance(w.node.target, torch._ops.OpOverload)
    return w.place(w.node.meta["val"], w.node.target, w.nodes(self)[0], *dim)
