// Copies that move elements without looking at them: views made contiguous, concatenation, padding, rolling, triangles.
//
// layout.strided   inputs [x]; ints [offset, rank, sizes..., strides...], all in elements of x. The output holds the
//                  strided view of x (strides may be 0 or negative): permute, expand, slice, flip, diagonal, unfold.
// layout.cat       inputs [x0, x1, ...]; ints [axis].
// layout.pad       inputs [x]; ints [mode (0 constant, 1 reflect, 2 replicate, 3 circular), value (integers and bools),
//                  elements before each axis (negative crops)...]; floats [value (floating-point types)].
// layout.roll      inputs [x]; ints [shift of each axis...].
// layout.triangle  inputs [x]; ints [upper, diagonal]: the other part of the last two axes becomes zero.
#include <algorithm>
#include <vector>

#include "families.h"
#include "support.h"

namespace ptn::kernels {
namespace {

// ---- strided -----------------------------------------------------------------------------------------------------

struct Strided {
  Shape sizes, strides;
  std::int64_t offset = 0;
};

// Drops axes of size 1 and joins neighbours that run on in memory.
Strided merged(const Strided& view) {
  Strided result;
  result.offset = view.offset;
  for (int axis = 0; axis < view.sizes.rank(); ++axis) {
    const std::int64_t size = view.sizes[axis], stride = view.strides[axis];
    if (size == 1) continue;
    const int last = result.sizes.rank() - 1;
    if (last >= 0 && result.strides[last] == stride * size) {
      result.sizes[last] *= size;
      result.strides[last] = stride;
    } else {
      result.sizes.push_back(size);
      result.strides.push_back(stride);
    }
  }
  if (result.sizes.rank() == 0) {
    result.sizes.push_back(1);
    result.strides.push_back(1);
  }
  return result;
}

template <typename T>
void copy_run(const T* from, std::int64_t stride, T* to, std::int64_t count) {
  if (stride == 1) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(T));
  } else if (stride == 0) {
    std::fill_n(to, count, *from);
  } else {
    for (std::int64_t i = 0; i < count; ++i) to[i] = from[i * stride];
  }
}

// A transposition: rows of the output stride through the input, whose own rows run down the output's column. Tiles
// keep both in the cache.
template <typename T>
void copy_transposed(const T* from, std::int64_t column_stride, T* to, std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kTile = 16;
  for (std::int64_t r0 = 0; r0 < rows; r0 += kTile) {
    const std::int64_t r1 = std::min(rows, r0 + kTile);
    for (std::int64_t c0 = 0; c0 < columns; c0 += kTile) {
      const std::int64_t c1 = std::min(columns, c0 + kTile);
      for (std::int64_t r = r0; r < r1; ++r) {
        for (std::int64_t c = c0; c < c1; ++c) to[r * columns + c] = from[r + c * column_stride];
      }
    }
  }
}

template <typename T>
void copy_strided(const Strided& view, const T* base, T* out, int thread, int threads) {
  const int rank = view.sizes.rank();
  const std::int64_t total = view.sizes.numel();
  const bool transposed = rank >= 2 && view.strides[rank - 2] == 1 && view.strides[rank - 1] != 1;
  const int inner_axes = transposed ? 2 : 1;
  const std::int64_t inner = view.sizes.product(rank - inner_axes, rank);
  if (inner_axes == 1 && rank == 1) {
    const Range range = share(total, 1, thread, threads);
    if (!range.empty()) {
      copy_run(base + range.begin * view.strides[0], view.strides[0], out + range.begin, range.end - range.begin);
    }
    return;
  }
  if (rank == 2 && transposed) {
    const std::int64_t columns = view.sizes[1];
    const Range range = share(view.sizes[0], columns, thread, threads);
    if (range.empty()) return;
    copy_transposed(base + range.begin, view.strides[1], out + range.begin * columns, range.end - range.begin, columns);
    return;
  }
  const Range range = share(total / inner, inner, thread, threads);
  if (range.empty()) return;
  Odometer<1> outer(Shape(view.sizes.begin(), rank - inner_axes), {Shape(view.strides.begin(), rank - inner_axes)});
  outer.seek(range.begin);
  for (std::int64_t i = range.begin; i < range.end; ++i, outer.next()) {
    const T* from = base + outer.offset(0);
    if (transposed) {
      copy_transposed(from, view.strides[rank - 1], out + i * inner, view.sizes[rank - 2], view.sizes[rank - 1]);
    } else {
      copy_run(from, view.strides[rank - 1], out + i * inner, inner);
    }
  }
}

void strided(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 1, 1);
  Parameters parameters(call);
  Strided view;
  view.offset = parameters.next_int();
  const int rank = static_cast<int>(parameters.next_int());
  for (int axis = 0; axis < rank; ++axis) view.sizes.push_back(parameters.next_int());
  for (int axis = 0; axis < rank; ++axis) view.strides.push_back(parameters.next_int());
  if (view.sizes.numel() == 0) return;
  view = merged(view);
  dispatch_size(call.inputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    copy_strided(view, call.inputs[0].as<const T>() + view.offset, call.outputs[0].as<T>(), thread, threads);
  });
}

// ---- cat -----------------------------------------------------------------------------------------------------------

void cat(const KernelCall& call, int thread, int threads) {
  Parameters parameters(call);
  const int axis = static_cast<int>(parameters.next_int());
  const TensorView& out = call.outputs[0];
  const std::int64_t item = static_cast<std::int64_t>(item_size(out.dtype));
  const std::int64_t outer = out.shape.product(0, axis);
  const std::int64_t row = out.shape.product(axis, out.shape.rank()) * item;
  std::int64_t start = 0;
  for (int i = 0; i < call.num_inputs; ++i) {
    const TensorView& in = call.inputs[i];
    // An empty 1-d tensor may join any shape.
    if (in.numel() == 0) continue;
    const std::int64_t chunk = in.shape.product(axis, in.shape.rank()) * item;
    const Range range = share(outer * chunk, 1, thread, threads);
    for (std::int64_t at = range.begin; at < range.end;) {
      const std::int64_t index = at / chunk, within = at % chunk;
      const std::int64_t count = std::min(chunk - within, range.end - at);
      std::memcpy(out.as<char>() + index * row + start + within, in.as<char>() + at, static_cast<std::size_t>(count));
      at += count;
    }
    start += chunk;
  }
}

// ---- one index map per axis ----------------------------------------------------------------------------------------

// For each element along one axis of the output the element of the input, or -1 for the filler.
using AxisMap = std::vector<std::int64_t>;

struct Mapped {
  Shape in, out;
  std::vector<AxisMap> maps;
};

bool is_identity(const AxisMap& map, std::int64_t size) {
  if (static_cast<std::int64_t>(map.size()) != size) return false;
  for (std::int64_t i = 0; i < size; ++i) {
    if (map[static_cast<std::size_t>(i)] != i) return false;
  }
  return true;
}

struct Run {
  std::int64_t to, from, count;
};

// Stretches of consecutive elements (or of filler) along the last axis.
std::vector<Run> runs_of(const AxisMap& map) {
  std::vector<Run> runs;
  for (std::size_t i = 0; i < map.size(); ++i) {
    if (!runs.empty()) {
      Run& last = runs.back();
      if (last.from < 0 ? map[i] < 0 : map[i] == last.from + last.count) {
        ++last.count;
        continue;
      }
    }
    runs.push_back({static_cast<std::int64_t>(i), map[i], 1});
  }
  return runs;
}

template <typename T>
void copy_mapped(const Mapped& mapped, const T* in, T* out, T filler, int thread, int threads) {
  // Trailing axes that stay as they are form the unit that moves as a whole.
  int rank = mapped.out.rank();
  std::int64_t unit = 1;
  while (rank > 0 && is_identity(mapped.maps[static_cast<std::size_t>(rank - 1)], mapped.in[rank - 1])) {
    unit *= mapped.in[--rank];
  }
  const int last = rank - 1;
  const std::int64_t inner = (last >= 0 ? mapped.out[last] : 1) * unit;
  const std::int64_t rows = mapped.out.product(0, std::max(last, 0));
  const Range range = share(rows, inner, thread, threads);
  if (range.empty()) return;
  if (last < 0) {
    std::memcpy(out, in, static_cast<std::size_t>(unit) * sizeof(T));
    return;
  }
  const std::vector<Run> runs = runs_of(mapped.maps[static_cast<std::size_t>(last)]);
  const std::int64_t in_row = mapped.in[last] * unit;
  Shape strides = contiguous_strides(Shape(mapped.in.begin(), last));
  Odometer<1> outer(Shape(mapped.out.begin(), last), {Shape(mapped.out.begin(), last)});
  outer.seek(range.begin);
  for (std::int64_t r = range.begin; r < range.end; ++r, outer.next()) {
    std::int64_t source = 0;
    bool fill = false;
    for (int axis = 0; axis < last; ++axis) {
      const std::int64_t index =
          mapped.maps[static_cast<std::size_t>(axis)][static_cast<std::size_t>(outer.index(axis))];
      fill = fill || index < 0;
      source += index * strides[axis];
    }
    T* to = out + r * inner;
    if (fill) {
      std::fill_n(to, inner, filler);
      continue;
    }
    for (const Run& run : runs) {
      if (run.from < 0) {
        std::fill_n(to + run.to * unit, run.count * unit, filler);
      } else {
        std::memcpy(to + run.to * unit, in + source * in_row + run.from * unit,
                    static_cast<std::size_t>(run.count * unit) * sizeof(T));
      }
    }
  }
}

void run_mapped(const KernelCall& call, const Mapped& mapped, std::uint64_t filler, int thread, int threads) {
  if (mapped.out.numel() == 0) return;
  dispatch_size(call.inputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T value;
    std::memcpy(&value, &filler, sizeof(T));
    copy_mapped<T>(mapped, call.inputs[0].as<const T>(), call.outputs[0].as<T>(), value, thread, threads);
  });
}

std::int64_t padded_index(std::int64_t index, std::int64_t size, int mode) {
  if (index >= 0 && index < size) return index;
  switch (mode) {
    case 1: {
      if (size == 1) return 0;
      const std::int64_t period = 2 * (size - 1);
      const std::int64_t phase = ((index % period) + period) % period;
      return phase < size ? phase : period - phase;
    }
    case 2:
      return index < 0 ? 0 : size - 1;
    case 3:
      return ((index % size) + size) % size;
    default:
      return -1;
  }
}

void pad(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 1, 1);
  Parameters parameters(call);
  const int mode = static_cast<int>(parameters.next_int());
  const std::int64_t integer = parameters.next_int();
  const ScalarType dtype = call.inputs[0].dtype;
  std::uint64_t filler = 0;
  if (is_float(dtype)) {
    const double value = parameters.next_float();
    convert_function(ScalarType::kDouble, dtype)(&value, &filler, 1);
  } else {
    convert_function(ScalarType::kLong, dtype)(&integer, &filler, 1);
  }
  Mapped mapped{call.inputs[0].shape, call.outputs[0].shape, {}};
  for (int axis = 0; axis < mapped.out.rank(); ++axis) {
    const std::int64_t before = parameters.next_int();
    AxisMap map(static_cast<std::size_t>(mapped.out[axis]));
    for (std::size_t i = 0; i < map.size(); ++i) {
      map[i] = padded_index(static_cast<std::int64_t>(i) - before, mapped.in[axis], mode);
    }
    mapped.maps.push_back(std::move(map));
  }
  run_mapped(call, mapped, filler, thread, threads);
}

void roll(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 1, 1);
  Parameters parameters(call);
  Mapped mapped{call.inputs[0].shape, call.outputs[0].shape, {}};
  for (int axis = 0; axis < mapped.out.rank(); ++axis) {
    const std::int64_t shift = parameters.next_int(), size = mapped.out[axis];
    AxisMap map(static_cast<std::size_t>(size));
    for (std::int64_t i = 0; i < size; ++i) map[static_cast<std::size_t>(i)] = (((i - shift) % size) + size) % size;
    mapped.maps.push_back(std::move(map));
  }
  run_mapped(call, mapped, 0, thread, threads);
}

// ---- triangles -----------------------------------------------------------------------------------------------------

void triangle(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 1, 1);
  Parameters parameters(call);
  const bool upper = parameters.next_int() != 0;
  const std::int64_t diagonal = parameters.next_int();
  const Shape& shape = call.outputs[0].shape;
  const int rank = shape.rank();
  const std::int64_t height = shape[rank - 2], columns = shape[rank - 1];
  const Range range = share(shape.product(0, rank - 1), columns, thread, threads);
  if (range.empty() || columns == 0) return;
  const std::size_t item = item_size(call.inputs[0].dtype);
  for (std::int64_t r = range.begin; r < range.end; ++r) {
    // Columns before `split` belong to the lower part.
    const std::int64_t first_upper = (r % height) + diagonal + (upper ? 0 : 1);
    const std::int64_t split = std::clamp<std::int64_t>(first_upper, 0, columns);
    const char* from = at(call.inputs[0], r * columns);
    char* to = at_mutable(call.outputs[0], r * columns);
    const std::size_t low = static_cast<std::size_t>(split) * item;
    const std::size_t high = static_cast<std::size_t>(columns - split) * item;
    if (upper) {
      std::memset(to, 0, low);
      std::memcpy(to + low, from + low, high);
    } else {
      std::memcpy(to, from, low);
      std::memset(to + low, 0, high);
    }
  }
}

constexpr KernelInfo kKernels[] = {
    {"layout.strided", strided, false, kAnyThreads},   {"layout.cat", cat, false, kAnyThreads},
    {"layout.pad", pad, false, kAnyThreads},           {"layout.roll", roll, false, kAnyThreads},
    {"layout.triangle", triangle, false, kAnyThreads},
};

}  // namespace

KernelList layout_kernels() { return make_list(kKernels); }

}  // namespace ptn::kernels
