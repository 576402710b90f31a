// Writing by indices. Indices are int64 (int32 and narrower are accepted), count from the start and are checked.
//
// index.scatter     inputs [x, index, source]; ints [axis, reduce (see Reduce)]; source may be 0-d.
// index.scatter_reduce  the same with ints [axis, reduce, include_self].
// index.index_add   inputs [x, index (1-d), source]; ints [axis, alpha (integers)], floats [alpha (floats)].
// index.index_copy  inputs [x, index (1-d), source]; ints [axis].
// index.index_fill  inputs [x, index (1-d), value (0-d)]; ints [axis].
// index.index_reduce  inputs [x, index (1-d), source]; ints [axis, reduce, include_self].
// index.slice_scatter   inputs [x, source]; ints [axis, start, step, count].
// index.strided_scatter inputs [x, source]; ints [offset, rank, sizes..., strides...] of the written view.
// index.masked_scatter  inputs [x, mask (x's shape), source].
#include <algorithm>
#include <memory>
#include <vector>

#include "families.h"
#include "index.h"

namespace ptn::kernels {
namespace {

// ---- scatter -----------------------------------------------------------------------------------------------------

// How many targets an element hit, for the means and for the first hit where the old value does not count.
class Hits {
 public:
  Hits(Reduce reduce, bool include_self, std::int64_t count) : mean_(reduce == Reduce::kMean), self_(include_self) {
    if (mean_ || !self_) hits_.assign(static_cast<std::size_t>(count), 0);
  }
  bool needed() const { return !hits_.empty(); }
  // Whether this is the first value for the target and replaces it.
  bool replaces(std::int64_t target) { return hits_[static_cast<std::size_t>(target)]++ == 0 && !self_; }
  std::int64_t divisor(std::int64_t target) const {
    const std::int64_t hits = hits_[static_cast<std::size_t>(target)];
    return hits == 0 ? 1 : hits + (self_ ? 1 : 0);
  }

 private:
  bool mean_, self_;
  std::vector<std::int32_t> hits_;
};

template <typename T>
void divide_means(const Hits& hits, T* out, std::int64_t count) {
  using C = computed_t<T>;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t divisor = hits.divisor(i);
    if (divisor == 1) continue;
    const C sum = convert<C>(out[i]);
    if constexpr (std::is_integral_v<C> && !std::is_same_v<C, bool>) {
      const C by = static_cast<C>(divisor);
      C result = static_cast<C>(sum / by);
      if constexpr (std::is_signed_v<C>) {
        if (sum % by != 0 && sum < 0) result = static_cast<C>(result - 1);
      }
      out[i] = result;
    } else {
      out[i] = convert<T>(static_cast<C>(sum / static_cast<C>(divisor)));
    }
  }
}

// One write: element (row, i) of index at `source` goes to x's element `target`.
template <typename T, Reduce kReduce, bool kHits>
void scatter_rows(const TensorView& x, const TensorView& index, const TensorView& source, T* out, int axis, Hits& hits,
                  Range range) {
  const int rank = index.shape.rank(), last = rank - 1;
  const std::int64_t length = index.shape[last];
  Shape strides = contiguous_strides(x.shape);
  Shape source_strides = contiguous_strides(source.shape);
  const bool constant = source.shape.rank() == 0;
  if (constant) source_strides = Shape(strides.begin(), rank);
  const std::int64_t along = strides[axis], size = x.shape[axis];
  strides[axis] = 0;
  Odometer<2> rows(Shape(index.shape.begin(), last),
                   {Shape(strides.begin(), last), Shape(source_strides.begin(), last)});
  rows.seek(range.begin);
  RunReader<std::int64_t> indices(index);
  const T* values = source.as<const T>();
  const std::int64_t step = axis == last ? 0 : 1;
  for (std::int64_t row = range.begin; row < range.end; ++row, rows.next()) {
    const T* from = constant ? values : values + rows.offset(1);
    for (std::int64_t first = 0; first < length; first += kBlock) {
      const std::int64_t count = std::min(kBlock, length - first);
      const std::int64_t* block = indices.read(row * length + first, count);
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t target = rows.offset(0) + checked(block[i], size, axis) * along + (first + i) * step;
        const T value = constant ? *from : from[first + i];
        const bool replace = kHits && hits.replaces(target);
        combine(out[target], value, replace ? Reduce::kReplace : kReduce);
      }
    }
  }
}

void run_scatter(const KernelCall& call, int axis, Reduce reduce, bool include_self, int thread, int threads) {
  const TensorView x = lifted(call.inputs[0]), index = lifted(call.inputs[1]);
  TensorView source = call.inputs[2];
  if (source.shape.rank() == 0 && call.inputs[1].shape.rank() == 0) source = lifted(source);
  if (source.dtype != x.dtype) throw std::invalid_argument("the source has another dtype than the tensor");
  const int rank = x.shape.rank();
  // Along another axis than the first, rows of that first axis are independent; else one thread does it all.
  const bool independent = axis > 0 && rank > 1 && include_self && reduce != Reduce::kMean;
  const std::int64_t outer = independent ? x.shape[0] : 1;
  if (x.numel() == 0) return;
  const std::int64_t unit = x.numel() / outer;
  Range range{0, outer};
  if (independent) {
    range = share(outer, unit, thread, threads);
  } else if (thread != 0) {
    return;
  }
  if (range.empty()) return;
  copy_base(call, range.begin * unit, range.end * unit);
  if (index.numel() == 0) return;
  const std::int64_t rows = index.numel() / index.shape[rank - 1];
  if (independent) {
    // index may have fewer rows than x.
    const std::int64_t per_outer = rows / index.shape[0];
    range = {std::min(range.begin, index.shape[0]) * per_outer, std::min(range.end, index.shape[0]) * per_outer};
  } else {
    range = {0, rows};
  }
  dispatch_storage(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    Hits hits(reduce, include_self, x.numel());
    T* out = call.outputs[0].as<T>();
    dispatch_reduce(reduce, [&](auto fixed) {
      constexpr Reduce kReduce = decltype(fixed)::value;
      if (hits.needed()) {
        scatter_rows<T, kReduce, true>(x, index, source, out, axis, hits, range);
      } else {
        scatter_rows<T, kReduce, false>(x, index, source, out, axis, hits, range);
      }
    });
    if (reduce == Reduce::kMean) divide_means(hits, out, x.numel());
  });
}

void scatter(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 3, 1);
  Parameters parameters(call);
  const int axis = static_cast<int>(parameters.next_int());
  const Reduce reduce = static_cast<Reduce>(parameters.next_int());
  run_scatter(call, axis, reduce, true, thread, threads);
}

void scatter_reduce(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 3, 1);
  Parameters parameters(call);
  const int axis = static_cast<int>(parameters.next_int());
  const Reduce reduce = static_cast<Reduce>(parameters.next_int());
  run_scatter(call, axis, reduce, parameters.next_int() != 0, thread, threads);
}

// ---- whole slices by a 1-d index ---------------------------------------------------------------------------------

// Calls write(target slice, source slice, hit is first) for each index; slices are `inner` elements, of which this
// thread owns `columns`, for each of the `outer` positions in `rows`.
template <typename T, typename F>
void for_slices(const KernelCall& call, int axis, bool shared_hits, int thread, int threads, F&& write) {
  const TensorView x = lifted(call.inputs[0]);
  const std::int64_t size = x.shape[axis], count = call.inputs[1].numel();
  const std::int64_t outer = x.shape.product(0, axis), inner = x.shape.product(axis + 1, x.shape.rank());
  Range rows{0, outer}, columns{0, inner};
  if (shared_hits) {
    if (thread != 0) return;
  } else if (outer > 1) {
    rows = share(outer, inner * std::max(size, count), thread, threads);
  } else {
    columns = share(inner, std::max(size, count), thread, threads);
  }
  if (rows.empty() || columns.empty()) return;
  for (std::int64_t r = rows.begin * size; r < rows.end * size; ++r) {
    if (columns.begin == 0 && columns.end == inner) {
      copy_base(call, r * inner, rows.end * size * inner);
      break;
    }
    copy_base(call, r * inner + columns.begin, r * inner + columns.end);
  }
  const Whole<std::int64_t> index(call.inputs[1]);
  T* out = call.outputs[0].as<T>();
  for (std::int64_t o = rows.begin; o < rows.end; ++o) {
    for (std::int64_t k = 0; k < count; ++k) {
      const std::int64_t target = (o * size + checked(index[k], size, axis)) * inner;
      write(out, target, (o * count + k) * inner, columns);
    }
  }
}

void index_add(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 3, 1);
  Parameters parameters(call);
  const int axis = static_cast<int>(parameters.next_int());
  dispatch_storage(call.inputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = computed_t<T>;
    C alpha;
    if constexpr (std::is_floating_point_v<C>) {
      alpha = static_cast<C>(parameters.next_float());
    } else {
      alpha = static_cast<C>(parameters.next_int());
    }
    const T* source = call.inputs[2].as<const T>();
    for_slices<T>(call, axis, false, thread, threads, [&](T* out, std::int64_t target, std::int64_t from, Range part) {
      for (std::int64_t i = part.begin; i < part.end; ++i) {
        T value = source[from + i];
        if (alpha != C(1)) value = convert<T>(static_cast<C>(convert<C>(value) * alpha));
        combine(out[target + i], value, Reduce::kSum);
      }
    });
  });
}

void index_copy(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 3, 1);
  Parameters parameters(call);
  const int axis = static_cast<int>(parameters.next_int());
  dispatch_size(call.inputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* source = call.inputs[2].as<const T>();
    for_slices<T>(call, axis, false, thread, threads, [&](T* out, std::int64_t target, std::int64_t from, Range part) {
      std::memcpy(out + target + part.begin, source + from + part.begin,
                  static_cast<std::size_t>(part.end - part.begin) * sizeof(T));
    });
  });
}

void index_fill(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 3, 1);
  Parameters parameters(call);
  const int axis = static_cast<int>(parameters.next_int());
  dispatch_size(call.inputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T value = *call.inputs[2].as<const T>();
    for_slices<T>(call, axis, false, thread, threads, [&](T* out, std::int64_t target, std::int64_t, Range part) {
      std::fill(out + target + part.begin, out + target + part.end, value);
    });
  });
}

void index_reduce(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 3, 1);
  Parameters parameters(call);
  const int axis = static_cast<int>(parameters.next_int());
  const Reduce reduce = static_cast<Reduce>(parameters.next_int());
  const bool include_self = parameters.next_int() != 0;
  if (thread != 0) return;
  dispatch_storage(call.inputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* source = call.inputs[2].as<const T>();
    Hits hits(reduce, include_self, call.outputs[0].numel());
    for_slices<T>(call, axis, true, thread, threads, [&](T* out, std::int64_t target, std::int64_t from, Range part) {
      for (std::int64_t i = part.begin; i < part.end; ++i) {
        const bool replace = hits.needed() && hits.replaces(target + i);
        combine(out[target + i], source[from + i], replace ? Reduce::kReplace : reduce);
      }
    });
    if (reduce == Reduce::kMean) divide_means(hits, call.outputs[0].as<T>(), call.outputs[0].numel());
  });
}

// ---- writing slices ----------------------------------------------------------------------------------------------

void slice_scatter(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 2, 1);
  Parameters parameters(call);
  const int axis = static_cast<int>(parameters.next_int());
  const std::int64_t start = parameters.next_int(), step = parameters.next_int(), count = parameters.next_int();
  const TensorView& x = call.inputs[0];
  const std::int64_t size = x.shape[axis], outer = x.shape.product(0, axis);
  const std::int64_t row = x.shape.product(axis + 1, x.shape.rank());
  const Range range = share(outer * size, row, thread, threads);
  if (range.empty()) return;
  copy_base(call, range.begin * row, range.end * row);
  if (count == 0) return;
  const std::size_t bytes = static_cast<std::size_t>(row) * item_size(x.dtype);
  for (std::int64_t o = range.begin / size; o * size < range.end; ++o) {
    for (std::int64_t k = 0; k < count; ++k) {
      const std::int64_t target = o * size + start + k * step;
      if (target < range.begin || target >= range.end) continue;
      std::memcpy(at_mutable(call.outputs[0], target * row), at(call.inputs[1], (o * count + k) * row), bytes);
    }
  }
}

void strided_scatter(const KernelCall& call, int thread, int) {
  expect_operands(call, 2, 1);
  if (thread != 0) return;
  Parameters parameters(call);
  const std::int64_t offset = parameters.next_int();
  const int rank = static_cast<int>(parameters.next_int());
  Shape sizes, strides;
  for (int axis = 0; axis < rank; ++axis) sizes.push_back(parameters.next_int());
  for (int axis = 0; axis < rank; ++axis) strides.push_back(parameters.next_int());
  copy_base(call, 0, call.inputs[0].numel());
  Odometer<1> position(sizes, {strides});
  position.seek(0);
  const std::int64_t total = sizes.numel();
  dispatch_size(call.inputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* out = call.outputs[0].as<T>() + offset;
    const T* source = call.inputs[1].as<const T>();
    for (std::int64_t i = 0; i < total; ++i, position.next()) out[position.offset(0)] = source[i];
  });
}

void masked_scatter(const KernelCall& call, int thread, int) {
  expect_operands(call, 3, 1);
  if (thread != 0) return;
  const std::int64_t total = call.outputs[0].numel(), available = call.inputs[2].numel();
  const std::uint8_t* mask = call.inputs[1].as<const std::uint8_t>();
  copy_base(call, 0, total);
  dispatch_size(call.inputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* out = call.outputs[0].as<T>();
    const T* source = call.inputs[2].as<const T>();
    std::int64_t next = 0;
    for (std::int64_t i = 0; i < total; ++i) {
      if (mask[i] == 0) continue;
      if (next == available) throw std::invalid_argument("the source has fewer elements than the mask has true ones");
      out[i] = source[next++];
    }
  });
}

constexpr KernelInfo kKernels[] = {
    {"index.scatter", scatter, true, kAnyThreads},
    {"index.scatter_reduce", scatter_reduce, true, kAnyThreads},
    {"index.index_add", index_add, true, kAnyThreads},
    {"index.index_copy", index_copy, true, kAnyThreads},
    {"index.index_fill", index_fill, true, kAnyThreads},
    {"index.index_reduce", index_reduce, true, 1},
    {"index.slice_scatter", slice_scatter, true, kAnyThreads},
    {"index.strided_scatter", strided_scatter, true, 1},
    {"index.masked_scatter", masked_scatter, true, 1},
};

}  // namespace

KernelList index_scatter_kernels() { return make_list(kKernels); }

}  // namespace ptn::kernels
