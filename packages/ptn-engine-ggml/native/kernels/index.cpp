// Reading and writing by indices. Indices are int64 (int32 and narrower are accepted) and are checked.
//
// index.select      inputs [x, index (any shape)]; ints [axis].
//                   The output has index's shape in place of the axis.
// index.gather      inputs [x, index]; ints [axis].
// index.index       inputs [x, index...]; ints [count, then per entry of torch's list 1 (a tensor) or 0 (None)]. Bool
//                   and uint8 tensors are masks; they must select as many elements as the output has room for.
// index.index_put   inputs [x, values, index...]; ints [accumulate, count, entries as above].
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
#include "support.h"

namespace ptn::kernels {
namespace {

enum class Reduce : std::int64_t { kReplace = 0, kSum = 1, kProduct = 2, kMean = 3, kMaximum = 4, kMinimum = 5 };

std::int64_t checked(std::int64_t index, std::int64_t size, int axis) {
  if (index < 0 || index >= size) throw IndexError(index, axis, size, false);
  return index;
}
std::int64_t wrapped(std::int64_t index, std::int64_t size, int axis) {
  if (index < -size || index >= size) throw IndexError(index, axis, size, true);
  return index < 0 ? index + size : index;
}

// ---- reading -----------------------------------------------------------------------------------------------------

template <typename T>
void select_rows(const KernelCall& call, int axis, int thread, int threads) {
  const TensorView& x = call.inputs[0];
  const std::int64_t count = call.inputs[1].numel(), size = x.shape[axis];
  const std::int64_t outer = x.shape.product(0, axis), inner = x.shape.product(axis + 1, x.shape.rank());
  const Range range = share(outer * count, inner, thread, threads);
  if (range.empty()) return;
  const Whole<std::int64_t> index(call.inputs[1]);
  const T* in = x.as<const T>();
  T* out = call.outputs[0].as<T>();
  std::int64_t o = range.begin / count, k = range.begin % count;
  for (std::int64_t row = range.begin; row < range.end; ++row) {
    const T* from = in + (o * size + checked(index[k], size, axis)) * inner;
    if (inner == 1) {
      out[row] = *from;
    } else {
      std::memcpy(out + row * inner, from, static_cast<std::size_t>(inner) * sizeof(T));
    }
    if (++k == count) {
      k = 0;
      ++o;
    }
  }
}

void select(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 2, 1);
  Parameters parameters(call);
  const int axis = static_cast<int>(parameters.next_int());
  TensorView x = call.inputs[0];
  if (x.shape.rank() == 0) x.shape.push_back(1);
  KernelCall lifted = call;
  const TensorView inputs[] = {x, call.inputs[1]};
  lifted.inputs = inputs;
  dispatch_size(x.dtype, [&](auto tag) { select_rows<typename decltype(tag)::type>(lifted, axis, thread, threads); });
}

template <typename T>
void gather_rows(const TensorView& x, const TensorView& index, const TensorView& output, int axis, int thread,
                 int threads) {
  const int rank = index.shape.rank(), last = rank - 1;
  const std::int64_t length = index.shape[last];
  if (index.numel() == 0) return;
  const Range range = share(index.numel() / length, length, thread, threads);
  if (range.empty()) return;
  Shape strides = contiguous_strides(x.shape);
  const std::int64_t along = strides[axis], size = x.shape[axis];
  strides[axis] = 0;
  Odometer<1> rows(Shape(index.shape.begin(), last), {Shape(strides.begin(), last)});
  rows.seek(range.begin);
  RunReader<std::int64_t> indices(index);
  const T* in = x.as<const T>();
  T* out = output.as<T>();
  for (std::int64_t row = range.begin; row < range.end; ++row, rows.next()) {
    const T* from = in + rows.offset(0);
    for (std::int64_t first = 0; first < length; first += kBlock) {
      const std::int64_t count = std::min(kBlock, length - first);
      const std::int64_t* block = indices.read(row * length + first, count);
      T* to = out + row * length + first;
      if (axis == last) {
        for (std::int64_t i = 0; i < count; ++i) to[i] = from[checked(block[i], size, axis)];
      } else {
        for (std::int64_t i = 0; i < count; ++i) to[i] = from[checked(block[i], size, axis) * along + first + i];
      }
    }
  }
}

// 0-d tensors read and written as if they had one axis of size 1.
TensorView lifted(TensorView view) {
  if (view.shape.rank() == 0) view.shape.push_back(1);
  return view;
}

void gather(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 2, 1);
  Parameters parameters(call);
  const int axis = static_cast<int>(parameters.next_int());
  dispatch_size(call.inputs[0].dtype, [&](auto tag) {
    gather_rows<typename decltype(tag)::type>(lifted(call.inputs[0]), lifted(call.inputs[1]), call.outputs[0], axis,
                                              thread, threads);
  });
}

// ---- advanced indexing -------------------------------------------------------------------------------------------

// torch's x[indices]: the axes of the result are `before`, then those of the broadcast indices, then `after`.
struct Advanced {
  Shape before_sizes, before_strides;  // unindexed axes ahead of the indices
  Shape after_sizes, after_strides;    // and behind
  Shape index_sizes;
  std::vector<std::int64_t> offsets;  // into x, one per element of the broadcast indices
  std::int64_t count = 1;             // their number
};

// One index vector for one axis of x, with the shape that it broadcasts from.
struct AxisIndex {
  int axis;
  Shape shape;
  std::shared_ptr<const std::int64_t[]> owned;
  const std::int64_t* data;
};

void expand_mask(const TensorView& mask, const Shape& x, int axis, std::vector<AxisIndex>& found) {
  const int rank = mask.shape.rank();
  for (int k = 0; k < rank; ++k) {
    if (mask.shape[k] != x[axis + k])
      throw std::invalid_argument("a mask's shape does not fit the axes that it selects from");
  }
  const std::uint8_t* bits = mask.as<const std::uint8_t>();
  const std::int64_t total = mask.numel();
  std::int64_t chosen = 0;
  for (std::int64_t i = 0; i < total; ++i) chosen += bits[i] != 0;
  std::vector<std::shared_ptr<std::int64_t[]>> columns;
  for (int k = 0; k < rank; ++k) {
    columns.emplace_back(new std::int64_t[static_cast<std::size_t>(std::max<std::int64_t>(chosen, 1))]);
  }
  std::int64_t row = 0;
  for (std::int64_t i = 0; i < total; ++i) {
    if (bits[i] == 0) continue;
    std::int64_t rest = i;
    for (int k = rank - 1; k >= 0; --k) {
      columns[static_cast<std::size_t>(k)][row] = rest % mask.shape[k];
      rest /= mask.shape[k];
    }
    ++row;
  }
  for (int k = 0; k < rank; ++k) {
    auto& column = columns[static_cast<std::size_t>(k)];
    const std::int64_t* data = column.get();
    found.push_back({axis + k, Shape{chosen}, std::move(column), data});
  }
}

void add_index(const TensorView& index, const Shape& x, int axis, std::vector<AxisIndex>& found) {
  if (index.dtype == ScalarType::kBool || index.dtype == ScalarType::kByte) {
    expand_mask(index, x, axis, found);
    return;
  }
  if (index.dtype == ScalarType::kLong) {
    found.push_back({axis, index.shape, nullptr, index.as<const std::int64_t>()});
    return;
  }
  const std::int64_t count = index.numel();
  std::shared_ptr<std::int64_t[]> copy(new std::int64_t[static_cast<std::size_t>(std::max<std::int64_t>(count, 1))]);
  convert_function(index.dtype, ScalarType::kLong)(index.data, copy.get(), count);
  const std::int64_t* data = copy.get();
  found.push_back({axis, index.shape, std::move(copy), data});
}

Shape broadcast_strides(const Shape& from, const Shape& to) {
  const int missing = to.rank() - from.rank();
  Shape strides = to;
  std::int64_t stride = 1;
  for (int axis = to.rank() - 1; axis >= 0; --axis) {
    const std::int64_t size = axis < missing ? 1 : from[axis - missing];
    if (size != 1 && size != to[axis]) throw std::invalid_argument("shapes do not broadcast together");
    strides[axis] = size == 1 ? 0 : stride;
    stride *= size;
  }
  return strides;
}

void fill_offsets(const std::vector<AxisIndex>& found, const Shape& x, Advanced& plan) {
  const Shape strides = contiguous_strides(x);
  plan.offsets.assign(static_cast<std::size_t>(plan.count), 0);
  for (const AxisIndex& index : found) {
    Odometer<1> position(plan.index_sizes, {broadcast_strides(index.shape, plan.index_sizes)});
    position.seek(0);
    for (std::int64_t j = 0; j < plan.count; ++j, position.next()) {
      plan.offsets[static_cast<std::size_t>(j)] +=
          wrapped(index.data[position.offset(0)], x[index.axis], index.axis) * strides[index.axis];
    }
  }
}

Advanced plan_advanced(const TensorView& x, const TensorView* tensors, int num_tensors, Parameters& parameters) {
  const int entries = static_cast<int>(parameters.next_int());
  std::vector<AxisIndex> found;
  std::vector<bool> indexed(static_cast<std::size_t>(x.shape.rank()), false);
  int axis = 0, next = 0;
  bool adjacent = true, gap = false;
  for (int i = 0; i < entries; ++i) {
    if (parameters.next_int() == 0) {
      gap = gap || !found.empty();
      ++axis;
      continue;
    }
    if (next >= num_tensors) throw std::invalid_argument("the kernel was given too few index tensors");
    if (gap) adjacent = false;
    const std::size_t before = found.size();
    add_index(tensors[next++], x.shape, axis, found);
    for (std::size_t k = before; k < found.size(); ++k) indexed[static_cast<std::size_t>(axis++)] = true;
  }
  Advanced plan;
  for (const AxisIndex& index : found) {
    Shape merged;
    const int rank = std::max(plan.index_sizes.rank(), index.shape.rank());
    for (int k = 0; k < rank; ++k) {
      const int own = k - (rank - plan.index_sizes.rank()), other = k - (rank - index.shape.rank());
      const std::int64_t a = own < 0 ? 1 : plan.index_sizes[own], b = other < 0 ? 1 : index.shape[other];
      if (a != b && a != 1 && b != 1) throw std::invalid_argument("the index tensors do not broadcast together");
      merged.push_back(a == 1 ? b : a);
    }
    plan.index_sizes = merged;
  }
  plan.count = plan.index_sizes.numel();
  const Shape strides = contiguous_strides(x.shape);
  bool seen = false;
  for (int k = 0; k < x.shape.rank(); ++k) {
    if (indexed[static_cast<std::size_t>(k)]) {
      seen = true;
      continue;
    }
    const bool ahead = adjacent && !seen;
    (ahead ? plan.before_sizes : plan.after_sizes).push_back(x.shape[k]);
    (ahead ? plan.before_strides : plan.after_strides).push_back(strides[k]);
  }
  fill_offsets(found, x.shape, plan);
  return plan;
}

// Splits the trailing axes that are contiguous in x off `after`: they move as one run.
std::int64_t split_run(Advanced& plan) {
  std::int64_t run = 1;
  int rank = plan.after_sizes.rank();
  while (rank > 0 && plan.after_strides[rank - 1] == run) run *= plan.after_sizes[--rank];
  plan.after_sizes = Shape(plan.after_sizes.begin(), rank);
  plan.after_strides = Shape(plan.after_strides.begin(), rank);
  return run;
}

template <typename T>
void read_advanced(const Advanced& plan, std::int64_t run, const T* x, T* out, int thread, int threads) {
  const std::int64_t before = plan.before_sizes.numel(), middle = plan.after_sizes.numel();
  const Range range = share(before * plan.count, middle * run, thread, threads);
  if (range.empty() || middle * run == 0) return;
  Odometer<1> ahead(plan.before_sizes, {plan.before_strides});
  Odometer<1> behind(plan.after_sizes, {plan.after_strides});
  ahead.seek(range.begin / plan.count);
  std::int64_t j = range.begin % plan.count;
  T* to = out + range.begin * middle * run;
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const T* from = x + ahead.offset(0) + plan.offsets[static_cast<std::size_t>(j)];
    if (middle == 1 && run == 1) {
      *to++ = *from;
    } else {
      behind.seek(0);
      for (std::int64_t m = 0; m < middle; ++m, behind.next(), to += run) {
        std::memcpy(to, from + behind.offset(0), static_cast<std::size_t>(run) * sizeof(T));
      }
    }
    if (++j == plan.count) {
      j = 0;
      ahead.next();
    }
  }
}

void index(const KernelCall& call, int thread, int threads) {
  Parameters parameters(call);
  Advanced plan = plan_advanced(call.inputs[0], call.inputs + 1, call.num_inputs - 1, parameters);
  if (plan.before_sizes.numel() * plan.count * plan.after_sizes.numel() != call.outputs[0].numel()) {
    throw std::invalid_argument("the indices select " + std::to_string(plan.count) +
                                " elements, another number than the result was planned for");
  }
  const std::int64_t run = split_run(plan);
  dispatch_size(call.inputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    read_advanced(plan, run, call.inputs[0].as<const T>(), call.outputs[0].as<T>(), thread, threads);
  });
}

// ---- writing -----------------------------------------------------------------------------------------------------

// Copies x to the output, but for the parts that other threads own. Where the two are the same memory nothing happens.
void copy_base(const KernelCall& call, std::int64_t begin, std::int64_t end) {
  const TensorView& x = call.inputs[0];
  const TensorView& out = call.outputs[0];
  if (x.data == out.data || end <= begin) return;
  std::memcpy(at_mutable(out, begin), at(x, begin), static_cast<std::size_t>(end - begin) * item_size(x.dtype));
}

template <typename F>
void dispatch_storage(ScalarType dtype, F&& function) {
  if (dtype == ScalarType::kHalf) {
    function(TypeTag<Half>{});
  } else if (dtype == ScalarType::kBFloat16) {
    function(TypeTag<BFloat16>{});
  } else {
    dispatch_compute(dtype, [&](auto tag) { function(tag); });
  }
}

template <typename T>
using computed_t = std::conditional_t<std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>, float, T>;

template <typename C>
bool nan(C x) {
  if constexpr (std::is_floating_point_v<C>) {
    return x != x;
  } else {
    return false;
  }
}

// target <- target (reduce) value, rounded to the storage type at each step as PyTorch does.
template <typename T>
void combine(T& target, T value, Reduce reduce) {
  using C = computed_t<T>;
  if (reduce == Reduce::kReplace) {
    target = value;
    return;
  }
  const C a = convert<C>(target), b = convert<C>(value);
  switch (reduce) {
    case Reduce::kSum:
    case Reduce::kMean:
      if constexpr (std::is_integral_v<C> && !std::is_same_v<C, bool>) {
        using U = std::make_unsigned_t<C>;
        target = static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
      } else {
        target = convert<T>(static_cast<C>(a + b));
      }
      break;
    case Reduce::kProduct:
      if constexpr (std::is_integral_v<C> && !std::is_same_v<C, bool>) {
        target = static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
      } else {
        target = convert<T>(static_cast<C>(a * b));
      }
      break;
    case Reduce::kMaximum:
      target = convert<T>(nan(a) || a > b ? a : b);
      break;
    case Reduce::kMinimum:
      target = convert<T>(nan(a) || a < b ? a : b);
      break;
    case Reduce::kReplace:
      break;
  }
}

// Writes `values` (broadcast over the result's shape) at the planned places, elements [first, last) of each run only.
template <typename T>
void write_advanced(const Advanced& plan, std::int64_t run, Range ahead_range, Range run_range,
                    const std::array<Shape, 3>& value_strides, std::int64_t value_step, const T* values, T* out,
                    Reduce reduce) {
  Odometer<2> ahead(plan.before_sizes, {plan.before_strides, value_strides[0]});
  Odometer<2> behind(plan.after_sizes, {plan.after_strides, value_strides[2]});
  const std::int64_t middle = plan.after_sizes.numel();
  if (middle * run == 0) return;
  ahead.seek(ahead_range.begin);
  for (std::int64_t b = ahead_range.begin; b < ahead_range.end; ++b, ahead.next()) {
    Odometer<1> position(plan.index_sizes, {value_strides[1]});
    position.seek(0);
    for (std::int64_t j = 0; j < plan.count; ++j, position.next()) {
      T* target = out + ahead.offset(0) + plan.offsets[static_cast<std::size_t>(j)];
      const T* value = values + ahead.offset(1) + position.offset(0);
      behind.seek(0);
      for (std::int64_t m = 0; m < middle; ++m, behind.next()) {
        T* to = target + behind.offset(0);
        const T* from = value + behind.offset(1);
        if (reduce == Reduce::kReplace && value_step == 1) {
          std::memcpy(to + run_range.begin, from + run_range.begin,
                      static_cast<std::size_t>(run_range.end - run_range.begin) * sizeof(T));
        } else {
          for (std::int64_t i = run_range.begin; i < run_range.end; ++i) combine(to[i], from[i * value_step], reduce);
        }
      }
    }
  }
}

// The strides of `values` over before, index, middle axes, and over the run (0 or 1). The run is one axis here, so
// values that broadcast along only part of it must have been expanded; `index_put` does that.
struct ValueLayout {
  std::array<Shape, 3> strides;
  std::int64_t step = 1;
  bool expand = false;
};

ValueLayout layout_values(const Shape& values, const Advanced& plan, const Shape& run_sizes) {
  Shape result = plan.before_sizes;
  for (const std::int64_t size : plan.index_sizes) result.push_back(size);
  for (const std::int64_t size : plan.after_sizes) result.push_back(size);
  for (const std::int64_t size : run_sizes) result.push_back(size);
  Shape from = values;
  // Leading axes of size 1 beyond the result's rank are allowed.
  while (from.rank() > result.rank() && from[0] == 1) from = Shape(from.begin() + 1, from.rank() - 1);
  if (from.rank() > result.rank()) throw std::invalid_argument("the values have more axes than the selection");
  const Shape strides = broadcast_strides(from, result);
  ValueLayout layout;
  int axis = 0;
  const auto take = [&](int count) {
    Shape part;
    for (int k = 0; k < count; ++k) part.push_back(strides[axis++]);
    return part;
  };
  layout.strides[0] = take(plan.before_sizes.rank());
  layout.strides[1] = take(plan.index_sizes.rank());
  layout.strides[2] = take(plan.after_sizes.rank());
  const Shape run = take(run_sizes.rank());
  std::int64_t expected = 1;
  bool contiguous = true, constant = true;
  for (int k = run.rank() - 1; k >= 0; --k) {
    if (run_sizes[k] == 1) continue;
    contiguous = contiguous && run[k] == expected;
    constant = constant && run[k] == 0;
    expected *= run_sizes[k];
  }
  layout.step = contiguous ? 1 : 0;
  layout.expand = !contiguous && !constant;
  return layout;
}

void index_put(const KernelCall& call, int thread, int threads) {
  Parameters parameters(call);
  const Reduce reduce = parameters.next_int() != 0 ? Reduce::kSum : Reduce::kReplace;
  const TensorView& x = call.inputs[0];
  Advanced plan = plan_advanced(x, call.inputs + 2, call.num_inputs - 2, parameters);
  const Shape all_after = plan.after_sizes;
  std::int64_t run = split_run(plan);
  Shape run_sizes;
  for (int k = plan.after_sizes.rank(); k < all_after.rank(); ++k) run_sizes.push_back(all_after[k]);
  ValueLayout layout = layout_values(call.inputs[1].shape, plan, run_sizes);
  if (layout.expand) {
    // Values that vary along some axes of the run only: walk its axes one by one instead.
    const Shape strides = contiguous_strides(x.shape);
    const int moved = run_sizes.rank();
    for (int k = 0; k < moved; ++k) {
      plan.after_sizes.push_back(run_sizes[k]);
      plan.after_strides.push_back(strides[x.shape.rank() - moved + k]);
    }
    run = 1;
    layout = layout_values(call.inputs[1].shape, plan, Shape{});
    layout.step = 0;
  }
  // Axes ahead of the indices are x's outermost, so a share of them is a stretch of memory. Else each thread takes a
  // part of the run, or thread 0 does it all: two indices may name the same place.
  const std::int64_t before = plan.before_sizes.numel();
  const std::int64_t unit = before > 0 ? x.numel() / before : 0;
  Range ahead{0, before}, columns{0, run};
  if (x.numel() == 0) return;
  if (before > 1) {
    ahead = share(before, plan.count * run, thread, threads);
    if (ahead.empty()) return;
    copy_base(call, ahead.begin * unit, ahead.end * unit);
  } else if (plan.after_sizes.rank() == 0 && run > 1 && run < x.numel()) {
    columns = share(run, std::max<std::int64_t>(plan.count, x.numel() / run), thread, threads);
    if (columns.empty()) return;
    for (std::int64_t row = 0; row < x.numel(); row += run) copy_base(call, row + columns.begin, row + columns.end);
  } else {
    if (thread != 0) return;
    copy_base(call, 0, x.numel());
  }
  dispatch_storage(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const TensorView& values = call.inputs[1];
    if (values.dtype != x.dtype) throw std::invalid_argument("the values have another dtype than the tensor");
    write_advanced(plan, run, ahead, columns, layout.strides, layout.step, values.as<const T>(),
                   call.outputs[0].as<T>(), reduce);
  });
}

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
template <typename T>
void scatter_rows(const TensorView& x, const TensorView& index, const TensorView& source, T* out, int axis,
                  Reduce reduce, Hits& hits, Range range) {
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
        const bool replace = hits.needed() && hits.replaces(target);
        combine(out[target], value, replace ? Reduce::kReplace : reduce);
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
    scatter_rows(x, index, source, out, axis, reduce, hits, range);
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
    {"index.select", select, false, kAnyThreads},
    {"index.gather", gather, false, kAnyThreads},
    {"index.index", index, false, kAnyThreads},
    {"index.index_put", index_put, true, kAnyThreads},
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

KernelList index_kernels() { return make_list(kKernels); }

}  // namespace ptn::kernels
