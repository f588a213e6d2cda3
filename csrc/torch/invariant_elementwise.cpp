// Elementwise ops whose result depends, on the CPU, on where an element lies: torch computes the last elements of an array, and
// strided ones, with other functions than full vectors. exp, log, tanh, erf, square roots and arithmetic are the same
// everywhere, so these are composed of those, in float32.
#include <precompiled.h>

#include <ATen/core/Reduction.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/add.h>
#include <ATen/ops/bitwise_left_shift.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/chunk.h>
#include <ATen/ops/div.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/real.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/round.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/where.h>

#include <cmath>

#include "composed.h"
#include "invariant_ops.h"

namespace treduce::invariant {
namespace {

using at::Scalar;
using at::Tensor;

Tensor wide(const Tensor& x) { return x.to(composed::accumulator(x.scalar_type())); }

Tensor sigmoid_of(const Tensor& x) { return at::neg(x).exp_().add_(1).reciprocal_(); }
Tensor sigmoid(const Tensor& self) { return sigmoid_of(wide(self)).to(self.scalar_type()); }
Tensor silu(const Tensor& self) {
  const Tensor x = wide(self);
  return at::div(x, at::neg(x).exp_().add_(1)).to(self.scalar_type());
}
Tensor silu_backward(const Tensor& grad, const Tensor& self) {
  const Tensor x = wide(self), s = sigmoid_of(x);
  return at::mul(wide(grad), at::mul(at::mul(x, at::rsub(s, 1)).add_(1), s)).to(self.scalar_type());
}

// The first half along dim, times the sigmoid of the second.
Tensor glu(const Tensor& self, int64_t dim) {
  const std::vector<Tensor> halves = at::chunk(wide(self), 2, dim);
  TORCH_CHECK(halves.size() == 2 && halves[0].size(dim) == halves[1].size(dim),
              "Halving dimension must be even, but dimension ", dim, " is size ", self.size(dim));
  return at::mul(halves[0], sigmoid_of(halves[1])).to(self.scalar_type());
}
Tensor glu_backward(const Tensor& grad, const Tensor& self, int64_t dim) {
  const std::vector<Tensor> halves = at::chunk(wide(self), 2, dim);
  const Tensor g = wide(grad), s = sigmoid_of(halves[1]);
  const Tensor of_gate = at::mul(at::mul(at::mul(g, halves[0]), s), at::rsub(s, 1));
  return at::cat({at::mul(g, s), of_gate}, dim).to(self.scalar_type());
}

constexpr double kInner = 0.044715;
const double kSquareRoot2OverPi = std::sqrt(2 / M_PI);

// tanh of this is the approximation's step.
Tensor gelu_inner(const Tensor& x) {
  return at::mul(at::add(x, at::mul(at::mul(at::mul(x, x), x), kInner)), kSquareRoot2OverPi);
}
Tensor gelu(const Tensor& self, std::string_view approximate) {
  const Tensor x = wide(self);
  const Tensor step = approximate == "tanh" ? at::tanh(gelu_inner(x)) : at::erf(at::mul(x, M_SQRT1_2));
  return at::mul(at::mul(x, 0.5), at::add(step, 1)).to(self.scalar_type());
}
Tensor gelu_backward(const Tensor& grad, const Tensor& self, std::string_view approximate) {
  const Tensor x = wide(self);
  Tensor slope;
  if (approximate == "tanh") {
    const Tensor t = at::tanh(gelu_inner(x));
    const Tensor inner = at::mul(at::add(at::mul(at::mul(x, x), 3 * kInner), 1), kSquareRoot2OverPi);
    slope = at::add(at::mul(at::add(t, 1), 0.5), at::mul(at::mul(at::mul(x, 0.5), at::rsub(at::mul(t, t), 1)), inner));
  } else {
    const Tensor density = at::mul(at::exp(at::mul(at::mul(x, x), -0.5)), M_2_SQRTPI * M_SQRT1_2 * 0.5);
    slope = at::add(at::mul(at::add(at::erf(at::mul(x, M_SQRT1_2)), 1), 0.5), at::mul(x, density));
  }
  return at::mul(wide(grad), slope).to(self.scalar_type());
}

Tensor rsqrt(const Tensor& self) { return at::reciprocal(at::sqrt(wide(self))).to(self.scalar_type()); }

// A power of two, made of its bits, times exp of what the exponent lacks to a whole number: exp of all of it would lose bits to
// the product with ln 2. Two powers, because one may be subnormal or past the largest number where the result is not.
Tensor exp2(const Tensor& self) {
  const Tensor x = self.to(at::kDouble).clamp(-1100, 1100), whole = at::round(x);
  const Tensor n = whole.to(at::kLong), half = at::bitwise_right_shift(n, 1);
  const auto power = [](const Tensor& k) { return at::bitwise_left_shift(at::add(k, 1023), 52).view(at::kDouble); };
  const Tensor mantissa = at::exp(at::mul(at::sub(x, whole), M_LN2));
  return at::mul(at::mul(mantissa, power(half)), power(at::sub(n, half))).to(self.scalar_type());
}

Tensor softplus(const Tensor& self, const Scalar& beta, const Scalar& threshold) {
  const Tensor x = wide(self), scaled = at::mul(x, beta);
  return at::where(at::gt(scaled, threshold), x, at::div(at::log1p(at::exp(scaled)), beta)).to(self.scalar_type());
}
Tensor softplus_backward(const Tensor& grad, const Tensor& self, const Scalar& beta, const Scalar& threshold) {
  const Tensor g = wide(grad), scaled = at::mul(wide(self), beta);
  return at::where(at::gt(scaled, threshold), g, at::mul(g, sigmoid_of(scaled))).to(self.scalar_type());
}

Tensor mish_of(const Tensor& x) { return at::tanh(at::log1p(at::exp(x))); }
Tensor mish(const Tensor& self) {
  const Tensor x = wide(self);
  return at::mul(x, mish_of(x)).to(self.scalar_type());
}
Tensor mish_backward(const Tensor& grad, const Tensor& self) {
  const Tensor x = wide(self), t = mish_of(x);
  const Tensor slope = at::add(t, at::mul(at::mul(x, sigmoid_of(x)), at::rsub(at::mul(t, t), 1)));
  return at::mul(wide(grad), slope).to(self.scalar_type());
}

Tensor elu(const Tensor& self, const Scalar& alpha, const Scalar& scale, const Scalar& input_scale) {
  const Tensor x = wide(self);
  const Tensor below = at::mul(at::expm1(at::mul(x, input_scale)), alpha.toDouble() * scale.toDouble());
  return at::where(at::gt(x, 0), at::mul(x, scale), below).to(self.scalar_type());
}

Tensor elu_backward(const Tensor& grad, const Scalar& alpha, const Scalar& scale, const Scalar& input_scale,
                    bool is_result, const Tensor& self_or_result) {
  const Tensor x = wide(self_or_result), g = wide(grad);
  const double slope = alpha.toDouble() * scale.toDouble();
  const Tensor grown = is_result ? at::add(x, slope) : at::mul(at::exp(at::mul(x, input_scale)), slope);
  return at::where(at::gt(x, 0), at::mul(g, scale), at::mul(g, at::mul(grown, input_scale)))
      .to(self_or_result.scalar_type());
}

// The gradient of one element of a loss.
Tensor of_loss(const Tensor& grad, const Tensor& self, int64_t reduction) {
  const double share = reduction == at::Reduction::Mean ? 1.0 / static_cast<double>(self.numel()) : 1.0;
  return at::mul(wide(grad), share);
}
// g with the sign of x
Tensor signed_as(const Tensor& x, const Tensor& g) { return at::where(at::gt(x, 0), g, at::neg(g)); }
Tensor smooth_l1_loss_backward(const Tensor& grad, const Tensor& self, const Tensor& target, int64_t reduction,
                               double beta) {
  const Tensor x = at::sub(wide(self), wide(target)), g = of_loss(grad, self, reduction);
  return at::where(at::ge(at::abs(x), beta), signed_as(x, g), at::div(at::mul(g, x), beta)).to(self.scalar_type());
}
Tensor huber_loss_backward(const Tensor& grad, const Tensor& self, const Tensor& target, int64_t reduction,
                           double delta) {
  const Tensor x = at::sub(wide(self), wide(target)), g = of_loss(grad, self, reduction);
  return at::where(at::gt(at::abs(x), delta), signed_as(x, at::mul(g, delta)), at::mul(g, x)).to(self.scalar_type());
}

// beta self + alpha u v^T
Tensor addr(const Tensor& self, const Tensor& u, const Tensor& v, const Scalar& beta, const Scalar& alpha) {
  TORCH_CHECK(u.dim() == 1 && v.dim() == 1, "addr takes two vectors, got ", u.sizes(), " and ", v.sizes());
  const Tensor outer = at::mul(at::mul(wide(u).unsqueeze(1), wide(v)), alpha);
  const Tensor result = beta.equal(0) ? outer : at::add(at::mul(wide(self), beta), outer);
  return result.to(at::native::result_type(at::TensorList({self, u, v})));
}

// Of complex numbers. Torch's loop rounds an element otherwise where those beside it have other weights.
Tensor lerp(const Tensor& self, const Tensor& end, const Tensor& weight) {
  TORCH_CHECK_TYPE(self.scalar_type() == end.scalar_type() && self.scalar_type() == weight.scalar_type(),
                   "lerp takes tensors of one dtype, got ", self.scalar_type(), ", ", end.scalar_type(), " and ",
                   weight.scalar_type());
  const Tensor way = at::sub(end, self), re = at::real(weight), im = at::imag(weight);
  const Tensor small = at::lt(at::add(at::mul(re, re), at::mul(im, im)), 0.25);
  return at::where(small, at::add(self, at::mul(weight, way)), at::sub(end, at::mul(way, at::rsub(weight, 1))));
}
Tensor lerp_by(const Tensor& self, const Tensor& end, const Scalar& weight) {
  return lerp(self, end, at::full({}, weight, self.options()));
}

}  // namespace

void replace_elementwise(torch::Library& m) {
  constexpr char kCuda[] = "on CUDA torch's is elementwise";
  replace_forms<&sigmoid, FloatsOnCpu>(m, "sigmoid", kCuda);
  replace_forms<&silu, FloatsAndComplexOnCpu>(m, "silu", kCuda);
  replace<&silu_backward, FloatsOnCpu>(m, "silu_backward", kCuda);
  replace_and_out<&glu, FloatsOnCpu>(m, "glu", kCuda);
  replace<&glu_backward, FloatsOnCpu>(m, "glu_backward", kCuda);
  replace_forms<&gelu, FloatsOnCpu>(m, "gelu", kCuda);
  replace<&gelu_backward, FloatsOnCpu>(m, "gelu_backward", kCuda);
  replace_forms<&rsqrt, FloatsOnCpu>(m, "rsqrt", kCuda);
  replace_forms<&exp2, FloatsOnCpu>(m, "exp2", kCuda);
  replace_and_out<&softplus, FloatsOnCpu>(m, "softplus", kCuda);
  replace<&softplus_backward, FloatsOnCpu>(m, "softplus_backward", kCuda);
  replace_and_out<&mish, FloatsOnCpu>(m, "mish", kCuda);
  replace<&mish_backward, FloatsOnCpu>(m, "mish_backward", kCuda);
  replace_forms<&elu, FloatsOnCpu>(m, "elu", kCuda);
  replace<&elu_backward, FloatsOnCpu>(m, "elu_backward", kCuda);
  replace<&smooth_l1_loss_backward, FloatsOnCpu>(m, "smooth_l1_loss_backward", kCuda);
  replace<&huber_loss_backward, FloatsOnCpu>(m, "huber_loss_backward", kCuda);
  constexpr char kReal[] = "elementwise";
  replace_forms<&lerp, ComplexOnCpu>(m, "lerp.Tensor", kReal);
  replace_forms<&lerp_by, ComplexOnCpu>(m, "lerp.Scalar", kReal);
  replace_forms<&addr, FloatsOnCpu>(m, "addr", kCuda);
}

}  // namespace treduce::invariant
