// aten's row operations, by ours where those fit and else by several ops.
#include <precompiled.h>

#include "composed.h"

#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/div.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sub.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ours.h"
#include "row_sums.h"

namespace treduce::composed {

at::ScalarType accumulator(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type;
}

namespace {

at::Tensor widened(const at::Tensor& x) { return converted(x, accumulator(x.scalar_type())); }

int64_t count(const at::Tensor& x, at::OptionalIntArrayRef dim) {
  if (!dim.has_value() || dim->empty()) return x.numel();
  int64_t n = 1;
  for (const int64_t d : *dim) n *= x.dim() == 0 ? 1 : x.size(d);
  return n;
}

}  // namespace

at::Tensor softmax(const at::Tensor& x, int64_t dim, at::ScalarType type) {
  return converted(ours::softmax(converted(x, type), dim), type);
}

at::Tensor log_softmax(const at::Tensor& x, int64_t dim, at::ScalarType type) {
  return converted(ours::log_softmax(converted(x, type), dim), type);
}

at::Tensor softmax_backward(const at::Tensor& grad, const at::Tensor& y, int64_t dim, at::ScalarType type) {
  return converted(ours::softmax_backward(converted(grad, y.scalar_type()), y, dim), type);
}

at::Tensor log_softmax_backward(const at::Tensor& grad, const at::Tensor& y, int64_t dim, at::ScalarType type) {
  return converted(ours::log_softmax_backward(converted(grad, y.scalar_type()), y, dim), type);
}

at::Tensor logsumexp(const at::Tensor& x, at::IntArrayRef dim, bool keepdim) {
  if (dim.size() == 1) return ours::logsumexp(x, dim[0], keepdim);
  // Several dims as the last one.
  const auto reduced = at::dim_list_to_bitset(dim.empty() ? at::OptionalIntArrayRef() : dim, x.dim());
  if (x.dim() == 0) return ours::logsumexp(x, 0, keepdim);
  std::vector<int64_t> order, last, sizes;
  for (int64_t d = 0; d < x.dim(); ++d) {
    (reduced[d] ? last : order).push_back(d);
    if (!reduced[d] || keepdim) sizes.push_back(reduced[d] ? 1 : x.size(d));
  }
  const auto kept = static_cast<int64_t>(order.size());
  order.insert(order.end(), last.begin(), last.end());
  return ours::logsumexp(x.permute(order).flatten(kept), -1, /*keepdim=*/false).reshape(sizes);
}

at::Tensor safe_softmax(const at::Tensor& x) {
  if (x.numel() == 0) return x;
  const at::Tensor nothing = at::eq(ours::amax(x, -1, /*keepdim=*/true), -std::numeric_limits<double>::infinity());
  return ours::softmax(x, -1).masked_fill_(nothing, 0);
}

std::tuple<at::Tensor, at::Tensor> var_mean(const at::Tensor& x, at::OptionalIntArrayRef dim, double correction,
                                            bool keepdim, bool root) {
  auto [center, squares] = moments_in_one_read(x, dim, keepdim);
  if (!squares.defined()) {
    const at::Tensor wide = widened(x);
    center = ours::mean(wide, dim, /*keepdim=*/true);
    const at::Tensor off = at::sub(wide, center);
    squares = ours::sum(at::mul(off, off), dim, keepdim);
  }
  const double n = std::max(0.0, static_cast<double>(count(x, dim)) - correction);
  // On CUDA, torch multiplies by the reciprocal of a number that lies on the host.
  at::Tensor variance = at::div(squares, at::full({}, n, squares.options()));
  if (root) variance = ours::sqrt(variance);
  return {variance.to(x.scalar_type()), center.reshape(variance.sizes()).to(x.scalar_type())};
}

at::Tensor norm(const at::Tensor& x, double order, at::OptionalIntArrayRef dim, bool keepdim, at::ScalarType type) {
  if (order == 2 && accumulator(x.scalar_type()) == accumulator(type)) {
    const at::Tensor squares = squares_in_one_read(x, dim, keepdim);
    if (squares.defined()) return ours::sqrt(squares).to(type);
  }
  const at::Tensor wide = x.to(accumulator(type));
  if (order == 0) return ours::sum(at::ne(wide, 0).to(wide.scalar_type()), dim, keepdim).to(type);
  const at::Tensor size = at::abs(wide);
  if (std::isinf(order)) {
    return (order > 0 ? ours::amax(size, dim, keepdim) : ours::amin(size, dim, keepdim)).to(type);
  }
  if (order == 1) return ours::sum(size, dim, keepdim).to(type);
  if (order == 2) return ours::sqrt(ours::sum(at::mul(wide, wide), dim, keepdim)).to(type);
  return at::pow(ours::sum(at::pow(size, order), dim, keepdim), 1 / order).to(type);
}

namespace {

// Rows are normalised in the dtype of the weights, where that is wider than their own.
at::ScalarType common(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const at::ScalarType type = x.scalar_type();
  const bool same =
      (!weight.defined() || weight.scalar_type() == type) && (!bias.defined() || bias.scalar_type() == type);
  return same ? type : accumulator(type);
}
at::Tensor cast(const at::Tensor& x, at::ScalarType type) { return x.defined() ? converted(x, type) : x; }

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm(const at::Tensor& x, const at::Tensor& weight,
                                                          const at::Tensor& bias, double eps) {
  const at::ScalarType type = common(x, weight, bias);
  auto [y, mean, rstd] = ours::layer_norm(converted(x, type), cast(weight, type), cast(bias, type), eps);
  return {converted(y, x.scalar_type()), mean, rstd};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_backward(const at::Tensor& grad, const at::Tensor& x,
                                                                   const at::Tensor& mean, const at::Tensor& rstd,
                                                                   const at::Tensor& weight,
                                                                   std::array<bool, 3> wanted) {
  const at::ScalarType type = common(x, weight, grad);
  at::Tensor dx, dweight, dbias;
  if (wanted[0]) {
    dx = ours::layer_norm_backward(converted(grad, type), converted(x, type), mean, rstd, cast(weight, type));
    dx = converted(dx, x.scalar_type());
  }
  if (wanted[1]) {
    const at::Tensor normed = at::sub(widened(x), mean).mul_(rstd);
    dweight = ours::sum(normed.mul_(widened(grad)), 0, /*keepdim=*/false);
  }
  if (wanted[2]) dbias = ours::sum(grad, 0, /*keepdim=*/false, accumulator(grad.scalar_type()));
  return {dx, dweight, dbias};
}

std::tuple<at::Tensor, at::Tensor> rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::ScalarType type = common(x, weight, at::Tensor());
  auto [y, rstd] = ours::rms_norm(converted(x, type), cast(weight, type), eps);
  return {converted(y, x.scalar_type()), rstd};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& grad, const at::Tensor& x,
                                                     const at::Tensor& rstd, const at::Tensor& weight,
                                                     std::array<bool, 2> wanted) {
  const at::ScalarType type = common(x, weight, grad);
  at::Tensor dx, dweight;
  if (wanted[0]) {
    dx = ours::rms_norm_backward(converted(grad, type), converted(x, type), rstd, cast(weight, type));
    dx = converted(dx, x.scalar_type());
  }
  if (wanted[1]) {
    const at::Tensor normed = at::mul(widened(x), rstd);
    dweight = ours::sum(normed.mul_(widened(grad)), 0, /*keepdim=*/false);
  }
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
