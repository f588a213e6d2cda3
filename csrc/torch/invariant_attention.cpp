// In the mode, attention is ours as a whole. Torch takes it apart above autograd, so it is replaced there too.
#include <precompiled.h>

#include <ATen/ExpandUtils.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>

#include <algorithm>

#include "attention.h"
#include "invariant_ops.h"
#include "reduce_schema.h"

namespace treduce::invariant {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

int64_t broadcast(int64_t a, int64_t b) { return at::infer_size({a}, {b})[0]; }

// Torch broadcasts batches and heads; our op takes as many of each operand, but for heads of keys that several queries share.
void broadcast(Tensor& query, Tensor& key, Tensor& value, bool enable_gqa) {
  const int64_t dims = std::max({query.dim(), key.dim(), value.dim()});
  for (Tensor* x : {&query, &key, &value}) {
    while (x->dim() < dims) *x = x->unsqueeze(0);
  }
  if (dims == 4) {
    const int64_t batch = broadcast(query.size(0), broadcast(key.size(0), value.size(0)));
    for (Tensor* x : {&query, &key, &value}) *x = x->expand({batch, -1, -1, -1});
  }
  if (dims >= 3) {
    if (enable_gqa && key.size(-3) != value.size(-3)) {  // torch repeats heads of keys and heads of values apart
      for (Tensor* x : {&key, &value}) {
        const int64_t heads = x->size(-3), times = heads > 0 ? query.size(-3) / heads : 1;
        if (heads > 1 && heads * times == query.size(-3)) *x = x->repeat_interleave(times, -3);
      }
    }
    const int64_t heads = broadcast(key.size(-3), value.size(-3));
    const auto with_heads = [&](Tensor& x) {
      std::vector<int64_t> sizes = x.sizes().vec();
      sizes[dims - 3] = heads;
      x = x.expand(sizes);
    };
    with_heads(key);
    with_heads(value);
    if (query.size(-3) == 1) with_heads(query);
  }
}

// Dropout and gradients of masks are left to torch's composition, whose products and softmax are ours.
Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& attn_mask,
                 double dropout_p, bool is_causal, std::optional<double> scale, bool enable_gqa) {
  const bool of_mask =
      attn_mask.has_value() && (attn_mask->requires_grad() || attn_mask->_fw_grad(/*level=*/0).defined());
  if (dropout_p > 0 || of_mask || std::max({query.dim(), key.dim(), value.dim()}) > 4) {
    return std::get<0>(at::_scaled_dot_product_attention_math(query, key, value, attn_mask, dropout_p, is_causal,
                                                              std::nullopt, scale, enable_gqa));
  }
  static const auto op = reduce::find_op<attention::Schema>("treduce::scaled_dot_product_attention");
  Tensor q = query, k = key, v = value;
  if (std::min({q.dim(), k.dim(), v.dim()}) >= 2) broadcast(q, k, v, enable_gqa);
  return op.call(q, k, v, attn_mask, dropout_p, is_causal, scale, enable_gqa);
}

}  // namespace

void replace_attention(torch::Library& m) {
  replace_above<&attention, &at::native::scaled_dot_product_attention, Floats>(m, "scaled_dot_product_attention");
}

}  // namespace treduce::invariant
