// Splitting a segment of float32 numbers into halves of float16 (see split.h), for those who split an operand beforehand and for
// those who split it as they read it; and adding what the tensor core summed over a segment.
#pragma once

#include <cuda_runtime.h>

#include "split.h"

namespace treduce::matmul::split {

using Operand16 = SplitOperand<float16>;

constexpr int kLowBits = 11;  // `low` is scaled by 2^11
constexpr int kTop = 14;      // the exponent to which a segment's largest magnitude is brought
// Limits of the exponents of scales and units. Within them no sum overflows and no sum is rounded as a subnormal float32, so the
// bits are the same with units and without (see docs/numerics.md). Lines with larger numbers get no flag.
constexpr int kLowest = -45, kHighest = 12;
constexpr int kLowestUnit = -30, kHighestUnit = 0;
constexpr int kSmall = -13;   // scaled magnitudes below 2^-13 keep fewer than 22 bits
constexpr float kLarge = 32;  // scaled magnitudes from here on count as large

// 2^exponent, of a normal float32.
TREDUCE_DEVICE float power_of_two(int exponent) { return __uint_as_float(static_cast<uint32_t>(127 + exponent) << 23); }

// The exponent of the scale that brings a magnitude to 2^kTop. `most`: its bits without the sign.
TREDUCE_DEVICE int exponent_for(uint32_t most) { return static_cast<int>(most >> 24) - 127 - kTop; }

// Splits a segment into halves. Each of kLanes neighbouring lanes has kCount of its numbers, zeros past the end of k, and gets
// the halves of these. A segment with an infinity, a NaN or too large a number gets no flag, and its halves mean nothing: the
// outputs of its line are computed again in float32.
// Who calls: all lanes of a warp.
// Returns the smallest nonzero magnitude as bits without the sign, less one; all ones if there is none.
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
    // Exact: the rest has fewer bits than the number.
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
  // If the exponent was limited, few numbers are large for that reason alone.
  const int few = count <= 2 && (zero || wanted == exponent) ? kFew : 0;
  flags = static_cast<unsigned char>(wanted <= kHighest ? clean | dense | few | (zero ? kZero : 0) : 0);
  return least;
}

// The sum of a segment, from both accumulators of the tensor core.
TREDUCE_DEVICE float segment_sum(float high, float rest) { return fmaf(rest, 1.0f / (1 << kLowBits), high); }

TREDUCE_DEVICE void add_segment(float& acc, float high, float rest, float scale) {
  acc = fmaf(segment_sum(high, rest), scale, acc);
}

// A group's unit is estimated from its first kSampled values, to avoid a full scan, and lies kAbove binary orders above them, so
// that nearly every segment's scale is at most the unit. The unit affects the speed of the additions and no bit of the result.
constexpr int kSampled = 16, kAbove = 3;

// `most`: the largest sampled magnitude, as bits without the sign.
TREDUCE_DEVICE int unit_exponent(uint32_t most) {
  return max(kLowestUnit, min(exponent_for(most) + kAbove, kHighestUnit));
}

// Shifts the halves of a segment from its scale to the unit 2^exponent and sets `scale` to one, if that is exact and makes no
// half a float16 subnormal, which the tensor core would align otherwise: sums then change by a power of two alone. If not, the
// halves stay and `scale` is divided by the unit. Each of kLanes neighbouring lanes has a part of the halves.
// `least`: as split_segment returns it.
// Who calls: all lanes of a warp.
template <int kWords, int kLanes>
TREDUCE_DEVICE void to_unit(uint32_t (&high)[kWords], uint32_t (&low)[kWords], float& scale, uint32_t least,
                            int exponent) {
  // The smallest nonzero magnitude, two at a time: with the sign bit set, less one, every value is negative but zero, which
  // becomes the largest.
  uint32_t two = 0x7fff7fff;
#pragma unroll
  for (int i = 0; i < kWords; ++i) two = __vmins2(two, (low[i] | 0x80008000) - 0x00010001);
  int least_low = min(static_cast<int>(two) >> 16, static_cast<int>(two << 16) >> 16);
#pragma unroll
  for (int d = kLanes / 2; d > 0; d /= 2) least_low = min(least_low, __shfl_xor_sync(~0u, least_low, d));

  const int own = static_cast<int>(__float_as_uint(scale) >> 23) - 127, down = exponent - own;
  constexpr int kNormal = -14;  // the exponent of float16's least normal number
  // Magnitudes from these bounds on stay normal when shifted by `down`. The factor itself is normal down to 2^-14.
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

// Which matrix of an operand belongs to a batch index.
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
