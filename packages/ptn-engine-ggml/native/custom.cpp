#include "custom.h"

#include <algorithm>
#include <cstring>

namespace ptn {

using kernels::IndexError;
using kernels::KernelCall;
using kernels::TensorView;

void CustomCall::bind(kernels::ErrorSink* errors) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    inputs[i].data = sources[i] < 0 ? nullptr : node->src[sources[i]]->data;
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    outputs[i].data = static_cast<char*>(node->data) + output_offsets[i];
  }
  call.op = op;
  call.inputs = inputs.data();
  call.num_inputs = static_cast<int>(inputs.size());
  call.outputs = outputs.data();
  call.num_outputs = static_cast<int>(outputs.size());
  call.ints = ints.data();
  call.num_ints = static_cast<int>(ints.size());
  call.floats = floats.data();
  call.num_floats = static_cast<int>(floats.size());
  call.errors = errors;
}

void run_custom(ggml_tensor*, int thread, int threads, void* userdata) {
  const auto* custom = static_cast<const CustomCall*>(userdata);
  kernels::run(*custom->info, custom->call, thread, threads);
}

namespace builtin {
namespace {

struct Share {
  std::int64_t first, last;
};

// The part of `count` items that thread `thread` of `threads` does.
Share share(std::int64_t count, int thread, int threads) {
  return {count * thread / threads, count * (thread + 1) / threads};
}

template <typename Item>
void copy_row(const char* source, std::int64_t stride, Item* target, std::int64_t count) {
  if (stride == static_cast<std::int64_t>(sizeof(Item))) {
    std::memcpy(target, source, static_cast<std::size_t>(count) * sizeof(Item));
    return;
  }
  for (std::int64_t i = 0; i < count; ++i, source += stride) std::memcpy(target + i, source, sizeof(Item));
}

// Copies rows first..last, where a row is one run along the last axis of `sizes`.
template <typename Item>
void copy_rows(const char* source, Item* target, int rank, const std::int64_t* sizes, const std::int64_t* strides,
               Share rows) {
  const std::int64_t length = rank > 0 ? sizes[rank - 1] : 1;
  const std::int64_t stride = rank > 0 ? strides[rank - 1] : static_cast<std::int64_t>(sizeof(Item));
  std::int64_t index[kernels::kMaxRank] = {};
  std::int64_t rest = rows.first;
  for (int axis = rank - 2; axis >= 0; --axis) {
    index[axis] = rest % sizes[axis];
    rest /= sizes[axis];
    source += index[axis] * strides[axis];
  }
  for (std::int64_t row = rows.first; row < rows.last; ++row) {
    copy_row(source, stride, target + row * length, length);
    for (int axis = rank - 2; axis >= 0; --axis) {
      source += strides[axis];
      if (++index[axis] < sizes[axis]) break;
      source -= strides[axis] * sizes[axis];
      index[axis] = 0;
    }
  }
}

// A transposition (the innermost axis strided) walks tiles of the two inner axes, so that each cache line is read once.
template <typename Item>
void copy_tiles(const char* source, Item* target, int rank, const std::int64_t* sizes, const std::int64_t* strides,
                int thread, int threads) {
  constexpr std::int64_t kTile = 32;
  const std::int64_t rows = sizes[rank - 2], columns = sizes[rank - 1];
  const std::int64_t bands = (rows + kTile - 1) / kTile;
  std::int64_t matrices = 1;
  for (int axis = 0; axis + 2 < rank; ++axis) matrices *= sizes[axis];
  const Share part = share(matrices * bands, thread, threads);
  for (std::int64_t band = part.first; band < part.last; ++band) {
    std::int64_t matrix = band / bands, rest = matrix;
    const char* from = source;
    for (int axis = rank - 3; axis >= 0; --axis) {
      from += rest % sizes[axis] * strides[axis];
      rest /= sizes[axis];
    }
    const std::int64_t row0 = band % bands * kTile, row1 = std::min(row0 + kTile, rows);
    for (std::int64_t column0 = 0; column0 < columns; column0 += kTile) {
      const std::int64_t width = std::min(kTile, columns - column0);
      for (std::int64_t row = row0; row < row1; ++row) {
        copy_row(from + row * strides[rank - 2] + column0 * strides[rank - 1], strides[rank - 1],
                 target + (matrix * rows + row) * columns + column0, width);
      }
    }
  }
}

template <typename Item>
void copy_window_as(const KernelCall& call, int thread, int threads) {
  const auto rank = static_cast<int>(call.ints[1]);
  const std::int64_t* sizes = call.ints + 2;
  const std::int64_t* strides = sizes + rank;
  const char* source = static_cast<const char*>(call.inputs[0].data) + call.ints[0];
  auto* target = call.outputs[0].as<Item>();
  std::int64_t rows = 1;
  for (int axis = 0; axis + 1 < rank; ++axis) rows *= sizes[axis];
  if (rank >= 2 && strides[rank - 1] != static_cast<std::int64_t>(sizeof(Item))) {
    copy_tiles(source, target, rank, sizes, strides, thread, threads);
  } else {
    copy_rows(source, target, rank, sizes, strides, share(rows, thread, threads));
  }
}

void copy_window(const KernelCall& call, int thread, int threads) {
  switch (kernels::item_size(call.outputs[0].dtype)) {
    case 1:
      return copy_window_as<std::uint8_t>(call, thread, threads);
    case 2:
      return copy_window_as<std::uint16_t>(call, thread, threads);
    case 4:
      return copy_window_as<std::uint32_t>(call, thread, threads);
    default:
      return copy_window_as<std::uint64_t>(call, thread, threads);
  }
}

void cat(const KernelCall& call, int thread, int threads) {
  const std::int64_t outer = call.ints[0];
  const Share rows = share(outer, thread, threads);
  const std::size_t stride = call.outputs[0].nbytes() / static_cast<std::size_t>(outer);
  std::size_t place = 0;
  for (int i = 0; i < call.num_inputs; ++i) {
    const std::size_t length = call.inputs[i].nbytes() / static_cast<std::size_t>(outer);
    if (length == 0) continue;
    for (std::int64_t row = rows.first; row < rows.last; ++row) {
      const auto at = static_cast<std::size_t>(row);
      std::memcpy(call.outputs[0].as<char>() + at * stride + place, call.inputs[i].as<char>() + at * length, length);
    }
    place += length;
  }
}

template <typename From, typename To>
void check_index_as(const KernelCall& call) {
  const auto axis = static_cast<int>(call.ints[0]);
  const std::int64_t size = call.ints[1];
  const auto* from = call.inputs[0].as<From>();
  auto* to = call.outputs[0].as<To>();
  const std::int64_t count = call.inputs[0].numel();
  for (std::int64_t i = 0; i < count; ++i) {
    const auto index = static_cast<std::int64_t>(from[i]);
    if (index < -size || index >= size) {
      std::memset(to, 0, static_cast<std::size_t>(count) * sizeof(To));  // what follows may run before the graph stops
      throw IndexError(index, axis, size);
    }
    to[i] = static_cast<To>(index < 0 ? index + size : index);
  }
}

template <typename To>
void check_index_to(const KernelCall& call) {
  switch (call.inputs[0].dtype) {
    case ScalarType::kByte:
      return check_index_as<std::uint8_t, To>(call);
    case ScalarType::kChar:
      return check_index_as<std::int8_t, To>(call);
    case ScalarType::kShort:
      return check_index_as<std::int16_t, To>(call);
    case ScalarType::kInt:
      return check_index_as<std::int32_t, To>(call);
    default:
      return check_index_as<std::int64_t, To>(call);
  }
}

void check_index(const KernelCall& call, int thread, int) {
  if (thread != 0) return;
  if (call.outputs[0].dtype == ScalarType::kInt) return check_index_to<std::int32_t>(call);
  return check_index_to<std::int64_t>(call);
}

template <typename From>
void require_index_as(const KernelCall& call) {
  const auto axis = static_cast<int>(call.ints[0]);
  const std::int64_t size = call.ints[1], low = call.ints[2] != 0 ? -size : 0;
  const auto* from = call.inputs[0].as<From>();
  const std::int64_t count = call.inputs[0].numel();
  for (std::int64_t i = 0; i < count; ++i) {
    const auto index = static_cast<std::int64_t>(from[i]);
    if (index < low || index >= size) throw IndexError(index, axis, size, low < 0);
  }
}

void require_index(const KernelCall& call, int thread, int) {
  if (thread != 0) return;
  *call.outputs[0].as<std::uint8_t>() = 0;
  switch (call.inputs[0].dtype) {
    case ScalarType::kByte:
      return require_index_as<std::uint8_t>(call);
    case ScalarType::kChar:
      return require_index_as<std::int8_t>(call);
    case ScalarType::kShort:
      return require_index_as<std::int16_t>(call);
    case ScalarType::kInt:
      return require_index_as<std::int32_t>(call);
    default:
      return require_index_as<std::int64_t>(call);
  }
}

}  // namespace

const kernels::KernelInfo kCopyWindow{"builtin.copy_window", copy_window, false, GGML_MAX_N_THREADS};
const kernels::KernelInfo kCat{"builtin.cat", cat, false, GGML_MAX_N_THREADS};
const kernels::KernelInfo kCheckIndex{"builtin.check_index", check_index, false, 1};
const kernels::KernelInfo kRequireIndex{"builtin.require_index", require_index, false, 1};

}  // namespace builtin
}  // namespace ptn
