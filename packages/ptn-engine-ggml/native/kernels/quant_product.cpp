// Reading packed weights without decoding all of them: products with, and rows of, a matrix (n, k) that is stored
// packed.
//
// quant.linear    inputs [x (..., k) float32, packed bytes, scale?, zero point?]; output x times the transposed matrix,
//                 float32 (..., n): products and sums in float32.
// quant.rows      inputs [indices, packed bytes, scale?, zero point?]; output the rows at the indices (..., k).
//
// Both: ints [n, k, dtype that values are rounded to, kind, parameters of the kind...].
// Kind 0, ggml's own blocks: [ggml type].
// Kind 1, (integer - zero point) * scale by groups along a row: [bits, quant min, elements per group, has zero point].
//         Integers are a stream of bits, lowest first, as unsigned numbers from quant min on.
// Kind 2, as 1, of plain int8: [elements per group, has zero point].
#include <ggml.h>

#include <algorithm>
#include <vector>

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "families.h"
#include "quant.h"

namespace ptn::kernels {
namespace {

// ---- vectors -----------------------------------------------------------------------------------------------------

constexpr std::int64_t kLanes = 8;
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));

inline Lanes multiply_add(Lanes a, Lanes b, Lanes c) {
#ifdef __FMA__
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

template <typename V>
inline V load_as(const void* from) {
  V value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Eight integers as floats. Compilers do not find the instructions for it.
struct Pairs {
  Lanes low, high;  // of the low halves and of the high halves of the bytes
};

inline Pairs load_nibbles(const std::uint8_t* bytes) {
#ifdef __AVX2__
  const __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
  return {_mm256_cvtepi32_ps(_mm256_and_si256(wide, _mm256_set1_epi32(15))),
          _mm256_cvtepi32_ps(_mm256_srli_epi32(wide, 4))};
#else
  Pairs pairs;
  for (int i = 0; i < kLanes; ++i) {
    pairs.low[i] = static_cast<float>(bytes[i] & 15);
    pairs.high[i] = static_cast<float>(bytes[i] >> 4);
  }
  return pairs;
#endif
}

inline Lanes load_integers(const std::uint8_t* bytes) {
#ifdef __AVX2__
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes))));
#else
  Lanes lanes;
  for (int i = 0; i < kLanes; ++i) lanes[i] = static_cast<float>(bytes[i]);
  return lanes;
#endif
}

inline Lanes load_integers(const std::int8_t* bytes) {
#ifdef __AVX2__
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes))));
#else
  Lanes lanes;
  for (int i = 0; i < kLanes; ++i) lanes[i] = static_cast<float>(bytes[i]);
  return lanes;
#endif
}

inline void store(float* to, Lanes lanes) { std::memcpy(to, &lanes, sizeof lanes); }

// ---- ggml's commonest blocks -------------------------------------------------------------------------------------
// As ggml decodes them, bit for bit, in loops that compilers vectorise; other types are left to ggml.

constexpr int kElements = 32;  // of a block

inline float half_at(const std::uint8_t* bytes) {
  Half half;
  std::memcpy(&half.bits, bytes, sizeof half.bits);
  return to_float(half);
}

// Blocks of 4 bits: byte j holds elements j (low half) and j + 16. `offset` is added to the integers.
template <bool kBias>
void decode_nibbles(const void* blocks, float* values, std::int64_t count, float offset) {
  constexpr int kHeader = kBias ? 4 : 2, kHalf = kElements / 2;
  const auto* bytes = static_cast<const std::uint8_t*>(blocks);
  for (std::int64_t i = 0; i < count; i += kElements, bytes += kHeader + kHalf) {
    const float scale = half_at(bytes), bias = kBias ? half_at(bytes + 2) : 0.0F;
    for (int j = 0; j < kHalf; j += kLanes) {
      const Pairs pairs = load_nibbles(bytes + kHeader + j);
      Lanes low = (pairs.low + offset) * scale, high = (pairs.high + offset) * scale;
      if (kBias) {
        low += bias;
        high += bias;
      }
      store(values + i + j, low);
      store(values + i + kHalf + j, high);
    }
  }
}

void decode_q4_0(const void* blocks, float* values, std::int64_t count) {
  decode_nibbles<false>(blocks, values, count, -8.0F);
}

void decode_q4_1(const void* blocks, float* values, std::int64_t count) {
  decode_nibbles<true>(blocks, values, count, 0.0F);
}

void decode_q8_0(const void* blocks, float* values, std::int64_t count) {
  const auto* bytes = static_cast<const std::uint8_t*>(blocks);
  for (std::int64_t i = 0; i < count; i += kElements, bytes += 2 + kElements) {
    const float scale = half_at(bytes);
    const auto* integers = reinterpret_cast<const std::int8_t*>(bytes + 2);
    for (int j = 0; j < kElements; j += kLanes) store(values + i + j, load_integers(integers + j) * scale);
  }
}

ggml_to_float_t decoder_of(ggml_type type, const ggml_type_traits& traits) {
  switch (type) {
    case GGML_TYPE_Q4_0:
      return decode_q4_0;
    case GGML_TYPE_Q4_1:
      return decode_q4_1;
    case GGML_TYPE_Q8_0:
      return decode_q8_0;
    default:
      return traits.to_float;
  }
}

// ---- decoding rows -----------------------------------------------------------------------------------------------

class PackedMatrix {
 public:
  PackedMatrix(const KernelCall& call, Parameters& parameters)
      : n_(parameters.next_int()),
        k_(parameters.next_int()),
        dtype_(static_cast<ScalarType>(parameters.next_int())),
        packed_(call.inputs[1]),
        bytes_(packed_.as<const std::uint8_t>()) {
    const std::int64_t kind = parameters.next_int();
    if (kind == 0) {
      read_blocks(parameters.next_int());
      return;
    }
    signed_ = kind == 2;
    if (!signed_) {
      bits_ = read_bits(parameters);
      low_ = static_cast<float>(parameters.next_int());
    }
    group_ = parameters.next_int();
    const bool has_zero_point = parameters.next_int() != 0;
    if (group_ <= 0 || k_ % group_ != 0) throw std::invalid_argument("the groups do not divide the rows");
    check_stream(packed_, n_ * k_, bits_);
    scale_ = &call.inputs[2];
    if (has_zero_point) zero_point_ = &call.inputs[3];
    scales_.resize(static_cast<std::size_t>(k_ / group_));
    zero_points_.resize(scales_.size());
    levels_.resize(static_cast<std::size_t>(group_));
  }

  std::int64_t n() const { return n_; }
  std::int64_t k() const { return k_; }

  // Row `row` as k numbers.
  void decode(std::int64_t row, float* values) {
    const Rounding<float> round(dtype_);
    if (decode_blocks_ != nullptr) {
      decode_blocks_(bytes_ + row * row_bytes_, values, k_);
    } else {
      decode_groups(row, values, round);
    }
    if (round.active()) {
      for (std::int64_t i = 0; i < k_; ++i) values[i] = round(values[i]);
    }
  }

 private:
  void read_blocks(std::int64_t type) {
    const ggml_type_traits* traits =
        type >= 0 && type < GGML_TYPE_COUNT ? ggml_get_type_traits(static_cast<ggml_type>(type)) : nullptr;
    if (traits == nullptr || traits->to_float == nullptr || traits->blck_size <= 0 || k_ % traits->blck_size != 0) {
      throw std::invalid_argument("ggml cannot decode rows of " + std::to_string(k_) + " elements of its type " +
                                  std::to_string(type));
    }
    row_bytes_ = k_ / traits->blck_size * static_cast<std::int64_t>(traits->type_size);
    if (packed_.numel() < n_ * row_bytes_) throw std::invalid_argument("the packed constant is too short");
    decode_blocks_ = decoder_of(static_cast<ggml_type>(type), *traits);
  }

  void decode_groups(std::int64_t row, float* values, const Rounding<float>& round) {
    const std::int64_t groups = k_ / group_;
    read_floats(*scale_, row * groups, scales_);
    if (zero_point_ != nullptr) read_floats(*zero_point_, row * groups, zero_points_);
    for (std::int64_t number = 0; number < groups; ++number) {
      const float scale = scales_[static_cast<std::size_t>(number)];
      const float zero_point = round(zero_points_[static_cast<std::size_t>(number)]);
      read_levels(row * k_ + number * group_);
      float* target = values + number * group_;
      if (round.active()) {
        for (std::int64_t i = 0; i < group_; ++i) target[i] = round(levels_[i] - zero_point) * scale;
      } else {
        for (std::int64_t i = 0; i < group_; ++i) target[i] = (levels_[i] - zero_point) * scale;
      }
    }
  }

  static void read_floats(const TensorView& view, std::int64_t first, std::vector<float>& target) {
    convert_function(view.dtype, ScalarType::kFloat)(at(view, first), target.data(),
                                                     static_cast<std::int64_t>(target.size()));
  }

  // The integers of one group, quant min added.
  void read_levels(std::int64_t first) {
    float* levels = levels_.data();
    if (signed_) {
      read_bytes(reinterpret_cast<const std::int8_t*>(bytes_) + first, levels);
    } else if (bits_ == 8) {
      read_bytes(bytes_ + first, levels);
    } else if (bits_ == 4 && first % 2 == 0 && group_ % 2 == 0) {
      read_pairs(bytes_ + first / 2, levels);
    } else {
      read_stream(first, levels);
    }
  }

  // Any number of bits. Eight elements are as many whole bytes as each has bits.
  void read_stream(std::int64_t first, float* levels) const {
    constexpr std::int64_t kWord = sizeof(std::uint64_t);
    const std::int64_t nbytes = packed_.numel();
    const std::uint64_t mask = (std::uint64_t{1} << bits_) - 1;
    std::int64_t i = 0;
    if (first * bits_ % 8 == 0) {
      for (; i + 8 <= group_ && (first + i) * bits_ / 8 + kWord <= nbytes; i += 8) {
        const auto word = load_as<std::uint64_t>(bytes_ + (first + i) * bits_ / 8);
        for (int j = 0; j < 8; ++j)
          levels[i + j] = static_cast<float>(static_cast<int>(word >> (j * bits_) & mask)) + low_;
      }
    }
    for (; i < group_; ++i) levels[i] = static_cast<float>(bits_at(bytes_, nbytes, first + i, bits_)) + low_;
  }

  template <typename T>
  void read_bytes(const T* bytes, float* levels) const {
    std::int64_t i = 0;
    for (; i + kLanes <= group_; i += kLanes) store(levels + i, load_integers(bytes + i) + low_);
    for (; i < group_; ++i) levels[i] = static_cast<float>(bytes[i]) + low_;
  }

  // Byte i holds elements 2 i (low half) and 2 i + 1.
  void read_pairs(const std::uint8_t* bytes, float* levels) const {
    std::int64_t i = 0;
    for (; 2 * (i + kLanes) <= group_; i += kLanes) {
      const Pairs pairs = load_nibbles(bytes + i);
      const Lanes low = pairs.low + low_, high = pairs.high + low_;
      store(levels + 2 * i, __builtin_shufflevector(low, high, 0, 8, 1, 9, 2, 10, 3, 11));
      store(levels + 2 * i + kLanes, __builtin_shufflevector(low, high, 4, 12, 5, 13, 6, 14, 7, 15));
    }
    for (; 2 * i < group_; ++i) {
      levels[2 * i] = static_cast<float>(bytes[i] & 15) + low_;
      levels[2 * i + 1] = static_cast<float>(bytes[i] >> 4) + low_;
    }
  }

  std::int64_t n_, k_;
  ScalarType dtype_;
  const TensorView& packed_;
  const std::uint8_t* bytes_;
  ggml_to_float_t decode_blocks_ = nullptr;
  std::int64_t row_bytes_ = 0;
  bool signed_ = false;
  int bits_ = 8;
  float low_ = 0;
  std::int64_t group_ = 0;
  const TensorView* scale_ = nullptr;
  const TensorView* zero_point_ = nullptr;
  std::vector<float> scales_, zero_points_, levels_;
};

// ---- products ----------------------------------------------------------------------------------------------------

constexpr int kRows = 4;    // rows of the matrix that a tile multiplies
constexpr int kInputs = 3;  // rows of x; 12 sums, 3 + 1 operands: as many vectors as AVX2 has registers
constexpr std::int64_t kTogether = 4, kManyInputs = 16;  // tiles that are decoded together where x has more rows

// Loops over the sums of a tile are unrolled, so that the sums stay in registers.
#ifdef __clang__
#define PTN_UNROLL _Pragma("clang loop unroll(full)")
#else
#define PTN_UNROLL _Pragma("GCC unroll 4")
#endif

// out[i * stride + j] = x[i] . w[j], for `M` rows of x and kRows rows of w, each of k numbers.
template <int M>
void multiply_tile(const float* x, const float* w, std::int64_t k, float* out, std::int64_t stride, int rows) {
  Lanes sums[M][kRows] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    Lanes right[kRows];
    PTN_UNROLL
    for (int j = 0; j < kRows; ++j) right[j] = load_as<Lanes>(w + j * k + i);
    PTN_UNROLL
    for (int m = 0; m < M; ++m) {
      const Lanes left = load_as<Lanes>(x + m * k + i);
      PTN_UNROLL
      for (int j = 0; j < kRows; ++j) sums[m][j] = multiply_add(left, right[j], sums[m][j]);
    }
  }
  for (int m = 0; m < M; ++m) {
    for (int j = 0; j < rows; ++j) {
      const Lanes& s = sums[m][j];
      float sum = ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
      for (std::int64_t rest = i; rest < k; ++rest) sum += x[m * k + rest] * w[j * k + rest];
      out[m * stride + j] = sum;
    }
  }
}

void linear(const KernelCall& call, int thread, int threads) {
  Parameters parameters(call);
  PackedMatrix matrix(call, parameters);
  const std::int64_t n = matrix.n(), k = matrix.k();
  const TensorView& output = call.outputs[0];
  const std::int64_t count = n > 0 ? output.numel() / n : 0;
  // Where x has many rows, several tiles are decoded before x is read, so that x is read less often.
  const std::int64_t height = count > kManyInputs ? kTogether * kRows : kRows;
  const std::int64_t blocks = (n + height - 1) / height;
  const Range range = share(blocks, height * k * (count + 1), thread, threads);
  if (range.empty() || count == 0) return;
  const float* x = call.inputs[0].as<const float>();
  float* out = output.as<float>();
  std::vector<float> values(static_cast<std::size_t>(height * k));
  const auto multiply = [&](std::int64_t m, std::int64_t inputs, std::int64_t first, std::int64_t width) {
    for (std::int64_t j = 0; j < width; j += kRows) {
      const int rows = static_cast<int>(std::min<std::int64_t>(kRows, width - j));
      const auto tile = inputs == kInputs ? multiply_tile<kInputs> : multiply_tile<1>;
      tile(x + m * k, values.data() + j * k, k, out + m * n + first + j, n, rows);
    }
  };
  for (std::int64_t block = range.begin; block < range.end; ++block) {
    const std::int64_t first = block * height, width = std::min(height, n - first);
    for (std::int64_t j = 0; j < width; ++j) matrix.decode(first + j, values.data() + j * k);
    std::int64_t m = 0;
    for (; m + kInputs <= count; m += kInputs) multiply(m, kInputs, first, width);
    for (; m < count; ++m) multiply(m, 1, first, width);
  }
}

void rows(const KernelCall& call, int thread, int threads) {
  Parameters parameters(call);
  PackedMatrix matrix(call, parameters);
  const std::int64_t count = call.inputs[0].numel(), k = matrix.k();
  const Range range = share(count, 4 * k, thread, threads);
  if (range.empty()) return;
  const Whole<std::int64_t> indices(call.inputs[0]);
  const ElementWriter<float> writer(call.outputs[0]);
  std::vector<float> values(static_cast<std::size_t>(k));
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t row = indices[i];
    if (row < 0 || row >= matrix.n()) throw IndexError(row, 0, matrix.n(), false);
    matrix.decode(row, values.data());
    writer.write(i * k, values.data(), k);
  }
}

constexpr KernelInfo kKernels[] = {
    {"quant.linear", linear, false, kAnyThreads},
    {"quant.rows", rows, false, kAnyThreads},
};

}  // namespace

KernelList quant_product_kernels() { return make_list(kKernels); }

}  // namespace ptn::kernels
