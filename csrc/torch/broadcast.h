// torch's rule for two shapes, for sizes that are numbers and for those of a program that is being traced.
#pragma once

#include <c10/core/SymInt.h>
#include <c10/util/ArrayRef.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace treduce {

// Two sizes that must be equal. One that is only known when a traced program runs is compared then.
inline bool must_equal(const c10::SymInt& a, const c10::SymInt& b) {
  return a.sym_eq(b).expect_true(__FILE__, __LINE__);
}

// The shape that `a` and `b` broadcast to; nothing where they do not.
template <class Size>
std::optional<std::vector<Size>> broadcast(c10::ArrayRef<Size> a, c10::ArrayRef<Size> b) {
  const auto is_one = [](const c10::SymInt& size) { return TORCH_GUARD_OR_FALSE(size.sym_eq(1)); };
  const size_t dims = std::max(a.size(), b.size());
  const Size one = 1;
  std::vector<Size> sizes;
  sizes.reserve(dims + 2);  // matmul adds two
  for (size_t d = 0; d < dims; ++d) {
    const Size& x = d + a.size() < dims ? one : a[d + a.size() - dims];
    const Size& y = d + b.size() < dims ? one : b[d + b.size() - dims];
    if (!is_one(x) && !is_one(y) && !must_equal(x, y)) return std::nullopt;
    sizes.push_back(is_one(x) ? y : x);
  }
  return sizes;
}

}  // namespace treduce
