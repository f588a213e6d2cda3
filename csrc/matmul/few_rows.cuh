// persistent for up to 64 rows, where nearly all that is read is the other operand, the weights; and for few outputs. The instruction is
// mma.sync of a warp, whose 16 rows are columns of C: tiles may be as narrow as fills the chip evenly, where those of a warp group have
// 64, and several may lie below each other. Each output is still one chain of multiplications, 16 steps of k each (8 of tfloat32), in
// every group of k.
//
// Order:   on an H200 mma.sync.m16n8k16, and m16n8k8 of tfloat32, give the bits of wgmma, as many products at a time and p ascending, so
//          this is of the order class of the rest of persistent. Tests compare the rows of small and large products.
// Mapping: a producer thread keeps a deep ring of tiles full; a warp has 16 or 32 columns of C. It loads the fragments of the next stage
//          between the multiplications of this one. Where columns are few, a stage has two slabs of k, so that a warp waits for half as
//          many, and the chain is bound by the latency of multiplications alone.
#pragma once

#include "../primitives/ptx/launch.cuh"
#include "../primitives/ptx/mma.cuh"
#include "groups.cuh"
#include "hopper.cuh"

namespace treduce::matmul::few_rows {

using namespace hopper;

constexpr int kFragmentColumns = 16, kFragmentRows = 8;  // outputs of one multiplication
constexpr int kSlabSteps = 4;                            // multiplications along the k of a slab, 16 each

// One of the shapes of shapes.h.
template <int kIndex>
struct Tiling {
  static constexpr Shape kShape = kShapes[kIndex];
  static constexpr int kRows = kShape.rows;
  static constexpr int kWarpRows = kShape.warp_rows, kWarpColumns = kShape.warp_columns;
  static constexpr int kParts = kShape.parts();                              // warps that share columns
  static constexpr int kSlabs = kShape.slabs, kSteps = kSlabs * kSlabSteps;  // of a stage
  static constexpr int kThreads = kShape.threads(kShape.most_columns());     // at most
};

struct Work {
  int64_t n;
  int m, rows, row_tiles;  // rows, of a tile, and tiles below each other
  int steps, tiles;
  int group_steps;      // an even number, or all
  int columns, stages;  // of a block; of its ring
  bool transposed;      // rows here are columns of C
};

// The offset of the 16 bytes that this lane addresses for ldmatrix: of the 16 columns from `column` on in a tile of the weights,
// in step 0. An exclusive or gives the offsets of the other steps, because rows are swizzled.
TREDUCE_DEVICE uint32_t place_of_columns(int column) {
  const int lane = threadIdx.x % 32, line = column + lane % 16;
  return line * kRowBytes + (lane / 16 ^ line % 8) * 16;
}

// The fragments that a warp multiplies in a stage.
template <class S>
struct Fragments {
  uint32_t columns[S::kSteps][S::kWarpColumns / kFragmentColumns][4];
  uint32_t rows[S::kSteps / 2][S::kWarpRows / kFragmentRows][4];  // of two steps
};

// Where a tile begins. The last of a column ends with the matrix: rows that two tiles have get the same bits from both.
struct Place {
  int row, column;

  TREDUCE_DEVICE Place(const Work& work, int tile) {
    const int across = work.row_tiles == 1 ? tile : tile / work.row_tiles;
    row = min((tile - across * work.row_tiles) * work.rows, work.m - work.rows);
    column = across * work.columns;
  }
};

// Stores 16 columns from `column` on of 8 rows from `row` on, of the tile that begins at `first`. Nothing past the edges is written.
template <class Out>
TREDUCE_DEVICE void store(const float (&acc)[4], const Work& work, Out* c, const Out* bias, Place first, int row,
                          int column) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int within = row + lane % 4 * 2 + i % 2, r = first.row + within;
    const int64_t j = first.column + column + lane / 4 + i / 2 * 8;
    if (within >= work.rows || j >= work.n) continue;
    c[work.transposed ? j * work.m + r : r * work.n + j] =
        round_to<Out>(with_bias(acc[i], bias, work.transposed ? r : j));
  }
}

template <class T, class Out, class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    kernel(TREDUCE_GRID_CONSTANT CUtensorMap map_w, TREDUCE_GRID_CONSTANT CUtensorMap map_x, Work work, Out* c,
           const Out* bias) {
#ifdef TREDUCE_SM90A
  ptx::allow_launch_after();
  constexpr int kColumnFragments = S::kWarpColumns / kFragmentColumns, kRowFragments = S::kWarpRows / kFragmentRows;
  __shared__ Ring<kMostStages> ring;
  char* const stages = aligned_tiles(dynamic_shared<char>());
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int consumers = blockDim.x / 32 - 1;
  using Word = std::conditional_t<std::is_same_v<T, ptx::tfloat32>, float, T>;
  constexpr int kSlabBytesX = S::kRows * kRowBytes;
  const int slab_bytes_w = work.columns * kRowBytes, w_bytes = S::kSlabs * slab_bytes_w;
  const int stage_bytes = w_bytes + S::kSlabs * kSlabBytesX;

  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&map_w);
    ptx::prefetch_tensor_map(&map_x);
    ring.init(consumers, work.stages);
  }
  __syncthreads();
  ptx::wait_for_launch_before();

  if (warp == consumers) {
    if (lane == 0) {
      RingPosition<kMostStages> position;
      for (int tile = blockIdx.x; tile < work.tiles; tile += gridDim.x) {
        const Place place(work, tile);
        for (int step = 0; step < work.steps; ++step, position.next(work.stages)) {
          wait_to_overwrite(ring.empty + position.stage, position.parity ^ 1);
          uint64_t* const full = ring.full + position.stage;
          char* const tile_w = stages + position.stage * stage_bytes;
          ptx::mbarrier_arrive_expect(full, w_bytes + S::kSlabs * work.rows * kRowBytes);
#pragma unroll
          for (int slab = 0; slab < S::kSlabs; ++slab) {  // past the end of k they are zeros
            const int k = (step * S::kSlabs + slab) * kDepth<T>;
            ptx::load_box(tile_w + slab * slab_bytes_w, &map_w, {k, place.column, 0, 0}, full);
            // Rows that a tile lacks are not asked for: whatever lies there reaches outputs that nobody stores.
            ptx::load_box(tile_w + w_bytes + slab * kSlabBytesX, &map_x, {k, place.row, 0, 0}, full);
          }
        }
      }
    }
  } else {
    const int row = warp % S::kParts * S::kWarpRows, column = warp / S::kParts * S::kWarpColumns;
    const uint32_t stage_0 = ptx::shared_address(stages);
    uint32_t places_w[kColumnFragments];
#pragma unroll
    for (int i = 0; i < kColumnFragments; ++i) places_w[i] = place_of_columns(column + i * kFragmentColumns);
    const uint32_t place_x = w_bytes + (row + lane % 8) * kRowBytes + (lane / 8 ^ lane % 8) * 16;

    RingPosition<kMostStages> position;
    const uint32_t full = ptx::kept_shared_address(ring.full), empty = ptx::kept_shared_address(ring.empty);
    uint32_t stage = 0;
    const auto wait_for_stage = [&] {
      ptx::mbarrier_wait(full + position.stage * 8, position.parity);
      stage = stage_0 + position.stage * stage_bytes;
    };
    const auto load = [&](Fragments<S>& to, int step) {
      const int slab = step / kSlabSteps, turn = step % kSlabSteps * 32;
      if (step % 2 == 0) {
#pragma unroll
        for (int i = 0; i < kRowFragments; ++i) {
          ptx::load_matrices<false>(to.rows[step / 2][i],
                                    (stage + slab * kSlabBytesX + place_x ^ turn) + i * (kFragmentRows * kRowBytes));
        }
      }
#pragma unroll
      for (int i = 0; i < kColumnFragments; ++i) {
        ptx::load_matrices<false>(to.columns[step][i], stage + slab * slab_bytes_w + places_w[i] ^ turn);
      }
    };
    float acc[kColumnFragments][kRowFragments][4], total[kColumnFragments][kRowFragments][4];
    const auto add_to_total = [&] {
#pragma unroll
      for (int i = 0; i < kColumnFragments; ++i) {
#pragma unroll
        for (int j = 0; j < kRowFragments; ++j) add_group(total[i][j], acc[i][j]);
      }
    };
    const auto clear = [](float (&sums)[kColumnFragments][kRowFragments][4]) {
#pragma unroll
      for (int i = 0; i < kColumnFragments; ++i) {
#pragma unroll
        for (int j = 0; j < kRowFragments; ++j) sums[i][j][0] = sums[i][j][1] = sums[i][j][2] = sums[i][j][3] = 0;
      }
    };
    const auto multiply = [&](const Fragments<S>& from, int step) {
#pragma unroll
      for (int i = 0; i < kColumnFragments; ++i) {
#pragma unroll
        for (int j = 0; j < kRowFragments; ++j) {
          const uint32_t (&words)[4] = from.rows[step / 2][j];
          ptx::multiply(Word{}, acc[i][j], from.columns[step][i], words[step % 2 * 2], words[step % 2 * 2 + 1]);
        }
      }
    };
    // The warp has loaded all of the stage and needs it no more.
    const auto release_loaded = [&] {
      __syncwarp();
      release<1>(empty + position.stage * 8);
      position.next(work.stages);
    };
    // A warp issues in order, and a multiplication waits for the one before it. The next stage's loads fill these waits.
    const auto multiply_and_load = [&](const Fragments<S>& from, Fragments<S>& to) {
#pragma unroll
      for (int step = 0; step < S::kSteps; ++step) {
        multiply(from, step);
        if (step == 0) wait_for_stage();
        load(to, step);
      }
      release_loaded();
    };
    const auto multiply_last = [&](const Fragments<S>& from) {
#pragma unroll
      for (int step = 0; step < S::kSteps; ++step) multiply(from, step);
    };

    for (int tile = blockIdx.x; tile < work.tiles; tile += gridDim.x) {
      clear(acc);
      clear(total);
      Fragments<S> even, odd;
      wait_for_stage();
#pragma unroll
      for (int step = 0; step < S::kSteps; ++step) load(even, step);
      release_loaded();
      int left = work.steps - 1, of_group = work.group_steps;
      for (; left >= 2; left -= 2) {
        multiply_and_load(even, odd);
        multiply_and_load(odd, even);
        of_group -= 2;
        if (of_group == 0) {
          add_to_total();
          clear(acc);
          of_group = work.group_steps;
        }
      }
      if (left == 1) {
        multiply_and_load(even, odd);
        multiply_last(odd);
      } else {
        multiply_last(even);
      }
      if (work.steps > work.group_steps) add_to_total();
      const Place first(work, tile);
#pragma unroll
      for (int i = 0; i < kColumnFragments; ++i) {
#pragma unroll
        for (int j = 0; j < kRowFragments; ++j) {
          store(acc[i][j], work, c, bias, first, row + j * kFragmentRows, column + i * kFragmentColumns);
        }
      }
    }
  }
#endif
}

// w and x: the boxes of B and A, or of A and B if the product is the transposed one.
template <class T, class Out, class S>
cudaError_t launch_shape(const Call& call, const Boxes& w, const Boxes& x) {
  const bool transposed = call.prepared.few_columns;
  Problem p = call.problem;
  if (transposed) std::swap(p.m, p.n);
  const int columns = static_cast<int>(transposed ? call.prepared.tile_m : call.prepared.tile_n);
  CUtensorMap map_w, map_x;
  cudaError_t error = encode(w, kMapType<T>, kDepth<T>, columns, &map_w, Fetch::lines);
  Work work;
  work.row_tiles = static_cast<int>(S::kShape.row_tiles(p.m));
  work.rows = static_cast<int>(ceil_div(p.m, work.row_tiles));
  if (error == cudaSuccess) error = encode(x, kMapType<T>, kDepth<T>, work.rows, &map_x);
  if (error != cudaSuccess) return error;
  work.n = p.n;
  work.transposed = transposed;
  work.tiles = static_cast<int>(ceil_div(p.n, columns) * work.row_tiles);
  work.m = static_cast<int>(p.m);
  constexpr int kStageDepth = S::kSlabs * kDepth<T>;
  work.steps = static_cast<int>(ceil_div(p.k, kStageDepth));
  work.group_steps = groups_for(call, true, kStageDepth).steps;
  work.columns = columns;
  work.stages = call.prepared.stages;
  return launch(&kernel<T, Out, S>, call.step(-1), map_w, map_x, work, static_cast<Out*>(call.c),
                static_cast<const Out*>(call.bias));
}

// What this kernel can do: both operands contiguous along k.
template <class Form>
constexpr bool takes = kElementBytes<typename Form::T> >= 2 && Form::kAAlongK && Form::kBAlongK;

template <class T, class Out>
cudaError_t run(const Call& call, const Boxes& a, const Boxes& b) {
  const bool transposed = call.prepared.few_columns;
  return with_shape<kShapeCount>(call, [&](auto index) {
    if constexpr (kElementBytes<T> == 4 && index() < kNarrow16) {
      return cudaErrorInvalidValue;  // never prepared
    } else {
      return launch_shape<T, Out, Tiling<index()>>(call, transposed ? a : b, transposed ? b : a);
    }
  });
}

}  // namespace treduce::matmul::few_rows
