// Element types in C++: half types, the map between ScalarType and types, and dispatch over them.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "kernel.h"

namespace ptn::kernels {

template <typename To, typename From>
inline To bit_cast(const From& from) noexcept {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

// IEEE binary16: storage only, computed with as float.
struct Half {
  std::uint16_t bits;
};

// The upper half of a float: storage only, computed with as float.
struct BFloat16 {
  std::uint16_t bits;
};

inline float to_float(Half value) noexcept {
  // The exponent and mantissa moved to float's places read as value * 2^-112; the multiplication is exact, also for
  // subnormals. An all-ones exponent is infinity or NaN and stays all ones.
  const std::uint32_t magnitude = static_cast<std::uint32_t>(value.bits & 0x7fffu) << 13;
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
  const std::uint32_t scaled = bit_cast<std::uint32_t>(bit_cast<float>(magnitude) * 0x1p112f);
  const std::uint32_t special = magnitude | 0x7f800000u;
  return bit_cast<float>(sign | (magnitude >= 0x0f800000u ? special : scaled));
}

inline Half to_half(float value) noexcept {
  const std::uint32_t bits = bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  // Round to nearest even: add just under half a unit, and one more where the kept part is odd. The carry may reach the
  // exponent, which is right, also into infinity.
  const std::uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Below 2^-14 a half's unit is 2^-24, which is float's unit in [0.5, 1): adding 0.5 rounds to it.
  const std::uint32_t subnormal = bit_cast<std::uint32_t>(bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  const std::uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const std::uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
  return Half{static_cast<std::uint16_t>(sign | (magnitude >= 0x47800000u ? special : finite))};
}

inline float to_float(BFloat16 value) noexcept { return bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16); }

inline BFloat16 to_bfloat16(float value) noexcept {
  const std::uint32_t bits = bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return BFloat16{static_cast<std::uint16_t>(nan ? 0x7fc0u : rounded)};
}

template <typename T>
struct TypeTag {
  using type = T;
};

template <typename T>
constexpr ScalarType scalar_type_of() noexcept {
  if constexpr (std::is_same_v<T, bool>) return ScalarType::kBool;
  if constexpr (std::is_same_v<T, std::uint8_t>) return ScalarType::kByte;
  if constexpr (std::is_same_v<T, std::int8_t>) return ScalarType::kChar;
  if constexpr (std::is_same_v<T, std::int16_t>) return ScalarType::kShort;
  if constexpr (std::is_same_v<T, std::int32_t>) return ScalarType::kInt;
  if constexpr (std::is_same_v<T, std::int64_t>) return ScalarType::kLong;
  if constexpr (std::is_same_v<T, std::uint16_t>) return ScalarType::kUInt16;
  if constexpr (std::is_same_v<T, std::uint32_t>) return ScalarType::kUInt32;
  if constexpr (std::is_same_v<T, std::uint64_t>) return ScalarType::kUInt64;
  if constexpr (std::is_same_v<T, Half>) return ScalarType::kHalf;
  if constexpr (std::is_same_v<T, BFloat16>) return ScalarType::kBFloat16;
  if constexpr (std::is_same_v<T, float>) return ScalarType::kFloat;
  return ScalarType::kDouble;
}

// The type that a dtype is computed with: float for the half types, else the type itself.
constexpr ScalarType compute_dtype(ScalarType dtype) noexcept {
  return dtype == ScalarType::kHalf || dtype == ScalarType::kBFloat16 ? ScalarType::kFloat : dtype;
}

constexpr bool is_float(ScalarType dtype) noexcept {
  return dtype == ScalarType::kHalf || dtype == ScalarType::kBFloat16 || dtype == ScalarType::kFloat ||
         dtype == ScalarType::kDouble;
}

[[noreturn]] inline void throw_dtype(const char* what, ScalarType dtype) {
  throw std::invalid_argument(std::string(what) + " does not take " + dtype_name(dtype));
}

// Calls `function(TypeTag<T>{})` for the computed types: everything except the half types.
template <typename F>
decltype(auto) dispatch_compute(ScalarType dtype, F&& function) {
  switch (dtype) {
    case ScalarType::kByte:
      return function(TypeTag<std::uint8_t>{});
    case ScalarType::kChar:
      return function(TypeTag<std::int8_t>{});
    case ScalarType::kShort:
      return function(TypeTag<std::int16_t>{});
    case ScalarType::kInt:
      return function(TypeTag<std::int32_t>{});
    case ScalarType::kLong:
      return function(TypeTag<std::int64_t>{});
    case ScalarType::kUInt16:
      return function(TypeTag<std::uint16_t>{});
    case ScalarType::kUInt32:
      return function(TypeTag<std::uint32_t>{});
    case ScalarType::kUInt64:
      return function(TypeTag<std::uint64_t>{});
    case ScalarType::kFloat:
      return function(TypeTag<float>{});
    case ScalarType::kDouble:
      return function(TypeTag<double>{});
    case ScalarType::kBool:
      return function(TypeTag<bool>{});
    default:
      throw_dtype("a computed type", dtype);
  }
}

// Calls `function(TypeTag<T>{})` with float (for the half types too) or double.
template <typename F>
decltype(auto) dispatch_float(ScalarType dtype, F&& function) {
  if (dtype == ScalarType::kDouble) return function(TypeTag<double>{});
  if (!is_float(dtype)) throw_dtype("a floating-point operator", dtype);
  return function(TypeTag<float>{});
}

// Calls `function(TypeTag<T>{})` with an unsigned integer as wide as an element: for what only moves elements.
template <typename F>
decltype(auto) dispatch_size(ScalarType dtype, F&& function) {
  switch (item_size(dtype)) {
    case 1:
      return function(TypeTag<std::uint8_t>{});
    case 2:
      return function(TypeTag<std::uint16_t>{});
    case 4:
      return function(TypeTag<std::uint32_t>{});
    default:
      return function(TypeTag<std::uint64_t>{});
  }
}

// Converts as PyTorch's `to` does: truncation towards zero, any non-zero value is true, half types by float and nearest
// even. A float outside an integer's range has no value in C++ or PyTorch; here it goes by way of int64 (int32 for an
// int32 target) as x86 does it: out of range gives the smallest value, narrower targets keep the low bits.
template <typename To, typename From>
inline To convert(From value) noexcept {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<From, Half> || std::is_same_v<From, BFloat16>) {
    return convert<To>(to_float(value));
  } else if constexpr (std::is_same_v<To, Half>) {
    return to_half(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, BFloat16>) {
    return to_bfloat16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From(0);
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    if constexpr (sizeof(To) == 8 && std::is_unsigned_v<To>) {
      if (value >= static_cast<From>(0x1p63)) {
        return value < static_cast<From>(0x1p64) ? static_cast<To>(value) : To(0);
      }
    }
    using Way = std::conditional_t<(sizeof(To) < 8 && std::is_signed_v<To>), std::int32_t, std::int64_t>;
    constexpr From limit = sizeof(Way) == 4 ? static_cast<From>(0x1p31) : static_cast<From>(0x1p63);
    const bool inside = value >= -limit && value < limit;
    return static_cast<To>(inside ? static_cast<Way>(value) : std::numeric_limits<Way>::min());
  } else {
    return static_cast<To>(value);
  }
}

}  // namespace ptn::kernels
