// Conversion of any dtype to any other, as PyTorch's `to`.
#include "families.h"
#include "support.h"

namespace ptn::kernels {
namespace {

template <typename From, typename To>
void convert_run(const void* from, void* to, std::int64_t count) {
  if constexpr (std::is_same_v<From, To>) {
    if (from != to && count > 0) std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(From));
  } else {
    const From* __restrict source = static_cast<const From*>(from);
    To* __restrict target = static_cast<To*>(to);
    for (std::int64_t i = 0; i < count; ++i) target[i] = convert<To>(source[i]);
  }
}

template <typename F>
decltype(auto) dispatch_all(ScalarType dtype, F&& function) {
  if (dtype == ScalarType::kHalf) return function(TypeTag<Half>{});
  if (dtype == ScalarType::kBFloat16) return function(TypeTag<BFloat16>{});
  return dispatch_compute(dtype, function);
}

// cast.to: inputs [x], outputs [y of any dtype, same number of elements].
void cast(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 1, 1);
  const TensorView& from = call.inputs[0];
  const TensorView& to = call.outputs[0];
  const Range range = share(to.numel(), 1, thread, threads);
  if (range.empty()) return;
  convert_function(from.dtype, to.dtype)(at(from, range.begin), at_mutable(to, range.begin), range.end - range.begin);
}

// cast.view_dtype: the same bytes read as another dtype of the same size.
void view_dtype(const KernelCall& call, int thread, int threads) {
  expect_operands(call, 1, 1);
  const Range range = share(static_cast<std::int64_t>(call.outputs[0].nbytes()), 1, thread, threads);
  if (range.empty()) return;
  std::memcpy(call.outputs[0].as<char>() + range.begin, call.inputs[0].as<char>() + range.begin,
              static_cast<std::size_t>(range.end - range.begin));
}

constexpr KernelInfo kKernels[] = {
    {"cast.to", cast, false, kAnyThreads},
    {"cast.view_dtype", view_dtype, true, kAnyThreads},
};

}  // namespace

ConvertFunction convert_function(ScalarType from, ScalarType to) {
  return dispatch_all(from, [&](auto source) {
    return dispatch_all(to, [&](auto target) -> ConvertFunction {
      return convert_run<typename decltype(source)::type, typename decltype(target)::type>;
    });
  });
}

KernelList cast_kernels() { return make_list(kKernels); }

}  // namespace ptn::kernels
