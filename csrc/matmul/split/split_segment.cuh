// Splitting a segment of float32 numbers into halves of float16, or into three bfloat16 parts (see split.h), for those who split
// an operand beforehand and for those who split it as they read it; and adding what the tensor core summed over a segment.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "split.h"

namespace treduce::matmul::split {

using Operand16 = SplitOperand<float16>;

// A team of kLanes lanes has a segment, each lane so many numbers.
constexpr int kNumbers = kSegment / kLanes;

constexpr int kLowBits = 11;  // `low` is scaled by 2^11
constexpr int kTop = 14;      // the exponent to which a segment's largest magnitude is brought
// A segment's scale lies within these binary orders of its group's unit. So no sum in units overflows, and none is rounded as a
// subnormal float32 (see docs/numerics.md). Lines with larger numbers get no flag.
constexpr int kLowest = -45, kHighest = 40;
// Units whose powers of two, and those of scales, are normal numbers.
constexpr int kLowestUnit = -100, kHighestUnit = 113, kLowestScale = -112;
constexpr int kSmall = -13;          // scaled magnitudes below 2^-13 keep fewer than 22 bits
constexpr int kLeast = -33;          // and below 2^-33 hardly any
constexpr float kLarge = 32;         // scaled magnitudes from here on count as large
constexpr float kNear = 1.0f / 256;  // and from here on as near the largest

// 2^exponent, of a normal float32.
TREDUCE_DEVICE float power_of_two(int exponent) { return __uint_as_float(static_cast<uint32_t>(127 + exponent) << 23); }

// The exponent of the scale that brings a magnitude to 2^kTop. `most`: its bits without the sign.
TREDUCE_DEVICE int exponent_for(uint32_t most) { return static_cast<int>(most >> 24) - 127 - kTop; }

// A group's unit is estimated from its first kSampled values, to avoid a full scan, or if these are zero from every kSampleStep-th that
// follows: an odd step, lest zeros that recur hide the others. It lies kAbove binary orders above them, so that nearly every segment's
// scale is at most the unit. It decides which numbers are too far from it to be split, and changes no bit of a sum.
constexpr int kSampled = 16, kSampleStep = 33, kAbove = 3;

// `most`: the largest sampled magnitude, as bits without the sign.
TREDUCE_DEVICE int unit_exponent(uint32_t most) {
  return most == 0 ? 0 : max(kLowestUnit, min(exponent_for(most) + kAbove, kHighestUnit));
}

// The largest magnitude of some numbers, and the smallest nonzero one less one, all ones if there is none; as bits without the
// sign. Each of kLanes neighbouring lanes has kCount of the numbers.
struct Extremes {
  uint32_t most = 0, least_nonzero = ~0u;

  // Who calls: all lanes of a warp.
  template <int kLanes, int kCount>
  TREDUCE_DEVICE static Extremes of(const float (&x)[kCount]) {
    Extremes e;
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      const uint32_t a = __float_as_uint(x[i]) << 1, b = __float_as_uint(x[i + 1]) << 1;
      e.most = __vimax3_u32(e.most, a, b);
      e.least_nonzero = __vimin3_u32(e.least_nonzero, a - 1, b - 1);
    }
    e.join_lanes<kLanes>();
    return e;
  }
  // Joins those of kLanes neighbouring lanes. Who calls: all lanes of a warp.
  template <int kLanes>
  TREDUCE_DEVICE void join_lanes() {
#pragma unroll
    for (int d = kLanes / 2; d > 0; d /= 2) {
      most = max(most, __shfl_xor_sync(~0u, most, d));
      least_nonzero = min(least_nonzero, __shfl_xor_sync(~0u, least_nonzero, d));
    }
  }
  TREDUCE_DEVICE void join(const Extremes& e) {
    most = max(most, e.most);
    least_nonzero = min(least_nonzero, e.least_nonzero);
  }
  // As bits without the sign, in their places; all ones if no number is nonzero.
  TREDUCE_DEVICE uint32_t largest() const { return most >> 1; }
  TREDUCE_DEVICE uint32_t smallest() const { return least_nonzero == ~0u ? ~0u : (least_nonzero + 1) >> 1; }
  TREDUCE_DEVICE Facts facts(unsigned flags) const {
    return facts_of(flags, most >> 24, least_nonzero == ~0u ? 255 : (least_nonzero + 1) >> 24);
  }
};

// The exponent of a segment's scale, and the flags that it may have.
struct SegmentScale {
  int exponent;
  unsigned flags;
};

// Of a segment with such extremes. `unit`: the exponent of the group's unit. With an infinity, a NaN or too large a number it has neither
// kClean nor kDense, and its halves mean nothing.
TREDUCE_DEVICE SegmentScale scale_of(const Extremes& extremes, int unit) {
  const bool zero = extremes.most == 0;
  const int wanted = exponent_for(extremes.most), highest = min(unit + kHighest, kHighestUnit);
  SegmentScale s;
  s.exponent = zero ? unit : max(max(unit + kLowest, kLowestScale), min(wanted, highest));
  // Whether all numbers but zeros are at least 2^least, scaled, which is a normal number.
  const auto from = [&](int least) {
    const int bound = s.exponent + least + 127;
    return bound > 0 && extremes.least_nonzero >= (static_cast<uint32_t>(bound) << 24) - 1;
  };
  // If the exponent was limited, few numbers are large for that reason alone.
  const unsigned scaled = zero || wanted == s.exponent ? kFew | (from(kLeast) ? +kModerate : 0u) : 0u;
  const unsigned clean = from(kSmall) ? +kClean : 0u;
  s.flags = wanted <= highest ? clean | kDense | kClose | scaled | (zero ? +kZero : 0u) : 0u;
  return s;
}

// The flags that it has. `dense`: whether more than half of the numbers that there are are large; `close`: whether all are near the
// largest; `few`: whether at most two are large. Where all are zero, it is close as well; and what is close is dense.
TREDUCE_DEVICE unsigned flags_of(const SegmentScale& s, bool dense, bool close, bool few) {
  close = close || (s.flags & kZero) != 0;
  dense = dense || close;
  return s.flags & ~((dense ? 0u : +kDense) | (close ? 0u : +kClose) | (few ? 0u : +kFew));
}

// Splits numbers of a segment into halves, two a word.
template <int kCount>
TREDUCE_DEVICE void halve(const float (&x)[kCount], const SegmentScale& s, uint32_t (&high)[kCount / 2],
                          uint32_t (&low)[kCount / 2]) {
  const float down = power_of_two(-s.exponent), far_down = power_of_two(kLowBits - s.exponent);
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const __half2 top = __floats2half2_rn(x[i * 2] * down, x[i * 2 + 1] * down);
    const float2 back = __half22float2(top);
    // Exact: the rest has fewer bits than the number.
    const __half2 rest = __floats2half2_rn(fmaf(back.x, -float(1 << kLowBits), x[i * 2] * far_down),
                                           fmaf(back.y, -float(1 << kLowBits), x[i * 2 + 1] * far_down));
    memcpy(high + i, &top, 4);
    memcpy(low + i, &rest, 4);
  }
}

// The flags of a segment of which each of kLanes neighbouring lanes has kCount of the numbers, zeros past the end of k. `high`: their
// large halves. Who calls: all lanes of a warp.
template <int kCount, int kLanes>
TREDUCE_DEVICE unsigned flags_of_halves(const uint32_t (&high)[kCount / 2], int present, const SegmentScale& s) {
  // Counts large numbers and, times kNearOnes, near ones.
  constexpr int kNearOnes = 128;
  static_assert(kCount * (kNearOnes + 1) / 2 <= 2048 && kCount * kLanes < kNearOnes);  // float16 has such integers
  __half2 found = __float2half2_rn(0.0f);
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    __half2 top;
    memcpy(&top, high + i, 4);
    found = __hadd2(found, __hge2(__habs2(top), __float2half2_rn(kLarge)));
    found = __hfma2(__hge2(__habs2(top), __float2half2_rn(kNear)), __float2half2_rn(kNearOnes), found);
  }
  int both = static_cast<int>(__low2float(found) + __high2float(found));
#pragma unroll
  for (int d = kLanes / 2; d > 0; d /= 2) both += __shfl_xor_sync(~0u, both, d);
  const int large = both % kNearOnes, near = both / kNearOnes;
  return flags_of(s, 2 * large > present, near == present, large <= 2);
}

// Splits a segment into halves, and returns its flags.
template <int kCount, int kLanes>
TREDUCE_DEVICE unsigned halve_segment(const float (&x)[kCount], int present, const SegmentScale& s,
                                      uint32_t (&high)[kCount / 2], uint32_t (&low)[kCount / 2]) {
  halve(x, s, high, low);
  return flags_of_halves<kCount, kLanes>(high, present, s);
}

// Both. `exponent`: of the segment's scale.
template <int kCount, int kLanes>
TREDUCE_DEVICE Extremes split_segment(const float (&x)[kCount], int present, int unit, uint32_t (&high)[kCount / 2],
                                      uint32_t (&low)[kCount / 2], int& exponent, unsigned& flags) {
  const Extremes extremes = Extremes::of<kLanes>(x);
  const SegmentScale s = scale_of(extremes, unit);
  flags = halve_segment<kCount, kLanes>(x, present, s, high, low);
  exponent = s.exponent;
  return extremes;
}

// What a lane has seen of a line: the flags of its segments, and the largest and the smallest nonzero magnitude, of this lane's numbers or
// of others' too, as bits without the sign, of which the exponents hold.
struct Seen {
  uint32_t most = 0, least = ~0u;
  unsigned flags = 0xff;

  TREDUCE_DEVICE void add(uint32_t most_of_segment, uint32_t least_of_segment, unsigned flags_of_segment) {
    most = max(most, most_of_segment);
    least = min(least, least_of_segment);
    flags &= flags_of_segment;
  }
  TREDUCE_DEVICE void add(const Extremes& e, unsigned flags_of_segment) {
    add(e.largest(), e.smallest(), flags_of_segment);
  }
  // Who calls: all lanes of a warp.
  TREDUCE_DEVICE Facts facts() const {
    uint32_t largest = most, smallest = least;
#pragma unroll
    for (int d = kLanes / 2; d > 0; d /= 2) {
      largest = max(largest, __shfl_xor_sync(~0u, largest, d));
      smallest = min(smallest, __shfl_xor_sync(~0u, smallest, d));
    }
    return facts_of(flags, largest >> 23, min(smallest >> 23, 255u));
  }
};

// Splits a lane's numbers of some lines' segments as split_segment does, with fewer instructions where all lines of the warp are as most are:
// all numbers near the largest, one that is large in each lane, and a scale not far from the unit. Nothing need be counted then, and the
// extremes are found by numbers' first 16 bits. `exponent`: of the scales. Who calls: all lanes of a warp.
template <int kLines>
TREDUCE_DEVICE void split_numbers(const float (&x)[kLines][kNumbers], int present, const int (&unit)[kLines],
                                  uint32_t (&high)[kLines][kNumbers / 2], uint32_t (&low)[kLines][kNumbers / 2],
                                  int (&exponent)[kLines], Seen (&seen)[kLines]) {
  constexpr uint32_t kExponent = 1 << 23;
  constexpr int kBias = 127 + kTop;  // a scale's exponent is the largest number's, as float32 has it, less this
  // Exponents of scales that are not limited, and with which no bound of scale_of is subnormal.
  constexpr int kRange = 33, kFirst = -93, kBelowUnit = 19;
  static_assert(kFirst >= kLowestScale && kFirst + kLeast + 127 > 0 && kFirst + kRange <= kLowestUnit + kHighest);
  static_assert(kBelowUnit <= -kLowest && kRange - kBelowUnit <= kHighest && kRange <= -kLowest);
  // |x| * 2^-exponent is at least kNear, and kLarge, from these exponents below the largest on.
  constexpr int kNearBelow = kTop + 8, kLargeBelow = kTop - 5;
  static_assert(kNear == 1.0f / (1 << (kNearBelow - kTop)) && kLarge == 1 << (kTop - kLargeBelow));
  constexpr unsigned kPlainest = kPlainestFacts & 0xff;

  uint32_t most[kLines], least[kLines];
  SegmentScale s[kLines];
  bool plain = true;
#pragma unroll
  for (int l = 0; l < kLines; ++l) {
    const auto two = [&](int i) {
      return __byte_perm(__float_as_uint(x[l][i]), __float_as_uint(x[l][i + 1]), 0x7632) & 0x7fff7fff;
    };
    uint32_t two_most = 0, two_least = ~0u;
#pragma unroll
    for (int i = 0; i < kNumbers; i += 4) {
      const uint32_t a = two(i), b = two(i + 2);
      two_most = __vimax3_u16x2(two_most, a, b);
      two_least = __vimin3_u16x2(two_least, a, b);
    }
    const uint32_t own = max(two_most, two_most << 16);
    most[l] = own, least[l] = min(two_least, two_least << 16);
#pragma unroll
    for (int d = kLanes / 2; d > 0; d /= 2) most[l] = max(most[l], __shfl_xor_sync(~0u, most[l], d));
    const uint32_t top = most[l] & 0xff800000u;
    s[l] = {static_cast<int>(top / kExponent) - kBias, kPlainest};
    const int first = max(min(unit[l] - kBelowUnit, kHighestUnit - kRange), kFirst);
    plain = plain && top - static_cast<uint32_t>(first + kBias) * kExponent <= kRange * kExponent &&
            least[l] >= top - kNearBelow * kExponent && own >= top - kLargeBelow * kExponent;
  }
  plain = __all_sync(~0u, plain);
  if (!plain) {
#pragma unroll
    for (int l = 0; l < kLines; ++l) {
      const Extremes extremes = Extremes::of<kLanes>(x[l]);
      s[l] = scale_of(extremes, unit[l]);
      most[l] = extremes.largest();
      least[l] = extremes.smallest();
    }
  }
#pragma unroll
  for (int l = 0; l < kLines; ++l) halve(x[l], s[l], high[l], low[l]);
  if (!plain) {
#pragma unroll
    for (int l = 0; l < kLines; ++l) s[l].flags = flags_of_halves<kNumbers, kLanes>(high[l], present, s[l]);
  }
#pragma unroll
  for (int l = 0; l < kLines; ++l) {
    seen[l].add(most[l], least[l], s[l].flags);
    exponent[l] = s[l].exponent;
  }
}
// The same of one line. Returns the exponent of its scale.
TREDUCE_DEVICE int split_numbers(const float (&x)[kNumbers], int present, int unit, uint32_t (&high)[kNumbers / 2],
                                 uint32_t (&low)[kNumbers / 2], Seen& seen) {
  using Halves = uint32_t[1][kNumbers / 2];
  int exponent[1];
  split_numbers<1>(reinterpret_cast<const float (&)[1][kNumbers]>(x), present, {unit}, reinterpret_cast<Halves&>(high),
                   reinterpret_cast<Halves&>(low), exponent, reinterpret_cast<Seen(&)[1]>(seen));
  return exponent[0];
}

// The largest magnitude without its last 16 bits; and above it, so that both are found by one maximum, the complement of the smallest
// nonzero one. 0: no number.
using Tops = uint32_t;
TREDUCE_DEVICE Tops larger_of(Tops a, Tops b) { return __vmaxu2(a, b); }
TREDUCE_DEVICE Tops tops_of(const Extremes& e) {
  return e.most >> 17 | (e.least_nonzero == ~0u ? 0u : 0xffff0000u - ((e.least_nonzero + 1) >> 17 << 16));
}
TREDUCE_DEVICE uint32_t least_of(Tops tops) { return 0xffff - (tops >> 16); }
// The exponents of the extremes, which is all that a scale and facts depend on; of numbers that are not zero.
TREDUCE_DEVICE Extremes extremes_of(Tops tops) { return {(tops & 0x7f80) << 17 | 1, (least_of(tops) & 0x7f80) << 17}; }
// Of a line, of which kLanes neighbouring lanes have numbers. Zeros count. Two numbers take 3.5 instructions; Extremes take five.
// Who calls: all lanes of a warp.
TREDUCE_DEVICE Tops all_tops_of(const float (&x)[kNumbers]) {
  uint32_t most = 0, least = ~0u;
  const auto two = [&](int i) {
    return __byte_perm(__float_as_uint(x[i]), __float_as_uint(x[i + 1]), 0x7632) & 0x7fff7fff;
  };
#pragma unroll
  for (int i = 0; i < kNumbers; i += 4) {
    const uint32_t a = two(i), b = two(i + 2);
    most = __vimax3_u16x2(most, a, b);
    least = __vimin3_u16x2(least, a, b);
  }
  Tops tops = larger_of(__byte_perm(most, ~least, 0x5410), __byte_perm(most, ~least, 0x7632));
#pragma unroll
  for (int d = kLanes / 2; d > 0; d /= 2) tops = larger_of(tops, __shfl_xor_sync(~0u, tops, d));
  return tops;
}

// The first bits of numbers of which some are near the largest, and some are not.
TREDUCE_DEVICE uint32_t near_bound(const SegmentScale& s) {
  constexpr int kNearExponent = -8;  // kNear is 2^-8, and what is 2^-20 smaller is rounded to it
  static_assert(kNear == 1.0f / (1 << -kNearExponent));
  return static_cast<uint32_t>(s.exponent + kNearExponent - 1 + 127) << 7 | 0x7f;
}

// The sum of a segment, from both accumulators of the tensor core.
TREDUCE_DEVICE float segment_sum(float high, float rest) { return fmaf(rest, 1.0f / (1 << kLowBits), high); }

// Adds it, times the scale of its segment.
TREDUCE_DEVICE void add_sum(float& acc, float sum, float scale) { acc = fmaf(sum, scale, acc); }
TREDUCE_DEVICE void add_segment(float& acc, float high, float rest, float scale) {
  add_sum(acc, segment_sum(high, rest), scale);
}

// Shifts the halves of a segment from its scale 2^own to the unit 2^unit, if that is exact and makes no half a float16 subnormal,
// which the tensor core would align otherwise: sums then change by a power of two alone. If not, the halves stay. Each of kLanes
// neighbouring lanes has some of the halves. `least`: the exponent of the smallest nonzero magnitude, as Facts have it.
// Who calls: all lanes of a warp.
// Returns the factor that brings the segment's sum to the unit: 1 where the halves were shifted.
template <int kWords, int kLanes>
TREDUCE_DEVICE float to_unit(uint32_t (&high)[kWords], uint32_t (&low)[kWords], int least, int own, int unit) {
  // The smallest nonzero magnitude, two at a time: with the sign bit set, less one, every value is negative but zero, which
  // becomes the largest.
  uint32_t two = 0x7fff7fff;
#pragma unroll
  for (int i = 0; i < kWords; ++i) two = __vmins2(two, (low[i] | 0x80008000) - 0x00010001);
  int least_low = min(static_cast<int>(two) >> 16, static_cast<int>(two << 16) >> 16);
#pragma unroll
  for (int d = kLanes / 2; d > 0; d /= 2) least_low = min(least_low, __shfl_xor_sync(~0u, least_low, d));

  const int down = unit - own;
  constexpr int kNormal = -14;  // the exponent of float16's least normal number
  // Magnitudes from these bounds on stay normal when shifted by `down`. The factor itself is normal down to 2^-14.
  const int bound = unit + kNormal + 127;
  const int bound_low = static_cast<int16_t>((1 + down) << 10 | 0x8000) - 1;
  if (least == 255) return 1.0f;  // all are zero
  if (down > 0 && down <= kTop && least >= bound && least_low >= bound_low) {
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
    return 1.0f;
  }
  return power_of_two(-down);
}

// A sum in units, of which these are the exponents, as a number: rounded once. In two steps where the power of two is no normal number.
TREDUCE_DEVICE float from_units(float sum, int a, int b) {
  const int all = a + b, first = all < -126 || all > 127 ? all >> 1 : all;
  return sum * power_of_two(first) * power_of_two(all - first);
}
TREDUCE_DEVICE int exponent_of(float power) { return static_cast<int>(__float_as_uint(power) >> 23) - 127; }
TREDUCE_DEVICE float from_units(float sum, float a, float b) { return from_units(sum, exponent_of(a), exponent_of(b)); }

// ---- parts ----

// Two numbers as three pairs of bfloat16, the largest parts first. Each rest is exact.
TREDUCE_DEVICE void split_parts(float x, float y, uint32_t (&parts)[kParts]) {
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(x, y);
    memcpy(parts + i, &both, 4);
    x -= __uint_as_float(parts[i] << 16);
    y -= __uint_as_float(parts[i] & 0xffff0000u);
  }
}

// The same of all numbers that a lane has, times `factor`: put(part, i, its pair) of the `i`th two.
template <int kCount, class Put>
TREDUCE_DEVICE void split_all_parts(const float (&numbers)[kCount], float factor, Put put) {
#pragma unroll
  for (int i = 0; i < kCount; i += 2) {
    uint32_t both[kParts];
    split_parts(numbers[i] * factor, numbers[i + 1] * factor, both);
#pragma unroll
    for (int part = 0; part < kParts; ++part) put(part, i / 2, both[part]);
  }
}

// The sum of a segment, from both accumulators of the tensor core: products of the largest parts, and all others.
TREDUCE_DEVICE void add_parts(float& acc, float high, float rest) { acc += high + rest; }

// ---- plain cores ----

// What products that are not finite add up to, in any order: bits. Of both infinities: NaN.
enum NotFinite : unsigned { kPlusInfinity = 1, kMinusInfinity = 2, kNaN = 4 };
// Of one product, which is not finite.
TREDUCE_DEVICE unsigned not_finite(float product) {
  return product != product ? kNaN : product > 0 ? kPlusInfinity : kMinusInfinity;
}
TREDUCE_DEVICE bool is_nan(unsigned sum) { return sum >= (kPlusInfinity | kMinusInfinity); }
TREDUCE_DEVICE float sum_of(unsigned found) {
  return __uint_as_float(found == 0               ? 0u
                         : is_nan(found)          ? 0x7fffffffu
                         : found == kPlusInfinity ? 0x7f800000u
                                                  : 0xff800000u);
}
TREDUCE_DEVICE bool is_finite(float x) { return (__float_as_uint(x) << 1) < 0xff000000u; }

// An output: the sum of fused multiply-adds in k order over each segment; segments and groups are added in the order in which the tensor cores'
// sums are. Who calls: all lanes of a warp, each of which has a segment of a group.
TREDUCE_DEVICE float plain_sum(const float* a, int64_t step_a, const float* b, int64_t step_b, int64_t k) {
  const auto is_aligned = [](const float* x, int64_t step) {
    return step == 1 && reinterpret_cast<uint64_t>(x) % sizeof(float4) == 0;
  };
  const bool fours = is_aligned(a, step_a) && is_aligned(b, step_b);
  float total = 0;
  for (int64_t begin = 0; begin < k; begin += kGroup) {
    const int64_t mine = begin + int64_t(threadIdx.x % 32) * kSegment, end = min(mine + kSegment, k);
    float acc = 0;
    int64_t i = mine;
    if (fours) {
#pragma unroll 4
      for (; i + 4 <= end; i += 4) {
        const float4 x = __ldg(reinterpret_cast<const float4*>(a + i)),
                     y = __ldg(reinterpret_cast<const float4*>(b + i));
        acc = multiply_add(x.w, y.w, multiply_add(x.z, y.z, multiply_add(x.y, y.y, multiply_add(x.x, y.x, acc))));
      }
    }
#pragma unroll 8
    for (; i < end; ++i) acc = multiply_add(__ldg(a + i * step_a), __ldg(b + i * step_b), acc);
    float group = 0;
#pragma unroll
    for (int segment = 0; segment < kGroupSegments; ++segment) group += __shfl_sync(~0u, acc, segment);
    total += group;
  }
  return total;
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

// What holds of the lines of all lanes. Who calls: all lanes of a warp.
TREDUCE_DEVICE Others of_all_lanes(const Others& o) { return {__reduce_and_sync(~0u, o.flags)}; }

// Whether lines with these codes have such an output. with(code): the codes of lines with which one of that code has. Who calls: all lanes
// of a warp.
template <class With>
TREDUCE_DEVICE bool any_output(uint32_t codes_a, uint32_t codes_b, With with) {
  const unsigned lane = threadIdx.x % 32;
  return __any_sync(~0u, (codes_a >> lane & 1) != 0 && (with(lane) & codes_b) != 0);
}

// A store of 16 bytes. A call, because nvcc 13.0 makes four stores of an assignment in these kernels.
template <class Vector>
TREDUCE_DEVICE void store_vector(void* to, Vector vector) {
  static_assert(sizeof(Vector) == 16);
  __stwb(static_cast<Vector*>(to), vector);
}
}  // namespace treduce::matmul::split
