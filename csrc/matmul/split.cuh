// Splits float32 operands into pairs of float16 (see split.h), and computes in float32 what pairs cannot.
#pragma once

#include <cuda_runtime.h>

#include "../common/launch.h"
#include "../primitives/ptx/launch.cuh"
#include "../primitives/shared.cuh"
#include "rung.h"
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

// A store of 16 bytes. A call, because nvcc 13.0 makes four stores of an assignment in these kernels.
template <class Vector>
TREDUCE_DEVICE void store_vector(void* to, Vector vector) {
  static_assert(sizeof(Vector) == 16);
  __stwb(static_cast<Vector*>(to), vector);
}

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

// Each lane of a team has runs of kRun numbers of its segment, beside those of the others.
constexpr int kNumbers = kSegment / kLanes, kRun = 8;

// Where in its segment a lane's `i`th number lies, of which kRun follow.
TREDUCE_DEVICE int place_of(int i) { return i * kLanes + static_cast<int>(threadIdx.x) % kLanes * kRun; }

// One operand and where its halves go. Indices of lines and segments have 32 bits: the workspace of more would have 2^40
// bytes.
struct Task {
  const float* data;
  int64_t line_stride, depth_stride, batch_size1, batch_stride[2];
  int64_t depth;     // what is there of it
  bool vectors;      // four steps of k are one aligned load
  bool along_lines;  // lines are contiguous
  int64_t blocks;
  Operand16 to;

  TREDUCE_DEVICE const float* line(uint32_t matrix, uint32_t line) const {
    const float* from = data + line * line_stride;
    if (matrix == 0) return from;
    const uint32_t inner = static_cast<uint32_t>(batch_size1);
    return from + matrix / inner * batch_stride[0] + matrix % inner * batch_stride[1];
  }
  // The largest of the magnitudes sampled, without its sign, of the line's group of which `segment` is one.
  // Who calls: all lanes of a warp.
  TREDUCE_DEVICE uint32_t sample(bool there, const float* line, uint32_t segment) const {
    if (to.unit == nullptr) return 0;
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < kSampled; i += kLanes) {
      const int64_t k = int64_t(segment / kGroupSegments) * kGroup + i + threadIdx.x % kLanes;
      if (there && k < depth) most = max(most, __float_as_uint(__ldg(line + k * depth_stride)) << 1);
    }
#pragma unroll
    for (int d = kLanes / 2; d > 0; d /= 2) most = max(most, __shfl_xor_sync(~0u, most, d));
    return most;
  }
  // Splits and writes the segment of which each lane has its numbers.
  TREDUCE_DEVICE void write(const float (&x)[kNumbers], bool there, uint32_t matrix, uint32_t line, uint32_t segment,
                            uint32_t sampled) const {
    uint32_t high[kNumbers / 2], low[kNumbers / 2];
    float scale;
    unsigned char flags;
    const int present = static_cast<int>(min(int64_t(kSegment), depth - int64_t(segment) * kSegment));
    const uint32_t least = split_segment<kNumbers, kLanes>(x, present, high, low, scale, flags);
    const int unit = unit_exponent(sampled), lane = threadIdx.x % kLanes;
    if (to.unit != nullptr) to_unit<kNumbers / 2, kLanes>(high, low, scale, least, unit);
    if (!there) return;
    const Halves& shape = to.shape;
    const int64_t at = (matrix * shape.lines + line) * shape.depth + int64_t(segment) * kSegment;
#pragma unroll
    for (int i = 0; i < kNumbers; i += kRun) {
      const int w = i / 2;
      store_vector(to.high + at + place_of(i), make_uint4(high[w], high[w + 1], high[w + 2], high[w + 3]));
      store_vector(to.low + at + place_of(i), make_uint4(low[w], low[w + 1], low[w + 2], low[w + 3]));
    }
    const int64_t mark = (matrix * shape.segments() + segment) * shape.lines_padded + line;
    if (lane == 0) {
      to.scale[mark] = scale;
      to.flags[mark] = flags;
      if (to.unit != nullptr && segment % kGroupSegments == 0) {
        to.unit[(matrix * shape.groups() + segment / kGroupSegments) * shape.lines_padded + line] = power_of_two(unit);
      }
    }
    // What a tile copies past the last line needs no scale.
    if (line + 1 == shape.lines) {
#pragma unroll 1
      for (int64_t i = line + 1 + lane; i < shape.lines_padded; i += kLanes) to.scale[mark - line + i] = 1.0f;
    }
  }
};

// Where vectors along k are aligned: a team reads its segment.
TREDUCE_DEVICE void split_vectors(const Task& s, uint32_t block) {
  const Halves& shape = s.to.shape;
  const uint32_t lines = static_cast<uint32_t>(shape.lines), segments = static_cast<uint32_t>(shape.segments());
  const uint32_t index = block * kTeams + threadIdx.x / kLanes, row = index / segments;
  const uint32_t segment = index - row * segments, matrix = row < lines ? 0 : row / lines;
  const uint32_t line = row - matrix * lines;
  const bool there = matrix < shape.matrices;
  const float* const from = s.line(matrix, line);
  float x[kNumbers];
#pragma unroll
  for (int i = 0; i < kNumbers; i += 4) {
    const int64_t k = int64_t(segment) * kSegment + place_of(i / kRun * kRun) + i % kRun;
    const float4 four = there && k < s.depth ? __ldg(reinterpret_cast<const float4*>(from + k)) : float4{0, 0, 0, 0};
    x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
  }
  s.write(x, there, matrix, line, segment, s.sample(there, from, segment));
}

// Elsewhere a segment of as many lines as there are teams goes through shared memory, read along the lines or along k.
TREDUCE_DEVICE void split_tile(const Task& s, uint32_t block) {
  constexpr int kPitch = kSegment + 1, kStep = kThreads / kSegment, kLoads = kSplitLines / kStep;
  static_assert(kSegment == kSplitLines);
  SHARED_ARRAY(float, tile, kSplitLines* kPitch);
  const Halves& shape = s.to.shape;
  const uint32_t lines = static_cast<uint32_t>(shape.lines), segments = static_cast<uint32_t>(shape.segments());
  const uint32_t across = (lines + kSplitLines - 1) / kSplitLines, place = block / across;
  const uint32_t first = (block - place * across) * kSplitLines;
  const uint32_t matrix = place / segments, segment = place - matrix * segments;
  // A thread has a line and every so many steps of k, or the other way round.
  const int x = threadIdx.x % kSegment, y = threadIdx.x / kSegment;
  const int64_t begin = int64_t(segment) * kSegment, left_k = s.depth - begin, left_lines = lines - first;
  const float* const from = s.line(matrix, first) + begin * s.depth_stride;
  const int64_t stride_x = s.along_lines ? s.line_stride : s.depth_stride;
  const int64_t stride_y = s.along_lines ? s.depth_stride : s.line_stride;
  const int64_t left_x = s.along_lines ? left_lines : left_k, left_y = s.along_lines ? left_k : left_lines;
  float numbers[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const bool there = x < left_x && y + i * kStep < left_y;
    numbers[i] = there ? __ldg(from + x * stride_x + (y + i * kStep) * stride_y) : 0.0f;
  }
  const uint32_t own = threadIdx.x / kLanes, line = first + own;
  const uint32_t sampled = s.sample(line < lines, s.line(matrix, line), segment);
  float* const to = tile + (s.along_lines ? x * kPitch + y : y * kPitch + x);
  const int pitch = s.along_lines ? kStep : kStep * kPitch;
#pragma unroll
  for (int i = 0; i < kLoads; ++i) to[i * pitch] = numbers[i];
  __syncthreads();
  float of_team[kNumbers];
#pragma unroll
  for (int i = 0; i < kNumbers; ++i) of_team[i] = tile[own * kPitch + place_of(i / kRun * kRun) + i % kRun];
  s.write(of_team, line < lines, matrix, line, segment, sampled);
}

static __global__ void __launch_bounds__(kThreads)
    split_operands(TREDUCE_GRID_CONSTANT Task a, TREDUCE_GRID_CONSTANT Task b) {
  ptx::allow_launch_after();
  for (int64_t block = blockIdx.x; block < a.blocks + b.blocks; block += gridDim.x) {
    const bool of_a = block < a.blocks;
    const Task& s = of_a ? a : b;
    const uint32_t own = static_cast<uint32_t>(of_a ? block : block - a.blocks);
    if (s.vectors) {
      split_vectors(s, own);
    } else {
      split_tile(s, own);
      __syncthreads();
    }
  }
}

// Where the parts of an operand lie in the call's workspace.
inline Operand16 place(const Call& call, const SplitRegions& regions) {
  Operand16 to = {};
  to.shape = regions.shape;
  to.flags = call.region<unsigned char>(regions.flags);
  if (regions.as_read) return to;
  to.high = call.region<float16>(regions.halves);
  to.low = to.high + to.shape.values;
  to.scale = call.region<float>(regions.scales);
  if (!call.prepared.few) to.unit = call.region<float>(regions.units);
  return to;
}

inline Task task_of(const Operand& o, const Splitting& s, const Operand16& to) {
  return {static_cast<const float*>(o.data),
          o.line_stride,
          o.depth_stride,
          o.batch_size[1],
          {o.batch_stride[0], o.batch_stride[1]},
          o.depth,
          s.vectors,
          s.along_lines,
          s.blocks,
          to};
}

// The last step: adds the groups that were computed side by side, and computes the outputs for which pairs do not
// suffice: fused multiply-adds in k order over each segment, whose sums are added as those of the tensor cores are.
constexpr int kFixTile = 64, kFixDepth = 16;
static_assert(kSegment % kFixDepth == 0 && kGroup % kSegment == 0);

// The flags of an operand.
struct Flags {
  const unsigned char* data;
  int64_t lines_padded, segments;
  Matrices matrices;

  // What 16 neighbouring lines say, over every `step`th segment; past the padding, nothing against it.
  TREDUCE_DEVICE uint4 of_lines(int64_t line, int64_t batch0, int64_t batch1, int first, int step) const {
    const unsigned char* const from = data + matrices.of(batch0, batch1) * segments * lines_padded + line;
    uint4 all = {~0u, ~0u, ~0u, ~0u};
    if (line >= lines_padded) return all;
#pragma unroll 4
    for (int64_t s = first; s < segments; s += step) {
      const uint4 some = *reinterpret_cast<const uint4*>(from + s * lines_padded);
      all = {all.x & some.x, all.y & some.y, all.z & some.z, all.w & some.w};
    }
    return all;
  }
};

inline Flags flags_of(const Operand& o, const Operand16& split) {
  return {split.flags, split.shape.lines_padded, split.shape.segments(), matrices_of(o)};
}

// Outputs of a tile of 64 x 64 once more, for which pairs do not suffice.
// Who calls: every thread of the block. Synchronises within.
TREDUCE_DEVICE void fix_tile(const float* a, const float* b, float* c, const float* bias, const Problem& p,
                             int64_t first_row, int64_t first_column, const unsigned char* flags_a,
                             const unsigned char* flags_b) {
  SHARED_ARRAY(float, tile_a, kFixTile* kFixDepth);
  SHARED_ARRAY(float, tile_b, kFixTile* kFixDepth);
  const int x = threadIdx.x % 16, y = threadIdx.x / 16;
  float acc[4][4] = {}, group[4][4] = {}, total[4][4] = {};
  // Adds what was summed to what it is a part of.
  const auto add = [](float (&to)[4][4], float (&part)[4][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        to[i][j] += part[i][j];
        part[i][j] = 0;
      }
    }
  };
  for (int64_t begin = 0; begin < p.k; begin += kFixDepth) {
#pragma unroll
    for (int i = 0; i < kFixTile * kFixDepth / kThreads; ++i) {
      const int place = i * kThreads + threadIdx.x;
      const int64_t row = first_row + place / kFixDepth, ka = begin + place % kFixDepth;
      const int64_t column = first_column + place % kFixTile, kb = begin + place / kFixTile;
      tile_a[place % kFixDepth * kFixTile + place / kFixDepth] =
          row < p.m && ka < p.k ? a[row * p.a_row + ka * p.a_column] : 0.0f;
      tile_b[place] = column < p.n && kb < p.k ? b[kb * p.b_row + column * p.b_column] : 0.0f;
    }
    __syncthreads();
    const int depth = static_cast<int>(min(int64_t(kFixDepth), p.k - begin));
#pragma unroll 1
    for (int l = 0; l < depth; ++l) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          acc[i][j] = multiply_add(tile_a[l * kFixTile + y + i * 16], tile_b[l * kFixTile + x + j * 16], acc[i][j]);
        }
      }
    }
    if ((begin + kFixDepth) % kSegment == 0) add(group, acc);
    if ((begin + kFixDepth) % kGroup == 0) add(total, group);
    __syncthreads();
  }
  add(group, acc);
  add(total, group);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t row = first_row + y + i * 16, column = first_column + x + j * 16;
      if (row < p.m && column < p.n && !pairs_suffice(flags_a[y + i * 16], flags_b[x + j * 16])) {
        c[row * p.n + column] = round_to<float>(with_bias(total[i][j], bias, column));
      }
    }
  }
}

// Sums of the groups of one matrix's tile, and the bias where there is one: four outputs at a time where rows are aligned. All loads of a thread are under
// way together.
template <int kTile>
TREDUCE_DEVICE void add_groups(const float* partials, float* c, const float* bias, int64_t row, int64_t column,
                               int64_t m, int64_t n, int groups, int64_t outputs) {
  constexpr int kAcross = kTile / 4, kDown = kThreads / kAcross, kRounds = kTile / kDown;
  column += threadIdx.x % kAcross * 4;
  row += threadIdx.x / kAcross;
  const bool vectors = n % 4 == 0 && outputs % 4 == 0 && reinterpret_cast<uint64_t>(partials) % 16 == 0 &&
                       reinterpret_cast<uint64_t>(c) % 16 == 0;
  if (vectors) {
    float4 sum[kRounds];
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int64_t r = row + i * kDown;
      if (r < m && column < n) sum[i] = *reinterpret_cast<const float4*>(partials + r * n + column);
    }
#pragma unroll 4
    for (int g = 1; g < groups; ++g) {
#pragma unroll
      for (int i = 0; i < kRounds; ++i) {
        const int64_t r = row + i * kDown;
        if (r >= m || column >= n) continue;
        const float4 more = *reinterpret_cast<const float4*>(partials + g * outputs + r * n + column);
        sum[i] = {sum[i].x + more.x, sum[i].y + more.y, sum[i].z + more.z, sum[i].w + more.w};
      }
    }
    if (bias != nullptr && column < n) {
      const float more[4] = {bias[column], bias[column + 1], bias[column + 2], bias[column + 3]};
#pragma unroll
      for (float4& s : sum) {
        s = {canonical(s.x + more[0]), canonical(s.y + more[1]), canonical(s.z + more[2]), canonical(s.w + more[3])};
      }
    }
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int64_t r = row + i * kDown;
      if (r < m && column < n) store_vector(c + r * n + column, sum[i]);
    }
    return;
  }
  for (int i = 0; i < kRounds; ++i) {
    const int64_t r = row + i * kDown;
    for (int64_t j = column; j < min(column + 4, n) && r < m; ++j) {
      float sum = partials[r * n + j];
#pragma unroll 4
      for (int g = 1; g < groups; ++g) sum += partials[g * outputs + r * n + j];
      c[r * n + j] = bias == nullptr ? sum : canonical(sum + bias[j]);
    }
  }
}

// What a word of four lines' flags, of which `present` are there, lacks for pairs to suffice: bit 0 where not all are clean,
// bit 1 where not all are dense, bit 2 where one selects.
TREDUCE_DEVICE int lacking(uint32_t flags, int64_t present) {
  constexpr uint32_t kEach = 0x01010101;  // byte
  if (present < 4) flags = present > 0 ? flags | ~0u << static_cast<int>(present) * 8 : ~0u;
  const bool selects = (flags / kFew & ~(flags / kZero) & kEach) != 0;
  return ((~flags / kClean & kEach) != 0) | ((~flags / kDense & kEach) != 0) << 1 | selects << 2;
}

template <int kTile>
__global__ void __launch_bounds__(kThreads, kTile == kFixTile ? 1 : 2)
    finish(const float* a, const float* b, float* c, const float* bias, TREDUCE_GRID_CONSTANT Problem p,
           Tiles<kTile, kTile> tiles, TREDUCE_GRID_CONSTANT Flags flags_a, TREDUCE_GRID_CONSTANT Flags flags_b,
           int64_t inner_batches, const float* partials, int groups) {
  constexpr int kWords = 2 * kTile / 4;
  SHARED_ARRAY(uint32_t, flags, kWords);  // a byte a line: those of A, then those of B
  __shared__ int lacks;
  ptx::wait_for_launch_before();
  for (int64_t tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
    const auto at = tiles.place(tile);
    if (threadIdx.x < kWords) flags[threadIdx.x] = ~0u;
    if (threadIdx.x == 0) lacks = 0;
    __syncthreads();
    {
      // 128 threads an operand: 16 lines each, and every so many segments.
      constexpr int kLanes = kTile / 16, kParts = kThreads / 2 / kLanes;
      const bool of_a = threadIdx.x < kThreads / 2;
      const int thread = threadIdx.x % (kThreads / 2), lines = thread % kLanes * 16;
      const uint4 some = (of_a ? flags_a : flags_b)
                             .of_lines((of_a ? at.row : at.column) + lines, at.batch / inner_batches,
                                       at.batch % inner_batches, thread / kLanes, kParts);
      uint32_t* const words = flags + (of_a ? 0 : kTile / 4) + lines / 4;
      atomicAnd(words, some.x);
      atomicAnd(words + 1, some.y);
      atomicAnd(words + 2, some.z);
      atomicAnd(words + 3, some.w);
    }
    const int64_t matrix = at.batch * p.m * p.n;
    if constexpr (kTile == kFixTile) {
      if (groups > 1)
        add_groups<kTile>(partials + matrix, c + matrix, bias, at.row, at.column, p.m, p.n, groups,
                          p.batches * p.m * p.n);
    }
    __syncthreads();
    // Nearly always all lines of the tile are clean, or all dense, and nothing is to do.
    static_assert(kWords <= kThreads && kWords % 32 == 0);
    if (threadIdx.x < kWords) {
      const bool is_a = threadIdx.x < kWords / 2;
      const int64_t left = (is_a ? p.m - at.row : p.n - at.column) - threadIdx.x % (kWords / 2) * 4;
      const int some = __reduce_or_sync(~0u, lacking(flags[threadIdx.x], left));
      if (threadIdx.x % 32 == 0) atomicOr(&lacks, some);
    }
    __syncthreads();
    if (lacks < 3) {
      __syncthreads();  // all have read it
      continue;
    }
    const auto* const of_a = reinterpret_cast<const unsigned char*>(flags);
    const unsigned char* const of_b = of_a + kTile;
    for (int row = 0; row < kTile; row += kFixTile) {
      for (int column = 0; column < kTile; column += kFixTile) {
        bool wanted = false;
#pragma unroll
        for (int i = 0; i < kFixTile * kFixTile / kThreads; ++i) {
          const int r = row + i * (kThreads / kFixTile) + threadIdx.x / kFixTile, j = column + threadIdx.x % kFixTile;
          wanted |= !pairs_suffice(of_a[r], of_b[j]) && at.row + r < p.m && at.column + j < p.n;
        }
        if (__syncthreads_or(wanted) != 0) {
          const Offsets offsets = offsets_of(p, at.batch);
          fix_tile(a + offsets.a, b + offsets.b, c + matrix, bias, p, at.row + row, at.column + column, of_a + row,
                   of_b + column);
        }
      }
    }
    __syncthreads();
  }
}

template <int kTile>
cudaError_t launch_finish(const Call& call, const Flags& a, const Flags& b, const float* partials) {
  const Problem& p = call.problem;
  return launch(&finish<kTile>, call.step(-1), static_cast<const float*>(call.a), static_cast<const float*>(call.b),
                static_cast<float*>(call.c), static_cast<const float*>(call.bias), p, Tiles<kTile, kTile>(p), a, b,
                inner_batches_of(p), partials, partials != nullptr ? static_cast<int>(call.prepared.groups) : 1);
}

inline cudaError_t run_finish(const Call& call, const Flags& a, const Flags& b, const float* partials) {
  switch (call.prepared.finish_tile) {
    case 64: return launch_finish<64>(call, a, b, partials);
    case 128: return launch_finish<128>(call, a, b, partials);
    default: return launch_finish<256>(call, a, b, partials);
  }
}

}  // namespace treduce::matmul::split
