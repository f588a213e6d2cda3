// The checks of row operations, how dims become rows, and the request that the kernels get.
#include <precompiled.h>

#include "rows.h"

#include <ATen/WrapDimUtils.h>

namespace treduce::rows {
namespace {

struct Run {
  int64_t size, stride;
};

// Dims `begin` to `end - 1` as one dim; nothing where no single stride reaches all elements.
std::optional<Run> joined(const at::Tensor& tensor, int64_t begin, int64_t end) {
  Run run{1, 1};
  bool first = true;
  for (int64_t d = end - 1; d >= begin; --d) {
    const int64_t size = tensor.size(d), stride = tensor.stride(d);
    if (size == 1) continue;
    if (first) {
      run = {size, stride};
      first = false;
    } else if (stride == run.stride * run.size) {
      run.size *= size;
    } else {
      return std::nullopt;
    }
  }
  return run;
}

std::optional<Layout> layout_of(const at::Tensor& tensor, RowDims dims) {
  const auto outer = joined(tensor, 0, dims.begin), element = joined(tensor, dims.begin, dims.end),
             inner = joined(tensor, dims.end, tensor.dim());
  if (!outer || !element || !inner) return std::nullopt;
  return Layout{outer->stride, inner->stride, element->stride};
}

int64_t numel(const at::Tensor& tensor, int64_t begin, int64_t end) {
  int64_t n = 1;
  for (int64_t d = begin; d < end; ++d) n *= tensor.size(d);
  return n;
}

}  // namespace

DType checked_float(const at::Tensor& tensor, const char* op) {
  check_dense(tensor, op);
  const std::optional<DType> dtype = dtype_of(tensor.scalar_type());
  TORCH_CHECK_TYPE(
      dtype == DType::float32 || dtype == DType::float64 || dtype == DType::float16 || dtype == DType::bfloat16,
      "treduce::", op, " takes float32, float64, float16 and bfloat16, got ", tensor.scalar_type());
  return *dtype;
}

RowDims checked_dim(const at::Tensor& self, int64_t dim) {
  const int64_t d = at::maybe_wrap_dim(dim, self.dim());
  return self.dim() == 0 ? RowDims{0, 0} : RowDims{d, d + 1};
}

RowDims checked_norm(const char* op, const at::Tensor& input, c10::SymIntArrayRef normalized_shape,
                     const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias) {
  const auto rank = static_cast<int64_t>(normalized_shape.size());
  TORCH_CHECK_VALUE(rank > 0, "treduce::", op, " takes a normalized_shape of at least one size, got []");
  const c10::SymIntArrayRef sizes = input.sym_sizes();
  TORCH_CHECK_VALUE(rank <= input.dim() && sizes.slice(input.dim() - rank) == normalized_shape, "treduce::", op,
                    " takes an input whose last sizes are normalized_shape, ", normalized_shape, ", got shape ", sizes);
  const auto check = [&](const std::optional<at::Tensor>& tensor, const char* what) {
    if (!tensor.has_value() || !tensor->defined()) return;
    check_dense(*tensor, op);
    TORCH_CHECK_VALUE(tensor->sym_sizes() == normalized_shape, "treduce::", op, " takes a ", what,
                      " of the shape that is normalized, ", normalized_shape, ", got ", tensor->sym_sizes());
    TORCH_CHECK_TYPE(tensor->scalar_type() == input.scalar_type(), "treduce::", op, " takes a ", what,
                     " of the input's dtype, ", input.scalar_type(), ", got ", tensor->scalar_type());
    TORCH_CHECK_VALUE(tensor->device() == input.device(), "treduce::", op, " takes a ", what,
                      " on the input's device, ", input.device(), ", got ", tensor->device());
  };
  check(weight, "weight");
  check(bias, "bias");
  return {input.dim() - rank, input.dim()};
}

std::vector<c10::SymInt> row_sizes(const at::Tensor& self, RowDims dims, bool keepdim) {
  std::vector<c10::SymInt> sizes;
  for (int64_t d = 0; d < self.dim(); ++d) {
    const bool of_row = d >= dims.begin && d < dims.end;
    if (!of_row) sizes.push_back(self.sym_size(d));
    if (of_row && keepdim) sizes.emplace_back(1);
  }
  return sizes;
}

at::ScalarType accumulator_type(at::ScalarType type) { return type == at::kDouble ? at::kDouble : at::kFloat; }

RowCall::RowCall(Op op, std::string_view variant, const at::Tensor& first, RowDims dims, double eps) : dims_(dims) {
  request.op = op;
  request.dtype = *dtype_of(first.scalar_type());
  request.row = as_value_error([&] { return &find(variant); });
  Problem& p = request.problem;
  p.eps = eps;
  p.length = numel(first, dims.begin, dims.end);
  p.inner = numel(first, dims.end, first.dim());
  p.rows = numel(first, 0, dims.begin) * p.inner;
  set_input(inputs_++, first);
}

void RowCall::add_input(const at::Tensor& tensor) { set_input(inputs_++, tensor); }

void RowCall::set_input(int i, const at::Tensor& tensor) {
  at::Tensor& input = held_[held_count_++] = resolved(tensor);
  std::optional<Layout> layout = layout_of(input, dims_);
  if (!layout) {
    input = input.contiguous();
    layout = layout_of(input, dims_);
  }
  request.problem.in[i] = *layout;
  pointers.in[i] = input.const_data_ptr();
  request.addresses |= reinterpret_cast<uint64_t>(pointers.in[i]);
}

void RowCall::set_weights(const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias) {
  const auto set = [&](const std::optional<at::Tensor>& tensor, bool& has, const void*& pointer) {
    has = tensor.has_value() && tensor->defined();
    if (!has) return;
    at::Tensor& held = held_[held_count_++] = resolved(*tensor).contiguous();
    pointer = held.const_data_ptr();
    request.addresses |= reinterpret_cast<uint64_t>(pointer);
  };
  set(weight, request.problem.has_weight, pointers.weight);
  set(bias, request.problem.has_bias, pointers.bias);
}

void RowCall::add_row_input(const at::Tensor& values) {
  at::Tensor& held = held_[held_count_++] = values.contiguous();
  pointers.row_in[row_inputs_++] = held.const_data_ptr();
}

void RowCall::set_output(const at::Tensor& tensor) {
  Problem& p = request.problem;
  const bool a_row = request.op == Op::logsumexp;
  const int64_t length = a_row ? 1 : p.length;
  p.out = {length * p.inner, 1, a_row ? 1 : p.inner};
  if (p.inner == 1) p.out.element_stride = 1;
  pointers.out = tensor.mutable_data_ptr();
  if (!a_row) request.addresses |= reinterpret_cast<uint64_t>(pointers.out);
}

void RowCall::add_row_output(const at::Tensor& values) { pointers.row_out[row_outputs_++] = values.mutable_data_ptr(); }

}  // namespace treduce::rows
