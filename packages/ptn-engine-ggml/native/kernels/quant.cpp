// Quantisation. A tensor divides into blocks; each block has one scale and zero point, in the blocks' row-major order.
//
// quant.choose_qparams  inputs [x]; outputs [scale, zero point]; ints [mapping (0 symmetric, 1 symmetric without
//                       clipping error, 2 asymmetric), quant min, quant max, block size per axis...]; floats [eps].
// quant.quantize        inputs [x, scale, zero point?]; ints [has zero point, round last (the zero point is added
// before
//                       rounding), quant min, quant max, block size...].
// quant.dequantize      inputs [q, scale, zero point?]; ints [has zero point, block size per axis...].
// quant.unpack          inputs [packed bytes]; ints [bits, quant min]: integers from a stream of bits, lowest first.
// quant.dequantize_packed   inputs [packed bytes, scale, zero point?]; ints [bits, quant min, elements per group,
//                       has zero point].
// quant.dequantize_int4 inputs [bytes (n, k / 2), scale (k / g, n), zero point (k / g, n)]; ints [g]; the even element
// is
//                       in the low half.
// quant.dequantize_blocks   inputs [bytes]; ints [ggml type, elements per row]: ggml's own blocks.
// quant.embedding_4bit  inputs [weight (v, d / 2), scale (v, groups) or (v), indices, zero point?]; ints [has zero
// point];
//                       the even element is in the high half, offset by 8.
#include "quant.h"

#include <ggml.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "families.h"

namespace ptn::kernels {
namespace {

// Blocks of a tensor: `sizes[i] / block[i]` per axis.
struct Blocks {
  Shape sizes, block, counts, strides;  // strides of the block numbers
  std::int64_t per_block = 1;

  std::int64_t number() const { return counts.numel(); }
};

Blocks read_blocks(const Shape& sizes, Parameters& parameters) {
  Blocks blocks;
  blocks.sizes = sizes;
  for (const std::int64_t size : sizes) {
    const std::int64_t block = parameters.next_int();
    if (block <= 0 || size % block != 0) throw std::invalid_argument("the block size does not divide the tensor");
    blocks.block.push_back(block);
    blocks.counts.push_back(size / block);
    blocks.per_block *= block;
  }
  blocks.strides = contiguous_strides(blocks.counts);
  return blocks;
}

// Calls use(first element, count, block number) for each stretch of the elements [begin, end) that lies in one block.
template <typename F>
void for_stretches(const Blocks& blocks, std::int64_t begin, std::int64_t end, F&& use) {
  const int last = blocks.sizes.rank() - 1;
  if (last < 0) {
    if (begin < end) use(std::int64_t{0}, std::int64_t{1}, std::int64_t{0});
    return;
  }
  const std::int64_t length = blocks.sizes[last], run = blocks.block[last];
  for (std::int64_t element = begin; element < end;) {
    const std::int64_t column = element % length;
    std::int64_t rest = element / length, number = 0;
    for (int axis = last - 1; axis >= 0; --axis) {
      number += rest % blocks.sizes[axis] / blocks.block[axis] * blocks.strides[axis];
      rest /= blocks.sizes[axis];
    }
    const std::int64_t row_end = std::min(end, element + length - column);
    for (std::int64_t first = element; first < row_end;) {
      const std::int64_t within = first - element + column;
      const std::int64_t count = std::min(row_end - first, run - within % run);
      use(first, count, number + within / run);
      first += count;
    }
    element = row_end;
  }
}

// ---- choosing ----------------------------------------------------------------------------------------------------

enum class Mapping { kSymmetric = 0, kNoClipping = 1, kAsymmetric = 2 };

template <typename C>
struct Choice {
  C scale, zero_point;
};

template <typename C>
Choice<C> choose(Mapping mapping, C low, C high, C quant_min, C quant_max, C eps, const Rounding<C>& round) {
  const C negative = std::min(low, C(0)), positive = std::max(high, C(0));
  C scale, zero_point;
  if (mapping == Mapping::kAsymmetric) {
    scale = round(round(positive - negative) / (quant_max - quant_min));
    scale = std::max(scale, eps);
    zero_point = round(quant_min - round(std::nearbyint(round(negative / scale))));
    zero_point = std::min(std::max(zero_point, quant_min), quant_max);
  } else {
    if (mapping == Mapping::kSymmetric) {
      scale = round(std::max(-negative, positive) / ((quant_max - quant_min) / C(2)));
    } else {
      scale = std::max(round(negative / quant_min), round(positive / quant_max));
    }
    scale = std::max(scale, eps);
    zero_point = static_cast<C>(static_cast<std::int64_t>((quant_max + quant_min + C(1)) / C(2)));
  }
  return {scale, zero_point};
}

void choose_qparams(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 1, 2);
  Parameters parameters(call);
  const Mapping mapping = static_cast<Mapping>(parameters.next_int());
  const std::int64_t quant_min = parameters.next_int(), quant_max = parameters.next_int();
  const TensorView& x = call.inputs[0];
  const Blocks blocks = read_blocks(x.shape, parameters);
  const double eps = parameters.next_float();
  // Blocks along the last axis are stretches of memory; then threads share the blocks. Else thread 0 does all.
  const bool consecutive = blocks.per_block == (x.shape.rank() > 0 ? blocks.block[x.shape.rank() - 1] : 1);
  Range range{0, blocks.number()};
  if (consecutive) {
    range = share(blocks.number(), 4 * blocks.per_block, thread, threads);
  } else if (thread != 0) {
    return;
  }
  if (range.empty()) return;
  dispatch_float(x.dtype, [&](auto tag) {
    using C = typename decltype(tag)::type;
    const std::size_t count = static_cast<std::size_t>(range.end - range.begin);
    std::vector<C> low(count, std::numeric_limits<C>::infinity()), high(count, -std::numeric_limits<C>::infinity());
    RunReader<C> reader(x);
    const std::int64_t begin = consecutive ? range.begin * blocks.per_block : 0;
    const std::int64_t end = consecutive ? range.end * blocks.per_block : x.numel();
    for_stretches(blocks, begin, end, [&](std::int64_t first, std::int64_t length, std::int64_t number) {
      C& least = low[static_cast<std::size_t>(number - range.begin)];
      C& most = high[static_cast<std::size_t>(number - range.begin)];
      for (std::int64_t at_element = first; at_element < first + length; at_element += kBlock) {
        const std::int64_t part = std::min(kBlock, first + length - at_element);
        const C* values = reader.read(at_element, part);
        for (std::int64_t i = 0; i < part; ++i) {
          least = values[i] < least || values[i] != values[i] ? values[i] : least;
          most = values[i] > most || values[i] != values[i] ? values[i] : most;
        }
      }
    });
    const Rounding<C> round(x.dtype);
    const ElementWriter<C> scales(call.outputs[0]), zero_points(call.outputs[1]);
    for (std::size_t i = 0; i < count; ++i) {
      const Choice<C> choice = choose<C>(mapping, low[i], high[i], static_cast<C>(quant_min), static_cast<C>(quant_max),
                                         round(static_cast<C>(eps)), round);
      scales.write(range.begin + static_cast<std::int64_t>(i), &choice.scale, 1);
      zero_points.write(range.begin + static_cast<std::int64_t>(i), &choice.zero_point, 1);
    }
  });
}

// ---- block-wise --------------------------------------------------------------------------------------------------

void quantize(const KernelCall& call, int thread, int threads) {
  Parameters parameters(call);
  const bool has_zero_point = parameters.next_int() != 0;
  const bool round_last = parameters.next_int() != 0;
  const std::int64_t quant_min = parameters.next_int(), quant_max = parameters.next_int();
  const TensorView& x = call.inputs[0];
  const Blocks blocks = read_blocks(x.shape, parameters);
  const Range range = share(x.numel(), 4, thread, threads);
  if (range.empty()) return;
  const ScalarType scale_dtype = call.inputs[1].dtype;
  dispatch_float(x.dtype, [&](auto tag) {
    using C = typename decltype(tag)::type;
    const Whole<double> scales(call.inputs[1]);
    const ZeroPoints<C> zero_points(has_zero_point ? &call.inputs[2] : nullptr);
    // Two tensors of one half type are multiplied in it; with any other scale the product is float32.
    const Rounding<C> round(x.dtype == scale_dtype ? x.dtype : ScalarType::kFloat);
    const Rounding<C> round_scale(scale_dtype);
    RunReader<C> reader(x);
    const ElementWriter<C> writer(call.outputs[0]);
    const C low = static_cast<C>(quant_min), high = static_cast<C>(quant_max);
    for_stretches(blocks, range.begin, range.end, [&](std::int64_t first, std::int64_t length, std::int64_t number) {
      const C inverse = round_scale(static_cast<C>(1.0 / scales[number])), zero_point = zero_points[number];
      C block[kBlock];
      for (std::int64_t at_element = first; at_element < first + length; at_element += kBlock) {
        const std::int64_t part = std::min(kBlock, first + length - at_element);
        const C* values = reader.read(at_element, part);
        for (std::int64_t i = 0; i < part; ++i) {
          const C scaled = round(values[i] * inverse);
          const C level =
              round_last ? std::nearbyint(round(scaled + zero_point)) : round(std::nearbyint(scaled) + zero_point);
          // In this order, so that with the limits exchanged the upper one holds, as in PyTorch.
          const C raised = level < low ? low : level;
          block[i] = raised > high ? high : raised;
        }
        writer.write(at_element, block, part);
      }
    });
  });
}

void dequantize(const KernelCall& call, int thread, int threads) {
  Parameters parameters(call);
  const bool has_zero_point = parameters.next_int() != 0;
  const TensorView& q = call.inputs[0];
  const Blocks blocks = read_blocks(q.shape, parameters);
  const Range range = share(q.numel(), 2, thread, threads);
  if (range.empty()) return;
  const ScalarType result = call.outputs[0].dtype;
  dispatch_float(result, [&](auto tag) {
    using C = typename decltype(tag)::type;
    const Whole<C> scales(call.inputs[1]);
    const ZeroPoints<C> zero_points(has_zero_point ? &call.inputs[2] : nullptr);
    const Rounding<C> round(result);
    RunReader<C> reader(q);
    const ElementWriter<C> writer(call.outputs[0]);
    for_stretches(blocks, range.begin, range.end, [&](std::int64_t first, std::int64_t length, std::int64_t number) {
      const C scale = scales[number], zero_point = round(zero_points[number]);
      C block[kBlock];
      for (std::int64_t at_element = first; at_element < first + length; at_element += kBlock) {
        const std::int64_t part = std::min(kBlock, first + length - at_element);
        const C* values = reader.read(at_element, part);
        for (std::int64_t i = 0; i < part; ++i) block[i] = round(round(values[i]) - zero_point) * scale;
        writer.write(at_element, block, part);
      }
    });
  });
}

// ---- streams of bits ---------------------------------------------------------------------------------------------

void unpack(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 1, 1);
  Parameters parameters(call);
  const int bits = read_bits(parameters);
  const std::int32_t quant_min = static_cast<std::int32_t>(parameters.next_int());
  const TensorView& packed = call.inputs[0];
  const TensorView& output = call.outputs[0];
  check_stream(packed, output.numel(), bits);
  const Range range = share(output.numel(), 2, thread, threads);
  if (range.empty()) return;
  const ElementWriter<std::int32_t> writer(output);
  const std::uint8_t* bytes = packed.as<const std::uint8_t>();
  std::int32_t block[kBlock];
  for (std::int64_t first = range.begin; first < range.end; first += kBlock) {
    const std::int64_t count = std::min(kBlock, range.end - first);
    for (std::int64_t i = 0; i < count; ++i) {
      block[i] = static_cast<std::int32_t>(bits_at(bytes, packed.numel(), first + i, bits)) + quant_min;
    }
    writer.write(first, block, count);
  }
}

void dequantize_packed(const KernelCall& call, int thread, int threads) {
  Parameters parameters(call);
  const int bits = read_bits(parameters);
  const std::int64_t quant_min = parameters.next_int(), group = parameters.next_int();
  const bool has_zero_point = parameters.next_int() != 0;
  const TensorView& packed = call.inputs[0];
  const TensorView& output = call.outputs[0];
  check_stream(packed, output.numel(), bits);
  const Range range = share(output.numel(), 2, thread, threads);
  if (range.empty()) return;
  const std::uint8_t* bytes = packed.as<const std::uint8_t>();
  dispatch_float(output.dtype, [&](auto tag) {
    using C = typename decltype(tag)::type;
    const Whole<C> scales(call.inputs[1]);
    const ZeroPoints<C> zero_points(has_zero_point ? &call.inputs[2] : nullptr);
    const Rounding<C> round(output.dtype);
    const ElementWriter<C> writer(output);
    C block[kBlock];
    for (std::int64_t first = range.begin; first < range.end;) {
      const std::int64_t number = first / group;
      const std::int64_t count = std::min({kBlock, range.end - first, (number + 1) * group - first});
      const C scale = scales[number], low = static_cast<C>(quant_min), zero_point = round(zero_points[number]);
      for (std::int64_t i = 0; i < count; ++i) {
        const C level = static_cast<C>(bits_at(bytes, packed.numel(), first + i, bits)) + low;
        block[i] = round(level - zero_point) * scale;
      }
      writer.write(first, block, count);
      first += count;
    }
  });
}

void dequantize_int4(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 3, 1);
  Parameters parameters(call);
  const std::int64_t group = parameters.next_int();
  const TensorView& output = call.outputs[0];
  const std::int64_t rows = output.shape[0], columns = output.shape[1];
  const Range range = share(rows, columns * 2, thread, threads);
  if (range.empty()) return;
  dispatch_float(output.dtype, [&](auto tag) {
    using C = typename decltype(tag)::type;
    const Whole<C> scales(call.inputs[1]), zero_points(call.inputs[2]);
    const ElementWriter<C> writer(output);
    std::vector<C> values(static_cast<std::size_t>(columns));
    for (std::int64_t row = range.begin; row < range.end; ++row) {
      const std::uint8_t* bytes = call.inputs[0].as<const std::uint8_t>() + row * (columns / 2);
      for (std::int64_t column = 0; column < columns; ++column) {
        const std::int64_t place = column / group * rows + row;
        const int level = column % 2 == 0 ? bytes[column / 2] & 15 : bytes[column / 2] >> 4;
        values[static_cast<std::size_t>(column)] = (static_cast<C>(level) - zero_points[place]) * scales[place];
      }
      writer.write(row * columns, values.data(), columns);
    }
  });
}

void dequantize_blocks(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 1, 1);
  Parameters parameters(call);
  const std::int64_t type = parameters.next_int(), columns = parameters.next_int();
  const ggml_type_traits* traits =
      type >= 0 && type < GGML_TYPE_COUNT ? ggml_get_type_traits(static_cast<ggml_type>(type)) : nullptr;
  if (traits == nullptr || traits->to_float == nullptr || traits->blck_size <= 0 || columns % traits->blck_size != 0) {
    throw std::invalid_argument("ggml cannot decode rows of " + std::to_string(columns) + " elements of its type " +
                                std::to_string(type));
  }
  const TensorView& output = call.outputs[0];
  const std::int64_t rows = columns > 0 ? output.numel() / columns : 0;
  const std::int64_t row_bytes = columns / traits->blck_size * static_cast<std::int64_t>(traits->type_size);
  if (call.inputs[0].numel() < rows * row_bytes) throw std::invalid_argument("the packed constant is too short");
  const Range range = share(rows, columns * 2, thread, threads);
  if (range.empty()) return;
  const ElementWriter<float> writer(output);
  std::vector<float> values(static_cast<std::size_t>(columns));
  for (std::int64_t row = range.begin; row < range.end; ++row) {
    traits->to_float(call.inputs[0].as<const std::uint8_t>() + row * row_bytes, values.data(), columns);
    writer.write(row * columns, values.data(), columns);
  }
}

void embedding_4bit(const KernelCall& call, int thread, int threads) {
  Parameters parameters(call);
  const bool has_zero_point = parameters.next_int() != 0;
  const TensorView& weight = call.inputs[0];
  const TensorView& output = call.outputs[0];
  const std::int64_t rows = weight.shape[0], columns = weight.shape[1] * 2, count = call.inputs[2].numel();
  const Range range = share(count, columns * 2, thread, threads);
  if (range.empty()) return;
  const std::int64_t groups = rows > 0 ? call.inputs[1].numel() / rows : 1;
  const std::int64_t group = columns / std::max<std::int64_t>(groups, 1);
  const Whole<std::int64_t> indices(call.inputs[2]);
  const Whole<float> scales(call.inputs[1]);
  const ZeroPoints<float> zero_points(has_zero_point ? &call.inputs[3] : nullptr);
  const ElementWriter<float> writer(output);
  std::vector<float> values(static_cast<std::size_t>(columns));
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t row = indices[i];
    if (row < 0 || row >= rows) throw IndexError(row, 0, rows, false);
    const std::uint8_t* bytes = weight.as<const std::uint8_t>() + row * (columns / 2);
    for (std::int64_t column = 0; column < columns; ++column) {
      const int level = column % 2 == 0 ? bytes[column / 2] >> 4 : bytes[column / 2] & 15;
      const std::int64_t place = row * groups + column / group;
      values[static_cast<std::size_t>(column)] = (static_cast<float>(level - 8) - zero_points[place]) * scales[place];
    }
    writer.write(i * columns, values.data(), columns);
  }
}

constexpr KernelInfo kKernels[] = {
    {"quant.choose_qparams", choose_qparams, false, kAnyThreads},
    {"quant.quantize", quantize, false, kAnyThreads},
    {"quant.dequantize", dequantize, false, kAnyThreads},
    {"quant.unpack", unpack, false, kAnyThreads},
    {"quant.dequantize_packed", dequantize_packed, false, kAnyThreads},
    {"quant.dequantize_int4", dequantize_int4, false, kAnyThreads},
    {"quant.dequantize_blocks", dequantize_blocks, false, kAnyThreads},
    {"quant.embedding_4bit", embedding_4bit, false, kAnyThreads},
};

}  // namespace

KernelList quant_kernels() { return make_list(kKernels); }

}  // namespace ptn::kernels
