// Reading by indices, and x[indices] = values. Indices are int64 (int32 and narrower are accepted) and are checked.
//
// index.select      inputs [x, index (any shape)]; ints [axis]. The output has index's shape in place of the axis.
// index.gather      inputs [x, index]; ints [axis].
// index.index       inputs [x, index...]; ints [count, then per entry of torch's list 1 (a tensor) or 0 (None)]. Bool
//                   and uint8 tensors are masks; they must select as many elements as the output has room for.
// index.index_put   inputs [x, values, index...]; ints [accumulate, count, entries as above].
// index.embedding_bag   inputs [weight, indices (1-d), offsets (1-d), weights of the rows?]; outputs [bags, bag of each
//                   index (or empty), sizes of the bags, row of each maximum]; ints [mode (0 sum, 1 mean, 2 maximum),
//                   has weights, row that does not count (negative: none)].
#include "index.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "families.h"

namespace ptn::kernels {
namespace {

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

// ---- x[indices] = values ----

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

// ---- bags of rows ------------------------------------------------------------------------------------------------

struct Bags {
  std::int64_t mode, padding, width;
  bool sizes_known;  // PyTorch leaves the sizes at zero where its fast sum does not need them
};

// One bag: rows `indices[begin..end)` of the table, combined.
template <typename C>
std::int64_t combine_bag(const Bags& bags, const Whole<C>& table, std::int64_t rows, const std::int64_t* indices,
                         std::int64_t begin, std::int64_t end, const Whole<C>* weights, std::vector<double>& sums,
                         std::vector<std::int64_t>& places) {
  std::fill(sums.begin(), sums.end(), 0.0);
  std::fill(places.begin(), places.end(), 0);
  std::int64_t counted = 0;
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t row = checked(indices[i], rows, 0);
    if (row == bags.padding) continue;
    const C* from = table.data() + row * bags.width;
    const C weight = weights != nullptr ? (*weights)[i] : C(1);
    for (std::int64_t k = 0; k < bags.width; ++k) {
      double& sum = sums[static_cast<std::size_t>(k)];
      const C value = from[k] * weight;
      if (bags.mode != 2) {
        sum += static_cast<double>(value);
      } else if (counted == 0 || static_cast<double>(value) > sum) {
        sum = static_cast<double>(value);
        places[static_cast<std::size_t>(k)] = row;
      }
    }
    ++counted;
  }
  if (bags.mode == 1 && counted > 0) {
    for (double& sum : sums) sum /= static_cast<double>(counted);
  }
  return counted;
}

void embedding_bag(const KernelCall& call, int thread, int threads) {
  Parameters parameters(call);
  Bags bags{parameters.next_int(), 0, call.inputs[0].shape[1], false};
  const bool weighted = parameters.next_int() != 0;
  bags.padding = parameters.next_int();
  const std::int64_t number = call.outputs[0].shape[0], total = call.inputs[1].numel();
  bags.sizes_known = bags.mode != 0 || call.outputs[1].numel() > 0;
  const Range range = share(
      number, 2 * bags.width * std::max<std::int64_t>(total / std::max<std::int64_t>(number, 1), 1), thread, threads);
  if (range.empty()) return;
  const Whole<std::int64_t> indices(call.inputs[1]), offsets(call.inputs[2]);
  dispatch_float(call.inputs[0].dtype, [&](auto tag) {
    using C = typename decltype(tag)::type;
    const Whole<C> table(call.inputs[0]);
    std::unique_ptr<Whole<C>> weights(weighted ? new Whole<C>(call.inputs[3]) : nullptr);
    const ElementWriter<double> result(call.outputs[0]);
    const ElementWriter<std::int64_t> bag_of(call.outputs[1]), sizes(call.outputs[2]), maxima(call.outputs[3]);
    std::vector<double> sums(static_cast<std::size_t>(bags.width));
    std::vector<std::int64_t> places(static_cast<std::size_t>(bags.width));
    for (std::int64_t bag = range.begin; bag < range.end; ++bag) {
      const std::int64_t begin = offsets[bag], end = bag + 1 < number ? offsets[bag + 1] : total;
      if (begin < 0 || end > total || begin > end) throw std::invalid_argument("the offsets of the bags do not ascend");
      const std::int64_t counted =
          combine_bag(bags, table, call.inputs[0].shape[0], indices.data(), begin, end, weights.get(), sums, places);
      result.write(bag * bags.width, sums.data(), bags.width);
      const std::int64_t size = bags.sizes_known ? counted : 0;
      sizes.write(bag, &size, 1);
      if (bags.mode == 2) {
        maxima.write(bag * bags.width, places.data(), bags.width);
      } else {
        const std::int64_t none = 0;
        maxima.write(bag, &none, 1);
      }
      if (call.outputs[1].numel() > 0) {
        for (std::int64_t i = begin; i < end; ++i) bag_of.write(i, &bag, 1);
      }
    }
  });
}

constexpr KernelInfo kKernels[] = {
    {"index.select", select, false, kAnyThreads},
    {"index.gather", gather, false, kAnyThreads},
    {"index.index", index, false, kAnyThreads},
    {"index.index_put", index_put, true, kAnyThreads},
    {"index.embedding_bag", embedding_bag, false, kAnyThreads},
};

}  // namespace

KernelList index_kernels() { return make_list(kKernels); }

}  // namespace ptn::kernels
