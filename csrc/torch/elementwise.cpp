#include "elementwise.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include "broadcast.h"

namespace treduce::elementwise {
namespace {

bool equal(c10::SymIntArrayRef a, c10::SymIntArrayRef b) {
  if (a.size() != b.size()) return false;
  for (size_t d = 0; d < a.size(); ++d) {
    if (!TORCH_GUARD_OR_FALSE(a[d].sym_eq(b[d]))) return false;
  }
  return true;
}

bool both_contiguous(const at::Tensor& self, const at::Tensor& other) {
  return self.is_contiguous_or_false() && other.is_contiguous_or_false();
}

// The same elements in the same places, in both.
bool same_layout(const at::Tensor& self, const at::Tensor& other) {
  if (!equal(self.sym_sizes(), other.sym_sizes())) return false;
  return both_contiguous(self, other) ||
         (equal(self.sym_strides(), other.sym_strides()) && self.is_non_overlapping_and_dense());
}

}  // namespace

DType checked_operands(const at::Tensor& self, const at::Tensor& other) {
  const DType dtype = checked_dtype(self, "vector_add");
  checked_dtype(other, "vector_add");
  TORCH_CHECK_TYPE(self.scalar_type() == other.scalar_type(),
                   "treduce::vector_add takes two tensors of one dtype, got ", self.scalar_type(), " and ",
                   other.scalar_type());
  TORCH_CHECK_VALUE(self.device() == other.device(), "treduce::vector_add takes two tensors on one device, got ",
                    self.device(), " and ", other.device());
  return dtype;
}

at::Tensor empty_result(const at::Tensor& self, const at::Tensor& other) {
  const at::TensorOptions options = self.options().memory_format(std::nullopt);
  if (same_layout(self, other)) {
    if (both_contiguous(self, other)) return at::empty_symint(self.sym_sizes(), options);
    return at::empty_strided_symint(self.sym_sizes(), self.sym_strides(), options);
  }
  const auto sizes = broadcast(self.sym_sizes(), other.sym_sizes());
  TORCH_CHECK_VALUE(sizes.has_value(), "treduce::vector_add cannot add shapes ", self.sym_sizes(), " and ",
                    other.sym_sizes(), ": they do not broadcast");
  return at::empty_symint(*sizes, options);
}

Request request(const at::Tensor& self, const at::Tensor& other, std::string_view variant,
                std::optional<int64_t> block_size) {
  Request r;
  r.dtype = checked_operands(self, other);
  const Resolved asked = as_value_error([&] { return resolve(variant, block_size); });
  r.row = asked.row;
  r.block = asked.block;
  r.result = empty_result(self, other);
  r.self = resolved(self);
  r.other = resolved(other);
  if (!same_layout(r.self, r.result)) r.self = r.self.expand(r.result.sizes()).contiguous();
  if (!same_layout(r.other, r.result)) r.other = r.other.expand(r.result.sizes()).contiguous();
  return r;
}

}  // namespace treduce::elementwise
