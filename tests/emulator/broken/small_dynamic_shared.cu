// The launch asks for one slot less than the block has threads.
#include "broken.h"

namespace broken {

__global__ void small_dynamic_shared(const float* x, int n, float* out) {
  float* slot = treduce::dynamic_shared<float>();
  const int t = threadIdx.x;
  slot[t] = t < n ? x[t] : 0;
  __syncthreads();
  for (int s = blockDim.x / 2; s > 0; s /= 2) {
    if (t < s) slot[t] += slot[t + s];
    __syncthreads();
  }
  if (t == 0) *out = slot[0];
}

const Kernel kernel_small_dynamic_shared("small_dynamic_shared", [](const float* x, int n, int threads, float* out) {
  return treduce::launch(&small_dynamic_shared, one_block(threads, (threads - 1) * sizeof(float)), x, n, out);
});

}  // namespace broken
