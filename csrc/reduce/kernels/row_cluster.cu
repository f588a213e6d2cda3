// Idea: the eight blocks of a cluster fold their nodes through distributed shared memory. No partials, no counter, no second way
// through memory: for a row of tens of thousands of elements that is the time that is left.
//
// After:   row_block.
// Mapping: cluster c reduces row c; the block of rank r folds chunks r * span to (r + 1) * span - 1. Rank 0 folds the eight
//          nodes.
// Bound:   latency: one trip to memory, one barrier of the cluster.
// Note:    compute capability 9.0 and later. The bits are those of row_block.
// Source:  NVIDIA, CUDA Programming Guide, thread block clusters and distributed shared memory.
#include "../../primitives/cluster.cuh"
#include "../rows.cuh"

namespace treduce::reduce::row_cluster {

template <class O, int kSize, class Source, class Layout>
__global__ void __launch_bounds__(512) kernel(TREDUCE_GRID_CONSTANT Source x, TREDUCE_GRID_CONSTANT Layout layout,
                                              int64_t outputs, int64_t span, int64_t length, Result result) {
  using Acc = typename O::Acc;
  SHARED_ARRAY(Acc, mine, 1);
  const int rank = treduce::cluster::rank();
  const int64_t chunks = Pairwise(length).chunks();
  const int64_t first = rank * span;
  const int64_t count = chunks - first < span ? (chunks > first ? chunks - first : 0) : span;
  for (int64_t o = blockIdx.x / kClusterBlocks; o < outputs; o += gridDim.x / kClusterBlocks) {
    Acc value = rows::span<O, kSize>(x, layout, layout.row(o), first, count, length);
    if (threadIdx.x == 0) mine[0] = value;
    treduce::cluster::sync();
    if (rank == 0 && threadIdx.x < warp::kLanes) {
      value = *treduce::cluster::shared_of(mine, threadIdx.x % kClusterBlocks);
      value = warp::reduce_neighbours<O>(value, kClusterBlocks);
      if (threadIdx.x == 0) result.store<O>(value, layout.out(o));
    }
    treduce::cluster::sync();  // nobody leaves, or writes again, while its shared memory is read
  }
}

cudaError_t launch_one(const Call& call) {
  return rows::dispatch(call, [&](auto op, auto source, auto size, auto layout) {
    return launch(&kernel<decltype(op), size.value, decltype(source), decltype(layout)>, rows::shape_of(call), source,
                  layout, call.geometry->outputs, call.schedule->span, call.geometry->length, call.result);
  });
}

const Rung<launch_one> rung("row_cluster");

}  // namespace treduce::reduce::row_cluster
