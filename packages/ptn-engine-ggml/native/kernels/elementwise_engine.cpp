#include <algorithm>
#include <optional>

#include "elementwise.h"

namespace ptn::kernels {
namespace {

template <typename C>
void fill_run(void* to, const void* value, std::int64_t count) {
  const C filler = *static_cast<const C*>(value);
  std::fill_n(static_cast<C*>(to), count, filler);
}

using FillFunction = void (*)(void* to, const void* value, std::int64_t count);

FillFunction fill_function(ScalarType dtype) {
  return dispatch_size(dtype, [](auto tag) -> FillFunction { return fill_run<typename decltype(tag)::type>; });
}

// Gives one operand block by block, in the output's order, as its computed type.
class OperandReader {
 public:
  // A scalar.
  OperandReader(ScalarType computed, const void* value, std::int64_t longest_block) : mode_(Mode::kScalar) {
    fill_function(computed)(&buffer_, value, longest_block);
  }

  // A tensor that broadcasts to `output`.
  OperandReader(const TensorView& view, ScalarType computed, const Shape& output, std::int64_t longest_block)
      : base_(static_cast<const char*>(view.data)),
        item_(static_cast<std::int64_t>(item_size(view.dtype))),
        computed_item_(static_cast<std::int64_t>(item_size(computed))),
        same_(view.dtype == computed),
        convert_(convert_function(view.dtype, computed)),
        fill_(fill_function(computed)) {
    merge_axes(view.shape, output);
    if (sizes_.rank() == 0) {
      mode_ = Mode::kScalar;
      fill_first(longest_block);
    } else if (sizes_.rank() == 1 && strides_[0] == 1) {
      mode_ = Mode::kContiguous;
    } else if (sizes_.rank() == 1) {
      mode_ = Mode::kScalar;
      fill_first(longest_block);
    } else {
      mode_ = Mode::kRows;
    }
  }

  // Elements [first, first + count) of the broadcast operand; count <= kBlock.
  const void* read(std::int64_t first, std::int64_t count) {
    if (mode_ == Mode::kScalar) return &buffer_;
    if (mode_ == Mode::kContiguous) {
      if (same_) return base_ + first * item_;
      convert_(base_ + first * item_, &buffer_, count);
      return &buffer_;
    }
    return read_rows(first, count);
  }

 private:
  enum class Mode { kScalar, kContiguous, kRows };

  void fill_first(std::int64_t count) {
    std::uint64_t value = 0;
    convert_(base_, &value, 1);
    fill_(&buffer_, &value, count);
  }

  // Neighbouring axes over which the operand runs on (or stays) become one.
  void merge_axes(const Shape& shape, const Shape& output) {
    const int missing = output.rank() - shape.rank();
    if (missing < 0) throw std::invalid_argument("an operand has more axes than the result");
    const Shape own = contiguous_strides(shape);
    for (int axis = 0; axis < output.rank(); ++axis) {
      const std::int64_t size = output[axis];
      const std::int64_t extent = axis < missing ? 1 : shape[axis - missing];
      if (extent != size && extent != 1) throw std::invalid_argument("an operand does not broadcast to the result");
      if (size == 1) continue;
      const std::int64_t stride = extent == 1 ? 0 : own[axis - missing];
      const int last = sizes_.rank() - 1;
      if (last >= 0 && strides_[last] == stride * size) {
        sizes_[last] *= size;
        strides_[last] = stride;
      } else {
        sizes_.push_back(size);
        strides_.push_back(stride);
      }
    }
  }

  const void* read_rows(std::int64_t first, std::int64_t count) {
    const int inner = sizes_.rank() - 1;
    const std::int64_t length = sizes_[inner];
    if (!rows_) start_rows(first, inner, length);
    const bool runs = strides_[inner] == 1;
    if (runs && same_ && length - column_ >= count) {
      const char* direct = base_ + (rows_->offset(0) + column_) * item_;
      advance(count, length);
      return direct;
    }
    char* to = reinterpret_cast<char*>(&buffer_);
    while (count > 0) {
      const std::int64_t part = std::min(count, length - column_);
      if (runs) {
        convert_(base_ + (rows_->offset(0) + column_) * item_, to, part);
      } else {
        convert_(base_ + rows_->offset(0) * item_, &value_, 1);
        fill_(to, &value_, part);
      }
      to += part * computed_item_;
      count -= part;
      advance(part, length);
    }
    return &buffer_;
  }

  void start_rows(std::int64_t first, int inner, std::int64_t length) {
    std::array<Shape, 1> strides{Shape(strides_.begin(), inner)};
    rows_.emplace(Shape(sizes_.begin(), inner), strides);
    rows_->seek(first / length);
    column_ = first % length;
  }

  void advance(std::int64_t count, std::int64_t length) {
    column_ += count;
    if (column_ == length) {
      column_ = 0;
      rows_->next();
    }
  }

  BlockBuffer buffer_;
  const char* base_ = nullptr;
  std::int64_t item_ = 0;
  std::int64_t computed_item_ = 0;
  Mode mode_ = Mode::kScalar;
  bool same_ = false;
  ConvertFunction convert_ = nullptr;
  FillFunction fill_ = nullptr;
  Shape sizes_, strides_;
  std::optional<Odometer<1>> rows_;
  std::int64_t column_ = 0;
  std::uint64_t value_ = 0;
};

std::uint64_t scalar_bits(const KernelCall& call, ScalarType computed, int& next_int, int& next_float) {
  std::uint64_t bits = 0;
  if (is_float(computed)) {
    if (next_float >= call.num_floats) throw std::invalid_argument("the kernel was given too few floats");
    convert_function(ScalarType::kDouble, computed)(&call.floats[next_float++], &bits, 1);
  } else {
    if (next_int >= call.num_ints) throw std::invalid_argument("the kernel was given too few integers");
    convert_function(ScalarType::kLong, computed)(&call.ints[next_int++], &bits, 1);
  }
  return bits;
}

}  // namespace

void run_elementwise(const KernelCall& call, const ElementwisePlan& plan, std::int64_t mask, int first_int,
                     int first_float, int thread, int threads) {
  const TensorView& output = call.outputs[0];
  const Range range = share(output.numel(), plan.cost, thread, threads);
  if (range.empty()) return;
  const std::int64_t longest = std::min(kBlock, range.end - range.begin);
  std::array<std::optional<OperandReader>, kMaxOperands> readers;
  int tensor = 0;
  for (int i = 0; i < plan.num_operands; ++i) {
    if ((mask >> i) & 1) {
      const std::uint64_t bits = scalar_bits(call, plan.operands[i], first_int, first_float);
      readers[i].emplace(plan.operands[i], &bits, longest);
    } else {
      if (tensor >= call.num_inputs) throw std::invalid_argument("the kernel was given too few tensors");
      readers[i].emplace(call.inputs[tensor++], plan.operands[i], output.shape, longest);
    }
  }
  const bool direct = output.dtype == plan.result;
  const ConvertFunction convert_result = convert_function(plan.result, output.dtype);
  BlockBuffer buffer;
  for (std::int64_t first = range.begin; first < range.end; first += kBlock) {
    const std::int64_t count = std::min(kBlock, range.end - first);
    const void* operands[kMaxOperands] = {};
    for (int i = 0; i < plan.num_operands; ++i) operands[i] = readers[i]->read(first, count);
    char* target = at_mutable(output, first);
    plan.loop(operands, direct ? static_cast<void*>(target) : &buffer, count);
    if (!direct) convert_result(&buffer, target, count);
  }
}

}  // namespace ptn::kernels
