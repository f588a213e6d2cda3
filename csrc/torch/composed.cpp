#include "composed.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/isinf.h>
#include <ATen/ops/log.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/sub.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ours.h"

namespace treduce::composed {

at::ScalarType accumulator(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type;
}

namespace {

at::Tensor widened(const at::Tensor& x) { return x.to(accumulator(x.scalar_type())); }

// x - max of its row, and exp of it summed along the row.
struct Shifted {
  at::Tensor difference, exps, total;
  Shifted(const at::Tensor& x, int64_t dim) {
    const at::Tensor wide = widened(x);
    difference = at::sub(wide, ours::amax(wide, dim, /*keepdim=*/true));
    exps = at::exp(difference);
    total = ours::sum(exps, dim, /*keepdim=*/true);
  }
};

int64_t count(const at::Tensor& x, at::OptionalIntArrayRef dim) {
  if (!dim.has_value() || dim->empty()) return x.numel();
  int64_t n = 1;
  for (const int64_t d : *dim) n *= x.size(d);
  return n;
}

}  // namespace

at::Tensor softmax(const at::Tensor& x, int64_t dim, at::ScalarType type) {
  if (x.numel() == 0 || x.dim() == 0) return at::exp(at::sub(x, x)).to(type);
  const Shifted row(x, dim);
  return at::div(row.exps, row.total).to(type);
}

at::Tensor softmax_backward(const at::Tensor& grad, const at::Tensor& y, int64_t dim, at::ScalarType type) {
  if (y.numel() == 0 || y.dim() == 0) return at::mul(at::sub(grad, grad), y).to(type);
  const at::Tensor g = widened(grad), p = widened(y);
  const at::Tensor along = ours::sum(at::mul(g, p), dim, /*keepdim=*/true);
  return at::mul(p, at::sub(g, along)).to(type);
}

at::Tensor log_softmax(const at::Tensor& x, int64_t dim, at::ScalarType type) {
  if (x.numel() == 0 || x.dim() == 0) return at::sub(x, x).to(type);
  const Shifted row(x, dim);
  return at::sub(row.difference, at::log(row.total)).to(type);
}

at::Tensor log_softmax_backward(const at::Tensor& grad, const at::Tensor& y, int64_t dim, at::ScalarType type) {
  if (y.numel() == 0 || y.dim() == 0) return at::sub(grad, grad).to(type);
  const at::Tensor g = widened(grad);
  const at::Tensor total = ours::sum(g, dim, /*keepdim=*/true);
  return at::sub(g, at::mul(at::exp(widened(y)), total)).to(type);
}

at::Tensor logsumexp(const at::Tensor& x, at::IntArrayRef dim, bool keepdim) {
  const at::Tensor wide = widened(x);
  if (count(x, dim) == 0) return at::log(ours::sum(wide, dim, keepdim)).to(x.scalar_type());
  // An infinite maximum would make inf - inf: exp of the elements themselves is then what torch takes.
  at::Tensor most = ours::amax(wide, dim, /*keepdim=*/true);
  most = most.masked_fill(at::isinf(most), 0);
  const at::Tensor total = ours::sum(at::exp(at::sub(wide, most)), dim, keepdim);
  return at::add(at::log(total), most.reshape(total.sizes())).to(x.scalar_type());
}

at::Tensor safe_softmax(const at::Tensor& x, at::ScalarType type) {
  if (x.numel() == 0) return x.to(type);
  at::Tensor most = ours::amax(x, -1, /*keepdim=*/true);
  most = most.masked_fill(at::eq(most, -std::numeric_limits<double>::infinity()), 0);
  const at::Tensor exps = at::sub(x, most).exp_();
  at::Tensor total = ours::sum(exps, -1, /*keepdim=*/true);
  total = total.masked_fill(at::eq(total, 0), 1);
  return at::div(exps, total).to(type);
}

std::tuple<at::Tensor, at::Tensor> var_mean(const at::Tensor& x, at::OptionalIntArrayRef dim, double correction,
                                            bool keepdim) {
  const at::Tensor wide = widened(x);
  const at::Tensor center = ours::mean(wide, dim, /*keepdim=*/true);
  const at::Tensor off = at::sub(wide, center);
  const double n = std::max(0.0, static_cast<double>(count(x, dim)) - correction);
  const at::Tensor variance = at::div(ours::sum(at::mul(off, off), dim, keepdim), n);
  return {variance.to(x.scalar_type()), center.reshape(variance.sizes()).to(x.scalar_type())};
}

at::Tensor norm(const at::Tensor& x, double order, at::OptionalIntArrayRef dim, bool keepdim, at::ScalarType type) {
  const at::Tensor wide = x.to(accumulator(type));
  if (order == 0) return ours::sum(at::ne(wide, 0).to(wide.scalar_type()), dim, keepdim).to(type);
  const at::Tensor size = at::abs(wide);
  if (std::isinf(order)) {
    return (order > 0 ? ours::amax(size, dim, keepdim) : ours::amin(size, dim, keepdim)).to(type);
  }
  if (order == 1) return ours::sum(size, dim, keepdim).to(type);
  if (order == 2) return at::sqrt(ours::sum(at::mul(wide, wide), dim, keepdim)).to(type);
  return at::pow(ours::sum(at::pow(size, order), dim, keepdim), 1 / order).to(type);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm(const at::Tensor& x, const at::Tensor& weight,
                                                          const at::Tensor& bias, double eps) {
  const at::Tensor wide = widened(x);
  const at::Tensor center = ours::mean(wide, 1, /*keepdim=*/true);
  at::Tensor y = at::sub(wide, center);
  const at::Tensor rstd = ours::mean(at::mul(y, y), 1, /*keepdim=*/true).add_(eps).rsqrt_();
  y.mul_(rstd);
  if (weight.defined()) y.mul_(weight);
  if (bias.defined()) y.add_(bias);
  return {y.to(x.scalar_type()), center, rstd};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_backward(const at::Tensor& grad, const at::Tensor& x,
                                                                   const at::Tensor& mean, const at::Tensor& rstd,
                                                                   const at::Tensor& weight,
                                                                   std::array<bool, 3> wanted) {
  const at::Tensor g = widened(grad);
  const at::Tensor normed = at::sub(widened(x), mean).mul_(rstd);
  at::Tensor dx, dweight, dbias;
  if (wanted[0]) {
    const at::Tensor scaled = weight.defined() ? at::mul(g, weight) : g;
    const at::Tensor along = ours::mean(scaled, 1, /*keepdim=*/true);
    const at::Tensor across = ours::mean(at::mul(scaled, normed), 1, /*keepdim=*/true);
    dx = at::sub(at::sub(scaled, along), at::mul(normed, across)).mul_(rstd).to(x.scalar_type());
  }
  if (wanted[1]) dweight = ours::sum(at::mul(g, normed), 0, /*keepdim=*/false);
  if (wanted[2]) dbias = ours::sum(g, 0, /*keepdim=*/false);
  return {dx, dweight, dbias};
}

std::tuple<at::Tensor, at::Tensor> rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor wide = widened(x);
  const at::Tensor rstd = ours::mean(at::mul(wide, wide), 1, /*keepdim=*/true).add_(eps).rsqrt_();
  at::Tensor y = at::mul(wide, rstd);
  if (weight.defined()) y.mul_(weight);
  return {y.to(x.scalar_type()), rstd};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& grad, const at::Tensor& x,
                                                     const at::Tensor& rstd, const at::Tensor& weight,
                                                     std::array<bool, 2> wanted) {
  const at::Tensor g = widened(grad);
  const at::Tensor normed = at::mul(widened(x), rstd);
  at::Tensor dx, dweight;
  if (wanted[0]) {
    const at::Tensor scaled = weight.defined() ? at::mul(g, weight) : g;
    const at::Tensor across = ours::mean(at::mul(scaled, normed), 1, /*keepdim=*/true);
    dx = at::sub(scaled, at::mul(normed, across)).mul_(rstd).to(x.scalar_type());
  }
  if (wanted[1]) dweight = ours::sum(at::mul(g, normed), 0, /*keepdim=*/false);
  return {dx, dweight};
}

std::tuple<at::Tensor, at::Tensor> nll(const at::Tensor& log_probs, const at::Tensor& target, const at::Tensor& weight,
                                       int64_t ignored) {
  const at::Tensor skipped = at::eq(target, ignored);
  const at::Tensor index = target.to(at::kLong).masked_fill(skipped, 0);
  at::Tensor loss = at::neg(at::gather(log_probs, 1, index.unsqueeze(1)).squeeze(1));
  at::Tensor weights = weight.defined() ? at::index_select(weight, 0, index) : at::ones_like(loss);
  if (weight.defined()) loss = at::mul(loss, weights);
  return {loss.masked_fill(skipped, 0), weights.masked_fill(skipped, 0)};
}

}  // namespace treduce::composed
