#include "weights.h"

#include <ggml-alloc.h>

#include <cstring>
#include <stdexcept>

namespace ptn {

ContextPtr new_context(std::size_t tensors) {
  ggml_init_params params{};
  params.mem_size = tensors * ggml_tensor_overhead();
  params.no_alloc = true;
  ContextPtr context(ggml_init(params));
  if (context == nullptr) throw std::bad_alloc();
  return context;
}

ggml_tensor* new_storage(ggml_context* context, ggml_type type, const Dims& shape) {
  std::int64_t ne[GGML_MAX_DIMS] = {1, 1, 1, 1};
  const int rank = static_cast<int>(shape.size());
  for (int axis = 0; axis < rank; ++axis) {
    const int target = std::min(rank - 1 - axis, GGML_MAX_DIMS - 1);
    ne[target] *= shape[axis];
  }
  return ggml_new_tensor(context, type, GGML_MAX_DIMS, ne);
}

const Tensor* Weights::find(const std::string& key) const {
  auto found = tensors_.find(key);
  return found == tensors_.end() ? nullptr : &found->second;
}

bool Weights::add(const std::string& key, ScalarType dtype, const Dims& shape, const void* data, bool may_stay) {
  Tensor value = whole(nullptr, dtype, shape, Origin::kConstant);
  bool in_place = false;
  if (value.numel() > 0) {
    contexts_.push_back(new_context(1));
    value.storage = new_storage(contexts_.back().get(), storage_type(dtype), shape);
    ggml_set_name(value.storage, key.c_str());
    storages_.insert(value.storage);
    in_place = may_stay && add_in_place(value.storage, data, value.nbytes());
    if (!in_place) add_copy(value.storage, data, value.nbytes());
  }
  tensors_[key] = std::move(value);
  return in_place;
}

bool Weights::add_in_place(ggml_tensor* tensor, const void* data, std::size_t size) {
  ggml_backend_buffer_type_t type = ggml_backend_dev_buffer_type(device_);
  ggml_backend_dev_props props{};
  ggml_backend_dev_get_props(device_, &props);
  const std::size_t alignment = ggml_backend_buft_get_alignment(type);
  if (!props.caps.buffer_from_host_ptr || !ggml_backend_buft_is_host(type)) return false;
  if (reinterpret_cast<std::uintptr_t>(data) % alignment != 0) return false;
  // ggml never writes to a constant: no operator of a build has one as its destination.
  void* base = const_cast<void*>(data);
  BufferPtr buffer(ggml_backend_dev_buffer_from_host_ptr(device_, base, size, size));
  if (buffer == nullptr) return false;
  ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  if (ggml_backend_tensor_alloc(buffer.get(), tensor, base) != GGML_STATUS_SUCCESS) return false;
  buffers_.push_back(std::move(buffer));
  bytes_in_place_ += size;
  return true;
}

void Weights::add_copy(ggml_tensor* tensor, const void* data, std::size_t size) {
  ggml_backend_buffer_type_t type = ggml_backend_dev_buffer_type(device_);
  BufferPtr buffer(ggml_backend_buft_alloc_buffer(type, ggml_backend_buft_get_alloc_size(type, tensor)));
  if (buffer == nullptr) {
    throw std::runtime_error("no memory on the device for a constant of " + std::to_string(size) + " bytes");
  }
  ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  ggml_backend_tensor_alloc(buffer.get(), tensor, ggml_backend_buffer_get_base(buffer.get()));
  ggml_backend_tensor_set(tensor, data, 0, size);
  buffers_.push_back(std::move(buffer));
  bytes_copied_ += size;
}

namespace {

// Copies a window to contiguous memory, the innermost axes last.
void gather(const char* source, char* target, const Dims& shape, const Dims& strides, std::size_t item) {
  const int rank = static_cast<int>(shape.size());
  std::int64_t count = 1;
  for (std::int64_t size : shape) count *= size;
  Dims index(shape.size(), 0);
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(target + i * static_cast<std::int64_t>(item), source, item);
    for (int axis = rank - 1; axis >= 0; --axis) {
      source += strides[axis];
      if (++index[axis] < shape[axis]) break;
      source -= strides[axis] * shape[axis];
      index[axis] = 0;
    }
  }
}

}  // namespace

const Tensor* Weights::contiguous(const Tensor& window) {
  ggml_tensor* storage = window.storage;
  if (!ggml_backend_buft_is_host(ggml_backend_dev_buffer_type(device_))) return nullptr;
  std::string key(storage->name);
  key += "@" + std::to_string(reinterpret_cast<std::uintptr_t>(storage)) + "+" + std::to_string(window.offset);
  for (int axis = 0; axis < window.rank(); ++axis) {
    key += "," + std::to_string(window.shape[axis]) + "/" + std::to_string(window.strides[axis]);
  }
  key += ":" + std::string(kernels::dtype_name(window.dtype));
  if (const Tensor* found = find(key)) return found;
  Dims shape = window.shape;
  std::vector<Dims> strides{window.strides};
  coalesce(shape, strides);
  std::vector<char> copy(window.nbytes());
  gather(static_cast<const char*>(storage->data) + window.offset, copy.data(), shape, strides[0], window.item_size());
  Tensor value = whole(nullptr, window.dtype, window.shape, Origin::kConstant);
  contexts_.push_back(new_context(1));
  value.storage = new_storage(contexts_.back().get(), storage_type(window.dtype), window.shape);
  storages_.insert(value.storage);
  add_copy(value.storage, copy.data(), copy.size());
  return &(tensors_[key] = std::move(value));
}

State::State(ggml_backend_dev_t device, const std::vector<StateInit>& states)
    : context_(new_context(states.size() + 1)) {
  bool any = false;
  for (const StateInit& state : states) {
    Tensor value = whole(nullptr, state.dtype, state.shape, Origin::kState);
    if (value.numel() > 0) {
      value.storage = new_storage(context_.get(), storage_type(state.dtype), state.shape);
      ggml_set_name(value.storage, state.key.c_str());
      any = true;
    }
    tensors_[state.key] = std::move(value);
  }
  if (!any) return;
  buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(context_.get(), ggml_backend_dev_buffer_type(device)));
  if (buffer_ == nullptr) throw std::runtime_error("no memory on the device for the program's state");
  clear();
}

void State::clear() {
  if (buffer_ != nullptr) ggml_backend_buffer_clear(buffer_.get(), 0);
}

void State::read(const std::string& key, void* data) const {
  const Tensor& value = tensor(key);
  if (value.storage != nullptr) ggml_backend_tensor_get(value.storage, data, 0, value.nbytes());
}

void State::write(const std::string& key, const void* data) {
  const Tensor& value = tensor(key);
  if (value.storage != nullptr) ggml_backend_tensor_set(value.storage, data, 0, value.nbytes());
}

}  // namespace ptn
