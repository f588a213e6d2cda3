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

constexpr int kThreads = 256;
constexpr int kLowBits = 11;  // `low` is scaled by 2^11
constexpr int kTop = 14;      // the exponent to which a segment's largest magnitude is brought
constexpr int kLowest = -63;  // exponent of a scale, so that the product of two is a float32
constexpr int kHighest = 40;  // larger numbers have no flag: a sum of their products might overflow on the way
constexpr int kSmall = -13;   // scaled magnitudes below 2^-13 lose bits of their 22
constexpr float kLarge = 32;  // scaled

// Splits a segment of which each of kLanes neighbouring lanes has kCount numbers (zeros past the end), in pairs.
// Who calls: all lanes of a warp. A line with a number that is infinite, NaN or too large gets no flag, and any halves:
// its outputs are computed once more.
template <int kCount, int kLanes>
TREDUCE_DEVICE void split_segment(const float (&x)[kCount], int present, uint32_t (&high)[kCount / 2],
                                  uint32_t (&low)[kCount / 2], float& scale, unsigned char& flags) {
  // Magnitudes as integers, without the sign; the least of those that are not zero, less one.
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
  const int wanted = static_cast<int>(most >> 24) - 127 - kTop;
  const int exponent = most == 0 ? 0 : max(kLowest, min(wanted, kHighest));
  const float down = __uint_as_float(static_cast<uint32_t>(127 - exponent) << 23);
  const float far_down = __uint_as_float(static_cast<uint32_t>(127 - exponent + kLowBits) << 23);
  scale = __uint_as_float(static_cast<uint32_t>(127 + exponent) << 23);

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
}

// Adds what the tensor core summed over a segment.
TREDUCE_DEVICE void add_segment(float& acc, float high, float rest, float scale) {
  acc = fmaf(fmaf(rest, 1.0f / (1 << kLowBits), high), scale, acc);
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

// One operand and where its halves go.
struct Splitting {
  const float* data;
  int64_t line_stride, depth_stride, batch_size1, batch_stride[2];
  int64_t depth;     // what is there of it
  bool vectors;      // four steps of k are one aligned load
  bool along_lines;  // lines are contiguous
  int64_t blocks;
  Operand16 to;

  TREDUCE_DEVICE const float* matrix(int64_t index) const {
    return data + index / batch_size1 * batch_stride[0] + index % batch_size1 * batch_stride[1];
  }
  // Splits and writes the segment of which kLanes lanes have kNumbers each.
  template <int kNumbers, int kLanes>
  TREDUCE_DEVICE void write(const float (&x)[kNumbers], bool there, int64_t matrix, int64_t line,
                            int64_t segment) const {
    uint32_t high[kNumbers / 2], low[kNumbers / 2];
    float scale;
    unsigned char flags;
    split_segment<kNumbers, kLanes>(x, static_cast<int>(min(int64_t(kSegment), depth - segment * kSegment)), high, low,
                                    scale, flags);
    if (!there) return;
    const Halves& shape = to.shape;
    const int lane = threadIdx.x % kLanes;
    const int64_t at = (matrix * shape.lines + line) * shape.depth + segment * kSegment + lane * kNumbers;
    const int64_t mark = (matrix * shape.segments() + segment) * shape.lines_padded + line;
    *reinterpret_cast<uint4*>(to.high + at) = {high[0], high[1], high[2], high[3]};
    *reinterpret_cast<uint4*>(to.low + at) = {low[0], low[1], low[2], low[3]};
    if (lane == 0) {
      to.scale[mark] = scale;
      to.flags[mark] = flags;
    }
  }
};

constexpr int kNumbers = 8;                         // a lane
constexpr int kLanes = kSegment / kNumbers;         // a segment
constexpr int kSegmentsABlock = kThreads / kLanes;  // at a time

// Where k is contiguous (or nothing is). A block takes kRounds times 32 segments, all of whose loads are under way before
// the first is used.
constexpr int kRounds = 2;

TREDUCE_DEVICE void split_along_k(const Splitting& s, int64_t block) {
  const Halves& shape = s.to.shape;
  const int64_t segments = shape.segments(), count = shape.matrices * shape.lines * segments;
  const int lane = threadIdx.x % kLanes;
  const int64_t first = block * kSegmentsABlock * kRounds + threadIdx.x / kLanes;
  float x[kRounds][kNumbers] = {};
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const int64_t index = first + r * kSegmentsABlock;
    if (index >= count) continue;
    const int64_t row = index / segments, k = index % segments * kSegment + lane * kNumbers;
    const float* from = s.matrix(row / shape.lines) + row % shape.lines * s.line_stride + k * s.depth_stride;
    if (s.vectors && k + kNumbers <= s.depth) {
#pragma unroll
      for (int v = 0; v < kNumbers / 4; ++v) {
        const float4 vector = __ldg(reinterpret_cast<const float4*>(from) + v);
        x[r][v * 4] = vector.x, x[r][v * 4 + 1] = vector.y, x[r][v * 4 + 2] = vector.z, x[r][v * 4 + 3] = vector.w;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kNumbers; ++i) {
        if (k + i < s.depth) x[r][i] = from[i * s.depth_stride];
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const int64_t index = first + r * kSegmentsABlock, row = index / segments;
    s.write<kNumbers, kLanes>(x[r], index < count, row / shape.lines, row % shape.lines, index % segments);
  }
}

// Where lines are contiguous: a tile of one segment of 64 lines goes through shared memory.
constexpr int kSplitLines = 64;

TREDUCE_DEVICE void split_along_lines(const Splitting& s, int64_t block) {
  constexpr int kPitch = kSegment + 1;
  SHARED_ARRAY(float, tile, kSplitLines* kPitch);
  const Halves& shape = s.to.shape;
  const int64_t across = (shape.lines + kSplitLines - 1) / kSplitLines, segments = shape.segments();
  const int64_t first = block % across * kSplitLines, segment = block / across % segments;
  const int64_t matrix = block / across / segments;
  constexpr int kLoads = kSplitLines * kSegment / kThreads;
  const int own_line = threadIdx.x % kSplitLines, own_k = threadIdx.x / kSplitLines;
  const bool there = first + own_line < shape.lines;
  const float* from = s.matrix(matrix) + (first + own_line) * s.line_stride;
  float x[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int64_t k = segment * kSegment + i * (kThreads / kSplitLines) + own_k;
    x[i] = there && k < s.depth ? from[k * s.depth_stride] : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < kLoads; ++i) tile[own_line * kPitch + i * (kThreads / kSplitLines) + own_k] = x[i];
  __syncthreads();
#pragma unroll
  for (int round = 0; round < kSplitLines / kSegmentsABlock; ++round) {
    const int line = round * kSegmentsABlock + threadIdx.x / kLanes;
    float y[kNumbers];
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) y[i] = tile[line * kPitch + threadIdx.x % kLanes * kNumbers + i];
    s.write<kNumbers, kLanes>(y, first + line < shape.lines, matrix, first + line, segment);
  }
}

static __global__ void __launch_bounds__(kThreads)
    split_operands(TREDUCE_GRID_CONSTANT Splitting a, TREDUCE_GRID_CONSTANT Splitting b) {
  ptx::allow_launch_after();
  for (int64_t block = blockIdx.x; block < a.blocks + b.blocks; block += gridDim.x) {
    const bool of_a = block < a.blocks;
    const Splitting& s = of_a ? a : b;
    if (s.along_lines) {
      split_along_lines(s, of_a ? block : block - a.blocks);
      __syncthreads();
    } else {
      split_along_k(s, of_a ? block : block - a.blocks);
    }
  }
}

// Takes the operand's part of the workspace.
inline Operand16 place(const Operand& o, char*& workspace, bool flags_only = false) {
  Operand16 to = {};
  to.shape = halves_of(o);
  if (flags_only) {
    to.flags = reinterpret_cast<unsigned char*>(workspace);
    workspace += to.shape.flag_bytes();
    return to;
  }
  to.high = reinterpret_cast<float16*>(workspace);
  to.low = to.high + to.shape.values;
  to.scale = reinterpret_cast<float*>(to.low + to.shape.values);
  to.flags = reinterpret_cast<unsigned char*>(to.scale + to.shape.scales);
  workspace += to.shape.bytes();
  return to;
}

inline Splitting splitting_of(const Operand& o, const Operand16& to) {
  Splitting s{static_cast<const float*>(o.data),
              o.line_stride,
              o.depth_stride,
              o.batch_size[1],
              {o.batch_stride[0], o.batch_stride[1]},
              o.depth,
              false,
              false,
              0,
              to};
  s.vectors = o.depth_stride == 1 && reinterpret_cast<uint64_t>(o.data) % 16 == 0 && o.line_stride % 4 == 0 &&
              o.batch_stride[0] % 4 == 0 && o.batch_stride[1] % 4 == 0;
  s.along_lines = o.depth_stride != 1 && o.line_stride == 1;
  const int64_t segments = to.shape.matrices * to.shape.segments();
  s.blocks = s.along_lines ? segments * ((o.lines + kSplitLines - 1) / kSplitLines)
                           : (segments * o.lines + kSegmentsABlock * kRounds - 1) / (kSegmentsABlock * kRounds);
  return s;
}

inline cudaError_t run(const Splitting& a, const Splitting& b, cudaStream_t stream) {
  Launch shape;
  shape.block = kThreads;
  shape.grid = std::min<int64_t>(a.blocks + b.blocks, INT32_MAX);
  shape.stream = stream;
  return shape.grid == 0 ? cudaSuccess : launch(&split_operands, shape, a, b);
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
      if (r < m && column < n) *reinterpret_cast<float4*>(c + r * n + column) = sum[i];
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
cudaError_t launch_finish(const Call& call, const Flags& a, const Flags& b, const float* partials, int groups) {
  const Problem& p = call.problem;
  const Tiles<kTile, kTile> tiles(p);
  Launch shape;
  shape.block = kThreads;
  shape.grid = tiles.grid();
  shape.stream = call.stream;
  shape.overlapping = true;
  return launch(&finish<kTile>, shape, static_cast<const float*>(call.a), static_cast<const float*>(call.b),
                static_cast<float*>(call.c), static_cast<const float*>(call.bias), p, tiles, a, b, inner_batches_of(p),
                partials, groups);
}

inline cudaError_t run_finish(const Call& call, const Flags& a, const Flags& b, const float* partials) {
  if (partials != nullptr) return launch_finish<64>(call, a, b, partials, static_cast<int>(groups_of(call.problem.k)));
  // Large tiles read fewer flags, small ones share out what is to do.
  return Tiles<256, 256>(call.problem).count >= call.multiprocessors ? launch_finish<256>(call, a, b, nullptr, 1)
                                                                     : launch_finish<128>(call, a, b, nullptr, 1);
}

}  // namespace treduce::matmul::split
