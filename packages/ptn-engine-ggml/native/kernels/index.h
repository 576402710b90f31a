// What the index kernels share: checking indices, combining values, copying what stays.
#pragma once

#include <cstdint>
#include <cstring>

#include "support.h"

namespace ptn::kernels {

// How a written value joins the one that is there.
enum class Reduce : std::int64_t { kReplace = 0, kSum = 1, kProduct = 2, kMean = 3, kMaximum = 4, kMinimum = 5 };

// An index that counts from the start only.
inline std::int64_t checked(std::int64_t index, std::int64_t size, int axis) {
  if (index < 0 || index >= size) throw IndexError(index, axis, size, false);
  return index;
}
// One that may count from the end.
inline std::int64_t wrapped(std::int64_t index, std::int64_t size, int axis) {
  if (index < -size || index >= size) throw IndexError(index, axis, size, true);
  return index < 0 ? index + size : index;
}

// 0-d tensors read and written as if they had one axis of size 1.
inline TensorView lifted(TensorView view) {
  if (view.shape.rank() == 0) view.shape.push_back(1);
  return view;
}

// Copies x to the output, but for the parts that other threads own. Where the two are the same memory nothing happens.
inline void copy_base(const KernelCall& call, std::int64_t begin, std::int64_t end) {
  const TensorView& x = call.inputs[0];
  const TensorView& out = call.outputs[0];
  if (x.data == out.data || end <= begin) return;
  std::memcpy(at_mutable(out, begin), at(x, begin), static_cast<std::size_t>(end - begin) * item_size(x.dtype));
}

template <typename F>
void dispatch_storage(ScalarType dtype, F&& function) {
  if (dtype == ScalarType::kHalf) {
    function(TypeTag<Half>{});
  } else if (dtype == ScalarType::kBFloat16) {
    function(TypeTag<BFloat16>{});
  } else {
    dispatch_compute(dtype, [&](auto tag) { function(tag); });
  }
}

template <typename T>
using computed_t = std::conditional_t<std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>, float, T>;

template <typename C>
inline bool nan(C x) {
  if constexpr (std::is_floating_point_v<C>) {
    return x != x;
  } else {
    return false;
  }
}

// Calls `function` with the reduction as a compile-time constant.
template <typename F>
void dispatch_reduce(Reduce reduce, F&& function) {
  switch (reduce) {
    case Reduce::kReplace:
      return function(std::integral_constant<Reduce, Reduce::kReplace>{});
    case Reduce::kSum:
    case Reduce::kMean:  // a sum until it is divided
      return function(std::integral_constant<Reduce, Reduce::kSum>{});
    case Reduce::kProduct:
      return function(std::integral_constant<Reduce, Reduce::kProduct>{});
    case Reduce::kMaximum:
      return function(std::integral_constant<Reduce, Reduce::kMaximum>{});
    case Reduce::kMinimum:
      return function(std::integral_constant<Reduce, Reduce::kMinimum>{});
  }
}

// target <- target (reduce) value, rounded to the storage type at each step as PyTorch does.
template <typename T>
inline void combine(T& target, T value, Reduce reduce) {
  using C = computed_t<T>;
  if (reduce == Reduce::kReplace) {
    target = value;
    return;
  }
  const C a = convert<C>(target), b = convert<C>(value);
  switch (reduce) {
    case Reduce::kSum:
    case Reduce::kMean:
      if constexpr (std::is_integral_v<C> && !std::is_same_v<C, bool>) {
        using U = std::make_unsigned_t<C>;
        target = static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
      } else {
        target = convert<T>(static_cast<C>(a + b));
      }
      break;
    case Reduce::kProduct:
      if constexpr (std::is_integral_v<C> && !std::is_same_v<C, bool>) {
        target = static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
      } else {
        target = convert<T>(static_cast<C>(a * b));
      }
      break;
    case Reduce::kMaximum:
      target = convert<T>(nan(a) || a > b ? a : b);
      break;
    case Reduce::kMinimum:
      target = convert<T>(nan(a) || a < b ? a : b);
      break;
    case Reduce::kReplace:
      break;
  }
}

}  // namespace ptn::kernels
