// What attention needs beside matrix products, in float32.
//
// attention.softmax  inputs [scores (..., t, s), mask?]; output the probabilities; ints [causal]; floats [scale].
//                    The mask is bool (true: attend) or float32 (added after scaling) and broadcasts to the scores.
//                    A row of which nothing may be attended to becomes zeros, as in PyTorch. Causal: row i sees
//                    columns 0..i. A second output, where there is one, is the logarithm of each row's sum of
//                    exponentials.
// attention.values   inputs [probabilities (b, t, s), values (b, s, d)]; output their product (b, t, d): for few rows,
//                    where transposing the values costs more than the product.
// attention.rope     inputs [x (b, h, t, d), positions (1 or b, t), inverse frequencies (r / 2)]; output like x; ints
//                    [interleaved]; floats [scale]. Phases in float32; products rounded to x's type, as PyTorch does.
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "families.h"
#include "support.h"

namespace ptn::kernels {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// exp for x <= 0, without branches so that the compiler can vectorise it; within 1 unit in the last place of float32.
// Cephes' expf: 2^n times a polynomial of degree 5 on [-ln 2 / 2, ln 2 / 2].
inline float exp_negative(float x) {
  constexpr float kLog2E = 1.44269504088896341F, kLn2High = 0.693359375F, kLn2Low = -2.12194440e-4F;
  const float clamped = x < -87.0F ? -87.0F : x;
  const float n = std::floor(clamped * kLog2E + 0.5F);
  const float r = (clamped - n * kLn2High) - n * kLn2Low;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  const std::int32_t bits = (static_cast<std::int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return x < -87.0F ? 0.0F : p * power;
}

// Where the mask's row for each row of the scores starts; element strides, 0 where it broadcasts.
struct MaskRows {
  const TensorView* mask = nullptr;
  Shape sizes, strides;  // of the axes before the columns
  std::int64_t column_stride = 0;

  MaskRows(const TensorView& scores, const TensorView* view) : mask(view) {
    if (view == nullptr) return;
    const int rank = scores.shape.rank(), missing = rank - view->shape.rank();
    for (int axis = 0; axis + 1 < rank; ++axis) {
      sizes.push_back(scores.shape[axis]);
      const bool there = axis >= missing && view->shape[axis - missing] != 1;
      strides.push_back(there ? view->shape.product(axis - missing + 1, view->shape.rank()) : 0);
    }
    if (view->shape.rank() > 0 && view->shape[view->shape.rank() - 1] != 1) column_stride = 1;
  }
  std::int64_t offset(std::int64_t row) const {
    std::int64_t at = 0;
    for (int axis = sizes.rank() - 1; axis >= 0; --axis) {
      at += row % sizes[axis] * strides[axis];
      row /= sizes[axis];
    }
    return at;
  }
};

void mask_row(const MaskRows& rows, std::int64_t row, float* scores, std::int64_t count) {
  if (rows.mask == nullptr) return;
  const std::int64_t at = rows.offset(row), step = rows.column_stride;
  if (rows.mask->dtype == ScalarType::kBool) {
    const auto* mask = rows.mask->as<std::uint8_t>() + at;
    for (std::int64_t i = 0; i < count; ++i) scores[i] = mask[i * step] != 0 ? scores[i] : kNothing;
  } else {
    const auto* mask = rows.mask->as<float>() + at;
    for (std::int64_t i = 0; i < count; ++i) scores[i] += mask[i * step];
  }
}

void softmax(const KernelCall& call, int thread, int threads) {
  const TensorView& scores = call.inputs[0];
  const int rank = scores.shape.rank();
  const std::int64_t columns = scores.shape[rank - 1], positions = scores.shape[rank - 2];
  const bool causal = call.ints[0] != 0;
  const auto scale = static_cast<float>(call.floats[0]);
  const MaskRows masks(scores, call.num_inputs > 1 ? &call.inputs[1] : nullptr);
  const Range rows = share(scores.numel() / columns, columns * 8, thread, threads);
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const float* from = scores.as<float>() + row * columns;
    float* to = call.outputs[0].as<float>() + row * columns;
    const std::int64_t seen = causal ? std::min(row % positions + 1, columns) : columns;
    for (std::int64_t i = 0; i < seen; ++i) to[i] = from[i] * scale;
    mask_row(masks, row, to, seen);
    float largest = kNothing;
    bool any_nan = false;
    for (std::int64_t i = 0; i < seen; ++i) {
      largest = to[i] > largest ? to[i] : largest;
      any_nan = any_nan || to[i] != to[i];
    }
    double sum = 0;
    if (any_nan || largest == std::numeric_limits<float>::infinity()) {
      for (std::int64_t i = 0; i < seen; ++i) to[i] = std::numeric_limits<float>::quiet_NaN();
      sum = std::numeric_limits<double>::quiet_NaN();
    } else if (largest == kNothing) {
      std::fill_n(to, seen, 0.0F);
    } else {
      for (std::int64_t i = 0; i < seen; ++i) to[i] = exp_negative(to[i] - largest);
      for (std::int64_t i = 0; i < seen; ++i) sum += static_cast<double>(to[i]);
      const auto factor = static_cast<float>(1.0 / sum);
      for (std::int64_t i = 0; i < seen; ++i) to[i] *= factor;
    }
    std::fill(to + seen, to + columns, 0.0F);
    if (call.num_outputs > 1) {
      const double log_sum = largest == kNothing && !any_nan ? 0.0 : std::log(sum) + static_cast<double>(largest);
      call.outputs[1].as<float>()[row] = static_cast<float>(log_sum);
    }
  }
}

void values(const KernelCall& call, int thread, int threads) {
  const TensorView& probabilities = call.inputs[0];
  const std::int64_t batch = probabilities.shape[0], rows = probabilities.shape[1], length = probabilities.shape[2];
  const std::int64_t width = call.inputs[1].shape[2];
  const Range tasks = share(batch, rows * length * width, thread, threads);
  for (std::int64_t task = tasks.begin; task < tasks.end; ++task) {
    const float* value = call.inputs[1].as<float>() + task * length * width;
    const float* weight = probabilities.as<float>() + task * rows * length;
    float* out = call.outputs[0].as<float>() + task * rows * width;
    std::fill_n(out, rows * width, 0.0F);
    for (std::int64_t s = 0; s < length; ++s, value += width) {
      for (std::int64_t t = 0; t < rows; ++t) {
        const float p = weight[t * length + s];
        float* sum = out + t * width;
        for (std::int64_t d = 0; d < width; ++d) sum[d] += p * value[d];
      }
    }
  }
}

// Rounds to a 16-bit type and back; what PyTorch does between two operators on such a type.
float rounded(float x, ScalarType dtype) {
  if (dtype == ScalarType::kFloat) return x;
  std::uint16_t half = 0;
  float back = 0;
  convert_function(ScalarType::kFloat, dtype)(&x, &half, 1);
  convert_function(dtype, ScalarType::kFloat)(&half, &back, 1);
  return back;
}

template <typename C>
void rope_as(const KernelCall& call, int thread, int threads) {
  const TensorView& x = call.inputs[0];
  const std::int64_t heads = x.shape[1], length = x.shape[2], width = x.shape[3];
  const std::int64_t half = call.inputs[2].shape[0];
  const bool interleaved = call.ints[0] != 0;
  const Whole<std::int64_t> positions(call.inputs[1]);
  const Whole<float> frequencies(call.inputs[2]);
  const bool per_batch = call.inputs[1].shape[0] != 1;
  const Range tasks = share(x.shape[0] * length, heads * width * 4 + half * 32, thread, threads);
  const auto to_float = convert_function(x.dtype, scalar_type_of<C>()),
             from_float = convert_function(scalar_type_of<C>(), x.dtype);
  std::vector<C> cosines(static_cast<std::size_t>(half)), sines(cosines), row(static_cast<std::size_t>(width)),
      out(row);
  const auto scale = static_cast<float>(call.floats[0]);
  auto round = [&](C v) {
    return std::is_same_v<C, double> ? v : static_cast<C>(rounded(static_cast<float>(v), x.dtype));
  };
  for (std::int64_t task = tasks.begin; task < tasks.end; ++task) {
    const std::int64_t batch = task / length, t = task % length;
    const auto position = static_cast<float>(positions[(per_batch ? batch * length : 0) + t]);
    for (std::int64_t i = 0; i < half; ++i) {
      const float phase = position * frequencies[i];
      cosines[i] = round(static_cast<C>(std::cos(phase) * scale));
      sines[i] = round(static_cast<C>(std::sin(phase) * scale));
    }
    for (std::int64_t head = 0; head < heads; ++head) {
      const std::int64_t first = ((batch * heads + head) * length + t) * width;
      to_float(at(x, first), row.data(), width);
      std::copy(row.begin(), row.end(), out.begin());
      for (std::int64_t i = 0; i < half; ++i) {
        const std::int64_t a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + half;
        out[a] = round(round(row[a] * cosines[i]) + round(-row[b] * sines[i]));
        out[b] = round(round(row[b] * cosines[i]) + round(row[a] * sines[i]));
      }
      from_float(out.data(), at_mutable(call.outputs[0], first), width);
    }
  }
}

void rope(const KernelCall& call, int thread, int threads) {
  if (call.inputs[0].dtype == ScalarType::kDouble) return rope_as<double>(call, thread, threads);
  return rope_as<float>(call, thread, threads);
}

constexpr KernelInfo kKernels[] = {
    {"attention.softmax", softmax, false, kAnyThreads},
    {"attention.values", values, false, kAnyThreads},
    {"attention.rope", rope, false, kAnyThreads},
};

}  // namespace

KernelList attention_kernels() { return make_list(kKernels); }

}  // namespace ptn::kernels
