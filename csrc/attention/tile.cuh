// What the kernels share: tiles in shared memory, products of a warp, and scores.
#pragma once

#include "../common/launch.h"
#include "../primitives/ptx/copy_part.cuh"
#include "../primitives/ptx/matrix.cuh"
#include "../primitives/ptx/mma.cuh"
#include "../primitives/shared.cuh"
#include "softmax.cuh"

namespace treduce::attention {

// kTall lines of kWidth 16-bit elements in shared memory. Chunk c (16 bytes) of line r lies at c ^ r % 8, or at less where a line has
// fewer chunks, so that neither a line nor a column of chunks meets a bank twice.
template <int kWidth, int kTall = kTile>
struct Tile {
  static constexpr int kChunk = 8, kChunks = kWidth / kChunk, kPitch = kWidth * 2, kBytes = kTall * kPitch;
  ptx::SharedAddress begin;

  TREDUCE_DEVICE static uint32_t place_of(int line, int chunk) {
    const int moved = kChunks >= 8 ? line % 8 : line / (8 / kChunks) % kChunks;
    return line * kPitch + (chunk ^ moved) * 16;
  }

  // Starts the copies of the lines from `line` to `lines`, `width` elements each; what is missing becomes zero. By kCount threads.
  template <int kCount = kThreads>
  TREDUCE_DEVICE void copy(const uint16_t* from, int64_t pitch, int64_t line, int64_t lines, int width) const {
    constexpr int kAtOnce = kCount / kChunks;
    const int thread = threadIdx.x % kCount, chunk = thread % kChunks, first = thread / kChunks;
    const int left = static_cast<int>(min(lines - line, int64_t{kTall}));
    const int bytes = min(max(width - chunk * kChunk, 0), kChunk) * 2;
    const uint16_t* const source = from + (line + first) * pitch + chunk * kChunk;
#pragma unroll
    for (int i = 0; i < (kTall + kAtOnce - 1) / kAtOnce; ++i) {
      const int r = first + i * kAtOnce;
      if (kTall % kAtOnce != 0 && r >= kTall) break;
      ptx::copy_async_part(begin + place_of(r, chunk), source + int64_t{i} * kAtOnce * pitch, r < left ? bytes : 0);
    }
  }

  // 16 lines and 16 columns as four matrices: lines 0 to 7 and 8 to 15 of the first 8 columns, then of the others.
  template <bool kTransposed>
  TREDUCE_DEVICE void load(uint32_t (&words)[4], int lines, int columns) const {
    const int lane = threadIdx.x % warp::kLanes;
    const uint32_t place = place_of(lane % kLines, lane / kLines);
    ptx::load_matrices<kTransposed>(words, begin + lines * (kLines * kPitch) + (place ^ columns * 32));
  }
};

// sums += A B^T: 16 lines of A by kN times 8 lines of B, from `columns` on, along the width. Both count in sixteens. While fragments are
// multiplied the next are loaded.
template <class T, int kN, int kWidth, int kTallA, int kTallB>
TREDUCE_DEVICE void multiply_lines(float (&sums)[kN][4], Tile<kWidth, kTallA> a, int lines, Tile<kWidth, kTallB> b,
                                   int columns) {
  uint32_t of_a[2][4], of_b[2][kN / 2][4];
  const auto load = [&](int k) {
    a.template load<false>(of_a[k % 2], lines, k);
#pragma unroll
    for (int j = 0; j < kN / 2; ++j) b.template load<false>(of_b[k % 2][j], columns + j, k);
  };
  load(0);
#pragma unroll
  for (int k = 0; k < kWidth / 16; ++k) {
    if (k + 1 < kWidth / 16) load(k + 1);
#pragma unroll
    for (int j = 0; j < kN / 2; ++j) {
      const uint32_t (&words)[4] = of_b[k % 2][j];
      ptx::multiply(T{}, sums[2 * j], of_a[k % 2], words[0], words[2]);
      ptx::multiply(T{}, sums[2 * j + 1], of_a[k % 2], words[1], words[3]);
    }
  }
}

// Two neighbouring numbers as a word of T, the first in its low half.
template <class T>
TREDUCE_DEVICE uint32_t word_of(float low, float high) {
#ifdef __CUDA_ARCH__
  using Pair = std::conditional_t<std::is_same_v<T, bfloat16>, __nv_bfloat162, __half2>;
  Pair pair;
  if constexpr (std::is_same_v<T, bfloat16>) {
    pair = __floats2bfloat162_rn(low, high);
  } else {
    pair = __floats2half2_rn(low, high);
  }
  return bit_cast<uint32_t>(pair);
#else
  return static_cast<uint32_t>(T::from(low).bits) | static_cast<uint32_t>(T::from(high).bits) << 16;
#endif
}

// sums += P B: kN times 8 lines of B, from `lines` on. P is rounded to T from the registers that hold it as sums. kAtOnce: fragments of B
// that are loaded while as many are multiplied.
template <class T, int kAtOnce, int kN, int kWidth, int kTall>
TREDUCE_DEVICE void multiply_held(float (&sums)[kWidth / 8][4], const float (&p)[kN][4], Tile<kWidth, kTall> b,
                                  int lines) {
  constexpr int kAcross = kWidth / 16 / kAtOnce, kSteps = kN / 2 * kAcross;
  uint32_t of_b[2][kAtOnce][4];
  const auto load = [&](int step) {
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      b.template load<true>(of_b[step % 2][j], lines + step / kAcross, step % kAcross * kAtOnce + j);
    }
  };
  load(0);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (step + 1 < kSteps) load(step + 1);
    const int k = step / kAcross;
    const uint32_t of_p[4] = {word_of<T>(p[2 * k][0], p[2 * k][1]), word_of<T>(p[2 * k][2], p[2 * k][3]),
                              word_of<T>(p[2 * k + 1][0], p[2 * k + 1][1]),
                              word_of<T>(p[2 * k + 1][2], p[2 * k + 1][3])};
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int column = 2 * (step % kAcross * kAtOnce + j);
      const uint32_t (&words)[4] = of_b[step % 2][j];
      ptx::multiply(T{}, sums[column], of_p, words[0], words[1]);
      ptx::multiply(T{}, sums[column + 1], of_p, words[2], words[3]);
    }
  }
}

// The block's place: a tile of a head of a batch. Tiles of a head follow each other.
struct Place {
  int64_t tile, head, batch;

  TREDUCE_DEVICE Place(int64_t tiles, int64_t heads)
      : tile(blockIdx.x % tiles), head(blockIdx.x / tiles % heads), batch(blockIdx.x / tiles / heads) {}
};

TREDUCE_DEVICE const uint16_t* matrix_of(const Matrices& m, int64_t batch, int64_t head) {
  return static_cast<const uint16_t*>(m.data) + batch * m.batch + head * m.head;
}

// From products of queries and keys to what softmax is taken of, in units of log2. kMasks: whether there may be a mask.
template <bool kMasks = true>
struct Scores {
  static constexpr float kLog2OfE = 1.44269504f;
  const Problem& p;
  int64_t mask;  // where that of this batch and head begins
  float scale;

  TREDUCE_DEVICE Scores(const Problem& p, int64_t batch, int64_t head)
      : p(p), mask(batch * p.mask.batch + head * p.mask.head), scale(elementary::multiply(p.scale, kLog2OfE)) {}

  // Whether none of the scores of queries from `query` on by `count` keys from `key` on is missing or masked.
  TREDUCE_DEVICE bool is_whole(int64_t query, int64_t key, int count) const {
    return (!kMasks || p.mask.data == nullptr) && key + count <= p.keys && !(p.causal && key + count - 1 > query);
  }

  TREDUCE_DEVICE float scaled(float product) const { return elementary::multiply(product, scale); }

  // Of keys that a query does not attend: minus infinity.
  TREDUCE_DEVICE float masked(float product, int64_t query, int64_t key) const {
    const float score = scaled(product);
    if (key >= p.keys || (p.causal && key > query)) return kNever;
    if (!kMasks || p.mask.data == nullptr || query >= p.length) return score;
    const int64_t at = mask + query * p.mask.row + key * p.mask.column;
    if (p.mask.is_bool) return static_cast<const uint8_t*>(p.mask.data)[at] != 0 ? score : kNever;
    const float added = static_cast<const float*>(p.mask.data)[at];
    constexpr float kLeast = -3.4028234e38f;  // a mask of the least number leaves a line whose scores are alike
    return added == kNever ? kNever : score + fmaxf(elementary::multiply(added, kLog2OfE), kLeast);
  }
};

// The scores of a tile, in place of its products. A thread's four of a fragment: lines g and g + 8, two columns each; lines are queries,
// or, kByKey, keys. (query, key): of the tile's first that this warp has.
template <bool kByKey, int kN, bool kMasks>
TREDUCE_DEVICE void score(float (&s)[kN][4], const Scores<kMasks>& scores, int64_t query, int64_t key, bool whole) {
  const int lane = threadIdx.x % warp::kLanes, line = lane / 4, column = lane % 4 * 2;
  if (whole) {
#pragma unroll
    for (int j = 0; j < kN; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[j][i] = scores.scaled(s[j][i]);
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < kN; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int l = line + i / 2 * 8, c = j * 8 + column + i % 2;
      s[j][i] = kByKey ? scores.masked(s[j][i], query + c, key + l) : scores.masked(s[j][i], query + l, key + c);
    }
  }
}

// Stores 16 lines of sums, from `line` on, times `factor` of either half. No zero is negative.
template <class T, int kWidth>
TREDUCE_DEVICE void store_lines(const float (&sums)[kWidth / 8][4], const float (&factor)[2], const Matrices& to,
                                int64_t batch, int64_t head, int64_t line, int64_t lines, int width) {
  const int lane = threadIdx.x % warp::kLanes;
  T* const matrix = static_cast<T*>(to.data) + batch * to.batch + head * to.head;
  const bool pairs =
      width % 2 == 0 && (to.batch | to.head | to.row) % 2 == 0 && reinterpret_cast<uintptr_t>(to.data) % 4 == 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t l = line + lane / 4 + half * 8;
    if (l >= lines) continue;
    T* const row = matrix + l * to.row;
#pragma unroll
    for (int j = 0; j < kWidth / 8; ++j) {
      const int column = j * 8 + lane % 4 * 2;
      const T two[2] = {round_to<T>(elementary::multiply_add(sums[j][half * 2], factor[half], 0.0f)),
                        round_to<T>(elementary::multiply_add(sums[j][half * 2 + 1], factor[half], 0.0f))};
      if (pairs) {
        uint32_t word;
        memcpy(&word, two, sizeof(word));
        if (column < width) *reinterpret_cast<uint32_t*>(row + column) = word;
      } else {
        if (column < width) row[column] = two[0];
        if (column + 1 < width) row[column + 1] = two[1];
      }
    }
  }
}

// Calls body(T{}, integral_constant<width>) for the dtype and the width that a kernel is compiled for.
template <class Body>
cudaError_t dispatch_kernel(const Problem& p, Body body) {
  const auto by_width = [&](auto type) {
    if (compiled_width(p) == kNarrow) return body(type, std::integral_constant<int, kNarrow>{});
    return body(type, std::integral_constant<int, kWide>{});
  };
  return p.dtype == DType::float16 ? by_width(float16{}) : by_width(bfloat16{});
}

}  // namespace treduce::attention
