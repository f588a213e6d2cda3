// The tail as it was written before Volta: a warp does not run in lockstep, so its lanes need __syncwarp between the steps.
#include "broken.h"

namespace broken {

__global__ void removed_warp_barrier(const float* x, int n, float* out) {
  volatile float* slot = treduce::dynamic_shared<float>();
  const int t = threadIdx.x;
  slot[t] = t < n ? x[t] : 0;
  __syncthreads();
  for (int s = blockDim.x / 2; s > 32; s /= 2) {
    if (t < s) slot[t] = slot[t] + slot[t + s];
    __syncthreads();
  }
  if (t < 32) {
    for (int s = 32; s > 0; s /= 2) slot[t] = slot[t] + slot[t + s];
  }
  if (t == 0) *out = slot[0];
}

const Kernel kernel_removed_warp_barrier("removed_warp_barrier", [](const float* x, int n, int threads, float* out) {
  return treduce::launch(&removed_warp_barrier, one_block(threads, threads * sizeof(float)), x, n, out);
});

}  // namespace broken
