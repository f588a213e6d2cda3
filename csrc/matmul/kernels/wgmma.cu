// Idea: a copy engine brings the tiles and a warp group of 128 threads multiplies them where they lie: neither operand
// passes through registers, and no thread computes an address within a tile.
//
// After:   mma, where every lane copied, loaded fragments and issued multiplications of one warp.
// Mapping: a block a tile of 128 x 128 outputs; warp group g holds rows 64 g to 64 g + 63 in registers. One thread asks
//          for boxes of A and B, kStages steps of k ahead; a barrier in shared memory counts their bytes. All threads
//          multiply, one step behind their waiting, so that a stage is free when its successor's step has begun.
// Bound:   one thread's double life: it can ask for a stage only after the whole block has met behind the
//          multiplications that read it, and a block's first copies and last stores leave the tensor cores idle. Two
//          blocks a multiprocessor fill some of that.
// Next:    warp_specialized gives the copies a warp of their own, and the registers to those who multiply.
// Source:  NVIDIA, PTX ISA: asynchronous warpgroup level matrix multiply-accumulate; V. Thakkar et al., CUTLASS 3.
#include "../epilogue.cuh"
#include "../hopper.cuh"

namespace treduce::matmul::wgmma {

using namespace hopper;

struct Shape {
  static constexpr int kTileM = kShape.tile_m, kTileN = kShape.tile_n, kStages = kShape.stages;
  static constexpr int kThreads = kShape.threads;
  static constexpr int kBlocks = kShape.blocks;  // a multiprocessor
  static constexpr int kStageBytes = kShape.stage_bytes;
};

template <class Form>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    kernel(TREDUCE_GRID_CONSTANT CUtensorMap map_a, TREDUCE_GRID_CONSTANT CUtensorMap map_b, Grid grid,
           Broadcast broadcast_a, Broadcast broadcast_b, typename Form::Out* c, const typename Form::Out* bias) {
#ifdef TREDUCE_SM90A
  using T = typename Form::T;
  using TileA = Tile<T, Shape::kTileM, Form::kAAlongK>;
  using TileB = Tile<T, Shape::kTileN, Form::kBAlongK>;
  SHARED_ARRAY(uint64_t, full, Shape::kStages);
  char* const stages = aligned_tiles(dynamic_shared<char>());
  const int warp_group = threadIdx.x / kWarpGroup;
  const int steps = (grid.depth + kDepth<T> - 1) / kDepth<T>;
  const auto place = grid.place(blockIdx.x, Shape::kTileM, Shape::kTileN);

  const auto fetch = [&](int step, int stage) {
    char* const tile_a = stages + stage * Shape::kStageBytes;
    ptx::mbarrier_arrive_expect(full + stage, Shape::kStageBytes);
    TileA::load(tile_a, &map_a, place.row, step * kDepth<T>, broadcast_a.of(place.batch), full + stage);
    TileB::load(tile_a + TileA::kBytes, &map_b, place.column, step * kDepth<T>, broadcast_b.of(place.batch),
                full + stage);
  };
  if (threadIdx.x == 0) {
    for (uint64_t& barrier : full) ptx::mbarrier_init(&barrier, 1);
    ptx::fence_mbarrier_init();
    for (int step = 0; step < min(steps, Shape::kStages); ++step) fetch(step, step);
  }
  __syncthreads();

  Acc<T> acc[Shape::kTileN / 2];
  RingPosition<Shape::kStages> position;
  int last = 0;  // the stage of the step before
  for (int step = 0; step < steps; ++step) {
    ptx::mbarrier_wait(full + position.stage, position.parity);
    const char* const tile_a = stages + position.stage * Shape::kStageBytes;
    multiply_stage<TileA, TileB>(acc, tile_a, tile_a + TileA::kBytes, warp_group * 64, step);
    ptx::wgmma_wait<1>();
    __syncthreads();  // both warp groups are done with the step before
    const int next = step - 1 + Shape::kStages;
    if (threadIdx.x == 0 && step > 0 && next < steps) fetch(next, last);
    last = position.stage;
    position.next();
  }
  ptx::wgmma_wait<0>();
  ptx::wgmma_touch(acc);
  add_bias(acc, bias, place.column, grid.n);
  store_registers<typename Form::Out, Shape::kTileN>(acc, c + place.index * grid.m * grid.n,
                                                     place.row + warp_group * 64, place.column, grid.m, grid.n);
#endif
}

cudaError_t launch_one(const Call& call) {
  return launch_block_a_tile<Shape>(call, [](auto form) { return &kernel<decltype(form)>; });
}

const Rung<launch_one> rung("wgmma");

}  // namespace treduce::matmul::wgmma
