// Additions into places that an index names: gradients of embeddings, index_add, scatter_add, index_put. What meets in a place is
// sorted there, in its order, and folded as a tree, neighbours first (../segments): no atomics, and nothing depends on other places.
// Products take the same tree, by torch's elementwise ops.
#include <precompiled.h>

#include <ATen/ops/_assert_async.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/index.h>
#include <ATen/ops/index_fill.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/scatter.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "composed.h"
#include "invariant_ops.h"
#include "ours.h"
#include "reduce_schema.h"
#include "segments.h"

namespace treduce::invariant {
namespace {

using at::Scalar;
using at::Tensor;
using Indices = c10::List<std::optional<Tensor>>;

void check_types(const char* op, const Tensor& self, const Tensor& source) {
  TORCH_CHECK_TYPE(self.scalar_type() == source.scalar_type(), op, " takes tensors of one dtype, got ",
                   self.scalar_type(), " and ", source.scalar_type());
}

// Adds each row of `source` (n, width) to the row of `out` that its index names. Needs: a contiguous `out`.
void add_rows(const Tensor& out, const Tensor& unsorted, const Tensor& source, bool mean = false) {
  static const auto op = reduce::find_op<segments::AddSchema>("treduce::add_segments_");
  const auto [index, order] = at::sort(unsorted, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  op.call(out, index, order, source.to(out.scalar_type()).contiguous(), mean);
}

// `self` (places, width) times what add_rows would add, in the accumulator's dtype; without `include_self`, what is there does not
// count where an index says.
Tensor multiplied(const Tensor& self, const Tensor& unsorted, const Tensor& source, bool include_self) {
  const auto [index, order] = at::sort(unsorted, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const at::ScalarType type = composed::accumulator(self.scalar_type());
  const Tensor before = self.to(type), product = source.to(type).index_select(0, order);
  const int64_t n = index.numel();
  if (n == 0) return before;
  const Tensor in_run = at::sub(at::arange(n, index.options()), at::searchsorted(index, index));
  // After the step of size s, each 2s-th row of a run holds the product of the 2s from it on.
  for (int64_t step = 1; step < n; step *= 2) {
    const Tensor first = at::eq(at::bitwise_and(in_run.narrow(0, 0, n - step), 2 * step - 1), 0);
    const Tensor meets = at::logical_and(first, at::eq(index.narrow(0, 0, n - step), index.narrow(0, step, n - step)));
    const Tensor left = product.narrow(0, 0, n - step), right = product.narrow(0, step, n - step);
    left.copy_(at::where(meets.unsqueeze(1), at::mul(left, right), left));
  }
  const Tensor places = at::arange(self.size(0), index.options());
  const Tensor run = at::searchsorted(index, places).clamp_max_(n - 1);
  const Tensor named = at::eq(index.index_select(0, run), places).unsqueeze(1), factor = product.index_select(0, run);
  return at::where(named, include_self ? at::mul(before, factor) : factor, before);
}

// Negative ones count from the end.
Tensor wrapped(const Tensor& index, int64_t size, at::Device device) {
  const Tensor wide = index.to(device, at::kLong);
  return at::where(at::lt(wide, 0), at::add(wide, size), wide);
}

Tensor embedding_backward(const Tensor& grad, const Tensor& indices, c10::SymInt num_weights, c10::SymInt padding_idx,
                          bool scale_grad_by_freq) {
  const int64_t rows = num_weights.guard_int(__FILE__, __LINE__), padding = padding_idx.guard_int(__FILE__, __LINE__);
  const int64_t width = grad.size(-1);
  const Tensor out = at::zeros({rows, width}, grad.options());
  add_rows(out, indices.reshape({-1}).to(at::kLong), grad.reshape({indices.numel(), width}), scale_grad_by_freq);
  if (padding >= 0) out.select(0, padding).zero_();
  return out;
}

// An index past the end of a dim would be a place of another row.
void check_within(const Tensor& index, int64_t size) {
  const Tensor fits = at::logical_and(at::ge(index, 0), at::lt(index, size)).all();
  if (!index.is_cpu()) return at::_assert_async(fits);
  TORCH_CHECK_INDEX(fits.item<bool>(), "index out of range: from ", index.min().item<int64_t>(), " to ",
                    index.max().item<int64_t>(), ", of ", size);
}

// A source's rows along `dim`, one for each index.
Tensor rows_of(const char* op, const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source) {
  check_types(op, self, source);
  std::vector<int64_t> shape = self.sizes().vec();
  shape[dim] = index.numel();
  TORCH_CHECK_VALUE(index.dim() <= 1 && source.sizes() == at::IntArrayRef(shape), op, " takes a source of shape ",
                    at::IntArrayRef(shape), " for ", index.numel(), " indices, got ", source.sizes());
  return source.movedim(dim, 0).reshape({index.numel(), source.numel() / std::max<int64_t>(1, index.numel())});
}

Tensor index_add(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source, const Scalar& alpha) {
  if (self.dim() == 0) return index_add(self.reshape({1}), 0, index, source.reshape({-1}), alpha).reshape({});
  dim = at::maybe_wrap_dim(dim, self.dim());
  Tensor rows = rows_of("index_add", self, dim, index, source);
  Tensor out = self.movedim(dim, 0).clone(at::MemoryFormat::Contiguous);
  if (source.numel() == 0) return out.movedim(0, dim).contiguous();
  if (!alpha.equal(1)) rows = at::mul(rows, alpha);
  add_rows(out.view({self.size(dim), -1}), index.reshape({-1}).to(at::kLong), rows);
  return out.movedim(0, dim).contiguous();
}

// What scatter adds or multiplies, and where, in a contiguous tensor of self's shape.
struct Scattered {
  Tensor place, source;

  Scattered(const char* op, const Tensor& self, int64_t dim, const Tensor& index, const Tensor& src) {
    check_types(op, self, src);
    TORCH_CHECK_TYPE(index.scalar_type() == at::kLong || index.scalar_type() == at::kInt, op,
                     " takes an index of int64 or int32, got ", index.scalar_type());
    place = index.to(at::kLong);
    source = src;
    dim = at::maybe_wrap_dim(dim, self.dim());
    check_within(place, self.dim() == 0 ? 1 : self.size(dim));
    const auto strides = c10::contiguous_strides(self.sizes());
    if (self.dim() > 0) place = at::mul(place, strides[dim]);
    for (int64_t d = 0; d < self.dim(); ++d) {
      TORCH_CHECK_VALUE(d == dim || index.size(d) <= self.size(d), op, ": an index of shape ", index.sizes(),
                        " reaches past a tensor of shape ", self.sizes());
      source = source.narrow(d, 0, index.size(d));
      if (d == dim) continue;
      std::vector<int64_t> shape(self.dim(), 1);
      shape[d] = index.size(d);
      place = at::add(place, at::mul(at::arange(index.size(d), place.options()), strides[d]).reshape(shape));
    }
    place = place.reshape({-1});
    source = source.reshape({-1, 1});
  }
};

Tensor scatter_add(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& src) {
  Tensor out = self.clone(at::MemoryFormat::Contiguous);
  if (index.numel() == 0) return out;
  const Scattered scattered("scatter_add", self, dim, index, src);
  add_rows(out.view({-1, 1}), scattered.place, scattered.source);
  return out;
}

// A result in self's layout, as torch's.
Tensor laid_out_as(const Tensor& self, const Tensor& result) {
  const Tensor like = at::empty_like(self);
  return like.strides() == result.strides() ? result : like.copy_(result);
}

// Indices, and a single value, may lie on a CPU beside a tensor on a GPU.
Tensor index_put(const Tensor& self, const Indices& indices, const Tensor& given, bool /*accumulate*/) {
  check_types("index_put", self, given);
  const Tensor values = given.dim() == 0 ? given.to(self.device()) : given;
  Tensor out = self.clone(at::MemoryFormat::Contiguous);
  const std::optional<Tensor> first = indices.size() == 1 ? indices.get(0) : std::nullopt;
  if (first.has_value() && first->defined() && at::isIntegralType(first->scalar_type(), /*includeBool=*/false) &&
      first->scalar_type() != at::kByte) {  // whole rows
    std::vector<int64_t> shape = first->sizes().vec();
    for (int64_t d = 1; d < self.dim(); ++d) shape.push_back(self.size(d));
    if (out.numel() == 0 || first->numel() == 0) return laid_out_as(self, out);
    add_rows(out.view({self.size(0), -1}), wrapped(first->reshape({-1}), self.size(0), self.device()),
             values.expand(shape).reshape({first->numel(), -1}));
    return laid_out_as(self, out);
  }
  const Tensor places = at::arange(self.numel(), self.options().dtype(at::kLong)).reshape(self.sizes());
  const Tensor place = at::index(places, indices);
  add_rows(out.view({-1, 1}), place.reshape({-1}), values.expand(place.sizes()).reshape({-1, 1}));
  return laid_out_as(self, out);
}

Tensor& index_put_(Tensor& self, const Indices& indices, const Tensor& values, bool accumulate) {
  return self.copy_(index_put(self, indices, values, accumulate));
}
Tensor& index_put_impl_(Tensor& self, const Indices& indices, const Tensor& values, bool accumulate, bool /*unsafe*/) {
  return self.copy_(index_put(self, indices, values, accumulate));
}

Tensor& put_(Tensor& self, const Tensor& index, const Tensor& source, bool accumulate) {
  TORCH_CHECK_VALUE(index.numel() == source.numel(), "put_ takes a value for each index, got ", source.sizes(), " and ",
                    index.sizes());
  Indices places;
  places.push_back(index.reshape({-1}));
  return self.copy_(index_put(self.reshape({-1}), places, source.reshape({-1}), accumulate).reshape(self.sizes()));
}

// Without accumulate, values take the place of others.
struct Accumulating {
  template <class I, class... Rest>
  static Verdict judge(const Seen& seen, const Tensor&, const I&, const Tensor&, bool accumulate, Rest...) {
    return accumulate ? Floats::judge(seen) : Verdict::torchs;
  }
};

// ---- sums, means and products where an index says: what was there counts, or not

namespace names {
constexpr std::string_view sum = "sum", mean = "mean", prod = "prod", add = "add", multiply = "multiply";
}

Tensor scatter_reduce(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& src, std::string_view reduce,
                      bool include_self) {
  if (index.numel() == 0) return self.clone(at::MemoryFormat::Contiguous);
  if (reduce == names::prod) {
    const Scattered scattered("scatter_reduce", self, dim, index, src);
    const Tensor result = multiplied(self.reshape({-1, 1}), scattered.place, scattered.source, include_self);
    return result.to(self.scalar_type()).view(self.sizes());
  }
  check_types("scatter_reduce", self, src);
  const at::ScalarType type = composed::accumulator(self.scalar_type());
  const Tensor first = include_self ? self.to(type) : at::scatter(self.to(type), dim, index, 0);
  const Tensor sum = scatter_add(first, dim, index, src.to(type));
  if (reduce == names::sum) return sum.to(self.scalar_type());
  const Tensor before = include_self ? at::ones_like(first) : at::zeros_like(first);
  const Tensor counts = scatter_add(before, dim, index, at::ones_like(src, src.options().dtype(type)));
  return at::div(sum, counts.clamp_min(1)).to(self.scalar_type());
}

Tensor scatter_src(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& src, std::string_view reduce) {
  if (reduce == names::add) return scatter_add(self, dim, index, src);
  return scatter_reduce(self, dim, index, src, names::prod, /*include_self=*/true);
}
Tensor scatter_value(const Tensor& self, int64_t dim, const Tensor& index, const Scalar& value,
                     std::string_view reduce) {
  return scatter_src(self, dim, index, at::full(index.sizes(), value, self.options()), reduce);
}

Tensor index_reduce(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source, std::string_view reduce,
                    bool include_self) {
  if (self.dim() == 0) {
    return index_reduce(self.reshape({1}), 0, index, source.reshape({-1}), reduce, include_self).reshape({});
  }
  dim = at::maybe_wrap_dim(dim, self.dim());
  if (reduce == names::prod) {
    const Tensor rows = rows_of("index_reduce", self, dim, index, source);
    if (source.numel() == 0) return self.clone(at::MemoryFormat::Contiguous);
    const Tensor place = index.reshape({-1}).to(at::kLong), moved = self.movedim(dim, 0);
    check_within(place, self.size(dim));
    const Tensor result = multiplied(moved.reshape({self.size(dim), -1}), place, rows, include_self);
    return result.to(self.scalar_type()).view(moved.sizes()).movedim(0, dim).contiguous();
  }
  check_types("index_reduce", self, source);
  const at::ScalarType type = composed::accumulator(self.scalar_type());
  const Tensor first = include_self ? self.to(type) : at::index_fill(self.to(type), dim, index.to(at::kLong), 0);
  const Tensor sum = index_add(first, dim, index, source.to(type), 1);
  const Tensor before = include_self ? at::ones_like(first) : at::zeros_like(first);
  const Tensor counts = index_add(before, dim, index, at::ones_like(source, source.options().dtype(type)), 1);
  return at::div(sum, counts.clamp_min(1)).to(self.scalar_type());
}

// What an op is asked for by name. Torch refuses names that it does not know.
template <const std::string_view&... kNames>
struct Named {
  template <class Source, class... Rest>
  static Verdict judge(const Seen& seen, const Tensor&, int64_t, const Tensor&, const Source&, std::string_view reduce,
                       Rest&&...) {
    return ((reduce == kNames) || ...) ? Floats::judge(seen) : Verdict::torchs;
  }
};

// ---- bags of embeddings

enum Bag { kSumOfBag, kMeanOfBag, kMaxOfBag };  // aten's numbers

// The bag of each index. Torch leaves its own empty where it does not need it.
Tensor bags_of(const Tensor& indices, const Tensor& offsets) {
  const Tensor places = at::arange(indices.numel(), offsets.options());
  return at::sub(at::searchsorted(offsets, places, /*out_int32=*/false, /*right=*/true), 1);
}

Tensor bag_backward(const Tensor& grad, const Tensor& indices, const Tensor& offset2bag, const Tensor& bag_size,
                    const Tensor& maximum_indices, c10::SymInt num_weights, bool scale_grad_by_freq, int64_t mode,
                    const std::optional<Tensor>& per_sample_weights, int64_t padding_idx) {
  const at::ScalarType type = composed::accumulator(grad.scalar_type());
  const Tensor out = at::zeros({num_weights.guard_int(__FILE__, __LINE__), grad.size(1)}, grad.options().dtype(type));
  if (mode == kMaxOfBag) {
    const Tensor rows = grad.to(type).masked_fill(at::eq(bag_size, 0).unsqueeze(1), 0);
    return scatter_add(out, 0, maximum_indices.clamp_min(0), rows).to(grad.scalar_type());
  }
  Tensor rows = grad.to(type);
  if (mode == kMeanOfBag) rows = at::div(rows, bag_size.clamp_min(1).to(type).unsqueeze(1));
  rows = rows.index_select(0, offset2bag);
  if (per_sample_weights.has_value() && per_sample_weights->defined()) {
    rows = at::mul(rows, per_sample_weights->to(type).unsqueeze(1));
  }
  add_rows(out, indices.to(at::kLong), rows, scale_grad_by_freq);
  if (padding_idx >= 0) out.select(0, padding_idx).zero_();
  return out.to(grad.scalar_type());
}

Tensor bag_weights_backward(const Tensor& grad, const Tensor& weight, const Tensor& indices, const Tensor& offsets,
                            const Tensor& offset2bag, int64_t /*mode*/, int64_t padding_idx) {
  const at::ScalarType type = composed::accumulator(grad.scalar_type());
  const Tensor bags = offset2bag.numel() == indices.numel() ? offset2bag : bags_of(indices, offsets);
  const Tensor products = at::mul(grad.to(type).index_select(0, bags), weight.index_select(0, indices).to(type));
  const Tensor result = ours::sum(products, 1, /*keepdim=*/false).to(grad.scalar_type());
  return padding_idx >= 0 ? result.masked_fill(at::eq(indices, padding_idx), 0) : result;
}

}  // namespace

void replace_index(torch::Library& m) {
  replace<&embedding_backward>(m, "embedding_dense_backward");
  replace_forms<&index_add>(m, "index_add");
  replace_forms<&scatter_add>(m, "scatter_add");
  constexpr char kStores[] = "without accumulate nothing is added";
  replace<&index_put, Accumulating>(m, "index_put", kStores);
  replace<&index_put_, Accumulating>(m, "index_put_", kStores);
  replace<&index_put_impl_, Accumulating>(m, "_index_put_impl_", kStores);
  replace<&put_, Accumulating>(m, "put_", kStores);
  constexpr char kExtrema[] = "a largest or smallest: no rounding";
  using Scatters = Named<names::sum, names::mean, names::prod>;
  replace_forms<&scatter_reduce, Scatters>(m, "scatter_reduce.two", kExtrema);
  using Indexes = Named<names::mean, names::prod>;
  replace_forms<&index_reduce, Indexes>(m, "index_reduce", kExtrema);
  using Older = Named<names::add, names::multiply>;
  replace_forms<&scatter_src, Older>(m, "scatter.reduce");
  replace_forms<&scatter_value, Older>(m, "scatter.value_reduce");
  replace<&bag_backward>(m, "_embedding_bag_dense_backward");
  replace<&bag_weights_backward>(m, "_embedding_bag_per_sample_weights_backward");
}

}  // namespace treduce::invariant
