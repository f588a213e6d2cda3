// Idea: once 64 values are left, one warp finishes alone, with __syncwarp in place of barriers of the block.
//
// After:   first_add; the same additions, hence the same bits.
// Mapping: as before; the first warp does the last six steps.
// Bound:   the loop: its counter, branch and address arithmetic outnumber the additions.
// Next:    unrolled removes the loop by making the block size a template argument.
// Source:  Mark Harris, Optimizing Parallel Reduction in CUDA (2007), reduction 5; NVIDIA, CUDA Programming Guide, independent
//          thread scheduling, for __syncwarp.
#include "../../primitives/shared.cuh"
#include "../../primitives/thread.cuh"
#include "../../primitives/warp.cuh"
#include "../rung.h"

namespace treduce::reduce::last_warp {

template <class O, class In>
__global__ void __launch_bounds__(kMaxBlock) kernel(In x, int64_t n, Output<O> output) {
  using Acc = typename O::Acc;
  Acc* slot = dynamic_shared<Acc>();
  const int t = threadIdx.x;
  const int block = blockDim.x;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * 2 * block + t;

  Acc value = i < n ? widen<Acc>(x[i]) : O::identity();
  if (i + block < n) value = O::combine(value, widen<Acc>(x[i + block]));
  slot[t] = value;
  __syncthreads();
  for (int s = block / 2; s > warp::kLanes; s /= 2) {
    if (t < s) slot[t] = O::combine(slot[t], slot[t + s]);
    __syncthreads();
  }
  if (t < warp::kLanes) {
    // Since Volta the lanes of a warp may drift apart, so __syncwarp stands between reading a slot and writing it; the value
    // waits in a register. The `volatile` version of older books is a race.
    Acc value = slot[t];
    for (int s = min(warp::kLanes, block / 2); s > 0; s /= 2) {
      if (t < s) value = O::combine(value, slot[t + s]);
      __syncwarp();
      if (t < s) slot[t] = value;
      __syncwarp();
    }
  }
  if (t == 0) output.store(blockIdx.x, slot[0]);
}

struct Kernels {
  template <class O, class In>
  static auto pick(int /*block*/) {
    return &kernel<O, In>;
  }
};

const Rung<launch_ladder_passes<Kernels>> rung("last_warp");

}  // namespace treduce::reduce::last_warp
