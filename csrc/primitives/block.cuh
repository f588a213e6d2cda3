// Reductions within a block whose size is a multiple of 32.
#pragma once

#include "shared.cuh"
#include "warp.cuh"

namespace treduce::block {

// Each warp folds its lanes with shuffles, then the first warp folds one value a warp.
// Who calls: every thread of the block. Valid in: thread 0. Shared memory: 32 accumulators, static.
// Synchronises once, on the way in to the second step; before calling it again, __syncthreads().
template <class Op>
TREDUCE_DEVICE typename Op::Acc reduce(typename Op::Acc value) {
  using Acc = typename Op::Acc;
  SHARED_ARRAY(Acc, of_warp, warp::kLanes);
  const int lane = threadIdx.x % warp::kLanes;
  const int warp = threadIdx.x / warp::kLanes;
  value = warp::reduce<Op>(value);
  if (lane == 0) of_warp[warp] = value;
  __syncthreads();
  if (warp == 0) {
    const int warps = blockDim.x / warp::kLanes;
    value = warp::reduce<Op>(lane < warps ? of_warp[lane] : Op::identity());
  }
  return value;
}

// One block reduces `count` partial values: a loop with the block as its stride, then the tree above.
// Who calls: every thread of one block. Valid in: thread 0. `partials` may have been written by other blocks of the same
// launch, so they are read past the L1.
template <class Op>
TREDUCE_DEVICE typename Op::Acc reduce_partials(const typename Op::Acc* partials, int64_t count) {
  typename Op::Acc value = Op::identity();
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) value = Op::combine(value, __ldcg(partials + i));
  return reduce<Op>(value);
}

}  // namespace treduce::block
