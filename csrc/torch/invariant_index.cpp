// Additions into places that an index names: gradients of embeddings, index_add, scatter_add, index_put. What meets in a place is
// sorted there, in its order, and folded as a tree, neighbours first: no atomics, and nothing depends on the other places.
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cummax.h>
#include <ATen/ops/div.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/index.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "composed.h"
#include "invariant_ops.h"

namespace treduce::invariant {
namespace {

using at::Scalar;
using at::Tensor;
using Indices = c10::List<std::optional<Tensor>>;

// Sums of the rows of a source (n, width) that have the same index, in the accumulator's dtype; for each of the n rows in sorted
// order its index and the sum of all that share it.
struct Segments {
  Tensor index, sums;

  Segments(const Tensor& unsorted, const Tensor& source) {
    const int64_t n = unsorted.size(0);
    Tensor order;
    std::tie(index, order) = at::sort(unsorted, /*stable=*/true, /*dim=*/0, /*descending=*/false);
    sums = source.index_select(0, order).to(composed::accumulator(source.scalar_type()));
    if (n < 2) return;
    // The place of each row in its segment.
    const Tensor at = at::arange(n, index.options());
    Tensor begins = at::zeros({n}, index.options());
    begins.narrow(0, 1, n - 1)
        .copy_(at.narrow(0, 1, n - 1).masked_fill(at::eq(index.narrow(0, 1, n - 1), index.narrow(0, 0, n - 1)), 0));
    begins = std::get<0>(at::cummax(begins, 0));
    const Tensor place = at::sub(at, begins);
    for (int64_t step = 1; step < n; step *= 2) {
      const int64_t rest = n - step;
      const Tensor apart = at::ne(index.narrow(0, step, rest), index.narrow(0, 0, rest));
      const Tensor waits = at::ne(at::remainder(place.narrow(0, 0, rest), 2 * step), 0).logical_or_(apart);
      sums.narrow(0, 0, rest).add_(sums.narrow(0, step, rest).masked_fill(waits.unsqueeze(1), 0));
    }
    sums = sums.index_select(0, begins);
  }

  // Each row of `out` that an index names gets what it held and its sum. Rows that share an index write the same.
  void add_to(const Tensor& out) const {
    if (index.size(0) == 0 || sums.numel() == 0) return;
    const Tensor before = out.index_select(0, index).to(sums.scalar_type());
    out.index_copy_(0, index, at::add(before, sums).to(out.scalar_type()));
  }
};

Tensor wrapped(const Tensor& index, int64_t size) {
  const Tensor wide = index.to(at::kLong);
  return at::where(at::lt(wide, 0), at::add(wide, size), wide);
}

Tensor embedding_backward(const Tensor& grad, const Tensor& indices, c10::SymInt num_weights, c10::SymInt padding_idx,
                          bool scale_grad_by_freq) {
  const int64_t rows = num_weights.guard_int(__FILE__, __LINE__), padding = padding_idx.guard_int(__FILE__, __LINE__);
  const int64_t width = grad.size(-1);
  Segments segments(indices.reshape({-1}).to(at::kLong), grad.reshape({-1, width}));
  if (scale_grad_by_freq) {
    const Tensor& sorted = segments.index;
    const Tensor count = at::sub(at::searchsorted(sorted, sorted, /*out_int32=*/false, /*right=*/true),
                                 at::searchsorted(sorted, sorted, /*out_int32=*/false, /*right=*/false));
    segments.sums = at::div(segments.sums, count.unsqueeze(1));
  }
  const Tensor out = at::zeros({rows, width}, grad.options());
  segments.add_to(out);
  if (padding >= 0) out.select(0, padding).zero_();
  return out;
}

Tensor index_add(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source, const Scalar& alpha) {
  if (self.dim() == 0) return index_add(self.reshape({1}), 0, index, source.reshape({-1}), alpha).reshape({});
  Tensor out = self.movedim(dim, 0).clone(at::MemoryFormat::Contiguous);
  Tensor rows = source.movedim(dim, 0).reshape({index.numel(), -1});
  if (!alpha.equal(1)) rows = at::mul(rows, alpha);
  Segments(wrapped(index.reshape({-1}), self.size(dim)), rows).add_to(out.reshape({self.size(dim), -1}));
  return out.movedim(0, dim);
}

Tensor scatter_add(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& src) {
  Tensor out = self.clone(at::MemoryFormat::Contiguous);
  if (index.numel() == 0) return out;
  Tensor place = index.to(at::kLong), source = src;
  if (self.dim() > 0) {
    dim = at::maybe_wrap_dim(dim, self.dim());
    place = at::mul(place, out.stride(dim));
    for (int64_t d = 0; d < self.dim(); ++d) {
      source = source.narrow(d, 0, index.size(d));
      if (d == dim) continue;
      std::vector<int64_t> shape(self.dim(), 1);
      shape[d] = index.size(d);
      place = at::add(place, at::mul(at::arange(index.size(d), place.options()), out.stride(d)).reshape(shape));
    }
  }
  Segments(place.reshape({-1}), source.reshape({-1, 1})).add_to(out.view({-1, 1}));
  return out;
}

Tensor index_put(const Tensor& self, const Indices& indices, const Tensor& values, bool /*accumulate*/) {
  Tensor out = self.clone(at::MemoryFormat::Contiguous);
  const std::optional<Tensor> first = indices.size() == 1 ? indices.get(0) : std::nullopt;
  if (first.has_value() && first->defined() && at::isIntegralType(first->scalar_type(), /*includeBool=*/false) &&
      first->scalar_type() != at::kByte) {  // whole rows
    std::vector<int64_t> shape = first->sizes().vec();
    for (int64_t d = 1; d < self.dim(); ++d) shape.push_back(self.size(d));
    Segments(wrapped(first->reshape({-1}), self.size(0)), values.expand(shape).reshape({first->numel(), -1}))
        .add_to(out.reshape({self.size(0), -1}));
    return out;
  }
  const Tensor places = at::arange(self.numel(), self.options().dtype(at::kLong)).reshape(self.sizes());
  const Tensor place = at::index(places, indices);
  Segments(place.reshape({-1}), values.expand(place.sizes()).reshape({-1, 1})).add_to(out.view({-1, 1}));
  return out;
}

Tensor& index_put_(Tensor& self, const Indices& indices, const Tensor& values, bool accumulate) {
  return self.copy_(index_put(self, indices, values, accumulate));
}
Tensor& index_put_impl_(Tensor& self, const Indices& indices, const Tensor& values, bool accumulate, bool /*unsafe*/) {
  return self.copy_(index_put(self, indices, values, accumulate));
}

// Without accumulate, values take the place of others.
struct Accumulating {
  template <class... Rest>
  static Verdict judge(const Seen& seen, const Tensor&, const Indices&, const Tensor&, bool accumulate, Rest...) {
    return accumulate ? Floats::judge(seen) : Verdict::torchs;
  }
};

}  // namespace

void replace_index(torch::Library& m) {
  replace<&embedding_backward>(m, "embedding_dense_backward");
  replace<&index_add>(m, "index_add");
  replace<&Into<&index_add>::out>(m, "index_add.out");
  replace<&Into<&index_add>::self>(m, "index_add_");
  replace<&scatter_add>(m, "scatter_add");
  replace<&Into<&scatter_add>::out>(m, "scatter_add.out");
  replace<&Into<&scatter_add>::self>(m, "scatter_add_");
  constexpr char kStores[] = "without accumulate nothing is added";
  replace<&index_put, Accumulating>(m, "index_put", kStores);
  replace<&index_put_, Accumulating>(m, "index_put_", kStores);
  replace<&index_put_impl_, Accumulating>(m, "_index_put_impl_", kStores);
}

}  // namespace treduce::invariant
