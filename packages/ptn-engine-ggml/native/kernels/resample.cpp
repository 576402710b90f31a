// Interpolation on grids.
//
// resample.nearest    inputs [x]; ints [spatial axes, exact]; floats [scale factor per axis (0: from the sizes)].
// resample.linear     inputs [x]; ints [spatial axes, align_corners]; floats [scale factors].
// resample.cubic      the same.
// resample.linear_aa, cubic_aa   the same, with antialiasing when shrinking.
//                     uint8 images are resized in fixed point, one axis after the other, as PyTorch and Pillow do.
// resample.grid_sample  inputs [x, grid (n, spatial..., 2 or 3)]; ints [interpolation (0 linear, 1 nearest, 2 cubic),
//                       padding (0 zeros, 1 border, 2 reflection), align_corners].
// resample.affine_grid  inputs [theta (n, 2, 3) or (n, 3, 4)]; outputs [(n, spatial..., 2 or 3)]; ints [align_corners].
//
// Positions are computed as PyTorch's CPU kernels compute them: in float, in double for float64 tensors.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "families.h"
#include "support.h"

namespace ptn::kernels {
namespace {

constexpr int kAxes = 3;

struct Sizes {
  std::array<std::int64_t, kAxes> in{1, 1, 1}, out{1, 1, 1};
  std::array<double, kAxes> factor{0.0, 0.0, 0.0};
  std::int64_t planes = 1;
  int spatial = 0;

  std::int64_t in_plane() const { return in[0] * in[1] * in[2]; }
  std::int64_t out_plane() const { return out[0] * out[1] * out[2]; }
};

Sizes read_sizes(const KernelCall& call, Parameters& parameters) {
  Sizes sizes;
  sizes.spatial = static_cast<int>(parameters.next_int());
  if (sizes.spatial < 1 || sizes.spatial > kAxes) {
    throw std::invalid_argument("interpolation takes 1 to 3 spatial axes");
  }
  const Shape& in = call.inputs[0].shape;
  const Shape& out = call.outputs[0].shape;
  sizes.planes = in.product(0, in.rank() - sizes.spatial);
  for (int k = 0; k < sizes.spatial; ++k) {
    const std::size_t slot = static_cast<std::size_t>(kAxes - sizes.spatial + k);
    sizes.in[slot] = in[in.rank() - sizes.spatial + k];
    sizes.out[slot] = out[out.rank() - sizes.spatial + k];
    sizes.factor[slot] = parameters.next_float();
  }
  return sizes;
}

// Input pixels per output pixel.
template <typename C>
C pixel_scale(std::int64_t in, std::int64_t out, bool align_corners, double factor) {
  if (align_corners) return out > 1 ? static_cast<C>(in - 1) / static_cast<C>(out - 1) : C(0);
  return factor > 0.0 ? static_cast<C>(1.0 / factor) : static_cast<C>(in) / static_cast<C>(out);
}

// ---- nearest -----------------------------------------------------------------------------------------------------

template <typename C>
std::vector<std::int64_t> nearest_map(std::int64_t in, std::int64_t out, bool exact, double factor) {
  const C scale = pixel_scale<C>(in, out, false, factor);
  std::vector<std::int64_t> map;
  for (std::int64_t o = 0; o < out; ++o) {
    const C position = exact ? scale * (static_cast<C>(o) + C(0.5)) : scale * static_cast<C>(o);
    map.push_back(std::clamp<std::int64_t>(static_cast<std::int64_t>(std::floor(position)), 0, in - 1));
  }
  return map;
}

void nearest(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 1, 1);
  Parameters parameters(call);
  const Sizes sizes = read_sizes(call, parameters);
  const bool exact = parameters.next_int() != 0;
  const Range range = share(sizes.planes * sizes.out[0] * sizes.out[1], sizes.out[2], thread, threads);
  if (range.empty()) return;
  std::array<std::vector<std::int64_t>, kAxes> maps;
  const bool wide = call.inputs[0].dtype == ScalarType::kDouble;
  for (std::size_t a = 0; a < kAxes; ++a) {
    maps[a] = wide ? nearest_map<double>(sizes.in[a], sizes.out[a], exact, sizes.factor[a])
                   : nearest_map<float>(sizes.in[a], sizes.out[a], exact, sizes.factor[a]);
  }
  dispatch_size(call.inputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (std::int64_t row = range.begin; row < range.end; ++row) {
      const std::int64_t y = row % sizes.out[1], z = row / sizes.out[1] % sizes.out[0];
      const std::int64_t plane = row / (sizes.out[1] * sizes.out[0]);
      const T* from =
          call.inputs[0].as<const T>() + plane * sizes.in_plane() +
          (maps[0][static_cast<std::size_t>(z)] * sizes.in[1] + maps[1][static_cast<std::size_t>(y)]) * sizes.in[2];
      T* to = call.outputs[0].as<T>() + row * sizes.out[2];
      const std::int64_t* columns = maps[2].data();
      for (std::int64_t x = 0; x < sizes.out[2]; ++x) to[x] = from[columns[x]];
    }
  });
}

// ---- weighted taps -----------------------------------------------------------------------------------------------

// For each output position along one axis: `count` taps, each an input position and its weight.
template <typename C>
struct Taps {
  std::int64_t count = 1;
  std::vector<std::int64_t> places;
  std::vector<C> weights;
};

// Keys' cubic convolution kernel with a = -0.75 at the four taps around a point `t` past the second.
template <typename C>
std::array<C, 4> cubic_weights(C t) {
  constexpr C a = C(-0.75);
  const auto near = [](C x) { return ((a + C(2)) * x - (a + C(3))) * x * x + C(1); };
  const auto far = [](C x) { return ((a * x - C(5) * a) * x + C(8) * a) * x - C(4) * a; };
  return {far(t + C(1)), near(t), near(C(1) - t), far(C(2) - t)};
}

template <typename C>
Taps<C> linear_taps(std::int64_t in, std::int64_t out, bool align_corners, double factor) {
  const C scale = pixel_scale<C>(in, out, align_corners, factor);
  Taps<C> taps;
  taps.count = 2;
  for (std::int64_t o = 0; o < out; ++o) {
    std::int64_t low = o, high = o;
    C weight = 0;
    if (in != out) {
      C real = align_corners ? scale * static_cast<C>(o) : scale * (static_cast<C>(o) + C(0.5)) - C(0.5);
      real = std::max(real, C(0));
      low = std::min(static_cast<std::int64_t>(real), in - 1);
      high = std::min(low + 1, in - 1);
      weight = std::clamp(real - static_cast<C>(low), C(0), C(1));
    }
    taps.places.insert(taps.places.end(), {low, high});
    taps.weights.insert(taps.weights.end(), {C(1) - weight, weight});
  }
  return taps;
}

template <typename C>
Taps<C> cubic_taps(std::int64_t in, std::int64_t out, bool align_corners, double factor) {
  const C scale = pixel_scale<C>(in, out, align_corners, factor);
  Taps<C> taps;
  taps.count = 4;
  for (std::int64_t o = 0; o < out; ++o) {
    const C real = align_corners ? scale * static_cast<C>(o) : scale * (static_cast<C>(o) + C(0.5)) - C(0.5);
    const std::int64_t second = std::min(static_cast<std::int64_t>(std::floor(real)), in - 1);
    const C t = std::clamp(real - static_cast<C>(second), C(0), C(1));
    const std::array<C, 4> weights = cubic_weights(t);
    for (std::int64_t k = 0; k < 4; ++k) {
      taps.places.push_back(std::clamp<std::int64_t>(second - 1 + k, 0, in - 1));
      taps.weights.push_back(weights[static_cast<std::size_t>(k)]);
    }
  }
  return taps;
}

// The kernel widens with the scale, so that every input pixel counts. Weights are normalised over the taps inside.
template <typename C>
Taps<C> antialias_taps(std::int64_t in, std::int64_t out, bool align_corners, double factor, bool cubic) {
  Taps<C> taps;
  if (in == out) {  // left alone, whatever the factor
    for (std::int64_t o = 0; o < out; ++o) {
      taps.places.push_back(o);
      taps.weights.push_back(C(1));
    }
    return taps;
  }
  const C scale = pixel_scale<C>(in, out, align_corners, factor);
  const C half = cubic ? C(2) : C(1);
  const C support = scale >= C(1) ? half * scale : half;
  const C inverse = scale >= C(1) ? C(1) / scale : C(1);
  const auto filter = [cubic](C x) {
    x = std::fabs(x);
    if (!cubic) return x < C(1) ? C(1) - x : C(0);
    constexpr C a = C(-0.5);
    if (x < C(1)) return ((a + C(2)) * x - (a + C(3))) * x * x + C(1);
    if (x < C(2)) return (((x - C(5)) * x + C(8)) * x - C(4)) * a;
    return C(0);
  };
  taps.count = static_cast<std::int64_t>(std::ceil(support)) * 2 + 1;
  for (std::int64_t o = 0; o < out; ++o) {
    const C center = scale * (static_cast<C>(o) + C(0.5));
    const std::int64_t first = std::max<std::int64_t>(static_cast<std::int64_t>(center - support + C(0.5)), 0);
    const std::int64_t last = std::min<std::int64_t>(static_cast<std::int64_t>(center + support + C(0.5)), in);
    const std::int64_t inside = std::clamp<std::int64_t>(last - first, 0, taps.count);
    std::vector<C> weights(static_cast<std::size_t>(taps.count), C(0));
    C total = 0;
    for (std::int64_t k = 0; k < inside; ++k) {
      const C weight = filter((static_cast<C>(k + first) - center + C(0.5)) * inverse);
      weights[static_cast<std::size_t>(k)] = weight;
      total += weight;
    }
    for (std::int64_t k = 0; k < taps.count; ++k) {
      C& weight = weights[static_cast<std::size_t>(k)];
      if (total != C(0)) weight /= total;
      taps.places.push_back(std::clamp<std::int64_t>(first + k, 0, in - 1));
      taps.weights.push_back(weight);
    }
  }
  return taps;
}

// Rows of one output: first the taps across rows are blended, which vectorises, then those along the row.
template <typename C>
void interpolate(const KernelCall& call, const Sizes& sizes, const std::array<Taps<C>, kAxes>& taps, int thread,
                 int threads) {
  const std::int64_t width = sizes.in[2], out_width = sizes.out[2];
  const std::int64_t cost = taps[0].count * taps[1].count * width + taps[2].count * out_width;
  const Range range = share(sizes.planes * sizes.out[0] * sizes.out[1], cost, thread, threads);
  if (range.empty()) return;
  const ConvertFunction load = convert_function(call.inputs[0].dtype, scalar_type_of<C>());
  const bool direct = call.inputs[0].dtype == scalar_type_of<C>();
  const ElementWriter<C> writer(call.outputs[0]);
  std::vector<C> loaded(static_cast<std::size_t>(width)), blended(static_cast<std::size_t>(width));
  std::vector<C> result(static_cast<std::size_t>(out_width));
  for (std::int64_t row = range.begin; row < range.end; ++row) {
    const std::int64_t y = row % sizes.out[1], z = row / sizes.out[1] % sizes.out[0];
    const std::int64_t plane = row / (sizes.out[1] * sizes.out[0]) * sizes.in_plane();
    std::fill(blended.begin(), blended.end(), C(0));
    for (std::int64_t kz = 0; kz < taps[0].count; ++kz) {
      const std::size_t tz = static_cast<std::size_t>(z * taps[0].count + kz);
      for (std::int64_t ky = 0; ky < taps[1].count; ++ky) {
        const std::size_t ty = static_cast<std::size_t>(y * taps[1].count + ky);
        const std::int64_t at_row = plane + (taps[0].places[tz] * sizes.in[1] + taps[1].places[ty]) * width;
        const C* from = direct ? call.inputs[0].as<const C>() + at_row : loaded.data();
        if (!direct) load(at(call.inputs[0], at_row), loaded.data(), width);
        const C weight = taps[0].weights[tz] * taps[1].weights[ty];
        for (std::int64_t x = 0; x < width; ++x) blended[static_cast<std::size_t>(x)] += weight * from[x];
      }
    }
    const std::int64_t* places = taps[2].places.data();
    const C* weights = taps[2].weights.data();
    for (std::int64_t x = 0; x < out_width; ++x) {
      C sum = 0;
      for (std::int64_t k = 0; k < taps[2].count; ++k, ++places, ++weights) {
        sum += *weights * blended[static_cast<std::size_t>(*places)];
      }
      result[static_cast<std::size_t>(x)] = sum;
    }
    writer.write(row * out_width, result.data(), out_width);
  }
}

template <bool kCubic, bool kAntialias, typename C>
Taps<C> axis_taps(std::int64_t in, std::int64_t out, bool align_corners, double factor) {
  if constexpr (kAntialias) return antialias_taps<C>(in, out, align_corners, factor, kCubic);
  if constexpr (kCubic) return cubic_taps<C>(in, out, align_corners, factor);
  return linear_taps<C>(in, out, align_corners, factor);
}

// Taps with weights as integers of `bits` binary places: as many as keep the largest below 2^15.
struct FixedTaps {
  Taps<std::int64_t> taps;
  int bits = 0;
};

FixedTaps fixed_point(Taps<double> taps) {
  FixedTaps fixed;
  double largest = 0.0;
  for (std::size_t first = 0; first < taps.weights.size(); first += static_cast<std::size_t>(taps.count)) {
    for (std::size_t k = first; k < first + static_cast<std::size_t>(taps.count); ++k) {
      // Taps that fall on one pixel at an end count as one.
      for (std::size_t earlier = first; earlier < k; ++earlier) {
        if (taps.places[earlier] != taps.places[k]) continue;
        taps.weights[earlier] += taps.weights[k];
        taps.weights[k] = 0.0;
        break;
      }
    }
  }
  for (const double weight : taps.weights) largest = std::max(largest, weight);
  while (fixed.bits < 22 && static_cast<std::int64_t>(0.5 + largest * (1 << (fixed.bits + 1))) < (1 << 15))
    ++fixed.bits;
  fixed.taps.count = taps.count;
  fixed.taps.places = std::move(taps.places);
  for (const double weight : taps.weights) {
    fixed.taps.weights.push_back(static_cast<std::int64_t>((weight < 0.0 ? -0.5 : 0.5) + weight * (1 << fixed.bits)));
  }
  return fixed;
}

// `outer` x `out` x `inner` bytes from `outer` x `in` x `inner`.
void resize_axis(const FixedTaps& fixed, std::int64_t outer, std::int64_t in, std::int64_t out, std::int64_t inner,
                 const std::uint8_t* from, std::uint8_t* to) {
  const Taps<std::int64_t>& taps = fixed.taps;
  const std::int64_t half = fixed.bits > 0 ? std::int64_t{1} << (fixed.bits - 1) : 0;
  for (std::int64_t o = 0; o < outer; ++o, from += in * inner) {
    for (std::int64_t x = 0; x < out; ++x) {
      for (std::int64_t i = 0; i < inner; ++i) {
        std::int64_t sum = half;
        for (std::int64_t k = 0; k < taps.count; ++k) {
          const std::size_t tap = static_cast<std::size_t>(x * taps.count + k);
          sum += taps.weights[tap] * from[taps.places[tap] * inner + i];
        }
        *to++ = static_cast<std::uint8_t>(std::clamp<std::int64_t>(sum >> fixed.bits, 0, 255));
      }
    }
  }
}

template <bool kCubic, bool kAntialias>
void resize_bytes(const KernelCall& call, const Sizes& sizes, bool align_corners, int thread, int threads) {
  if (sizes.spatial != 2) throw std::invalid_argument("uint8 interpolation takes 2 spatial axes");
  const std::int64_t height = sizes.in[1], width = sizes.in[2], rows = sizes.out[1], columns = sizes.out[2];
  const Range range = share(sizes.planes, rows * columns * 8, thread, threads);
  if (range.empty()) return;
  const auto across =
      fixed_point(axis_taps<kCubic, kAntialias, double>(width, columns, align_corners, sizes.factor[2]));
  const auto down = fixed_point(axis_taps<kCubic, kAntialias, double>(height, rows, align_corners, sizes.factor[1]));
  std::vector<std::uint8_t> narrowed(static_cast<std::size_t>(height * columns));
  for (std::int64_t plane = range.begin; plane < range.end; ++plane) {
    const std::uint8_t* from = call.inputs[0].as<const std::uint8_t>() + plane * height * width;
    std::uint8_t* to = call.outputs[0].as<std::uint8_t>() + plane * rows * columns;
    // An axis that keeps its size is left alone, whatever its factor.
    if (width != columns) {
      std::uint8_t* target = height == rows ? to : narrowed.data();
      resize_axis(across, height, width, columns, 1, from, target);
      from = target;
    }
    if (height != rows) {
      resize_axis(down, 1, height, rows, columns, from, to);
    } else if (from != to) {
      std::copy(from, from + height * width, to);
    }
  }
}

template <bool kCubic, bool kAntialias>
void resize(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 1, 1);
  Parameters parameters(call);
  const Sizes sizes = read_sizes(call, parameters);
  const bool align_corners = parameters.next_int() != 0;
  if (call.inputs[0].dtype == ScalarType::kByte) {
    resize_bytes<kCubic, kAntialias>(call, sizes, align_corners, thread, threads);
    return;
  }
  dispatch_float(call.inputs[0].dtype, [&](auto tag) {
    using C = typename decltype(tag)::type;
    std::array<Taps<C>, kAxes> taps;
    for (std::size_t a = 0; a < kAxes; ++a) {
      taps[a] = a < static_cast<std::size_t>(kAxes - sizes.spatial)
                    ? Taps<C>{1, {0}, {C(1)}}
                    : axis_taps<kCubic, kAntialias, C>(sizes.in[a], sizes.out[a], align_corners, sizes.factor[a]);
    }
    interpolate<C>(call, sizes, taps, thread, threads);
  });
}

// ---- grid_sample -------------------------------------------------------------------------------------------------

enum class Interpolation { kLinear = 0, kNearest = 1, kCubic = 2 };
enum class Padding { kZeros = 0, kBorder = 1, kReflection = 2 };

// Two axes follow PyTorch's vector code, three its scalar code: they differ at NaN, infinities and huge coordinates.
template <typename C>
struct Sampler {
  Padding padding;
  bool align_corners;
  bool vector_rules;

  C unnormalised(C coordinate, std::int64_t size) const {
    if (align_corners) return (coordinate + C(1)) / C(2) * static_cast<C>(size - 1);
    return ((coordinate + C(1)) * static_cast<C>(size) - C(1)) / C(2);
  }
  C clipped(C x, std::int64_t size) const {
    const C last = static_cast<C>(size - 1);
    if (vector_rules) return std::min(last, x > C(0) ? x : C(0));  // NaN gives 0
    return std::min(last, std::max(x, C(0)));                      // NaN gives the last
  }
  // Reflected between low / 2 and high / 2.
  C reflected(C x, std::int64_t twice_low, std::int64_t twice_high) const {
    if (twice_low == twice_high) return C(0);
    const C low = static_cast<C>(twice_low) / C(2), span = static_cast<C>(twice_high - twice_low) / C(2);
    x = std::fabs(x - low);
    if (vector_rules) {
      const C twice = C(2) * span;
      const C extra = x - std::trunc(x / twice) * twice;
      return (twice - extra < extra ? twice - extra : extra) + low;
    }
    const C rest = std::fmod(x, span);
    const bool even = static_cast<std::int64_t>(std::floor(x / span)) % 2 == 0;
    return even ? rest + low : span - rest + low;
  }
  C padded(C x, std::int64_t size) const {
    if (padding == Padding::kBorder) {
      x = clipped(x, size);
    } else if (padding == Padding::kReflection) {
      x = align_corners ? reflected(x, 0, 2 * (size - 1)) : reflected(x, -1, 2 * size - 1);
      x = clipped(x, size);
    }
    if (vector_rules) return x;
    // What no int can hold, NaN included, is a place outside.
    return x > C(2147483646) || x < C(-2147483648.0) || !std::isfinite(x) ? C(-100) : x;
  }
};

struct Tap {
  std::int64_t place;  // -1: outside, reads as zero
  double weight;
};

// The taps along one axis for a normalised coordinate.
template <typename C>
int sample_taps(const Sampler<C>& sampler, Interpolation interpolation, C coordinate, std::int64_t size, Tap* taps) {
  const auto inside = [size](C place) {
    return place >= C(0) && place < static_cast<C>(size) ? static_cast<std::int64_t>(place) : std::int64_t{-1};
  };
  const C raw = sampler.unnormalised(coordinate, size);
  if (interpolation == Interpolation::kCubic) {
    const C second = std::floor(raw);
    const std::array<C, 4> weights = cubic_weights(raw - second);
    for (int k = 0; k < 4; ++k) {
      const C place = sampler.padded(second + static_cast<C>(k - 1), size);
      taps[k] = {inside(place), weights[static_cast<std::size_t>(k)]};
    }
    return 4;
  }
  const C x = sampler.padded(raw, size);
  if (interpolation == Interpolation::kNearest) {
    taps[0] = {inside(std::nearbyint(x)), 1.0};
    return 1;
  }
  const C low = std::floor(x);
  taps[0] = {inside(low), static_cast<double>((low + C(1)) - x)};
  taps[1] = {inside(low + C(1)), static_cast<double>(x - low)};
  return 2;
}

struct SampleSizes {
  int spatial;
  std::int64_t batch, channels, points;
  std::array<std::int64_t, kAxes> in{1, 1, 1};
};

template <typename C>
void sample_point(const SampleSizes& sizes, const Sampler<C>& sampler, Interpolation interpolation, const C* grid,
                  const C* plane0, std::int64_t plane_step, C* out) {
  std::array<std::array<Tap, 4>, kAxes> taps;
  std::array<int, kAxes> counts{1, 1, 1};
  for (auto& axis : taps) axis[0] = {0, 1.0};
  // The grid's last axis holds x, y(, z): x goes with the innermost axis.
  for (int k = 0; k < sizes.spatial; ++k) {
    const std::size_t slot = static_cast<std::size_t>(kAxes - 1 - k);
    counts[slot] = sample_taps(sampler, interpolation, grid[k], sizes.in[slot], taps[slot].data());
  }
  // Places outside count as zeros, which an undefined weight turns into NaN.
  const auto undefined = [&taps, &counts, &sampler](int axis) {
    const auto& along = taps[static_cast<std::size_t>(axis)];
    const auto end = along.begin() + counts[static_cast<std::size_t>(axis)];
    return sampler.vector_rules &&
           std::any_of(along.begin(), end, [](const Tap& tap) { return std::isnan(tap.weight); });
  };
  if (undefined(1) || undefined(2)) {
    std::fill_n(out, sizes.channels, std::numeric_limits<C>::quiet_NaN());
    return;
  }
  for (std::int64_t c = 0; c < sizes.channels; ++c) {
    const C* plane = plane0 + c * plane_step;
    C sum = 0;
    for (int z = 0; z < counts[0]; ++z) {
      for (int y = 0; y < counts[1]; ++y) {
        if (taps[0][static_cast<std::size_t>(z)].place < 0 || taps[1][static_cast<std::size_t>(y)].place < 0) continue;
        const C* row = plane + (taps[0][static_cast<std::size_t>(z)].place * sizes.in[1] +
                                taps[1][static_cast<std::size_t>(y)].place) *
                                   sizes.in[2];
        const double outer = taps[0][static_cast<std::size_t>(z)].weight * taps[1][static_cast<std::size_t>(y)].weight;
        for (int x = 0; x < counts[2]; ++x) {
          const Tap& tap = taps[2][static_cast<std::size_t>(x)];
          if (tap.place >= 0) sum += static_cast<C>(outer * tap.weight) * row[tap.place];
        }
      }
    }
    out[c] = sum;
  }
}

void grid_sample(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 2, 1);
  Parameters parameters(call);
  const Interpolation interpolation = static_cast<Interpolation>(parameters.next_int());
  const Padding padding = static_cast<Padding>(parameters.next_int());
  const bool align_corners = parameters.next_int() != 0;
  const TensorView& input = call.inputs[0];
  const TensorView& output = call.outputs[0];
  const int spatial = input.shape.rank() - 2;
  if (spatial < 2 || spatial > kAxes) throw std::invalid_argument("grid_sample takes 2 or 3 spatial axes");
  SampleSizes sizes{spatial, input.shape[0], input.shape[1], output.shape.product(2, output.shape.rank())};
  for (int k = 0; k < spatial; ++k) sizes.in[static_cast<std::size_t>(kAxes - spatial + k)] = input.shape[2 + k];
  const Range range = share(sizes.batch * sizes.points, 32 + 8 * sizes.channels, thread, threads);
  if (range.empty() || sizes.channels == 0) return;
  dispatch_float(input.dtype, [&](auto tag) {
    using C = typename decltype(tag)::type;
    const Whole<C> x(input), grid(call.inputs[1]);
    const ElementWriter<C> writer(output);
    const Sampler<C> sampler{padding, align_corners, spatial == 2};
    const std::int64_t plane = sizes.in[0] * sizes.in[1] * sizes.in[2];
    std::vector<C> channels(static_cast<std::size_t>(sizes.channels));
    for (std::int64_t p = range.begin; p < range.end; ++p) {
      const std::int64_t n = p / sizes.points;
      sample_point<C>(sizes, sampler, interpolation, grid.data() + p * spatial, x.data() + n * sizes.channels * plane,
                      plane, channels.data());
      for (std::int64_t c = 0; c < sizes.channels; ++c) {
        writer.write((n * sizes.channels + c) * sizes.points + p % sizes.points, &channels[static_cast<std::size_t>(c)],
                     1);
      }
    }
  });
}

// Pixel centres (or corners) from -1 to 1 along an axis.
template <typename C>
C normalised(std::int64_t index, std::int64_t size, bool align_corners) {
  if (size == 1) return C(0);
  const double position = -1.0 + 2.0 * static_cast<double>(index) / static_cast<double>(size - 1);
  const double shrink = align_corners ? 1.0 : static_cast<double>(size - 1) / static_cast<double>(size);
  return static_cast<C>(static_cast<C>(position) * static_cast<C>(shrink));
}

void affine_grid(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 1, 1);
  Parameters parameters(call);
  const bool align_corners = parameters.next_int() != 0;
  const TensorView& theta = call.inputs[0];
  const Shape& shape = call.outputs[0].shape;
  const int spatial = shape.rank() - 2;
  const std::int64_t points = shape.product(1, 1 + spatial);
  const Range range = share(shape[0] * points, 16, thread, threads);
  if (range.empty()) return;
  dispatch_float(theta.dtype, [&](auto tag) {
    using C = typename decltype(tag)::type;
    const Whole<C> matrices(theta);
    const ElementWriter<C> writer(call.outputs[0]);
    for (std::int64_t p = range.begin; p < range.end; ++p) {
      const C* matrix = matrices.data() + p / points * spatial * (spatial + 1);
      C place[kAxes + 1], result[kAxes];
      std::int64_t rest = p % points;
      for (int k = 0; k < spatial; ++k) {  // x, the innermost axis, comes first
        const std::int64_t size = shape[spatial - k];
        place[k] = normalised<C>(rest % size, size, align_corners);
        rest /= size;
      }
      place[spatial] = C(1);
      for (int row = 0; row < spatial; ++row) {
        result[row] = C(0);
        for (int k = 0; k <= spatial; ++k) result[row] += place[k] * matrix[row * (spatial + 1) + k];
      }
      writer.write(p * spatial, result, spatial);
    }
  });
}

constexpr KernelInfo kKernels[] = {
    {"resample.nearest", nearest, false, kAnyThreads},
    {"resample.linear", resize<false, false>, false, kAnyThreads},
    {"resample.cubic", resize<true, false>, false, kAnyThreads},
    {"resample.linear_aa", resize<false, true>, false, kAnyThreads},
    {"resample.cubic_aa", resize<true, true>, false, kAnyThreads},
    {"resample.grid_sample", grid_sample, false, kAnyThreads},
    {"resample.affine_grid", affine_grid, false, kAnyThreads},
};

}  // namespace

KernelList resample_kernels() { return make_list(kKernels); }

}  // namespace ptn::kernels
