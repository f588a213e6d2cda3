// pipelined for float32 products of short k: all of k comes to shared memory at once. What overlaps are the blocks of a multiprocessor, of
// which one waits for its operands or stores its results while others multiply.
//
// Order:   k order, hence the bits of `pipelined`.
// Mapping: element k of a line lies at k * row + line in shared memory, whatever the operand's direction. Neighbouring lines are copied
//          there by cp.async; of neighbours along k a thread loads four, or one, and stores them one below another. k is filled up to whole
//          steps of the loop with factors of -0 and 0: their product, -0, changes no sum, of which 0 would make +0 of -0.
// Bound:   of many large matrices the multiply-adds, nine tenths of the loop's instructions in the largest tiles; of many small ones the
//          memory; of few the latencies of a load, the loop and a store.
// Registers: a multiply-add whose three factors all lie in even registers, or all in odd ones, costs the scheduler a cycle. The compiler
//          avoids that if some registers are free, so the loop keeps nothing that can be computed anew (block_index); if the loop over
//          outputs has columns outside; and if sums are not stored from the registers they were added in (with_one_nan), where those of
//          a row lie side by side.
// Source:  Scott Gray, SGEMM (2014), for what banks of registers cost.
#include "short_k.h"

#include <type_traits>

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

// kLines lines of an operand, and how a thread of S copies them to shared memory, in rounds of S::kDepth steps of k. The last round may have
// fewer: kWhole says that it has not.
template <class S, int kLines>
class Tile {
 public:
  static constexpr int kRow = row_of(kLines);  // from a step of k to the next

  TREDUCE_DEVICE Tile(const Lines<float>& lines, ptx::SharedAddress to, unsigned lies)
      : lies_(lies),
        stride_(lines.stride),
        step_(lines.step),
        count_(lines.count < kLines ? static_cast<int>(lines.count) : kLines) {
    const Share share = share_of(lies);
    from_ = lines.at(min(share.line, count_ - 1), share.k);
    to_ = to + kBytes * (share.k * kRow + share.line);
  }

  // Starts copies of the next steps of k. Of neighbours along k this thread then keeps some.
  template <bool kWhole>
  TREDUCE_DEVICE void start(int steps) {
    const bool vectors = lies_ & kInVectors, apart = lies_ & kApart;
    if (lies_ & kAlongK) {
      vectors ? load_fours_along_k<kWhole>(steps) : load_ones_along_k<kWhole>(steps);
    } else if (vectors) {
      copy_vectors<kWhole>(steps);
    } else {
      apart ? copy_lines<kWhole, false>(steps) : copy_lines<kWhole, true>(steps);
    }
  }
  // Stores what this thread has kept, and goes on to the steps that follow.
  template <bool kWhole>
  TREDUCE_DEVICE void finish(int steps) {
    const bool vectors = lies_ & kInVectors;
    if (lies_ & kAlongK) {
      vectors ? store_along_k<kWhole, 4>(steps) : store_along_k<kWhole, 1>(steps);
    }
    from_ += S::kDepth * (lies_ & kAlongK ? 1 : step_);
    to_ += kBytes * S::kDepth * kRow;
  }

  // Steps of k from first to end become `value`.
  TREDUCE_DEVICE static void fill(float* tile, int first, int end, float value) {
#pragma unroll 1
    for (int i = first * kRow + threadIdx.x; i < end * kRow; i += S::kThreads) tile[i] = value;
  }

 private:
  static constexpr int kBytes = sizeof(float);
  // Along k a warp loads 8 lines by 16 steps of k at once, four steps a thread, or 4 lines by 8 steps, of which no two meet in a bank; of
  // neighbouring lines a thread copies four at once, or one.
  static constexpr int kHop = S::kThreads / 4, kHalves = S::kDepth / 16;
  static constexpr int kHopOfOnes = S::kThreads / 8, kEighths = S::kDepth / 8;
  static_assert(kLines % kHop == 0);
  static constexpr int kFours = kLines / 4, kFoursDown = S::kThreads / kFours;
  static constexpr int kOnes = kLines < 32 ? kLines : 32, kOnesDown = S::kThreads / kOnes;

  // Where a thread's share of a round begins.
  struct Share {
    int line, k;
  };
  TREDUCE_DEVICE static Share share_of(unsigned lies) {
    const int t = threadIdx.x;
    if (lies & kAlongK) return lies & kInVectors ? Share{t / 4, t % 4 * 4} : Share{t / 8, t % 8};
    return lies & kInVectors ? Share{t % kFours * 4, t / kFours} : Share{t % kOnes, t / kOnes};
  }

  // Of lines that do not exist it loads others, rather than ask before each load.
  template <bool kWhole>
  TREDUCE_DEVICE void load_fours_along_k(int steps) {
    const Share share = share_of(kAlongK | kInVectors);
    const float* next = from_;
#pragma unroll
    for (int pass = 0; pass < kLines / kHop; ++pass) {
      const float* const from = share.line + pass * kHop < count_ ? next : from_;
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        if (kWhole || share.k + 16 * half < steps) {
          const float4 vector = *reinterpret_cast<const float4*>(from + 16 * half);
          float* const to = kept_ + 4 * (pass * kHalves + half);
          to[0] = vector.x, to[1] = vector.y, to[2] = vector.z, to[3] = vector.w;
        }
      }
      next += kHop * stride_;
    }
  }
  template <bool kWhole>
  TREDUCE_DEVICE void load_ones_along_k(int steps) {
    const Share share = share_of(kAlongK);
    const float* from = from_;
#pragma unroll
    for (int pass = 0; pass < kLines / kHopOfOnes; ++pass) {
      const int left = share.line + pass * kHopOfOnes < count_ ? steps - share.k : 0;
#pragma unroll
      for (int i = 0; i < kEighths; ++i) {
        if (8 * i < left) kept_[pass * kEighths + i] = from[8 * i];
      }
      from += kHopOfOnes * stride_;
    }
  }
  // kWidth: neighbours along k that a thread has loaded at once.
  template <bool kWhole, int kWidth>
  TREDUCE_DEVICE void store_along_k(int steps) const {
    constexpr int kDown = kWidth == 4 ? kHop : kHopOfOnes, kAlong = kWidth == 4 ? 16 : 8, kTimes = S::kDepth / kAlong;
    const Share share = share_of(kWidth == 4 ? kAlongK | kInVectors : kAlongK);
#pragma unroll
    for (int i = 0; i < kTimes; ++i) {
      if (!kWhole && share.k + kAlong * i >= steps) break;
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
#pragma unroll
        for (int pass = 0; pass < kLines / kDown; ++pass) {
          ptx::store_shared(to_ + kBytes * (pass * kDown + (kAlong * i + e) * kRow),
                            kept_[kWidth * (pass * kTimes + i) + e]);
        }
      }
    }
  }

  // Single elements of neighbouring lines or, unless kNeighbours, of any; of few lines several steps of k a warp.
  template <bool kWhole, bool kNeighbours>
  TREDUCE_DEVICE void copy_lines(int steps) const {
    const Share share = share_of(0);
    const float* from = from_;
    ptx::SharedAddress to = to_;
    const auto copy = [&] {
#pragma unroll
      for (int hop = 0; hop < kLines; hop += kOnes) {
        if (share.line + hop < count_) {
          ptx::copy_async<kBytes>(to + kBytes * hop, from + hop * (kNeighbours ? 1 : stride_));
        }
      }
      from += kOnesDown * step_;
      to += kBytes * kOnesDown * kRow;
    };
    if constexpr (kWhole) {
#pragma unroll 4
      for (int i = 0; i < S::kDepth / kOnesDown; ++i) copy();
    } else {
#pragma unroll 1
      for (int k = share.k; k < steps; k += kOnesDown) copy();
    }
  }

  // Four neighbouring lines at once; by way of the L1, for blocks of thin products all read the same few of one operand.
  template <bool kWhole>
  TREDUCE_DEVICE void copy_vectors(int steps) const {
    const Share share = share_of(kInVectors);
    if ((S::kThreads % kFours != 0 && share.k >= kFoursDown) || share.line >= count_) return;
    const float* from = from_;
#pragma unroll
    for (int k = 0; k < S::kDepth; k += kFoursDown) {
      const bool all_exist = kWhole && S::kDepth % kFoursDown == 0;
      if (all_exist || share.k + k < steps) ptx::copy_async<4 * kBytes, true>(to_ + kBytes * k * kRow, from);
      from += kFoursDown * step_;
    }
  }

  const unsigned lies_;
  const int64_t stride_, step_;
  const int count_;
  const float* from_;      // this thread's first element of the round,
  ptx::SharedAddress to_;  // and where it goes
  float kept_[kLines * S::kDepth / S::kThreads];
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

// What round_to<float> makes of a sum, in one instruction: a GPU's arithmetic has one NaN, 0x7fffffff, and as an integer that is above every
// other sum.
TREDUCE_DEVICE float with_one_nan(float sum) {
#ifdef __CUDA_ARCH__
  return __int_as_float(min(__float_as_int(sum), 0x7fc00000));
#else
  return round_to<float>(sum);
#endif
}

template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kShape.blocks)
    kernel(const float* a, const float* b, float* c, const float* bias, Problem p, Divider down, Divider across,
           unsigned a_lies, unsigned b_lies) {
  constexpr int kRows = S::kRows, kColumns = S::kColumns, kSteps = S::kSteps, kLoop = S::kShape.whole_steps();
  using TileA = Tile<S, S::kTileM>;
  using TileB = Tile<S, S::kTileN>;
  using FactorsA = Factors<kRows, WarpShape::kRows>;
  using FactorsB = Factors<kColumns, WarpShape::kColumns>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int lane_row = WarpShape::row(lane), lane_column = WarpShape::column(lane);
  const int warp_row = warp / S::kAcross * S::kWarpM, warp_column = warp % S::kAcross * S::kWarpN;
  const int all = static_cast<int>(p.k);
  const int padded = static_cast<int>(round_up(all, kLoop));
  float* const tile_a = dynamic_shared<float>();
  float* const tile_b = tile_a + padded * TileA::kRow;

  // ---- the operands ----
  {
    const Place<S> place(down, across);
    const Offsets at = place.offsets(p);
    const Lines<float> rows = rows_of(a, p, at, place.row), columns = columns_of(b, p, at, place.column);
    ptx::allow_launch_after();
    ptx::wait_for_launch_before();
    TileA copy_a(rows, ptx::shared_address(tile_a), a_lies);
    TileB copy_b(columns, ptx::shared_address(tile_b), b_lies);
    const auto round = [&](auto whole, int steps) {
      copy_a.template start<whole()>(steps);
      copy_b.template start<whole()>(steps);
      copy_a.template finish<whole()>(steps);
      copy_b.template finish<whole()>(steps);
    };
    int left = all;
#pragma unroll 1
    for (; left >= S::kDepth; left -= S::kDepth) round(std::true_type(), S::kDepth);
    if (left > 0) round(std::false_type(), left);
    if (all < padded) {
      TileA::fill(tile_a, all, padded, -0.0f);
      TileB::fill(tile_b, all, padded, 0.0f);
    }
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
  for (int k = 0; k < padded; k += kLoop) {
#pragma unroll
    for (int first = 0; first < kLoop; first += kSteps) {
      const int u = first / kSteps % 2;
      load(1 - u, first + kSteps);  // after the last step what nobody uses
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
    read_a += kLoop * TileA::kRow;
    read_b += kLoop * TileB::kRow;
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
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) sum[i][j] = with_one_nan(sum[i][j]);
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
