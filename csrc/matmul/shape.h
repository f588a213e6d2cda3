// The checks that the CPU, CUDA and Meta bindings of matmul share, and torch.matmul's rules of ranks.
#pragma once

#include <c10/core/SymInt.h>

#include <vector>

#include "../common/checks.h"
#include "ladder.h"

namespace treduce::matmul {

// The common dtype of the operands. TypeError for a dtype that matmul does not take or two different ones, ValueError
// for two devices.
DType checked_operands(const at::Tensor& self, const at::Tensor& other);

// The shape of torch.matmul(self, other), without looking at data. ValueError, with both shapes, where there is none.
std::vector<c10::SymInt> result_sizes(const at::Tensor& self, const at::Tensor& other);

// Everything that a kernel needs to know, after all checks. The operands are those of the call, except where a view
// cannot be read through strides (lazy negation; more than kMaxBatchDims batch dimensions that do not merge): then
// copies.
struct Request {
  Problem problem;
  DType dtype;
  const Row* row;  // what `auto` picked, where it was asked for
  int tile;
  at::Tensor self, other;
  at::Tensor result;  // new, contiguous, not yet written
};
Request request(const at::Tensor& self, const at::Tensor& other, std::string_view variant,
                std::optional<int64_t> tile_size, const Target& target);

}  // namespace treduce::matmul
