// persistent for few outputs of a long k, where each is a chain of dependent multiplications. Those of wgmma take 19 to 33 cycles each (n of 8
// to 64), mma.sync's 28 for fewer outputs, and need no fragments in registers. The instruction's 64 rows are rows of C, or columns, as many
// as a tile has: the others are neither asked for nor stored. Its columns are as many as fill the chip.
//
// Order:   that of the rest of persistent.
// Mapping: two producer threads, one for each operand, keep a deep ring of tiles full: a thread needs some 250 cycles for a copy and its
//          barriers, so a copy brings a stage, two or four slabs of k. One warp group multiplies, a stage ahead of the one that it waits for.
//          Of 16 bits the operand whose lines are the instruction's columns may lie across k: a copy brings 256 rows of 16 or 32 lines.
// Source:  this project.
#pragma once

#include "../primitives/ptx/launch.cuh"
#include "groups.cuh"
#include "hopper.cuh"

namespace treduce::matmul::few_outputs {

using namespace hopper;

struct Work {
  int64_t n;
  int m, rows, row_tiles;  // rows, of a tile, and tiles below each other
  int steps, tiles;
  int group_steps;
  int whole_steps;  // whose slabs k has, whole
  int stages;       // of the ring
  bool transposed;  // rows here are columns of C
};

// Of an operand: copies of a stage, and along k of a slab, of which the last ones may be past the end of k, or end behind it.
struct Maps {
  CUtensorMap stage, slab;
};

// Where a tile begins. The last of a column ends with the matrix: rows that two tiles have get the same bits from both.
template <int kColumns>
struct Place {
  int row, column;

  TREDUCE_DEVICE Place(const Work& work, int tile) {
    const int across = work.row_tiles == 1 ? tile : tile / work.row_tiles;
    row = min((tile - across * work.row_tiles) * work.rows, work.m - work.rows);
    column = across * kColumns;
  }
};

// A tile of 16 bits across k: a row is a step of k of 16 or 32 lines, and its 16-byte chunks are swizzled within it.
template <int kLines>
struct AcrossK {
  static constexpr int kPitch = kLines * 2;
  static constexpr uint32_t kWords = kPitch >> 4;  // 16 bytes each, of a row

  // Of multiplication `step` of the stage that begins `words` of 16 bytes into shared memory. PTX ISA, "Matrix descriptor": address, from
  // eight rows to the next, width of the swizzle.
  TREDUCE_DEVICE static uint64_t descriptor(uint32_t words, int step) {
    constexpr uint32_t kWidth = kLines == 16 ? 3 : 2;
    return uint64_t(kWidth << 30 | 8 * kWords) << 32 | (words + step * kStep<float16> * kWords);
  }
};

template <class T, class Out, int kColumns, int kSlabs, bool kWAlongK>
__global__ void __launch_bounds__(kThreads, 1)
    kernel(TREDUCE_GRID_CONSTANT Maps maps_w, TREDUCE_GRID_CONSTANT Maps maps_x, Work work, Out* c, const Out* bias) {
#ifdef TREDUCE_SM90A
  ptx::allow_launch_after();
  SHARED(Ring<few_rows::kMostStages>, ring);
  using TileX = Tile<T, 64, true>;
  using TileW = Tile<T, kColumns, true>;
  char* const stages = aligned_tiles(dynamic_shared<char>());
  // Of rows, units of the swizzle; the others that a multiplication reads lie behind, whatever they are.
  const int slab_x = (work.rows + 7) / 8 * 8 * kRowBytes, stage_bytes = kSlabs * (TileW::kBytes + slab_x);
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&maps_w.stage);
    ptx::prefetch_tensor_map(&maps_x.stage);
    ring.init(kWarpGroup / 32, work.stages, kProducers);
  }
  __syncthreads();
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0), lane = threadIdx.x % 32;

  if (warp >= kWarpGroup / 32) {
    const bool of_w = warp == kWarpGroup / 32;
    if (ptx::elect_one()) {
      const Maps& maps = of_w ? maps_w : maps_x;
      const int offset = of_w ? 0 : kSlabs * TileW::kBytes, slab_bytes = of_w ? TileW::kBytes : slab_x;
      RingPosition<few_rows::kMostStages> position;
      for (int tile = blockIdx.x; tile < work.tiles; tile += gridDim.x) {
        const Place<kColumns> place(work, tile);
        const int line = of_w ? place.column : place.row;
        if (tile == blockIdx.x) ptx::wait_for_launch_before();
        for (int step = 0; step < work.steps; ++step, position.next(work.stages)) {
          ptx::mbarrier_wait(ring.empty + position.stage, position.parity ^ 1);
          uint64_t* const full = ring.full + position.stage;
          char* const to = stages + position.stage * stage_bytes + offset;
          ptx::mbarrier_arrive_expect(full, kSlabs * slab_bytes);
          if (!kWAlongK && of_w) {
            ptx::load_box(to, &maps.stage, {line, step * kSlabs * kDepth<T>, 0, 0}, full);
          } else if (step < work.whole_steps) {
            ptx::load_box(to, &maps.stage, {0, line, step * kSlabs, 0}, full);
          } else {
#pragma unroll 1
            for (int slab = 0; slab < kSlabs; ++slab) {
              const int k = (step * kSlabs + slab) * kDepth<T>;
              ptx::load_box(to + slab * slab_bytes, &maps.slab, {k, line, 0, 0}, full);
            }
          }
        }
      }
    }
  } else {
    ptx::wait_for_launch_before();
    RingPosition<few_rows::kMostStages> position,
        done;  // of the stage that is begun, and of the one that is waited for
    const uint32_t full = ptx::kept_shared_address(ring.full), empty = ptx::kept_shared_address(ring.empty);
    const uint32_t first = ptx::shared_address(stages) >> 4, words_of_stage = stage_bytes >> 4,
                   words_of_x = slab_x >> 4;
    constexpr uint32_t kWordsOfW = TileW::kBytes >> 4, kAlongK = 1 << 16;  // of a low word
    for (int tile = blockIdx.x; tile < work.tiles; tile += gridDim.x) {
      Acc<T> acc[kColumns / 2], total[kColumns / 2] = {};
      const auto release_stage = [&] {
        release<1>(empty + done.stage * 8);
        done.next(work.stages);
      };
      for (int left = work.steps; left > 0; left -= work.group_steps) {
        const int end = min(left, work.group_steps);
#pragma unroll 1
        for (int step = 0; step < end; ++step, position.next(work.stages)) {
          ptx::mbarrier_wait(full + position.stage * 8, position.parity);
          const uint32_t stage = first + position.stage * words_of_stage;
          const uint32_t tile_w = stage + (kWAlongK ? kAlongK : 0), tile_x = stage + kSlabs * kWordsOfW + kAlongK;
          ptx::wgmma_touch(acc);
          ptx::wgmma_fence();
#pragma unroll
          for (int i = 0; i < kSlabs * kDepth<T> / kStep<T>; ++i) {
            constexpr int kOfSlab = kDepth<T> / kStep<T>;
            const int slab = i / kOfSlab;
            ptx::Wgmma<T, kColumns, false, !kWAlongK>::multiply(
                acc, TileX::descriptor(tile_x + slab * words_of_x, 0, i % kOfSlab),
                kWAlongK ? TileW::descriptor(tile_w + slab * kWordsOfW, 0, i % kOfSlab)
                         : AcrossK<kColumns>::descriptor(tile_w, i),
                i > 0 || step > 0);
          }
          ptx::wgmma_commit();
          ptx::wgmma_touch(acc);
          ptx::wgmma_wait<1>();
          if (step > 0) release_stage();
        }
        ptx::wgmma_wait<0>();
        ptx::wgmma_touch(acc);
        release_stage();
        if (work.steps > work.group_steps) add_group(total, acc);
      }
      const Place<kColumns> place(work, tile);
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) {
        const int row = warp * 16 + lane / 4 + i / 2 % 2 * 8, r = place.row + row;
        const int64_t j = place.column + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (row >= work.rows || j >= work.n) continue;
        c[work.transposed ? j * work.m + r : r * work.n + j] =
            round_to<Out>(with_bias(acc[i], bias, work.transposed ? r : j));
      }
    }
  }
#endif
}

template <class T, int kSlabs>
cudaError_t encode_maps(const Boxes& boxes, int lines, Maps* maps) {
  cudaError_t error = encode(boxes, kMapType<T>, kDepth<T>, lines, &maps->slab, Fetch::lines);
  const cuuint64_t pitch = boxes.pitch * boxes.element_bytes, slabs = boxes.inner / kDepth<T>;
  maps->stage = maps->slab;
  if (error != cudaSuccess || slabs < kSlabs) return error;
  // Slabs are a dimension of their own.
  return describe_tensor(boxes.data, kMapType<T>, {kDepth<T>, cuuint64_t(boxes.outer), slabs, 1},
                         {pitch, kRowBytes, pitch}, {kDepth<T>, cuuint32_t(lines)}, &maps->stage, Fetch::lines, kSlabs);
}

template <class T, class Out, int kColumns, int kSlabs, bool kWAlongK>
cudaError_t launch_columns(const Call& call, const Problem& p, const Boxes& w, const Boxes& x) {
  const Decisions& d = call.prepared;
  constexpr int kStageDepth = kSlabs * kDepth<T>;
  Work work;
  work.n = p.n;
  work.m = static_cast<int>(p.m);
  work.rows = static_cast<int>(d.few_columns ? d.tile_n : d.tile_m);
  work.row_tiles = static_cast<int>(ceil_div(p.m, work.rows));
  work.transposed = d.few_columns;
  work.tiles = static_cast<int>(ceil_div(p.n, kColumns) * work.row_tiles);
  work.steps = static_cast<int>(ceil_div(p.k, kStageDepth));
  work.whole_steps = static_cast<int>(p.k / kStageDepth);
  work.group_steps = groups_for(call, true, kStageDepth).steps;
  work.stages = d.stages;
  Maps maps_w, maps_x;
  cudaError_t error = encode_maps<T, kSlabs>(x, static_cast<int>(round_up(work.rows, 8)), &maps_x);
  if (error != cudaSuccess) return error;
  if constexpr (kWAlongK) {
    error = encode_maps<T, kSlabs>(w, kColumns, &maps_w);
  } else {
    error = encode(w, kMapType<T>, kColumns, kStageDepth, &maps_w.stage, Fetch::lines,
                   swizzle_of(AcrossK<kColumns>::kPitch));
    maps_w.slab = maps_w.stage;
  }
  if (error != cudaSuccess) return error;
  return launch(&kernel<T, Out, kColumns, kSlabs, kWAlongK>, call.step(-1), maps_w, maps_x, work,
                static_cast<Out*>(call.c), static_cast<const Out*>(call.bias));
}

// w and x: the boxes of B and A, or of A and B if the product is the transposed one. x lies along k.
template <class T, class Out, bool kWAlongK>
cudaError_t run(const Call& call, const Boxes& w, const Boxes& x) {
  Problem p = call.problem;
  if (call.prepared.few_columns) std::swap(p.m, p.n);
  return with_shape<kShapeCount>(call, [&](auto index) {
    constexpr Shape kShape = kShapes[index()];
    if constexpr (kWAlongK || kShape.takes_across()) {
      return launch_columns<T, Out, kShape.columns, kShape.slabs, kWAlongK>(call, p, w, x);
    } else {
      return cudaErrorInvalidValue;  // never prepared
    }
  });
}

}  // namespace treduce::matmul::few_outputs
