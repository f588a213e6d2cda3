// Idea: copy the block's elements to shared memory once, and run the tree there.
//
// After:   global_memory; the same additions, hence the same bits, without the trips through L2.
// Mapping: thread t loads element blockIdx.x * T + t into slot t. In step s = 1, 2, 4, ... the threads with t % 2s == 0 add slot
//          t + s, so neighbours meet first. A block writes one partial; the same kernel runs on the partials until one is left.
// Bound:   instructions. The active threads are spread over all warps, so every warp executes every step, and `%` by a number
//          that is known only at run time takes some twenty instructions.
// Next:    interleaved_bitmask replaces the modulo.
// Source:  Mark Harris, Optimizing Parallel Reduction in CUDA (2007), reduction 1.
#include "../../primitives/shared.cuh"
#include "../../primitives/thread.cuh"
#include "../rung.h"

namespace treduce::reduce::interleaved_modulo {

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
    if (t % (2 * s) == 0) slot[t] = O::combine(slot[t], slot[t + s]);
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

const Rung<launch_ladder_passes<Kernels>> rung("interleaved_modulo");

}  // namespace treduce::reduce::interleaved_modulo
