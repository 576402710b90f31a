// What a kernel is: the contract between the builder, which turns a call into a GGML_OP_CUSTOM node, and the kernels,
// one file per operator family, that compute what ggml lacks or computes with other semantics than PyTorch.
//
// A kernel is called by every thread of ggml's pool with its own `thread` number and divides the work itself. It must
// not throw across ggml: `run` below is the only way in, and turns an exception into an entry of the error sink.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace ptn::kernels {

// Element types; the numbers are the format's own (ptn_format.ScalarType, PyTorch).
enum class ScalarType : std::int8_t {
  kByte = 0,
  kChar = 1,
  kShort = 2,
  kInt = 3,
  kLong = 4,
  kHalf = 5,
  kFloat = 6,
  kDouble = 7,
  kBool = 11,
  kBFloat16 = 15,
  kUInt16 = 16,
  kUInt32 = 17,
  kUInt64 = 18,
};

// Bytes of one element; 0 for a number that is no element type.
std::size_t item_size(ScalarType dtype) noexcept;
// The name PyTorch users know, such as "float32".
const char* dtype_name(ScalarType dtype) noexcept;

// The format's limit on the rank of a tensor.
constexpr int kMaxRank = 64;

// A shape of any rank the format allows, in PyTorch's order (the last axis is the fastest); holds no heap memory.
class Shape {
 public:
  Shape() = default;
  // Throws std::length_error beyond kMaxRank axes.
  Shape(const std::int64_t* sizes, int rank);
  Shape(std::initializer_list<std::int64_t> sizes) : Shape(sizes.begin(), static_cast<int>(sizes.size())) {}

  int rank() const noexcept { return rank_; }
  std::int64_t operator[](int axis) const noexcept { return sizes_[static_cast<std::size_t>(axis)]; }
  std::int64_t& operator[](int axis) noexcept { return sizes_[static_cast<std::size_t>(axis)]; }
  const std::int64_t* begin() const noexcept { return sizes_.data(); }
  const std::int64_t* end() const noexcept { return sizes_.data() + rank_; }
  // Throws std::length_error beyond kMaxRank axes.
  void push_back(std::int64_t size);
  // Product of the sizes from axis `first` up to, not including, `last`.
  std::int64_t product(int first, int last) const noexcept;
  std::int64_t numel() const noexcept { return product(0, rank_); }
  bool operator==(const Shape& other) const noexcept;
  bool operator!=(const Shape& other) const noexcept { return !(*this == other); }

 private:
  std::array<std::int64_t, kMaxRank> sizes_;
  int rank_ = 0;
};

// A tensor in memory: contiguous, row-major, aligned to its element size. Bools are bytes 0 or 1.
struct TensorView {
  void* data = nullptr;
  ScalarType dtype = ScalarType::kFloat;
  Shape shape;

  std::int64_t numel() const noexcept { return shape.numel(); }
  std::size_t nbytes() const noexcept { return static_cast<std::size_t>(numel()) * item_size(dtype); }
  template <typename T>
  T* as() const noexcept {
    return static_cast<T*>(data);
  }
};

enum class ErrorKind : int {
  kNone = 0,
  kIndexOutOfRange = 1,  // becomes ptn_runtime.errors.IndexOutOfRangeError
  kExecution = 2,        // becomes ptn_runtime.errors.ExecutionError
};

// The first error of one execution; written by any thread, read by the executor once all threads have finished.
// One sink serves all kernels of a graph. The executor calls `reset` before and looks at `kind` after a run.
class ErrorSink {
 public:
  void reset() noexcept;
  // Whether a kernel has failed: later kernels of the graph return at once.
  bool failed() const noexcept { return state_.load(std::memory_order_acquire) != kClear; }
  ErrorKind kind() const noexcept { return failed() ? kind_ : ErrorKind::kNone; }
  // The whole text for the user: what failed, the values, why.
  const char* message() const noexcept { return message_; }
  // `op` names the node's operator. Keeps the first error only. Never throws.
  void record(ErrorKind kind, std::string_view op, std::string_view text) noexcept;
  // "aten.gather.default: index 7 is out of range for axis 1 of size 5 (allowed -5..4)"; the allowed range starts at 0
  // unless `negative`.
  void record_index(std::string_view op, std::int64_t index, int axis, std::int64_t size, bool negative) noexcept;

 private:
  static constexpr int kClear = 0, kWriting = 1, kSet = 2;
  std::atomic<int> state_{kClear};
  ErrorKind kind_ = ErrorKind::kNone;
  char message_[480] = {};
};

// One call. All pointers are valid for the whole execution and shared by the threads. Optional tensors that are absent
// are left out of `inputs`; the kernel's ints say which are there (each kernel's comment lists its ints and floats).
struct KernelCall {
  std::string_view op;  // the node's canonical operator, for messages
  const TensorView* inputs = nullptr;
  int num_inputs = 0;
  const TensorView* outputs = nullptr;
  int num_outputs = 0;
  const std::int64_t* ints = nullptr;
  int num_ints = 0;
  const double* floats = nullptr;
  int num_floats = 0;
  ErrorSink* errors = nullptr;
};

// `thread` of `threads` does its share. The shares together write every element of every output exactly once, and no
// share reads what another writes, so no kernel needs a barrier. Small calls are done by thread 0 alone.
using Kernel = void (*)(const KernelCall& call, int thread, int threads);

struct KernelInfo {
  const char* name;  // "<family>.<what>", such as "elementwise.add"
  Kernel function;
  // outputs[0] may be the same memory as inputs[0] (same dtype and shape), which is then updated in place.
  bool in_place;
  // The most threads that the kernel can use for any call; 1 where only thread 0 works.
  int max_threads;
};

// The kernel of that name, or null.
const KernelInfo* find_kernel(std::string_view name) noexcept;
// All kernels, sorted by name.
const KernelInfo* kernel_table(int* count) noexcept;

// Runs this thread's share. Returns at once where the sink already holds an error. Never throws.
void run(const KernelInfo& kernel, const KernelCall& call, int thread, int threads) noexcept;

// Thrown inside kernels; `run` records them.
class IndexError {
 public:
  IndexError(std::int64_t index, int axis, std::int64_t size, bool negative = true)
      : index(index), size(size), axis(axis), negative(negative) {}
  std::int64_t index, size;
  int axis;
  bool negative;
};

}  // namespace ptn::kernels
