// Idea: a fixed number of blocks, whatever the length. Each thread walks the array with the grid as its stride and adds in a
// register; then comes the tree. A second launch, one block of the same kernel, adds the partials.
//
// After:   unrolled and the rungs before it, whose number of blocks grows with the length. The tree is again that of sequential.
// Mapping: thread g of G * T adds elements g, g + GT, g + 2GT, ...: coalesced in every iteration. One partial a block.
// Bound:   latency: loads of one element, four of which the compiler keeps in flight for floats. The tree's cost is spread over many
//          elements.
// Next:    two_pass_last_warp removes the barriers of the tree's last steps.
// Source:  Justin Luitjens, Faster Parallel Reductions on Kepler (2014), for the grid-stride loop; Nicholas Wilt, The CUDA
//          Handbook (2013), Reduction1.
#include "../../primitives/shared.cuh"
#include "../../primitives/thread.cuh"
#include "../rung.h"

namespace treduce::reduce::two_pass {

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

const Rung<launch_ladder_passes<Kernels>> rung("two_pass");

}  // namespace treduce::reduce::two_pass
