// The walk under all reductions: any set of axes, in the order that reads memory straight.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "support.h"

namespace ptn::kernels {

// Which elements of the input go to which output. Axes of size 1 are gone and neighbours of one kind are joined.
struct ReductionPlan {
  Shape kept_sizes, kept_strides;
  Shape reduced_sizes, reduced_strides;
  // The last axis of the input is reduced: outputs are made one by one from runs; else many at once from rows.
  bool inner_reduced = true;
  std::int64_t outputs = 1;
  std::int64_t count = 1;  // elements per output
};

// `axes` may be unsorted; none means all of them.
ReductionPlan plan_reduction(const Shape& input, const Shape& axes);

// Reads [num_axes, axes...] off the call's ints.
ReductionPlan read_reduction(const KernelCall& call, Parameters& parameters);

constexpr std::int64_t kTile = 64;

// Makes outputs of `plan` from input elements read as C. `Step` has
//   State start() const
//   void run(State&, const C* x, count, index) const       consecutive elements, the first is number `index`
//   void rows(State*, const C* x, count, index) const      element number `index` of `count` outputs
// and `write(output, const State*, count)` stores finished outputs.
template <typename C, typename Step, typename Write>
void reduce(const ReductionPlan& plan, const TensorView& input, const Step& step, int cost, Write&& write, int thread,
            int threads) {
  using State = decltype(step.start());
  RunReader<C> reader(input);
  if (plan.inner_reduced) {
    const Range range = share(plan.outputs, plan.count * cost, thread, threads);
    if (range.empty()) return;
    const int last = plan.reduced_sizes.rank() - 1;
    const std::int64_t length = last >= 0 ? plan.reduced_sizes[last] : 1;
    const std::int64_t part = reader.direct() ? length : std::min(length, kBlock);
    const int outer_axes = std::max(last, 0);
    const std::int64_t outer = plan.count == 0 ? 0 : plan.reduced_sizes.product(0, outer_axes);
    Odometer<1> kept(plan.kept_sizes, {plan.kept_strides});
    Odometer<1> reduced(Shape(plan.reduced_sizes.begin(), outer_axes),
                        {Shape(plan.reduced_strides.begin(), outer_axes)});
    kept.seek(range.begin);
    for (std::int64_t o = range.begin; o < range.end; ++o, kept.next()) {
      State state = step.start();
      reduced.seek(0);
      for (std::int64_t r = 0; r < outer; ++r, reduced.next()) {
        const std::int64_t base = kept.offset(0) + reduced.offset(0);
        for (std::int64_t first = 0; first < length; first += part) {
          const std::int64_t count = std::min(part, length - first);
          step.run(state, reader.read(base + first, count), count, r * length + first);
        }
      }
      write(o, &state, std::int64_t{1});
    }
    return;
  }
  const int last = plan.kept_sizes.rank() - 1;
  const std::int64_t width = plan.kept_sizes[last];
  const std::int64_t tiles = (width + kTile - 1) / kTile;
  const std::int64_t outer = plan.kept_sizes.product(0, last);
  const Range range = share(outer * tiles, plan.count * cost * std::min(width, kTile), thread, threads);
  if (range.empty()) return;
  Odometer<1> kept(Shape(plan.kept_sizes.begin(), last), {Shape(plan.kept_strides.begin(), last)});
  Odometer<1> reduced(plan.reduced_sizes, {plan.reduced_strides});
  std::array<State, kTile> states;
  for (std::int64_t t = range.begin; t < range.end; ++t) {
    const std::int64_t o = t / tiles, first = t % tiles * kTile;
    const std::int64_t count = std::min(kTile, width - first);
    std::fill(states.begin(), states.end(), step.start());
    kept.seek(o);
    reduced.seek(0);
    for (std::int64_t r = 0; r < plan.count; ++r, reduced.next()) {
      step.rows(states.data(), reader.read(kept.offset(0) + reduced.offset(0) + first, count), count, r);
    }
    write(o * width + first, states.data(), count);
  }
}

template <typename C>
inline bool is_nan_value(C x) {
  if constexpr (std::is_floating_point_v<C>) {
    return x != x;
  } else {
    (void)x;
    return false;
  }
}

constexpr std::int64_t kLanes = 8;

// Sums of float and double are kept in double, of integers modulo 2^64.
template <typename C>
using sum_t = std::conditional_t<std::is_floating_point_v<C>, double, std::uint64_t>;

// Sum of map(x[i]); lanes let the loop vectorise.
template <typename C, typename Map>
inline sum_t<C> sum_of(const C* x, std::int64_t count, Map&& map) {
  using S = sum_t<C>;
  S lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t j = 0; j < kLanes; ++j) lanes[j] += map(static_cast<S>(x[i + j]));
  }
  S total = 0;
  for (; i < count; ++i) total += map(static_cast<S>(x[i]));
  for (std::int64_t j = 0; j < kLanes; ++j) total += lanes[j];
  return total;
}

}  // namespace ptn::kernels
