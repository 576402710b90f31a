#include "tensor.h"

#include <stdexcept>

namespace ptn {

std::int64_t Tensor::numel() const {
  std::int64_t count = 1;
  for (std::int64_t size : shape) count *= size;
  return count;
}

std::size_t Tensor::nbytes() const { return static_cast<std::size_t>(numel()) * item_size(); }

bool Tensor::is_contiguous() const {
  auto expected = static_cast<std::int64_t>(item_size());
  for (int axis = rank() - 1; axis >= 0; --axis) {
    if (shape[axis] == 1) continue;
    if (strides[axis] != expected) return false;
    expected *= shape[axis];
  }
  return true;
}

Tensor Tensor::permute(const std::vector<int>& dims) const {
  Tensor out = *this;
  for (std::size_t axis = 0; axis < dims.size(); ++axis) {
    out.shape[axis] = shape.at(dims[axis]);
    out.strides[axis] = strides.at(dims[axis]);
  }
  return out;
}

Tensor Tensor::slice(int dim, std::int64_t start, std::int64_t step, std::int64_t length) const {
  Tensor out = *this;
  out.offset += start * strides.at(dim);
  out.strides[dim] = step * strides[dim];
  out.shape[dim] = length;
  return out;
}

Tensor Tensor::select(int dim, std::int64_t index) const {
  Tensor out = *this;
  out.offset += index * strides.at(dim);
  out.shape.erase(out.shape.begin() + dim);
  out.strides.erase(out.strides.begin() + dim);
  return out;
}

Tensor Tensor::expand(const Dims& target) const {
  if (target.size() < shape.size()) throw std::invalid_argument("expand: the target has fewer axes than the tensor");
  Tensor out = *this;
  const std::size_t added = target.size() - shape.size();
  out.shape = target;
  out.strides.assign(target.size(), 0);
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    const bool same = shape[axis] == target[added + axis];
    if (!same && shape[axis] != 1) throw std::invalid_argument("expand: only axes of size 1 can be expanded");
    out.strides[added + axis] = same ? strides[axis] : 0;
  }
  return out;
}

Tensor Tensor::as_strided(const Dims& sizes, const Dims& steps, std::int64_t start) const {
  if (sizes.size() != steps.size()) throw std::invalid_argument("as_strided: one stride per axis");
  const auto item = static_cast<std::int64_t>(item_size());
  Tensor out = *this;
  out.shape = sizes;
  out.strides.resize(steps.size());
  out.offset += start * item;
  std::int64_t first = out.offset, last = out.offset;
  for (std::size_t axis = 0; axis < steps.size(); ++axis) {
    out.strides[axis] = steps[axis] * item;
    (steps[axis] < 0 ? first : last) += (sizes[axis] - 1) * out.strides[axis];
  }
  if (out.numel() > 0 &&
      (storage == nullptr || first < 0 || last + item > static_cast<std::int64_t>(ggml_nbytes(storage)))) {
    throw std::invalid_argument("as_strided: the window leaves the tensor's memory");
  }
  return out;
}

std::optional<Tensor> Tensor::view(const Dims& target) const {
  Tensor out = *this;
  out.shape = target;
  if (numel() == 0 || is_contiguous()) {
    out.strides = contiguous_strides(target, item_size());
    return out;
  }
  // Merge what can be walked as one, then cut each merged axis into target axes.
  Dims merged = shape;
  std::vector<Dims> windows{strides};
  coalesce(merged, windows);
  out.strides.assign(target.size(), 0);
  int axis = static_cast<int>(target.size()) - 1;
  for (int from = static_cast<int>(merged.size()) - 1; from >= 0; --from) {
    std::int64_t left = merged[from];
    std::int64_t stride = windows[0][from];
    while (left > 1) {
      if (axis < 0) return std::nullopt;
      const std::int64_t size = target[axis];
      if (size == 0 || left % size != 0) return std::nullopt;
      out.strides[axis--] = stride;
      stride *= size;
      left /= size;
    }
  }
  for (; axis >= 0; --axis) {
    if (target[axis] != 1) return std::nullopt;
  }
  return out;
}

Tensor Tensor::reinterpret(ScalarType to) const {
  if (kernels::item_size(to) != item_size()) throw std::invalid_argument("reinterpret: the types differ in size");
  Tensor out = *this;
  out.dtype = to;
  return out;
}

Tensor whole(ggml_tensor* storage, ScalarType dtype, Dims shape, Origin origin) {
  Tensor out;
  out.storage = storage;
  out.dtype = dtype;
  out.origin = origin;
  out.strides = contiguous_strides(shape, kernels::item_size(dtype));
  out.shape = std::move(shape);
  return out;
}

Dims contiguous_strides(const Dims& shape, std::size_t item_size) {
  Dims strides(shape.size());
  auto stride = static_cast<std::int64_t>(item_size);
  for (int axis = static_cast<int>(shape.size()) - 1; axis >= 0; --axis) {
    strides[axis] = stride;
    stride *= shape[axis];
  }
  return strides;
}

void coalesce(Dims& shape, std::vector<Dims>& strides) {
  std::size_t kept = 0;  // axes written so far
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] == 1) continue;
    bool joins = kept > 0;
    for (Dims& window : strides) joins = joins && window[kept - 1] == window[axis] * shape[axis];
    if (joins) {
      shape[kept - 1] *= shape[axis];
    } else {
      shape[kept++] = shape[axis];
    }
    for (Dims& window : strides) window[kept - 1] = window[axis];
  }
  shape.resize(kept);
  for (Dims& window : strides) window.resize(kept);
}

ggml_type storage_type(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::kByte:
    case ScalarType::kChar:
    case ScalarType::kBool:
      return GGML_TYPE_I8;
    case ScalarType::kShort:
    case ScalarType::kUInt16:
      return GGML_TYPE_I16;
    case ScalarType::kInt:
    case ScalarType::kUInt32:
      return GGML_TYPE_I32;
    case ScalarType::kLong:
    case ScalarType::kUInt64:
      return GGML_TYPE_I64;
    case ScalarType::kHalf:
      return GGML_TYPE_F16;
    case ScalarType::kFloat:
      return GGML_TYPE_F32;
    case ScalarType::kDouble:
      return GGML_TYPE_F64;
    case ScalarType::kBFloat16:
      return GGML_TYPE_BF16;
  }
  throw std::invalid_argument("not an element type");
}

}  // namespace ptn
