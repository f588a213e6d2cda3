// In the mode, attention is ours as a whole. Torch takes it apart above autograd, so it is replaced there too.
#include <precompiled.h>

#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>

#include "attention.h"
#include "invariant_ops.h"
#include "reduce_schema.h"

namespace treduce::invariant {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// Dropout and gradients of masks are left to torch's composition, whose products and softmax are ours.
Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& attn_mask,
                 double dropout_p, bool is_causal, std::optional<double> scale, bool enable_gqa) {
  const bool of_mask =
      attn_mask.has_value() && (attn_mask->requires_grad() || attn_mask->_fw_grad(/*level=*/0).defined());
  if (dropout_p > 0 || of_mask || query.dim() > 4) {
    return std::get<0>(at::_scaled_dot_product_attention_math(query, key, value, attn_mask, dropout_p, is_causal,
                                                              std::nullopt, scale, enable_gqa));
  }
  static const auto op = reduce::find_op<attention::Schema>("treduce::scaled_dot_product_attention");
  return op.call(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa);
}

Tensor above_autograd(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& attn_mask,
                      double dropout_p, bool is_causal, std::optional<double> scale, bool enable_gqa) {
  if (active()) {
    Seen seen;
    seen.look(query);
    if (Floats::judge(seen) == Verdict::ours) {
      Replaced<&attention, Floats>::entry->ours.fetch_add(1, std::memory_order_relaxed);
      return attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa);
    }
  }
  return at::native::scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale,
                                                  enable_gqa);
}

}  // namespace

void replace_attention(torch::Library& m) {
  replace<&attention>(m, "scaled_dot_product_attention");
  for (const c10::DispatchKey key : {c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA}) {
    auto* library = new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    library->impl("scaled_dot_product_attention", &above_autograd);
  }
}

}  // namespace treduce::invariant
