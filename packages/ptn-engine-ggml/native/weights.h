// Tensors that outlive a build: constants, shared by all builds of a context and of its forks, and state.
#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tensor.h"

namespace ptn {

struct ContextDeleter {
  void operator()(ggml_context* context) const { ggml_free(context); }
};
struct BufferDeleter {
  void operator()(ggml_backend_buffer* buffer) const { ggml_backend_buffer_free(buffer); }
};
using ContextPtr = std::unique_ptr<ggml_context, ContextDeleter>;
using BufferPtr = std::unique_ptr<ggml_backend_buffer, BufferDeleter>;

// A context for the descriptions (no data) of `tensors` tensors.
ContextPtr new_context(std::size_t tensors);

// A contiguous ggml tensor for values of this shape: its axes where ggml has enough of them, else merged.
ggml_tensor* new_storage(ggml_context* context, ggml_type type, const Dims& shape);

// The constants of one program on one device.
class Weights {
 public:
  explicit Weights(ggml_backend_dev_t device) : device_(device) {}

  // The constant of that key, or null where `add` has not brought it in yet.
  const Tensor* find(const std::string& key) const;
  // Brings a constant in: in place where the device reads host memory and `data` is aligned as it demands, else as a
  // copy. Returns whether it stayed in place (only where `may_stay`): then the caller keeps `data` alive as long as
  // this object.
  bool add(const std::string& key, ScalarType dtype, const Dims& shape, const void* data, bool may_stay = true);
  // Whether this object brought `storage` in.
  bool owns(const ggml_tensor* storage) const { return storages_.count(storage) != 0; }
  // The contents of a window on one of these constants, made contiguous once. Host devices only: null elsewhere.
  const Tensor* contiguous(const Tensor& window);

  std::size_t bytes_in_place() const { return bytes_in_place_; }
  std::size_t bytes_copied() const { return bytes_copied_; }

 private:
  bool add_in_place(ggml_tensor* tensor, const void* data, std::size_t size);
  void add_copy(ggml_tensor* tensor, const void* data, std::size_t size);

  ggml_backend_dev_t device_;
  std::map<std::string, Tensor> tensors_;
  std::set<const ggml_tensor*> storages_;
  std::vector<ContextPtr> contexts_;
  std::vector<BufferPtr> buffers_;
  std::size_t bytes_in_place_ = 0;
  std::size_t bytes_copied_ = 0;
};

struct StateInit {
  std::string key;
  ScalarType dtype;
  Dims shape;
};

// The state of one context: zeros until written.
class State {
 public:
  State(ggml_backend_dev_t device, const std::vector<StateInit>& states);

  // Throws std::out_of_range where there is none.
  const Tensor& tensor(const std::string& key) const { return tensors_.at(key); }
  void read(const std::string& key, void* data) const;
  void write(const std::string& key, const void* data);
  void clear();
  bool owns(const ggml_tensor* tensor) const { return buffer_ != nullptr && tensor->buffer == buffer_.get(); }

 private:
  ContextPtr context_;
  BufferPtr buffer_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace ptn
