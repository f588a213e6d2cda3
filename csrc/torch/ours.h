// The ops of this project as C++ functions, for code that composes them. They go through the dispatcher, so gradients, meta
// tensors and tracing see them.
#pragma once

#include "matmul_schema.h"
#include "reduce_schema.h"

namespace treduce::ours {

inline at::Tensor sum(const at::Tensor& x, at::OptionalIntArrayRef dim, bool keepdim,
                      std::optional<at::ScalarType> dtype = std::nullopt) {
  static const auto op = reduce::find_op<reduce::SumSchema>("treduce::sum");
  return op.call(x, "auto", dim, keepdim, dtype, std::nullopt, std::nullopt);
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

}  // namespace treduce::ours
