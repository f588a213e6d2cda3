// What a reduction along dims looks like in memory. Host code, free of torch and CUDA; the indexing part compiles for the
// device too.
//
// Dims of extent 1 vanish, neighbours that lie one after another in memory become one, and both groups are sorted from the
// largest stride to the smallest. The elements of an output are numbered in that order: memory order, which for a single
// reduced dim, and for several whose memory order is their logical one, does not depend on the layout.
#pragma once

#include <cstdint>

#include "../common/divider.h"

namespace treduce::reduce {

// Dims of either kind after collapsing; a tensor that needs more is copied first (see torch/reduce.h).
constexpr int kMaxDims = 6;

// A group of dims, outermost first: turns a number into an offset.
struct Extents {
  int count = 0;
  int64_t stride[kMaxDims] = {};
  Divider size[kMaxDims];

  TREDUCE_HOST_DEVICE int64_t offset(int64_t i) const {
    int64_t sum = 0;
    for (int d = count - 1; d > 0; --d) {
      const int64_t q = size[d].quotient(i);
      sum += (i - q * size[d].divisor) * stride[d];
      i = q;
    }
    return count > 0 ? sum + i * stride[0] : 0;
  }
  int64_t numel() const {
    int64_t n = 1;
    for (int d = 0; d < count; ++d) n *= size[d].divisor;
    return n;
  }
  // The numbers are their own offsets.
  bool is_dense() const {
    int64_t dense = 1;
    for (int d = count - 1; d >= 0; --d) {
      if (stride[d] != dense) return false;
      dense *= size[d].divisor;
    }
    return true;
  }
  int64_t inner_size() const { return count > 0 ? size[count - 1].divisor : 1; }
  int64_t inner_stride() const { return count > 0 ? stride[count - 1] : 1; }
};

struct Geometry {
  Extents reduced;     // strides of the input, in elements
  Extents kept;        // strides of the input; output o of the enumeration begins at kept.offset(o)
  Extents kept_out;    // the same sizes with the strides of the output: it is written at kept_out.offset(o)
  int64_t length = 1;  // elements of an output
  int64_t outputs = 1;
  bool fits = true;  // false: more than kMaxDims of a kind were left

  // Elements from the first address to the last, both included; 0 where nothing is read.
  int64_t reach() const;
};

// A dim of the call. `out_stride` counts for kept dims alone.
struct CallDim {
  int64_t size, stride, out_stride;
  bool reduced;
};

Geometry make_geometry(const CallDim* dims, int count);

}  // namespace treduce::reduce
