// The engine under all element-wise kernels: broadcasting, conversion on the way in and out, blocks, threads.
#pragma once

#include "support.h"

namespace ptn::kernels {

constexpr int kMaxOperands = 4;

// Computes `count` results from contiguous operands of the computed types.
using Loop = void (*)(const void* const* operands, void* result, std::int64_t count);

struct ElementwisePlan {
  Loop loop = nullptr;
  int num_operands = 0;
  // Computed type of each operand and of the result (no half types).
  ScalarType operands[kMaxOperands] = {};
  ScalarType result = ScalarType::kFloat;
  // Simple operations per element, for the choice of threads.
  int cost = 1;
};

// Runs `plan` over the call's tensors and scalars. `mask` has bit i set where operand i is a scalar; the scalars follow
// in the call's ints from `first_int` (computed integers and bools) or floats from `first_float` (computed floats).
// Tensors broadcast to the output's shape.
void run_elementwise(const KernelCall& call, const ElementwisePlan& plan, std::int64_t mask, int first_int,
                     int first_float, int thread, int threads);

}  // namespace ptn::kernels
