// Threads without an element leave at once; the others wait for them.
#include "broken.h"

namespace broken {

__global__ void skipped_barrier(const float* x, int n, float* out) {
  float* slot = treduce::dynamic_shared<float>();
  const int t = threadIdx.x;
  slot[t] = 0;
  if (t >= n) return;
  slot[t] = x[t];
  __syncthreads();
  for (int s = blockDim.x / 2; s > 0; s /= 2) {
    if (t < s) slot[t] += slot[t + s];
    __syncthreads();
  }
  if (t == 0) *out = slot[0];
}

const Kernel kernel_skipped_barrier("skipped_barrier", [](const float* x, int n, int threads, float* out) {
  return treduce::launch(&skipped_barrier, one_block(threads, threads * sizeof(float)), x, n, out);
});

}  // namespace broken
