// What kernel files share: their tables, dividing work among threads, reading parameters, reading and writing blocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

#include "kernel.h"
#include "types.h"

namespace ptn::kernels {

// A family's kernels; kernel.cpp puts them together.
struct KernelList {
  const KernelInfo* kernels;
  int count;
};
template <int N>
constexpr KernelList make_list(const KernelInfo (&kernels)[N]) {
  return {kernels, N};
}

constexpr int kAnyThreads = 1 << 20;

struct Range {
  std::int64_t begin, end;
  bool empty() const noexcept { return begin >= end; }
};

// This thread's part of `count` items of about `cost` simple operations each. Where all of it is too little to pay for
// waking threads, thread 0 gets everything.
Range share(std::int64_t count, std::int64_t cost, int thread, int threads) noexcept;

// Contiguous conversion of `count` elements between any two dtypes.
using ConvertFunction = void (*)(const void* from, void* to, std::int64_t count);
ConvertFunction convert_function(ScalarType from, ScalarType to);

// Elements that block-wise kernels hold in their buffers.
constexpr std::int64_t kBlock = 512;
using BlockBuffer = std::aligned_storage_t<kBlock * 8, 64>;

inline const char* at(const TensorView& view, std::int64_t element) noexcept {
  return static_cast<const char*>(view.data) + element * static_cast<std::int64_t>(item_size(view.dtype));
}
inline char* at_mutable(const TensorView& view, std::int64_t element) noexcept {
  return static_cast<char*>(view.data) + element * static_cast<std::int64_t>(item_size(view.dtype));
}

// Reads contiguous runs of a tensor as type C: without a copy where the dtype is C's.
template <typename C>
class RunReader {
 public:
  explicit RunReader(const TensorView& view)
      : view_(view), direct_(view.dtype == scalar_type_of<C>()), convert_(nullptr) {
    if (!direct_) convert_ = convert_function(view.dtype, scalar_type_of<C>());
  }
  bool direct() const noexcept { return direct_; }
  // Elements [first, first + count); valid until the next call. count <= kBlock unless direct().
  const C* read(std::int64_t first, std::int64_t count) {
    if (direct_) return static_cast<const C*>(view_.data) + first;
    convert_(at(view_, first), &buffer_, count);
    return reinterpret_cast<const C*>(&buffer_);
  }

 private:
  TensorView view_;
  bool direct_;
  ConvertFunction convert_;
  BlockBuffer buffer_;
};

// The whole tensor as type C; a view where the dtype is C's, else a converted copy.
template <typename C>
class Whole {
 public:
  explicit Whole(const TensorView& view) {
    if (view.dtype == scalar_type_of<C>()) {
      data_ = static_cast<const C*>(view.data);
      return;
    }
    const std::int64_t count = view.numel();
    copy_.reset(new C[static_cast<std::size_t>(count > 0 ? count : 1)]);
    convert_function(view.dtype, scalar_type_of<C>())(view.data, copy_.get(), count);
    data_ = copy_.get();
  }
  const C& operator[](std::int64_t index) const noexcept { return data_[index]; }
  const C* data() const noexcept { return data_; }

 private:
  const C* data_;
  std::unique_ptr<C[]> copy_;
};

// Writes one element of type C to a tensor of any dtype.
template <typename C>
class ElementWriter {
 public:
  explicit ElementWriter(const TensorView& view)
      : view_(view), convert_(convert_function(scalar_type_of<C>(), view.dtype)) {}
  void write(std::int64_t first, const C* values, std::int64_t count) const {
    convert_(values, at_mutable(view_, first), count);
  }

 private:
  TensorView view_;
  ConvertFunction convert_;
};

// Reads a call's integers and floats one after the other; throws where there are too few.
class Parameters {
 public:
  explicit Parameters(const KernelCall& call) : call_(call) {}
  std::int64_t next_int() {
    if (int_ >= call_.num_ints) throw std::invalid_argument("the kernel was given too few integers");
    return call_.ints[int_++];
  }
  double next_float() {
    if (float_ >= call_.num_floats) throw std::invalid_argument("the kernel was given too few floats");
    return call_.floats[float_++];
  }
  int remaining_ints() const noexcept { return call_.num_ints - int_; }

 private:
  const KernelCall& call_;
  int int_ = 0;
  int float_ = 0;
};

// Throws unless the call has these numbers of inputs and outputs.
void expect_operands(const KernelCall& call, int inputs, int outputs);

// Row-major strides in elements.
Shape contiguous_strides(const Shape& shape);

// Position in a nest of loops, advanced without division; offsets of up to N operands move along.
template <int N>
class Odometer {
 public:
  // `strides[k]` has one stride per axis for operand k.
  Odometer(const Shape& sizes, const std::array<Shape, N>& strides) : sizes_(sizes), strides_(strides) {
    for (int axis = 0; axis < sizes.rank(); ++axis) index_.push_back(0);
  }
  void seek(std::int64_t position) noexcept {
    offsets_.fill(0);
    for (int axis = sizes_.rank() - 1; axis >= 0; --axis) {
      const std::int64_t size = sizes_[axis] > 0 ? sizes_[axis] : 1;
      index_[axis] = position % size;
      position /= size;
      for (int k = 0; k < N; ++k) offsets_[k] += index_[axis] * strides_[k][axis];
    }
  }
  void next() noexcept {
    for (int axis = sizes_.rank() - 1; axis >= 0; --axis) {
      for (int k = 0; k < N; ++k) offsets_[k] += strides_[k][axis];
      if (++index_[axis] < sizes_[axis]) return;
      for (int k = 0; k < N; ++k) offsets_[k] -= strides_[k][axis] * sizes_[axis];
      index_[axis] = 0;
    }
  }
  std::int64_t offset(int operand) const noexcept { return offsets_[operand]; }
  std::int64_t index(int axis) const noexcept { return index_[axis]; }

 private:
  Shape sizes_;
  std::array<Shape, N> strides_;
  Shape index_;
  std::array<std::int64_t, N> offsets_{};
};

}  // namespace ptn::kernels
