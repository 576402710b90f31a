// Elementary functions of float that compilers vectorise: straight-line code in double, which leaves errors of just
// over half a unit in the last place of float. `tools/fit_math.py` made the polynomials and prints them.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "types.h"

namespace ptn::kernels::fast {

// (exp(r) - 1 - r) / r^2 for |r| <= ln 2 / 2; relative error of exp(r) 5.2e-11.
constexpr double kExp[] = {0.5000000067644843,   0.16666665869415656,   0.04166629508702506,
                           0.008333497005597589, 0.0013944648996106349, 0.00019790354946612378};
// (atanh(s) / s - 1) / s^2 of s^2 for |s| <= 3 - 2 sqrt 2; 4.8e-12.
constexpr double kLog[] = {0.3333333282272272, 0.20000167596392632, 0.14268654220887747, 0.11791076474588415};
// (sin(r) / r - 1) / r^2 and (cos(r) - 1) / r^2 of r^2 for |r| <= pi / 4; 4.9e-12 and 6.2e-14.
constexpr double kSin[] = {-0.16666666641626685, 0.008333329385917257, -0.00019839334847043463, 2.7183116113474806e-06};
constexpr double kCos[] = {-0.499999999995449, 0.04166666656205458, -0.0013888881077727885, 2.479904085947622e-05,
                           -2.7180089267470064e-07};
// erf(x) / x of x^2 for |x| <= 1; 3.3e-11.
constexpr double kErfNear[] = {1.128379167058022,     -0.37612638434651424,  0.11283781974112653,
                               -0.026865400042557858, 0.005220945433963134,  -0.0008482828861579028,
                               0.0001125694802344146, -9.641516399427896e-06};
// -log(erfc(x)) for 0.95 <= x <= 4; 2.6e-11 of erf.
constexpr double kErfFar[] = {-0.00017557830397494368, 1.1295138123356265,     0.6333637768877503,
                              0.10823894605457185,     -0.02507082656777221,   0.004138616527826988,
                              -0.00042196346682410457, 1.8502358592020762e-05, 2.241909531353059e-07};

// a * b + c, rounded once where the processor does that in one instruction.
inline double multiply_add(double a, double b, double c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return std::fma(a, b, c);
#else
  return a * b + c;
#endif
}

// Horner's scheme, written out by recursion: a loop in the body of another keeps that from vectorising.
template <int kFrom = 0, int kCount>
inline double polynomial(const double (&coefficients)[kCount], double x) {
  if constexpr (kFrom + 1 == kCount) {
    (void)x;
    return coefficients[kFrom];
  } else {
    return multiply_add(polynomial<kFrom + 1>(coefficients, x), x, coefficients[kFrom]);
  }
}

constexpr double kLn2 = 0.69314718055994530942;
// Adding it rounds a double to an integer, which then stands in the low bits.
constexpr double kToInteger = 0x1.8p52;

struct Reduced {
  double rest, power;  // x = k ln 2 + rest, power = 2^k
};

inline Reduced reduce_exp(double x) {
  // Beyond these float is 0 or infinity in any case; NaN stays.
  x = x > 200.0 ? 200.0 : x;
  x = x < -200.0 ? -200.0 : x;
  const double shifted = multiply_add(x, 1.0 / kLn2, kToInteger);
  const double k = shifted - kToInteger;
  const std::uint64_t bits = bit_cast<std::uint64_t>(shifted) << 52;
  return {multiply_add(-k, kLn2, x), bit_cast<double>(bits + 0x3ff0000000000000u)};
}

inline double exp(double x) {
  const Reduced r = reduce_exp(x);
  const double tail = multiply_add(r.rest * r.rest, polynomial(kExp, r.rest), r.rest);
  return multiply_add(r.power, tail, r.power);
}
inline double expm1(double x) {
  const Reduced r = reduce_exp(x);
  const double tail = multiply_add(r.rest * r.rest, polynomial(kExp, r.rest), r.rest);
  return multiply_add(r.power, tail, r.power - 1.0);
}

// Of positive normal doubles; what floats become are such, but for zero, negative numbers and the specials below.
inline double log_positive(double x) {
  const std::uint64_t bits = bit_cast<std::uint64_t>(x);
  // Mantissas from sqrt 1/2 to sqrt 2.
  const std::uint64_t exponent = (bits - 0x3fe6a09e667f3bcdu + (std::uint64_t{1024} << 52)) >> 52;
  const double mantissa = bit_cast<double>(bits - ((exponent - 1024) << 52));
  const double k = bit_cast<double>(0x4330000000000000u | exponent) - (0x1p52 + 1024.0);
  const double s = (mantissa - 1.0) / (mantissa + 1.0);
  const double t = s * s;
  const double twice = s + s;
  return multiply_add(k, kLn2, multiply_add(twice * t, polynomial(kLog, t), twice));
}

inline double log(double x) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  double y = log_positive(x);
  y = x == 0.0 ? -infinity : y;
  y = x < 0.0 ? std::numeric_limits<double>::quiet_NaN() : y;
  return x < infinity ? y : x;  // infinity and NaN
}
inline double log1p(double x) {
  const double near = x - x * x * (0.5 - x * (1.0 / 3.0));
  const double far = log(1.0 + x);
  return std::fabs(x) < 1e-5 ? near : far;
}

inline double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

inline double tanh(double x) {
  const double magnitude = std::fabs(x);
  const double far = 1.0 - 2.0 / (exp(2.0 * magnitude) + 1.0);
  const double t = x * x;
  const double near = x + x * t * (-1.0 / 3.0 + t * (2.0 / 15.0 - t * (17.0 / 315.0)));
  return magnitude < 0.02 ? near : std::copysign(far, x);
}

inline double erf(double x) {
  const double magnitude = std::fabs(x);
  const double near = x * polynomial(kErfNear, x * x);
  const double bounded = magnitude > 4.0 ? 4.0 : magnitude;
  // From 4 on exactly 1, as in single precision: GELU multiplies what is left over by x.
  const double far = magnitude > 4.0 ? 1.0 : 1.0 - exp(-polynomial(kErfFar, bounded));
  return magnitude < 1.0 ? near : std::copysign(far, x);
}

// Up to here the reduction is exact enough; beyond, the library's function is asked.
constexpr float kTrigonometricLimit = 1e5F;

struct Angle {
  double rest;
  std::uint64_t quadrant;
};

inline Angle reduce_angle(double x) {
  constexpr double high = 0x1.921fb54400000p0, low = 0x1.0b4611a626331p-34;  // pi / 2; `high` has 33 bits
  const double shifted = multiply_add(x, 0.63661977236758134308, kToInteger);
  const double k = shifted - kToInteger;
  return {multiply_add(-k, low, x - k * high), bit_cast<std::uint64_t>(shifted)};
}

inline double sin_of(double r) { return multiply_add(r * r * r, polynomial(kSin, r * r), r); }
inline double cos_of(double r) { return multiply_add(r * r, polynomial(kCos, r * r), 1.0); }

// Sine of the angle advanced by `quarters` right angles.
inline double sin_from(const Angle& angle, std::uint64_t quarters) {
  const std::uint64_t quadrant = angle.quadrant + quarters;
  const double value = (quadrant & 1) != 0 ? cos_of(angle.rest) : sin_of(angle.rest);
  return bit_cast<double>(bit_cast<std::uint64_t>(value) ^ ((quadrant & 2) << 62));
}
inline double sin(double x) { return sin_from(reduce_angle(x), 0); }
inline double cos(double x) { return sin_from(reduce_angle(x), 1); }
inline double tan(double x) {
  const Angle angle = reduce_angle(x);
  return sin_from(angle, 0) / sin_from(angle, 1);
}

}  // namespace ptn::kernels::fast
