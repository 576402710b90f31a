// Reductions over any set of axes, with PyTorch's rules for NaN, ties and empty inputs.
//
// All take inputs [x] and ints [num_axes, axes... (none: all)], then what is named here. Sums of floating-point numbers
// are kept in double, of integers in 64 bits that wrap.
//
// reduction.sum, mean, prod      the result has the output's dtype: x converts to it first.
// reduction.amax, amin           NaN wins.
// reduction.max, min             outputs [values, indices]: the first of equals, the first NaN before everything.
// reduction.argmax, argmin       output int64.
// reduction.any, all             output bool (or uint8).
// reduction.count_nonzero        output int64.
// reduction.var, std             floats [correction]; outputs [variance or deviation], and [mean] where there are two.
// reduction.norm                 floats [order]: the vector norm, infinite orders included.
// reduction.logsumexp
#include "reduction.h"

#include "families.h"

namespace ptn::kernels {

ReductionPlan plan_reduction(const Shape& input, const Shape& axes) {
  bool reduced[kMaxRank];
  std::fill_n(reduced, kMaxRank, axes.rank() == 0);
  for (const std::int64_t axis : axes) reduced[axis < 0 ? axis + input.rank() : axis] = true;
  const Shape strides = contiguous_strides(input);
  ReductionPlan plan;
  bool previous = false, any = false;
  for (int axis = 0; axis < input.rank(); ++axis) {
    const std::int64_t size = input[axis];
    (reduced[axis] ? plan.count : plan.outputs) *= size;
    if (size == 1) continue;
    Shape& sizes = reduced[axis] ? plan.reduced_sizes : plan.kept_sizes;
    Shape& own = reduced[axis] ? plan.reduced_strides : plan.kept_strides;
    if (any && previous == reduced[axis]) {
      sizes[sizes.rank() - 1] *= size;
      own[own.rank() - 1] = strides[axis];
    } else {
      sizes.push_back(size);
      own.push_back(strides[axis]);
    }
    previous = reduced[axis];
    any = true;
  }
  plan.inner_reduced = !any || previous;
  return plan;
}

ReductionPlan read_reduction(const KernelCall& call, Parameters& parameters) {
  const int count = static_cast<int>(parameters.next_int());
  Shape axes;
  for (int i = 0; i < count; ++i) axes.push_back(parameters.next_int());
  if (call.inputs[0].shape.rank() == 0) axes = Shape();
  return plan_reduction(call.inputs[0].shape, axes);
}

namespace {

// ---- sums --------------------------------------------------------------------------------------------------------

template <typename C>
struct Sum {
  using State = sum_t<C>;
  State start() const { return 0; }
  void run(State& state, const C* x, std::int64_t count, std::int64_t) const {
    state += sum_of(x, count, [](State value) { return value; });
  }
  void rows(State* states, const C* x, std::int64_t count, std::int64_t) const {
    for (std::int64_t i = 0; i < count; ++i) states[i] += static_cast<State>(x[i]);
  }
};

template <typename C>
struct Product {
  using State = sum_t<C>;
  State start() const { return 1; }
  void run(State& state, const C* x, std::int64_t count, std::int64_t) const {
    for (std::int64_t i = 0; i < count; ++i) state *= static_cast<State>(x[i]);
  }
  void rows(State* states, const C* x, std::int64_t count, std::int64_t) const {
    for (std::int64_t i = 0; i < count; ++i) states[i] *= static_cast<State>(x[i]);
  }
};

// Stores states that map to numbers of type R.
template <typename R, typename State, typename Finish>
auto writer(const TensorView& output, Finish finish) {
  return [output, finish, convert = convert_function(scalar_type_of<R>(), output.dtype)](
             std::int64_t first, const State* states, std::int64_t count) {
    R results[kTile];
    for (std::int64_t i = 0; i < count; ++i) results[i] = finish(states[i]);
    convert(results, at_mutable(output, first), count);
  };
}

// Calls `function` with int64 for integer and bool results, else float or double.
template <typename F>
void dispatch_sum(ScalarType result, F&& function) {
  if (!is_float(result)) {
    function(TypeTag<std::int64_t>{});
  } else {
    dispatch_float(result, [&](auto tag) { function(tag); });
  }
}

enum class Total { kSum, kMean, kProduct };

template <Total kTotal>
void total(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 1, 1);
  Parameters parameters(call);
  const ReductionPlan plan = read_reduction(call, parameters);
  const TensorView& output = call.outputs[0];
  dispatch_sum(output.dtype, [&](auto tag) {
    using C = typename decltype(tag)::type;
    using Step = std::conditional_t<kTotal == Total::kProduct, Product<C>, Sum<C>>;
    using State = typename Step::State;
    // The mean of no elements is 0 / 0.
    const double count = static_cast<double>(plan.count);
    const auto finish = [count](State state) {
      if constexpr (kTotal == Total::kMean) return static_cast<C>(static_cast<double>(state) / count);
      return static_cast<C>(state);
    };
    // Half-type inputs of an integer result, and the like, convert as the tensor would.
    reduce<C>(plan, call.inputs[0], Step{}, 1, writer<C, State>(output, finish), thread, threads);
  });
}

// ---- extremes ----------------------------------------------------------------------------------------------------

template <typename C, bool kMaximum>
inline C extreme(C a, C b) {
  return (kMaximum ? a > b : a < b) || is_nan_value(a) ? a : b;
}

template <typename C, bool kMaximum>
constexpr C worst() {
  using L = std::numeric_limits<C>;
  if constexpr (std::is_floating_point_v<C>) return kMaximum ? -L::infinity() : L::infinity();
  return kMaximum ? L::lowest() : L::max();
}

template <typename C, bool kMaximum>
inline C extreme_of(const C* x, std::int64_t count) {
  C lanes[kLanes];
  std::fill_n(lanes, kLanes, worst<C, kMaximum>());
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t j = 0; j < kLanes; ++j) lanes[j] = extreme<C, kMaximum>(lanes[j], x[i + j]);
  }
  for (; i < count; ++i) lanes[0] = extreme<C, kMaximum>(lanes[0], x[i]);
  for (std::int64_t j = 1; j < kLanes; ++j) lanes[0] = extreme<C, kMaximum>(lanes[0], lanes[j]);
  return lanes[0];
}

template <typename C, bool kMaximum>
struct Extreme {
  C start() const { return worst<C, kMaximum>(); }
  void run(C& state, const C* x, std::int64_t count, std::int64_t) const {
    state = extreme<C, kMaximum>(state, extreme_of<C, kMaximum>(x, count));
  }
  void rows(C* states, const C* x, std::int64_t count, std::int64_t) const {
    for (std::int64_t i = 0; i < count; ++i) states[i] = extreme<C, kMaximum>(states[i], x[i]);
  }
};

void refuse_empty(const ReductionPlan& plan, const KernelCall& call) {
  if (plan.count == 0 && call.outputs[0].numel() > 0) {
    throw std::invalid_argument("there are no elements to take the extreme of");
  }
}

template <bool kMaximum>
void amax(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 1, 1);
  Parameters parameters(call);
  const ReductionPlan plan = read_reduction(call, parameters);
  refuse_empty(plan, call);
  dispatch_compute(compute_dtype(call.inputs[0].dtype), [&](auto tag) {
    using C = typename decltype(tag)::type;
    reduce<C>(plan, call.inputs[0], Extreme<C, kMaximum>{}, 1,
              writer<C, C>(call.outputs[0], [](C state) { return state; }), thread, threads);
  });
}

template <typename C>
struct Place {
  C value;
  std::int64_t index;  // -1: nothing seen yet
};

template <typename C, bool kMaximum>
struct ArgExtreme {
  static bool better(C x, const Place<C>& place) {
    if (place.index < 0) return true;
    if (is_nan_value(place.value)) return false;
    return is_nan_value(x) || (kMaximum ? x > place.value : x < place.value);
  }
  Place<C> start() const { return {C{}, -1}; }
  // The extreme first, which vectorises, then its first place.
  void run(Place<C>& state, const C* x, std::int64_t count, std::int64_t index) const {
    const C best = extreme_of<C, kMaximum>(x, count);
    if (count == 0 || !better(best, state)) return;
    std::int64_t i = 0;
    if (is_nan_value(best)) {
      while (!is_nan_value(x[i])) ++i;
    } else {
      while (x[i] != best) ++i;
    }
    state = {x[i], index + i};
  }
  void rows(Place<C>* states, const C* x, std::int64_t count, std::int64_t index) const {
    for (std::int64_t i = 0; i < count; ++i) {
      if (better(x[i], states[i])) states[i] = {x[i], index};
    }
  }
};

template <bool kMaximum>
void arg_extreme(const KernelCall& call, int thread, int threads) {
  Parameters parameters(call);
  const ReductionPlan plan = read_reduction(call, parameters);
  refuse_empty(plan, call);
  const TensorView& indices = call.outputs[call.num_outputs - 1];
  dispatch_compute(compute_dtype(call.inputs[0].dtype), [&](auto tag) {
    using C = typename decltype(tag)::type;
    const auto write_index = writer<std::int64_t, Place<C>>(indices, [](const Place<C>& place) { return place.index; });
    const auto write_value = writer<C, Place<C>>(call.outputs[0], [](const Place<C>& place) { return place.value; });
    const bool both = call.num_outputs == 2;
    const auto write = [&](std::int64_t first, const Place<C>* states, std::int64_t count) {
      write_index(first, states, count);
      if (both) write_value(first, states, count);
    };
    reduce<C>(plan, call.inputs[0], ArgExtreme<C, kMaximum>{}, 2, write, thread, threads);
  });
}

// ---- truth -------------------------------------------------------------------------------------------------------

struct CountTrue {
  std::int64_t start() const { return 0; }
  void run(std::int64_t& state, const bool* x, std::int64_t count, std::int64_t) const {
    for (std::int64_t i = 0; i < count; ++i) state += x[i];
  }
  void rows(std::int64_t* states, const bool* x, std::int64_t count, std::int64_t) const {
    for (std::int64_t i = 0; i < count; ++i) states[i] += x[i];
  }
};

enum class Truth { kAny, kAll, kCount };

template <Truth kTruth>
void truth(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 1, 1);
  Parameters parameters(call);
  const ReductionPlan plan = read_reduction(call, parameters);
  const std::int64_t all = plan.count;
  const auto finish = [all](std::int64_t count) -> std::int64_t {
    if (kTruth == Truth::kAny) return count != 0;
    if (kTruth == Truth::kAll) return count == all;
    return count;
  };
  reduce<bool>(plan, call.inputs[0], CountTrue{}, 1, writer<std::int64_t, std::int64_t>(call.outputs[0], finish),
               thread, threads);
}

// ---- variance ----------------------------------------------------------------------------------------------------

struct Moments {
  double mean, squares;  // of the `count` elements so far
  double count;
};

template <typename C>
struct Variance {
  Moments start() const { return {0.0, 0.0, 0.0}; }
  // Mean and squared deviations of the run, joined to those before (Chan et al. 1979).
  void run(Moments& state, const C* x, std::int64_t count, std::int64_t) const {
    if (count == 0) return;
    const double own = static_cast<double>(count);
    const double mean = sum_of(x, count, [](double value) { return value; }) / own;
    const double squares = sum_of(x, count, [mean](double value) { return (value - mean) * (value - mean); });
    const double together = state.count + own, shift = mean - state.mean;
    state.squares += squares + shift * shift * state.count * own / together;
    state.mean = state.count == 0 ? mean : state.mean + shift * own / together;
    state.count = together;
  }
  // Welford's update, one element per output.
  void rows(Moments* states, const C* x, std::int64_t count, std::int64_t index) const {
    const double share = 1.0 / static_cast<double>(index + 1);
    for (std::int64_t i = 0; i < count; ++i) {
      const double shift = static_cast<double>(x[i]) - states[i].mean;
      states[i].mean += shift * share;
      states[i].squares += shift * (static_cast<double>(x[i]) - states[i].mean);
      states[i].count = static_cast<double>(index + 1);
    }
  }
};

template <bool kRoot>
void variance(const KernelCall& call, int thread, int threads) {
  Parameters parameters(call);
  const ReductionPlan plan = read_reduction(call, parameters);
  const double divisor = std::max(0.0, static_cast<double>(plan.count) - parameters.next_float());
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  dispatch_float(call.inputs[0].dtype, [&](auto tag) {
    using C = typename decltype(tag)::type;
    const auto write_spread = writer<double, Moments>(call.outputs[0], [divisor](const Moments& state) {
      const double value = state.count == 0 ? nan : state.squares / divisor;
      return kRoot ? std::sqrt(value) : value;
    });
    const auto write_mean = writer<double, Moments>(
        call.outputs[call.num_outputs - 1], [](const Moments& state) { return state.count == 0 ? nan : state.mean; });
    const bool both = call.num_outputs == 2;
    const auto write = [&](std::int64_t first, const Moments* states, std::int64_t count) {
      write_spread(first, states, count);
      if (both) write_mean(first, states, count);
    };
    reduce<C>(plan, call.inputs[0], Variance<C>{}, 4, write, thread, threads);
  });
}

// ---- norms -------------------------------------------------------------------------------------------------------

template <typename C>
struct PowerSum {
  double order;
  double start() const { return 0.0; }
  double term(double value) const {
    if (order == 0.0) return value != 0.0;
    return std::pow(std::fabs(value), order);
  }
  void run(double& state, const C* x, std::int64_t count, std::int64_t) const {
    if (order == 2.0) {
      state += sum_of(x, count, [](double value) { return value * value; });
    } else if (order == 1.0) {
      state += sum_of(x, count, [](double value) { return std::fabs(value); });
    } else {
      for (std::int64_t i = 0; i < count; ++i) state += term(x[i]);
    }
  }
  void rows(double* states, const C* x, std::int64_t count, std::int64_t) const {
    if (order == 2.0) {
      for (std::int64_t i = 0; i < count; ++i) states[i] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    } else if (order == 1.0) {
      for (std::int64_t i = 0; i < count; ++i) states[i] += std::fabs(static_cast<double>(x[i]));
    } else {
      for (std::int64_t i = 0; i < count; ++i) states[i] += term(x[i]);
    }
  }
};

template <typename C, bool kMaximum>
struct ExtremeMagnitude {
  C start() const { return kMaximum ? C(0) : std::numeric_limits<C>::infinity(); }
  void run(C& state, const C* x, std::int64_t count, std::int64_t) const {
    for (std::int64_t i = 0; i < count; ++i) state = extreme<C, kMaximum>(state, std::fabs(x[i]));
  }
  void rows(C* states, const C* x, std::int64_t count, std::int64_t) const {
    for (std::int64_t i = 0; i < count; ++i) states[i] = extreme<C, kMaximum>(states[i], std::fabs(x[i]));
  }
};

void norm(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 1, 1);
  Parameters parameters(call);
  const ReductionPlan plan = read_reduction(call, parameters);
  const double order = parameters.next_float();
  const TensorView& output = call.outputs[0];
  dispatch_float(output.dtype, [&](auto tag) {
    using C = typename decltype(tag)::type;
    const auto same = [](C value) { return value; };
    if (order == std::numeric_limits<double>::infinity()) {
      reduce<C>(plan, call.inputs[0], ExtremeMagnitude<C, true>{}, 1, writer<C, C>(output, same), thread, threads);
    } else if (order == -std::numeric_limits<double>::infinity()) {
      reduce<C>(plan, call.inputs[0], ExtremeMagnitude<C, false>{}, 1, writer<C, C>(output, same), thread, threads);
    } else {
      const auto root = [order](double exact) {
        const double sum = static_cast<double>(static_cast<C>(exact));  // powers overflow where they do in PyTorch
        if (order == 0.0 || order == 1.0) return sum;
        return order == 2.0 ? std::sqrt(sum) : std::pow(sum, 1.0 / order);
      };
      reduce<C>(plan, call.inputs[0], PowerSum<C>{order}, 2, writer<double, double>(output, root), thread, threads);
    }
  });
}

// ---- logsumexp ---------------------------------------------------------------------------------------------------

struct ScaledSum {
  double highest, sum;  // sum of exp(x - highest)
};

template <typename C>
struct LogSumExp {
  ScaledSum start() const { return {-std::numeric_limits<double>::infinity(), 0.0}; }
  static void add(ScaledSum& state, double x) {
    if (x == -std::numeric_limits<double>::infinity()) return;
    if (x > state.highest) {
      state.sum = state.sum * std::exp(state.highest - x) + 1.0;
      state.highest = x;
    } else if (x == state.highest) {
      state.sum += 1.0;  // also infinity, where the difference would be NaN
    } else {
      state.sum += std::exp(x - state.highest);
    }
  }
  void run(ScaledSum& state, const C* x, std::int64_t count, std::int64_t) const {
    for (std::int64_t i = 0; i < count; ++i) add(state, x[i]);
  }
  void rows(ScaledSum* states, const C* x, std::int64_t count, std::int64_t) const {
    for (std::int64_t i = 0; i < count; ++i) add(states[i], x[i]);
  }
};

void logsumexp(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 1, 1);
  Parameters parameters(call);
  const ReductionPlan plan = read_reduction(call, parameters);
  dispatch_float(call.outputs[0].dtype, [&](auto tag) {
    using C = typename decltype(tag)::type;
    const auto finish = [](const ScaledSum& state) { return state.highest + std::log(state.sum); };
    reduce<C>(plan, call.inputs[0], LogSumExp<C>{}, 16, writer<double, ScaledSum>(call.outputs[0], finish), thread,
              threads);
  });
}

constexpr KernelInfo kKernels[] = {
    {"reduction.sum", total<Total::kSum>, false, kAnyThreads},
    {"reduction.mean", total<Total::kMean>, false, kAnyThreads},
    {"reduction.prod", total<Total::kProduct>, false, kAnyThreads},
    {"reduction.amax", amax<true>, false, kAnyThreads},
    {"reduction.amin", amax<false>, false, kAnyThreads},
    {"reduction.max", arg_extreme<true>, false, kAnyThreads},
    {"reduction.min", arg_extreme<false>, false, kAnyThreads},
    {"reduction.argmax", arg_extreme<true>, false, kAnyThreads},
    {"reduction.argmin", arg_extreme<false>, false, kAnyThreads},
    {"reduction.any", truth<Truth::kAny>, false, kAnyThreads},
    {"reduction.all", truth<Truth::kAll>, false, kAnyThreads},
    {"reduction.count_nonzero", truth<Truth::kCount>, false, kAnyThreads},
    {"reduction.var", variance<false>, false, kAnyThreads},
    {"reduction.std", variance<true>, false, kAnyThreads},
    {"reduction.norm", norm, false, kAnyThreads},
    {"reduction.logsumexp", logsumexp, false, kAnyThreads},
};

}  // namespace

KernelList reduction_kernels() { return make_list(kKernels); }

}  // namespace ptn::kernels
