// The row operations as ops, for a backend that runs a prepared call: the CPU, CUDA, or, for shapes alone, none.
#pragma once

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <functional>
#include <initializer_list>
#include <limits>
#include <tuple>

#include "rows.h"

namespace treduce::rows {

// The eps of rms_norm where the caller names none: torch's.
inline double default_eps(at::ScalarType type) {
  return type == at::kDouble ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
}

// Backend: a type with `Scope(device)`, alive for the call; `kMeta`; and run(RowCall&), which is called where there is something to
// compute.
template <class Backend>
struct Ops {
  using OptionalTensor = std::optional<at::Tensor>;

  static at::Tensor empty(const at::Tensor& like, c10::SymIntArrayRef sizes, at::ScalarType type) {
    return at::empty_symint(sizes, like.options().dtype(type).memory_format(std::nullopt));
  }
  static at::Tensor empty_like(const at::Tensor& like) { return empty(like, like.sym_sizes(), like.scalar_type()); }

  static void check_pair(const char* op, const at::Tensor& grad, const at::Tensor& other) {
    checked_float(grad, op);
    checked_float(other, op);
    TORCH_CHECK_VALUE(grad.sym_sizes() == other.sym_sizes(), "treduce::", op, " takes two tensors of one shape, got ",
                      grad.sym_sizes(), " and ", other.sym_sizes());
    TORCH_CHECK_TYPE(grad.scalar_type() == other.scalar_type(), "treduce::", op,
                     " takes two tensors of one dtype, got ", grad.scalar_type(), " and ", other.scalar_type());
    TORCH_CHECK_VALUE(grad.device() == other.device(), "treduce::", op, " takes two tensors on one device, got ",
                      grad.device(), " and ", other.device());
  }

  template <Op kOp>
  static at::Tensor softmax(const at::Tensor& self, int64_t dim, std::string_view variant) {
    checked_float(self, name_of(kOp));
    const RowDims dims = checked_dim(self, dim);
    const typename Backend::Scope scope(self.device());
    at::Tensor result = empty_like(self);
    if constexpr (!Backend::kMeta) {
      RowCall call(kOp, variant, self, dims);
      call.set_output(result);
      if (!call.is_empty()) Backend::run(call, scope);
    } else {
      as_value_error([&] { return &find(variant); });
    }
    return result;
  }

  template <Op kOp>
  static at::Tensor softmax_backward(const at::Tensor& grad, const at::Tensor& output, int64_t dim,
                                     std::string_view variant) {
    check_pair(name_of(kOp), grad, output);
    const RowDims dims = checked_dim(output, dim);
    const typename Backend::Scope scope(output.device());
    at::Tensor result = empty_like(output);
    if constexpr (!Backend::kMeta) {
      RowCall call(kOp, variant, grad, dims);
      call.add_input(output);
      call.set_output(result);
      if (!call.is_empty()) Backend::run(call, scope);
    }
    return result;
  }

  static at::Tensor logsumexp(const at::Tensor& self, int64_t dim, bool keepdim, std::string_view variant) {
    checked_float(self, "logsumexp");
    const RowDims dims = checked_dim(self, dim);
    const typename Backend::Scope scope(self.device());
    at::Tensor result = empty(self, row_sizes(self, dims, keepdim), self.scalar_type());
    if constexpr (!Backend::kMeta) {
      RowCall call(Op::logsumexp, variant, self, dims);
      call.set_output(result);
      if (!call.is_empty()) {
        Backend::run(call, scope);
      } else {
        result.fill_(-std::numeric_limits<double>::infinity());
      }
    } else {
      as_value_error([&] { return &find(variant); });
    }
    return result;
  }

  static std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm(const at::Tensor& input,
                                                                   c10::SymIntArrayRef normalized_shape,
                                                                   const OptionalTensor& weight,
                                                                   const OptionalTensor& bias, double eps,
                                                                   std::string_view variant) {
    checked_float(input, "layer_norm");
    const RowDims dims = checked_norm("layer_norm", input, normalized_shape, weight, bias);
    const typename Backend::Scope scope(input.device());
    const at::ScalarType type = accumulator_type(input.scalar_type());
    at::Tensor result = empty_like(input), mean = empty(input, row_sizes(input, dims, true), type);
    at::Tensor rstd = empty(input, row_sizes(input, dims, true), type);
    if constexpr (!Backend::kMeta) {
      RowCall call(Op::layer_norm, variant, input, dims, eps);
      call.set_weights(weight, bias);
      call.set_output(result);
      call.add_row_output(mean);
      call.add_row_output(rstd);
      if (!call.is_empty()) {
        Backend::run(call, scope);
      } else {
        mean.fill_(std::numeric_limits<double>::quiet_NaN());
        rstd.fill_(std::numeric_limits<double>::quiet_NaN());
      }
    } else {
      as_value_error([&] { return &find(variant); });
    }
    return {result, mean, rstd};
  }

  static std::tuple<at::Tensor, at::Tensor> rms_norm(const at::Tensor& input, c10::SymIntArrayRef normalized_shape,
                                                     const OptionalTensor& weight, std::optional<double> eps,
                                                     std::string_view variant) {
    checked_float(input, "rms_norm");
    const RowDims dims = checked_norm("rms_norm", input, normalized_shape, weight, std::nullopt);
    const typename Backend::Scope scope(input.device());
    at::Tensor result = empty_like(input);
    at::Tensor rstd = empty(input, row_sizes(input, dims, true), accumulator_type(input.scalar_type()));
    if constexpr (!Backend::kMeta) {
      RowCall call(Op::rms_norm, variant, input, dims, eps.value_or(default_eps(input.scalar_type())));
      call.set_weights(weight, std::nullopt);
      call.set_output(result);
      call.add_row_output(rstd);
      if (!call.is_empty()) {
        Backend::run(call, scope);
      } else {
        rstd.fill_(std::numeric_limits<double>::quiet_NaN());
      }
    } else {
      as_value_error([&] { return &find(variant); });
    }
    return {result, rstd};
  }

  // Row values are checked by their number: they come from the forward op.
  static void check_row_values(const char* op, const at::Tensor& values, const at::Tensor& input, RowDims dims) {
    c10::SymInt rows = 1;
    for (int64_t d = 0; d < dims.begin; ++d) rows *= input.sym_size(d);
    TORCH_CHECK_VALUE(values.sym_numel() == rows, "treduce::", op, " takes a mean and an rstd for each row, got ",
                      values.sym_sizes(), " for an input of shape ", input.sym_sizes());
    TORCH_CHECK_TYPE(values.scalar_type() == accumulator_type(input.scalar_type()), "treduce::", op,
                     " takes a mean and an rstd of ", accumulator_type(input.scalar_type()), ", got ",
                     values.scalar_type());
    TORCH_CHECK_VALUE(values.device() == input.device(), "treduce::", op, " takes a mean and an rstd on ",
                      input.device(), ", got ", values.device());
  }

  // `values`: what the forward op gave of each row.
  static at::Tensor norm_backward(Op op, const at::Tensor& grad, const at::Tensor& input,
                                  c10::SymIntArrayRef normalized_shape, const OptionalTensor& weight,
                                  std::string_view variant,
                                  std::initializer_list<std::reference_wrapper<const at::Tensor>> values) {
    const char* const name = name_of(op);
    check_pair(name, grad, input);
    const RowDims dims = checked_norm(name, input, normalized_shape, weight, std::nullopt);
    for (const at::Tensor& value : values) check_row_values(name, value, input, dims);
    const typename Backend::Scope scope(input.device());
    at::Tensor result = empty_like(input);
    if constexpr (!Backend::kMeta) {
      RowCall call(op, variant, grad, dims);
      call.add_input(input);
      call.set_weights(weight, std::nullopt);
      for (const at::Tensor& value : values) call.add_row_input(value);
      call.set_output(result);
      if (!call.is_empty()) Backend::run(call, scope);
    }
    return result;
  }

  static at::Tensor layer_norm_backward(const at::Tensor& grad, const at::Tensor& input,
                                        c10::SymIntArrayRef normalized_shape, const at::Tensor& mean,
                                        const at::Tensor& rstd, const OptionalTensor& weight,
                                        std::string_view variant) {
    return norm_backward(Op::layer_norm_backward, grad, input, normalized_shape, weight, variant, {mean, rstd});
  }

  static at::Tensor rms_norm_backward(const at::Tensor& grad, const at::Tensor& input,
                                      c10::SymIntArrayRef normalized_shape, const at::Tensor& rstd,
                                      const OptionalTensor& weight, std::string_view variant) {
    return norm_backward(Op::rms_norm_backward, grad, input, normalized_shape, weight, variant, {rstd});
  }

  // See library.cpp.
  static void row_sums(const at::Tensor& squares, const OptionalTensor& mean, const at::Tensor& rows) {
    checked_float(rows, "row_sums_");
    TORCH_CHECK_VALUE(rows.dim() > 0, "treduce::row_sums_ takes rows along the last dim, got a number");
    const RowDims dims{rows.dim() - 1, rows.dim()};
    check_sums(squares, rows);
    if (mean.has_value()) check_sums(*mean, rows);
    const typename Backend::Scope scope(rows.device());
    if constexpr (!Backend::kMeta) {
      RowCall call(mean.has_value() ? Op::layer_norm : Op::rms_norm, "auto", rows, dims);
      call.request.problem.sums_alone = true;
      if (mean.has_value()) call.add_row_output(*mean);
      call.add_row_output(squares);
      TORCH_CHECK_VALUE(call.request.problem.length > 0, "treduce::row_sums_ takes rows of at least one element");
      if (!call.is_empty()) Backend::run(call, scope);
    }
  }

  static void check_sums(const at::Tensor& sums, const at::Tensor& rows) {
    const at::ScalarType type = accumulator_type(rows.scalar_type());
    TORCH_CHECK_TYPE(sums.scalar_type() == type, "treduce::row_sums_ writes ", type, ", got ", sums.scalar_type());
    TORCH_CHECK_VALUE(
        sums.is_contiguous() && sums.device() == rows.device() &&
            sums.sym_numel() * rows.sym_size(-1) == rows.sym_numel(),
        "treduce::row_sums_ writes contiguous tensors with an element for each row, on their device; got ",
        sums.sym_sizes(), " on ", sums.device(), " for rows ", rows.sym_sizes(), " on ", rows.device());
  }

  static void implement(torch::Library& m) {
    m.impl("row_sums_", row_sums);
    m.impl("softmax", softmax<Op::softmax>);
    m.impl("log_softmax", softmax<Op::log_softmax>);
    m.impl("logsumexp", logsumexp);
    m.impl("layer_norm", layer_norm);
    m.impl("rms_norm", rms_norm);
    m.impl("softmax_backward", softmax_backward<Op::softmax_backward>);
    m.impl("log_softmax_backward", softmax_backward<Op::log_softmax_backward>);
    m.impl("layer_norm_backward", layer_norm_backward);
    m.impl("rms_norm_backward", rms_norm_backward);
  }
};

}  // namespace treduce::rows
