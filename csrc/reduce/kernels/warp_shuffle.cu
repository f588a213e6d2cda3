// Idea: the lanes of a warp read each other's registers with __shfl_down_sync: no shared memory, no barrier. Five shuffles fold a
// warp; each warp then leaves one value in shared memory, and the first warp folds those.
//
// After:   two_pass_unrolled. Lanes are folded before warps, so this is another order of additions.
// Mapping: the grid-stride loop as before; then a tree by halves over the 32 lanes, then one over the T / 32 warps.
// Bound:   latency of the loads, as before. The tree costs almost nothing now.
// Next:    vectorized loads 16 bytes at a time, four times before the first is used.
// Source:  Justin Luitjens, Faster Parallel Reductions on Kepler (2014).
#include "../../primitives/shared.cuh"
#include "../../primitives/thread.cuh"
#include "../../primitives/warp.cuh"
#include "../rung.h"

namespace treduce::reduce::warp_shuffle {

template <class O, class In>
__global__ void __launch_bounds__(kMaxBlock) kernel(In x, int64_t n, Output<O> output) {
  using Acc = typename O::Acc;
  Acc value = O::identity();
  for (int64_t i = thread::global_index(); i < n; i += thread::grid_threads()) {
    value = O::combine(value, widen<Acc>(x[i]));
  }

  // Within a warp: in step s, lane t adds the value of lane t + s. After five steps lane 0 has the warp's value.
#pragma unroll
  for (int s = warp::kLanes / 2; s > 0; s /= 2) {
    value = O::combine(value, __shfl_down_sync(warp::kFullMask, value, s));
  }

  // Between warps: one slot a warp, and the only barrier. Then the first warp folds the slots in the same way.
  SHARED_ARRAY(Acc, of_warp, warp::kLanes);
  const int lane = threadIdx.x % warp::kLanes;
  const int warp = threadIdx.x / warp::kLanes;
  if (lane == 0) of_warp[warp] = value;
  __syncthreads();
  if (warp > 0) return;
  const int warps = blockDim.x / warp::kLanes;
  value = lane < warps ? of_warp[lane] : O::identity();
#pragma unroll
  for (int s = warp::kLanes / 2; s > 0; s /= 2) {
    value = O::combine(value, __shfl_down_sync(warp::kFullMask, value, s));
  }
  if (lane == 0) output.store(blockIdx.x, value);
}

struct Kernels {
  template <class O, class In>
  static auto pick(int /*block*/) {
    return &kernel<O, In>;
  }
};

const Rung<launch_ladder_passes<Kernels>> rung("warp_shuffle");

}  // namespace treduce::reduce::warp_shuffle
