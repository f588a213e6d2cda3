// The checks that the CPU, CUDA and Meta bindings of vector_add share, and where its result lies.
#pragma once

#include "../elementwise/ladder.h"
#include "../elementwise/prepare.h"
#include "checks.h"

namespace treduce::elementwise {

// The common dtype of the operands. TypeError for a dtype that vector_add does not take or two different ones,
// ValueError for two devices.
DType checked_operands(const at::Tensor& self, const at::Tensor& other);

// A new tensor for torch.add(self, other): of the broadcast shape, and contiguous, unless both operands are dense and
// have the same strides, which it then has too. Symbolic shapes welcome. ValueError, with both shapes, if they do not
// broadcast.
at::Tensor empty_result(const at::Tensor& self, const at::Tensor& other);

// Everything from the arguments to prepare: checks, the operands as kernels read them (three arrays whose elements correspond in
// the order in memory: an operand that is broadcast or laid out otherwise is copied), and a new output.
struct Addition {
  Addition(const at::Tensor& self, const at::Tensor& other, std::string_view variant,
           std::optional<int64_t> block_size);

  Request request;         // its row is what `auto` picked, where it was asked for
  at::Tensor result;       // not yet written
  at::Tensor self, other;  // or copies
  bool copies_self, copies_other;
};

}  // namespace treduce::elementwise
