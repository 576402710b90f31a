#include "bindings.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstring>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "kernel.h"

namespace py = pybind11;

namespace ptn::kernels {
namespace {

using Bytes = py::array_t<std::uint8_t, py::array::c_style>;
// dtype, shape, contents
using Operand = std::tuple<int, std::vector<std::int64_t>, Bytes>;
using Spec = std::tuple<int, std::vector<std::int64_t>>;

TensorView view_of(int dtype, const std::vector<std::int64_t>& shape, const void* data) {
  return {const_cast<void*>(data), static_cast<ScalarType>(dtype), Shape(shape.data(), static_cast<int>(shape.size()))};
}

void run_threads(const KernelInfo& kernel, const KernelCall& call, int threads) {
  std::vector<std::thread> pool;
  for (int thread = 1; thread < threads; ++thread) {
    pool.emplace_back([&kernel, &call, thread, threads] { run(kernel, call, thread, threads); });
  }
  run(kernel, call, 0, threads);
  for (std::thread& thread : pool) thread.join();
}

[[noreturn]] void raise(const ErrorSink& errors) {
  PyErr_SetString(errors.kind() == ErrorKind::kIndexOutOfRange ? PyExc_IndexError : PyExc_RuntimeError,
                  errors.message());
  throw py::error_already_set();
}

// With `in_place` the first output is the (copied) first input's memory.
std::vector<Bytes> run_kernel(const std::string& name, const std::vector<Operand>& inputs,
                              const std::vector<Spec>& outputs, const std::vector<std::int64_t>& ints,
                              const std::vector<double>& floats, int threads, bool in_place) {
  const KernelInfo* kernel = find_kernel(name);
  if (kernel == nullptr) throw py::key_error("there is no kernel '" + name + "'");
  if (in_place && !kernel->in_place) throw py::value_error("kernel '" + name + "' does not run in place");
  std::vector<TensorView> in, out;
  std::vector<Bytes> results;
  for (const auto& [dtype, shape, bytes] : inputs) in.push_back(view_of(dtype, shape, bytes.data()));
  for (const auto& [dtype, shape] : outputs) {
    TensorView view = view_of(dtype, shape, nullptr);
    results.emplace_back(static_cast<py::ssize_t>(view.nbytes()));
    view.data = results.back().mutable_data();
    // What a kernel forgets to write shows up.
    std::memset(view.data, 0xa5, view.nbytes());
    out.push_back(view);
  }
  if (in_place) {
    std::memcpy(out[0].data, in[0].data, out[0].nbytes());
    in[0].data = out[0].data;
  }
  ErrorSink errors;
  KernelCall call{name,
                  in.data(),
                  static_cast<int>(in.size()),
                  out.data(),
                  static_cast<int>(out.size()),
                  ints.data(),
                  static_cast<int>(ints.size()),
                  floats.data(),
                  static_cast<int>(floats.size()),
                  &errors};
  {
    py::gil_scoped_release release;
    run_threads(*kernel, call, threads);
  }
  if (errors.failed()) raise(errors);
  return results;
}

std::vector<std::string> kernel_names() {
  int count = 0;
  const KernelInfo* table = kernel_table(&count);
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.emplace_back(table[i].name);
  return names;
}

}  // namespace

void bind_kernels(py::module_& module) {
  module.def("kernel_names", kernel_names, "Names of all kernels.");
  module.def("run_kernel", run_kernel, py::arg("name"), py::arg("inputs"), py::arg("outputs"), py::arg("ints"),
             py::arg("floats"), py::arg("threads") = 1, py::arg("in_place") = false,
             "Runs one kernel outside a graph. Inputs are (dtype, shape, bytes), outputs (dtype, shape); gives bytes.");
}

}  // namespace ptn::kernels
