// Splitting a segment of float32 numbers into halves of float16 (see split.h), for those who split an operand beforehand and for
// those who split it as they read it; and adding what the tensor core summed over a segment.
#pragma once

#include <cuda_runtime.h>

#include "split.h"

namespace treduce::matmul::split {

using Operand16 = SplitOperand<float16>;

constexpr int kLowBits = 11;  // `low` is scaled by 2^11
constexpr int kTop = 14;      // the exponent to which a segment's largest magnitude is brought
// Exponents of scales, and of the units of groups: so that whatever is added has the same bits, in units or without them,
// because nothing overflows on the way, and nothing is rounded to float32's least place (see docs/numerics.md). Lines of
// larger numbers have no flag.
constexpr int kLowest = -45, kHighest = 12;
constexpr int kLowestUnit = -30, kHighestUnit = 0;
constexpr int kSmall = -13;   // scaled magnitudes below 2^-13 lose bits of their 22
constexpr float kLarge = 32;  // scaled

// 2^exponent, of a normal float32.
TREDUCE_DEVICE float power_of_two(int exponent) { return __uint_as_float(static_cast<uint32_t>(127 + exponent) << 23); }

// The exponent of the scale that brings a magnitude, given as its bits without the sign, to 2^kTop.
TREDUCE_DEVICE int exponent_for(uint32_t most) { return static_cast<int>(most >> 24) - 127 - kTop; }

// Splits a segment of which each of kLanes neighbouring lanes has kCount numbers (zeros past the end), in pairs.
// Who calls: all lanes of a warp. A line with a number that is infinite, NaN or too large gets no flag, and any halves:
// its outputs are computed once more.
// Returns the least magnitude that is not zero, as an integer without the sign, less one; all ones where there is none.
template <int kCount, int kLanes>
TREDUCE_DEVICE uint32_t split_segment(const float (&x)[kCount], int present, uint32_t (&high)[kCount / 2],
                                      uint32_t (&low)[kCount / 2], float& scale, unsigned char& flags) {
  uint32_t most = 0, least = ~0u;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const uint32_t magnitude = __float_as_uint(x[i]) << 1;
    most = max(most, magnitude);
    least = min(least, magnitude - 1);
  }
#pragma unroll
  for (int d = kLanes / 2; d > 0; d /= 2) {
    most = max(most, __shfl_xor_sync(~0u, most, d));
    least = min(least, __shfl_xor_sync(~0u, least, d));
  }
  const int wanted = exponent_for(most);
  const int exponent = most == 0 ? 0 : max(kLowest, min(wanted, kHighest));
  const float down = power_of_two(-exponent), far_down = power_of_two(kLowBits - exponent);
  scale = power_of_two(exponent);

  __half2 large = __float2half2_rn(0.0f);
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const __half2 top = __floats2half2_rn(x[i * 2] * down, x[i * 2 + 1] * down);
    const float2 back = __half22float2(top);
    // Exact: what `top` leaves of a number has fewer bits than the number.
    const __half2 rest = __floats2half2_rn(fmaf(back.x, -float(1 << kLowBits), x[i * 2] * far_down),
                                           fmaf(back.y, -float(1 << kLowBits), x[i * 2 + 1] * far_down));
    large = __hadd2(large, __hge2(__habs2(top), __float2half2_rn(kLarge)));
    memcpy(high + i, &top, 4);
    memcpy(low + i, &rest, 4);
  }
  int count = static_cast<int>(__low2float(large) + __high2float(large));
#pragma unroll
  for (int d = kLanes / 2; d > 0; d /= 2) count += __shfl_xor_sync(~0u, count, d);
  const uint32_t bound = (static_cast<uint32_t>(exponent + kSmall + 127) << 24) - 1;
  const bool zero = most == 0;
  const int clean = least < bound ? 0 : kClean, dense = 2 * count > present || zero ? kDense : 0;
  // Where the scale is cut off, few are large for that alone.
  const int few = count <= 2 && (zero || wanted == exponent) ? kFew : 0;
  flags = static_cast<unsigned char>(wanted <= kHighest ? clean | dense | few | (zero ? kZero : 0) : 0);
  return least;
}

// What the tensor core summed over a segment, of both accumulators.
TREDUCE_DEVICE float segment_sum(float high, float rest) { return fmaf(rest, 1.0f / (1 << kLowBits), high); }

TREDUCE_DEVICE void add_segment(float& acc, float high, float rest, float scale) {
  acc = fmaf(segment_sum(high, rest), scale, acc);
}

// A group's unit is a guess from its first numbers, which costs no look at all of them: this many binary orders above those,
// so that nearly every segment's scale is at most the unit. It decides how fast sums are added, and no bit of them.
constexpr int kSampled = 16, kAbove = 3;

// `most`: the largest magnitude sampled, without its sign.
TREDUCE_DEVICE int unit_exponent(uint32_t most) {
  return max(kLowestUnit, min(exponent_for(most) + kAbove, kHighestUnit));
}

// Brings the halves of a segment, of which each of kLanes neighbouring lanes has a part, from their scale to the unit
// 2^exponent: `scale` becomes one. But only where that is exact, and where no half is among float16's subnormals, which the
// tensor core aligns in another way, so that all sums are the same but for their unit. Else what remains is in `scale`.
// `least`: as split_segment returns it.
// Who calls: all lanes of a warp.
template <int kWords, int kLanes>
TREDUCE_DEVICE void to_unit(uint32_t (&high)[kWords], uint32_t (&low)[kWords], float& scale, uint32_t least,
                            int exponent) {
  // Two at a time: with the sign set, one less is a negative number, but for zero, which becomes the largest.
  uint32_t two = 0x7fff7fff;
#pragma unroll
  for (int i = 0; i < kWords; ++i) two = __vmins2(two, (low[i] | 0x80008000) - 0x00010001);
  int least_low = min(static_cast<int>(two) >> 16, static_cast<int>(two << 16) >> 16);
#pragma unroll
  for (int d = kLanes / 2; d > 0; d /= 2) least_low = min(least_low, __shfl_xor_sync(~0u, least_low, d));

  const int own = static_cast<int>(__float_as_uint(scale) >> 23) - 127, down = exponent - own;
  constexpr int kNormal = -14;  // the exponent of float16's least normal number
  // What is large enough to be shifted so far down; and the factor itself is normal down to 2^-14.
  const uint32_t bound = (static_cast<uint32_t>(own + kNormal + down + 127) << 24) - 1;
  const int bound_low = static_cast<int16_t>((1 + down) << 10 | 0x8000) - 1;
  if (least == ~0u) {
    scale = 1.0f;  // all are zero
  } else if (down > 0 && down <= kTop && least >= bound && least_low >= bound_low) {
    const __half2 factor = __half2half2(__ushort_as_half(static_cast<unsigned short>((15 - down) << 10)));
    const auto multiply = [&](uint32_t& word) {
      __half2 pair;
      memcpy(&pair, &word, 4);
      pair = __hmul2(pair, factor);
      memcpy(&word, &pair, 4);
    };
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      multiply(high[i]);
      multiply(low[i]);
    }
    scale = 1.0f;
  } else {
    scale *= power_of_two(-exponent);
  }
}

// Which matrix of an operand a batch reads.
struct Matrices {
  int64_t inner;  // matrices along the inner batch dimension; 1: broadcast
  bool outer;

  TREDUCE_DEVICE int64_t of(int64_t batch0, int64_t batch1) const {
    return (outer ? batch0 * inner : 0) + (inner > 1 ? batch1 : 0);
  }
};

inline Matrices matrices_of(const Operand& o) { return {o.batch_size[1], o.batch_size[0] > 1}; }

// A store of 16 bytes. A call, because nvcc 13.0 makes four stores of an assignment in these kernels.
template <class Vector>
TREDUCE_DEVICE void store_vector(void* to, Vector vector) {
  static_assert(sizeof(Vector) == 16);
  __stwb(static_cast<Vector*>(to), vector);
}
}  // namespace treduce::matmul::split
