// A call of attention after all checks, and how it is composed where no kernel takes it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/sort.h>

#include <cmath>
#include <optional>
#include <tuple>

#include "composed.h"
#include "ours.h"

namespace treduce::attention {

// What can be said of the operands without their sizes.
inline void check_operands(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const std::optional<at::Tensor>& attn_mask) {
  TORCH_CHECK_VALUE(q.dim() >= 2 && q.dim() <= 4 && k.dim() == q.dim() && v.dim() == q.dim(),
                    "scaled_dot_product_attention takes query, key and value of 2 to 4 dims each, got ", q.dim(), ", ",
                    k.dim(), " and ", v.dim());
  TORCH_CHECK_TYPE(at::isFloatingType(q.scalar_type()) && q.element_size() > 1 && k.scalar_type() == q.scalar_type() &&
                       v.scalar_type() == q.scalar_type(),
                   "scaled_dot_product_attention takes query, key and value of one dtype of float16, bfloat16, float32 "
                   "and float64, got ",
                   q.scalar_type(), ", ", k.scalar_type(), " and ", v.scalar_type());
  TORCH_CHECK_VALUE(k.device() == q.device() && v.device() == q.device(),
                    "scaled_dot_product_attention takes query, key and value on one device, got ", q.device(), ", ",
                    k.device(), " and ", v.device());
  TORCH_CHECK_VALUE(!attn_mask.has_value() || attn_mask->device() == q.device(),
                    "scaled_dot_product_attention takes an attn_mask on the query's device, ", q.device(), ", got ",
                    attn_mask->device());
}

// query (batch, heads * group, length, width): `group` heads share a head of key and value (batch, heads, keys, width).
// The mask is (batch, heads * group, length, keys); each size but the last may be 1 instead.
struct Call {
  at::Tensor query, key, value, mask;
  at::Tensor order;  // of the keys, (batch, keys), where some were moved to the end
  bool causal;
  double scale;
  int64_t batch, heads, group, length, keys;
  at::ScalarType wide;

  Call(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& attn_mask,
       double dropout_p, bool is_causal, std::optional<double> given_scale, bool enable_gqa)
      : causal(is_causal) {
    TORCH_CHECK_VALUE(dropout_p == 0, "scaled_dot_product_attention takes dropout_p 0, got ", dropout_p);
    check_operands(q, k, v, attn_mask);
    TORCH_CHECK_VALUE(!(is_causal && attn_mask.has_value()),
                      "scaled_dot_product_attention takes attn_mask or is_causal, got both");
    const at::Tensor q4 = four(q), k4 = four(k), v4 = four(v);
    TORCH_CHECK_VALUE(q4.size(3) == k4.size(3) && k4.size(2) == v4.size(2) && k4.size(1) == v4.size(1) &&
                          q4.size(0) == k4.size(0) && k4.size(0) == v4.size(0),
                      "scaled_dot_product_attention: sizes do not fit: query ", q.sizes(), ", key ", k.sizes(),
                      ", value ", v.sizes());
    const bool grouped = enable_gqa || k4.size(1) == 1;
    TORCH_CHECK_VALUE(q4.size(1) == k4.size(1) || (grouped && k4.size(1) > 0 && q4.size(1) % k4.size(1) == 0),
                      "scaled_dot_product_attention: query has ", q4.size(1), " heads and key ", k4.size(1),
                      grouped ? ", which do not divide them" : "; enable_gqa=True shares heads of key and value");
    batch = q4.size(0);
    heads = k4.size(1);
    group = heads ? q4.size(1) / heads : 1;
    length = q4.size(2);
    keys = k4.size(2);
    wide = composed::accumulator(q.scalar_type());
    scale = given_scale.value_or(1 / std::sqrt(static_cast<double>(q4.size(3))));
    query = q4;
    key = k4;
    value = v4;
    if (attn_mask.has_value()) {
      at::Tensor m = *attn_mask;
      while (m.dim() < 4) m = m.unsqueeze(0);
      TORCH_CHECK_VALUE(m.dim() == 4 && (m.size(0) == 1 || m.size(0) == batch) &&
                            (m.size(1) == 1 || m.size(1) == heads * group) && (m.size(2) == 1 || m.size(2) == length) &&
                            (m.size(3) == 1 || m.size(3) == keys),
                        "scaled_dot_product_attention: attn_mask ", attn_mask->sizes(), " does not broadcast to ",
                        at::IntArrayRef({batch, heads * group, length, keys}));
      mask = m.expand({m.size(0), m.size(1), m.size(2), keys});
      move_padding();
    }
  }

  // (batch, heads, group, length, width)
  at::Tensor grouped_query() const { return query.unflatten(1, {heads, group}); }

  // Keys that no query of their batch attends, such as padding, go to the end: a padded prompt then has the bits that it has
  // alone.
  void move_padding() {
    // Masks say so by -inf, by the lowest number of a dtype, by -1e9: exp is 0 of each.
    constexpr double kUnseen = -1e4;
    if (mask.numel() == 0) return;
    const at::Tensor attended = mask.scalar_type() == at::kBool
                                    ? mask.any(1).any(1)
                                    : at::gt(ours::amax(mask, at::IntArrayRef({1, 2}), /*keepdim=*/false), kUnseen);
    const at::Tensor unused = at::logical_not(attended);
    if (unused.is_cpu() && !unused.any().item<bool>()) return;
    order = std::get<1>(at::sort(unused.to(at::kByte), /*stable=*/true, /*dim=*/-1, /*descending=*/false));
    mask =
        at::gather(mask, 3, order.unsqueeze(1).unsqueeze(1).expand({order.size(0), mask.size(1), mask.size(2), keys}));
    order = order.expand({batch, keys});
    key = at::gather(key, 2, index(key));
    value = at::gather(value, 2, index(value));
  }
  at::Tensor index(const at::Tensor& of) const { return order.unsqueeze(1).unsqueeze(-1).expand(of.sizes()); }

  // The gradient of keys or values in the caller's order, with `like`'s device, dtype and shape.
  at::Tensor moved_back(const at::Tensor& grad, const at::Tensor& like) const {
    const at::Tensor result = at::empty_like(like);
    at::Tensor all = four(result);
    if (order.defined()) {
      all.scatter_(2, index(grad), grad.to(like.scalar_type()));
    } else {
      all.copy_(grad);
    }
    return result;
  }

  bool is_empty() const { return batch * heads * group * length * keys * value.size(3) == 0; }

  static at::Tensor four(at::Tensor x) {
    while (x.dim() < 4) x = x.unsqueeze(0);
    return x;
  }
};

// Results have the query's layout, and a gradient that of its tensor, so that models need not copy them.
inline at::Tensor empty_result(const at::Tensor& query, const at::Tensor& value) {
  if (query.sym_size(-1) == value.sym_size(-1)) return at::empty_like(query);
  c10::SymDimVector sizes(query.sym_sizes());
  sizes.back() = value.sym_size(-1);
  return at::empty_symint(sizes, query.options());
}

// Needs: a call that is not empty.
void compose(const Call& call, const at::Tensor& result);
std::tuple<at::Tensor, at::Tensor, at::Tensor> compose_gradients(const Call& call, const at::Tensor& grad,
                                                                 const at::Tensor& query, const at::Tensor& key,
                                                                 const at::Tensor& value);

}  // namespace treduce::attention
