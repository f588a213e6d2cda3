// Idea: 2s is a power of two, so `t % 2s == 0` is `(t & (2s - 1)) == 0`: one instruction in place of some twenty.
//
// After:   interleaved_modulo; the same threads do the same additions, hence the same bits.
// Mapping: as before: thread t owns slot t, and in step s = 1, 2, 4, ... every 2s-th thread adds.
// Bound:   divergence. With s = 1 half of each warp's lanes are active, with s = 16 one lane, and all warps execute every step.
// Next:    interleaved_strided packs the active threads into the first warps.
// Source:  Mark Harris, Optimizing Parallel Reduction in CUDA (2007).
#include "../../primitives/shared.cuh"
#include "../../primitives/thread.cuh"
#include "../rung.h"

namespace treduce::reduce::interleaved_bitmask {

template <class O, class In>
__global__ void __launch_bounds__(kMaxBlock) kernel(In x, int64_t n, Output<O> output) {
  using Acc = typename O::Acc;
  Acc* slot = dynamic_shared<Acc>();
  const int t = threadIdx.x;
  const int block = blockDim.x;
  const int64_t i = thread::global_index();

  slot[t] = i < n ? widen<Acc>(x[i]) : O::identity();
  __syncthreads();
  for (int s = 1; s < block; s *= 2) {
    if ((t & (2 * s - 1)) == 0) slot[t] = O::combine(slot[t], slot[t + s]);
    __syncthreads();
  }
  if (t == 0) output.store(blockIdx.x, slot[0]);
}

struct Kernels {
  template <class O, class In>
  static auto pick(int /*block*/) {
    return &kernel<O, In>;
  }
};

const Rung<launch_ladder_passes<Kernels>> rung("interleaved_bitmask");

}  // namespace treduce::reduce::interleaved_bitmask
