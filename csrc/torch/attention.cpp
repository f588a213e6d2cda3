// Attention, composed of our products and softmax: a piece of the queries at a time against all keys before its end, so memory is
// linear in the length. A query's result is a function of itself and of the keys that it attends, in their order. Keys that are
// masked at the end add zeros: they change neither pairwise sums nor products that take k in order.
#include <precompiled.h>

#include "attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>

#include "attention_call.h"

namespace treduce::attention {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr int64_t kScores = int64_t(1) << 26;       // computed at a time on CUDA: 256 MB of float32
constexpr int64_t kScoresOnCpu = int64_t(1) << 20;  // likewise on a CPU: what its caches hold
constexpr int64_t kQueries = 256;                   // of a piece in the backward: fixes an order of additions

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
    const Tensor q = at::mul(rows(call.grouped_query()).to(call.wide), call.scale);
    Tensor scores = ours::matmul(q, of_keys(call.key).to(call.wide).mT());
    Tensor seen = unrolled(scores);
    constexpr double kNever = -std::numeric_limits<double>::infinity();
    if (call.mask.defined()) {
      Tensor mask = call.mask;
      if (mask.size(0) > 1) mask = mask.narrow(0, b, batches);
      if (mask.size(1) > 1) mask = mask.narrow(1, h * call.group, heads * call.group);
      if (mask.size(2) > 1) mask = mask.narrow(2, i, queries);
      mask = mask.narrow(3, 0, keys);
      mask = mask.size(1) > 1 ? mask.unflatten(1, {heads, call.group}) : mask.unsqueeze(2);
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
  const Call call(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa);
  Tensor result = empty_result(query, value);
  if (!call.is_empty()) {
    compose(call, result);
  } else {
    result.zero_();
  }
  return result;
}

std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& grad, const Tensor& query, const Tensor& key,
                                            const Tensor& value, const OptionalTensor& attn_mask, bool is_causal,
                                            std::optional<double> scale, bool enable_gqa) {
  const Call call(query, key, value, attn_mask, /*dropout_p=*/0, is_causal, scale, enable_gqa);
  return compose_gradients(call, grad, query, key, value);
}

Tensor forward_meta(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& attn_mask,
                    double, bool, std::optional<double>, bool) {
  check_operands(query, key, value, attn_mask);
  return empty_result(query, value);
}

std::tuple<Tensor, Tensor, Tensor> backward_meta(const Tensor&, const Tensor& query, const Tensor& key,
                                                 const Tensor& value, const OptionalTensor&, bool,
                                                 std::optional<double>, bool) {
  return {at::empty_like(query), at::empty_like(key), at::empty_like(value)};
}

}  // namespace

void compose(const Call& call, const Tensor& result) {
  const Tensor view = Call::four(result).unflatten(1, {call.heads, call.group});
  // Rows do not see each other, so any number of queries will do. Where they attend no key after themselves, pieces save work.
  const int64_t scores = result.is_cuda() ? kScores : kScoresOnCpu;
  const int64_t most = call.causal ? std::max(kQueries, call.length / 8) : call.length;
  const int64_t fit = scores / (call.heads * call.group * call.keys);
  const int64_t queries = std::max<int64_t>(16, std::min(fit, most));
  for_each_piece(call, queries, scores, [&](const Piece& piece) {
    const Tensor p = piece.probabilities().to(result.scalar_type());
    piece.part(view).copy_(piece.unrolled(ours::matmul_of_lengths(p, piece.of_keys(call.value))));
  });
}

// softmax is computed again, piece by piece, so that nothing of it need be kept.
std::tuple<Tensor, Tensor, Tensor> compose_gradients(const Call& call, const Tensor& grad, const Tensor& query,
                                                     const Tensor& key, const Tensor& value) {
  const at::ScalarType type = query.scalar_type();
  const Tensor g = Call::four(grad).unflatten(1, {call.heads, call.group});
  const Tensor dquery = at::empty_like(query).zero_();
  const Tensor dkey = at::zeros(call.key.sizes(), call.key.options().dtype(call.wide));
  const Tensor dvalue = at::zeros(call.value.sizes(), call.value.options().dtype(call.wide));
  const Tensor view = Call::four(dquery).unflatten(1, {call.heads, call.group});
  if (!call.is_empty()) {
    for_each_piece(call, kQueries, query.is_cuda() ? kScores : kScoresOnCpu, [&](const Piece& piece) {
      const Tensor p = piece.probabilities();
      const Tensor of_out = piece.rows(g);
      const Tensor dp = ours::matmul(of_out.to(call.wide), piece.of_keys(call.value).to(call.wide).mT());
      const Tensor along = ours::sum(at::mul(p, dp), -1, /*keepdim=*/true);
      const Tensor dscores = at::sub(dp, along).mul_(p).mul_(call.scale).to(type);
      piece.part(view).copy_(piece.unrolled(ours::matmul_of_lengths(dscores, piece.of_keys(call.key))));
      piece.of_keys(dkey).add_(ours::matmul_of_lengths(dscores.mT(), piece.rows(call.grouped_query())));
      piece.of_keys(dvalue).add_(ours::matmul_of_lengths(p.to(type).mT(), of_out));
    });
  }
  return {dquery, call.moved_back(dkey, key), call.moved_back(dvalue, value)};
}

TORCH_LIBRARY_IMPL(treduce, CompositeExplicitAutograd, m) {
  m.impl("scaled_dot_product_attention", forward);
  m.impl("scaled_dot_product_attention_backward", backward);
}

TORCH_LIBRARY_IMPL(treduce, Meta, m) {
  m.impl("scaled_dot_product_attention", forward_meta);
  m.impl("scaled_dot_product_attention_backward", backward_meta);
}

}  // namespace treduce::attention
