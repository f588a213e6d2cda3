// Shapes and dtypes without data, for fake tensors, torch.compile and torch.export. The checks are those of the real kernels.
#include <precompiled.h>

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "elementwise.h"
#include "lessons.h"
#include "matmul.h"
#include "reduce.h"
#include "reduce_stand_in.h"

namespace treduce {
namespace {

at::Tensor reduce_meta(reduce::Op op, const at::Tensor& self, const reduce::Arguments& arguments) {
  if (dtype_of(self.scalar_type()) == std::nullopt) {
    const reduce::StandIn stand_in(op, self, arguments);
    if (stand_in.is_other()) return stand_in.finished(reduce_meta(op, stand_in.self(), stand_in.arguments()));
  }
  const reduce::Checked call = reduce::check_call(op, self, arguments);
  return at::empty_symint(call.result_sizes(self.sym_sizes()),
                          self.options().dtype(call.result_type).memory_format(std::nullopt));
}

template <reduce::Op kOp>
at::Tensor sum_meta(const at::Tensor& self, std::string_view variant, at::OptionalIntArrayRef dim, bool keepdim,
                    std::optional<at::ScalarType> dtype, std::optional<int64_t> block_size,
                    std::optional<int64_t> num_blocks) {
  return reduce_meta(kOp, self, {variant, dim, keepdim, dtype, block_size, num_blocks});
}

template <reduce::Op kOp>
at::Tensor extremum_meta(const at::Tensor& self, std::string_view variant, at::OptionalIntArrayRef dim, bool keepdim,
                         std::optional<int64_t> block_size, std::optional<int64_t> num_blocks) {
  return reduce_meta(kOp, self, {variant, dim, keepdim, std::nullopt, block_size, num_blocks});
}

void reduce_to_meta(const at::Tensor& out, const at::Tensor& self, std::string_view name, std::string_view variant,
                    at::OptionalIntArrayRef dim, bool keepdim, std::optional<int64_t> block_size,
                    std::optional<int64_t> num_blocks) {
  const reduce::Op op = reduce::op_named(name, "reduce_to_");
  const at::Tensor result =
      reduce_meta(op, self, reduce::arguments_to(out, op, variant, dim, keepdim, block_size, num_blocks));
  reduce::check_out(op, out, self, result.sym_sizes(), result.scalar_type());
}

void reduce_ranks_meta(const at::Tensor& out, const at::Tensor& values, std::string_view op) {
  const reduce::RanksToOne call(out, op);
  reduce::check_call(call.op, values, call.arguments);
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
  m.impl("sum", sum_meta<reduce::Op::sum>);
  m.impl("mean", sum_meta<reduce::Op::mean>);
  m.impl("amax", extremum_meta<reduce::Op::amax>);
  m.impl("amin", extremum_meta<reduce::Op::amin>);
  m.impl("reduce_to_", reduce_to_meta);
  m.impl("reduce_ranks_", reduce_ranks_meta);
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
