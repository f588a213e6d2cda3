// The checks of vector_add.
#include <precompiled.h>

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

// Whether elements that correspond lie at the same offset in both.
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

Addition::Addition(const at::Tensor& left, const at::Tensor& right, std::string_view variant,
                   std::optional<int64_t> block_size) {
  request.dtype = checked_operands(left, right);
  const Resolved asked = as_value_error([&] { return resolve(variant, block_size); });
  request.row = asked.row;
  request.block = asked.block;
  result = empty_result(left, right);
  self = resolved(left);
  other = resolved(right);
  if (!same_layout(self, result)) self = self.expand(result.sizes()).contiguous();
  if (!same_layout(other, result)) other = other.expand(result.sizes()).contiguous();
  request.n = result.numel();
  copies_self = !self.is_alias_of(left);
  copies_other = !other.is_alias_of(right);
  request.copies = copies_self + copies_other;
  if (copies_self) request.copied_from += stored_elements(left);
  if (copies_other) request.copied_from += stored_elements(right);
  const auto address = [](const at::Tensor& t) { return reinterpret_cast<uint64_t>(t.const_data_ptr()); };
  request.a = address(self);
  request.b = address(other);
  request.c = address(result);
}

}  // namespace treduce::elementwise
