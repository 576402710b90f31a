// A lowered value: a strided window, as PyTorch has it, on the memory of a contiguous ggml tensor.
//
// Layout operators (permute, slice, expand, ...) only change the window. A ggml view is made when an operator reads the
// value, and a copy only where that operator cannot read the window as it is. So no ggml tensor is ever a view of a
// window of a window, and values of any rank exist although ggml knows four axes.
#pragma once

#include <ggml.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/kernel.h"

namespace ptn {

using kernels::ScalarType;
using Dims = std::vector<std::int64_t>;

// Whose memory a value is.
enum class Origin : std::uint8_t { kNode, kInput, kConstant, kState };

struct Tensor {
  ggml_tensor* storage = nullptr;  // contiguous; null where there are no elements
  ScalarType dtype = ScalarType::kFloat;
  Origin origin = Origin::kNode;
  Dims shape;               // PyTorch's order: the last axis is the innermost
  Dims strides;             // bytes, one per axis; 0 where expanded
  std::int64_t offset = 0;  // bytes from the start of `storage`

  int rank() const { return static_cast<int>(shape.size()); }
  std::int64_t numel() const;
  std::size_t nbytes() const;
  std::size_t item_size() const { return kernels::item_size(dtype); }
  // Row-major without gaps (from `offset` on).
  bool is_contiguous() const;

  // Windows on the same memory. Axes are not negative; the caller has checked the ranges.
  Tensor permute(const std::vector<int>& dims) const;
  Tensor slice(int dim, std::int64_t start, std::int64_t step, std::int64_t length) const;
  Tensor select(int dim, std::int64_t index) const;
  // `target` has at least this rank; its sizes are final.
  Tensor expand(const Dims& target) const;
  // Any window that starts `start` elements after this one; strides in elements, negative ones included. Throws
  // std::invalid_argument where it leaves the storage.
  Tensor as_strided(const Dims& sizes, const Dims& steps, std::int64_t start) const;
  // The same elements under another shape of as many, or nothing where that needs a copy.
  std::optional<Tensor> view(const Dims& target) const;
  // The same bytes as another type of the same size.
  Tensor reinterpret(ScalarType to) const;
};

// A contiguous value over all of `storage`.
Tensor whole(ggml_tensor* storage, ScalarType dtype, Dims shape, Origin origin = Origin::kNode);

Dims contiguous_strides(const Dims& shape, std::size_t item_size);

// Merges neighbouring axes of `shape` that every window in `strides` walks as one; drops axes of size 1.
void coalesce(Dims& shape, std::vector<Dims>& strides);

// How ggml stores an element type: integers and bool as its signed type of that width.
ggml_type storage_type(ScalarType dtype);

}  // namespace ptn
