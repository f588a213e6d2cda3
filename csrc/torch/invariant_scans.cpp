// Products of rows, and running sums and products: trees over places, so that a row's result depends on the row alone.
#include <precompiled.h>

#include <ATen/WrapDimUtils.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/mul.h>

#include "composed.h"
#include "invariant_ops.h"
#include "ours.h"

namespace treduce::invariant {
namespace {

using at::Tensor;
using OptionalType = std::optional<at::ScalarType>;

Tensor widened(const Tensor& self, OptionalType dtype) {
  const at::ScalarType type = dtype.value_or(self.scalar_type());
  return self.to(type).to(composed::accumulator(type));
}

// Multiplies neighbours, level by level; an odd last factor goes up a level as it is.
Tensor prod_dim(const Tensor& self, int64_t dim, bool keepdim, OptionalType dtype) {
  const at::ScalarType type = dtype.value_or(self.scalar_type());
  Tensor x = widened(self.dim() == 0 ? self.reshape({1}) : self, dtype);
  dim = at::maybe_wrap_dim(dim, x.dim());
  int64_t n = x.size(dim);
  if (n == 0) {
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes[dim] = 1;
    x = x.new_ones(sizes);
  }
  for (; n > 1; n = x.size(dim)) {
    const Tensor pairs = at::mul(x.slice(dim, 0, n - n % 2, 2), x.slice(dim, 1, n, 2));
    x = n % 2 ? at::cat({pairs, x.narrow(dim, n - 1, 1)}, dim) : pairs;
  }
  x = x.to(type);
  if (self.dim() == 0) return x.reshape({});
  return keepdim ? x : x.squeeze(dim);
}

Tensor prod(const Tensor& self, OptionalType dtype) {
  return prod_dim(self.reshape({-1}), 0, /*keepdim=*/false, dtype);
}

// After the step of size s, place i holds the combination of elements i - 2s + 1 to i.
template <class Combine>
Tensor running(const Tensor& self, int64_t dim, OptionalType dtype, Combine combine) {
  const at::ScalarType type = dtype.value_or(self.scalar_type());
  Tensor x = widened(self, dtype).clone(at::MemoryFormat::Contiguous);
  dim = at::maybe_wrap_dim(dim, self.dim());
  if (self.dim() == 0) return x.to(type);
  const int64_t n = self.size(dim);
  for (int64_t step = 1; step < n; step *= 2) {
    const Tensor before = x.narrow(dim, 0, n - step).clone();
    combine(x.narrow(dim, step, n - step), before);
  }
  return x.to(type);
}

Tensor cumsum(const Tensor& self, int64_t dim, OptionalType dtype) {
  return running(self, dim, dtype, [](Tensor x, const Tensor& before) { x.add_(before); });
}
Tensor cumprod(const Tensor& self, int64_t dim, OptionalType dtype) {
  return running(self, dim, dtype, [](Tensor x, const Tensor& before) { x.mul_(before); });
}

Tensor logcumsumexp(const Tensor& self, int64_t dim) {
  return running(self, dim, std::nullopt, [](Tensor x, const Tensor& before) { x.copy_(at::logaddexp(x, before)); });
}

// Of 16-bit floats, the sum's dtype is autocast's to say.
Tensor trace(const Tensor& self) {
  static const auto op = reduce::find_op<reduce::SumSchema>("treduce::sum");
  return op.call(self.diagonal(), "auto", std::nullopt, /*keepdim=*/false, std::nullopt, std::nullopt, std::nullopt);
}

}  // namespace

void replace_scans(torch::Library& m) {
  replace<&prod>(m, "prod");
  replace<&prod_dim>(m, "prod.dim_int");
  replace<&Into<&prod_dim>::out>(m, "prod.int_out");
  replace_forms<&cumsum>(m, "cumsum");
  replace_forms<&cumprod>(m, "cumprod");
  replace_and_out<&logcumsumexp>(m, "_logcumsumexp");
  replace<&trace, Floats, /*kApart=*/true>(m, "trace");  // torch's kernel calls sum, which autocast casts on CUDA
}

}  // namespace treduce::invariant
