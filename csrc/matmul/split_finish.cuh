// The kernel that ends a product of halves: it adds the groups of k that were computed side by side, and computes in float32 the
// outputs for which halves do not suffice.
#pragma once

#include "../primitives/ptx/launch.cuh"
#include "../primitives/shared.cuh"
#include "rung.h"
#include "split_segment.cuh"

namespace treduce::matmul::split {

// Outputs for which halves do not suffice are sums of fused multiply-adds in k order over each segment; segments and groups are
// added in the order in which the tensor cores' sums are.
constexpr int kFixTile = 64, kFixDepth = 16;
static_assert(kSegment % kFixDepth == 0 && kGroup % kSegment == 0);

// The flags of an operand.
struct Flags {
  const unsigned char* data;
  int64_t lines_padded, segments;
  Matrices matrices;

  // The flags that 16 neighbouring lines have in every `step`th segment from `first` on. Past the padding: all flags.
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

// Computes a tile of 64 x 64 outputs in float32, and writes those for which halves do not suffice.
// Who calls: every thread of the block. Synchronises within.
TREDUCE_DEVICE void fix_tile(const float* a, const float* b, float* c, const float* bias, const Problem& p,
                             int64_t first_row, int64_t first_column, const unsigned char* flags_a,
                             const unsigned char* flags_b) {
  SHARED_ARRAY(float, tile_a, kFixTile* kFixDepth);
  SHARED_ARRAY(float, tile_b, kFixTile* kFixDepth);
  const int x = threadIdx.x % 16, y = threadIdx.x / 16;
  float acc[4][4] = {}, group[4][4] = {}, total[4][4] = {};
  // Adds a part's sums to the whole's, and clears them.
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

// Adds the groups of k of a tile of one matrix, and the bias if there is one: four outputs at a time if rows are aligned, with
// all loads of a thread in flight together.
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

// Of the flags of four lines, the first `present` of which exist: bit 0 is set if one is not clean, bit 1 if one is not dense,
// bit 2 if one selects (see pairs_suffice).
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
  SHARED_ARRAY(uint32_t, flags, kWords);  // a byte for each line: the lines of A, then those of B
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
    // Nearly always all lines of the tile are clean, or all are dense, and nothing is left to do.
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
