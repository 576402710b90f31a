#include "executor.h"

#include <chrono>

namespace ptn {
namespace {

bool has_failed(void* sink) { return static_cast<kernels::ErrorSink*>(sink)->failed(); }

}  // namespace

Executor::Executor(std::shared_ptr<Builder> builder, std::vector<Tensor> outputs)
    : builder_(std::move(builder)), outputs_(std::move(outputs)) {
  for (const Tensor& output : outputs_) builder_->keep(output);
  graph_ = builder_->finish();
  allocate();
}

// One backend. For several, ggml_backend_sched takes the allocator's place here and in run(): nothing else knows.
void Executor::allocate() {
  if (ggml_graph_n_nodes(graph_) == 0 && inputs().empty()) return;
  allocator_.reset(ggml_gallocr_new(builder_->stream()->buffer_type()));
  if (allocator_ == nullptr || !ggml_gallocr_alloc_graph(allocator_.get(), graph_)) {
    throw std::runtime_error("no memory on the device for the values of this method");
  }
  for (const auto& call : builder_->custom_calls()) call->bind(&errors_);
}

void Executor::run(const std::vector<const void*>& inputs, const std::vector<void*>& outputs) {
  AbortGuard guard;
  set_inputs(inputs);
  if (ggml_graph_n_nodes(graph_) > 0) compute(graph_);
  get_outputs(outputs);
}

std::map<int, double> Executor::profile(const std::vector<const void*>& inputs, const std::vector<void*>& outputs) {
  AbortGuard guard;
  if (parts_.empty() && ggml_graph_n_nodes(graph_) > 0) split();
  set_inputs(inputs);
  std::map<int, double> seconds;
  for (const Part& part : parts_) {
    const auto start = std::chrono::steady_clock::now();
    compute(part.graph);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (part.number >= 0) seconds[part.number] += took.count();
  }
  get_outputs(outputs);
  return seconds;
}

// The nodes keep their memory, so the parts one after the other do what the whole graph does.
void Executor::split() {
  std::vector<std::pair<int, std::vector<ggml_tensor*>>> runs;
  std::vector<ggml_tensor*> views;  // which take no time, and go with the node that reads them
  for (int i = 0; i < ggml_graph_n_nodes(graph_); ++i) {
    ggml_tensor* node = ggml_graph_node(graph_, i);
    views.push_back(node);
    if (!builder_->is_appended(node)) continue;
    const int number = builder_->number_of(node);
    if (runs.empty() || runs.back().first != number) runs.push_back({number, {}});
    runs.back().second.insert(runs.back().second.end(), views.begin(), views.end());
    views.clear();
  }
  std::size_t size = 0;
  for (const auto& [number, nodes] : runs) size += ggml_graph_overhead_custom(nodes.size(), false) + 64;
  ggml_init_params params{};
  params.mem_size = size + 1024;
  params.no_alloc = true;
  parts_context_.reset(ggml_init(params));
  for (const auto& [number, nodes] : runs) {
    ggml_cgraph* graph = ggml_new_graph_custom(parts_context_.get(), nodes.size(), false);
    for (ggml_tensor* node : nodes) ggml_graph_add_node(graph, node);
    parts_.push_back({number, graph});
  }
}

void Executor::set_inputs(const std::vector<const void*>& inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    ggml_tensor* storage = this->inputs()[i].storage;
    if (storage != nullptr && storage->buffer != nullptr) {
      ggml_backend_tensor_set(storage, inputs[i], 0, ggml_nbytes(storage));
    }
  }
}

void Executor::get_outputs(const std::vector<void*>& outputs) const {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Tensor& output = outputs_[i];
    if (output.storage == nullptr) continue;
    ggml_backend_tensor_get(output.storage, outputs[i], static_cast<std::size_t>(output.offset), output.nbytes());
  }
}

void Executor::compute(ggml_cgraph* graph) {
  Stream& stream = *builder_->stream();
  stream.ensure_usable();
  const ggml_backend_t backend = stream.backend(builder_->work());
  errors_.reset();
  stream.set_abort_flag(has_failed, &errors_);
  // An exception on this thread would leave ggml's other threads waiting at a barrier for ever.
  AbortPause pause(stream.is_cpu() && backend != stream.backend(0));
  const ggml_status status = ggml_backend_graph_compute(backend, graph);
  if (errors_.failed()) {
    if (errors_.kind() == kernels::ErrorKind::kIndexOutOfRange) throw IndexOutOfRange(errors_.message());
    throw std::runtime_error(errors_.message());
  }
  if (status != GGML_STATUS_SUCCESS) throw std::runtime_error(ggml_status_to_string(status));
}

}  // namespace ptn
