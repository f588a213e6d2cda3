// persistent for small matrices of float16 or bfloat16, of which a batch may have many, and for narrow products of short k: a warp
// a tile of 16 x 16 outputs, with mma.sync. Operands come from where they lie by ordinary loads, in any layout: tiles of a warp
// group would be mostly empty, and boxes mostly past the edge.
//
// Order: that of few_rows.cuh.
#pragma once

#include "../primitives/ptx/launch.cuh"
#include "../primitives/ptx/mma.cuh"
#include "rung.h"

namespace treduce::matmul::small_tiles {

using Tiles = matmul::Tiles<kShape.tile_m, kShape.tile_n>;

// Elements k and k + 1 of a line in one word. What is past `depth` is zero.
template <class T>
TREDUCE_DEVICE uint32_t load_pair(const T* line, int64_t step, int64_t k, int64_t depth, bool exists) {
  const T* const from = line + k * step;
  if (!exists || k >= depth) return 0;
  if (step == 1 && k + 1 < depth && reinterpret_cast<uint64_t>(from) % 4 == 0) {
    return *reinterpret_cast<const uint32_t*>(from);
  }
  const uint32_t first = *reinterpret_cast<const uint16_t*>(from);
  const uint32_t second = k + 1 < depth ? *reinterpret_cast<const uint16_t*>(from + step) : 0;
  return first | second << 16;
}

template <class T>
__global__ void __launch_bounds__(kShape.threads, kBlocks)
    kernel(const T* a, const T* b, Result<T>* c, const Result<T>* bias, Problem p, Tiles tiles) {
#ifdef TREDUCE_MMA
  ptx::allow_launch_after();
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  constexpr int kWarps = kShape.threads / 32;
  const int64_t first = blockIdx.x * int64_t(kWarps) + threadIdx.x / 32;
  for (int64_t tile = first; tile < tiles.count; tile += gridDim.x * int64_t(kWarps)) {
    const auto place = tiles.place(tile);
    const Offsets at = offsets_of(p, place.batch);
    const int64_t row = place.row + g, column = place.column + g;
    const T* const from_a = a + at.a + row * p.a_row;
    const T* const from_b = b + at.b + column * p.b_column;
    if (tile == first) ptx::wait_for_launch_before();
    float acc[2][4] = {};
#pragma unroll 1
    for (int64_t k = 2 * t; k < p.k + 2 * t; k += 16) {
      uint32_t words_a[4], words_b[2][2];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        words_a[i] = load_pair(from_a + i % 2 * 8 * p.a_row, p.a_column, k + i / 2 * 8, p.k, row + i % 2 * 8 < p.m);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          words_b[j][i] = load_pair(from_b + j * 8 * p.b_column, p.b_row, k + i * 8, p.k, column + j * 8 < p.n);
        }
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) ptx::multiply(T{}, acc[j], words_a, words_b[j][0], words_b[j][1]);
    }
    const bool pairs = aligned_pairs(c, p.n);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t r = row + i / 2 * 8, j = place.column + i % 2 * 8 + 2 * t;
      if (r >= p.m || j >= p.n) continue;
      const float first = with_bias(acc[i % 2][i / 2 * 2], bias, j);
      const float second = j + 1 < p.n ? with_bias(acc[i % 2][i / 2 * 2 + 1], bias, j + 1) : 0;
      store_pair(c + at.c + r * p.n + j, first, second, pairs, j + 1 < p.n);
    }
  }
#endif
}

template <class T>
cudaError_t run(const Call& call) {
  return launch_tiles<T, Tiles>(&kernel<T>, call);
}

}  // namespace treduce::matmul::small_tiles
