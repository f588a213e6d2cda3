// Shapes and dtypes without data, for fake tensors, torch.compile and torch.export. The checks are those of the real kernels.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "elementwise/shape.h"
#include "lessons/shape.h"
#include "matmul/shape.h"
#include "reduce/binding.h"

namespace treduce {
namespace {

template <reduce::Op kOp>
at::Tensor reduce_meta(const at::Tensor& self, std::string_view variant, std::optional<int64_t> block_size,
                       std::optional<int64_t> num_blocks) {
  const int64_t n = self.sym_numel().maybe_as_int().value_or(-1);
  const reduce::Request r = reduce::request(kOp, self, n, variant, block_size, num_blocks);
  return at::empty({}, self.options().dtype(r.result_type).memory_format(std::nullopt));
}

at::Tensor matmul_meta(const at::Tensor& self, const at::Tensor& other, std::string_view variant,
                       std::optional<int64_t> tile_size) {
  matmul::checked_operands(self, other);
  as_value_error([&] { return matmul::resolve(variant, tile_size); });
  return at::empty_symint(matmul::result_sizes(self, other), self.options().memory_format(std::nullopt));
}

at::Tensor vector_add_meta(const at::Tensor& self, const at::Tensor& other, std::string_view variant,
                           std::optional<int64_t> block_size) {
  elementwise::checked_operands(self, other);
  as_value_error([&] { return elementwise::resolve(variant, block_size); });
  return elementwise::empty_result(self, other);
}

void thread_indices_meta(const at::Tensor& out, at::IntArrayRef grid, at::IntArrayRef block) {
  lessons::checked_grid(out, grid, block);
}

}  // namespace

TORCH_LIBRARY_IMPL(treduce, Meta, m) {
  m.impl("sum", reduce_meta<reduce::Op::sum>);
  m.impl("mean", reduce_meta<reduce::Op::mean>);
  m.impl("amax", reduce_meta<reduce::Op::amax>);
  m.impl("amin", reduce_meta<reduce::Op::amin>);
  m.impl("matmul", matmul_meta);
  m.impl("vector_add", vector_add_meta);
  m.impl("thread_indices_", thread_indices_meta);
}

}  // namespace treduce
