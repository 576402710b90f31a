// What the kernels of quantised tensors share: rounding between steps, zero points, streams of bits.
#pragma once

#include <memory>

#include "support.h"

namespace ptn::kernels {

// Zero points as type C, zero where there are none.
template <typename C>
class ZeroPoints {
 public:
  explicit ZeroPoints(const TensorView* view) {
    if (view != nullptr && view->numel() > 0) whole_.reset(new Whole<C>(*view));
  }
  C operator[](std::int64_t index) const { return whole_ ? (*whole_)[index] : C(0); }

 private:
  std::unique_ptr<Whole<C>> whole_;
};

// Arithmetic as a chain of PyTorch operators does it: after each step the value is rounded to the tensor's dtype.
template <typename C>
class Rounding {
 public:
  explicit Rounding(ScalarType dtype) : dtype_(dtype) {}
  // Whether a value may change.
  bool active() const { return std::is_same_v<C, float> && dtype_ != ScalarType::kFloat; }
  C operator()(C value) const {
    if constexpr (std::is_same_v<C, float>) {
      if (dtype_ == ScalarType::kHalf) return to_float(to_half(value));
      if (dtype_ == ScalarType::kBFloat16) return to_float(to_bfloat16(value));
    }
    return value;
  }

 private:
  ScalarType dtype_;
};

// Element `index` of a stream of `bits`-bit unsigned integers.
inline std::uint32_t bits_at(const std::uint8_t* bytes, std::int64_t nbytes, std::int64_t index, int bits) {
  const std::int64_t position = index * bits;
  const std::int64_t byte = position >> 3;
  std::uint32_t word = bytes[byte];
  if (byte + 1 < nbytes) word |= static_cast<std::uint32_t>(bytes[byte + 1]) << 8;
  return (word >> (position & 7)) & ((1u << bits) - 1u);
}

inline int read_bits(Parameters& parameters) {
  const std::int64_t bits = parameters.next_int();
  if (bits < 1 || bits > 8) throw std::invalid_argument("packed integers have 1 to 8 bits");
  return static_cast<int>(bits);
}

inline void check_stream(const TensorView& packed, std::int64_t count, int bits) {
  if ((count * bits + 7) / 8 > packed.numel()) throw std::invalid_argument("the packed constant is too short");
}

}  // namespace ptn::kernels
