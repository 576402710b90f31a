#include "kernel.h"

#include <cstdio>
#include <cstring>
#include <new>
#include <stdexcept>

#include "families.h"
#include "support.h"

namespace ptn::kernels {

std::size_t item_size(ScalarType dtype) noexcept {
  switch (dtype) {
    case ScalarType::kByte:
    case ScalarType::kChar:
    case ScalarType::kBool:
      return 1;
    case ScalarType::kShort:
    case ScalarType::kHalf:
    case ScalarType::kBFloat16:
    case ScalarType::kUInt16:
      return 2;
    case ScalarType::kInt:
    case ScalarType::kFloat:
    case ScalarType::kUInt32:
      return 4;
    case ScalarType::kLong:
    case ScalarType::kDouble:
    case ScalarType::kUInt64:
      return 8;
  }
  return 0;
}

const char* dtype_name(ScalarType dtype) noexcept {
  switch (dtype) {
    case ScalarType::kByte:
      return "uint8";
    case ScalarType::kChar:
      return "int8";
    case ScalarType::kShort:
      return "int16";
    case ScalarType::kInt:
      return "int32";
    case ScalarType::kLong:
      return "int64";
    case ScalarType::kHalf:
      return "float16";
    case ScalarType::kFloat:
      return "float32";
    case ScalarType::kDouble:
      return "float64";
    case ScalarType::kBool:
      return "bool";
    case ScalarType::kBFloat16:
      return "bfloat16";
    case ScalarType::kUInt16:
      return "uint16";
    case ScalarType::kUInt32:
      return "uint32";
    case ScalarType::kUInt64:
      return "uint64";
  }
  return "unknown";
}

Shape::Shape(const std::int64_t* sizes, int rank) {
  for (int axis = 0; axis < rank; ++axis) push_back(sizes[axis]);
}

void Shape::push_back(std::int64_t size) {
  if (rank_ == kMaxRank) throw std::length_error("a tensor has at most 64 axes");
  sizes_[static_cast<std::size_t>(rank_++)] = size;
}

std::int64_t Shape::product(int first, int last) const noexcept {
  std::int64_t count = 1;
  for (int axis = first; axis < last; ++axis) count *= (*this)[axis];
  return count;
}

bool Shape::operator==(const Shape& other) const noexcept {
  return rank_ == other.rank_ && std::equal(begin(), end(), other.begin());
}

void ErrorSink::reset() noexcept {
  message_[0] = '\0';
  kind_ = ErrorKind::kNone;
  state_.store(kClear, std::memory_order_release);
}

void ErrorSink::record(ErrorKind kind, std::string_view op, std::string_view text) noexcept {
  int expected = kClear;
  if (!state_.compare_exchange_strong(expected, kWriting, std::memory_order_acq_rel)) return;
  std::snprintf(message_, sizeof(message_), "%.*s: %.*s", static_cast<int>(op.size()), op.data(),
                static_cast<int>(text.size()), text.data());
  kind_ = kind;
  state_.store(kSet, std::memory_order_release);
}

void ErrorSink::record_index(std::string_view op, std::int64_t index, int axis, std::int64_t size,
                             bool negative) noexcept {
  char text[200];
  const long long low = negative ? -static_cast<long long>(size) : 0;
  if (size == 0) {
    std::snprintf(text, sizeof(text), "index %lld is out of range for axis %d, which is empty",
                  static_cast<long long>(index), axis);
  } else {
    std::snprintf(text, sizeof(text), "index %lld is out of range for axis %d of size %lld (allowed %lld..%lld)",
                  static_cast<long long>(index), axis, static_cast<long long>(size), low,
                  static_cast<long long>(size) - 1);
  }
  record(ErrorKind::kIndexOutOfRange, op, text);
}

namespace {

const std::vector<KernelInfo>& sorted_kernels() {
  static const std::vector<KernelInfo> table = [] {
    std::vector<KernelInfo> all;
    for (const KernelList& list : family_lists()) all.insert(all.end(), list.kernels, list.kernels + list.count);
    std::sort(all.begin(), all.end(),
              [](const KernelInfo& a, const KernelInfo& b) { return std::strcmp(a.name, b.name) < 0; });
    return all;
  }();
  return table;
}

}  // namespace

const KernelInfo* find_kernel(std::string_view name) noexcept {
  const auto& table = sorted_kernels();
  const auto found = std::lower_bound(table.begin(), table.end(), name, [](const KernelInfo& kernel, auto wanted) {
    return std::string_view(kernel.name) < wanted;
  });
  return found != table.end() && found->name == name ? &*found : nullptr;
}

const KernelInfo* kernel_table(int* count) noexcept {
  *count = static_cast<int>(sorted_kernels().size());
  return sorted_kernels().data();
}

void run(const KernelInfo& kernel, const KernelCall& call, int thread, int threads) noexcept {
  if (call.errors->failed() || thread >= kernel.max_threads) return;
  try {
    kernel.function(call, thread, std::min(threads, kernel.max_threads));
  } catch (const IndexError& error) {
    call.errors->record_index(call.op, error.index, error.axis, error.size, error.negative);
  } catch (const std::bad_alloc&) {
    call.errors->record(ErrorKind::kExecution, call.op, "out of memory for scratch space");
  } catch (const std::exception& error) {
    call.errors->record(ErrorKind::kExecution, call.op, error.what());
  } catch (...) {
    call.errors->record(ErrorKind::kExecution, call.op, "failed for an unknown reason");
  }
}

Range share(std::int64_t count, std::int64_t cost, int thread, int threads) noexcept {
  constexpr std::int64_t kWorthAThread = 16384;
  // In double: count * cost may exceed int64.
  const double work = static_cast<double>(count) * static_cast<double>(std::max<std::int64_t>(cost, 1));
  const std::int64_t useful =
      static_cast<std::int64_t>(std::min({work / kWorthAThread + 1.0, static_cast<double>(threads),
                                          static_cast<double>(std::max<std::int64_t>(count, 1))}));
  if (thread >= useful) return {0, 0};
  // Whole multiples of 64 items, so that threads do not write to the same cache line where items are elements.
  const std::int64_t unit = count >= useful * 256 ? 64 : 1;
  const std::int64_t units = (count + unit - 1) / unit;
  return {std::min(count, units * thread / useful * unit), std::min(count, units * (thread + 1) / useful * unit)};
}

void expect_operands(const KernelCall& call, int inputs, int outputs) {
  if (call.num_inputs == inputs && call.num_outputs == outputs) return;
  throw std::invalid_argument("the kernel takes " + std::to_string(inputs) + " tensors and gives " +
                              std::to_string(outputs) + "; it was called with " + std::to_string(call.num_inputs) +
                              " and " + std::to_string(call.num_outputs));
}

Shape contiguous_strides(const Shape& shape) {
  Shape strides = shape;
  std::int64_t stride = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    strides[axis] = stride;
    stride *= shape[axis];
  }
  return strides;
}

}  // namespace ptn::kernels
