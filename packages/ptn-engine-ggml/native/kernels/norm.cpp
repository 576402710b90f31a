// Normalisation for the dtypes and shapes that ggml's own operators do not take. Statistics are kept in double.
//
// norm.layer    inputs [x, weight?, bias?]; outputs [y] or [y, mean, rstd]; ints [inner size, has weight, has bias];
//               floats [eps].
// norm.rms      inputs [x, weight?]; outputs [y] or [y, rrms]; ints [inner size, has weight]; floats [eps].
// norm.group    inputs [x (n, c, ...), weight?, bias?]; outputs [y] or [y, mean, rstd]; ints [groups, has weight,
//               has bias]; floats [eps].
// norm.batch    inputs [x (n, c, ...), weight?, bias?, running mean?, running var?]; outputs [y] or [y, mean, rstd];
//               ints [has weight, has bias, has running statistics]; floats [eps]. Without running statistics those of
//               the batch serve.
#include <cmath>
#include <vector>

#include "families.h"
#include "reduction.h"

namespace ptn::kernels {
namespace {

// An optional vector of weights as type C.
template <typename C>
class Affine {
 public:
  Affine(const TensorView* view) {
    if (view != nullptr) whole_.reset(new Whole<C>(*view));
  }
  C get(std::int64_t index, C otherwise) const { return whole_ ? (*whole_)[index] : otherwise; }
  const C* data() const { return whole_ ? whole_->data() : nullptr; }

 private:
  std::unique_ptr<Whole<C>> whole_;
};

// Takes optional inputs off the call in order.
class Optional {
 public:
  explicit Optional(const KernelCall& call, int first) : call_(call), next_(first) {}
  const TensorView* take(bool there) {
    if (!there) return nullptr;
    if (next_ >= call_.num_inputs) throw std::invalid_argument("the kernel was given too few tensors");
    return &call_.inputs[next_++];
  }

 private:
  const KernelCall& call_;
  int next_;
};

template <typename C>
double mean_of(const C* x, std::int64_t count) {
  return sum_of(x, count, [](double value) { return value; }) / static_cast<double>(count);
}
template <typename C>
double variance_of(const C* x, std::int64_t count, double mean) {
  return sum_of(x, count, [mean](double value) { return (value - mean) * (value - mean); }) /
         static_cast<double>(count);
}

// (x - mean) * scale * weight + bias, in place.
template <typename C>
void normalise(C* x, std::int64_t count, C mean, C scale, const C* weight, const C* bias) {
  if (weight != nullptr && bias != nullptr) {
    for (std::int64_t i = 0; i < count; ++i) x[i] = (x[i] - mean) * scale * weight[i] + bias[i];
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) x[i] = (x[i] - mean) * scale;
  if (weight != nullptr) {
    for (std::int64_t i = 0; i < count; ++i) x[i] *= weight[i];
  }
  if (bias != nullptr) {
    for (std::int64_t i = 0; i < count; ++i) x[i] += bias[i];
  }
}

void store_statistic(const KernelCall& call, int output, std::int64_t index, double value) {
  if (output >= call.num_outputs) return;
  const TensorView& view = call.outputs[output];
  convert_function(ScalarType::kDouble, view.dtype)(&value, at_mutable(view, index), 1);
}

template <bool kRms>
void layer(const KernelCall& call, int thread, int threads) {
  Parameters parameters(call);
  const std::int64_t inner = parameters.next_int();
  Optional optional(call, 1);
  const TensorView* weight_view = optional.take(parameters.next_int() != 0);
  const TensorView* bias_view = kRms ? nullptr : optional.take(parameters.next_int() != 0);
  const double eps = parameters.next_float();
  const TensorView& x = call.inputs[0];
  const TensorView& y = call.outputs[0];
  if (inner == 0) return;
  const Range range = share(x.numel() / inner, 6 * inner, thread, threads);
  if (range.empty()) return;
  dispatch_float(x.dtype, [&](auto tag) {
    using C = typename decltype(tag)::type;
    const Affine<C> weight(weight_view), bias(bias_view);
    const ConvertFunction load = convert_function(x.dtype, scalar_type_of<C>());
    const ElementWriter<C> writer(y);
    std::vector<C> row(static_cast<std::size_t>(inner));
    for (std::int64_t r = range.begin; r < range.end; ++r) {
      load(at(x, r * inner), row.data(), inner);
      double mean = 0.0, square;
      if constexpr (kRms) {
        square = sum_of(row.data(), inner, [](double v) { return v * v; }) / static_cast<double>(inner);
      } else {
        mean = mean_of(row.data(), inner);
        square = variance_of(row.data(), inner, mean);
      }
      const double scale = 1.0 / std::sqrt(square + eps);
      normalise(row.data(), inner, static_cast<C>(mean), static_cast<C>(scale), weight.data(), bias.data());
      writer.write(r * inner, row.data(), inner);
      if (kRms) {
        store_statistic(call, 1, r, scale);
      } else {
        store_statistic(call, 1, r, mean);
        store_statistic(call, 2, r, scale);
      }
    }
  });
}

void group(const KernelCall& call, int thread, int threads) {
  Parameters parameters(call);
  const std::int64_t groups = parameters.next_int();
  Optional optional(call, 1);
  const TensorView* weight_view = optional.take(parameters.next_int() != 0);
  const TensorView* bias_view = optional.take(parameters.next_int() != 0);
  const double eps = parameters.next_float();
  const TensorView& x = call.inputs[0];
  const std::int64_t batch = x.shape[0], channels = x.shape[1];
  const std::int64_t pixels = x.shape.product(2, x.shape.rank());
  const std::int64_t per_group = channels / groups, size = per_group * pixels;
  const Range range = share(batch * groups, 6 * size, thread, threads);
  if (range.empty() || size == 0) return;
  dispatch_float(x.dtype, [&](auto tag) {
    using C = typename decltype(tag)::type;
    const Affine<C> weight(weight_view), bias(bias_view);
    const ConvertFunction load = convert_function(x.dtype, scalar_type_of<C>());
    const ElementWriter<C> writer(call.outputs[0]);
    std::vector<C> values(static_cast<std::size_t>(size));
    for (std::int64_t g = range.begin; g < range.end; ++g) {
      load(at(x, g * size), values.data(), size);
      const double mean = mean_of(values.data(), size);
      const double scale = 1.0 / std::sqrt(variance_of(values.data(), size, mean) + eps);
      for (std::int64_t c = 0; c < per_group; ++c) {
        const std::int64_t channel = g % groups * per_group + c;
        const double factor = scale * static_cast<double>(weight.get(channel, C(1)));
        const double offset = static_cast<double>(bias.get(channel, C(0))) - mean * factor;
        C* row = values.data() + c * pixels;
        for (std::int64_t i = 0; i < pixels; ++i)
          row[i] = static_cast<C>(static_cast<double>(row[i]) * factor + offset);
      }
      writer.write(g * size, values.data(), size);
      store_statistic(call, 1, g, mean);
      store_statistic(call, 2, g, scale);
    }
  });
}

void batch(const KernelCall& call, int thread, int threads) {
  Parameters parameters(call);
  Optional optional(call, 1);
  const TensorView* weight_view = optional.take(parameters.next_int() != 0);
  const TensorView* bias_view = optional.take(parameters.next_int() != 0);
  const bool running = parameters.next_int() != 0;
  const TensorView* mean_view = optional.take(running);
  const TensorView* variance_view = optional.take(running);
  const double eps = parameters.next_float();
  const TensorView& x = call.inputs[0];
  const std::int64_t items = x.shape[0], channels = x.shape[1];
  const std::int64_t pixels = x.shape.product(2, x.shape.rank());
  const Range range = share(channels, 6 * items * pixels, thread, threads);
  if (range.empty()) return;
  dispatch_float(x.dtype, [&](auto tag) {
    using C = typename decltype(tag)::type;
    const Affine<C> weight(weight_view), bias(bias_view), means(mean_view), variances(variance_view);
    const ConvertFunction load = convert_function(x.dtype, scalar_type_of<C>());
    const ElementWriter<C> writer(call.outputs[0]);
    std::vector<C> row(static_cast<std::size_t>(pixels));
    const double count = static_cast<double>(items * pixels);
    for (std::int64_t c = range.begin; c < range.end; ++c) {
      double mean = static_cast<double>(means.get(c, C(0))), variance = static_cast<double>(variances.get(c, C(0)));
      const auto each = [&](auto&& use) {
        for (std::int64_t n = 0; n < items; ++n) {
          load(at(x, (n * channels + c) * pixels), row.data(), pixels);
          use(n);
        }
      };
      if (!running) {
        each([&](std::int64_t) { mean += sum_of(row.data(), pixels, [](double v) { return v; }); });
        mean /= count;
        each([&](std::int64_t) {
          variance += sum_of(row.data(), pixels, [mean](double v) { return (v - mean) * (v - mean); });
        });
        variance /= count;
      }
      const double scale = 1.0 / std::sqrt(variance + eps);
      const double factor = scale * static_cast<double>(weight.get(c, C(1)));
      const double offset = static_cast<double>(bias.get(c, C(0))) - mean * factor;
      each([&](std::int64_t n) {
        for (C& value : row) value = static_cast<C>(static_cast<double>(value) * factor + offset);
        writer.write((n * channels + c) * pixels, row.data(), pixels);
      });
      store_statistic(call, 1, c, mean);
      store_statistic(call, 2, c, scale);
    }
  });
}

constexpr KernelInfo kKernels[] = {
    {"norm.layer", layer<false>, false, kAnyThreads},
    {"norm.rms", layer<true>, false, kAnyThreads},
    {"norm.group", group, false, kAnyThreads},
    {"norm.batch", batch, false, kAnyThreads},
};

}  // namespace

KernelList norm_kernels() { return make_list(kKernels); }

}  // namespace ptn::kernels
