// Tensors from nothing.
//
// create.full     no inputs; ints [value] for integers and bools, floats [value] for floating-point types.
// create.fill     inputs [value (0-d)]: the value everywhere, converted to the output's dtype.
// create.arange   ints [start, step] for integers, floats [start, step] for floating-point types.
// create.eye      the identity matrix.
#include "families.h"
#include "support.h"

namespace ptn::kernels {
namespace {

void fill_with(const TensorView& output, const void* value, ScalarType from, int thread, int threads) {
  const Range range = share(output.numel(), 1, thread, threads);
  if (range.empty()) return;
  std::uint64_t bits = 0;
  convert_function(from, output.dtype)(value, &bits, 1);
  dispatch_size(output.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T filler;
    std::memcpy(&filler, &bits, sizeof(T));
    std::fill(output.as<T>() + range.begin, output.as<T>() + range.end, filler);
  });
}

void full(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 0, 1);
  Parameters parameters(call);
  if (is_float(call.outputs[0].dtype)) {
    const double value = parameters.next_float();
    fill_with(call.outputs[0], &value, ScalarType::kDouble, thread, threads);
  } else {
    const std::int64_t value = parameters.next_int();
    fill_with(call.outputs[0], &value, ScalarType::kLong, thread, threads);
  }
}

void fill(const KernelCall& call, int thread, int threads) {
  const TensorView& value = call.inputs[call.num_inputs - 1];
  fill_with(call.outputs[0], value.data, value.dtype, thread, threads);
}

void arange(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 0, 1);
  Parameters parameters(call);
  const TensorView& output = call.outputs[0];
  const Range range = share(output.numel(), 2, thread, threads);
  if (range.empty()) return;
  if (is_float(output.dtype)) {
    const double start = parameters.next_float(), step = parameters.next_float();
    const ElementWriter<double> writer(output);
    double block[kBlock];
    for (std::int64_t first = range.begin; first < range.end; first += kBlock) {
      const std::int64_t count = std::min(kBlock, range.end - first);
      for (std::int64_t i = 0; i < count; ++i) block[i] = start + static_cast<double>(first + i) * step;
      writer.write(first, block, count);
    }
  } else {
    const std::int64_t start = parameters.next_int(), step = parameters.next_int();
    const ElementWriter<std::int64_t> writer(output);
    std::int64_t block[kBlock];
    for (std::int64_t first = range.begin; first < range.end; first += kBlock) {
      const std::int64_t count = std::min(kBlock, range.end - first);
      for (std::int64_t i = 0; i < count; ++i) block[i] = start + (first + i) * step;
      writer.write(first, block, count);
    }
  }
}

void eye(const KernelCall& call, int thread, int) {
  if (thread != 0) return;
  const TensorView& output = call.outputs[0];
  std::memset(output.data, 0, output.nbytes());
  const std::int64_t one = 1;
  for (std::int64_t i = 0; i < std::min(output.shape[0], output.shape[1]); ++i) {
    convert_function(ScalarType::kLong, output.dtype)(&one, at_mutable(output, i * output.shape[1] + i), 1);
  }
}

constexpr KernelInfo kKernels[] = {
    {"create.full", full, false, kAnyThreads},
    {"create.fill", fill, false, kAnyThreads},
    {"create.arange", arange, false, kAnyThreads},
    {"create.eye", eye, false, 1},
};

}  // namespace

KernelList create_kernels() { return make_list(kKernels); }

}  // namespace ptn::kernels
