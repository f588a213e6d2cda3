// The kernel of row_cluster.cu, which says what it does. Compiled once an op, in ../ops.
#pragma once

#include "../held.cuh"

namespace treduce::rows::row_cluster {

template <template <class> class RowOp, class Source, int kSize>
__global__ void __launch_bounds__((kThreads<RowOp, Source, kSize>),
                                  (Source::kAdjacent ? kResident<RowOp, Source, kSize> : 1))
    kernel(TREDUCE_GRID_CONSTANT Parameters<Source> p, int warps, int log2_blocks) {
  using Rows = Held<RowOp, Source, kSize, Pairwise::kStripes, 0, false>;  // quick code would spill
  const int blocks = 1 << log2_blocks;
  const int rank = treduce::cluster::rank();
  const int thread = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t first = (int64_t{rank} * warps + warp) * Pairwise::kChunk;
  const int64_t step = gridDim.x >> log2_blocks;
  int turn = 0;
  ptx::wait_for_launch_before();
  for (int64_t row = blockIdx.x >> log2_blocks; row < p.problem.rows; row += step) {
    const typename Rows::Place place(p.problem, row, 0, first, thread, kWarp);
    Rows rows(p, place, {p, place});
    allow_launch_after();
    rows.run(p, [&](auto fold, auto value) {
      using Fold = decltype(fold);
      auto* const of_block = reinterpret_cast<typename Fold::Acc*>(&slots()->of_block[turn]);
      value = fold_blocks<Fold>(fold_warps<Fold>(value, warps, turn), blocks, of_block);
      turn ^= 1;
      return value;
    });
    rows.store(p, rank == 0 && warp == 0);
  }
  treduce::cluster::sync();  // nobody leaves while its shared memory is read
}

template <template <class> class RowOp>
cudaError_t launch_op(Tag<RowOp>, const Call& call) {
  return dispatch_source<Reads::adjacent>(call, [&](auto type, auto size) {
    using Source = typename decltype(type)::type;
    return launch(&kernel<RowOp, Source, decltype(size)::value>, call.shape(), parameters<Source>(call),
                  call.prepared.warps, log2_of(call.prepared.launches[0].cluster));
  });
}

}  // namespace treduce::rows::row_cluster
