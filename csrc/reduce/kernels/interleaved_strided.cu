// Idea: the first threads do the work: in step s, thread t adds the pair of slots at 2st. Whole warps fall idle as the tree
// narrows, and only the last active warp diverges.
//
// After:   interleaved_bitmask; the same pairs meet, hence the same bits. Only who adds them differs.
// Mapping: thread t loads element t of the block; in step s it adds slot 2st + s to slot 2st.
// Bound:   bank conflicts in shared memory. The lanes of a warp access slots 2s apart: with s = 16 all of them lie in one of the
//          32 banks, which serves them one after another.
// Next:    sequential packs the addresses as well as the threads.
// Source:  Mark Harris, Optimizing Parallel Reduction in CUDA (2007), reduction 2.
#include "../../primitives/shared.cuh"
#include "../../primitives/thread.cuh"
#include "../rung.h"

namespace treduce::reduce::interleaved_strided {

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
    const int left = 2 * s * t;
    if (left < block) slot[left] = O::combine(slot[left], slot[left + s]);
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

const Rung<launch_ladder_passes<Kernels>> rung("interleaved_strided");

}  // namespace treduce::reduce::interleaved_strided
