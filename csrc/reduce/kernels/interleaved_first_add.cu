// Idea: each thread loads two elements and adds them on the way into shared memory: half the blocks do the same work, and every
// thread adds at least once.
//
// After:   interleaved_modulo, whose tree this keeps: the difference between the two is the gain of the second load alone.
// Mapping: thread t of block b loads elements 2bT + t and 2bT + t + T, both coalesced; then the modulo tree.
// Bound:   the modulo and the divergence of that tree.
// Next:    first_add combines the two loads with the tree of sequential.
// Source:  Mark Harris, Optimizing Parallel Reduction in CUDA (2007).
#include "../../primitives/shared.cuh"
#include "../../primitives/thread.cuh"
#include "../rung.h"

namespace treduce::reduce::interleaved_first_add {

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

const Rung<launch_ladder_passes<Kernels>> rung("interleaved_first_add");

}  // namespace treduce::reduce::interleaved_first_add
