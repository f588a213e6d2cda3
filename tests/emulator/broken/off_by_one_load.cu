// `<=` where `<` belongs: with n threads or fewer in the block nobody notices, otherwise one thread reads x[n].
#include "broken.h"

namespace broken {

__global__ void off_by_one_load(const float* x, int n, float* out) {
  float* slot = treduce::dynamic_shared<float>();
  const int t = threadIdx.x;
  slot[t] = t <= n ? x[t] : 0;
  __syncthreads();
  for (int s = blockDim.x / 2; s > 0; s /= 2) {
    if (t < s) slot[t] += slot[t + s];
    __syncthreads();
  }
  if (t == 0) *out = slot[0];
}

const Kernel kernel_off_by_one_load("off_by_one_load", [](const float* x, int n, int threads, float* out) {
  return treduce::launch(&off_by_one_load, one_block(threads, threads * sizeof(float)), x, n, out);
});

}  // namespace broken
