// Runs a finished graph: inputs in, compute, outputs out.
#pragma once

#include <ggml-alloc.h>

#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "builder.h"

namespace ptn {

// A kernel found an index outside its axis.
class IndexOutOfRange : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct AllocatorDeleter {
  void operator()(ggml_gallocr* allocator) const { ggml_gallocr_free(allocator); }
};

// One graph with its memory. Not thread-safe; executors of different streams run side by side.
class Executor {
 public:
  // Takes the builder over. `outputs` are contiguous and kept.
  Executor(std::shared_ptr<Builder> builder, std::vector<Tensor> outputs);

  // Copies one buffer per input in, computes, copies one buffer per output out. Throws IndexOutOfRange, or
  // std::runtime_error where ggml fails.
  void run(const std::vector<const void*>& inputs, const std::vector<void*>& outputs);

  // As `run`, with the seconds that the nodes of each number of `Builder::set_op` took.
  std::map<int, double> profile(const std::vector<const void*>& inputs, const std::vector<void*>& outputs);

  const std::vector<Tensor>& inputs() const { return builder_->inputs(); }
  const std::vector<Tensor>& outputs() const { return outputs_; }
  int num_nodes() const { return ggml_graph_n_nodes(graph_); }
  // Bytes of memory for values between nodes.
  std::size_t buffer_size() const {
    return allocator_ == nullptr ? 0 : ggml_gallocr_get_buffer_size(allocator_.get(), 0);
  }

 private:
  // Nodes that follow each other and belong to one number.
  struct Part {
    int number;
    ggml_cgraph* graph;
  };

  void allocate();
  void set_inputs(const std::vector<const void*>& inputs);
  void get_outputs(const std::vector<void*>& outputs) const;
  void compute(ggml_cgraph* graph);
  void split();

  std::shared_ptr<Builder> builder_;
  std::vector<Tensor> outputs_;
  ggml_cgraph* graph_ = nullptr;
  std::unique_ptr<ggml_gallocr, AllocatorDeleter> allocator_;
  kernels::ErrorSink errors_;
  ContextPtr parts_context_;  // both on first use by `profile`
  std::vector<Part> parts_;
};

}  // namespace ptn
