// Attention, composed of our products and softmax: a piece of the queries at a time against all keys before its end, so memory is
// linear in the length. A query's result is a function of itself and of the keys that it attends, in their order. Keys that are
// masked at the end add zeros: they change neither pairwise sums nor products that take k in order.
#include "attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "composed.h"
#include "ours.h"

namespace treduce::attention {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr int64_t kScores = int64_t(1) << 26;       // held at a time on CUDA, 256 MB of float32
constexpr int64_t kScoresOnCpu = int64_t(1) << 20;  // what its caches hold
constexpr int64_t kQueries = 256;                   // whose share of the gradients of keys is added at a time: an order

// query (batch, heads, group, length, width): `group` heads share a head of key and value (batch, heads, keys, width).
// The mask is that of the query, with keys in place of the width, and may have size 1 elsewhere.
struct Call {
  Tensor query, key, value, mask;
  Tensor order;  // of the keys, (batch, keys), where some were moved to the end
  bool causal;
  double scale;
  int64_t batch, heads, group, length, keys;
  at::ScalarType wide;

  Call(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& attn_mask, bool is_causal,
       std::optional<double> given_scale, bool enable_gqa)
      : causal(is_causal) {
    TORCH_CHECK_VALUE(q.dim() >= 2 && q.dim() <= 4 && k.dim() == q.dim() && v.dim() == q.dim(),
                      "scaled_dot_product_attention takes query, key and value of 2 to 4 dims each, got ", q.dim(),
                      ", ", k.dim(), " and ", v.dim());
    TORCH_CHECK_TYPE(
        at::isFloatingType(q.scalar_type()) && q.element_size() > 1 && k.scalar_type() == q.scalar_type() &&
            v.scalar_type() == q.scalar_type(),
        "scaled_dot_product_attention takes query, key and value of one dtype of float16, bfloat16, float32 "
        "and float64, got ",
        q.scalar_type(), ", ", k.scalar_type(), " and ", v.scalar_type());
    TORCH_CHECK_VALUE(!(is_causal && attn_mask.has_value()),
                      "scaled_dot_product_attention takes attn_mask or is_causal, got both");
    const Tensor q4 = four(q), k4 = four(k), v4 = four(v);
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
    query = q4.unflatten(1, {heads, group});
    key = k4;
    value = v4;
    if (attn_mask.has_value()) {
      Tensor m = *attn_mask;
      while (m.dim() < 4) m = m.unsqueeze(0);
      TORCH_CHECK_VALUE(m.dim() == 4 && (m.size(0) == 1 || m.size(0) == batch) &&
                            (m.size(1) == 1 || m.size(1) == heads * group) && (m.size(2) == 1 || m.size(2) == length) &&
                            (m.size(3) == 1 || m.size(3) == keys),
                        "scaled_dot_product_attention: attn_mask ", attn_mask->sizes(), " does not broadcast to ",
                        at::IntArrayRef({batch, heads * group, length, keys}));
      mask = m.expand({m.size(0), m.size(1), m.size(2), keys});
      move_padding();
      mask = mask.size(1) == 1 ? mask.unsqueeze(2) : mask.unflatten(1, {heads, group});
    }
  }

  // Keys that no query of their batch attends, such as padding, go to the end: a padded prompt then has the bits that it has
  // alone.
  void move_padding() {
    if (mask.numel() == 0) return;
    const Tensor attended = mask.scalar_type() == at::kBool
                                ? mask.any(1).any(1)
                                : at::gt(ours::amax(mask, at::IntArrayRef({1, 2}), /*keepdim=*/false),
                                         -std::numeric_limits<double>::infinity());
    const Tensor unused = at::logical_not(attended);
    if (unused.is_cpu() && !unused.any().item<bool>()) return;
    order = std::get<1>(at::sort(unused.to(at::kByte), /*stable=*/true, /*dim=*/-1, /*descending=*/false));
    mask =
        at::gather(mask, 3, order.unsqueeze(1).unsqueeze(1).expand({order.size(0), mask.size(1), mask.size(2), keys}));
    order = order.expand({batch, keys});
    key = at::gather(key, 2, index(key));
    value = at::gather(value, 2, index(value));
  }
  Tensor index(const Tensor& of) const { return order.unsqueeze(1).unsqueeze(-1).expand(of.sizes()); }

  // Gradients of keys or values, where the caller has them.
  Tensor moved_back(const Tensor& grad) const {
    return order.defined() ? at::empty(grad.sizes(), grad.options()).scatter_(2, index(grad), grad) : grad;
  }

  static Tensor four(Tensor x) {
    while (x.dim() < 4) x = x.unsqueeze(0);
    return x;
  }
};

// Some batches, heads and queries of a call, and the keys that these may attend.
struct Piece {
  const Call& call;
  int64_t b, batches, h, heads, i, queries, keys;

  // (batches, heads, group, queries, width) of a tensor like the query, as rows of one product for each head.
  Tensor part(const Tensor& x) const { return x.narrow(0, b, batches).narrow(1, h, heads).narrow(3, i, queries); }
  Tensor rows(const Tensor& x) const { return part(x).flatten(2, 3); }
  Tensor unrolled(const Tensor& x) const { return x.unflatten(2, {call.group, queries}); }
  Tensor of_keys(const Tensor& x) const { return x.narrow(0, b, batches).narrow(1, h, heads).narrow(2, 0, keys); }

  // softmax(scale q k^T + mask), (batches, heads, group * queries, keys).
  Tensor probabilities() const {
    const Tensor q = at::mul(rows(call.query).to(call.wide), call.scale);
    Tensor scores = ours::matmul(q, of_keys(call.key).to(call.wide).mT());
    Tensor seen = unrolled(scores);
    constexpr double kNever = -std::numeric_limits<double>::infinity();
    if (call.mask.defined()) {
      Tensor mask = call.mask;
      if (mask.size(0) > 1) mask = mask.narrow(0, b, batches);
      if (mask.size(1) > 1) mask = mask.narrow(1, h, heads);
      if (mask.size(3) > 1) mask = mask.narrow(3, i, queries);
      mask = mask.narrow(4, 0, keys);
      mask.scalar_type() == at::kBool ? seen.masked_fill_(at::logical_not(mask), kNever)
                                      : seen.add_(mask.to(call.wide));
    }
    if (call.causal && keys > i) {  // all queries attend the keys before i
      const auto options = call.query.options().dtype(at::kLong);
      const Tensor query = at::arange(i, i + queries, options).unsqueeze(1), key = at::arange(i, keys, options);
      seen.narrow(-1, i, keys - i).masked_fill_(at::gt(key, query), kNever);
    }
    return call.mask.defined() ? composed::safe_softmax(scores) : ours::softmax(scores, -1);
  }
};

// Pieces in the order of their queries, `queries` each; as many heads and batches at a time as `scores` allow.
template <class Body>
void for_each_piece(const Call& call, int64_t queries, int64_t scores, Body body) {
  const int64_t one = std::max<int64_t>(1, call.group * queries * call.keys);
  const int64_t heads = std::clamp<int64_t>(scores / one, 1, std::max<int64_t>(1, call.heads));
  const int64_t batches =
      heads < call.heads ? 1 : std::clamp<int64_t>(scores / (one * heads), 1, std::max<int64_t>(1, call.batch));
  for (int64_t b = 0; b < call.batch; b += batches) {
    for (int64_t h = 0; h < call.heads; h += heads) {
      for (int64_t i = 0; i < call.length; i += queries) {
        const int64_t end = std::min(i + queries, call.length);
        body(Piece{call, b, std::min(batches, call.batch - b), h, std::min(heads, call.heads - h), i, end - i,
                   call.causal ? std::min(call.keys, end) : call.keys});
      }
    }
  }
}

Tensor forward(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& attn_mask,
               double dropout_p, bool is_causal, std::optional<double> scale, bool enable_gqa) {
  TORCH_CHECK_VALUE(dropout_p == 0, "scaled_dot_product_attention takes dropout_p 0, got ", dropout_p);
  const Call call(query, key, value, attn_mask, is_causal, scale, enable_gqa);
  std::vector<int64_t> sizes = query.sizes().vec();
  sizes.back() = value.size(-1);
  const Tensor out = at::empty(sizes, query.options());
  if (out.numel() == 0) return out;
  if (call.keys == 0) return out.zero_();
  const Tensor view = Call::four(out).unflatten(1, {call.heads, call.group});
  // Rows do not see each other, so any number of queries will do. Where they attend no key after themselves, pieces save work.
  const int64_t scores = query.is_cuda() ? kScores : kScoresOnCpu;
  const int64_t most = call.causal ? std::max(kQueries, call.length / 8) : call.length;
  const int64_t fit = scores / (call.heads * call.group * call.keys);
  const int64_t queries = std::max<int64_t>(16, std::min(fit, most));
  for_each_piece(call, queries, scores, [&](const Piece& piece) {
    const Tensor p = piece.probabilities().to(query.scalar_type());
    piece.part(view).copy_(piece.unrolled(ours::matmul_of_lengths(p, piece.of_keys(call.value))));
  });
  return out;
}

// softmax is computed again, piece by piece, so that nothing of it need be kept.
std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& grad, const Tensor& query, const Tensor& key,
                                            const Tensor& value, const OptionalTensor& attn_mask, bool is_causal,
                                            std::optional<double> scale, bool enable_gqa) {
  const Call call(query, key, value, attn_mask, is_causal, scale, enable_gqa);
  const at::ScalarType type = query.scalar_type();
  const Tensor g = Call::four(grad).unflatten(1, {call.heads, call.group});
  const Tensor dquery = at::zeros(query.sizes(), query.options());
  const Tensor dkey = at::zeros(call.key.sizes(), call.key.options().dtype(call.wide));
  const Tensor dvalue = at::zeros(call.value.sizes(), call.value.options().dtype(call.wide));
  const Tensor view = Call::four(dquery).unflatten(1, {call.heads, call.group});
  if (grad.numel() > 0 && call.keys > 0) {
    for_each_piece(call, kQueries, query.is_cuda() ? kScores : kScoresOnCpu, [&](const Piece& piece) {
      const Tensor p = piece.probabilities();
      const Tensor of_out = piece.rows(g);
      const Tensor dp = ours::matmul(of_out.to(call.wide), piece.of_keys(call.value).to(call.wide).mT());
      const Tensor along = ours::sum(at::mul(p, dp), -1, /*keepdim=*/true);
      const Tensor dscores = at::sub(dp, along).mul_(p).mul_(call.scale).to(type);
      piece.part(view).copy_(piece.unrolled(ours::matmul_of_lengths(dscores, piece.of_keys(call.key))));
      piece.of_keys(dkey).add_(ours::matmul_of_lengths(dscores.mT(), piece.rows(call.query)));
      piece.of_keys(dvalue).add_(ours::matmul_of_lengths(p.to(type).mT(), of_out));
    });
  }
  return {dquery, call.moved_back(dkey).to(type).reshape(key.sizes()),
          call.moved_back(dvalue).to(type).reshape(value.sizes())};
}

Tensor forward_meta(const Tensor& query, const Tensor&, const Tensor& value, const OptionalTensor&, double, bool,
                    std::optional<double>, bool) {
  c10::SymDimVector sizes(query.sym_sizes());
  sizes.back() = value.sym_size(-1);
  return at::empty_symint(sizes, query.options());
}

std::tuple<Tensor, Tensor, Tensor> backward_meta(const Tensor&, const Tensor& query, const Tensor& key,
                                                 const Tensor& value, const OptionalTensor&, bool,
                                                 std::optional<double>, bool) {
  const auto like = [](const Tensor& x) { return at::empty_symint(x.sym_sizes(), x.options()); };
  return {like(query), like(key), like(value)};
}

}  // namespace

TORCH_LIBRARY_IMPL(treduce, CompositeExplicitAutograd, m) {
  m.impl("scaled_dot_product_attention", forward);
  m.impl("scaled_dot_product_attention_backward", backward);
}

TORCH_LIBRARY_IMPL(treduce, Meta, m) {
  m.impl("scaled_dot_product_attention", forward_meta);
  m.impl("scaled_dot_product_attention_backward", backward_meta);
}

}  // namespace treduce::attention
