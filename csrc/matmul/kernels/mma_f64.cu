// Idea: the tensor cores multiply float64 too, with fused multiply-adds that round as the plain cores' do, at twice their
// rate. No precision is lost, so this needs no opt-in (unlike tfloat32).
//
// After:   mma, whose pipelines it shares. ldmatrix moves 16-bit elements in fours of 32-bit words and is of no use here: a
//          lane loads its elements one by one, from chunks that are swizzled in pairs, so that 16 lanes meet every bank
//          once.
// Mapping: a block of 8 warps a tile of 128 x 128 outputs, a warp 64 x 32 of it: 64 sums, in 128 registers a lane. A stage
//          holds 16 steps of k. Where that leaves multiprocessors idle, smaller tiles, down to 16 x 16, with more stages: the
//          sums are those of fused multiply-adds in order, whatever the tile.
// Bound:   the tensor cores: 128 fused multiply-adds a cycle and multiprocessor on sm_90. For few rows the memory.
// Note:    long k in groups of 2048: their sums are added in registers, or of 128 x 128 tiles in C; or groups are tasks of
//          their own, and a second launch adds them.
// Next:    wgmma multiplies the narrower dtypes from shared memory, without fragments in registers.
// Source:  NVIDIA, PTX ISA: mma for float64; A. Kerr et al., CUTLASS.
#include "../../primitives/ptx/opaque.cuh"
#include "../fragments_f64.cuh"
#include "../groups.cuh"

namespace treduce::matmul::mma_f64 {

using namespace staged;

// One of the shapes of shapes.h.
template <int kIndex_>
struct Tiling {
  static constexpr int kIndex = kIndex_;
  static constexpr Shape kShape = kShapes[kIndex];
  static constexpr int kTileM = kShape.tile_m, kTileN = kShape.tile_n;
  static constexpr int kWarpM = kShape.warp_m, kWarpN = kShape.warp_n;  // outputs of a warp
  static constexpr int kThreads = kShape.threads, kBlocks = kShape.blocks;
  static constexpr int kStages = kShape.fixed ? kShape.stages : 0;  // 0: as many as were prepared
  static constexpr bool kInRegisters = adds_in_registers(kIndex);   // the sums of groups
  static constexpr int kBand = 8;                                   // rows of tiles that are walked down together
  static constexpr int kFours = kShape.fours;                       // of k, a multiplication
  static constexpr int kSteps = 4 / kFours;                         // multiplications along the k of a stage
  static constexpr int kParts = kSteps > 1 ? kSteps - 1 : 1;        // of the copies of a stage
};

// Adds a fragment to the sum of the groups before, which this lane stored there; the first group's to zero.
TREDUCE_DEVICE void add_stored(double (&acc)[4], bool first, const double* c, int64_t row, int64_t column, int64_t m,
                               int64_t n, bool pairs) {
#pragma unroll
  for (int half = 0; half < 2; ++half, row += 8) {
    const bool there = !first && row < m && column < n, both = there && column + 1 < n;
    const double* const from = c + row * n + column;
    double2 before = {0, 0};
    if (both && pairs) {
      before = *reinterpret_cast<const double2*>(from);
    } else {
      if (there) before.x = from[0];
      if (both) before.y = from[1];
    }
    acc[half * 2] = before.x + acc[half * 2];
    acc[half * 2 + 1] = before.y + acc[half * 2 + 1];
  }
}

template <class S, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    kernel(Source a, Source b, double* c, const double* bias, int64_t m, int64_t n, int inner_batches, int stages,
           Tiles<S::kTileM, S::kTileN> tiles, KGroups groups) {
#ifdef TREDUCE_MMA
  ptx::allow_launch_after();
  using CopiesA = Copies<double, S::kTileM, kAAlongK, S::kThreads>;
  using CopiesB = Copies<double, S::kTileN, kBAlongK, S::kThreads>;
  constexpr int kM = S::kWarpM / 16, kN = S::kWarpN / 8;  // fragments of a warp
  constexpr int kHalf = S::kSteps == 1 ? kM * kN / 2 : 0;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_m = warp % (S::kTileM / S::kWarpM) * S::kWarpM;
  const int warp_n = warp / (S::kTileM / S::kWarpM) * S::kWarpN;
  char* const shared = dynamic_shared<char>();
  const int place_a = place_of_lane<kAAlongK, S::kWarpM>(warp_m), place_b = place_of_lane<kBAlongK, S::kWarpN>(warp_n);

  const int all_steps = steps_of(a.depth, kDepth<double>);
  const bool apart = groups.apart > 1;
  // Tasks: tiles, or groups of k of tiles.
  for (int64_t task = blockIdx.x; task < tiles.count * groups.apart; task += gridDim.x) {
    const int64_t group = apart ? task / tiles.count : 0;
    const auto place = tiles.template place<S::kBand>(task - group * tiles.count);
    const int64_t batch_x = place.batch / inner_batches, batch_y = place.batch % inner_batches;
    double acc[kM][kN][4] = {};
    [[maybe_unused]] double total[S::kInRegisters ? kM : 1][kN][4] = {};
    double from_a[2][kM][2 * S::kFours], from_b[2][kN][S::kFours];
    const auto load_fragments = [&](int buffer, uint32_t stage, int step) {
#pragma unroll
      for (int four = 0; four < S::kFours; ++four) {
        const int k = (step * S::kFours + four) * 4;
#pragma unroll
        for (int i = 0; i < kM * 2; ++i) {
          from_a[buffer][i / 2][four * 2 + i % 2] = load<kAAlongK>(shared + stage, place_a, i * 8, k);
        }
#pragma unroll
        for (int j = 0; j < kN; ++j) {
          from_b[buffer][j][four] = load<kBAlongK>(shared + stage + CopiesA::kBytes, place_b, j * 8, k);
        }
      }
    };
    const auto multiply = [&](int buffer, int first, int end) {
#pragma unroll
      for (int ij = first; ij < end; ++ij) {
        const int i = ij % kM, j = ij / kM;
        ptx::multiply(acc[i][j], from_a[buffer][i], from_b[buffer][j]);
      }
    };
    const int begin = static_cast<int>(group) * groups.steps;
    const int depth_steps = apart ? min(groups.steps, all_steps - begin) : all_steps;
    const int first_k = begin * kDepth<double>;
    CopyRing<S::kParts, S::kStages, CopiesA, CopiesB> ring(CopiesA(a, place.row, batch_x, batch_y, first_k),
                                                           CopiesB(b, place.column, batch_x, batch_y, first_k),
                                                           ptx::shared_address(shared), stages, depth_steps);
    if (task == blockIdx.x) ptx::wait_for_launch_before();
    ring.fill();
    load_fragments(0, ring.reading(), 0);
    const bool adds = !apart && all_steps > groups.steps;
    [[maybe_unused]] int group_left = groups.steps;
    int left = depth_steps;
    // `buffer`: of the fragments of the stage's first step.
    const auto multiply_stage = [&](int buffer) {
#pragma unroll
      for (int step = 0; step < S::kSteps; ++step) {
        const bool last = step == S::kSteps - 1;
        const int now = (buffer + step) % 2;
        // Of the only step, half of the multiplications run while the warp waits for the others and the next stage.
        if (S::kSteps == 1) ring.copy_part(step);
        multiply(now, 0, kHalf);
        if (last) ring.advance();
        load_fragments(1 - now, ring.reading(), last ? 0 : step + 1);
        if (S::kSteps > 1) ring.copy_part(step);
        multiply(now, kHalf, kM * kN);
      }
      --left;
      if constexpr (S::kInRegisters) {
        if (!adds || (--group_left > 0 && left > 0)) return;
        group_left = groups.steps;
#pragma unroll
        for (int i = 0; i < kM; ++i) {
#pragma unroll
          for (int j = 0; j < kN; ++j) {
            add_group(total[i][j], acc[i][j]);
            if (left > 0) acc[i][j][0] = acc[i][j][1] = acc[i][j][2] = acc[i][j][3] = 0;
          }
        }
      }
    };
    // To C, or to the sums of groups that are apart. Sums of groups that have no registers meet there.
    const auto store = [&](bool first, bool last) {
      // Where registers are few, this is not computed before the multiplications; elsewhere its divisions would delay the end.
      const int64_t now = S::kInRegisters ? task : ptx::kept(static_cast<int>(task));
      const int64_t of_group = S::kInRegisters ? group : apart ? now / tiles.count : 0;
      const auto at = S::kInRegisters ? place : tiles.template place<S::kBand>(now - of_group * tiles.count);
      const int64_t row = at.row + warp_m + lane / 4, column = at.column + warp_n + lane % 4 * 2;  // this lane's first
      double* const to = apart ? static_cast<double*>(groups.sums) + of_group * groups.outputs : c;
      double* const matrix = to + at.batch * m * n;
      const bool pairs = aligned_pairs(to, n);
      if (!S::kInRegisters && adds) {
#pragma unroll
        for (int i = 0; i < kM; ++i) {
#pragma unroll
          for (int j = 0; j < kN; ++j) add_stored(acc[i][j], first, matrix, row + i * 16, column + j * 8, m, n, pairs);
        }
      }
      if (last && !apart) add_bias(acc, bias, column, n);
#pragma unroll
      for (int i = 0; i < kM; ++i) {
#pragma unroll
        for (int j = 0; j < kN; ++j) store_fragment(acc[i][j], matrix, row + i * 16, column + j * 8, m, n, pairs);
      }
    };
    // Groups, or all of k, which may be nothing. A group has an even number of stages.
    bool first = true;
    do {
      const int end = !S::kInRegisters && adds ? max(left - groups.steps, 0) : 0;
      while (left > end) {
        multiply_stage(0);
        if (S::kSteps % 2 == 1 && left > end) multiply_stage(1);
      }
      store(first, left == 0);
      first = false;
      if constexpr (S::kInRegisters) {
        break;
      } else {
#pragma unroll
        for (int i = 0; i < kM; ++i) {
#pragma unroll
          for (int j = 0; j < kN; ++j) acc[i][j][0] = acc[i][j][1] = acc[i][j][2] = acc[i][j][3] = 0;
        }
      }
    } while (left > 0);
    __syncthreads();  // the last reads of this tile's stages come before the next tile's copies
  }
#endif
}

cudaError_t launch_one(const Call& call) {
  return with_shape<kShapeCount>(call, [&](auto index) {
    using S = Tiling<index()>;
    const KGroups groups = groups_for(call, true, kDepth<double>);
    const bool apart = groups.apart > 1;
    const cudaError_t error = launch_stages<S, double>(
        call, apart ? -2 : -1, [](auto a_along_k, auto b_along_k) { return &kernel<S, a_along_k(), b_along_k()>; },
        groups);
    return error != cudaSuccess || !apart ? error : add_groups_apart<double, double>(call, groups);
  });
}

const Rung<launch_one> rung("mma_f64");

}  // namespace treduce::matmul::mma_f64
