// Kernels called directly from Python, without a graph: for tests.
#pragma once

#include <pybind11/pybind11.h>

namespace ptn::kernels {

// Adds `kernel_names()` and `run_kernel(...)` to the module.
void bind_kernels(pybind11::module_& module);

}  // namespace ptn::kernels
