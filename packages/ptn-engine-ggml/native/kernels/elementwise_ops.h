// PyTorch's element-wise operators on single elements. C is a computed type: bool, an integer, float or double.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <type_traits>

#include "math.h"

namespace ptn::kernels::ops {

template <typename C>
constexpr bool kIsFloat = std::is_floating_point_v<C>;

// Unsigned twin for arithmetic that wraps; itself for bool and floats.
template <typename C, bool kInteger = std::is_integral_v<C> && !std::is_same_v<C, bool>>
struct Wrapping {
  using type = C;
};
template <typename C>
struct Wrapping<C, true> {
  using type = std::make_unsigned_t<C>;
};
template <typename C>
using wrapping_t = typename Wrapping<C>::type;

template <typename C>
inline bool is_nan(C x) {
  if constexpr (kIsFloat<C>) {
    return x != x;
  } else {
    return false;
  }
}

[[noreturn]] inline void division_by_zero() { throw std::domain_error("integer division by zero"); }

template <typename C>
inline C wrap_add(C a, C b) {
  using U = wrapping_t<C>;
  return static_cast<C>(static_cast<U>(a) + static_cast<U>(b));
}
template <typename C>
inline C wrap_sub(C a, C b) {
  using U = wrapping_t<C>;
  return static_cast<C>(static_cast<U>(a) - static_cast<U>(b));
}
template <typename C>
inline C wrap_mul(C a, C b) {
  if constexpr (std::is_integral_v<C> && sizeof(C) < 4) {
    // Narrow types are promoted to int, in which the product of two 16-bit unsigned numbers overflows.
    return static_cast<C>(static_cast<std::uint32_t>(a) * static_cast<std::uint32_t>(b));
  } else {
    using U = wrapping_t<C>;
    return static_cast<C>(static_cast<U>(a) * static_cast<U>(b));
  }
}

// C's quotient and remainder, defined also for the smallest integer by -1.
template <typename C>
inline C quotient(C a, C b) {
  if (b == 0) division_by_zero();
  if constexpr (std::is_signed_v<C>) {
    if (b == C(-1)) return wrap_sub<C>(0, a);
  }
  return static_cast<C>(a / b);
}
template <typename C>
inline C modulus(C a, C b) {
  if (b == 0) division_by_zero();
  if constexpr (std::is_signed_v<C>) {
    if (b == C(-1)) return 0;
  }
  return static_cast<C>(a % b);
}

// ---- one operand -----------------------------------------------------------------------------------------------

#define PTN_UNARY(NAME, ...)          \
  struct NAME {                       \
    template <typename C>             \
    auto operator()(C x) const -> C { \
      __VA_ARGS__                     \
    }                                 \
  };
// A function of the standard library, for float its vectorisable twin.
#define PTN_FUNCTION(NAME, FUNCTION)                  \
  struct NAME {                                       \
    template <typename C>                             \
    C operator()(C x) const {                         \
      if constexpr (std::is_same_v<C, float>) {       \
        return static_cast<float>(fast::FUNCTION(x)); \
      } else {                                        \
        return std::FUNCTION(x);                      \
      }                                               \
    }                                                 \
  };
// The same, but arguments beyond `kLimit` go to the standard library.
#define PTN_PERIODIC(NAME, FUNCTION)                           \
  struct NAME {                                                \
    static constexpr float kLimit = fast::kTrigonometricLimit; \
    template <typename C>                                      \
    C operator()(C x) const {                                  \
      if constexpr (std::is_same_v<C, float>) {                \
        return static_cast<float>(fast::FUNCTION(x));          \
      } else {                                                 \
        return std::FUNCTION(x);                               \
      }                                                        \
    }                                                          \
    static float beyond(float x) { return std::FUNCTION(x); }  \
  };
#define PTN_TEST(NAME, ...)              \
  struct NAME {                          \
    template <typename C>                \
    auto operator()(C x) const -> bool { \
      __VA_ARGS__                        \
    }                                    \
  };

PTN_UNARY(Copy, return x;)
PTN_UNARY(
    Abs, if constexpr (kIsFloat<C>) { return std::fabs(x); } else if constexpr (std::is_signed_v<C>) {
      return x < 0 ? wrap_sub<C>(0, x) : x;
    } else { return x; })
PTN_UNARY(Neg, if constexpr (kIsFloat<C>) { return -x; } else { return wrap_sub<C>(0, x); })
PTN_UNARY(
    Sign, if constexpr (std::is_same_v<C, bool>) { return x; } else { return static_cast<C>((x > C(0)) - (x < C(0))); })
PTN_UNARY(Square, return wrap_mul<C>(x, x);)
PTN_UNARY(BitwiseNot, if constexpr (std::is_same_v<C, bool>) { return !x; } else { return static_cast<C>(~x); })
PTN_UNARY(Relu, return x <= C(0) ? C(0) : x;)
PTN_UNARY(Ceil, return std::ceil(x);)
PTN_UNARY(Floor, return std::floor(x);)
PTN_UNARY(Trunc, return std::trunc(x);)
PTN_UNARY(Frac, return x - std::trunc(x);)
// The default rounding mode is to nearest even, as torch.round.
PTN_UNARY(Round, return std::nearbyint(x);)
PTN_FUNCTION(Exp, exp)
PTN_UNARY(
    Exp2, if constexpr (std::is_same_v<C, float>) { return static_cast<float>(fast::exp(x * fast::kLn2)); } else {
      return std::exp2(x);
    })
PTN_FUNCTION(Expm1, expm1)
PTN_FUNCTION(Log, log)
PTN_UNARY(
    Log2,
    if constexpr (std::is_same_v<C, float>) { return static_cast<float>(fast::log(x) * 1.44269504088896340736); } else {
      return std::log2(x);
    })
PTN_UNARY(
    Log10,
    if constexpr (std::is_same_v<C, float>) { return static_cast<float>(fast::log(x) * 0.43429448190325182765); } else {
      return std::log10(x);
    })
PTN_FUNCTION(Log1p, log1p)
PTN_UNARY(Sqrt, return std::sqrt(x);)
PTN_UNARY(Rsqrt, return C(1) / std::sqrt(x);)
PTN_UNARY(Reciprocal, return C(1) / x;)
PTN_PERIODIC(Sin, sin)
PTN_PERIODIC(Cos, cos)
PTN_PERIODIC(Tan, tan)
PTN_UNARY(Asin, return std::asin(x);)
PTN_UNARY(Acos, return std::acos(x);)
PTN_UNARY(Atan, return std::atan(x);)
PTN_UNARY(Sinh, return std::sinh(x);)
PTN_UNARY(Cosh, return std::cosh(x);)
PTN_FUNCTION(Tanh, tanh)
PTN_UNARY(Asinh, return std::asinh(x);)
PTN_UNARY(Acosh, return std::acosh(x);)
PTN_UNARY(Atanh, return std::atanh(x);)
PTN_FUNCTION(Erf, erf)
PTN_UNARY(Erfc, return std::erfc(x);)
PTN_UNARY(Lgamma, return std::lgamma(x);)
// Sigmoid and tanh of the computed type, in double for float.
template <typename C>
inline double sigmoid(C x) {
  if constexpr (std::is_same_v<C, float>) {
    return fast::sigmoid(x);
  } else {
    return 1.0 / (1.0 + std::exp(-x));
  }
}
template <typename C>
inline double error_function(double x) {
  if constexpr (std::is_same_v<C, float>) {
    return fast::erf(x);
  } else {
    return std::erf(x);
  }
}
template <typename C>
inline double log1p_exp(double x) {
  if constexpr (std::is_same_v<C, float>) {
    return fast::log1p(fast::exp(x));
  } else {
    return std::log1p(std::exp(x));
  }
}
PTN_UNARY(Sigmoid, return static_cast<C>(sigmoid(x));)
// The exponentials are kept from overflow, so the factor of -inf is not 0, which gives NaN in PyTorch.
template <typename C>
C weighted(C x, double factor) {
  return x == -std::numeric_limits<C>::infinity() ? std::numeric_limits<C>::quiet_NaN() : static_cast<C>(x * factor);
}
PTN_UNARY(Silu, return weighted<C>(x, sigmoid(x));)
PTN_UNARY(Gelu, return static_cast<C>(0.5 * x * (1.0 + error_function<C>(x * 0.70710678118654752440)));)
// 0.5 (1 + tanh(u)) is the sigmoid of 2 u.
PTN_UNARY(GeluTanh, const C inner = C(0.79788456080286535588) * (x + C(0.044715) * x * x * x);
          return static_cast<C>(x * sigmoid(C(2) * inner));)
PTN_UNARY(LogSigmoid, return static_cast<C>((x < C(0) ? x : C(0)) - log1p_exp<C>(-std::fabs(x)));)
// tanh(log(1 + e)) is (e^2 + 2 e) / (e^2 + 2 e + 2), of which nothing cancels; from 30 on it is 1.
PTN_UNARY(
    Mish, const double e =
              [](double y) {
                if constexpr (std::is_same_v<C, float>) {
                  return fast::exp(y);
                } else {
                  return std::exp(y);
                }
              }(x > C(30) ? C(30) : x);
    const double n = e * (e + 2.0); return weighted<C>(x, n / (n + 2.0));)
PTN_UNARY(Hardsigmoid, const C shifted = x + C(3); return (shifted < C(0)   ? C(0)
                                                           : shifted > C(6) ? C(6)
                                                                            : shifted) /
                                                          C(6);)
PTN_UNARY(Hardswish, const C shifted = x + C(3); return x *
                                                        (shifted < C(0)   ? C(0)
                                                         : shifted > C(6) ? C(6)
                                                                          : shifted) /
                                                        C(6);)

// The logarithmic derivative of gamma: reflection for negative x, recurrence up to 10, then the asymptotic series.
struct Digamma {
  template <typename C>
  C operator()(C argument) const {
    double x = argument;
    if (x == 0.0) return static_cast<C>(std::copysign(std::numeric_limits<double>::infinity(), -x));
    double result = 0.0;
    if (x < 0.0) {
      if (x == std::trunc(x)) return std::numeric_limits<C>::quiet_NaN();
      constexpr double pi = 3.14159265358979323846;
      // tan of the fractional part keeps its precision for large |x|.
      double whole;
      result = -pi / std::tan(pi * std::modf(x, &whole));
      x = 1.0 - x;
    }
    while (x < 10.0) {
      result -= 1.0 / x;
      x += 1.0;
    }
    const double z = 1.0 / (x * x);
    const double series =
        z * (1.0 / 12 - z * (1.0 / 120 - z * (1.0 / 252 - z * (1.0 / 240 - z * (1.0 / 132 - z * 691.0 / 32760)))));
    return static_cast<C>(result + std::log(x) - 0.5 / x - series);
  }
};

// The inverse of erf: Giles' single-precision approximation ("Approximating the erfinv function", 2012) as a start,
// then Newton's method in double.
struct Erfinv {
  template <typename C>
  C operator()(C argument) const {
    const double y = argument;
    if (!(std::fabs(y) <= 1.0)) return std::numeric_limits<C>::quiet_NaN();
    if (std::fabs(y) == 1.0) return static_cast<C>(std::copysign(std::numeric_limits<double>::infinity(), y));
    double w = -std::log((1.0 - y) * (1.0 + y));
    double x;
    if (w < 5.0) {
      w -= 2.5;
      x = 2.81022636e-08;
      for (const double c : {3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
                             -0.00417768164, 0.246640727, 1.50140941}) {
        x = c + x * w;
      }
    } else {
      w = std::sqrt(w) - 3.0;
      x = -0.000200214257;
      for (const double c : {0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
                             1.00167406, 2.83297682}) {
        x = c + x * w;
      }
    }
    x *= y;
    constexpr double slope = 0.88622692545275801365;  // sqrt(pi) / 2
    for (int step = 0; step < 2; ++step) x -= (std::erf(x) - y) * slope * std::exp(x * x);
    return static_cast<C>(x);
  }
};

PTN_TEST(LogicalNot, return x == C(0);)
PTN_TEST(IsNan, return is_nan(x);)
PTN_TEST(
    IsInf,
    if constexpr (kIsFloat<C>) { return std::fabs(x) == std::numeric_limits<C>::infinity(); } else { return x != x; })
PTN_TEST(
    IsFinite,
    if constexpr (kIsFloat<C>) { return std::fabs(x) <= std::numeric_limits<C>::max(); } else { return x == x; })
PTN_TEST(
    IsPosInf, if constexpr (kIsFloat<C>) { return x == std::numeric_limits<C>::infinity(); } else { return x != x; })
PTN_TEST(
    IsNegInf, if constexpr (kIsFloat<C>) { return x == -std::numeric_limits<C>::infinity(); } else { return x != x; })
PTN_TEST(Signbit, if constexpr (kIsFloat<C>) { return std::signbit(x); } else { return x < C(0); })

#undef PTN_UNARY
#undef PTN_FUNCTION
#undef PTN_PERIODIC
#undef PTN_TEST

// ---- two operands ----------------------------------------------------------------------------------------------

#define PTN_BINARY(NAME, ...)              \
  struct NAME {                            \
    template <typename C>                  \
    auto operator()(C a, C b) const -> C { \
      __VA_ARGS__                          \
    }                                      \
  };
#define PTN_COMPARE(NAME, ...)                \
  struct NAME {                               \
    template <typename C>                     \
    auto operator()(C a, C b) const -> bool { \
      __VA_ARGS__                             \
    }                                         \
  };

PTN_BINARY(Add, return wrap_add<C>(a, b);)
PTN_BINARY(Sub, return wrap_sub<C>(a, b);)
PTN_BINARY(Mul, return wrap_mul<C>(a, b);)
PTN_BINARY(Div, return a / b;)
PTN_BINARY(DivTrunc, if constexpr (kIsFloat<C>) { return std::trunc(a / b); } else { return quotient<C>(a, b); })
// Python's floor division; for floats by way of the remainder, which is exact where a / b rounds up to a whole number.
PTN_BINARY(
    DivFloor,
    if constexpr (kIsFloat<C>) {
      if (b == C(0)) return a / b;
      const C rest = std::fmod(a, b);
      C result = (a - rest) / b;
      if (rest != C(0) && (b < C(0)) != (rest < C(0))) result -= C(1);
      if (result == C(0)) return std::copysign(C(0), a / b);
      const C whole = std::floor(result);
      return result - whole > C(0.5) ? whole + C(1) : whole;
    } else {
      const C result = quotient<C>(a, b);
      if constexpr (std::is_signed_v<C>) {
        if ((a < 0) != (b < 0) && modulus<C>(a, b) != 0) return static_cast<C>(result - 1);
      }
      return result;
    })
PTN_BINARY(Fmod, if constexpr (kIsFloat<C>) { return std::fmod(a, b); } else { return modulus<C>(a, b); })
// Python's %: the sign of the divisor.
PTN_BINARY(
    Remainder,
    if constexpr (kIsFloat<C>) {
      const C rest = std::fmod(a, b);
      return rest != C(0) && (b < C(0)) != (rest < C(0)) ? rest + b : rest;
    } else {
      const C rest = modulus<C>(a, b);
      if constexpr (std::is_signed_v<C>) {
        if (rest != 0 && (rest < 0) != (b < 0)) return static_cast<C>(rest + b);
      }
      return rest;
    })
PTN_BINARY(
    Pow, if constexpr (kIsFloat<C>) { return std::pow(a, b); } else {
      if constexpr (std::is_signed_v<C>) {
        if (b < 0) return a == 1 ? C(1) : a == C(-1) ? (b % 2 == 0 ? C(1) : C(-1)) : C(0);
      }
      C result = 1;
      for (wrapping_t<C> rest = static_cast<wrapping_t<C>>(b); rest != 0;
           rest = static_cast<wrapping_t<C>>(rest >> 1)) {
        if (rest & 1) result = wrap_mul<C>(result, a);
        a = wrap_mul<C>(a, a);
      }
      return result;
    })
PTN_BINARY(Maximum, return a > b || is_nan(a) ? a : b;)
PTN_BINARY(Minimum, return a < b || is_nan(a) ? a : b;)
PTN_BINARY(Fmax, if constexpr (kIsFloat<C>) { return std::fmax(a, b); } else { return a > b ? a : b; })
PTN_BINARY(Fmin, if constexpr (kIsFloat<C>) { return std::fmin(a, b); } else { return a < b ? a : b; })
PTN_BINARY(Atan2, return std::atan2(a, b);)
PTN_BINARY(Hypot, return std::hypot(a, b);)
PTN_BINARY(Copysign, return std::copysign(a, b);)
PTN_BINARY(Nextafter, return std::nextafter(a, b);)
PTN_BINARY(Xlogy, return is_nan(b) ? b : a == C(0) ? C(0) : a * std::log(b);)
PTN_BINARY(
    LogAddExp, if (std::fabs(a) == std::numeric_limits<C>::infinity() && a == b) { return a; } else {
      const C high = a > b || is_nan(a) ? a : b;
      return high + std::log1p(std::exp(-std::fabs(a - b)));
    })
PTN_BINARY(Heaviside, return a == C(0) ? b : C(a > C(0));)
PTN_BINARY(LeakyRelu, return a > C(0) ? a : wrap_mul<C>(a, b);)
PTN_BINARY(BitwiseAnd, return static_cast<C>(a & b);)
PTN_BINARY(BitwiseOr, return static_cast<C>(a | b);)
PTN_BINARY(BitwiseXor, return static_cast<C>(a ^ b);)
PTN_BINARY(ShiftLeft, constexpr int bits = sizeof(C) * 8;
           return b < C(0) || b >= static_cast<C>(bits) ? C(0) : static_cast<C>(static_cast<wrapping_t<C>>(a) << b);)
PTN_BINARY(
    ShiftRight, constexpr int bits = sizeof(C) * 8; if (b < C(0) || b >= static_cast<C>(bits)) {
      return a < C(0) ? static_cast<C>(-1) : C(0);
    } return static_cast<C>(a >> b);)
PTN_BINARY(
    Gcd, wrapping_t<C> x = static_cast<wrapping_t<C>>(a < C(0) ? wrap_sub<C>(0, a) : a);
    wrapping_t<C> y = static_cast<wrapping_t<C>>(b < C(0) ? wrap_sub<C>(0, b) : b); while (y != 0) {
      const wrapping_t<C> rest = static_cast<wrapping_t<C>>(x % y);
      x = y;
      y = rest;
    } return static_cast<C>(x);)
PTN_BINARY(Hardshrink, return a >= -b && a <= b ? C(0) : a;)
PTN_BINARY(Softshrink, return a > b ? a - b : a < -b ? a + b : is_nan(a) ? a : C(0);)
// `b` is 10 ** decimals, negative for 10 ** -decimals.
PTN_BINARY(RoundDecimals, return b < C(0) ? std::nearbyint(a / -b) * -b : std::nearbyint(a * b) / b;)

PTN_COMPARE(Eq, return a == b;)
PTN_COMPARE(Ne, return a != b;)
PTN_COMPARE(Lt, return a < b;)
PTN_COMPARE(Le, return a <= b;)
PTN_COMPARE(Gt, return a > b;)
PTN_COMPARE(Ge, return a >= b;)
PTN_COMPARE(LogicalAnd, return a != C(0) && b != C(0);)
PTN_COMPARE(LogicalOr, return a != C(0) || b != C(0);)
PTN_COMPARE(LogicalXor, return (a != C(0)) != (b != C(0));)

#undef PTN_BINARY
#undef PTN_COMPARE

// ---- three and four operands -----------------------------------------------------------------------------------

struct AddScaled {
  template <typename C>
  C operator()(C a, C b, C alpha) const {
    return wrap_add<C>(a, wrap_mul<C>(alpha, b));
  }
};
struct SubScaled {
  template <typename C>
  C operator()(C a, C b, C alpha) const {
    return wrap_sub<C>(a, wrap_mul<C>(alpha, b));
  }
};
struct Clamp {
  template <typename C>
  C operator()(C x, C low, C high) const {
    return Minimum{}(Maximum{}(x, low), high);
  }
};
// self + value * a * b
struct AddCmul {
  template <typename C>
  C operator()(C self, C a, C b, C value) const {
    return wrap_add<C>(self, wrap_mul<C>(wrap_mul<C>(value, a), b));
  }
};
// self + value * a / b
struct AddCdiv {
  template <typename C>
  C operator()(C self, C a, C b, C value) const {
    return self + value * a / b;
  }
};
struct Lerp {
  template <typename C>
  C operator()(C start, C end, C weight) const {
    return std::fabs(weight) < C(0.5) ? start + weight * (end - start) : end - (end - start) * (C(1) - weight);
  }
};
struct Elu {
  template <typename C>
  C operator()(C x, C alpha, C scale, C input_scale) const {
    if constexpr (std::is_same_v<C, float>) {
      const float negative = static_cast<float>(fast::expm1(x * input_scale)) * (alpha * scale);
      return x < C(0) ? negative : x * scale;
    } else {
      return x < C(0) ? std::expm1(x * input_scale) * (alpha * scale) : x * scale;
    }
  }
};
struct Softplus {
  template <typename C>
  C operator()(C x, C beta, C threshold) const {
    const C scaled = x * beta;
    C soft = static_cast<C>(log1p_exp<C>(scaled));
    // Where nothing holds the threshold, the exponential overflows.
    if (std::is_same_v<C, float> && scaled > C(88.72284)) soft = std::numeric_limits<C>::infinity();
    return scaled > threshold ? x : soft / beta;
  }
};
struct Threshold {
  template <typename C>
  C operator()(C x, C threshold, C value) const {
    return x <= threshold ? value : x;
  }
};
struct NanToNum {
  template <typename C>
  C operator()(C x, C nan, C positive, C negative) const {
    constexpr C infinity = std::numeric_limits<C>::infinity();
    return is_nan(x) ? nan : x == infinity ? positive : x == -infinity ? negative : x;
  }
};
// eps < 0: no clamping.
struct Logit {
  template <typename C>
  C operator()(C x, C eps) const {
    if (eps >= C(0)) x = x < eps ? eps : x > C(1) - eps ? C(1) - eps : x;
    return std::log(x / (C(1) - x));
  }
};

}  // namespace ptn::kernels::ops
