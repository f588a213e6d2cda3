// Idea: blocks in a rectangle. The first chips allowed 65535 blocks a dimension, so a long array needed two; y still has that
// limit.
//
// After:   grid_1d; the same element a thread, another way to count the blocks.
// Mapping: block (x, y) has number y * gridDim.x + x (row-major); then as grid_1d. The host makes the rectangle as narrow as its
//          height allows, so that fewer blocks than it has rows are idle.
// Bound:   memory, as grid_1d; the index costs one multiplication more.
// Next:    vectorized moves 16 bytes an instruction.
// Source:  NVIDIA, CUDA Programming Guide, thread hierarchy.
#include "../../primitives/thread.cuh"
#include "../rung.h"

namespace treduce::elementwise::grid_2d {

template <class T>
__global__ void __launch_bounds__(kMaxBlock) kernel(const T* a, const T* b, T* c, int64_t n) {
  const int64_t block = static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
  const int64_t i = block * blockDim.x + threadIdx.x;
  if (i < n) c[i] = add(a[i], b[i]);
}

cudaError_t launch_all(const Call& call) {
  return launch_parts(call, [](const Launch& shape, auto* a, auto* b, auto* c, int64_t n) {
    return launch(&kernel<std::decay_t<decltype(*c)>>, shape, a, b, c, n);
  });
}

const Rung<launch_all> rung("grid_2d");

}  // namespace treduce::elementwise::grid_2d
