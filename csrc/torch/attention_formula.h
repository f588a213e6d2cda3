// Attention and its gradients as formulas of our differentiable ops: their tangents and derivatives are those of attention's kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace treduce::attention {

struct Triple {
  at::Tensor query, key, value;
};

// Of a call that was checked. All scores are held at once, so memory is quadratic in the length.
class Formula {
 public:
  Formula(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
          const std::optional<at::Tensor>& attn_mask, bool is_causal, std::optional<double> scale);

  at::Tensor result() const;
  Triple gradients(const at::Tensor& grad) const;
  // Given gradients of these gradients, those of `grad` and of the operands. Those given may be undefined.
  std::pair<at::Tensor, Triple> gradients_of_gradients(const at::Tensor& grad, const Triple& given) const;

 private:
  at::Tensor rows(
      const at::Tensor& x) const;  // of a tensor like the query: those of the heads that share a head of keys
  at::Tensor unrolled(const at::Tensor& x) const;
  at::Tensor wide(const at::Tensor& x) const;
  at::Tensor along(const at::Tensor& x) const;  // sums of probabilities * x

  at::Tensor query_, key_, value_;  // as given
  double scale_;
  c10::SymInt heads_, group_;
  at::Tensor q_, k_, v_;      // (batch, heads, rows or keys, width), widened
  at::Tensor probabilities_;  // softmax(scale q k^T + mask), (batch, heads, rows, keys)
};

}  // namespace treduce::attention
