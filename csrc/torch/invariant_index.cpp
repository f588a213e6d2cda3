// Additions into places that an index names: gradients of embeddings, index_add, scatter_add, index_put. What meets in a place is
// sorted there, in its order, and folded as a tree, neighbours first (../segments): no atomics, and nothing depends on other places.
#include <precompiled.h>

#include <ATen/ops/_assert_async.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/index.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "invariant_ops.h"
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

Tensor index_add(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source, const Scalar& alpha) {
  if (self.dim() == 0) return index_add(self.reshape({1}), 0, index, source.reshape({-1}), alpha).reshape({});
  dim = at::maybe_wrap_dim(dim, self.dim());
  std::vector<int64_t> shape = self.sizes().vec();
  shape[dim] = index.numel();
  TORCH_CHECK_VALUE(index.dim() <= 1 && source.sizes() == at::IntArrayRef(shape), "index_add takes a source of shape ",
                    at::IntArrayRef(shape), " for ", index.numel(), " indices, got ", source.sizes());
  check_types("index_add", self, source);
  Tensor out = self.movedim(dim, 0).clone(at::MemoryFormat::Contiguous);
  if (source.numel() == 0) return out.movedim(0, dim).contiguous();
  Tensor rows = source.movedim(dim, 0).reshape({index.numel(), -1});
  if (!alpha.equal(1)) rows = at::mul(rows, alpha);
  add_rows(out.view({self.size(dim), -1}), index.reshape({-1}).to(at::kLong), rows);
  return out.movedim(0, dim).contiguous();
}

// An index past the end of a dim would be a place of another row.
void check_within(const Tensor& index, int64_t size) {
  const Tensor fits = at::logical_and(at::ge(index, 0), at::lt(index, size)).all();
  if (!index.is_cpu()) return at::_assert_async(fits);
  TORCH_CHECK_INDEX(fits.item<bool>(), "index out of range: from ", index.min().item<int64_t>(), " to ",
                    index.max().item<int64_t>(), ", of ", size);
}

Tensor scatter_add(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& src) {
  Tensor out = self.clone(at::MemoryFormat::Contiguous);
  if (index.numel() == 0) return out;
  check_types("scatter_add", self, src);
  TORCH_CHECK_TYPE(index.scalar_type() == at::kLong || index.scalar_type() == at::kInt,
                   "scatter_add takes an index of int64 or int32, got ", index.scalar_type());
  Tensor place = index.to(at::kLong), source = src;
  if (self.dim() > 0) {
    dim = at::maybe_wrap_dim(dim, self.dim());
    check_within(place, self.size(dim));
    place = at::mul(place, out.stride(dim));
    for (int64_t d = 0; d < self.dim(); ++d) {
      TORCH_CHECK_VALUE(d == dim || index.size(d) <= self.size(d), "scatter_add: an index of shape ", index.sizes(),
                        " reaches past a tensor of shape ", self.sizes());
      source = source.narrow(d, 0, index.size(d));
      if (d == dim) continue;
      std::vector<int64_t> shape(self.dim(), 1);
      shape[d] = index.size(d);
      place = at::add(place, at::mul(at::arange(index.size(d), place.options()), out.stride(d)).reshape(shape));
    }
  }
  add_rows(out.view({-1, 1}), place.reshape({-1}), source.reshape({-1, 1}));
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
