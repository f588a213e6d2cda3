// Where the elements of an output lie, and where its result goes.
#pragma once

#include <cuda_runtime.h>

#include "geometry.h"
#include "pairwise.h"

namespace treduce::reduce {

// How the elements of an output are walked: one stride apart; through two dims, by steps and without divisions; or with a division
// for each dim at each element.
enum class Walk { even, two, any };

// As Extents::offset, with its loop kept a loop: for offsets that are computed once a row.
TREDUCE_DEVICE int64_t offset_of(const Extents& extents, int64_t i) {
  int64_t sum = 0;
#pragma unroll 1
  for (int d = extents.count - 1; d > 0; --d) {
    const int64_t q = extents.size[d].quotient(i);
    sum += (i - q * extents.size[d].divisor) * extents.stride[d];
    i = q;
  }
  return sum + i * extents.stride[0];
}

// The same, not inlined: for kernels that compute an offset at each load, where compilers would repeat the divisions each time.
__device__ __noinline__ inline int64_t offset_of_dims(const Extents& extents, int64_t i) {
  return offset_of(extents, i);
}

// Where the elements of an output lie, and where its result goes. What every call needs stands first and side by side: kernel
// parameters come from memory line by line, and a kernel's first load waits for them.
template <Walk kWalk>
struct LayoutBase {
  int64_t element_stride;
};
template <>
struct LayoutBase<Walk::two> {
  int64_t element_stride, outer_stride;
  Divider inner;
};
template <>
struct LayoutBase<Walk::any> {
  Extents reduced;
};

template <Walk kWalk>
struct Layout : LayoutBase<kWalk> {
  static constexpr Walk kHow = kWalk;
  int64_t row_stride;  // of even rows
  int64_t limit;       // elements from the first address to the last, both included
  bool even_rows, dense_outs;
  Extents kept, kept_out;

  TREDUCE_DEVICE int64_t row(int64_t o) const { return even_rows ? o * row_stride : offset_of(kept, o); }
  TREDUCE_DEVICE int64_t out(int64_t o) const { return dense_outs ? o : offset_of_dims(kept_out, o); }
  TREDUCE_DEVICE int64_t element(int64_t e) const {
    if constexpr (kWalk == Walk::even) {
      return e * this->element_stride;
    } else if constexpr (kWalk == Walk::two) {
      const int64_t q = this->inner.quotient(e);
      return q * this->outer_stride + (e - q * this->inner.divisor) * this->element_stride;
    } else {
      return offset_of_dims(this->reduced, e);
    }
  }
};

template <Walk kWalk>
Layout<kWalk> layout_of(const Geometry& g) {
  Layout<kWalk> layout;
  if constexpr (kWalk == Walk::even) {
    layout.element_stride = g.reduced.inner_stride();
  } else if constexpr (kWalk == Walk::two) {
    layout.element_stride = g.reduced.stride[1];
    layout.outer_stride = g.reduced.stride[0];
    layout.inner = g.reduced.size[1];
  } else {
    layout.reduced = g.reduced;
  }
  layout.even_rows = g.kept.count <= 1;
  layout.row_stride = g.kept.count == 1 ? g.kept.stride[0] : 0;
  layout.dense_outs = g.kept_out.is_dense();
  layout.limit = g.reach();
  layout.kept = g.kept;
  layout.kept_out = g.kept_out;
  return layout;
}

// The offsets of a thread's elements, `kStep` apart: begin() + next(k) is that of element first + k * kStep.
// Call next() once for each k, in order.
template <int kStep, int kSize, Walk kWalk>
class Walker {
 public:
  TREDUCE_DEVICE Walker(const Layout<kWalk>& layout, int64_t first) : layout_(layout), first_(first) {}
  TREDUCE_DEVICE int64_t begin() const { return kWalk == Walk::even && kSize == 1 ? layout_.element(first_) : 0; }
  TREDUCE_DEVICE int64_t next(int k) const {
    if constexpr (kWalk == Walk::even) {
      return kSize > 1 ? first_ + k * kStep : layout_.element(k * kStep);  // vectors lie one after another
    } else {
      return layout_.element(first_ + k * kStep);
    }
  }

 private:
  const Layout<kWalk>& layout_;
  int64_t first_;
};

// Two dims: steps along the inner one; where it ends, back to its begin and on along the outer one. Steps of 32 bits, which a chunk
// does not overflow (see walk_of): the instructions of a step are most of what a load costs.
template <int kStep, int kSize>
class Walker<kStep, kSize, Walk::two> {
 public:
  TREDUCE_DEVICE Walker(const Layout<Walk::two>& layout, int64_t first)
      : size_(static_cast<int>(layout.inner.divisor)) {
    const int64_t outer = layout.inner.quotient(first);
    const int stride = static_cast<int>(layout.element_stride), outer_stride = static_cast<int>(layout.outer_stride);
    inner_ = static_cast<int>(first - outer * layout.inner.divisor);
    begin_ = outer * layout.outer_stride + inner_ * layout.element_stride;
    const int runs = static_cast<int>(layout.inner.quotient_of_small(kStep));
    by_ = kStep - runs * size_;
    step_ = runs * outer_stride + by_ * stride;
    wrap_ = outer_stride - size_ * stride;
  }
  TREDUCE_DEVICE int64_t begin() const { return begin_; }
  TREDUCE_DEVICE int next(int) {
    const int now = offset_;
    inner_ += by_;
    offset_ += step_;
    if (inner_ >= size_) {
      inner_ -= size_;
      offset_ += wrap_;
    }
    return now;
  }

 private:
  int64_t begin_;
  int size_, inner_, by_, step_, wrap_, offset_ = 0;
};

}  // namespace treduce::reduce
