// The ops of this project as C++ functions, for code that composes them. They go through the dispatcher, so gradients, meta
// tensors and tracing see them.
#pragma once

#include "matmul_schema.h"
#include "reduce_schema.h"
#include "rows_schema.h"

namespace treduce::ours {

inline at::Tensor sum(const at::Tensor& x, at::OptionalIntArrayRef dim, bool keepdim,
                      std::optional<at::ScalarType> dtype = std::nullopt) {
  static const auto op = reduce::find_op<reduce::SumSchema>("treduce::sum");
  const at::ScalarType type = x.scalar_type();
  // Not what autocast makes of it.
  if (!dtype.has_value() && (type == at::kHalf || type == at::kBFloat16)) dtype = type;
  return op.call(x, "auto", dim, keepdim, dtype, std::nullopt, std::nullopt);
}

// Over the dims along which a tensor of these sizes was broadcast.
inline at::Tensor sum_to(const at::Tensor& x, c10::SymIntArrayRef sizes) {
  const int64_t more = x.dim() - static_cast<int64_t>(sizes.size());
  at::DimVector dims;
  for (int64_t d = 0; d < x.dim(); ++d) {
    if (d < more || (sizes[d - more] == 1 && x.sym_size(d) != 1)) dims.push_back(d);
  }
  return dims.empty() ? x : ours::sum(x, at::IntArrayRef(dims), /*keepdim=*/true).reshape_symint(sizes);
}

inline at::Tensor mean(const at::Tensor& x, at::OptionalIntArrayRef dim, bool keepdim,
                       std::optional<at::ScalarType> dtype = std::nullopt) {
  static const auto op = reduce::find_op<reduce::SumSchema>("treduce::mean");
  return op.call(x, "auto", dim, keepdim, dtype, std::nullopt, std::nullopt);
}

inline at::Tensor amax(const at::Tensor& x, at::OptionalIntArrayRef dim, bool keepdim) {
  static const auto op = reduce::find_op<reduce::ExtremumSchema>("treduce::amax");
  return op.call(x, "auto", dim, keepdim, std::nullopt, std::nullopt);
}

inline at::Tensor amin(const at::Tensor& x, at::OptionalIntArrayRef dim, bool keepdim) {
  static const auto op = reduce::find_op<reduce::ExtremumSchema>("treduce::amin");
  return op.call(x, "auto", dim, keepdim, std::nullopt, std::nullopt);
}

inline at::Tensor matmul(const at::Tensor& a, const at::Tensor& b, std::string_view variant = "auto") {
  static const auto op = reduce::find_op<matmul::MatmulSchema>("treduce::matmul");
  return op.call(a, b, variant, std::nullopt);
}

// A product whose inner size may be a length of a sequence: zeros at its end change no bit. The 16-bit rungs take k in order;
// of those of float32, the rungs of k order do, while pairs of float16 are scaled by what lies beside them.
inline at::Tensor matmul_of_lengths(const at::Tensor& a, const at::Tensor& b) {
  return matmul(a, b, a.scalar_type() == at::kFloat ? "pipelined" : "auto");
}

inline at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  static const auto op = reduce::find_op<matmul::LinearSchema>("treduce::linear");
  return op.call(input, weight, bias, "auto");
}

inline at::Tensor sqrt(const at::Tensor& x) {
  static const auto op = reduce::find_op<rows::SqrtSchema>("treduce::sqrt");
  return op.call(x);
}

inline at::Tensor softmax(const at::Tensor& x, int64_t dim) {
  static const auto op = reduce::find_op<rows::SoftmaxSchema>("treduce::softmax");
  return op.call(x, dim, "auto");
}

inline at::Tensor softmax_backward(const at::Tensor& grad, const at::Tensor& output, int64_t dim) {
  static const auto op = reduce::find_op<rows::SoftmaxBackwardSchema>("treduce::softmax_backward");
  return op.call(grad, output, dim, "auto");
}

inline at::Tensor log_softmax(const at::Tensor& x, int64_t dim) {
  static const auto op = reduce::find_op<rows::SoftmaxSchema>("treduce::log_softmax");
  return op.call(x, dim, "auto");
}

inline at::Tensor log_softmax_backward(const at::Tensor& grad, const at::Tensor& output, int64_t dim) {
  static const auto op = reduce::find_op<rows::SoftmaxBackwardSchema>("treduce::log_softmax_backward");
  return op.call(grad, output, dim, "auto");
}

inline at::Tensor logsumexp(const at::Tensor& x, int64_t dim, bool keepdim) {
  static const auto op = reduce::find_op<rows::LogSumExpSchema>("treduce::logsumexp");
  return op.call(x, dim, keepdim, "auto");
}

// Norms of the last dim.

inline std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm(const at::Tensor& x, const at::Tensor& weight,
                                                                 const at::Tensor& bias, double eps) {
  static const auto op = reduce::find_op<rows::LayerNormSchema>("treduce::layer_norm");
  return op.call(x, x.sym_sizes().slice(x.dim() - 1), weight, bias, eps, "auto");
}

inline at::Tensor layer_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& mean,
                                      const at::Tensor& rstd, const at::Tensor& weight) {
  static const auto op = reduce::find_op<rows::LayerNormBackwardSchema>("treduce::layer_norm_backward");
  return op.call(grad, x, x.sym_sizes().slice(x.dim() - 1), mean, rstd, weight, "auto");
}

inline std::tuple<at::Tensor, at::Tensor> rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  static const auto op = reduce::find_op<rows::RmsNormSchema>("treduce::rms_norm");
  return op.call(x, x.sym_sizes().slice(x.dim() - 1), weight, eps, "auto");
}

inline at::Tensor rms_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& rstd,
                                    const at::Tensor& weight) {
  static const auto op = reduce::find_op<rows::RmsNormBackwardSchema>("treduce::rms_norm_backward");
  return op.call(grad, x, x.sym_sizes().slice(x.dim() - 1), rstd, weight, "auto");
}

}  // namespace treduce::ours
