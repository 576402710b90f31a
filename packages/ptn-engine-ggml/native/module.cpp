// The Python module: everything that the lowerings and engine.py see of native code.
#include <ggml.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "builder.h"
#include "device.h"
#include "executor.h"
#include "kernels/bindings.h"
#include "weights.h"

namespace py = pybind11;

namespace ptn {
namespace {

ScalarType scalar_type(int number) {
  const auto dtype = static_cast<ScalarType>(number);
  if (kernels::item_size(dtype) == 0) throw std::invalid_argument("not an element type: " + std::to_string(number));
  return dtype;
}

// Contiguous arrays of any dtype: element types that pybind11 does not know (bfloat16) come as they are.
const void* data_of(const py::array& array, std::size_t nbytes) {
  if ((array.flags() & py::array::c_style) == 0 || static_cast<std::size_t>(array.nbytes()) != nbytes) {
    throw std::invalid_argument("expected a C-contiguous array of " + std::to_string(nbytes) + " bytes, got " +
                                std::to_string(array.nbytes()));
  }
  return array.data();
}

py::tuple to_tuple(const Dims& dims) {
  py::tuple out(dims.size());
  for (std::size_t i = 0; i < dims.size(); ++i) out[i] = dims[i];
  return out;
}

// The member of ptn_format's ScalarType, so that lowerings can compare by identity and ask it questions.
py::object python_scalar_type(ScalarType dtype) {
  static const auto* members = [] {
    auto* table = new std::map<int, py::object>();  // lives as long as the process: no destructor without interpreter
    for (py::handle member : py::module_::import("ptn_format.dtypes").attr("ScalarType")) {
      (*table)[member.cast<int>()] = py::reinterpret_borrow<py::object>(member);
    }
    return table;
  }();
  return members->at(static_cast<int>(dtype));
}

std::vector<OutputSpec> output_specs(const std::vector<std::pair<int, Dims>>& specs) {
  std::vector<OutputSpec> out;
  for (const auto& [dtype, shape] : specs) out.push_back({scalar_type(dtype), shape});
  return out;
}

const std::map<std::string, ggml_unary_op>& unary_ops() {
  static const std::map<std::string, ggml_unary_op> ops{{"abs", GGML_UNARY_OP_ABS},
                                                        {"neg", GGML_UNARY_OP_NEG},
                                                        {"tanh", GGML_UNARY_OP_TANH},
                                                        {"relu", GGML_UNARY_OP_RELU},
                                                        {"sigmoid", GGML_UNARY_OP_SIGMOID},
                                                        {"gelu_erf", GGML_UNARY_OP_GELU_ERF},
                                                        {"silu", GGML_UNARY_OP_SILU},
                                                        {"hardswish", GGML_UNARY_OP_HARDSWISH},
                                                        {"hardsigmoid", GGML_UNARY_OP_HARDSIGMOID},
                                                        {"exp", GGML_UNARY_OP_EXP},
                                                        {"expm1", GGML_UNARY_OP_EXPM1},
                                                        {"softplus", GGML_UNARY_OP_SOFTPLUS},
                                                        {"elu", GGML_UNARY_OP_ELU},
                                                        {"floor", GGML_UNARY_OP_FLOOR},
                                                        {"ceil", GGML_UNARY_OP_CEIL},
                                                        {"trunc", GGML_UNARY_OP_TRUNC},
                                                        {"sgn", GGML_UNARY_OP_SGN}};
  return ops;
}

// Runs an executor on numpy arrays: holds the arrays, lets go of the interpreter's lock while it works.
class PyExecutor {
 public:
  PyExecutor(std::shared_ptr<Builder> builder, std::vector<Tensor> outputs, std::vector<py::dtype> dtypes)
      : executor_(std::move(builder), std::move(outputs)), dtypes_(std::move(dtypes)) {
    if (dtypes_.size() != executor_.outputs().size()) throw std::invalid_argument("one dtype per output");
  }

  py::list run(const py::sequence& inputs) {
    return call(inputs, [this](const auto& sources, const auto& targets) { executor_.run(sources, targets); });
  }

  // Results, and seconds by number.
  py::tuple profile(const py::sequence& inputs) {
    std::map<int, double> seconds;
    py::list results =
        call(inputs, [&](const auto& sources, const auto& targets) { seconds = executor_.profile(sources, targets); });
    py::dict by_number;
    for (const auto& [number, value] : seconds) by_number[py::int_(number)] = value;
    return py::make_tuple(std::move(results), std::move(by_number));
  }

  const Executor& executor() const { return executor_; }

 private:
  template <typename Function>
  py::list call(const py::sequence& inputs, Function&& function) {
    const std::vector<Tensor>& specs = executor_.inputs();
    if (inputs.size() != specs.size()) {
      throw std::invalid_argument("expected " + std::to_string(specs.size()) + " inputs, got " +
                                  std::to_string(inputs.size()));
    }
    std::vector<py::array> arrays;
    std::vector<const void*> sources;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      arrays.push_back(py::reinterpret_borrow<py::object>(inputs[i]).cast<py::array>());
      sources.push_back(data_of(arrays.back(), specs[i].nbytes()));
    }
    py::list results;
    std::vector<void*> targets;
    for (std::size_t i = 0; i < dtypes_.size(); ++i) {
      py::array array(dtypes_[i], executor_.outputs()[i].shape);
      targets.push_back(array.mutable_data());
      results.append(std::move(array));
    }
    {
      py::gil_scoped_release release;
      function(sources, targets);
    }
    return results;
  }

  Executor executor_;
  std::vector<py::dtype> dtypes_;
};

// Constants with the arrays whose memory they use.
class PyWeights : public Weights {
 public:
  using Weights::Weights;
  void add_array(const std::string& key, int dtype, const Dims& shape, const py::array& array) {
    const ScalarType type = scalar_type(dtype);
    const std::size_t nbytes = whole(nullptr, type, shape).nbytes();
    if (add(key, type, shape, data_of(array, nbytes))) alive_.push_back(array);
  }

 private:
  std::vector<py::array> alive_;
};

template <typename... Args>
auto guarded(Tensor (Builder::*method)(Args...)) {
  return [method](Builder& builder, Args... args) {
    AbortGuard guard;
    return (builder.*method)(args...);
  };
}

template <Binary op>
Tensor binary(Builder& builder, const Tensor& a, const Tensor& b) {
  AbortGuard guard;
  return builder.binary(op, a, b);
}

int normal_axis(const Tensor& x, int dim) {
  const int axis = dim < 0 ? dim + x.rank() : dim;
  if (axis < 0 || axis >= x.rank()) throw std::invalid_argument("axis " + std::to_string(dim) + " is out of range");
  return axis;
}

void bind_tensor(py::module_& m) {
  py::class_<Tensor>(m, "Tensor")
      .def_property_readonly("dtype", [](const Tensor& x) { return python_scalar_type(x.dtype); })
      .def_property_readonly("shape", [](const Tensor& x) { return to_tuple(x.shape); })
      .def_property_readonly("strides", [](const Tensor& x) { return to_tuple(x.strides); })
      .def_property_readonly("rank", &Tensor::rank)
      .def_property_readonly("numel", &Tensor::numel)
      .def_property_readonly("is_contiguous", &Tensor::is_contiguous)
      .def_property_readonly("is_constant", [](const Tensor& x) { return x.origin == Origin::kConstant; })
      .def_property_readonly("is_input", [](const Tensor& x) { return x.origin == Origin::kInput; })
      .def_property_readonly("is_state", [](const Tensor& x) { return x.origin == Origin::kState; })
      .def_property_readonly("memory",
                             [](const Tensor& x) {
                               const ggml_tensor* storage = x.storage;
                               if (storage != nullptr && storage->view_src != nullptr) storage = storage->view_src;
                               return reinterpret_cast<std::uintptr_t>(storage);
                             })
      .def("permute", [](const Tensor& x, const std::vector<int>& dims) { return x.permute(dims); })
      .def("transpose",
           [](const Tensor& x, int dim0, int dim1) {
             std::vector<int> dims(x.shape.size());
             for (std::size_t i = 0; i < dims.size(); ++i) dims[i] = static_cast<int>(i);
             std::swap(dims.at(normal_axis(x, dim0)), dims.at(normal_axis(x, dim1)));
             return x.permute(dims);
           })
      .def("slice", [](const Tensor& x, int dim, std::int64_t start, std::int64_t step,
                       std::int64_t length) { return x.slice(normal_axis(x, dim), start, step, length); })
      .def("select", [](const Tensor& x, int dim, std::int64_t index) { return x.select(normal_axis(x, dim), index); })
      .def("expand", [](const Tensor& x, const Dims& shape) { return x.expand(shape); })
      .def("as_strided", [](const Tensor& x, const Dims& shape, const Dims& strides,
                            std::int64_t offset) { return x.as_strided(shape, strides, offset); })
      .def("reinterpret", [](const Tensor& x, int dtype) { return x.reinterpret(scalar_type(dtype)); });
}

void bind_builder(py::module_& m) {
  py::class_<Builder, std::shared_ptr<Builder>>(m, "Builder")
      .def(py::init(
          [](std::shared_ptr<Stream> stream, std::shared_ptr<PyWeights> weights, std::shared_ptr<State> state) {
            return std::make_shared<Builder>(std::move(stream), std::move(weights), std::move(state));
          }))
      .def("set_op", &Builder::set_op, py::arg("op"), py::arg("number") = -1)
      .def("input", [](Builder& b, int dtype, const Dims& shape) { return b.input(scalar_type(dtype), shape); })
      .def("constant",
           [](const Builder& b, const std::string& key) -> std::optional<Tensor> {
             const Tensor* found = b.constant(key);
             return found == nullptr ? std::nullopt : std::optional<Tensor>(*found);
           })
      .def("literal",
           [](Builder& b, int dtype, const Dims& shape, const py::array& array) {
             const ScalarType type = scalar_type(dtype);
             return b.literal(type, shape, data_of(array, whole(nullptr, type, shape).nbytes()));
           })
      .def("empty", [](Builder&, int dtype, const Dims& shape) { return whole(nullptr, scalar_type(dtype), shape); })
      .def("state", &Builder::state)
      .def("contiguous", guarded(&Builder::contiguous))
      .def("copy", guarded(&Builder::copy))
      .def("view", guarded(&Builder::view))
      .def("cat", guarded(&Builder::cat))
      .def("cast",
           [](Builder& b, const Tensor& x, int dtype) {
             AbortGuard guard;
             return b.cast(x, scalar_type(dtype));
           })
      .def("unary",
           [](Builder& b, const std::string& name, const Tensor& x) {
             AbortGuard guard;
             return b.unary(unary_ops().at(name), x);
           })
      .def("square", guarded(&Builder::square))
      .def("sqrt", guarded(&Builder::sqrt))
      .def("log", guarded(&Builder::log))
      .def("sin", guarded(&Builder::sin))
      .def("cos", guarded(&Builder::cos))
      .def("add", binary<Binary::kAdd>)
      .def("sub", binary<Binary::kSub>)
      .def("mul", binary<Binary::kMul>)
      .def("div", binary<Binary::kDiv>)
      .def("scale", guarded(&Builder::scale), py::arg("x"), py::arg("factor"), py::arg("bias") = 0.0F)
      .def("norm", guarded(&Builder::norm))
      .def("rms_norm", guarded(&Builder::rms_norm))
      .def(
          "soft_max",
          [](Builder& b, const Tensor& x, const Tensor* mask, float scale) {
            AbortGuard guard;
            return b.soft_max(x, mask, scale);
          },
          py::arg("x"), py::arg("mask") = nullptr, py::arg("scale") = 1.0F)
      .def("sum_rows", guarded(&Builder::sum_rows))
      .def("mul_mat", guarded(&Builder::mul_mat))
      .def("im2col", guarded(&Builder::im2col))
      .def("conv_2d_depthwise", guarded(&Builder::conv_2d_depthwise))
      .def("check_index", guarded(&Builder::check_index))
      .def("require_index",
           [](Builder& b, const Tensor& index, int axis, std::int64_t size, bool negative) {
             AbortGuard guard;
             b.require_index(index, axis, size, negative);
           })
      .def("get_rows", guarded(&Builder::get_rows))
      .def("set_rows", guarded(&Builder::set_rows))
      .def("custom",
           [](Builder& b, const std::string& name, const std::vector<Tensor>& inputs,
              const std::vector<std::pair<int, Dims>>& outputs, std::vector<std::int64_t> ints,
              std::vector<double> floats) {
             AbortGuard guard;
             return py::tuple(
                 py::cast(b.custom(name, inputs, output_specs(outputs), std::move(ints), std::move(floats))));
           })
      .def("custom_in_place",
           [](Builder& b, const std::string& name, const std::vector<Tensor>& inputs, std::vector<std::int64_t> ints,
              std::vector<double> floats) {
             AbortGuard guard;
             return b.custom_in_place(name, inputs, std::move(ints), std::move(floats));
           })
      .def("assign",
           [](Builder& b, const Tensor& target, const Tensor& value) {
             AbortGuard guard;
             b.assign(target, value);
           })
      .def("keep", &Builder::keep)
      .def_property_readonly("num_nodes", &Builder::num_nodes)
      .def_property_readonly("work", &Builder::work);
}

void bind_rest(py::module_& m) {
  py::class_<Stream, std::shared_ptr<Stream>>(m, "Stream")
      .def(py::init([](const std::string& device, int threads) {
             AbortGuard guard;
             return std::make_shared<Stream>(device, threads);
           }),
           py::arg("device"), py::arg("threads"))
      .def_property_readonly("threads", &Stream::threads)
      .def_property_readonly("is_cpu", &Stream::is_cpu);
  py::class_<PyWeights, std::shared_ptr<PyWeights>>(m, "Weights")
      .def(py::init([](const Stream& stream) { return std::make_shared<PyWeights>(stream.device()); }))
      .def("__contains__", [](const PyWeights& w, const std::string& key) { return w.find(key) != nullptr; })
      .def("add", &PyWeights::add_array)
      .def_property_readonly("bytes_in_place", &Weights::bytes_in_place)
      .def_property_readonly("bytes_copied", &Weights::bytes_copied);
  py::class_<State, std::shared_ptr<State>>(m, "State")
      .def(py::init([](const Stream& stream, const std::vector<std::tuple<std::string, int, Dims>>& specs) {
        std::vector<StateInit> states;
        for (const auto& [key, dtype, shape] : specs) states.push_back({key, scalar_type(dtype), shape});
        AbortGuard guard;
        return std::make_shared<State>(stream.device(), states);
      }))
      .def("read",
           [](const State& state, const std::string& key, py::array& out) {
             data_of(out, state.tensor(key).nbytes());
             state.read(key, out.mutable_data());
           })
      .def("write", [](State& state, const std::string& key,
                       const py::array& array) { state.write(key, data_of(array, state.tensor(key).nbytes())); })
      .def("clear", &State::clear);
  py::class_<PyExecutor>(m, "Executor")
      .def(py::init([](std::shared_ptr<Builder> builder, std::vector<Tensor> outputs, std::vector<py::dtype> dtypes) {
        AbortGuard guard;
        return std::make_unique<PyExecutor>(std::move(builder), std::move(outputs), std::move(dtypes));
      }))
      .def("run", &PyExecutor::run)
      .def("profile", &PyExecutor::profile)
      .def_property_readonly("num_nodes", [](const PyExecutor& e) { return e.executor().num_nodes(); })
      .def_property_readonly("buffer_size", [](const PyExecutor& e) { return e.executor().buffer_size(); });
}

// The kernels are compiled for such processors (see meson.build); elsewhere they would end the process.
void require_processor() {
#ifdef PTN_NEEDS_X86_64_V3
  __builtin_cpu_init();
  const bool fits = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  if (!fits) throw py::import_error("this processor lacks AVX2, FMA or BMI2, which ptn-engine-ggml is built for");
#endif
}

}  // namespace
}  // namespace ptn

PYBIND11_MODULE(_native, m) {
  using namespace ptn;
  require_processor();
  init_ggml();
  m.attr("__version__") = PTN_VERSION;
  m.attr("GGML_VERSION_BUILT_WITH") = PTN_GGML_VERSION;
  m.def("ggml_version", [] { return std::string(ggml_version()); });
  m.def("devices", [] {
    py::list out;
    for (const DeviceInfo& d : list_devices()) out.append(py::make_tuple(d.name, d.kind, d.description, d.memory));
    return out;
  });
  kernels::bind_kernels(m);
  py::register_exception<IndexOutOfRange>(m, "IndexOutOfRangeError", PyExc_IndexError);
  bind_tensor(m);
  bind_builder(m);
  bind_rest(m);
}
