// What the CPU, CUDA and Meta bindings of a reduction share: the checks, the result's dtype, and the plan.
#pragma once

#include "../common/checks.h"
#include "functors.h"
#include "ladder.h"

namespace treduce::reduce {

inline const char* name_of(Op op) {
  constexpr const char* names[] = {"sum", "mean", "amax", "amin"};
  return names[static_cast<int>(op)];
}

// The arguments of one call, checked. Nothing in it depends on the device.
struct Request {
  Op op;
  DType dtype;
  at::ScalarType result_type;
  const Row* row;  // what `auto` picked, where it was asked for
  int block;
  int64_t num_blocks;
  int64_t n;
};

inline at::ScalarType result_type(Op op, at::ScalarType input) {
  return op == Op::sum && at::isIntegralType(input, /*includeBool=*/true) ? at::kLong : input;
}

// Checks everything but the device. `n` is the number of elements, or -1 where it is not known (symbolic shapes).
inline Request request(Op op, const at::Tensor& self, int64_t n, std::string_view variant,
                       std::optional<int64_t> block_size, std::optional<int64_t> num_blocks) {
  Request r;
  r.op = op;
  r.n = n;
  r.dtype = checked_dtype(self, name_of(op));
  r.result_type = result_type(op, self.scalar_type());
  TORCH_CHECK_NOT_IMPLEMENTED(op != Op::mean || at::isFloatingType(self.scalar_type()),
                              "treduce::mean takes floating-point tensors, got ", self.scalar_type(),
                              "; convert the input first");
  TORCH_CHECK_VALUE(n != 0 || op == Op::sum || op == Op::mean, "treduce::", name_of(op),
                    " of an empty tensor has no value; its input has shape ", self.sizes());
  const Resolved resolved = as_value_error([&] { return resolve(variant, r.dtype, n, block_size, num_blocks); });
  r.row = resolved.row;
  r.block = resolved.block;
  r.num_blocks = resolved.num_blocks;
  return r;
}

// The input as one contiguous run in the order that its values have. Integer sums, amax and amin are the same in any order,
// so for them any dense tensor is read as it lies.
inline at::Tensor flat_input(Op op, const at::Tensor& self) {
  const bool any_order = op == Op::amax || op == Op::amin || at::isIntegralType(self.scalar_type(), true);
  if (self.is_contiguous() || (any_order && self.is_non_overlapping_and_dense())) return resolved(self);
  return resolved(self).contiguous();
}

}  // namespace treduce::reduce
