// Running results along one axis, and softmax. Part of the reduction family.
//
// reduction.cumsum, cumprod, logcumsumexp   inputs [x]; ints [axis]; x converts to the output's dtype first.
// reduction.cummax, cummin                  inputs [x]; outputs [values, indices (int64)]; ints [axis]; the last of
// equals,
//                                      and NaN before everything, as in PyTorch.
// reduction.softmax, log_softmax            inputs [x]; ints [axis].
#include <cmath>
#include <vector>

#include "families.h"
#include "math.h"
#include "reduction.h"

namespace ptn::kernels {
namespace {

// x as outer x length x inner around the axis. A task is one outer position and up to kTile columns of inner.
struct Columns {
  std::int64_t outer, length, inner, tiles;
};

Columns columns_along(const Shape& shape, std::int64_t axis) {
  if (shape.rank() == 0) return {1, 1, 1, 1};
  const int at_axis = static_cast<int>(axis < 0 ? axis + shape.rank() : axis);
  const std::int64_t inner = shape.product(at_axis + 1, shape.rank());
  return {shape.product(0, at_axis), shape[at_axis], inner, (inner + kTile - 1) / kTile};
}

// Calls task(first element, columns) for this thread's share.
template <typename F>
void for_columns(const Columns& columns, int cost, int thread, int threads, F&& task) {
  if (columns.length == 0 || columns.inner == 0) return;
  const Range range =
      share(columns.outer * columns.tiles, columns.length * cost * std::min(columns.inner, kTile), thread, threads);
  for (std::int64_t t = range.begin; t < range.end; ++t) {
    const std::int64_t column = t % columns.tiles * kTile;
    task(t / columns.tiles * columns.length * columns.inner + column, std::min(kTile, columns.inner - column));
  }
}

template <typename F>
void dispatch_scan(ScalarType result, F&& function) {
  if (!is_float(result)) {
    function(TypeTag<std::int64_t>{});
  } else {
    dispatch_float(result, [&](auto tag) { function(tag); });
  }
}

struct AddTo {
  template <typename S>
  static void apply(S& state, S value) {
    state += value;
  }
};
struct MultiplyBy {
  template <typename S>
  static void apply(S& state, S value) {
    state *= value;
  }
};
struct LogAdd {
  template <typename S>
  static void apply(S& state, S value) {
    const S low = std::min(state, value), high = std::max(state, value);
    if (state != state || value != value) {
      state = state + value;
    } else if (low != high || std::isfinite(low)) {
      state = high + std::log1p(std::exp(low - high));
    } else {
      state = value;
    }
  }
};

template <typename Op, int kStart>
void running(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 1, 1);
  Parameters parameters(call);
  const Columns columns = columns_along(call.inputs[0].shape, parameters.next_int());
  const TensorView& output = call.outputs[0];
  constexpr bool floats_only = std::is_same_v<Op, LogAdd>;
  if (floats_only && !is_float(output.dtype)) throw_dtype("logcumsumexp", output.dtype);
  dispatch_scan(output.dtype, [&](auto tag) {
    using C = typename decltype(tag)::type;
    if constexpr (!floats_only || std::is_floating_point_v<C>) {
      using S = sum_t<C>;
      RunReader<C> reader(call.inputs[0]);
      const ConvertFunction store = convert_function(scalar_type_of<C>(), output.dtype);
      for_columns(columns, 2, thread, threads, [&](std::int64_t first, std::int64_t count) {
        S states[kTile];
        C results[kTile > kBlock ? kTile : kBlock];
        const S start = kStart == -1 ? static_cast<S>(-std::numeric_limits<double>::infinity()) : S(kStart);
        std::fill_n(states, count, start);
        if (columns.inner == 1) {
          for (std::int64_t begin = 0; begin < columns.length; begin += kBlock) {
            const std::int64_t part = std::min(kBlock, columns.length - begin);
            const C* x = reader.read(first + begin, part);
            for (std::int64_t i = 0; i < part; ++i) {
              Op::apply(states[0], static_cast<S>(x[i]));
              results[i] = static_cast<C>(states[0]);
            }
            store(results, at_mutable(output, first + begin), part);
          }
          return;
        }
        for (std::int64_t k = 0; k < columns.length; ++k) {
          const std::int64_t at_row = first + k * columns.inner;
          const C* x = reader.read(at_row, count);
          for (std::int64_t i = 0; i < count; ++i) {
            Op::apply(states[i], static_cast<S>(x[i]));
            results[i] = static_cast<C>(states[i]);
          }
          store(results, at_mutable(output, at_row), count);
        }
      });
    }
  });
}

template <bool kMaximum>
void running_extreme(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 1, 2);
  Parameters parameters(call);
  const Columns columns = columns_along(call.inputs[0].shape, parameters.next_int());
  std::int64_t* indices = call.outputs[1].as<std::int64_t>();
  dispatch_compute(compute_dtype(call.inputs[0].dtype), [&](auto tag) {
    using C = typename decltype(tag)::type;
    RunReader<C> reader(call.inputs[0]);
    const ConvertFunction store = convert_function(scalar_type_of<C>(), call.outputs[0].dtype);
    for_columns(columns, 2, thread, threads, [&](std::int64_t first, std::int64_t count) {
      C best[kTile];
      std::int64_t places[kTile];
      for (std::int64_t k = 0; k < columns.length; ++k) {
        const std::int64_t at_row = first + k * columns.inner;
        const C* x = reader.read(at_row, count);
        for (std::int64_t i = 0; i < count; ++i) {
          const bool takes = k == 0 || is_nan_value(x[i]) ||
                             (!is_nan_value(best[i]) && (kMaximum ? x[i] >= best[i] : x[i] <= best[i]));
          if (takes) {
            best[i] = x[i];
            places[i] = k;
          }
          indices[at_row + i] = places[i];
        }
        store(best, at_mutable(call.outputs[0], at_row), count);
      }
    });
  });
}

// exp of a difference that is at most 0, as C.
template <typename C>
inline C exp_of(C x) {
  if constexpr (std::is_same_v<C, float>) {
    return static_cast<float>(fast::exp(x));
  } else {
    return std::exp(x);
  }
}

template <typename C>
inline C higher(C a, C b) {
  return a > b || is_nan_value(a) ? a : b;
}

// Softmax of one run; `y` may be `x`.
template <typename C, bool kLog>
void softmax_row(const C* x, C* y, std::int64_t count) {
  C lanes[kLanes];
  std::fill_n(lanes, kLanes, -std::numeric_limits<C>::infinity());
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t j = 0; j < kLanes; ++j) lanes[j] = higher(lanes[j], x[i + j]);
  }
  for (; i < count; ++i) lanes[0] = higher(lanes[0], x[i]);
  for (std::int64_t j = 1; j < kLanes; ++j) lanes[0] = higher(lanes[0], lanes[j]);
  const C highest = lanes[0];
  if constexpr (kLog) {
    double sum = 0.0;
    C block[kBlock];
    for (std::int64_t first = 0; first < count; first += kBlock) {
      const std::int64_t part = std::min(kBlock, count - first);
      for (std::int64_t k = 0; k < part; ++k) block[k] = exp_of(x[first + k] - highest);
      sum += sum_of(block, part, [](double value) { return value; });
    }
    const C log_sum = static_cast<C>(std::log(sum));
    for (std::int64_t k = 0; k < count; ++k) y[k] = x[k] - highest - log_sum;
  } else {
#pragma GCC ivdep
    for (std::int64_t k = 0; k < count; ++k) y[k] = exp_of(x[k] - highest);
    const C scale = static_cast<C>(1.0 / sum_of(y, count, [](double value) { return value; }));
    for (std::int64_t k = 0; k < count; ++k) y[k] *= scale;
  }
}

// Softmax down `width` columns of `length` rows in `x`, which becomes the result.
template <typename C, bool kLog>
void softmax_columns(C* x, std::int64_t length, std::int64_t width) {
  C highest[kTile];
  double sums[kTile] = {};
  std::fill_n(highest, width, -std::numeric_limits<C>::infinity());
  for (std::int64_t k = 0; k < length; ++k) {
    for (std::int64_t i = 0; i < width; ++i) highest[i] = higher(highest[i], x[k * width + i]);
  }
  for (std::int64_t k = 0; k < length; ++k) {
    C* row = x + k * width;
    for (std::int64_t i = 0; i < width; ++i) {
      const C value = exp_of(row[i] - highest[i]);
      sums[i] += static_cast<double>(value);
      row[i] = kLog ? row[i] - highest[i] : value;
    }
  }
  C factors[kTile];
  for (std::int64_t i = 0; i < width; ++i) factors[i] = static_cast<C>(kLog ? std::log(sums[i]) : 1.0 / sums[i]);
  for (std::int64_t k = 0; k < length; ++k) {
    C* row = x + k * width;
    for (std::int64_t i = 0; i < width; ++i) row[i] = kLog ? row[i] - factors[i] : row[i] * factors[i];
  }
}

template <bool kLog>
void softmax(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 1, 1);
  Parameters parameters(call);
  const TensorView& input = call.inputs[0];
  const TensorView& output = call.outputs[0];
  const Columns columns = columns_along(input.shape, parameters.next_int());
  dispatch_float(output.dtype, [&](auto tag) {
    using C = typename decltype(tag)::type;
    const std::int64_t width = std::min(columns.inner, kTile);
    std::vector<C> values(static_cast<std::size_t>(columns.length * width));
    C* x = values.data();
    const ConvertFunction load = convert_function(input.dtype, scalar_type_of<C>());
    const ConvertFunction store = convert_function(scalar_type_of<C>(), output.dtype);
    for_columns(columns, 20, thread, threads, [&](std::int64_t first, std::int64_t count) {
      if (columns.inner == 1) {
        load(at(input, first), x, columns.length);
        softmax_row<C, kLog>(x, x, columns.length);
        store(x, at_mutable(output, first), columns.length);
        return;
      }
      for (std::int64_t k = 0; k < columns.length; ++k) {
        load(at(input, first + k * columns.inner), x + k * count, count);
      }
      softmax_columns<C, kLog>(x, columns.length, count);
      for (std::int64_t k = 0; k < columns.length; ++k) {
        store(x + k * count, at_mutable(output, first + k * columns.inner), count);
      }
    });
  });
}

constexpr KernelInfo kKernels[] = {
    {"reduction.cumsum", running<AddTo, 0>, false, kAnyThreads},
    {"reduction.cumprod", running<MultiplyBy, 1>, false, kAnyThreads},
    {"reduction.logcumsumexp", running<LogAdd, -1>, false, kAnyThreads},
    {"reduction.cummax", running_extreme<true>, false, kAnyThreads},
    {"reduction.cummin", running_extreme<false>, false, kAnyThreads},
    {"reduction.softmax", softmax<false>, false, kAnyThreads},
    {"reduction.log_softmax", softmax<true>, false, kAnyThreads},
};

}  // namespace

KernelList reduction_scan_kernels() { return make_list(kKernels); }

}  // namespace ptn::kernels
