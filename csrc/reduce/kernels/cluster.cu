// Idea: the eight blocks of a cluster are scheduled together and can read each other's shared memory. They fold their values
// there, and one partial a cluster goes through global memory: none where one cluster covers the input.
//
// After:   cooperative, which waited for the whole grid, through global memory.
// Mapping: as vectorized up to the block's value, which stays in shared memory. After a barrier of the cluster, the first warp of
//          rank 0 reads the eight values, folds them by halves and writes one partial. The last cluster to finish adds the
//          partials, as in single_pass.
// Bound:   memory bandwidth; for small inputs the launch and the cluster's barrier.
// Next:    thread begins the second course: reductions along dims, which share one order of additions.
// Note:    compute capability 9.0 and later. An order of additions of its own: the tree has one more level.
// Source:  NVIDIA, CUDA Programming Guide, thread block clusters and distributed shared memory.
#include "../../primitives/block.cuh"
#include "../../primitives/cluster.cuh"
#include "../../primitives/grid.cuh"
#include "../../primitives/thread.cuh"
#include "../rung.h"

namespace treduce::reduce::cluster {

template <class O, class In>
__global__ void __launch_bounds__(kMaxBlock)
    kernel(In x, int64_t n, typename O::Acc* partials, unsigned* counter, Result result) {
  using Acc = typename O::Acc;
  SHARED_ARRAY(Acc, mine, 1);
  Acc value = block::reduce<O>(thread::reduce_vectors<O>(x, n, blockIdx.x, gridDim.x));
  if (threadIdx.x == 0) mine[0] = value;
  treduce::cluster::sync();
  const bool leader = treduce::cluster::rank() == 0;
  if (leader && threadIdx.x < warp::kLanes) {
    value = *treduce::cluster::shared_of(mine, threadIdx.x % kClusterBlocks);
    value = warp::reduce<O, kClusterBlocks>(value);
  }
  treduce::cluster::sync();  // nobody leaves while its shared memory is read
  if (!leader) return;

  const unsigned clusters = gridDim.x / kClusterBlocks;
  if (clusters == 1) {
    if (threadIdx.x == 0) result.store<O>(value);
    return;
  }
  if (threadIdx.x == 0) partials[blockIdx.x / kClusterBlocks] = value;
  if (!grid::arrive_last(counter, clusters)) return;
  value = block::reduce_partials<O>(partials, clusters);
  if (threadIdx.x == 0) result.store<O>(value);
}

cudaError_t launch_one(const Call& call) {
  return dispatch_op(call, [&](auto op, auto x) {
    using O = decltype(op);
    using In = decltype(x);
    return launch(&kernel<O, In>, call.shape(), x, call.request.geometry.length,
                  call.region<typename O::Acc>("partials"), call.counter, call.result);
  });
}

const Rung<launch_one> rung("cluster");

}  // namespace treduce::reduce::cluster
