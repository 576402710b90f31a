// Element-wise kernels: `elementwise.<op>`.
//
// Operands are tensors that broadcast to the output's shape, of any dtype, and scalars. ints: [computed dtype (half
// types compute as float), mask with bit i set where operand i is a scalar, scalars of integer and bool computations in
// order]; floats: [scalars of floating-point computations in order]. Inputs convert to the computed dtype and results
// to the output's, both as PyTorch converts.
// `elementwise.where` computes with its second and third operand; its first is the condition, a bool tensor.
#include "elementwise.h"

#include "elementwise_ops.h"
#include "families.h"

namespace ptn::kernels {
namespace {

enum Types : unsigned { kBools = 1, kIntegers = 2, kFloats = 4, kDiscrete = 3, kNumbers = 6, kEverything = 7 };

template <typename C>
constexpr unsigned class_of() {
  return std::is_same_v<C, bool> ? kBools : std::is_floating_point_v<C> ? kFloats : kIntegers;
}

template <typename Op, typename = void>
struct HasLimit : std::false_type {};
template <typename Op>
struct HasLimit<Op, std::void_t<decltype(Op::kLimit)>> : std::true_type {};

// Whether all arguments are within the range of an operator's vectorisable form; NaN is.
inline bool within(const float* x, std::int64_t count, float limit) {
  bool beyond = false;
  for (std::int64_t i = 0; i < count; ++i) beyond |= std::fabs(x[i]) > limit;
  return !beyond;
}

// Powers of positive finite numbers to finite ones: there exp(b log(a)) holds without exceptions.
inline bool all_positive(const float* a, const float* b, std::int64_t count) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  bool other = false;
  for (std::int64_t i = 0; i < count; ++i) {
    other |= !(a[i] > 0.0F) | !(a[i] < infinity) | !(std::fabs(b[i]) < infinity);
  }
  return !other;
}

template <typename Op, int kArity, typename C>
void loop(const void* const* operands, void* result, std::int64_t count) {
  const Op op{};
  const C* a = static_cast<const C*>(operands[0]);
  const C* b = static_cast<const C*>(operands[kArity > 1 ? 1 : 0]);
  const C* c = static_cast<const C*>(operands[kArity > 2 ? 2 : 0]);
  const C* d = static_cast<const C*>(operands[kArity > 3 ? 3 : 0]);
  if constexpr (HasLimit<Op>::value && std::is_same_v<C, float>) {
    if (!within(a, count, Op::kLimit)) {
      float* out = static_cast<float*>(result);
      for (std::int64_t i = 0; i < count; ++i) out[i] = Op::beyond(a[i]);
      return;
    }
  }
  if constexpr (std::is_same_v<Op, ops::Pow> && std::is_same_v<C, float>) {
    if (all_positive(a, b, count)) {
      float* out = static_cast<float*>(result);
#pragma GCC ivdep
      for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(fast::exp(fast::log_positive(a[i]) * b[i]));
      return;
    }
  }
  // The result may be the memory of an operand, element for element, which ivdep allows.
  if constexpr (kArity == 1) {
    auto* out = static_cast<decltype(op(*a))*>(result);
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) out[i] = op(a[i]);
  } else if constexpr (kArity == 2) {
    auto* out = static_cast<decltype(op(*a, *b))*>(result);
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) out[i] = op(a[i], b[i]);
  } else if constexpr (kArity == 3) {
    auto* out = static_cast<decltype(op(*a, *b, *c))*>(result);
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) out[i] = op(a[i], b[i], c[i]);
  } else {
    auto* out = static_cast<decltype(op(*a, *b, *c, *d))*>(result);
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) out[i] = op(a[i], b[i], c[i], d[i]);
  }
}

template <typename Op, int kArity, typename C>
constexpr bool gives_bool() {
  if constexpr (kArity == 1) return std::is_same_v<decltype(Op{}(C{})), bool>;
  if constexpr (kArity == 2) return std::is_same_v<decltype(Op{}(C{}, C{})), bool>;
  return std::is_same_v<C, bool>;
}

template <typename Op, int kArity, unsigned kTypes, int kCost>
void elementwise(const KernelCall& call, int thread, int threads) {
  Parameters parameters(call);
  const ScalarType computed = compute_dtype(static_cast<ScalarType>(parameters.next_int()));
  const std::int64_t mask = parameters.next_int();
  ElementwisePlan plan;
  plan.num_operands = kArity;
  plan.cost = kCost;
  std::fill_n(plan.operands, kArity, computed);
  dispatch_compute(computed, [&](auto tag) {
    using C = typename decltype(tag)::type;
    if constexpr ((class_of<C>() & kTypes) != 0) {
      plan.loop = loop<Op, kArity, C>;
      plan.result = gives_bool<Op, kArity, C>() ? ScalarType::kBool : computed;
    }
  });
  if (plan.loop == nullptr) throw_dtype("this operator", computed);
  run_elementwise(call, plan, mask, 2, 0, thread, threads);
}

template <typename T>
void where_loop(const void* const* operands, void* result, std::int64_t count) {
  const std::uint8_t* condition = static_cast<const std::uint8_t*>(operands[0]);
  const T* a = static_cast<const T*>(operands[1]);
  const T* b = static_cast<const T*>(operands[2]);
  T* out = static_cast<T*>(result);
#pragma GCC ivdep
  for (std::int64_t i = 0; i < count; ++i) out[i] = condition[i] ? a[i] : b[i];
}

void where(const KernelCall& call, int thread, int threads) {
  Parameters parameters(call);
  const ScalarType computed = compute_dtype(static_cast<ScalarType>(parameters.next_int()));
  const std::int64_t mask = parameters.next_int();
  ElementwisePlan plan;
  plan.num_operands = 3;
  plan.operands[0] = ScalarType::kBool;
  plan.operands[1] = plan.operands[2] = plan.result = computed;
  plan.loop = dispatch_size(computed, [](auto tag) -> Loop { return where_loop<typename decltype(tag)::type>; });
  run_elementwise(call, plan, mask, 2, 0, thread, threads);
}

constexpr int kSlow = 16;

#define PTN_KERNEL(NAME, OP, ARITY, TYPES, COST) \
  {"elementwise." NAME, elementwise<ops::OP, ARITY, TYPES, COST>, true, kAnyThreads}

constexpr KernelInfo kKernels[] = {
    PTN_KERNEL("copy", Copy, 1, kEverything, 1),
    PTN_KERNEL("abs", Abs, 1, kEverything, 1),
    PTN_KERNEL("neg", Neg, 1, kNumbers, 1),
    PTN_KERNEL("sign", Sign, 1, kEverything, 1),
    PTN_KERNEL("square", Square, 1, kEverything, 1),
    PTN_KERNEL("bitwise_not", BitwiseNot, 1, kDiscrete, 1),
    PTN_KERNEL("relu", Relu, 1, kNumbers, 1),
    PTN_KERNEL("ceil", Ceil, 1, kFloats, 1),
    PTN_KERNEL("floor", Floor, 1, kFloats, 1),
    PTN_KERNEL("trunc", Trunc, 1, kFloats, 1),
    PTN_KERNEL("frac", Frac, 1, kFloats, 1),
    PTN_KERNEL("round", Round, 1, kFloats, 1),
    PTN_KERNEL("exp", Exp, 1, kFloats, kSlow),
    PTN_KERNEL("exp2", Exp2, 1, kFloats, kSlow),
    PTN_KERNEL("expm1", Expm1, 1, kFloats, kSlow),
    PTN_KERNEL("log", Log, 1, kFloats, kSlow),
    PTN_KERNEL("log2", Log2, 1, kFloats, kSlow),
    PTN_KERNEL("log10", Log10, 1, kFloats, kSlow),
    PTN_KERNEL("log1p", Log1p, 1, kFloats, kSlow),
    PTN_KERNEL("sqrt", Sqrt, 1, kFloats, 2),
    PTN_KERNEL("rsqrt", Rsqrt, 1, kFloats, 2),
    PTN_KERNEL("reciprocal", Reciprocal, 1, kFloats, 2),
    PTN_KERNEL("sin", Sin, 1, kFloats, kSlow),
    PTN_KERNEL("cos", Cos, 1, kFloats, kSlow),
    PTN_KERNEL("tan", Tan, 1, kFloats, kSlow),
    PTN_KERNEL("asin", Asin, 1, kFloats, kSlow),
    PTN_KERNEL("acos", Acos, 1, kFloats, kSlow),
    PTN_KERNEL("atan", Atan, 1, kFloats, kSlow),
    PTN_KERNEL("sinh", Sinh, 1, kFloats, kSlow),
    PTN_KERNEL("cosh", Cosh, 1, kFloats, kSlow),
    PTN_KERNEL("tanh", Tanh, 1, kFloats, kSlow),
    PTN_KERNEL("asinh", Asinh, 1, kFloats, kSlow),
    PTN_KERNEL("acosh", Acosh, 1, kFloats, kSlow),
    PTN_KERNEL("atanh", Atanh, 1, kFloats, kSlow),
    PTN_KERNEL("erf", Erf, 1, kFloats, kSlow),
    PTN_KERNEL("erfc", Erfc, 1, kFloats, kSlow),
    PTN_KERNEL("erfinv", Erfinv, 1, kFloats, 4 * kSlow),
    PTN_KERNEL("lgamma", Lgamma, 1, kFloats, kSlow),
    PTN_KERNEL("digamma", Digamma, 1, kFloats, 2 * kSlow),
    PTN_KERNEL("sigmoid", Sigmoid, 1, kFloats, kSlow),
    PTN_KERNEL("silu", Silu, 1, kFloats, kSlow),
    PTN_KERNEL("gelu", Gelu, 1, kFloats, kSlow),
    PTN_KERNEL("gelu_tanh", GeluTanh, 1, kFloats, kSlow),
    PTN_KERNEL("log_sigmoid", LogSigmoid, 1, kFloats, kSlow),
    PTN_KERNEL("mish", Mish, 1, kFloats, 2 * kSlow),
    PTN_KERNEL("hardsigmoid", Hardsigmoid, 1, kFloats, 2),
    PTN_KERNEL("hardswish", Hardswish, 1, kFloats, 2),
    PTN_KERNEL("logical_not", LogicalNot, 1, kEverything, 1),
    PTN_KERNEL("isnan", IsNan, 1, kEverything, 1),
    PTN_KERNEL("isinf", IsInf, 1, kEverything, 1),
    PTN_KERNEL("isfinite", IsFinite, 1, kEverything, 1),
    PTN_KERNEL("isposinf", IsPosInf, 1, kEverything, 1),
    PTN_KERNEL("isneginf", IsNegInf, 1, kEverything, 1),
    PTN_KERNEL("signbit", Signbit, 1, kEverything, 1),
    PTN_KERNEL("add", Add, 2, kEverything, 1),
    PTN_KERNEL("sub", Sub, 2, kNumbers, 1),
    PTN_KERNEL("mul", Mul, 2, kEverything, 1),
    PTN_KERNEL("div", Div, 2, kFloats, 1),
    PTN_KERNEL("div_trunc", DivTrunc, 2, kNumbers, 4),
    PTN_KERNEL("div_floor", DivFloor, 2, kNumbers, 8),
    PTN_KERNEL("fmod", Fmod, 2, kNumbers, 8),
    PTN_KERNEL("remainder", Remainder, 2, kNumbers, 8),
    PTN_KERNEL("pow", Pow, 2, kNumbers, 2 * kSlow),
    PTN_KERNEL("maximum", Maximum, 2, kEverything, 1),
    PTN_KERNEL("minimum", Minimum, 2, kEverything, 1),
    PTN_KERNEL("fmax", Fmax, 2, kEverything, 1),
    PTN_KERNEL("fmin", Fmin, 2, kEverything, 1),
    PTN_KERNEL("atan2", Atan2, 2, kFloats, 2 * kSlow),
    PTN_KERNEL("hypot", Hypot, 2, kFloats, kSlow),
    PTN_KERNEL("copysign", Copysign, 2, kFloats, 1),
    PTN_KERNEL("nextafter", Nextafter, 2, kFloats, kSlow),
    PTN_KERNEL("xlogy", Xlogy, 2, kFloats, kSlow),
    PTN_KERNEL("logaddexp", LogAddExp, 2, kFloats, 2 * kSlow),
    PTN_KERNEL("heaviside", Heaviside, 2, kEverything, 1),
    PTN_KERNEL("leaky_relu", LeakyRelu, 2, kFloats, 1),
    PTN_KERNEL("bitwise_and", BitwiseAnd, 2, kDiscrete, 1),
    PTN_KERNEL("bitwise_or", BitwiseOr, 2, kDiscrete, 1),
    PTN_KERNEL("bitwise_xor", BitwiseXor, 2, kDiscrete, 1),
    PTN_KERNEL("shift_left", ShiftLeft, 2, kIntegers, 1),
    PTN_KERNEL("shift_right", ShiftRight, 2, kIntegers, 1),
    PTN_KERNEL("gcd", Gcd, 2, kIntegers, 4 * kSlow),
    PTN_KERNEL("hardshrink", Hardshrink, 2, kFloats, 1),
    PTN_KERNEL("softshrink", Softshrink, 2, kFloats, 1),
    PTN_KERNEL("round_decimals", RoundDecimals, 2, kFloats, 2),
    PTN_KERNEL("logit", Logit, 2, kFloats, kSlow),
    PTN_KERNEL("eq", Eq, 2, kEverything, 1),
    PTN_KERNEL("ne", Ne, 2, kEverything, 1),
    PTN_KERNEL("lt", Lt, 2, kEverything, 1),
    PTN_KERNEL("le", Le, 2, kEverything, 1),
    PTN_KERNEL("gt", Gt, 2, kEverything, 1),
    PTN_KERNEL("ge", Ge, 2, kEverything, 1),
    PTN_KERNEL("logical_and", LogicalAnd, 2, kEverything, 1),
    PTN_KERNEL("logical_or", LogicalOr, 2, kEverything, 1),
    PTN_KERNEL("logical_xor", LogicalXor, 2, kEverything, 1),
    PTN_KERNEL("add_scaled", AddScaled, 3, kEverything, 1),
    PTN_KERNEL("sub_scaled", SubScaled, 3, kNumbers, 1),
    PTN_KERNEL("clamp", Clamp, 3, kNumbers, 1),
    PTN_KERNEL("addcmul", AddCmul, 4, kNumbers, 1),
    PTN_KERNEL("addcdiv", AddCdiv, 4, kFloats, 2),
    PTN_KERNEL("lerp", Lerp, 3, kFloats, 2),
    PTN_KERNEL("elu", Elu, 4, kFloats, kSlow),
    PTN_KERNEL("softplus", Softplus, 3, kFloats, 2 * kSlow),
    PTN_KERNEL("threshold", Threshold, 3, kNumbers, 1),
    PTN_KERNEL("nan_to_num", NanToNum, 4, kFloats, 1),
    {"elementwise.where", where, false, kAnyThreads},
};

#undef PTN_KERNEL

}  // namespace

KernelList elementwise_kernels() { return make_list(kKernels); }

}  // namespace ptn::kernels
