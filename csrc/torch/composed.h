// What aten's row operations are made of: our row operations where aten's take other dtypes or dims, or are several; the rest
// composed of our reductions and torch's elementwise ops. All compute in float32, or in float64 for float64, and round once.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <tuple>

namespace treduce::composed {

// What 16-bit floats are computed in.
at::ScalarType accumulator(at::ScalarType type);

at::Tensor softmax(const at::Tensor& x, int64_t dim, at::ScalarType type);
at::Tensor softmax_backward(const at::Tensor& grad, const at::Tensor& y, int64_t dim, at::ScalarType type);
at::Tensor log_softmax(const at::Tensor& x, int64_t dim, at::ScalarType type);
at::Tensor log_softmax_backward(const at::Tensor& grad, const at::Tensor& y, int64_t dim, at::ScalarType type);
at::Tensor logsumexp(const at::Tensor& x, at::IntArrayRef dim, bool keepdim);

// Along the last dim; rows that hold nothing but -inf are all zeros.
at::Tensor safe_softmax(const at::Tensor& x);

// Two passes: the mean, then the squares of what differs from it.
std::tuple<at::Tensor, at::Tensor> var_mean(const at::Tensor& x, at::OptionalIntArrayRef dim, double correction,
                                            bool keepdim);
at::Tensor norm(const at::Tensor& x, double order, at::OptionalIntArrayRef dim, bool keepdim, at::ScalarType type);

// x (m, n); weight and bias (n) or undefined. y of x's dtype, mean and reciprocal deviation (m, 1) of the accumulator's.
std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm(const at::Tensor& x, const at::Tensor& weight,
                                                          const at::Tensor& bias, double eps);
std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_backward(const at::Tensor& grad, const at::Tensor& x,
                                                                   const at::Tensor& mean, const at::Tensor& rstd,
                                                                   const at::Tensor& weight,
                                                                   std::array<bool, 3> wanted);
std::tuple<at::Tensor, at::Tensor> rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& grad, const at::Tensor& x,
                                                     const at::Tensor& rstd, const at::Tensor& weight,
                                                     std::array<bool, 2> wanted);

// log_probs (m, classes), target (m): what each row loses, and its weight; 0 where the target is `ignored`.
std::tuple<at::Tensor, at::Tensor> nll(const at::Tensor& log_probs, const at::Tensor& target, const at::Tensor& weight,
                                       int64_t ignored);

}  // namespace treduce::composed
