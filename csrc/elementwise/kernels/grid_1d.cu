// Idea: one thread an element. A thread computes its element from its block and its place in the block.
//
// Mapping: element i = blockIdx.x * blockDim.x + threadIdx.x, in 64 bits; threads from n on do nothing.
// Bound:   memory: two reads and a write for one addition. The 32 lanes of a warp access 32 neighbours: coalesced.
// Next:    grid_2d numbers its blocks in a rectangle.
// Source:  NVIDIA, CUDA Programming Guide, thread hierarchy.
#include "../../primitives/thread.cuh"
#include "../rung.h"

namespace treduce::elementwise::grid_1d {

template <class T>
__global__ void __launch_bounds__(kMaxBlock) kernel(const T* a, const T* b, T* c, int64_t n) {
  const int64_t i = thread::global_index();
  if (i < n) c[i] = add(a[i], b[i]);
}

cudaError_t launch_all(const Call& call) {
  return launch_parts(call, [](const Launch& shape, auto* a, auto* b, auto* c, int64_t n) {
    return launch(&kernel<std::decay_t<decltype(*c)>>, shape, a, b, c, n);
  });
}

const Rung<launch_all> rung("grid_1d");

}  // namespace treduce::elementwise::grid_1d
