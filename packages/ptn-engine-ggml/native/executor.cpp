#include "executor.h"

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
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    ggml_tensor* storage = this->inputs()[i].storage;
    if (storage != nullptr && storage->buffer != nullptr) {
      ggml_backend_tensor_set(storage, inputs[i], 0, ggml_nbytes(storage));
    }
  }
  if (ggml_graph_n_nodes(graph_) > 0) compute();
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Tensor& output = outputs_[i];
    if (output.storage == nullptr) continue;
    ggml_backend_tensor_get(output.storage, outputs[i], static_cast<std::size_t>(output.offset), output.nbytes());
  }
}

void Executor::compute() {
  Stream& stream = *builder_->stream();
  stream.ensure_usable();
  const ggml_backend_t backend = stream.backend(builder_->work());
  errors_.reset();
  stream.set_abort_flag(has_failed, &errors_);
  // An exception on this thread would leave ggml's other threads waiting at a barrier for ever.
  AbortPause pause(stream.is_cpu() && backend != stream.backend(0));
  const ggml_status status = ggml_backend_graph_compute(backend, graph_);
  if (errors_.failed()) {
    if (errors_.kind() == kernels::ErrorKind::kIndexOutOfRange) throw IndexOutOfRange(errors_.message());
    throw std::runtime_error(errors_.message());
  }
  if (status != GGML_STATUS_SUCCESS) throw std::runtime_error(ggml_status_to_string(status));
}

}  // namespace ptn
