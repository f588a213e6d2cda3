// What the warp-group rungs share (sm_90a): the ring of stages between the copy engine and the tensor cores, the order of tiles,
// and the launch. epilogue.cuh has what becomes of the sums.
#pragma once

#include "../primitives/cluster.cuh"
#include "../primitives/ptx/named_barrier.cuh"
#include "../primitives/shared.cuh"
#include "pack.h"
#include "rung.h"
#include "tile.cuh"

namespace treduce::matmul::hopper {

using ptx::named_any;
using ptx::named_arrive;
using ptx::named_barrier;

// Where a thread is in the ring of kStages stages: which stage, and the parity that its barriers have in this round.
template <int kStages>
struct RingPosition {
  int stage = 0;
  unsigned parity = 0;
  // `stages`: the stages of the ring, if fewer than kStages.
  TREDUCE_DEVICE void next(int stages = kStages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  // `count`: at most `stages`.
  TREDUCE_DEVICE void skip(int count, int stages = kStages) {
    stage += count;
    if (stage >= stages) {
      stage -= stages;
      parity ^= 1;
    }
  }
};

template <int kStages>
struct Ring {
  uint64_t full[kStages];   // barriers that count the bytes that have arrived in a stage,
  uint64_t empty[kStages];  // and the warps that have finished reading it

  // Who calls: one thread, before a barrier of the block, or of the cluster if other blocks arrive at these barriers.
  // `writers`: arrivals that fill a stage.
  TREDUCE_DEVICE void init(int readers, int stages = kStages, int writers = 1) {
    for (int s = 0; s < stages; ++s) {
      ptx::mbarrier_init(full + s, writers);
      ptx::mbarrier_init(empty + s, readers);
    }
    ptx::fence_mbarrier_init();
  }
};

// The start of a kernel with a producer: prefetches the tensor maps and initialises the ring. A stage is released by each warp of
// the kConsumers warp groups of `blocks` of the cluster.
// Who calls: every thread of the block. Synchronises the block, or the cluster.
template <int kCluster, int kConsumers, int kStages>
TREDUCE_DEVICE void begin(Ring<kStages>& ring, const CUtensorMap& map_a, const CUtensorMap& map_b,
                          int blocks = kCluster) {
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&map_a);
    ptx::prefetch_tensor_map(&map_b);
    ring.init(kConsumers * 4 * blocks);
  }
  if constexpr (kCluster > 1) {
    cluster::sync();
  } else {
    __syncthreads();
  }
}

// Tells each block of the cluster, all of which fill this block's stages, that this warp has finished reading a stage.
// Who calls: every lane of a consumer's warp, after its last read.
template <int kCluster, class Address>
TREDUCE_DEVICE void release(Address empty) {
  const int lane = threadIdx.x % 32;
  if constexpr (kCluster > 1) {
    if (lane < kCluster) ptx::mbarrier_arrive_at(empty, lane);
  } else {
    if (lane == 0) ptx::mbarrier_arrive(empty);
  }
}

// Lets a stage pass of which the warp has nothing to multiply. All its lanes have seen it when the first releases it: one that had not
// might find the ring a round further, and wait for a stage that never comes.
// Who calls: every lane of a consumer's warp.
template <int kCluster, int kStages>
TREDUCE_DEVICE void let_pass(uint32_t full, uint32_t empty, RingPosition<kStages>& position) {
  ptx::mbarrier_wait(full + position.stage * 8, position.parity);
  __syncwarp();
  release<kCluster>(empty + position.stage * 8);
  position.next();
}

// Waits until a stage that ordinary loads read may be overwritten by the copy engine. An arrival does not wait for loads of its
// warp that are under way, and copies overtake them: without the fence they overwrite what was not read yet (docs/details.md).
// Who calls: the producer's thread.
template <int kPause = 0>
TREDUCE_DEVICE void wait_to_overwrite(uint64_t* empty, unsigned parity) {
  ptx::mbarrier_wait<kPause>(empty, parity);
  ptx::fence_async_proxy();
}

// The outputs as tiles, and their order: bands of kBand rows of tiles, a band column by column (see place_in_band), so that
// blocks that run at the same time read few rows of A and few columns of B, mostly from the L2.
struct Grid {
  int64_t m, n;
  int depth;         // k
  int down, across;  // tiles
  int inner_batches;
  int64_t count;

  struct Place {
    int row, column;
    int2 batch;     // coordinates of the two batch dimensions
    int64_t index;  // of the matrix in C
  };
  static constexpr int kBand = 8;

  TREDUCE_DEVICE Place place(int64_t tile, int tile_m, int tile_n) const {
    // Divisions of 64 bits take longer than the first copies may wait.
    const int64_t a_matrix = int64_t(down) * across;
    const bool small = count <= INT32_MAX;
    const int matrix = count == a_matrix ? 0
                       : small           ? static_cast<int>(tile) / static_cast<int>(a_matrix)
                                         : static_cast<int>(tile / a_matrix);
    const int within = static_cast<int>(tile - matrix * a_matrix);
    const auto at = place_in_band<kBand>(within, down, across);
    return {at.row * tile_m, at.column * tile_n, {matrix / inner_batches, matrix % inner_batches}, matrix};
  }
};

inline Grid grid_of(const Problem& p, int tile_m, int tile_n) {
  Grid grid;
  grid.m = p.m;
  grid.n = p.n;
  grid.depth = static_cast<int>(p.k);
  grid.down = static_cast<int>(ceil_div(p.m, tile_m));
  grid.across = static_cast<int>(ceil_div(p.n, tile_n));
  grid.inner_batches = static_cast<int>(inner_batches_of(p));
  grid.count = int64_t(grid.down) * grid.across * p.batches;
  return grid;
}

// Maps batch coordinates to those of an operand: 0 in dimensions that it is broadcast along.
struct Broadcast {
  bool outer, inner;
  TREDUCE_DEVICE int2 of(int2 batch) const { return {outer ? 0 : batch.x, inner ? 0 : batch.y}; }
};

inline Broadcast broadcast_of(const Boxes& boxes) { return {boxes.batch_size[0] == 1, boxes.batch_size[1] == 1}; }

// What a kernel is compiled for: the type that the tensor cores read, the type of the results, and along which dimension
// the boxes of A and of B lie.
template <class T_, class Out_, bool kAAlongK_, bool kBAlongK_>
struct Form {
  using T = T_;
  using Out = Out_;
  static constexpr bool kAAlongK = kAAlongK_, kBAlongK = kBAlongK_;
};

template <class T, class Out, class Body>
cudaError_t launch_with_type(const Call& call, Body&& body) {
  Boxes a, b;
  const cudaError_t error = pack_operands(call, a, b);
  if (error != cudaSuccess) return error;
  return with_directions<kElementBytes<T> == 2>(a.along_k, b.along_k, [&](auto a_along_k, auto b_along_k) {
    return body(Form<T, Out, a_along_k(), b_along_k()>{}, a, b);
  });
}

// Fills C with zeros: the sums of a k of 0.
inline cudaError_t clear(const Call& call) {
  const Problem& p = call.problem;
  return cudaMemsetAsync(call.c, 0, p.batches * p.m * p.n * size_of(result_dtype(call.dtype)), call.stream);
}

// Calls body(Form, boxes of A, boxes of B), which launches the kernel. The boxes are in the operands, or in copies that this
// makes in the workspace. k is at least 1.
template <class Body>
cudaError_t launch_form(const Call& call, Body&& body) {
  if (call.launch_count == 0) return clear(call);
  switch (call.dtype) {
    case DType::float16: return launch_with_type<float16, float16>(call, body);
    case DType::bfloat16: return launch_with_type<bfloat16, bfloat16>(call, body);
    case DType::int8: return launch_with_type<int8_t, int32_t>(call, body);
    default: return launch_with_type<ptx::tfloat32, float>(call, body);
  }
}

// Makes the tensor map of an operand for copies of whole tiles.
template <class Tile>
cudaError_t encode_tiles(const Boxes& boxes, CUtensorMap* map) {
  return encode(boxes, kMapType<typename Tile::Element>, Tile::kBoxInner, Tile::kBoxOuter, map);
}

// Launches a kernel of which each block computes one tile. kernel_of(Form) is the kernel.
template <class Shape, class KernelOf>
cudaError_t launch_block_a_tile(const Call& call, KernelOf&& kernel_of) {
  return launch_form(call, [&](auto form, const Boxes& a, const Boxes& b) {
    using Form = decltype(form);
    using T = typename Form::T;
    using TileA = Tile<T, Shape::kTileM, Form::kAAlongK>;
    using TileB = Tile<T, Shape::kTileN, Form::kBAlongK>;
    static_assert(TileA::kBytes + TileB::kBytes == Shape::kStageBytes);
    CUtensorMap map_a, map_b;
    cudaError_t error = encode_tiles<TileA>(a, &map_a);
    if (error == cudaSuccess) error = encode_tiles<TileB>(b, &map_b);
    if (error != cudaSuccess) return error;

    return launch(kernel_of(form), call.step(-1), map_a, map_b, grid_of(call.problem, Shape::kTileM, Shape::kTileN),
                  broadcast_of(a), broadcast_of(b), static_cast<typename Form::Out*>(call.c),
                  static_cast<const typename Form::Out*>(call.bias));
  });
}

// Starts acc += A B over one stage for 64 rows of A from `line` and all columns of B; step 0 overwrites acc. The tensor
// cores are done when wgmma_wait says so; until then nothing else may touch acc or the tiles. tile_a, tile_b: where they
// begin, or the low words of their descriptors, in registers that a warp shares: then hardly anything is computed between two
// multiplications.
// Who calls: the threads of a warp group.
template <class TileA, class TileB, int kN, class Place>
TREDUCE_DEVICE void multiply_stage(Acc<typename TileA::Element> (&acc)[kN], Place tile_a, Place tile_b, int line,
                                   int step) {
  using T = typename TileA::Element;
  ptx::wgmma_touch(acc);
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < kDepth<T> / kStep<T>; ++i) {
    ptx::Wgmma<T, kN * 2, TileA::kTransposed, TileB::kTransposed>::multiply(
        acc, TileA::descriptor(tile_a, line, i), TileB::descriptor(tile_b, 0, i), i > 0 || step > 0);
  }
  ptx::wgmma_commit();
  ptx::wgmma_touch(acc);
}

// Rounds a pointer into shared memory up to where the swizzle begins; launches ask for kTileAlignment more.
TREDUCE_DEVICE char* aligned_tiles(char* shared) {
  const uint32_t address = ptx::shared_address(shared);
  return shared + ((address + kTileAlignment - 1) / kTileAlignment * kTileAlignment - address);
}

}  // namespace treduce::matmul::hopper
