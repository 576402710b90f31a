// Custom nodes: how a call of one of our kernels sits in a ggml graph.
#pragma once

#include <ggml.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/kernel.h"
#include "tensor.h"

namespace ptn {

// One call of a kernel. The node points to it, so it lives as long as the graph.
struct CustomCall {
  const kernels::KernelInfo* info = nullptr;
  std::string op;
  std::vector<kernels::TensorView> inputs;
  std::vector<kernels::TensorView> outputs;
  std::vector<int> sources;                 // per input the node's source, or -1 where it has no elements
  std::vector<std::size_t> output_offsets;  // per output its place in the node's memory
  std::vector<std::int64_t> ints;
  std::vector<double> floats;
  kernels::KernelCall call;
  ggml_tensor* node = nullptr;

  // Takes over the addresses of the node and its sources. After every (re)allocation, before the first run.
  void bind(kernels::ErrorSink* errors);
};

// What ggml calls for each custom node: `userdata` is the CustomCall.
void run_custom(ggml_tensor* node, int thread, int threads, void* userdata);

// Kernels of the builder itself; they are not in the table because lowerings reach them through builder methods.
namespace builtin {
// inputs: the storage as bytes; outputs: the contiguous copy. ints: offset, rank, sizes..., byte strides...
extern const kernels::KernelInfo kCopyWindow;
// inputs: tensors of one dtype, alike but for one axis; ints: product of the sizes before that axis.
extern const kernels::KernelInfo kCat;
// inputs: indices of any integer type; outputs: the same as int32 (or int64), negative ones counted from the end;
// fails where one is out of range. ints: axis, size of the axis.
extern const kernels::KernelInfo kCheckIndex;
// inputs: indices of any integer type; outputs: one byte without meaning; fails where one is out of range. ints: axis,
// size of the axis, whether indices may count from the end.
extern const kernels::KernelInfo kRequireIndex;
}  // namespace builtin

}  // namespace ptn
