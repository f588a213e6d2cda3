// Idea: the first warp finishes the tree alone, as in last_warp.
//
// After:   two_pass; the same additions, hence the same bits.
// Mapping: as before.
// Bound:   latency of the loads, as before: with many elements a thread, the tree is a small part of the time.
// Next:    two_pass_unrolled unrolls the rest of the tree.
// Source:  Nicholas Wilt, The CUDA Handbook (2013), Reduction2.
#include "../../primitives/shared.cuh"
#include "../../primitives/thread.cuh"
#include "../../primitives/warp.cuh"
#include "../rung.h"

namespace treduce::reduce::two_pass_last_warp {

template <class O, class In>
__global__ void __launch_bounds__(kMaxBlock) kernel(In x, int64_t n, Output<O> output) {
  using Acc = typename O::Acc;
  Acc* slot = dynamic_shared<Acc>();
  const int t = threadIdx.x;
  const int block = blockDim.x;

  Acc value = O::identity();
  for (int64_t i = thread::global_index(); i < n; i += thread::grid_threads()) {
    value = O::combine(value, widen<Acc>(x[i]));
  }
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

const Rung<launch_ladder_passes<Kernels>> rung("two_pass_last_warp");

}  // namespace treduce::reduce::two_pass_last_warp
