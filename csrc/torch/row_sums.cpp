// How the input of `norm` and of `var` becomes rows of the kernels.
#include <precompiled.h>

#include "row_sums.h"

#include <ATen/ops/empty.h>

#include <optional>

#include "nodes.h"
#include "reduce_dims.h"
#include "rows_schema.h"

namespace treduce::composed {
namespace {

constexpr int64_t kNode = 1 << 15;       // elements of a tensor that blocks share: a node of the pairwise order
constexpr int64_t kMostBytes = 1 << 20;  // of a row in the accumulator, which a cluster of blocks holds
static_assert(kNode % reduce::Pairwise::kChunk == 0);

at::ScalarType accumulator_of(at::ScalarType type) { return type == at::kDouble ? at::kDouble : at::kFloat; }

bool is_taken(const at::Tensor& x) {
  using c10::DispatchKey;
  constexpr c10::DispatchKeySet unusual({DispatchKey::Python, DispatchKey::Negative, DispatchKey::Conjugate,
                                         DispatchKey::ZeroTensor, DispatchKey::Functionalize, DispatchKey::Batched,
                                         DispatchKey::FuncTorchBatched, DispatchKey::FuncTorchGradWrapper,
                                         DispatchKey::NestedTensor});
  const at::ScalarType type = x.scalar_type();
  return x.layout() == at::kStrided && (x.is_cpu() || x.is_cuda()) && !x.key_set().has_any(unusual) &&
         (type == at::kFloat || type == at::kDouble || type == at::kHalf || type == at::kBFloat16) && x.numel() > 0;
}

// What `x` is along `dim`: rows along the last dim, elements side by side. Nothing where they do not lie so.
struct Rows {
  at::Tensor rows;                     // (..., n)
  c10::SmallVector<int64_t, 6> sizes;  // of a result
  int64_t count = 1, length = 1;

  static std::optional<Rows> of(const at::Tensor& x, at::OptionalIntArrayRef dim, bool keepdim) {
    if (!is_taken(x)) return std::nullopt;
    const reduce::Dims dims(dim, x.dim());
    Rows r;
    c10::SmallVector<int64_t, 6> sizes, strides;
    for (int64_t d = x.dim() - 1; d >= 0; --d) {
      if (!dims[d] || x.size(d) == 1) continue;
      if (x.stride(d) != r.length) return std::nullopt;
      r.length *= x.size(d);
    }
    for (int64_t d = 0; d < x.dim(); ++d) {
      if (!dims[d]) {
        sizes.push_back(x.size(d));
        strides.push_back(x.stride(d));
        r.count *= x.size(d);
      }
      if (!dims[d] || keepdim) r.sizes.push_back(dims[d] ? 1 : x.size(d));
    }
    sizes.push_back(r.length);
    strides.push_back(1);
    r.rows = x.as_strided(sizes, strides);
    return r;
  }

  bool is_long() const { return length * c10::elementSize(accumulator_of(rows.scalar_type())) > kMostBytes; }
  at::TensorOptions in_accumulator() const {
    return rows.options().dtype(accumulator_of(rows.scalar_type())).memory_format(std::nullopt);
  }
};

void row_sums(const at::Tensor& squares, const std::optional<at::Tensor>& mean, const at::Tensor& rows) {
  static const auto op = reduce::find_op<rows::RowSumsSchema>("treduce::row_sums_");
  op.call(squares, mean, rows);
}

// A long row as nodes, so that every block has some.
at::Tensor squares_by_nodes(const Rows& r) {
  const int64_t whole = r.length / kNode, rest = r.length % kNode, count = whole + (rest > 0);
  // Whole groups, so that folding adds no zeros to them.
  const int64_t room = count <= nodes::kLanes ? count : (count + nodes::kLanes - 1) / nodes::kLanes * nodes::kLanes;
  const at::Tensor values = at::empty({room}, r.in_accumulator());
  if (room > count) values.narrow(0, count, room - count).zero_();
  const int64_t begin = r.rows.storage_offset();
  row_sums(values.narrow(0, 0, whole), std::nullopt, r.rows.as_strided({whole, kNode}, {kNode, 1}, begin));
  if (rest > 0) {
    row_sums(values.narrow(0, whole, 1), std::nullopt, r.rows.as_strided({1, rest}, {rest, 1}, begin + whole * kNode));
  }
  return nodes::fold(values);
}

}  // namespace

at::Tensor squares_in_one_read(const at::Tensor& x, at::OptionalIntArrayRef dim, bool keepdim) {
  const std::optional<Rows> r = Rows::of(x, dim, keepdim);
  if (!r) return {};
  if (r->count == 1 && r->length > kNode) return squares_by_nodes(*r).view(r->sizes);
  if (r->is_long()) return {};
  const at::Tensor squares = at::empty(r->sizes, r->in_accumulator());
  row_sums(squares, std::nullopt, r->rows);
  return squares;
}

std::tuple<at::Tensor, at::Tensor> moments_in_one_read(const at::Tensor& x, at::OptionalIntArrayRef dim, bool keepdim) {
  const std::optional<Rows> r = Rows::of(x, dim, keepdim);
  if (!r || r->is_long()) return {};
  const at::Tensor squares = at::empty(r->sizes, r->in_accumulator()), mean = at::empty(r->sizes, r->in_accumulator());
  row_sums(squares, mean, r->rows);
  return {mean, squares};
}

}  // namespace treduce::composed
