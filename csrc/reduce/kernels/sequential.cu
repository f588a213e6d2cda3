// Idea: run the tree the other way round. In step s = T/2, T/4, ..., 1 the first s threads add the slot s further on: packed
// threads and consecutive addresses, so no divergence above a warp and no bank conflicts.
//
// After:   interleaved_strided. Other pairs meet, so this is another order of additions, with other bits.
// Mapping: thread t loads element blockIdx.x * T + t and owns slot t.
// Bound:   idle threads: half of them load one element and never add.
// Next:    interleaved_first_add lets every thread add while it loads, first with the old tree, so that the gain shows alone.
// Source:  Mark Harris, Optimizing Parallel Reduction in CUDA (2007), reduction 3.
#include "../../primitives/shared.cuh"
#include "../../primitives/thread.cuh"
#include "../rung.h"

namespace treduce::reduce::sequential {

template <class O, class In>
__global__ void __launch_bounds__(kMaxBlock) kernel(In x, int64_t n, Output<O> output) {
  using Acc = typename O::Acc;
  Acc* slot = dynamic_shared<Acc>();
  const int t = threadIdx.x;
  const int block = blockDim.x;
  const int64_t i = thread::global_index();

  slot[t] = i < n ? widen<Acc>(x[i]) : O::identity();
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

const Rung<launch_ladder_passes<Kernels>> rung("sequential");

}  // namespace treduce::reduce::sequential
