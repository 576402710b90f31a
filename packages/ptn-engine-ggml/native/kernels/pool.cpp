// Pooling over 1 to 3 spatial axes. Tensors are [batch..., channels, spatial...]: everything ahead of the spatial axes
// is one axis of planes.
//
// pool.max           inputs [x]; outputs [values] or [values, indices (int64, flat within the plane)];
//                    ints [spatial axes, kernel..., stride..., padding..., dilation...].
// pool.avg           inputs [x]; ints [spatial axes, kernel..., stride..., padding..., count_include_pad,
//                    divisor_override (0: none)].
// pool.adaptive_avg  inputs [x]; ints [spatial axes]; sizes are the output's.
// pool.adaptive_max  inputs [x]; outputs [values, indices]; ints [spatial axes].
#include <algorithm>
#include <vector>

#include "families.h"
#include "support.h"

namespace ptn::kernels {
namespace {

constexpr int kAxes = 3;

// Always three spatial axes; missing ones lead with size 1.
struct Geometry {
  std::array<std::int64_t, kAxes> in{1, 1, 1}, out{1, 1, 1}, kernel{1, 1, 1}, stride{1, 1, 1}, padding{0, 0, 0},
      dilation{1, 1, 1};
  std::int64_t planes = 1;

  std::int64_t in_plane() const { return in[0] * in[1] * in[2]; }
  std::int64_t out_plane() const { return out[0] * out[1] * out[2]; }
  std::int64_t window() const { return kernel[0] * kernel[1] * kernel[2]; }
};

Geometry read_sizes(const KernelCall& call, int spatial) {
  if (spatial < 1 || spatial > kAxes) throw std::invalid_argument("pooling takes 1 to 3 spatial axes");
  Geometry g;
  const Shape& in = call.inputs[0].shape;
  const Shape& out = call.outputs[0].shape;
  g.planes = in.product(0, in.rank() - spatial);
  for (int k = 0; k < spatial; ++k) {
    const std::size_t slot = static_cast<std::size_t>(kAxes - spatial + k);
    g.in[slot] = in[in.rank() - spatial + k];
    g.out[slot] = out[out.rank() - spatial + k];
  }
  return g;
}

void read_axes(Parameters& parameters, int spatial, std::array<std::int64_t, kAxes>& values) {
  for (int k = 0; k < spatial; ++k) values[static_cast<std::size_t>(kAxes - spatial + k)] = parameters.next_int();
}

// The taps [begin, end) of one axis that fall inside the input, for one output position.
struct Taps {
  std::int64_t first;  // input position of tap `begin`
  std::int64_t begin, end;
};

Taps taps_at(std::int64_t position, std::int64_t stride, std::int64_t padding, std::int64_t dilation,
             std::int64_t kernel, std::int64_t size) {
  const std::int64_t start = position * stride - padding;
  std::int64_t begin = 0, end = kernel;
  if (start < 0) begin = (-start + dilation - 1) / dilation;
  if (start + (end - 1) * dilation >= size) end = start < size ? (size - start + dilation - 1) / dilation : 0;
  return {start + begin * dilation, begin, std::max(begin, end)};
}

std::array<std::vector<Taps>, kAxes> all_taps(const Geometry& g) {
  std::array<std::vector<Taps>, kAxes> taps;
  for (std::size_t a = 0; a < kAxes; ++a) {
    for (std::int64_t o = 0; o < g.out[a]; ++o) {
      taps[a].push_back(taps_at(o, g.stride[a], g.padding[a], g.dilation[a], g.kernel[a], g.in[a]));
    }
  }
  return taps;
}

// Adaptive windows: floor(o * in / out) up to ceil((o + 1) * in / out).
std::array<std::vector<Taps>, kAxes> adaptive_taps(const Geometry& g) {
  std::array<std::vector<Taps>, kAxes> taps;
  for (std::size_t a = 0; a < kAxes; ++a) {
    for (std::int64_t o = 0; o < g.out[a]; ++o) {
      const std::int64_t first = o * g.in[a] / g.out[a];
      const std::int64_t last = ((o + 1) * g.in[a] + g.out[a] - 1) / g.out[a];
      taps[a].push_back({first, 0, last - first});
    }
  }
  return taps;
}

// One plane at a time as the computed type.
template <typename C>
class Planes {
 public:
  Planes(const TensorView& view, std::int64_t size)
      : view_(view), size_(size), convert_(convert_function(view.dtype, scalar_type_of<C>())) {
    if (view.dtype != scalar_type_of<C>()) copy_.reset(new C[static_cast<std::size_t>(size)]);
  }
  const C* read(std::int64_t plane) {
    if (!copy_) return view_.as<const C>() + plane * size_;
    convert_(at(view_, plane * size_), copy_.get(), size_);
    return copy_.get();
  }

 private:
  TensorView view_;
  std::int64_t size_;
  ConvertFunction convert_;
  std::unique_ptr<C[]> copy_;
};

template <typename C>
bool beats(C x, C best) {
  if constexpr (std::is_floating_point_v<C>) return x > best || x != x;
  return x > best;
}

template <typename C>
C lowest() {
  if constexpr (std::is_floating_point_v<C>) return -std::numeric_limits<C>::infinity();
  return std::numeric_limits<C>::lowest();
}

// Calls window(o, z taps, y taps, x taps) for every output position of a plane, o counting up.
template <typename F>
void for_windows(const std::array<std::vector<Taps>, kAxes>& taps, F&& window) {
  std::int64_t o = 0;
  for (const Taps& z : taps[0]) {
    for (const Taps& y : taps[1]) {
      for (const Taps& x : taps[2]) window(o++, z, y, x);
    }
  }
}

template <typename C>
void max_plane(const Geometry& g, const std::array<std::vector<Taps>, kAxes>& taps, const C* in, C* out,
               std::int64_t* indices) {
  for_windows(taps, [&](std::int64_t o, const Taps& z, const Taps& y, const Taps& x) {
    C best = lowest<C>();
    // Where nothing beats the lowest value PyTorch names the first element of the window.
    std::int64_t place = (z.first * g.in[1] + y.first) * g.in[2] + x.first;
    for (std::int64_t dz = 0; dz < z.end - z.begin; ++dz) {
      for (std::int64_t dy = 0; dy < y.end - y.begin; ++dy) {
        const std::int64_t row =
            ((z.first + dz * g.dilation[0]) * g.in[1] + y.first + dy * g.dilation[1]) * g.in[2] + x.first;
        for (std::int64_t dx = 0; dx < x.end - x.begin; ++dx) {
          const std::int64_t at_element = row + dx * g.dilation[2];
          if (beats(in[at_element], best)) {
            best = in[at_element];
            place = at_element;
          }
        }
      }
    }
    out[o] = best;
    if (indices != nullptr) indices[o] = place;
  });
}

void run_max(const KernelCall& call, const Geometry& g, const std::array<std::vector<Taps>, kAxes>& taps, int thread,
             int threads) {
  const Range range = share(g.planes, g.out_plane() * std::max<std::int64_t>(g.window(), 4), thread, threads);
  if (range.empty() || g.out_plane() == 0) return;
  dispatch_compute(compute_dtype(call.inputs[0].dtype), [&](auto tag) {
    using C = typename decltype(tag)::type;
    Planes<C> planes(call.inputs[0], g.in_plane());
    const ElementWriter<C> writer(call.outputs[0]);
    std::unique_ptr<C[]> out(new C[static_cast<std::size_t>(g.out_plane())]);
    for (std::int64_t p = range.begin; p < range.end; ++p) {
      std::int64_t* indices = call.num_outputs > 1 ? call.outputs[1].as<std::int64_t>() + p * g.out_plane() : nullptr;
      max_plane(g, taps, planes.read(p), out.get(), indices);
      writer.write(p * g.out_plane(), out.get(), g.out_plane());
    }
  });
}

void max_pool(const KernelCall& call, int thread, int threads) {
  Parameters parameters(call);
  const int spatial = static_cast<int>(parameters.next_int());
  Geometry g = read_sizes(call, spatial);
  read_axes(parameters, spatial, g.kernel);
  read_axes(parameters, spatial, g.stride);
  read_axes(parameters, spatial, g.padding);
  read_axes(parameters, spatial, g.dilation);
  run_max(call, g, all_taps(g), thread, threads);
}

void adaptive_max(const KernelCall& call, int thread, int threads) {
  Parameters parameters(call);
  const Geometry g = read_sizes(call, static_cast<int>(parameters.next_int()));
  run_max(call, g, adaptive_taps(g), thread, threads);
}

// Divisor of a window: the given one, or its elements inside the padded input, or inside the input.
struct Divisor {
  std::int64_t override_ = 0;
  bool include_padding = false;

  std::int64_t axis(const Geometry& g, std::size_t a, std::int64_t position, const Taps& taps) const {
    if (!include_padding) return taps.end - taps.begin;
    const std::int64_t start = position * g.stride[a] - g.padding[a];
    return std::min(start + g.kernel[a], g.in[a] + g.padding[a]) - start;
  }
};

template <typename C>
void avg_plane(const Geometry& g, const std::array<std::vector<Taps>, kAxes>& taps, const Divisor& divisor, const C* in,
               C* out) {
  for_windows(taps, [&](std::int64_t o, const Taps& z, const Taps& y, const Taps& x) {
    std::conditional_t<std::is_integral_v<C>, std::int64_t, double> sum = 0;
    for (std::int64_t dz = 0; dz < z.end - z.begin; ++dz) {
      for (std::int64_t dy = 0; dy < y.end - y.begin; ++dy) {
        const C* row = in + ((z.first + dz) * g.in[1] + y.first + dy) * g.in[2] + x.first;
        for (std::int64_t dx = 0; dx < x.end - x.begin; ++dx) sum += row[dx];
      }
    }
    std::int64_t by = divisor.override_;
    if (by == 0) {
      const std::int64_t ox = o % g.out[2], oy = o / g.out[2] % g.out[1], oz = o / g.out[2] / g.out[1];
      by = divisor.axis(g, 0, oz, z) * divisor.axis(g, 1, oy, y) * divisor.axis(g, 2, ox, x);
    }
    if constexpr (std::is_integral_v<C>) {
      out[o] = by == 0 ? C(0) : static_cast<C>(sum / by);
    } else {
      // A window that lies in the padding alone holds 0.
      out[o] = sum == 0.0 && by == 0 ? C(0) : static_cast<C>(sum / static_cast<double>(by));
    }
  });
}

void run_avg(const KernelCall& call, const Geometry& g, const std::array<std::vector<Taps>, kAxes>& taps,
             const Divisor& divisor, int thread, int threads) {
  const Range range = share(g.planes, g.out_plane() * std::max<std::int64_t>(g.window(), 4), thread, threads);
  if (range.empty() || g.out_plane() == 0) return;
  const auto work = [&](auto tag) {
    using C = typename decltype(tag)::type;
    Planes<C> planes(call.inputs[0], g.in_plane());
    const ElementWriter<C> writer(call.outputs[0]);
    std::unique_ptr<C[]> out(new C[static_cast<std::size_t>(g.out_plane())]);
    for (std::int64_t p = range.begin; p < range.end; ++p) {
      avg_plane(g, taps, divisor, planes.read(p), out.get());
      writer.write(p * g.out_plane(), out.get(), g.out_plane());
    }
  };
  if (is_float(call.inputs[0].dtype)) {
    dispatch_float(call.inputs[0].dtype, work);
  } else {
    work(TypeTag<std::int64_t>{});
  }
}

void avg_pool(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 1, 1);
  Parameters parameters(call);
  const int spatial = static_cast<int>(parameters.next_int());
  Geometry g = read_sizes(call, spatial);
  read_axes(parameters, spatial, g.kernel);
  read_axes(parameters, spatial, g.stride);
  read_axes(parameters, spatial, g.padding);
  Divisor divisor;
  divisor.include_padding = parameters.next_int() != 0;
  divisor.override_ = parameters.next_int();
  run_avg(call, g, all_taps(g), divisor, thread, threads);
}

void adaptive_avg(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 1, 1);
  Parameters parameters(call);
  const Geometry g = read_sizes(call, static_cast<int>(parameters.next_int()));
  run_avg(call, g, adaptive_taps(g), Divisor{}, thread, threads);
}

constexpr KernelInfo kKernels[] = {
    {"pool.max", max_pool, false, kAnyThreads},
    {"pool.avg", avg_pool, false, kAnyThreads},
    {"pool.adaptive_avg", adaptive_avg, false, kAnyThreads},
    {"pool.adaptive_max", adaptive_max, false, kAnyThreads},
};

}  // namespace

KernelList pool_kernels() { return make_list(kKernels); }

}  // namespace ptn::kernels
