#include "builder.h"

#include <algorithm>
#include <stdexcept>

namespace ptn {
namespace {

constexpr std::size_t kTensorsPerContext = 512;

void require(bool condition, const char* text) {
  if (!condition) throw std::invalid_argument(text);
}

bool is_float(ScalarType dtype) {
  return dtype == ScalarType::kFloat || dtype == ScalarType::kHalf || dtype == ScalarType::kBFloat16;
}

Dims padded(const Dims& shape, std::size_t rank) {
  Dims out(rank - shape.size(), 1);
  out.insert(out.end(), shape.begin(), shape.end());
  return out;
}

Dims broadcast(const Dims& a, const Dims& b) {
  const std::size_t rank = std::max(a.size(), b.size());
  Dims left = padded(a, rank), right = padded(b, rank);
  for (std::size_t axis = 0; axis < rank; ++axis) {
    if (left[axis] == 1) left[axis] = right[axis];
    require(right[axis] == 1 || right[axis] == left[axis], "the shapes do not broadcast");
  }
  return left;
}

Tensor with_rank(const Tensor& x, std::size_t rank) {
  Tensor out = x;
  const std::size_t added = rank - x.shape.size();
  out.shape.insert(out.shape.begin(), added, 1);
  out.strides.insert(out.strides.begin(), added, 0);
  return out;
}

}  // namespace

Builder::Builder(std::shared_ptr<Stream> stream, std::shared_ptr<Weights> weights, std::shared_ptr<State> state)
    : stream_(std::move(stream)),
      weights_(std::move(weights)),
      state_(std::move(state)),
      literals_(stream_->device()) {}

ggml_context* Builder::context() {
  // No method makes more than a handful of tensors between two calls.
  constexpr std::size_t kReserve = 16;
  const std::size_t size = kTensorsPerContext * ggml_tensor_overhead();
  if (contexts_.empty() || ggml_used_mem(contexts_.back().get()) + kReserve * ggml_tensor_overhead() > size) {
    contexts_.push_back(new_context(kTensorsPerContext));
  }
  return contexts_.back().get();
}

ggml_tensor* Builder::append(ggml_tensor* node, double work) {
  order_.push_back(node);
  numbers_.emplace(node, number_);
  work_ += work;
  return node;
}

int Builder::number_of(const ggml_tensor* node) const {
  const auto found = numbers_.find(node);
  return found == numbers_.end() ? -1 : found->second;
}

// ---------------------------------------------------------------- values from outside

Tensor Builder::input(ScalarType dtype, const Dims& shape) {
  Tensor value = whole(nullptr, dtype, shape, Origin::kInput);
  if (value.numel() > 0) {
    value.storage = new_storage(context(), storage_type(dtype), shape);
    ggml_set_input(value.storage);
  }
  inputs_.push_back(value);
  return value;
}

Tensor Builder::literal(ScalarType dtype, const Dims& shape, const void* data) {
  const std::string key = "literal " + std::to_string(order_.size()) + "." + std::to_string(literals_.bytes_copied());
  literals_.add(key, dtype, shape, data, /*may_stay=*/false);
  return *literals_.find(key);
}

// ---------------------------------------------------------------- windows

ggml_tensor* Builder::make_view(ggml_tensor* storage, ggml_type type, const std::int64_t* ne, const std::size_t* nb,
                                std::int64_t offset) {
  const bool same = storage->type == type && offset == 0 && std::equal(ne, ne + GGML_MAX_DIMS, storage->ne) &&
                    std::equal(nb, nb + GGML_MAX_DIMS, storage->nb);
  if (same) return storage;
  // Of one element first: ggml has no view of another type, which several results in one node's memory need.
  ggml_tensor* view = ggml_view_1d(context(), storage, 1, static_cast<std::size_t>(offset));
  view->type = type;
  std::copy(ne, ne + GGML_MAX_DIMS, view->ne);
  std::copy(nb, nb + GGML_MAX_DIMS, view->nb);
  return view;
}

ggml_tensor* Builder::raw(const Tensor& x) {
  require(x.rank() <= GGML_MAX_DIMS, "ggml's operators take at most 4 axes");
  require(x.storage != nullptr && x.numel() > 0, "a tensor without elements has no ggml tensor");
  std::int64_t ne[GGML_MAX_DIMS] = {1, 1, 1, 1};
  std::size_t nb[GGML_MAX_DIMS];
  std::size_t next = x.item_size();
  for (int i = 0; i < GGML_MAX_DIMS; ++i) {
    const int axis = x.rank() - 1 - i;
    if (axis >= 0) ne[i] = x.shape[axis];
    // The stride of an axis of one element says nothing; ggml wants it as in a contiguous tensor.
    nb[i] = axis >= 0 && ne[i] != 1 ? static_cast<std::size_t>(x.strides[axis]) : next;
    next = nb[i] * static_cast<std::size_t>(ne[i]);
  }
  return make_view(x.storage, storage_type(x.dtype), ne, nb, x.offset);
}

ggml_tensor* Builder::rows(const Tensor& x) {
  constexpr std::int64_t kEnough = 256;
  require(x.numel() > 0, "this operator takes tensors with elements");
  std::int64_t inner = 1;
  int axis = x.rank() - 1;
  for (; axis >= 0 && inner < kEnough; --axis) inner *= x.shape[axis];
  return raw(*contiguous(x).view({x.numel() / inner, inner}));
}

ggml_tensor* Builder::last_axis_rows(const Tensor& x) {
  require(x.rank() > 0 && x.numel() > 0, "this operator takes tensors with elements and a last axis");
  const std::int64_t inner = x.shape.back();
  return raw(*contiguous(x).view({x.numel() / inner, inner}));
}

Tensor Builder::contiguous(const Tensor& x) {
  if (x.numel() == 0) return whole(nullptr, x.dtype, x.shape);
  if (x.is_contiguous()) {
    Tensor out = x;
    out.strides = contiguous_strides(x.shape, x.item_size());
    return out;
  }
  const std::size_t whole_size = ggml_nbytes(x.storage);
  if (x.origin == Origin::kConstant && x.nbytes() <= whole_size) {
    // A copy lives as long as what it was made of: literals go with this graph, and another may get their addresses.
    // So does a part of a weight, which may be another one for every input shape: kept, they would add up.
    const bool lasting = weights_->owns(x.storage) && x.nbytes() == whole_size;
    if (const Tensor* made = (lasting ? *weights_ : literals_).contiguous(x)) return *made;
  }
  return copy(x);
}

Tensor Builder::copy(const Tensor& x) {
  if (x.numel() == 0) return whole(nullptr, x.dtype, x.shape);
  Dims shape = x.shape;
  std::vector<Dims> strides{x.strides};
  coalesce(shape, strides);
  if (!stream_->is_cpu()) {
    require(shape.size() <= GGML_MAX_DIMS, "this device copies tensors of at most 4 axes");
    Tensor merged = x;
    merged.shape = shape;
    merged.strides = strides[0];
    ggml_tensor* node = append(ggml_cont(context(), raw(merged)), static_cast<double>(x.numel()));
    return whole(node, x.dtype, x.shape);
  }
  std::vector<std::int64_t> ints{x.offset, static_cast<std::int64_t>(shape.size())};
  ints.insert(ints.end(), shape.begin(), shape.end());
  ints.insert(ints.end(), strides[0].begin(), strides[0].end());
  Tensor all = whole(x.storage, ScalarType::kByte, {static_cast<std::int64_t>(ggml_nbytes(x.storage))});
  return append_custom(builtin::kCopyWindow, {all}, {{x.dtype, x.shape}}, std::move(ints), {}, nullptr)[0];
}

Tensor Builder::view(const Tensor& x, const Dims& shape) {
  if (auto window = x.view(shape)) return *window;
  return *contiguous(x).view(shape);
}

Tensor Builder::cat(const std::vector<Tensor>& tensors, int dim) {
  constexpr std::size_t kMost = GGML_MAX_SRC - 1;
  std::vector<Tensor> parts;
  for (const Tensor& x : tensors) {
    if (x.numel() > 0) parts.push_back(x);
  }
  require(!parts.empty(), "cat needs a tensor with elements");
  while (parts.size() > 1) {
    std::vector<Tensor> joined;
    for (std::size_t first = 0; first < parts.size(); first += kMost) {
      const std::size_t last = std::min(first + kMost, parts.size());
      std::vector<Tensor> group(parts.begin() + static_cast<std::ptrdiff_t>(first),
                                parts.begin() + static_cast<std::ptrdiff_t>(last));
      if (group.size() == 1) {
        joined.push_back(group[0]);
        continue;
      }
      Dims shape = group[0].shape;
      shape[dim] = 0;
      for (const Tensor& x : group) shape[dim] += x.shape[dim];
      std::int64_t outer = 1;
      for (int axis = 0; axis < dim; ++axis) outer *= shape[axis];
      joined.push_back(append_custom(builtin::kCat, group, {{group[0].dtype, shape}}, {outer}, {}, nullptr)[0]);
    }
    parts = std::move(joined);
  }
  return parts[0];
}

// ---------------------------------------------------------------- float32 arithmetic

Tensor Builder::cast(const Tensor& x, ScalarType dtype) {
  require(is_float(x.dtype) && is_float(dtype), "cast: only among float32, float16 and bfloat16");
  if (x.dtype == dtype) return x;
  if (x.numel() == 0) return whole(nullptr, dtype, x.shape);
  return whole(append(ggml_cast(context(), rows(x), storage_type(dtype)), static_cast<double>(x.numel())), dtype,
               x.shape);
}

Tensor Builder::unary_node(const Tensor& x, ggml_tensor* (*make)(ggml_context*, ggml_tensor*)) {
  require(x.dtype == ScalarType::kFloat, "this operator takes float32");
  return whole(append(make(context(), rows(x)), 4.0 * static_cast<double>(x.numel())), x.dtype, x.shape);
}

Tensor Builder::unary(ggml_unary_op op, const Tensor& x) {
  require(x.dtype == ScalarType::kFloat, "this operator takes float32");
  return whole(append(ggml_unary(context(), rows(x), op), 4.0 * static_cast<double>(x.numel())), x.dtype, x.shape);
}

Tensor Builder::square(const Tensor& x) { return unary_node(x, ggml_sqr); }
Tensor Builder::sqrt(const Tensor& x) { return unary_node(x, ggml_sqrt); }
Tensor Builder::log(const Tensor& x) { return unary_node(x, ggml_log); }
Tensor Builder::sin(const Tensor& x) { return unary_node(x, ggml_sin); }
Tensor Builder::cos(const Tensor& x) { return unary_node(x, ggml_cos); }

Tensor Builder::scale(const Tensor& x, float factor, float bias) {
  require(x.dtype == ScalarType::kFloat, "scale takes float32");
  return whole(append(ggml_scale_bias(context(), rows(x), factor, bias), static_cast<double>(x.numel())), x.dtype,
               x.shape);
}

Tensor Builder::binary(Binary op, const Tensor& left, const Tensor& right) {
  require(left.dtype == ScalarType::kFloat && right.dtype == ScalarType::kFloat, "arithmetic takes float32");
  const Dims shape = broadcast(left.shape, right.shape);
  const bool commutes = op == Binary::kAdd || op == Binary::kMul;
  Tensor a = with_rank(left, shape.size());
  Tensor b = with_rank(right, shape.size());
  if (a.shape != shape && b.shape == shape && commutes) std::swap(a, b);
  a = contiguous(a.expand(shape));
  // ggml repeats its second operand: the fewest axes that describe both, an axis of size 1 where it repeats.
  b = contiguous(b).expand(shape);
  Dims merged = shape;
  std::vector<Dims> strides{a.strides, b.strides};
  coalesce(merged, strides);
  if (merged.size() > GGML_MAX_DIMS) {
    b = contiguous(b);
    merged = shape;
    strides = {a.strides, b.strides};
    coalesce(merged, strides);
  }
  ggml_tensor* first = nullptr;
  ggml_tensor* second = nullptr;
  if (merged.size() <= 1 && (merged.empty() || strides[1][0] != 0)) {
    first = rows(a);
    second = rows(b);
  } else {
    a.shape = b.shape = merged;
    a.strides = strides[0];
    b.strides = strides[1];
    for (std::size_t axis = 0; axis < merged.size(); ++axis) {
      if (strides[1][axis] == 0) b.shape[axis] = 1;
    }
    first = raw(a);
    second = raw(b);
  }
  ggml_tensor* node = nullptr;
  switch (op) {
    case Binary::kAdd:
      node = ggml_add(context(), first, second);
      break;
    case Binary::kSub:
      node = ggml_sub(context(), first, second);
      break;
    case Binary::kMul:
      node = ggml_mul(context(), first, second);
      break;
    case Binary::kDiv:
      node = ggml_div(context(), first, second);
      break;
  }
  Tensor out = whole(nullptr, ScalarType::kFloat, shape);
  out.storage = append(node, static_cast<double>(out.numel()));
  return out;
}

Tensor Builder::norm(const Tensor& x, float eps) {
  require(x.dtype == ScalarType::kFloat, "norm takes float32");
  return whole(append(ggml_norm(context(), last_axis_rows(x), eps), 4.0 * static_cast<double>(x.numel())), x.dtype,
               x.shape);
}

Tensor Builder::rms_norm(const Tensor& x, float eps) {
  require(x.dtype == ScalarType::kFloat, "rms_norm takes float32");
  return whole(append(ggml_rms_norm(context(), last_axis_rows(x), eps), 4.0 * static_cast<double>(x.numel())), x.dtype,
               x.shape);
}

Tensor Builder::soft_max(const Tensor& x, const Tensor* mask, float scale) {
  require(x.dtype == ScalarType::kFloat, "soft_max takes float32");
  const double work = 8.0 * static_cast<double>(x.numel());
  if (mask == nullptr) {
    return whole(append(ggml_soft_max_ext(context(), last_axis_rows(x), nullptr, scale, 0.0F), work), x.dtype, x.shape);
  }
  require(x.rank() >= 2 && x.rank() <= GGML_MAX_DIMS && mask->dtype == ScalarType::kFloat,
          "a masked soft_max takes 2 to 4 axes and a float32 mask");
  Tensor bias = with_rank(*mask, x.shape.size());
  Dims wanted = bias.shape;  // ggml repeats the batch axes of a mask, not its rows and columns
  for (std::size_t axis = x.shape.size() - 2; axis < x.shape.size(); ++axis) wanted[axis] = x.shape[axis];
  bias = contiguous(bias.expand(wanted));
  for (std::size_t axis = 0; axis + 2 < x.shape.size(); ++axis) {
    require(wanted[axis] == 1 || wanted[axis] == x.shape[axis], "the mask does not broadcast to the scores");
  }
  ggml_tensor* scores = raw(contiguous(x));
  return whole(append(ggml_soft_max_ext(context(), scores, raw(bias), scale, 0.0F), work), x.dtype, x.shape);
}

Tensor Builder::sum_rows(const Tensor& x) {
  require(x.dtype == ScalarType::kFloat, "sum_rows takes float32");
  Dims shape = x.shape;
  shape.back() = 1;
  return whole(append(ggml_sum_rows(context(), last_axis_rows(x)), static_cast<double>(x.numel())), x.dtype, shape);
}

// ---------------------------------------------------------------- products

Tensor Builder::as_rows_operand(const Tensor& x) {
  const int rank = x.rank();
  const auto item = static_cast<std::int64_t>(x.item_size());
  const std::int64_t columns = x.shape[rank - 1];
  const bool inner = columns == 1 || x.strides[rank - 1] == item;
  const bool outer = x.shape[rank - 2] == 1 || x.strides[rank - 2] >= item * columns;
  const bool forward = std::all_of(x.strides.begin(), x.strides.end(), [](std::int64_t step) { return step >= 0; });
  return inner && outer && forward ? x : contiguous(x);
}

Tensor Builder::mul_mat(const Tensor& weight, const Tensor& input) {
  require(weight.rank() >= 2 && input.rank() >= 2, "mul_mat takes matrices");
  require(is_float(weight.dtype) && (input.dtype == ScalarType::kFloat || input.dtype == weight.dtype),
          "mul_mat takes float32 (or both of one 16-bit type)");
  require(weight.shape.back() == input.shape.back(), "mul_mat: the inner sizes differ");
  Tensor w = as_rows_operand(weight), x = as_rows_operand(input);
  const std::int64_t k = x.shape.back(), m = x.shape[x.rank() - 2], n = w.shape[w.rank() - 2];
  Dims batch = broadcast(Dims(w.shape.begin(), w.shape.end() - 2), Dims(x.shape.begin(), x.shape.end() - 2));
  Dims shape = batch;
  shape.insert(shape.end(), {m, n});
  std::int64_t count = 1;
  for (std::int64_t size : batch) count *= size;

  const bool shared = w.rank() == 2 || w.numel() == n * k;
  if (shared && x.numel() == count * m * k) {  // one matrix for every batch: all rows at once
    w = view(w, {n, k});
    x = as_rows_operand(view(x, {count * m, k}));
  } else {
    Dims full = batch;
    full.insert(full.end(), {m, k});
    x = x.expand(full);
    bool repeated = false;  // here, or by an expand of the caller's
    for (std::size_t axis = 0; axis < batch.size(); ++axis) {
      repeated = repeated || (full[axis] > 1 && x.strides[axis] == 0);
    }
    if (repeated) x = contiguous(x);  // ggml repeats only the weights
    full[full.size() - 2] = n;
    w = w.expand(full);
    Dims merged = batch;
    std::vector<Dims> strides{Dims(x.strides.begin(), x.strides.end() - 2),
                              Dims(w.strides.begin(), w.strides.end() - 2)};
    coalesce(merged, strides);
    if (merged.size() > 2) {
      x = contiguous(x);
      w = contiguous(w);
      merged = {count};
      strides = {{m * k * static_cast<std::int64_t>(x.item_size())},
                 {n * k * static_cast<std::int64_t>(w.item_size())}};
    }
    auto regroup = [&](Tensor& t, const Dims& batch_strides, std::int64_t rows_count) {
      Dims sizes = merged, steps = batch_strides;
      for (std::size_t axis = 0; axis < merged.size(); ++axis) {
        if (steps[axis] == 0) sizes[axis] = 1;
      }
      sizes.insert(sizes.end(), {rows_count, k});
      steps.insert(steps.end(), {t.strides[t.rank() - 2], t.strides[t.rank() - 1]});
      t.shape = std::move(sizes);
      t.strides = std::move(steps);
    };
    regroup(x, strides[0], m);
    regroup(w, strides[1], n);
  }
  ggml_tensor* node = ggml_mul_mat(context(), raw(w), raw(x));
  append(node,
         2.0 * static_cast<double>(count) * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k));
  return whole(node, ScalarType::kFloat, shape);
}

Tensor Builder::im2col(const Tensor& x, const std::vector<int>& kernel, const std::vector<int>& stride,
                       const std::vector<int>& padding, const std::vector<int>& dilation) {
  require(x.rank() == 4 && x.dtype == ScalarType::kFloat, "im2col takes float32 [N, C, H, W]");
  // Only the kernel's sizes matter to ggml.
  ggml_tensor* sizes = ggml_new_tensor_4d(context(), GGML_TYPE_F32, kernel[1], kernel[0], x.shape[1], 1);
  ggml_tensor* node = ggml_im2col(context(), sizes, raw(contiguous(x)), stride[1], stride[0], padding[1], padding[0],
                                  dilation[1], dilation[0], true, GGML_TYPE_F32);
  append(node, static_cast<double>(ggml_nelements(node)));
  return whole(node, ScalarType::kFloat, {node->ne[3], node->ne[2], node->ne[1], node->ne[0]});
}

Tensor Builder::conv_2d_depthwise(const Tensor& w, const Tensor& x, const std::vector<int>& stride,
                                  const std::vector<int>& padding, const std::vector<int>& dilation) {
  require(x.rank() == 4 && w.rank() == 4 && x.dtype == ScalarType::kFloat && w.dtype == ScalarType::kFloat,
          "a depthwise convolution takes float32 of 4 axes");
  require(w.shape[0] == x.shape[1] && w.shape[1] == 1, "a depthwise convolution has one filter per channel");
  ggml_tensor* node = ggml_conv_2d_dw_direct(context(), raw(contiguous(w)), raw(contiguous(x)), stride[1], stride[0],
                                             padding[1], padding[0], dilation[1], dilation[0]);
  append(node, 2.0 * static_cast<double>(ggml_nelements(node)) * static_cast<double>(w.shape[2] * w.shape[3]));
  return whole(node, ScalarType::kFloat, {node->ne[3], node->ne[2], node->ne[1], node->ne[0]});
}

// ---------------------------------------------------------------- indices

Tensor Builder::check_index(const Tensor& index, int axis, std::int64_t size, bool wide) {
  const ScalarType dtype = wide ? ScalarType::kLong : ScalarType::kInt;
  require(wide || size <= INT32_MAX, "the axis is too long for int32 indices");
  Tensor out = append_custom(builtin::kCheckIndex, {index}, {{dtype, index.shape}}, {axis, size}, {}, nullptr)[0];
  if (out.storage != nullptr) checks_.push_back(out.storage);
  return out;
}

void Builder::require_index(const Tensor& index, int axis, std::int64_t size, bool negative) {
  if (index.numel() == 0) return;
  if (!required_.emplace(index.storage, index.offset, index.shape, index.strides, axis, size, negative).second) return;
  const OutputSpec nothing{ScalarType::kByte, {1}};  // a node has a result
  Tensor out = append_custom(builtin::kRequireIndex, {index}, {nothing}, {axis, size, negative}, {}, nullptr)[0];
  checks_.push_back(out.storage);
}

Tensor Builder::get_rows(const Tensor& table, const Tensor& index) {
  require(table.rank() == 2 && is_float(table.dtype) && index.dtype == ScalarType::kInt,
          "get_rows takes a float table [R, C] and int32 indices");
  Tensor rows_of = as_rows_operand(table);
  Tensor flat = view(contiguous(index), {index.numel()});
  Dims shape = index.shape;
  shape.push_back(table.shape[1]);
  ggml_tensor* node = ggml_get_rows(context(), raw(rows_of), raw(flat));
  Tensor out = whole(append(node, static_cast<double>(flat.numel() * table.shape[1])), ScalarType::kFloat, shape);
  return cast(out, table.dtype);
}

Tensor Builder::set_rows(const Tensor& target, const Tensor& source, const Tensor& index) {
  require(target.rank() >= 2 && target.rank() <= 4 && target.rank() == source.rank() && target.is_contiguous(),
          "set_rows takes contiguous tensors of 2 to 4 axes");
  require(is_float(target.dtype) && source.dtype == ScalarType::kFloat && index.dtype == ScalarType::kLong &&
              index.rank() == 1,
          "set_rows takes float32 rows and int64 indices");
  require(source.shape[source.rank() - 2] == index.shape[0] && source.shape.back() == target.shape.back(),
          "set_rows: one index per row, rows of equal length");
  ggml_tensor* node = ggml_set_rows(context(), raw(target), raw(as_rows_operand(source)), raw(contiguous(index)));
  Tensor out = target;
  out.storage = append(node, static_cast<double>(source.numel()));
  writes_.insert(node);
  out.offset = 0;  // the node is a view that starts where the target does
  return out;
}

// ---------------------------------------------------------------- our own kernels

std::vector<Tensor> Builder::custom(const std::string& name, const std::vector<Tensor>& inputs,
                                    const std::vector<OutputSpec>& outputs, std::vector<std::int64_t> ints,
                                    std::vector<double> floats) {
  const kernels::KernelInfo* info = kernels::find_kernel(name);
  if (info == nullptr) throw std::invalid_argument("there is no kernel '" + name + "'");
  return append_custom(*info, inputs, outputs, std::move(ints), std::move(floats), nullptr);
}

Tensor Builder::custom_in_place(const std::string& name, const std::vector<Tensor>& inputs,
                                std::vector<std::int64_t> ints, std::vector<double> floats) {
  const kernels::KernelInfo* info = kernels::find_kernel(name);
  if (info == nullptr) throw std::invalid_argument("there is no kernel '" + name + "'");
  require(info->in_place, "this kernel cannot work in place");
  require(!inputs.empty() && inputs[0].is_contiguous(), "a kernel works in place on a contiguous tensor");
  const OutputSpec spec{inputs[0].dtype, inputs[0].shape};
  return append_custom(*info, inputs, {spec}, std::move(ints), std::move(floats), &inputs[0])[0];
}

std::vector<Tensor> Builder::append_custom(const kernels::KernelInfo& info, const std::vector<Tensor>& inputs,
                                           const std::vector<OutputSpec>& outputs, std::vector<std::int64_t> ints,
                                           std::vector<double> floats, const Tensor* in_place) {
  constexpr std::size_t kAlignment = 64;
  require(stream_->is_cpu(), "kernels of our own run on the CPU only");
  auto call = std::make_unique<CustomCall>();
  call->info = &info;
  call->op = op_;
  call->ints = std::move(ints);
  call->floats = std::move(floats);
  std::vector<ggml_tensor*> sources;
  double work = 0;
  for (const Tensor& input : inputs) {
    Tensor flat = contiguous(input);
    call->inputs.push_back({nullptr, flat.dtype, kernels::Shape(flat.shape.data(), flat.rank())});
    if (flat.storage == nullptr) {
      call->sources.push_back(-1);
      continue;
    }
    Tensor line = flat;
    line.shape = {flat.numel()};
    line.strides = {static_cast<std::int64_t>(flat.item_size())};
    call->sources.push_back(static_cast<int>(sources.size()));
    sources.push_back(raw(line));
    work += static_cast<double>(flat.numel());
  }
  require(sources.size() < GGML_MAX_SRC, "a kernel takes at most 9 tensors");

  std::size_t size = 0;
  std::vector<Tensor> results;
  for (const OutputSpec& spec : outputs) {
    Tensor value = whole(nullptr, spec.dtype, spec.shape);
    size = (size + kAlignment - 1) / kAlignment * kAlignment;
    call->output_offsets.push_back(size);
    call->outputs.push_back({nullptr, spec.dtype, kernels::Shape(spec.shape.data(), value.rank())});
    value.offset = static_cast<std::int64_t>(size);
    size += value.nbytes();
    work += static_cast<double>(value.numel());
    results.push_back(std::move(value));
  }
  require(size > 0, "a kernel has a result with elements");

  ggml_tensor* node = nullptr;
  if (in_place != nullptr) {
    // ggml puts the tensor that is written before the others.
    node = ggml_custom_inplace(context(), sources[0], sources.data() + 1, static_cast<int>(sources.size()) - 1,
                               run_custom, GGML_N_TASKS_MAX, call.get());
    results[0].origin = in_place->origin;
    writes_.insert(node);
  } else {
    const bool one = outputs.size() == 1;
    const ggml_type type = one ? storage_type(outputs[0].dtype) : GGML_TYPE_I8;
    const std::int64_t length = one ? results[0].numel() : static_cast<std::int64_t>(size);
    node = ggml_custom_4d(context(), type, length, 1, 1, 1, sources.data(), static_cast<int>(sources.size()),
                          run_custom, info.max_threads == 1 ? 1 : GGML_N_TASKS_MAX, call.get());
  }
  call->node = node;
  append(node, work);
  for (Tensor& result : results) {
    if (result.numel() > 0) result.storage = node;
  }
  custom_.push_back(std::move(call));
  return results;
}

// ---------------------------------------------------------------- the end

void Builder::assign(const Tensor& target, const Tensor& value) {
  if (target.storage == nullptr) return;
  require(target.is_contiguous() && target.shape == value.shape && target.dtype == value.dtype,
          "assign takes tensors of one type and shape");
  Tensor from = contiguous(value), to = target;
  from.shape = to.shape = {value.numel()};
  from.strides = to.strides = {static_cast<std::int64_t>(value.item_size())};
  append(ggml_cpy(context(), raw(from), raw(to)), static_cast<double>(value.numel()));
}

void Builder::keep(const Tensor& x) {
  if (x.storage != nullptr) ggml_set_output(x.storage);
}

bool Builder::depends_on_write(ggml_tensor* node) const {
  std::vector<ggml_tensor*> todo{node};
  std::unordered_set<ggml_tensor*> seen;
  while (!todo.empty()) {
    ggml_tensor* tensor = todo.back();
    todo.pop_back();
    if (tensor == nullptr || !seen.insert(tensor).second) continue;
    if (writes_.count(tensor) > 0) return true;
    todo.push_back(tensor->view_src);
    todo.insert(todo.end(), tensor->src, tensor->src + GGML_MAX_SRC);
  }
  return false;
}

ggml_cgraph* Builder::finish() {
  std::size_t size = inputs_.size() + 64;
  for (const ContextPtr& context : contexts_) {
    for (ggml_tensor* t = ggml_get_first_tensor(context.get()); t != nullptr;
         t = ggml_get_next_tensor(context.get(), t)) {
      size += 1 + GGML_MAX_SRC / 2;
    }
  }
  ggml_init_params params{};
  params.mem_size = ggml_graph_overhead_custom(size, false) + 1024;
  params.no_alloc = true;
  contexts_.emplace_back(ggml_init(params));
  ggml_cgraph* graph = ggml_new_graph_custom(contexts_.back().get(), size, false);
  // Checks come first: a run that fails has not touched the state. What they are made of may read the state, since it
  // is not written before; what reads a written value stays behind the write.
  for (ggml_tensor* check : checks_) {
    if (!depends_on_write(check)) ggml_build_forward_expand(graph, check);
  }
  for (ggml_tensor* node : order_) ggml_build_forward_expand(graph, node);
  return graph;
}

}  // namespace ptn
