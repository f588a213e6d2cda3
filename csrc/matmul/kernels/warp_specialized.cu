// Idea: warps with one task each. A producer asks for tiles as soon as a stage is free; two consumers, warp groups, do
// nothing but multiply. They meet only at barriers in shared memory, never all at once.
//
// After:   wgmma, where the thread that asked for tiles had to meet all others first.
// Mapping: a block a tile of 128 x 256 outputs: consumer g holds rows 64 g to 64 g + 63 of all 256 columns in 128 registers
//          a thread, more than an even share. The producer's warp group hands registers back, the consumers take them.
//          Each stage has two barriers: full counts bytes, empty counts the warps that are done with it.
// Bound:   the ends of a block: nothing is multiplied while the first tiles come and the results leave, and only one
//          block fits a multiprocessor. Blocks beside each other ask the L2 for the same tiles.
// Next:    specialized_f64 hands out work likewise for float64, whose tensor cores read registers; persistent keeps the block
//          and starts on the next tile's copies while the results leave.
// Source:  M. Bauer, H. Cook, B. Khailany, CudaDMA: Optimizing GPU memory bandwidth via warp specialization;
//          V. Thakkar et al., CUTLASS 3.
#include "../epilogue.cuh"
#include "../hopper.cuh"

namespace treduce::matmul::warp_specialized {

using namespace hopper;

struct Shape {
  static constexpr int kTileM = kShape.tile_m, kTileN = kShape.tile_n, kStages = kShape.stages;
  static constexpr int kConsumers = kTileM / 64;
  static constexpr int kThreads = kShape.threads;
  static constexpr int kStageBytes = kShape.stage_bytes;
  // Of the 168 registers a thread that the launch gives, rounded to what can be asked for.
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
};

template <class Form>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    kernel(TREDUCE_GRID_CONSTANT CUtensorMap map_a, TREDUCE_GRID_CONSTANT CUtensorMap map_b, Grid grid,
           Broadcast broadcast_a, Broadcast broadcast_b, typename Form::Out* c, const typename Form::Out* bias) {
#ifdef TREDUCE_SM90A
  using T = typename Form::T;
  using TileA = Tile<T, Shape::kTileM, Form::kAAlongK>;
  using TileB = Tile<T, Shape::kTileN, Form::kBAlongK>;
  SHARED(Ring<Shape::kStages>, ring);
  char* const stages = aligned_tiles(dynamic_shared<char>());
  const int warp_group = threadIdx.x / kWarpGroup;
  const int steps = (grid.depth + kDepth<T> - 1) / kDepth<T>;
  const auto place = grid.place(blockIdx.x, Shape::kTileM, Shape::kTileN);
  if (threadIdx.x == 0) ring.init(Shape::kConsumers * 4);
  __syncthreads();

  RingPosition<Shape::kStages> position;
  // ---- producer ----
  if (warp_group == 0) {
    ptx::release_registers<Shape::kProducerRegisters>();
    if (threadIdx.x != 0) return;
    const int2 batch_a = broadcast_a.of(place.batch), batch_b = broadcast_b.of(place.batch);
    for (int step = 0; step < steps; ++step, position.next()) {
      ptx::mbarrier_wait(ring.empty + position.stage, position.parity ^ 1);  // the first round waits for nobody
      uint64_t* const full = ring.full + position.stage;
      char* const tile_a = stages + position.stage * Shape::kStageBytes;
      ptx::mbarrier_arrive_expect(full, Shape::kStageBytes);
      TileA::load(tile_a, &map_a, place.row, step * kDepth<T>, batch_a, full);
      TileB::load(tile_a + TileA::kBytes, &map_b, place.column, step * kDepth<T>, batch_b, full);
    }
  } else {
    // ---- consumers ----
    ptx::take_registers<Shape::kConsumerRegisters>();
    const int consumer = warp_group - 1;
    const bool arrives = threadIdx.x % 32 == 0;  // for its warp
    Acc<T> acc[Shape::kTileN / 2];
    int last = 0;  // the stage of the step before
    for (int step = 0; step < steps; ++step, position.next()) {
      ptx::mbarrier_wait(ring.full + position.stage, position.parity);
      const char* const tile_a = stages + position.stage * Shape::kStageBytes;
      multiply_stage<TileA, TileB>(acc, tile_a, tile_a + TileA::kBytes, consumer * 64, step);
      ptx::wgmma_wait<1>();
      if (arrives && step > 0) ptx::mbarrier_arrive(ring.empty + last);
      last = position.stage;
    }
    ptx::wgmma_wait<0>();
    ptx::wgmma_touch(acc);

    // ---- epilogue ----
    add_bias(acc, bias, place.column, grid.n);
    store_registers<typename Form::Out, Shape::kTileN>(acc, c + place.index * grid.m * grid.n,
                                                       place.row + consumer * 64, place.column, grid.m, grid.n);
  }
#endif
}

cudaError_t launch_one(const Call& call) {
  return launch_block_a_tile<Shape>(call, [](auto form) { return &kernel<decltype(form)>; });
}

const Rung<launch_one> rung("warp_specialized");

}  // namespace treduce::matmul::warp_specialized
