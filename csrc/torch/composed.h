// aten's row operations for the batch-invariant mode. They call our row operations where those fit after a change of dtype or dims;
// the others are composed of our reductions and torch's elementwise ops. They compute in float32 (float64 for float64), and round once.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <tuple>

namespace treduce::composed {

// What 16-bit floats are computed in.
at::ScalarType accumulator(at::ScalarType type);

// Of tensors that have the dtype or the sizes already, themselves: a call that changes nothing takes a tenth of a microsecond.
inline at::Tensor converted(const at::Tensor& x, at::ScalarType type) {
  return x.scalar_type() == type ? x : x.to(type);
}
inline at::Tensor reshaped(const at::Tensor& x, at::IntArrayRef sizes) {
  return x.sizes() == sizes ? x : x.reshape(sizes);
}

at::Tensor softmax(const at::Tensor& x, int64_t dim, at::ScalarType type);
at::Tensor softmax_backward(const at::Tensor& grad, const at::Tensor& y, int64_t dim, at::ScalarType type);
at::Tensor log_softmax(const at::Tensor& x, int64_t dim, at::ScalarType type);
at::Tensor log_softmax_backward(const at::Tensor& grad, const at::Tensor& y, int64_t dim, at::ScalarType type);
at::Tensor logsumexp(const at::Tensor& x, at::IntArrayRef dim, bool keepdim);

// Along the last dim; rows of nothing but -inf become zeros.
at::Tensor safe_softmax(const at::Tensor& x);

// The mean, then the squared differences from it: in one read where row_sums.h has it, else by several ops. root: the standard deviation
// in place of the variance.
std::tuple<at::Tensor, at::Tensor> var_mean(const at::Tensor& x, at::OptionalIntArrayRef dim, double correction,
                                            bool keepdim, bool root = false);
at::Tensor norm(const at::Tensor& x, double order, at::OptionalIntArrayRef dim, bool keepdim, at::ScalarType type);

// x (m, n); weight and bias (n) or undefined. Returns y in x's dtype, and mean and 1 / deviation (m, 1) in the accumulator's.
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

// log_probs (m, classes), target (m). Returns each row's loss and weight (m); both are 0 where the target is `ignored`.
std::tuple<at::Tensor, at::Tensor> nll(const at::Tensor& log_probs, const at::Tensor& target, const at::Tensor& weight,
                                       int64_t ignored);

}  // namespace treduce::composed
