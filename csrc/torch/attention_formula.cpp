// With S the scores, P their softmax, G the result's gradient and dP = G V^T: the gradients are scale dS K, scale dS^T Q and P^T G, where
// dS = P (dP - D) and D has the sums of P dP by rows.
#include <precompiled.h>

#include "attention_formula.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <limits>

#include "composed.h"
#include "ours.h"

namespace treduce::attention {
namespace {

using at::Tensor;

Tensor four(Tensor x) {
  while (x.dim() < 4) x = x.unsqueeze(0);
  return x;
}

// In the shape and dtype of an operand.
Tensor as(const Tensor& operand, const Tensor& x) {
  return x.reshape_symint(operand.sym_sizes()).to(operand.scalar_type());
}

}  // namespace

Formula::Formula(const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& attn_mask,
                 bool is_causal, std::optional<double> scale)
    : query_(query),
      key_(key),
      value_(value),
      scale_(scale.value_or(1 / std::sqrt(static_cast<double>(query.sym_size(-1).guard_int(__FILE__, __LINE__))))),
      heads_(four(key).sym_size(1)),
      group_(heads_ == 0 ? c10::SymInt(1) : four(query).sym_size(1) / heads_),
      q_(rows(query)),
      k_(wide(key)),
      v_(wide(value)) {
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  Tensor scores = unrolled(ours::matmul(q_, k_.mT()) * scale_);
  if (is_causal) {
    const auto options = query.options().dtype(at::kLong);
    const Tensor after = at::arange(key.sym_size(-2), options), row = at::arange(query.sym_size(-2), options);
    scores = at::masked_fill(scores, at::gt(after, row.unsqueeze(1)), kNever);
  }
  Tensor nothing;
  if (attn_mask.has_value()) {
    const Tensor mask = four(*attn_mask);
    scores = mask.scalar_type() == at::kBool ? at::masked_fill(scores, at::logical_not(mask), kNever)
                                             : scores + mask.to(scores.scalar_type());
    // Rows that attend nothing become zeros by way of numbers, for derivatives of softmax there are NaN.
    if (scores.sym_size(-1) > 0) {
      nothing = at::eq(ours::amax(scores, -1, /*keepdim=*/true), kNever);
      scores = at::masked_fill(scores, nothing, 0);
    }
  }
  Tensor p = ours::softmax(scores, -1);
  if (nothing.defined()) p = at::masked_fill(p, nothing, 0);
  probabilities_ = p.unflatten_symint(1, {heads_, group_}).flatten(2, 3);
}

Tensor Formula::wide(const Tensor& x) const { return four(x).to(composed::accumulator(query_.scalar_type())); }
Tensor Formula::rows(const Tensor& x) const { return wide(x).unflatten_symint(1, {heads_, group_}).flatten(2, 3); }
Tensor Formula::unrolled(const Tensor& x) const {
  return x.unflatten_symint(2, {group_, query_.sym_size(-2)}).flatten(1, 2);
}
Tensor Formula::along(const Tensor& x) const { return ours::sum(probabilities_ * x, -1, /*keepdim=*/true); }

Tensor Formula::result() const {
  const Tensor result = unrolled(ours::matmul_of_lengths(probabilities_, v_));
  c10::SymDimVector sizes(query_.sym_sizes());
  sizes.back() = value_.sym_size(-1);
  return result.reshape_symint(sizes).to(query_.scalar_type());
}

Triple Formula::gradients(const Tensor& grad) const {
  const Tensor g = rows(grad), dp = ours::matmul(g, v_.mT());
  const Tensor ds = probabilities_ * (dp - along(dp)) * scale_;
  return {as(query_, unrolled(ours::matmul_of_lengths(ds, k_))), as(key_, ours::matmul_of_lengths(ds.mT(), q_)),
          as(value_, ours::matmul_of_lengths(probabilities_.mT(), g))};
}

std::pair<Tensor, Triple> Formula::gradients_of_gradients(const Tensor& grad, const Triple& given) const {
  const Tensor a = given.query.defined() ? rows(given.query) : at::zeros_like(q_);
  const Tensor b = given.key.defined() ? wide(given.key) : at::zeros_like(k_);
  const Tensor c = given.value.defined() ? wide(given.value) : at::zeros_like(v_);
  const Tensor g = rows(grad), dp = ours::matmul(g, v_.mT());
  const Tensor centred = dp - along(dp), ds = probabilities_ * centred * scale_;
  // From here on a name is of the gradient of the sum of given * gradients by what it names.
  const Tensor of_ds = (ours::matmul(a, k_.mT()) + ours::matmul(q_, b.mT())) * scale_, row = along(of_ds);
  const Tensor of_dp = probabilities_ * (of_ds - row);
  const Tensor of_p = of_ds * centred - row * dp + ours::matmul(g, c.mT());
  const Tensor of_s = probabilities_ * (of_p - along(of_p)) * scale_;
  const Tensor of_q = ours::matmul_of_lengths(of_s, k_) + ours::matmul_of_lengths(ds, b);
  const Tensor of_k = ours::matmul_of_lengths(of_s.mT(), q_) + ours::matmul_of_lengths(ds.mT(), a);
  const Tensor of_g = ours::matmul_of_lengths(of_dp, v_) + ours::matmul_of_lengths(probabilities_, c);
  return {as(grad, unrolled(of_g)),
          {as(query_, unrolled(of_q)), as(key_, of_k), as(value_, ours::matmul_of_lengths(of_dp.mT(), g))}};
}

}  // namespace treduce::attention
