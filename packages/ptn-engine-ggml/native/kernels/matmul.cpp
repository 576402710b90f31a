// Matrix products of dtypes that ggml does not multiply: integers, bool, float64 (and the half types, in float).
//
// matmul.matmul   inputs [a (..., m, k), b (..., k, n)]: batch axes broadcast. Integers wrap.
// matmul.linear   inputs [x (..., k), weight (n, k), bias?]; ints [has bias].
// matmul.grouped  inputs [x (rows, k), weight (groups, n, k), ends (groups, int64)]: the rows from the end of the group
//                 before up to ends[g] meet weight[g]; those behind the last end give zeros.
#include <algorithm>
#include <memory>

#include "families.h"
#include "support.h"

namespace ptn::kernels {
namespace {

// Integers accumulate modulo 2^64, which is right for every width; floats in double.
template <typename C>
using accumulator_t = std::conditional_t<std::is_floating_point_v<C>, double, std::uint64_t>;

constexpr std::int64_t kWidth = 128;  // columns of a tile
constexpr std::int64_t kRows = 4;     // rows of a tile, which share each load of b

// A tile of `rows` rows and `width` columns of out (m, n) = a (m, k) x b, with b as k rows of n.
template <typename C>
void multiply_tile(const C* a, const C* b, C* out, std::int64_t rows, std::int64_t width, std::int64_t k,
                   std::int64_t n) {
  using A = accumulator_t<C>;
  A sums[kRows][kWidth] = {};
  for (std::int64_t i = 0; i < k; ++i) {
    const C* from = b + i * n;
    for (std::int64_t r = 0; r < rows; ++r) {
      const A factor = static_cast<A>(a[r * k + i]);
      A* row = sums[r];
      for (std::int64_t j = 0; j < width; ++j) row[j] += factor * static_cast<A>(from[j]);
    }
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t j = 0; j < width; ++j) out[r * n + j] = static_cast<C>(sums[r][j]);
  }
}

// Rows [begin, end) of the product.
template <typename C>
void multiply_rows(const C* a, const C* b, C* out, std::int64_t begin, std::int64_t end, std::int64_t k,
                   std::int64_t n) {
  for (std::int64_t first = 0; first < n; first += kWidth) {
    const std::int64_t width = std::min(kWidth, n - first);
    for (std::int64_t row = begin; row < end; row += kRows) {
      multiply_tile(a + row * k, b + first, out + row * n + first, std::min(kRows, end - row), width, k, n);
    }
  }
}

void matmul(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 2, 1);
  const TensorView& output = call.outputs[0];
  const Shape& a_shape = call.inputs[0].shape;
  const Shape& b_shape = call.inputs[1].shape;
  if (a_shape.rank() < 2 || b_shape.rank() < 2) throw std::invalid_argument("matmul takes matrices");
  const std::int64_t m = a_shape[a_shape.rank() - 2], k = a_shape[a_shape.rank() - 1], n = b_shape[b_shape.rank() - 1];
  const Shape batch(output.shape.begin(), output.shape.rank() - 2);
  const Range range = share(batch.numel() * m, k * n, thread, threads);
  if (range.empty()) return;
  const auto batch_strides = [&](const Shape& shape, std::int64_t unit) {
    Shape strides = batch;
    const int missing = batch.rank() - (shape.rank() - 2);
    for (int axis = batch.rank() - 1; axis >= 0; --axis) {
      const std::int64_t size = axis < missing ? 1 : shape[axis - missing];
      strides[axis] = size == 1 ? 0 : unit;
      unit *= size;
    }
    return strides;
  };
  dispatch_compute(compute_dtype(output.dtype), [&](auto tag) {
    using C = typename decltype(tag)::type;
    const Whole<C> a(call.inputs[0]), b(call.inputs[1]);
    const ElementWriter<C> writer(output);
    std::unique_ptr<C[]> rows(new C[static_cast<std::size_t>(m * n > 0 ? m * n : 1)]);
    Odometer<2> position(batch, {batch_strides(a_shape, m * k), batch_strides(b_shape, k * n)});
    for (std::int64_t row = range.begin; row < range.end;) {
      const std::int64_t item = row / m, first = row % m, last = std::min(m, first + range.end - row);
      position.seek(item);
      multiply_rows(a.data() + position.offset(0), b.data() + position.offset(1), rows.get(), first, last, k, n);
      writer.write(row * n, rows.get() + first * n, (last - first) * n);
      row += last - first;
    }
  });
}

void linear(const KernelCall& call, int thread, int threads) {
  Parameters parameters(call);
  const bool has_bias = parameters.next_int() != 0;
  const TensorView& x = call.inputs[0];
  const TensorView& output = call.outputs[0];
  const Shape& weight_shape = call.inputs[1].shape;
  const std::int64_t n = weight_shape.rank() > 1 ? weight_shape[0] : 1, k = weight_shape[weight_shape.rank() - 1];
  if (output.numel() == 0) return;
  const std::int64_t rows = output.numel() / n;
  const Range range = share(rows * n, k, thread, threads);
  if (range.empty()) return;
  dispatch_compute(compute_dtype(output.dtype), [&](auto tag) {
    using C = typename decltype(tag)::type;
    using A = accumulator_t<C>;
    const Whole<C> a(x), weight(call.inputs[1]);
    std::unique_ptr<Whole<C>> bias(has_bias ? new Whole<C>(call.inputs[2]) : nullptr);
    const ElementWriter<C> writer(output);
    for (std::int64_t o = range.begin; o < range.end; ++o) {
      const C* left = a.data() + o / n * k;
      const C* right = weight.data() + o % n * k;
      A lanes[4] = {};
      std::int64_t i = 0;
      for (; i + 4 <= k; i += 4) {
        for (int j = 0; j < 4; ++j) lanes[j] += static_cast<A>(left[i + j]) * static_cast<A>(right[i + j]);
      }
      A sum = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
      for (; i < k; ++i) sum += static_cast<A>(left[i]) * static_cast<A>(right[i]);
      if (bias) sum += static_cast<A>((*bias)[o % n]);
      const C value = static_cast<C>(sum);
      writer.write(o, &value, 1);
    }
  });
}

// The sum of x[i] * w[i] over k elements. Lanes let the compiler use vector registers.
template <typename C>
C dot(const C* x, const C* w, std::int64_t k) {
  constexpr int kLanes = 16;
  C lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] += x[i + j] * w[i + j];
  }
  C sum = 0;
  for (const C lane : lanes) sum += lane;
  for (; i < k; ++i) sum += x[i] * w[i];
  return sum;
}

// Elements from `first` on as type C, converted a block at a time where it is stored otherwise.
template <typename C>
void read_row(RunReader<C>& reader, std::int64_t first, std::int64_t count, C* to) {
  for (std::int64_t i = 0; i < count; i += kBlock) {
    const std::int64_t length = std::min(kBlock, count - i);
    std::copy_n(reader.read(first + i, length), length, to + i);
  }
}

// Throws unless the ends rise from 0 to at most `rows`.
void check_ends(const std::int64_t* ends, std::int64_t groups, std::int64_t rows) {
  std::int64_t last = 0;
  for (std::int64_t group = 0; group < groups; ++group) {
    if (ends[group] < last || ends[group] > rows) throw IndexError(ends[group], 0, rows + 1, false);
    last = ends[group];
  }
}

void grouped(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 3, 1);
  const TensorView& output = call.outputs[0];
  const Shape& shape = call.inputs[1].shape;
  if (shape.rank() != 3 || output.shape.rank() != 2) throw std::invalid_argument("grouped takes rows and matrices");
  const std::int64_t groups = shape[0], n = shape[1], k = shape[2], rows = output.shape[0];
  const Whole<std::int64_t> ends(call.inputs[2]);
  check_ends(ends.data(), groups, rows);
  // Each thread takes columns for all rows, so that it reads its part of a group's weights once.
  const Range columns = share(n, rows * k, thread, threads);
  if (columns.empty()) return;
  dispatch_float(compute_dtype(output.dtype), [&](auto tag) {
    using C = typename decltype(tag)::type;
    const Whole<C> x(call.inputs[0]);
    RunReader<C> weights(call.inputs[1]);
    const ElementWriter<C> writer(output);
    const std::unique_ptr<C[]> converted(new C[static_cast<std::size_t>(k)]);
    std::int64_t first = 0;
    for (std::int64_t group = 0; group <= groups; ++group) {
      const std::int64_t end = group < groups ? ends[group] : rows;
      for (std::int64_t column = columns.begin; column < columns.end && first < end; ++column) {
        const C* w = converted.get();
        if (group < groups && weights.direct()) {
          w = weights.read((group * n + column) * k, k);
        } else if (group < groups) {
          read_row(weights, (group * n + column) * k, k, converted.get());
        }
        for (std::int64_t row = first; row < end; ++row) {
          const C value = group < groups ? dot(x.data() + row * k, w, k) : C{0};
          writer.write(row * n + column, &value, 1);
        }
      }
      first = end;
    }
  });
}

constexpr KernelInfo kKernels[] = {
    {"matmul.grouped", grouped, false, kAnyThreads},
    {"matmul.matmul", matmul, false, kAnyThreads},
    {"matmul.linear", linear, false, kAnyThreads},
};

}  // namespace

KernelList matmul_kernels() { return make_list(kKernels); }

}  // namespace ptn::kernels
