// Shapes and dtypes without data, for fake tensors, torch.compile and torch.export. The checks are those of the real kernels.
#include <precompiled.h>

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "elementwise.h"
#include "lessons.h"
#include "matmul.h"
#include "reduce_ops.h"

namespace treduce {
namespace {

at::Tensor reduce_meta(reduce::Op op, const at::Tensor& self, const reduce::Arguments& arguments) {
  const reduce::Checked call = reduce::check_call(op, self, arguments);
  const auto sizes = call.result_sizes(self.sym_sizes());
  if (arguments.out == nullptr) {
    return at::empty_symint(sizes, self.options().dtype(call.result_type).memory_format(std::nullopt));
  }
  reduce::check_out(op, *arguments.out, self, sizes, call.result_type);
  return *arguments.out;
}

void sum_to_meta(const at::Tensor& out, const at::Tensor& first, const std::optional<at::Tensor>& second, int64_t dim) {
  const reduce::SumTo call(out, dim);
  reduce::check_call(reduce::Op::sum, first, call.arguments);
  if (second.has_value()) reduce::check_joined(first, *second, dim);
}

void pack_parts_meta(const at::Tensor& message, const at::Tensor& entries, at::IntArrayRef) {
  reduce::check_types_of_message(message, entries);
}

void fold_parts_meta(const at::Tensor& out, const at::Tensor& values, const at::Tensor&, std::optional<int64_t>) {
  reduce::check_types_of_parts(out, values);
}

at::Tensor matmul_meta(const at::Tensor& self, const at::Tensor& other, std::string_view variant,
                       std::optional<int64_t> tile_size) {
  const DType dtype = matmul::checked_operands({&self, &other});
  matmul::check_dtype(*as_value_error([&] { return matmul::resolve(variant, tile_size); }).row, dtype);
  return at::empty_symint(matmul::result_sizes(self, other),
                          self.options().dtype(matmul::result_type(self.scalar_type())).memory_format(std::nullopt));
}

void matmul_to_meta(const at::Tensor& out, const at::Tensor& self, const at::Tensor& other, std::string_view variant,
                    std::optional<int64_t> tile_size) {
  const at::Tensor result = matmul_meta(self, other, variant, tile_size);
  matmul::check_out(out, self, other, result.sym_sizes(), result.scalar_type());
}

at::Tensor linear_meta(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       std::string_view variant) {
  const std::vector<c10::SymInt> sizes = matmul::checked_linear(input, weight, bias);
  matmul::check_dtype(*as_value_error([&] { return matmul::resolve(variant, std::nullopt); }).row,
                      *dtype_of(input.scalar_type()));
  return at::empty_symint(sizes,
                          input.options().dtype(matmul::result_type(input.scalar_type())).memory_format(std::nullopt));
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
  reduce::Ops<&reduce_meta>::implement(m);
  m.impl("sum_to_", sum_to_meta);
  m.impl("pack_parts_", pack_parts_meta);
  m.impl("fold_parts_", fold_parts_meta);
  m.impl("matmul", matmul_meta);
  m.impl("matmul_to_", matmul_to_meta);
  m.impl("linear", linear_meta);
  m.impl("vector_add", vector_add_meta);
  m.impl("thread_indices_", thread_indices_meta);
}

}  // namespace treduce
