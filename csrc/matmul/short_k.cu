// pipelined for float32 products of short k: all of k comes to shared memory at once. What overlaps are the blocks of a multiprocessor, of
// which one waits for its operands or stores its results while others multiply.
//
// Order:   k order, hence the bits of `pipelined`.
// Mapping: element k of a line lies at k * row + line in shared memory, whatever the operand's direction. Neighbouring lines are copied
//          there by cp.async; of neighbours along k a thread loads four and stores them one below another. k is filled up to whole steps of
//          the loop with factors of -0 and 0: their product, -0, changes no sum, of which 0 would make +0 of -0.
// Bound:   of many large matrices the multiply-adds, nine tenths of the loop's instructions in the largest tiles; of many small ones the
//          memory; of few the latencies of a load, the loop and a store.
// Registers: a multiply-add whose three factors all lie in even registers, or all in odd ones, costs the scheduler a cycle. The compiler
//          avoids that if some registers are free, so the loop keeps nothing that can be computed anew (block_index), and if the loop over
//          outputs has columns outside: the other way round a fifth of the multiply-adds were such.
// Source:  Scott Gray, SGEMM (2014), for what banks of registers cost.
#include "short_k.h"

#include <cmath>

#include "../common/divider.h"
#include "../primitives/ptx/copy.cuh"
#include "../primitives/ptx/launch.cuh"
#include "../primitives/shared.cuh"
#include "outputs.cuh"

namespace treduce::matmul::short_k {

// One of the shapes of shapes.h.
template <int kIndex>
struct Tiling {
  static constexpr Shape kShape = kShapes[kIndex];
  static constexpr int kTileM = kShape.tile_m, kTileN = kShape.tile_n, kThreads = kShape.threads;
  static constexpr int kRows = kShape.rows, kColumns = kShape.columns;                              // of a thread
  static constexpr int kWarpM = WarpShape::kRows * kRows, kWarpN = WarpShape::kColumns * kColumns;  // of a warp
  static constexpr int kAcross = kTileN / kWarpN;  // warps side by side
  static constexpr int kSteps = kShape.steps();
  static constexpr int kDepth = kShape.depth(), kOutRow = kShape.out_row();
};

// How an operand lies. Bits, for of a Way the compiler makes a table of jumps: one more load to wait for.
constexpr unsigned kAlongK = 1, kInVectors = 2, kApart = 4;
inline unsigned bits_of(Way way) {
  return (is_along_k(way) ? kAlongK : 0) | (is_vectors(way) ? kInVectors : 0) | (way == Way::any ? kApart : 0);
}

// kLines lines of an operand in shared memory, and how a thread of S copies them.
template <class S, int kLines>
class Tile {
 public:
  static constexpr int kRow = row_of(kLines);  // from a step of k to the next

  // Starts copies of `steps` of k from step `first` on, whose place is `to`. Of neighbours along k this thread then keeps some.
  TREDUCE_DEVICE void start(ptx::SharedAddress to, const Lines<float>& lines, int first, int steps, unsigned lies) {
    const int count = lines.count < kLines ? static_cast<int>(lines.count) : kLines;
    const float* const from = lines.at(0, first);
    const bool vectors = lies & kInVectors, apart = lies & kApart;
    if (lies & kAlongK) {
      vectors ? load_along_k<true>(from, lines.stride, count, steps)
              : load_along_k<false>(from, lines.stride, count, steps);
    } else if (vectors) {
      copy_vectors(to, from, lines.step, count, steps);
    } else {
      apart ? copy_lines<false>(to, from, lines.stride, lines.step, count, steps)
            : copy_lines<true>(to, from, 1, lines.step, count, steps);
    }
  }
  // Stores what this thread has kept.
  TREDUCE_DEVICE void finish(ptx::SharedAddress to, int steps, unsigned lies) const {
    if (lies & kAlongK) store_along_k(to, steps);
  }

  // Steps of k from first to end become `value`.
  TREDUCE_DEVICE static void fill(float* tile, int first, int end, float value) {
    for (int i = first * kRow + threadIdx.x; i < end * kRow; i += S::kThreads) tile[i] = value;
  }

 private:
  static constexpr int kBytes = sizeof(float);

  // A warp loads 8 lines by 16 steps of k at once.
  static constexpr int kHop = S::kThreads / 4, kPasses = static_cast<int>(ceil_div(kLines, kHop)),
                       kHalves = S::kDepth / 16;

  template <bool kVectors>
  TREDUCE_DEVICE void load_along_k(const float* from, int64_t stride, int count, int steps) {
    const int k = threadIdx.x % 4 * 4, line = threadIdx.x / 4;
    from += line * stride + k;
    const int64_t hop = kHop * stride;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int left = line + pass * kHop < count ? steps - k : 0;
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        float (&to)[4] = kept_[pass][half];
        if constexpr (kVectors) {
          if (16 * half < left) {
            const float4 vector = *reinterpret_cast<const float4*>(from + 16 * half);
            to[0] = vector.x, to[1] = vector.y, to[2] = vector.z, to[3] = vector.w;
          }
        } else {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            if (16 * half + e < left) to[e] = from[16 * half + e];
          }
        }
      }
      from += hop;
    }
  }

  TREDUCE_DEVICE void store_along_k(ptx::SharedAddress to, int steps) const {
    const int k = threadIdx.x % 4 * 4, line = threadIdx.x / 4;
    to += kBytes * (k * kRow + line);
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int step = 16 * half + e;
        if (k + step >= steps) break;
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {
          if (kLines % kHop == 0 || line + pass * kHop < kLines) {
            ptx::store_shared(to + kBytes * (pass * kHop + step * kRow), kept_[pass][half][e]);
          }
        }
      }
    }
  }

  // Single elements of neighbouring lines or, unless kNeighbours, of any; of few lines several steps of k a warp.
  template <bool kNeighbours>
  TREDUCE_DEVICE static void copy_lines(ptx::SharedAddress to, const float* from, int64_t stride, int64_t step,
                                        int count, int steps) {
    constexpr int kAcross = kLines >= 32 ? 32 : kLines >= 16 ? 16 : 8, kDown = S::kThreads / kAcross;
    const int line = threadIdx.x % kAcross;
    int k = threadIdx.x / kAcross;
    from += k * step + line * (kNeighbours ? 1 : stride);
    to += kBytes * (k * kRow + line);
#pragma unroll 2
    for (; k < steps; k += kDown) {
#pragma unroll
      for (int hop = 0; hop < kLines; hop += kAcross) {
        if (line + hop < count) ptx::copy_async<kBytes>(to + kBytes * hop, from + hop * (kNeighbours ? 1 : stride));
      }
      from += kDown * step;
      to += kBytes * kDown * kRow;
    }
  }

  // Four neighbouring lines at once.
  TREDUCE_DEVICE static void copy_vectors(ptx::SharedAddress to, const float* from, int64_t step, int count,
                                          int steps) {
    constexpr int kAcross = kLines / 4, kDown = S::kThreads / kAcross, kAtOnce = 4;
    const int line = threadIdx.x % kAcross * 4;
    int k = threadIdx.x / kAcross;
    if (k >= kDown || line >= count) return;
    from += k * step + line;
    to += kBytes * (k * kRow + line);
#pragma unroll 1
    for (; k < steps; k += kAtOnce * kDown) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (k + i * kDown < steps) ptx::copy_async<4 * kBytes>(to + kBytes * i * kDown * kRow, from);
        from += kDown * step;
      }
      to += kBytes * kAtOnce * kDown * kRow;
    }
  }

  float kept_[kPasses][kHalves][4];
};

// Where a block's tile begins, in 32 bits.
template <class S>
struct Place {
  unsigned batch;
  int row, column;

  TREDUCE_DEVICE Place(const Divider& down, const Divider& across) {
    const unsigned block = ptx::block_index(), line = across.quotient_of_small(block);
    batch = down.quotient_of_small(line);
    row = static_cast<int>(line - batch * static_cast<unsigned>(down.divisor)) * S::kTileM;
    column = static_cast<int>(block - line * static_cast<unsigned>(across.divisor)) * S::kTileN;
  }
  TREDUCE_DEVICE Offsets offsets(const Problem& p) const {
    if (p.batch_dims > 1) return offsets_of(p, batch);
    return {batch * p.a_batch[0], batch * p.b_batch[0], batch * p.m * p.n};
  }
};

// The factors of a thread at a step of k: kCount lines, of which vectors lie side by side, and those of kLanes threads beside each other.
template <int kCount, int kLanes>
struct Factors {
  static constexpr int kVector = kCount % 4 == 0 ? 4 : 2;
  static_assert(kCount % kVector == 0);
  struct alignas(kVector * sizeof(float)) Vector {
    float at[kVector];
  };

  TREDUCE_DEVICE static constexpr int line(int lane, int i) {
    return (i / kVector * kLanes + lane) * kVector + i % kVector;
  }
  // from: the thread's first.
  TREDUCE_DEVICE static void load(float (&to)[kCount], const float* from) {
#pragma unroll
    for (int i = 0; i < kCount; i += kVector) {
      const Vector vector = *reinterpret_cast<const Vector*>(from + i * kLanes);
#pragma unroll
      for (int e = 0; e < kVector; ++e) to[i + e] = vector.at[e];
    }
  }
};

// Writes rows x columns results, at most a warp's, which lie in rows of S::kOutRow, to rows of n. A whole row leaves at once, by
// kWidth floats a thread.
template <class S, int kWidth>
TREDUCE_DEVICE void store_rows(float* c, const float* results, int64_t n, int rows, int columns) {
  struct alignas(kWidth * sizeof(float)) Piece {
    float at[kWidth];
  };
  constexpr int kAcross = S::kWarpN / kWidth < 32 ? S::kWarpN / kWidth : 32, kDown = 32 / kAcross;
  static_assert(S::kWarpN % (kAcross * kWidth) == 0);
  const int lane = threadIdx.x % 32, first = lane / kAcross;
  if (first >= kDown) return;
#pragma unroll
  for (int hop = 0; hop < S::kWarpN; hop += kAcross * kWidth) {
    const int column = hop + lane % kAcross * kWidth;
    if (column >= columns) continue;
    float* to = c + first * n + column;
    const float* from = results + first * S::kOutRow + column;
#pragma unroll 8
    for (int row = first; row < rows; row += kDown) {
      *reinterpret_cast<Piece*>(to) = *reinterpret_cast<const Piece*>(from);
      to += kDown * n;
      from += kDown * S::kOutRow;
    }
  }
}

template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kShape.blocks)
    kernel(const float* a, const float* b, float* c, const float* bias, Problem p, Divider down, Divider across,
           unsigned a_lies, unsigned b_lies) {
  constexpr int kRows = S::kRows, kColumns = S::kColumns, kSteps = S::kSteps;
  using TileA = Tile<S, S::kTileM>;
  using TileB = Tile<S, S::kTileN>;
  using FactorsA = Factors<kRows, WarpShape::kRows>;
  using FactorsB = Factors<kColumns, WarpShape::kColumns>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int lane_row = WarpShape::row(lane), lane_column = WarpShape::column(lane);
  const int warp_row = warp / S::kAcross * S::kWarpM, warp_column = warp % S::kAcross * S::kWarpN;
  const int all = static_cast<int>(p.k);
  const int padded = static_cast<int>(round_up(all, S::kShape.whole_steps()));
  float* const tile_a = dynamic_shared<float>();
  float* const tile_b = tile_a + padded * TileA::kRow;

  // ---- the operands ----
  {
    const Place<S> place(down, across);
    const Offsets at = place.offsets(p);
    const Lines<float> rows = rows_of(a, p, at, place.row), columns = columns_of(b, p, at, place.column);
    ptx::allow_launch_after();
    ptx::wait_for_launch_before();
#pragma unroll 1
    for (int first = 0; first < all; first += S::kDepth) {
      const int steps = min(all - first, S::kDepth);
      const ptx::SharedAddress to_a = ptx::shared_address(tile_a + first * TileA::kRow);
      const ptx::SharedAddress to_b = ptx::shared_address(tile_b + first * TileB::kRow);
      TileA copy_a;
      TileB copy_b;
      copy_a.start(to_a, rows, first, steps, a_lies);
      copy_b.start(to_b, columns, first, steps, b_lies);
      copy_a.finish(to_a, steps, a_lies);
      copy_b.finish(to_b, steps, b_lies);
    }
    TileA::fill(tile_a, all, padded, -0.0f);
    TileB::fill(tile_b, all, padded, 0.0f);
    ptx::commit_copies();
    ptx::wait_copies<0>();
    __syncthreads();
  }

  // ---- the sums: kSteps steps of k are multiplied while the factors of the next come ----
  float sum[kRows][kColumns] = {};
  float from_a[2][kSteps][kRows], from_b[2][kSteps][kColumns];
  const float* read_a = tile_a + warp_row + lane_row * FactorsA::kVector;
  const float* read_b = tile_b + warp_column + lane_column * FactorsB::kVector;
  const auto load = [&](int which, int k) {
#pragma unroll
    for (int l = 0; l < kSteps; ++l) {
      FactorsA::load(from_a[which][l], read_a + (k + l) * TileA::kRow);
      FactorsB::load(from_b[which][l], read_b + (k + l) * TileB::kRow);
    }
  };
  load(0, 0);
#pragma unroll 1
  for (int k = 0; k < padded; k += 2 * kSteps) {
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      load(1 - u, (u + 1) * kSteps);  // after the last step what nobody uses
#pragma unroll
      for (int l = 0; l < kSteps; ++l) {
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
#pragma unroll
          for (int i = 0; i < kRows; ++i) {
            sum[i][j] = multiply_add(from_a[u][l][i], from_b[u][l][j], sum[i][j]);
          }
        }
      }
    }
    read_a += 2 * kSteps * TileA::kRow;
    read_b += 2 * kSteps * TileB::kRow;
  }

  // ---- epilogue: rows leave whole, through shared memory, where the operands were ----
  const Place<S> place(down, across);
  const int n = static_cast<int>(p.n);
  const int row = place.row + warp_row, column = place.column + warp_column;
  if (bias != nullptr) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const int at = column + FactorsB::line(lane_column, j);
      if (at >= n) continue;
#pragma unroll
      for (int i = 0; i < kRows; ++i) sum[i][j] = with_bias(sum[i][j], bias, at);
    }
  }
  bool any_nan = false;  // of two at once
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kColumns; j += 2) any_nan |= std::isunordered(sum[i][j], sum[i][j + 1]);
  }
  if (any_nan) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) sum[i][j] = round_to<float>(sum[i][j]);
    }
  }
  __syncthreads();
  float* const results = dynamic_shared<float>() + warp * S::kWarpM * S::kOutRow;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    float* const to = results + FactorsA::line(lane_row, i) * S::kOutRow;
#pragma unroll
    for (int j = 0; j < kColumns; j += FactorsB::kVector) {
      typename FactorsB::Vector vector;
#pragma unroll
      for (int e = 0; e < FactorsB::kVector; ++e) vector.at[e] = sum[i][j + e];
      *reinterpret_cast<typename FactorsB::Vector*>(to + FactorsB::line(lane_column, j)) = vector;
    }
  }
  __syncwarp();
  float* const to = c + place.batch * p.m * p.n + row * p.n + column;
  const int rows_left = min(static_cast<int>(p.m) - row, S::kWarpM), columns_left = n - column;
  const bool vectors = n % 4 == 0 && reinterpret_cast<uint64_t>(c) % 16 == 0;
  vectors ? store_rows<S, 4>(to, results, n, rows_left, columns_left)
          : store_rows<S, 1>(to, results, n, rows_left, columns_left);
}

cudaError_t run(const Call& call) {
  return with_shape<kShapeCount>(call, [&](auto index) {
    using S = Tiling<index()>;
    const Problem& p = call.problem;
    return launch(&kernel<S>, call.step(0), static_cast<const float*>(call.a), static_cast<const float*>(call.b),
                  static_cast<float*>(call.c), static_cast<const float*>(call.bias), p,
                  Divider(ceil_div(p.m, int64_t(S::kTileM))), Divider(ceil_div(p.n, int64_t(S::kTileN))),
                  bits_of(call.prepared.way_a), bits_of(call.prepared.way_b));
  });
}

}  // namespace treduce::matmul::short_k
