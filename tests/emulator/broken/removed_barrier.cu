// No barrier between the steps of the tree: a thread may add a slot that has not its value yet.
#include "broken.h"

namespace broken {

__global__ void removed_barrier(const float* x, int n, float* out) {
  float* slot = treduce::dynamic_shared<float>();
  const int t = threadIdx.x;
  slot[t] = t < n ? x[t] : 0;
  __syncthreads();
  for (int s = blockDim.x / 2; s > 0; s /= 2) {
    if (t < s) slot[t] += slot[t + s];
    // __syncthreads() belongs here
  }
  if (t == 0) *out = slot[0];
}

const Kernel kernel_removed_barrier("removed_barrier", [](const float* x, int n, int threads, float* out) {
  return treduce::launch(&removed_barrier, one_block(threads, threads * sizeof(float)), x, n, out);
});

}  // namespace broken
