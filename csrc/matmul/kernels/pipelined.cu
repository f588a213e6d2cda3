// Idea: copy and multiply at the same time. The hardware copies the tiles of the next steps to shared memory while this one
// is multiplied, and the factors of the next place along k come to registers while those of this one are multiplied.
//
// After:   warp_tiled; the same multiply-adds in the same order, hence the same bits.
// Mapping: a ring of kStages tiles of each operand. At step s the threads start the copies for step s + kStages - 1, a few between
//          the multiply-adds of each place along k. One barrier a step says both that the next tile has arrived and that the
//          oldest may be overwritten. If kStep does not divide k, the narrow step comes first, so that the loop has whole steps
//          alone and no branch. Past an edge, threads copy the last line again; these outputs are not stored. A copy moves 16
//          bytes of neighbouring lines, but one element of neighbours along k, because the tile is transposed. Tiles of C are
//          taken in bands, so that those computed at the same time share more of A and B.
// Bound:   the multiply-adds: 128 for 6 shared-memory loads and a copy at times, in the largest tiles. Large tiles pay for C of
//          several thousand rows and columns; smaller ones keep more multiprocessors busy where C is smaller. Of short k
//          a block waits and stores longer than it multiplies: float32 has short_k.cu for that.
// Next:    wmma multiplies on tensor cores.
// Source:  NVIDIA, CUTLASS documentation: Efficient GEMM in CUDA; Scott Gray, SGEMM (2014), for the order of lanes.
#include "../../primitives/shared.cuh"
#include "../copies.cuh"
#include "../outputs.cuh"
#include "../short_k.h"

namespace treduce::matmul::pipelined {

// Tiles of one of the shapes of shapes.h, on kWarpsM x kWarpsN_ warps.
template <class T, Index kIndex, int kWarpsM, int kWarpsN_>
struct Config {
  static constexpr int kWarpsN = kWarpsN_;
  static constexpr TileShape kShape = shape(kDType<T>, kIndex);
  static constexpr int kTileM = kShape.tile_m, kTileN = kShape.tile_n, kStep = pipelined::kStep,
                       kStages = pipelined::kStages;
  static constexpr int kThreads = kShape.threads;
  static constexpr bool kLargeTiles = kIndex == kLarge;
  // Blocks per SM: for short k, other blocks hide this one's first copies and its epilogue.
  static constexpr int kBlocks = kIndex == kMedium && std::is_same_v<T, float> ? 4 : 1;
  static_assert(kThreads == 32 * kWarpsM * kWarpsN);
  static constexpr int kWarpM = kTileM / kWarpsM, kWarpN = kTileN / kWarpsN;
  static constexpr int kRows = kWarpM / WarpShape::kRows, kColumns = kWarpN / WarpShape::kColumns;  // a thread
  // Places along k from one part of the copies to the next. Those that go through registers come more at a time: fewer waits.
  static constexpr int kCopyEvery = sizeof(T) < sizeof(Acc<T>) ? 8 : 4;
  static constexpr int kBand = 16;  // rows of tiles that are walked down together
  using Tiles = matmul::Tiles<kTileM, kTileN>;
  using Outputs =
      matmul::Outputs<T, kRows, kColumns, WarpShape::kRows * kFragment<T>, WarpShape::kColumns * kFragment<T>>;
};
template <class T>
using Large = Config<T, kLarge, 2, 4>;
template <class T>
using Medium = Config<T, kMedium, 1, 4>;
template <class T>
using Small = Config<T, kSmall, 1, 4>;

template <class T, class C, Way kWayA, Way kWayB>
__global__ void __launch_bounds__(C::kThreads, kWayA == Way::any ? C::kBlocks : 1)
    kernel(const T* a, const T* b, Result<T>* c, const Result<T>* bias, Problem p, typename C::Tiles tiles) {
  if (C::kLargeTiles && !has_large(kDType<T>, kOnlyCapability)) return;  // never launched
  using CopiesA = Copies<T, C, C::kTileM, kWayA>;
  using CopiesB = Copies<T, C, C::kTileN, kWayB>;
  constexpr int kStep = C::kStep, kStages = C::kStages, kCopyEvery = C::kCopyEvery;
  constexpr int kTileBytes = sizeof(Acc<T>) * CopiesA::kSize;  // of A; that of B follows
  constexpr int kStageBytes = kTileBytes + sizeof(Acc<T>) * CopiesB::kSize;
  const auto ring = dynamic_shared<unsigned char>();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int y = warp / C::kWarpsN * C::kWarpM + WarpShape::row(lane) * kFragment<T>;
  const int x = warp % C::kWarpsN * C::kWarpN + WarpShape::column(lane) * kFragment<T>;
  const int head = static_cast<int>(p.k % kStep);
  const int64_t steps = p.k / kStep;

  for (int64_t tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
    const auto place = tiles.template place<C::kBand>(tile);
    const Offsets at = offsets_of(p, place.batch);
    const Lines<T> rows = rows_of(a, p, at, place.row);
    const Lines<T> columns = columns_of(b, p, at, place.column);
    CopiesA copies_a(rows);
    CopiesB copies_b(columns);
    typename C::Outputs outputs;
    typename C::Outputs::Factors factors[2];  // of this place along k, and of the next
    outputs.clear();
    // This thread's addresses of reads and writes. They advance with every step, so the loop computes no others.
    const Acc<T>* read_a = reinterpret_cast<const Acc<T>*>(ring) + y;
    const Acc<T>* read_b = reinterpret_cast<const Acc<T>*>(ring + kTileBytes) + x;
    ptx::SharedAddress write_a = ptx::shared_address(ring) + copies_a.offset();
    ptx::SharedAddress write_b = ptx::shared_address(ring) + kTileBytes + copies_b.offset();

    // ---- start the copies of the narrow step, to the last stage, which the loop fills last, and of the first whole steps ----
    constexpr int kLast = (kStages - 1) * kStageBytes;
    if (head > 0) {
      copies_a.copy_head(write_a + kLast, head);
      copies_b.copy_head(write_b + kLast, head);
    }
    ptx::commit_copies();
#pragma unroll 1
    for (int stage = 0; stage < kStages - 1; ++stage) {
      copies_a.template copy_part<1>(write_a, 0, stage < steps);
      copies_b.template copy_part<1>(write_b, 0, stage < steps);
      ptx::commit_copies();
      write_a += kStageBytes;
      write_b += kStageBytes;
    }

    // ---- the narrow step ----
    if (head > 0) {
      ptx::wait_copies<kStages - 1>();
      __syncthreads();
#pragma unroll 1
      for (int l = 0; l < head; ++l) {
        factors[0].load(read_a + kLast / sizeof(Acc<T>) + l * CopiesA::kRow,
                        read_b + kLast / sizeof(Acc<T>) + l * CopiesB::kRow);
        outputs.add(factors[0]);
      }
    }
    ptx::wait_copies<kStages - 2>();
    __syncthreads();

    // ---- whole steps ----
    factors[0].load(read_a, read_b);
    int stage = 0, advance = -kLast;
#pragma unroll 1
    for (int64_t left = steps; left > 0; --left) {
      const bool more = left >= kStages;
#pragma unroll
      for (int l = 0; l < kStep; ++l) {
        if (l == kStep - 1) {
          ptx::commit_copies();
          ptx::wait_copies<kStages - 2>();
          __syncthreads();
          // The stage that was read is written next. The last advance led to it.
          write_a += advance;
          write_b += advance;
          advance = stage == kStages - 1 ? -kLast : kStageBytes;
          stage = stage == kStages - 1 ? 0 : stage + 1;
          read_a += advance / static_cast<int>(sizeof(Acc<T>));
          read_b += advance / static_cast<int>(sizeof(Acc<T>));
        }
        // After the last step this loads factors that nobody uses.
        const int next = (l + 1) % kStep;
        factors[(l + 1) % 2].load(read_a + next * CopiesA::kRow, read_b + next * CopiesB::kRow);
        if (l % kCopyEvery == 0) {
          copies_a.template copy_part<kStep / kCopyEvery>(write_a, l / kCopyEvery, more);
          copies_b.template copy_part<kStep / kCopyEvery>(write_b, l / kCopyEvery, more);
        }
        outputs.add(factors[l % 2]);
      }
    }

    // ---- epilogue ----
    if (bias != nullptr) outputs.add_bias(bias, place.column + x, p.n);
    outputs.store(c + at.c + (place.row + y) * p.n + place.column + x, p.n, rows.count - y, columns.count - x);
    __syncthreads();  // the ring is free for the next tile
  }
}

template <class T, class C, Way kWayA, Way kWayB>
cudaError_t launch_ways(const Call& call) {
  constexpr int kSize = Copies<T, C, C::kTileM, kWayA>::kSize + Copies<T, C, C::kTileN, kWayB>::kSize;
  static_assert(kSize * sizeof(Acc<T>) == C::kShape.stage_bytes);
  return launch_tiles<T, typename C::Tiles>(&kernel<T, C, kWayA, kWayB>, call);
}

// The ways that kernels are compiled for, of float32 alone: in large tiles those along k and by vectors; in smaller ones that of two
// matrices whose rows are contiguous and aligned. `any` is for the rest.
template <class T, class C>
cudaError_t launch_config(const Call& call) {
  if constexpr (std::is_same_v<T, float>) {
    const Way a = call.prepared.way_a, b = call.prepared.way_b;
    if (a == Way::k && b == Way::lines_vectors) return launch_ways<T, C, Way::k, Way::lines_vectors>(call);
    if constexpr (C::kLargeTiles) {
      if (a == Way::k && b == Way::k) return launch_ways<T, C, Way::k, Way::k>(call);
      if (a == Way::lines_vectors && b == Way::k) return launch_ways<T, C, Way::lines_vectors, Way::k>(call);
      if (a == Way::lines_vectors && b == a) return launch_ways<T, C, Way::lines_vectors, Way::lines_vectors>(call);
    }
  }
  return launch_ways<T, C, Way::any, Way::any>(call);
}

template <class T>
cudaError_t launch_dtype(const Call& call) {
  switch (call.prepared.shape) {
    case kLarge:
      if constexpr (has_large(kDType<T>, 0)) return launch_config<T, Large<T>>(call);
      return cudaErrorInvalidValue;  // never prepared
    case kMedium: return launch_config<T, Medium<T>>(call);
    default: return launch_config<T, Small<T>>(call);
  }
}

cudaError_t launch_one(const Call& call) {
  if (call.prepared.short_k) return short_k::run(call);
  return dispatch_dtype(call.dtype, [&](auto type) { return launch_dtype<typename decltype(type)::type>(call); });
}

const Rung<launch_one> rung("pipelined");

}  // namespace treduce::matmul::pipelined
