// Idea: the lanes of a warp read each other's registers. No shared memory, no barrier: five shuffles fold a warp, one slot a
// warp carries its value over, and the first warp folds those.
//
// After:   two_pass_unrolled. Lanes are folded before warps, so this is another order of additions.
// Mapping: the grid-stride loop as before; then a tree by halves over the 32 lanes, then one over the T / 32 warps.
// Bound:   latency of 4-byte loads; the tree now costs almost nothing.
// Next:    vectorized loads 16 bytes at a time.
// Source:  Justin Luitjens, Faster Parallel Reductions on Kepler (2014).
#include "../../primitives/block.cuh"
#include "../../primitives/thread.cuh"
#include "../rung.h"

namespace treduce::reduce::warp_shuffle {

template <class O, class In>
__global__ void __launch_bounds__(kMaxBlock) kernel(const In* x, int64_t n, Output<O> output) {
  using Acc = typename O::Acc;
  Acc value = O::identity();
  for (int64_t i = thread::global_index(); i < n; i += thread::grid_threads()) {
    value = O::combine(value, widen<Acc>(x[i]));
  }
  value = block::reduce<O>(value);
  if (threadIdx.x == 0) output.store(blockIdx.x, value);
}

struct Kernels : NoDynamicShared {
  template <class O, class In>
  static auto pick(int /*block*/) {
    return &kernel<O, In>;
  }
};

const Rung<launch_ladder_passes<Kernels>> rung("warp_shuffle");

}  // namespace treduce::reduce::warp_shuffle
