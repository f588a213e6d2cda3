// persistent for float32 read as tfloat32, where B lies across k (its rows are contiguous), and for few rows however B lies. Warp
// groups read tfloat32 from shared memory along k alone. But the first operand may be in registers, which ordinary loads fill from
// any place. So the product is transposed: columns of C are the 64 lines of a multiplication, those of B its registers, and rows of
// A its columns, and no copy of B has to be turned round first. Where A lies across k and B along it, A is in the registers.
//
// Order:   wgmma's, whose bits do not depend on where its first operand is. Copies round to tfloat32 on their way, as in persistent.
// Mapping: a block a tile. A producer keeps the ring full; each warp group has 64 lines. It loads the registers of the next stage
//          while this one is multiplied. For few rows tiles may have 32 lines: then half of a multiplication is of zeros, and every
//          multiprocessor has its share of B.
#include "register_operand.h"

#include "epilogue.cuh"
#include "groups.cuh"
#include "hopper.cuh"

namespace treduce::matmul::register_operand {

using namespace hopper;
using ptx::tfloat32;

// One of the shapes of shapes.h.
template <int kIndex>
struct Tiling {
  static constexpr Shape kShape = kShapes[kIndex];
  static constexpr int kRows = kShape.rows, kLines = kShape.lines, kStages = kShape.stages, kBoxes = kShape.boxes;
  static constexpr int kBlocks = kShape.blocks, kThreads = kShape.threads(), kWarpGroups = kShape.warp_groups();
  static constexpr bool kAddsGroups = kShape.adds_groups();
  static constexpr int kSteps = kBoxes * 4;  // multiplications of a stage, 8 steps of k each
  static constexpr int kLinesOfGroup = kLines / kWarpGroups;
  static constexpr int kBytesW = kLines * kBoxes * kRowBytes, kBytesX = kRows * kBoxes * kRowBytes;
  static_assert(kBytesW + kBytesX == kShape.stage_bytes());
};

struct Work {
  int64_t rows, lines;  // of X, of W
  int stages;           // of all of k
  int down, across;     // tiles of rows and of lines
  int tiles;            // of all matrices
  int inner_batches;
  KGroups groups;  // in stages of the ring
  Broadcast of_w, of_x;
};

// A lane's registers of a stage: see WgmmaRegisters.
template <class S>
using Fragments = uint32_t[S::kSteps][4];

// Where this lane reads in a tile of W: lines and lines + 8, the first and the second half of 8 steps of k.
// kAlongK: boxes of 32 steps of k of all lines; else of 32 lines and all steps of k. Rows are swizzled.
template <class S, bool kAlongK>
struct Places {
  uint32_t at[4];

  TREDUCE_DEVICE explicit Places(int first) {
    const int lane = threadIdx.x % 32, step = lane % 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int line = first + lane / 4 + i % 2 * 8, k = step + i / 2 * 4;
      at[i] = kAlongK ? line * kRowBytes + (k / 4 ^ line % 8) * 16 + step * 4
                      : line / 32 * (S::kBoxes * 32 * kRowBytes) + k * kRowBytes + ((line % 32 / 4) ^ k) * 16 +
                            line % 4 * 4;
    }
  }

  TREDUCE_DEVICE void load(Fragments<S>& to, const char* tile) const {
#pragma unroll
    for (int s = 0; s < S::kSteps; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t offset =
            kAlongK ? (at[i] ^ s % 4 * 32) + s / 4 * (S::kLines * kRowBytes) : at[i] + s * 8 * kRowBytes;
        to[s][i] = *reinterpret_cast<const uint32_t*>(tile + offset);
      }
    }
  }
};

template <class S, bool kAlongK, bool kOfA>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    kernel(TREDUCE_GRID_CONSTANT CUtensorMap map_w, TREDUCE_GRID_CONSTANT CUtensorMap map_x,
           TREDUCE_GRID_CONSTANT Work work, float* c, const float* bias) {
#ifdef TREDUCE_SM90A
  ptx::allow_launch_after();
  using TileX = Tile<tfloat32, S::kRows, true>;
  constexpr int kDepthOfStage = S::kBoxes * kDepth<tfloat32>;
  SHARED(Ring<S::kStages>, ring);
  char* const stages = aligned_tiles(dynamic_shared<char>());
  const int group = static_cast<int>(blockIdx.x) / work.tiles, tile = static_cast<int>(blockIdx.x) - group * work.tiles;
  const int matrix = tile / (work.down * work.across);
  const auto place = place_in_band<Grid::kBand>(tile - matrix * (work.down * work.across), work.down, work.across);
  const int line = place.column * S::kLines, row = place.row * S::kRows;
  const int2 batch = {matrix / work.inner_batches, matrix % work.inner_batches};
  const bool apart = work.groups.apart > 1, adds = S::kAddsGroups && !apart && work.stages > work.groups.steps;
  const int begin = group * work.groups.steps;
  const int end = apart ? min(begin + work.groups.steps, work.stages) : work.stages;

  hopper::begin<1, S::kWarpGroups>(ring, map_w, map_x);
  ptx::wait_for_launch_before();

  // ---- producer ----
  if (threadIdx.x >= S::kWarpGroups * kWarpGroup) {
    if constexpr (S::kShape.hands_over()) ptx::release_registers<40>();
    if (threadIdx.x >= S::kWarpGroups * kWarpGroup + 32 || !ptx::elect_one()) return;
    const int2 batch_w = work.of_w.of(batch), batch_x = work.of_x.of(batch);
    RingPosition<S::kStages> position;
    for (int step = begin; step < end; ++step, position.next()) {
      wait_to_overwrite(ring.empty + position.stage, position.parity ^ 1);
      uint64_t* const full = ring.full + position.stage;
      char* const to = stages + position.stage * (S::kBytesW + S::kBytesX);
      const int k = step * kDepthOfStage;
      ptx::mbarrier_arrive_expect(full, S::kBytesW + S::kBytesX);
      constexpr int kBoxesW = kAlongK ? S::kBoxes : S::kLines / 32;
#pragma unroll
      for (int box = 0; box < kBoxesW; ++box) {
        const int x = (kAlongK ? k : line) + box * 32, y = kAlongK ? line : k;
        ptx::load_box(to + box * (S::kBytesW / kBoxesW), &map_w, {x, y, batch_w.y, batch_w.x}, full);
      }
#pragma unroll
      for (int box = 0; box < S::kBoxes; ++box) {
        TileX::load(to + S::kBytesW + box * TileX::kBytes, &map_x, row, k + box * 32, batch_x, full);
      }
    }
    return;
  }

  // ---- consumers ----
  if constexpr (S::kShape.hands_over()) ptx::take_registers<232>();
  // A shuffle tells the compiler that this is the same in all lanes: descriptors are then in uniform registers.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
  const int first = warp / 4 * S::kLinesOfGroup + warp % 4 * 16;  // of this warp's lines in the tile
  const bool has_lines = warp % 4 * 16 < S::kLinesOfGroup;
  const Places<S, kAlongK> places(first);
  RingPosition<S::kStages> filled, read;  // of the registers; of the multiplications
  const uint32_t full = ptx::kept_shared_address(ring.full), empty = ptx::kept_shared_address(ring.empty);
  const auto load = [&](Fragments<S>& to) {
    ptx::mbarrier_wait(full + filled.stage * 8, filled.parity);
    if (has_lines) places.load(to, stages + filled.stage * (S::kBytesW + S::kBytesX));
    filled.next();
  };
  float acc[S::kRows / 2];
  [[maybe_unused]] float total[S::kAddsGroups ? S::kRows / 2 : 1] = {};
  int of_group = 0;  // stages of this group of k that are multiplied
  const auto multiply_and_load = [&](Fragments<S>& now, Fragments<S>& next, bool more) {
    const char* const x = stages + read.stage * (S::kBytesW + S::kBytesX) + S::kBytesW;
    ptx::wgmma_touch(acc);
#pragma unroll
    for (int s = 0; s < S::kSteps; ++s) ptx::wgmma_touch(now[s]);
    ptx::wgmma_fence();
#pragma unroll
    for (int s = 0; s < S::kSteps; ++s) {
      const uint64_t of_x = TileX::lone_descriptor(x + s / 4 * TileX::kBytes, 0, s % 4);
      ptx::WgmmaRegisters<tfloat32, S::kRows>::multiply(acc, now[s], of_x, s > 0 || of_group > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_touch(acc);
    if (more) load(next);
    ptx::wgmma_wait<0>();
    ptx::wgmma_touch(acc);
#pragma unroll
    for (int s = 0; s < S::kSteps; ++s) ptx::wgmma_touch(now[s]);  // in use until here
    release<1>(empty + read.stage * 8);
    read.next();
    ++of_group;
    if constexpr (S::kAddsGroups) {
      if (adds && of_group == work.groups.steps) {
        add_group(total, acc);
        of_group = 0;
      }
    }
  };

  Fragments<S> even = {}, odd = {};
  load(even);
  for (int left = end - begin; left > 0; left -= 2) {
    multiply_and_load(even, odd, left > 1);
    if (left > 1) multiply_and_load(odd, even, left > 2);
  }
  if constexpr (S::kAddsGroups) {
    if (adds && of_group > 0) add_group(total, acc);
  }

  // ---- epilogue ----
  if (!has_lines) return;
  const int64_t of_warp_group = line + warp / 4 * S::kLinesOfGroup;
  float* const to = (apart ? static_cast<float*>(work.groups.sums) + group * work.groups.outputs : c) +
                    matrix * work.rows * work.lines;
  if constexpr (kOfA) {
    if (!apart) add_bias(acc, bias, row, work.rows);
    store_registers<float, S::kRows>(acc, to, of_warp_group, row, work.lines, work.rows);
  } else {
    if (!apart) add_bias_transposed(acc, bias, of_warp_group, work.lines);
    store_transposed<float, S::kRows>(acc, to, of_warp_group, row, work.rows, work.lines);
  }
#endif
}

// w: the boxes of B, x: those of A; kOfA: the other way round.
template <class S, bool kAlongK, bool kOfA>
cudaError_t launch_shape(const Call& call, const Boxes& w, const Boxes& x) {
  const Problem& p = call.problem;
  constexpr int kDepthOfStage = S::kBoxes * kDepth<tfloat32>;
  CUtensorMap map_w, map_x;
  cudaError_t error = encode(w, kMapType<tfloat32>, 32, kAlongK ? S::kLines : kDepthOfStage, &map_w);
  if (error == cudaSuccess) error = encode_tiles<Tile<tfloat32, S::kRows, true>>(x, &map_x);
  if (error != cudaSuccess) return error;
  Work work;
  work.rows = kOfA ? p.n : p.m;
  work.lines = kOfA ? p.m : p.n;
  work.stages = static_cast<int>(ceil_div(p.k, kDepthOfStage));
  work.down = static_cast<int>(ceil_div(work.rows, int64_t(S::kRows)));
  work.across = static_cast<int>(ceil_div(work.lines, int64_t(S::kLines)));
  work.tiles = static_cast<int>(int64_t(work.down) * work.across * p.batches);
  work.inner_batches = static_cast<int>(inner_batches_of(p));
  work.groups = groups_for(call, S::kAddsGroups, kDepthOfStage);
  work.of_w = broadcast_of(w);
  work.of_x = broadcast_of(x);
  const bool apart = call.prepared.apart;
  error = launch(&kernel<S, kAlongK, kOfA>, call.step(apart ? -2 : -1), map_w, map_x, work, static_cast<float*>(call.c),
                 static_cast<const float*>(call.bias));
  return error != cudaSuccess || !apart ? error : add_groups_apart<tfloat32, float>(call, work.groups);
}

cudaError_t run(const Call& call, const Boxes& a, const Boxes& b) {
  return with_shape<kShapeCount>(call, [&](auto index) {
    using S = Tiling<index()>;
    if constexpr (S::kRows > kMostRows) {
      if (!a.along_k) return launch_shape<S, false, true>(call, a, b);
    }
    return b.along_k ? launch_shape<S, true, false>(call, b, a) : launch_shape<S, false, false>(call, b, a);
  });
}

}  // namespace treduce::matmul::register_operand
