// Builds one ggml graph: every method appends nodes and gives the result as a Tensor.
//
// Nodes run in the order in which they were appended, so an in-place write comes after everything appended before it.
// Methods check the shapes and types that ggml would abort on, and throw std::invalid_argument.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "custom.h"
#include "device.h"
#include "tensor.h"
#include "weights.h"

namespace ptn {

enum class Binary { kAdd, kSub, kMul, kDiv };

struct OutputSpec {
  ScalarType dtype;
  Dims shape;
};

class Builder {
 public:
  Builder(std::shared_ptr<Stream> stream, std::shared_ptr<Weights> weights, std::shared_ptr<State> state);

  // The operator that the following nodes belong to, for messages, and its number, for times; -1 for none.
  void set_op(std::string op, int number) {
    op_ = std::move(op);
    number_ = number;
  }

  // --- values from outside ---
  Tensor input(ScalarType dtype, const Dims& shape);
  // A constant of the context; null where Weights lacks it.
  const Tensor* constant(const std::string& key) const { return weights_->find(key); }
  Tensor literal(ScalarType dtype, const Dims& shape, const void* data);
  Tensor state(const std::string& key) const { return state_->tensor(key); }

  // --- layout ---
  // Contiguous: the value itself, a copy made once for constants, or a node that copies.
  Tensor contiguous(const Tensor& x);
  // As contiguous, but the memory belongs to this graph: never a constant, an input or state.
  Tensor copy(const Tensor& x);
  // `x` under another shape, copied where its strides do not allow that.
  Tensor view(const Tensor& x, const Dims& shape);
  Tensor cat(const std::vector<Tensor>& tensors, int dim);

  // --- float32 arithmetic ---
  // Among float32, float16 and bfloat16, to nearest even.
  Tensor cast(const Tensor& x, ScalarType dtype);
  Tensor unary(ggml_unary_op op, const Tensor& x);
  Tensor square(const Tensor& x);
  Tensor sqrt(const Tensor& x);
  Tensor log(const Tensor& x);
  Tensor sin(const Tensor& x);
  Tensor cos(const Tensor& x);
  // Broadcasts as PyTorch does.
  Tensor binary(Binary op, const Tensor& a, const Tensor& b);
  // x * factor + bias
  Tensor scale(const Tensor& x, float factor, float bias);
  // Over the last axis, without weight and bias.
  Tensor norm(const Tensor& x, float eps);
  Tensor rms_norm(const Tensor& x, float eps);
  // Over the last axis; `mask` (float32) is added before and broadcasts to x; rank at most 4.
  Tensor soft_max(const Tensor& x, const Tensor* mask, float scale);
  // Over the last axis, which becomes 1.
  Tensor sum_rows(const Tensor& x);

  // x @ w^T: w [..., N, K] (float32, or a 16-bit type), x [..., M, K] (float32, or w's type) -> float32 [..., M, N].
  // Batch axes broadcast.
  Tensor mul_mat(const Tensor& w, const Tensor& x);
  // float32 x [N, C, H, W] -> [N, OH, OW, C * KH * KW].
  Tensor im2col(const Tensor& x, const std::vector<int>& kernel, const std::vector<int>& stride,
                const std::vector<int>& padding, const std::vector<int>& dilation);
  // Depthwise: float32 x [N, C, H, W], w [C, 1, KH, KW] -> [N, C, OH, OW].
  Tensor conv_2d_depthwise(const Tensor& w, const Tensor& x, const std::vector<int>& stride,
                           const std::vector<int>& padding, const std::vector<int>& dilation);

  // --- indices ---
  // Indices of any integer type as int32 or int64, counted from 0 and within 0..size-1; the run fails where one is not.
  Tensor check_index(const Tensor& index, int axis, std::int64_t size, bool wide);
  // Lets the run fail where an index of any integer type is not within 0..size-1 (-size..size-1 with `negative`), and
  // that before state is written, unless the indices themselves come from a value that was written to it.
  void require_index(const Tensor& index, int axis, std::int64_t size, bool negative);
  // table [R, C] (float32 or a 16-bit type), checked int32 index -> [*index.shape, C] of the table's type.
  Tensor get_rows(const Tensor& table, const Tensor& index);
  // Writes rows of float32 `source` [.., T, D] at the checked int64 index [T] into `target` [.., S, D], a value whose
  // memory may be written; gives `target` as of then. Equal batch axes, at most 2.
  Tensor set_rows(const Tensor& target, const Tensor& source, const Tensor& index);

  // --- our own kernels ---
  // Throws where there is no such kernel or more than 9 inputs have elements.
  std::vector<Tensor> custom(const std::string& name, const std::vector<Tensor>& inputs,
                             const std::vector<OutputSpec>& outputs, std::vector<std::int64_t> ints,
                             std::vector<double> floats);
  // A kernel that updates its first input, whose memory may be written; gives that input as of then.
  Tensor custom_in_place(const std::string& name, const std::vector<Tensor>& inputs, std::vector<std::int64_t> ints,
                         std::vector<double> floats);

  // --- the end ---
  // Writes `value` to the memory of `target` (same type and shape, contiguous).
  void assign(const Tensor& target, const Tensor& value);
  // Keeps the memory of a contiguous value until the run is over.
  void keep(const Tensor& x);

  // --- what the executor takes over ---
  const std::vector<Tensor>& inputs() const { return inputs_; }
  const std::shared_ptr<Stream>& stream() const { return stream_; }
  double work() const { return work_; }
  std::size_t num_nodes() const { return order_.size(); }
  // The finished graph; call once.
  ggml_cgraph* finish();
  const std::vector<std::unique_ptr<CustomCall>>& custom_calls() const { return custom_; }
  // The number given to `set_op` before this node was appended; -1 where it belongs to none, or is a view.
  int number_of(const ggml_tensor* node) const;
  // Whether a node of the graph is one that computes; the others are views.
  bool is_appended(const ggml_tensor* node) const { return numbers_.count(node) > 0; }

 private:
  ggml_context* context();
  ggml_tensor* append(ggml_tensor* node, double work);
  ggml_tensor* make_view(ggml_tensor* storage, ggml_type type, const std::int64_t* ne, const std::size_t* nb,
                         std::int64_t offset);
  // Of at most 4 axes, as it is.
  ggml_tensor* raw(const Tensor& x);
  // Contiguous, as rows that ggml's threads can share; any rank.
  ggml_tensor* rows(const Tensor& x);
  // Contiguous rows along the last axis; any rank.
  ggml_tensor* last_axis_rows(const Tensor& x);
  Tensor unary_node(const Tensor& x, ggml_tensor* (*make)(ggml_context*, ggml_tensor*));
  Tensor as_rows_operand(const Tensor& x);
  std::vector<Tensor> append_custom(const kernels::KernelInfo& info, const std::vector<Tensor>& inputs,
                                    const std::vector<OutputSpec>& outputs, std::vector<std::int64_t> ints,
                                    std::vector<double> floats, const Tensor* in_place);
  bool depends_on_write(ggml_tensor* node) const;

  std::shared_ptr<Stream> stream_;
  std::shared_ptr<Weights> weights_;
  std::shared_ptr<State> state_;
  Weights literals_;
  std::vector<ContextPtr> contexts_;
  std::vector<Tensor> inputs_;
  std::vector<ggml_tensor*> order_;
  std::vector<ggml_tensor*> checks_;
  std::set<std::tuple<const ggml_tensor*, std::int64_t, Dims, Dims, int, std::int64_t, bool>> required_;
  std::unordered_set<const ggml_tensor*> writes_;  // nodes that write to the memory of an operand
  std::unordered_map<const ggml_tensor*, int> numbers_;
  std::vector<std::unique_ptr<CustomCall>> custom_;
  std::string op_;
  int number_ = -1;
  double work_ = 0;
};

}  // namespace ptn
