"""Element-wise operators put together from kernels of the others.

16-bit types go through float32 from the first step to the last, so that they are rounded once, as PyTorch does.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ptn_format.dtypes import ScalarType

from ptn_engine_ggml._native import Builder, Tensor
from ptn_engine_ggml.lower.common import promoted, scalar_tensor
from ptn_engine_ggml.lower.elementwise import Operand, kernel, result_type
from ptn_engine_ggml.lower.registry import Outputs, lower

BOOL, FLOAT, DOUBLE = ScalarType.BOOL, ScalarType.FLOAT, ScalarType.DOUBLE


class Expression:
    """Calls of element-wise kernels on one shape and in one type."""

    def __init__(self, b: Builder, shape: tuple[int, ...], dtype: ScalarType) -> None:
        self._b, self._shape, self.dtype = b, shape, dtype

    def __call__(self, name: str, *operands: Operand) -> Tensor:
        """A function whose result has the expression's type."""
        return kernel(self._b, name, self.dtype, self._shape, self.dtype, *operands)

    def test(self, name: str, *operands: Operand) -> Tensor:
        """A function whose result is bool."""
        return kernel(self._b, name, BOOL, self._shape, self.dtype, *operands)

    def where(self, condition: Tensor, x: Operand, y: Operand) -> Tensor:
        """`x` where `condition`, else `y`."""
        return self("where", condition, x, y)


def _wide(dtype: ScalarType) -> ScalarType:
    return dtype if dtype is DOUBLE or not dtype.is_floating_point else FLOAT


def _unary(op: str, compute: Callable[[Expression, Tensor], Tensor]) -> None:
    @lower(op)
    def function(b: Builder, out: Outputs, self: Tensor) -> Tensor:
        e = Expression(b, out.shape, _wide(out.dtype))
        return promoted(b, compute(e, promoted(b, self, e.dtype)), out.dtype)


def _binary(op: str, compute: Callable[[Expression, Tensor, Tensor], Tensor]) -> None:
    @lower(op)
    def function(b: Builder, out: Outputs, self: Tensor, other: Tensor) -> Tensor:
        e = Expression(b, out.shape, _wide(out.dtype))
        x, y = promoted(b, self, e.dtype), promoted(b, other, e.dtype)
        return promoted(b, compute(e, x, y), out.dtype)


def _sinc(e: Expression, x: Tensor) -> Tensor:
    turned = e("mul", x, math.pi)
    return e.where(e.test("eq", x, 0), 1, e("div", e("sin", turned), turned))


def _entropy(e: Expression, x: Tensor) -> Tensor:
    """-x log x, 0 at 0 and -inf below."""
    return e.where(e.test("lt", x, 0), -math.inf, e("neg", e("xlogy", x, x)))


def _lcm(e: Expression, x: Tensor, y: Tensor) -> Tensor:
    divisor = e("gcd", x, y)
    return e("abs", e("mul", e("div_trunc", x, e.where(e.test("eq", divisor, 0), 1, divisor)), y))


def _logaddexp2(e: Expression, x: Tensor, y: Tensor) -> Tensor:
    """Log2(2^x + 2^y) = max + log2(1 + 2^-|x - y|); equal infinities stay as they are."""
    largest, distance = e("maximum", x, y), e("abs", e("sub", x, y))
    total = e("add", largest, e("div", e("log1p", e("exp2", e("neg", distance))), math.log(2)))
    same_infinity = e.test("logical_and", e.test("isinf", x), e.test("eq", x, y))
    return e.where(same_infinity, x, total)


_unary("aten.sinc.default", _sinc)
_unary("aten.special_entr.default", _entropy)
_binary("aten.lcm.default", _lcm)
_binary("aten.logaddexp2.default", _logaddexp2)
_binary("aten.ldexp.Tensor", lambda e, x, y: e("mul", x, e("pow", 2, y)))


@lower("aten.log_sigmoid_forward.default")
def log_sigmoid_forward(b: Builder, out: Outputs, self: Tensor) -> tuple[Tensor, Tensor]:
    """The second result, exp(-|x|), is what the backward pass uses."""
    e = Expression(b, out.shape, _wide(out.dtype))
    x = promoted(b, self, e.dtype)
    result, buffer = e("log_sigmoid", x), e("exp", e("neg", e("abs", x)))
    return promoted(b, result, out[0].dtype), promoted(b, buffer, out[1].dtype)


@lower("aten.isclose.default")
def isclose(
    b: Builder,
    out: Outputs,
    self: Tensor,
    other: Tensor,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: bool = False,
) -> Tensor:
    """Equal, or both finite and |self - other| <= atol + |rtol * other|."""
    dtype = result_type(self, other)
    close = kernel(b, "eq", BOOL, out.shape, dtype, self, other)
    e = Expression(b, out.shape, dtype if dtype is DOUBLE else FLOAT if dtype.is_floating_point else DOUBLE)
    x, y = promoted(b, self, e.dtype), promoted(b, other, e.dtype)
    if equal_nan and dtype.is_floating_point:
        close = e.test("logical_or", close, e.test("logical_and", e.test("isnan", x), e.test("isnan", y)))
    if rtol == 0 and atol == 0:
        return close
    allowed = e("add", e("abs", e("mul", y, rtol)), atol)
    distance = e("abs", e("sub", x, y))
    near = e.test("logical_and", e.test("isfinite", distance), e.test("le", distance, allowed))
    return e.test("logical_or", close, near)


@lower("aten.isin.Tensor_Tensor", empty=True)
def isin(
    b: Builder,
    out: Outputs,
    elements: Tensor,
    test_elements: Tensor,
    assume_unique: bool = False,
    invert: bool = False,
) -> Tensor:
    count = test_elements.numel
    if count == 0:
        return scalar_tensor(b, BOOL, invert).expand(out.shape)
    dtype = result_type(elements, test_elements)
    x, candidates = b.view(elements, (*elements.shape, 1)), b.view(test_elements, (count,))
    equal = kernel(b, "eq", BOOL, (*elements.shape, count), dtype, x, candidates)
    (found,) = b.custom("reduction.any", (equal,), [(int(BOOL), out.shape)], [1, len(out.shape)], ())
    return kernel(b, "logical_not", BOOL, out.shape, BOOL, found) if invert else found
