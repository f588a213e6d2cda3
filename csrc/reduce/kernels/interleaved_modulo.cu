// Idea: the block copies its elements to shared memory once, and the tree of additions runs there instead of in DRAM.
//
// After:   global_memory, whose every step was a trip through L2.
// Mapping: thread t loads element blockIdx.x * T + t. In step s = 1, 2, 4, ... the threads with t % 2s == 0 add the value
//          that lies s further on, so neighbours are added first. One partial a block; the same kernel runs on the partials
//          until one is left.
// Bound:   instructions. The working threads are scattered over all warps, so every warp walks both sides of the branch in
//          every step, and `%` with a run-time divisor costs some twenty instructions.
// Next:    interleaved_bitmask replaces the modulo.
// Source:  Mark Harris, Optimizing Parallel Reduction in CUDA (2007), reduction 1.
#include "../../primitives/shared.cuh"
#include "../../primitives/thread.cuh"
#include "../rung.h"

namespace treduce::reduce::interleaved_modulo {

template <class O, class In>
__global__ void __launch_bounds__(kMaxBlock) kernel(const In* x, int64_t n, Output<O> output) {
  using Acc = typename O::Acc;
  Acc* slot = dynamic_shared<Acc>();
  const int t = threadIdx.x;
  const int block = blockDim.x;
  const int64_t i = thread::global_index();

  slot[t] = i < n ? widen<Acc>(x[i]) : O::identity();
  __syncthreads();
  for (int s = 1; s < block; s *= 2) {
    if (t % (2 * s) == 0) slot[t] = O::combine(slot[t], slot[t + s]);
    __syncthreads();
  }
  if (t == 0) output.store(blockIdx.x, slot[0]);
}

struct Kernels : OneSlotAThread {
  template <class O, class In>
  static auto pick(int /*block*/) {
    return &kernel<O, In>;
  }
};

const Rung<launch_ladder_passes<Kernels>> rung("interleaved_modulo");

}  // namespace treduce::reduce::interleaved_modulo
