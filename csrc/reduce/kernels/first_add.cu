// Idea: two loads a thread, and the tree of sequential: half the blocks, and no thread that only loads.
//
// After:   interleaved_first_add for the loads, sequential for the tree. An order of additions of its own.
// Mapping: thread t of block b loads elements 2bT + t and 2bT + t + T, adds them, and owns slot t.
// Bound:   instructions: each step of the tree costs a loop test, an address, a branch and a barrier. In the last six steps the
//          barrier stops the whole block for a single warp.
// Next:    last_warp takes that warp out of the barriers.
// Source:  Mark Harris, Optimizing Parallel Reduction in CUDA (2007), reduction 4.
#include "../../primitives/shared.cuh"
#include "../../primitives/thread.cuh"
#include "../rung.h"

namespace treduce::reduce::first_add {

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
  for (int s = block / 2; s > 0; s /= 2) {
    if (t < s) slot[t] = O::combine(slot[t], slot[t + s]);
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

const Rung<launch_ladder_passes<Kernels>> rung("first_add");

}  // namespace treduce::reduce::first_add
