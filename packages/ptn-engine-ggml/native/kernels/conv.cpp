// Convolution in its general form: 1 to 3 spatial axes, groups, dilation, transposed, any dtype. Slower than ggml's
// products of matrices, but right everywhere.
//
// conv.direct      inputs [x (n, c, ...), weight (o, c / groups, ...), bias?]; ints [spatial axes, groups, has bias,
//                  stride..., padding..., dilation...].
// conv.transposed  inputs [x (n, c, ...), weight (c, o / groups, ...), bias?]; the same ints. Output padding is read
// off
//                  the output's shape.
// conv.im2col      inputs [x (n, c, h, w)]; outputs [(n, c * kh * kw, l)]; ints [kernel..., dilation..., padding...,
//                  stride...], two each.
// conv.col2im      inputs [x (n, c * kh * kw, l)]; outputs [(n, c, h, w)]; the same ints.
#include <algorithm>
#include <vector>

#include "families.h"
#include "support.h"

namespace ptn::kernels {
namespace {

constexpr int kAxes = 3;
using Axes = std::array<std::int64_t, kAxes>;

// Missing spatial axes lead with size 1.
struct Geometry {
  std::int64_t batch = 1, in_channels = 1, out_channels = 1, groups = 1;
  Axes in{1, 1, 1}, out{1, 1, 1}, kernel{1, 1, 1}, stride{1, 1, 1}, padding{0, 0, 0}, dilation{1, 1, 1};
  bool has_bias = false;

  static std::int64_t size(const Axes& axes) { return axes[0] * axes[1] * axes[2]; }
};

void read_axes(Parameters& parameters, int spatial, Axes& axes) {
  for (int k = 0; k < spatial; ++k) axes[static_cast<std::size_t>(kAxes - spatial + k)] = parameters.next_int();
}

Geometry read_geometry(const KernelCall& call) {
  Parameters parameters(call);
  const int spatial = static_cast<int>(parameters.next_int());
  if (spatial < 1 || spatial > kAxes) throw std::invalid_argument("convolution takes 1 to 3 spatial axes");
  Geometry g;
  g.groups = parameters.next_int();
  g.has_bias = parameters.next_int() != 0;
  read_axes(parameters, spatial, g.stride);
  read_axes(parameters, spatial, g.padding);
  read_axes(parameters, spatial, g.dilation);
  const Shape& x = call.inputs[0].shape;
  const Shape& weight = call.inputs[1].shape;
  const Shape& y = call.outputs[0].shape;
  if (x.rank() != spatial + 2 || weight.rank() != spatial + 2) {
    throw std::invalid_argument("convolution takes a batch axis, channels and spatial axes");
  }
  g.batch = x[0];
  g.in_channels = x[1];
  g.out_channels = y[1];
  for (int k = 0; k < spatial; ++k) {
    const std::size_t slot = static_cast<std::size_t>(kAxes - spatial + k);
    g.in[slot] = x[2 + k];
    g.out[slot] = y[2 + k];
    g.kernel[slot] = weight[2 + k];
  }
  return g;
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a >= 0 ? (a + b - 1) / b : -(-a / b); }
std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

// The positions p of [0, count) for which p * stride + shift lies in [0, limit).
Range inside(std::int64_t count, std::int64_t stride, std::int64_t shift, std::int64_t limit) {
  return {std::max<std::int64_t>(0, ceil_div(-shift, stride)),
          std::min(count, floor_div(limit - 1 - shift, stride) + 1)};
}

// Adds weight * small plane, strided, to the large plane or from it: `small` walks with unit steps, `large` with the
// stride. A convolution gathers from the large plane (the input), a transposed one scatters to it (the output).
template <typename C, bool kScatter>
void add_tap(const Geometry& g, const Axes& small_size, const Axes& large_size, const Axes& tap, C weight,
             const C* from, C* to) {
  std::array<Range, kAxes> ranges;
  Axes shift;
  for (std::size_t a = 0; a < kAxes; ++a) {
    shift[a] = tap[a] * g.dilation[a] - g.padding[a];
    ranges[a] = inside(small_size[a], g.stride[a], shift[a], large_size[a]);
    if (ranges[a].empty()) return;
  }
  for (std::int64_t z = ranges[0].begin; z < ranges[0].end; ++z) {
    for (std::int64_t y = ranges[1].begin; y < ranges[1].end; ++y) {
      const std::int64_t small = (z * small_size[1] + y) * small_size[2];
      const std::int64_t large =
          ((z * g.stride[0] + shift[0]) * large_size[1] + y * g.stride[1] + shift[1]) * large_size[2] + shift[2];
      const C* source = from + (kScatter ? small : large);
      C* target = to + (kScatter ? large : small);
      const std::int64_t step = g.stride[2];
      const std::int64_t begin = ranges[2].begin, end = ranges[2].end;
      if (step == 1) {
        for (std::int64_t x = begin; x < end; ++x) target[x] += weight * source[x];
      } else if (kScatter) {
        for (std::int64_t x = begin; x < end; ++x) target[x * step] += weight * source[x];
      } else {
        for (std::int64_t x = begin; x < end; ++x) target[x] += weight * source[x * step];
      }
    }
  }
}

template <typename C, bool kTransposed>
void convolve(const KernelCall& call, const Geometry& g, Range range) {
  const Whole<C> x(call.inputs[0]), weight(call.inputs[1]);
  std::unique_ptr<Whole<C>> bias(g.has_bias ? new Whole<C>(call.inputs[2]) : nullptr);
  const ElementWriter<C> writer(call.outputs[0]);
  const std::int64_t in_plane = Geometry::size(g.in), out_plane = Geometry::size(g.out);
  const std::int64_t taps = Geometry::size(g.kernel);
  const std::int64_t in_group = g.in_channels / g.groups, out_group = g.out_channels / g.groups;
  std::vector<C> plane(static_cast<std::size_t>(out_plane));
  for (std::int64_t task = range.begin; task < range.end; ++task) {
    const std::int64_t n = task / g.out_channels, o = task % g.out_channels, group = o / out_group;
    std::fill(plane.begin(), plane.end(), bias ? (*bias)[o] : C(0));
    for (std::int64_t i = 0; i < in_group; ++i) {
      const std::int64_t channel = group * in_group + i;
      const C* from = x.data() + (n * g.in_channels + channel) * in_plane;
      const std::int64_t filter = kTransposed ? channel * out_group + o % out_group : o * in_group + i;
      const C* weights = weight.data() + filter * taps;
      Axes tap;
      for (tap[0] = 0; tap[0] < g.kernel[0]; ++tap[0]) {
        for (tap[1] = 0; tap[1] < g.kernel[1]; ++tap[1]) {
          for (tap[2] = 0; tap[2] < g.kernel[2]; ++tap[2]) {
            add_tap<C, kTransposed>(g, kTransposed ? g.in : g.out, kTransposed ? g.out : g.in, tap, *weights++, from,
                                    plane.data());
          }
        }
      }
    }
    writer.write(task * out_plane, plane.data(), out_plane);
  }
}

template <bool kTransposed>
void convolution(const KernelCall& call, int thread, int threads) {
  const Geometry g = read_geometry(call);
  const std::int64_t cost = Geometry::size(kTransposed ? g.in : g.out) * Geometry::size(g.kernel) *
                            std::max<std::int64_t>(g.in_channels / std::max<std::int64_t>(g.groups, 1), 1);
  const Range range = share(g.batch * g.out_channels, cost, thread, threads);
  if (range.empty() || call.outputs[0].numel() == 0) return;
  const ScalarType dtype = call.outputs[0].dtype;
  if (is_float(dtype)) {
    dispatch_float(dtype, [&](auto tag) { convolve<typename decltype(tag)::type, kTransposed>(call, g, range); });
  } else {
    // Unsigned sums wrap, and end in the right bits whatever the width.
    convolve<std::uint64_t, kTransposed>(call, g, range);
  }
}

// ---- columns -----------------------------------------------------------------------------------------------------

struct Columns {
  Axes kernel{1, 1, 1}, dilation{1, 1, 1}, padding{0, 0, 0}, stride{1, 1, 1};
  std::int64_t batch, channels, height, width, rows, columns;
};

Columns read_columns(const KernelCall& call, const Shape& image, const Shape& unfolded) {
  Parameters parameters(call);
  Columns c;
  read_axes(parameters, 2, c.kernel);
  read_axes(parameters, 2, c.dilation);
  read_axes(parameters, 2, c.padding);
  read_axes(parameters, 2, c.stride);
  const int r = image.rank();
  c.channels = image[r - 3];
  c.height = image[r - 2];
  c.width = image[r - 1];
  c.batch = image.product(0, r - 3);
  c.rows = (c.height + 2 * c.padding[1] - c.dilation[1] * (c.kernel[1] - 1) - 1) / c.stride[1] + 1;
  c.columns = (c.width + 2 * c.padding[2] - c.dilation[2] * (c.kernel[2] - 1) - 1) / c.stride[2] + 1;
  if (unfolded[unfolded.rank() - 1] != c.rows * c.columns) {
    throw std::invalid_argument("the number of blocks does not fit the image");
  }
  return c;
}

// Calls use(image row offset, column offset of row y, valid x range, shift) for each tap and block row of one channel.
template <typename F>
void for_blocks(const Columns& c, std::int64_t channel, F&& use) {
  for (std::int64_t ky = 0; ky < c.kernel[1]; ++ky) {
    for (std::int64_t kx = 0; kx < c.kernel[2]; ++kx) {
      const std::int64_t column = ((channel * c.kernel[1] + ky) * c.kernel[2] + kx) * c.rows * c.columns;
      const std::int64_t shift = kx * c.dilation[2] - c.padding[2];
      const Range valid = inside(c.columns, c.stride[2], shift, c.width);
      for (std::int64_t y = 0; y < c.rows; ++y) {
        const std::int64_t row = y * c.stride[1] + ky * c.dilation[1] - c.padding[1];
        const bool in_image = row >= 0 && row < c.height;
        use((channel * c.height + row) * c.width + shift, column + y * c.columns, in_image ? valid : Range{0, 0});
      }
    }
  }
}

void im2col(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 1, 1);
  const Columns c = read_columns(call, call.inputs[0].shape, call.outputs[0].shape);
  const Range range = share(c.batch * c.channels, c.kernel[1] * c.kernel[2] * c.rows * c.columns, thread, threads);
  if (range.empty()) return;
  dispatch_size(call.inputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (std::int64_t channel = range.begin; channel < range.end; ++channel) {
      for_blocks(c, channel, [&](std::int64_t image, std::int64_t column, Range valid) {
        T* to = call.outputs[0].as<T>() + column;
        std::fill_n(to, c.columns, T(0));
        const T* from = call.inputs[0].as<const T>();
        for (std::int64_t x = valid.begin; x < valid.end; ++x) to[x] = from[image + x * c.stride[2]];
      });
    }
  });
}

void col2im(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 1, 1);
  const Columns c = read_columns(call, call.outputs[0].shape, call.inputs[0].shape);
  const Range range = share(c.batch * c.channels, c.kernel[1] * c.kernel[2] * c.rows * c.columns, thread, threads);
  if (range.empty()) return;
  dispatch_float(call.inputs[0].dtype, [&](auto tag) {
    using C = typename decltype(tag)::type;
    const Whole<C> from(call.inputs[0]);
    const ElementWriter<C> writer(call.outputs[0]);
    const std::int64_t size = c.height * c.width;
    std::vector<C> plane(static_cast<std::size_t>(size));
    for (std::int64_t channel = range.begin; channel < range.end; ++channel) {
      std::fill(plane.begin(), plane.end(), C(0));
      for_blocks(c, channel, [&](std::int64_t image, std::int64_t column, Range valid) {
        C* to = plane.data() + (image - channel * size);
        for (std::int64_t x = valid.begin; x < valid.end; ++x) to[x * c.stride[2]] += from[column + x];
      });
      writer.write(channel * size, plane.data(), size);
    }
  });
}

constexpr KernelInfo kKernels[] = {
    {"conv.direct", convolution<false>, false, kAnyThreads},
    {"conv.transposed", convolution<true>, false, kAnyThreads},
    {"conv.im2col", im2col, false, kAnyThreads},
    {"conv.col2im", col2im, false, kAnyThreads},
};

}  // namespace

KernelList conv_kernels() { return make_list(kKernels); }

}  // namespace ptn::kernels
