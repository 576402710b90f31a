// Sorting along one axis. NaN counts as larger than everything, as in PyTorch.
//
// sort.sort   inputs [x]; outputs [values, indices (int64)]; ints [axis, descending]. Stable.
// sort.topk   inputs [x]; outputs [values, indices (int64)]; ints [axis, largest, sorted]; k is the outputs' size.
// sort.kth    inputs [x]; outputs [values, indices (int64)]; ints [axis, k]: the
//             k-th smallest, counted from 0; k = -1 the lower median, with the first NaN winning as torch.median.
//
// sort.search inputs [sequence, values, sorter? (int64)]; outputs int64 or int32; ints [computed dtype, right, has
//             sorter]: the place of each value in the sorted last axis of the sequence, which has one axis or the axes
//             of the values.
#include <algorithm>
#include <vector>

#include "families.h"
#include "support.h"

namespace ptn::kernels {
namespace {

template <typename T>
bool is_nan(T x) {
  if constexpr (std::is_floating_point_v<T>) {
    return x != x;
  } else {
    return false;
  }
}

template <typename T>
struct Entry {
  T value;
  std::int64_t index;
};

template <typename T>
bool less(const Entry<T>& a, const Entry<T>& b) {
  return (!is_nan(a.value) && is_nan(b.value)) || a.value < b.value;
}
template <typename T>
bool greater(const Entry<T>& a, const Entry<T>& b) {
  return (is_nan(a.value) && !is_nan(b.value)) || a.value > b.value;
}

// Rows along `axis`: element i of row r is at first(r) + i * stride.
struct Rows {
  std::int64_t count, length, stride;
  std::int64_t first(std::int64_t row, std::int64_t own_length) const {
    return row / stride * own_length * stride + row % stride;
  }
};

Rows rows_along(const Shape& shape, int axis) {
  if (shape.rank() == 0) return {1, 1, 1};
  const std::int64_t stride = shape.product(axis + 1, shape.rank());
  return {shape.product(0, axis) * stride, shape[axis], stride};
}

template <typename T>
void load_row(const TensorView& in, const Rows& rows, std::int64_t row, std::vector<Entry<T>>& entries) {
  const std::int64_t first = rows.first(row, rows.length);
  if (in.dtype == scalar_type_of<T>()) {
    const T* from = in.as<const T>() + first;
    for (std::int64_t i = 0; i < rows.length; ++i) entries[static_cast<std::size_t>(i)] = {from[i * rows.stride], i};
    return;
  }
  const ConvertFunction convert = convert_function(in.dtype, scalar_type_of<T>());
  for (std::int64_t i = 0; i < rows.length; ++i) {
    Entry<T>& entry = entries[static_cast<std::size_t>(i)];
    convert(at(in, first + i * rows.stride), &entry.value, 1);
    entry.index = i;
  }
}

template <typename T>
void store(const TensorView& values, const TensorView& indices, std::int64_t at_element, const Entry<T>& entry) {
  // Half types come back exactly: nothing was computed with them.
  if (values.dtype == scalar_type_of<T>()) {
    values.as<T>()[at_element] = entry.value;
  } else {
    convert_function(scalar_type_of<T>(), values.dtype)(&entry.value, at_mutable(values, at_element), 1);
  }
  indices.as<std::int64_t>()[at_element] = entry.index;
}

// Bools sort as bytes.
template <typename F>
void dispatch_ordered(ScalarType dtype, F&& function) {
  dispatch_compute(compute_dtype(dtype), [&](auto tag) { function(tag); });
}

std::int64_t row_cost(std::int64_t length) {
  std::int64_t bits = 1;
  while ((std::int64_t{1} << bits) < length) ++bits;
  return length * bits * 4;
}

void sort(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 1, 2);
  Parameters parameters(call);
  const int axis = static_cast<int>(parameters.next_int());
  const bool descending = parameters.next_int() != 0;
  const Rows rows = rows_along(call.inputs[0].shape, axis);
  const Range range = share(rows.count, row_cost(rows.length), thread, threads);
  if (range.empty()) return;
  dispatch_ordered(call.inputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    std::vector<Entry<T>> entries(static_cast<std::size_t>(rows.length));
    for (std::int64_t row = range.begin; row < range.end; ++row) {
      load_row(call.inputs[0], rows, row, entries);
      std::stable_sort(entries.begin(), entries.end(), descending ? greater<T> : less<T>);
      const std::int64_t first = rows.first(row, rows.length);
      for (std::int64_t i = 0; i < rows.length; ++i) {
        store(call.outputs[0], call.outputs[1], first + i * rows.stride, entries[static_cast<std::size_t>(i)]);
      }
    }
  });
}

// The same algorithms of the standard library on the same data as PyTorch, so that ties fall the same way.
template <typename T>
void select_top(std::vector<Entry<T>>& entries, std::int64_t k, bool largest, bool sorted) {
  const auto compare = largest ? greater<T> : less<T>;
  const std::int64_t length = static_cast<std::int64_t>(entries.size());
  if (k == 0) return;
  if (k * 64 <= length) {
    std::partial_sort(entries.begin(), entries.begin() + k, entries.end(), compare);
    return;
  }
  std::nth_element(entries.begin(), entries.begin() + k - 1, entries.end(), compare);
  if (sorted) std::sort(entries.begin(), entries.begin() + k - 1, compare);
}

void topk(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 1, 2);
  Parameters parameters(call);
  const int axis = static_cast<int>(parameters.next_int());
  const bool largest = parameters.next_int() != 0;
  const bool sorted = parameters.next_int() != 0;
  const Rows rows = rows_along(call.inputs[0].shape, axis);
  const std::int64_t k = call.outputs[0].shape.rank() == 0 ? 1 : call.outputs[0].shape[axis];
  if (k > rows.length) throw std::invalid_argument("k exceeds the size of the axis");
  const Range range = share(rows.count, row_cost(rows.length), thread, threads);
  if (range.empty()) return;
  dispatch_ordered(call.inputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    std::vector<Entry<T>> entries(static_cast<std::size_t>(rows.length));
    for (std::int64_t row = range.begin; row < range.end; ++row) {
      load_row(call.inputs[0], rows, row, entries);
      select_top(entries, k, largest, sorted);
      const std::int64_t first = rows.first(row, k);
      for (std::int64_t i = 0; i < k; ++i) {
        store(call.outputs[0], call.outputs[1], first + i * rows.stride, entries[static_cast<std::size_t>(i)]);
      }
    }
  });
}

template <typename T>
Entry<T> kth_of(std::vector<Entry<T>>& entries, std::int64_t k) {
  if (k < 0) {
    for (const Entry<T>& entry : entries) {
      if (is_nan(entry.value)) return entry;
    }
    k = (static_cast<std::int64_t>(entries.size()) - 1) / 2;
  }
  const auto before = [](const Entry<T>& a, const Entry<T>& b) {
    return less(a, b) || (!less(b, a) && a.index < b.index);
  };
  std::nth_element(entries.begin(), entries.begin() + k, entries.end(), before);
  return entries[static_cast<std::size_t>(k)];
}

void kth(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 1, 2);
  Parameters parameters(call);
  const int axis = static_cast<int>(parameters.next_int());
  const std::int64_t k = parameters.next_int();
  const Rows rows = rows_along(call.inputs[0].shape, axis);
  if (rows.length == 0 || k >= rows.length) throw std::invalid_argument("k exceeds the size of the axis");
  const Range range = share(rows.count, row_cost(rows.length), thread, threads);
  if (range.empty()) return;
  dispatch_ordered(call.inputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    std::vector<Entry<T>> entries(static_cast<std::size_t>(rows.length));
    for (std::int64_t row = range.begin; row < range.end; ++row) {
      load_row(call.inputs[0], rows, row, entries);
      store(call.outputs[0], call.outputs[1], row, kth_of(entries, k));
    }
  });
}

// The first place whose element is not less than (`right`: is greater than) the value; NaN is greater than all numbers.
template <typename T>
std::int64_t place_of(T value, const T* sequence, const std::int64_t* sorter, std::int64_t length, bool right) {
  std::int64_t low = 0, high = length;
  const Entry<T> wanted{value, 0};
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    const Entry<T> found{sequence[sorter != nullptr ? sorter[middle] : middle], 0};
    const bool after = right ? !less(wanted, found) : less(found, wanted);
    if (after) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

void search(const KernelCall& call, int thread, int threads) {
  Parameters parameters(call);
  const ScalarType computed = compute_dtype(static_cast<ScalarType>(parameters.next_int()));
  const bool right = parameters.next_int() != 0, has_sorter = parameters.next_int() != 0;
  const TensorView& values = call.inputs[1];
  const Shape& shape = call.inputs[0].shape;
  const std::int64_t length = shape[shape.rank() - 1];
  const std::int64_t per_row = shape.rank() > 1 ? values.shape[values.shape.rank() - 1] : values.numel();
  const Range range = share(values.numel(), 32, thread, threads);
  if (range.empty()) return;
  const std::int64_t* sorter = has_sorter ? call.inputs[2].as<const std::int64_t>() : nullptr;
  if (has_sorter) {
    const std::int64_t count = call.inputs[2].numel();
    const std::int64_t* wrong =
        std::find_if(sorter, sorter + count, [=](std::int64_t index) { return index < 0 || index >= length; });
    if (wrong != sorter + count) {
      call.errors->record_index(call.op, *wrong, shape.rank() - 1, length, false);
      return;
    }
  }
  dispatch_compute(computed, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Whole<T> sequence(call.inputs[0]), wanted(values);
    const ElementWriter<std::int64_t> writer(call.outputs[0]);
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      const std::int64_t row = i / per_row * length;
      const std::int64_t place =
          place_of(wanted[i], sequence.data() + row, sorter != nullptr ? sorter + row : nullptr, length, right);
      writer.write(i, &place, 1);
    }
  });
}

constexpr KernelInfo kKernels[] = {
    {"sort.sort", sort, false, kAnyThreads},
    {"sort.topk", topk, false, kAnyThreads},
    {"sort.kth", kth, false, kAnyThreads},
    {"sort.search", search, false, kAnyThreads},
};

}  // namespace

KernelList sort_kernels() { return make_list(kKernels); }

}  // namespace ptn::kernels
