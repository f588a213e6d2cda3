// Half of each warp waits for the warp, the other half for the block.
#include "broken.h"

namespace broken {

__global__ void deadlock(const float* x, int n, float* out) {
  float* slot = treduce::dynamic_shared<float>();
  const int t = threadIdx.x;
  slot[t] = t < n ? x[t] : 0;
  if (t % 32 < 16) __syncwarp();
  __syncthreads();
  for (int s = blockDim.x / 2; s > 0; s /= 2) {
    if (t < s) slot[t] += slot[t + s];
    __syncthreads();
  }
  if (t == 0) *out = slot[0];
}

const Kernel kernel_deadlock("deadlock", [](const float* x, int n, int threads, float* out) {
  return treduce::launch(&deadlock, one_block(threads, threads * sizeof(float)), x, n, out);
});

}  // namespace broken
