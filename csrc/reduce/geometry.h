// What a reduction along dims looks like in memory. Host code, free of torch and CUDA; the indexing part compiles for the
// device too.
//
// Dims of extent 1 vanish, neighbours that lie one after another in memory become one, and both groups are sorted from the
// largest stride to the smallest. The elements of an output are numbered in that order: memory order, which for a single
// reduced dim, and for several whose memory order is their logical one, does not depend on the layout.
#pragma once

#include <cstdint>

#include "../common/macros.h"

namespace treduce::reduce {

// Dims of either kind after collapsing; a tensor that needs more is copied first (see torch/reduce.h).
constexpr int kMaxDims = 6;

// Division by a number known on the host: a multiplication and a shift. For numerators below 2^63.
// Source: Torbjörn Granlund and Peter Montgomery, Division by invariant integers using multiplication (1994).
struct Divider {
  int64_t divisor = 1;
  uint64_t magic = 0;  // 0: the divisor is 1
  int shift = 0;

  Divider() = default;
  explicit Divider(int64_t d);

  TREDUCE_HOST_DEVICE int64_t quotient(int64_t n) const {
    if (magic == 0) return n;
#ifdef __CUDA_ARCH__
    return static_cast<int64_t>(__umul64hi(static_cast<uint64_t>(n), magic) >> shift);
#else
    return static_cast<int64_t>(static_cast<uint64_t>(static_cast<unsigned __int128>(n) * magic >> 64) >> shift);
#endif
  }
  // The same for numerators below 2^31, in 32 bits.
  TREDUCE_HOST_DEVICE uint32_t quotient_of_small(uint32_t n) const {
    if (magic == 0) return n;
    const uint32_t upper = static_cast<uint32_t>(magic >> 32) + (static_cast<uint32_t>(magic) != 0);
    return static_cast<uint32_t>(static_cast<uint64_t>(n) * upper >> 32) >> shift;
  }
};

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
