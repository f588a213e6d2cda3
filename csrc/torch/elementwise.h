// The checks that the CPU, CUDA and Meta bindings of vector_add share, and where its result lies.
#pragma once

#include "../elementwise/ladder.h"
#include "checks.h"

namespace treduce::elementwise {

// The common dtype of the operands. TypeError for a dtype that vector_add does not take or two different ones,
// ValueError for two devices.
DType checked_operands(const at::Tensor& self, const at::Tensor& other);

// A new tensor for torch.add(self, other): of the broadcast shape, and contiguous, unless both operands are dense and
// have the same strides, which it then has too. Symbolic shapes welcome. ValueError, with both shapes, if they do not
// broadcast.
at::Tensor empty_result(const at::Tensor& self, const at::Tensor& other);

// Everything that a kernel needs to know, after all checks: three arrays whose elements correspond in the order in
// memory. An operand that is broadcast or laid out otherwise is copied.
struct Request {
  DType dtype;
  const Row* row;  // what `auto` picked, where it was asked for
  int block;
  at::Tensor self, other;
  at::Tensor result;  // new, not yet written
};
Request request(const at::Tensor& self, const at::Tensor& other, std::string_view variant,
                std::optional<int64_t> block_size);

}  // namespace treduce::elementwise
