// Two reductions through the same shared slots with no barrier between them: a fast warp writes its second value while the
// first warp still reads the first ones.
#include "../../../csrc/primitives/block.cuh"
#include "../../../csrc/primitives/functors.h"
#include "broken.h"

namespace broken {

__global__ void reused_slot(const float* x, int n, float* out) {
  using Sum = treduce::Sum<float>;
  const int t = threadIdx.x;
  float sum = 0;
  for (int round = 0; round < 2; ++round) {
    sum += treduce::block::reduce<Sum>(t < n && t % 2 == round ? x[t] : 0);
    // __syncthreads() belongs here
  }
  if (t == 0) *out = sum;
}

const Kernel kernel_reused_slot("reused_slot", [](const float* x, int n, int threads, float* out) {
  return treduce::launch(&reused_slot, one_block(threads, 0), x, n, out);
});

}  // namespace broken
