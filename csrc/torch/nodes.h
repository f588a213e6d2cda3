// Nodes of the pairwise order (reduce/pairwise.h) as tensors: whoever has the sums of aligned runs of equal length, a power of two times
// 1024 elements, folds them here along dim 0.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

#include <initializer_list>

#include "../reduce/pairwise.h"
#include "reduce_schema.h"

namespace treduce::nodes {

constexpr int64_t kLanes = reduce::Pairwise::kLanes;

inline at::Tensor sum_along(const at::Tensor& values, at::IntArrayRef dims,
                            std::optional<at::ScalarType> dtype = std::nullopt) {
  static const auto op = reduce::find_op<reduce::SumSchema>("treduce::sum");
  return op.call(values, "auto", dims, false, dtype, std::nullopt, std::nullopt);
}

// {first, ..., sizes of the outputs}
inline c10::SmallVector<int64_t, 8> with_outputs(std::initializer_list<int64_t> first, at::IntArrayRef outputs) {
  c10::SmallVector<int64_t, 8> sizes(first);
  sizes.append(outputs.begin(), outputs.end());
  return sizes;
}

// Adds neighbours along dim 0 as a tree, up to the level where at most kLanes nodes are left. Zeros at the end change nothing.
inline at::Tensor lanes_of(at::Tensor values) {
  while (values.size(0) > kLanes) {
    if (const int64_t over = values.size(0) % kLanes; over > 0) {
      values = at::cat({values, values.new_zeros(with_outputs({kLanes - over}, values.sizes().slice(1)))});
    }
    values = sum_along(values.view(with_outputs({-1, kLanes}, values.sizes().slice(1))), 1);
  }
  return values;
}

inline at::Tensor fold(const at::Tensor& values) { return sum_along(lanes_of(values), 0); }

}  // namespace treduce::nodes
