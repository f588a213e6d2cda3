// 64 slots for blocks of 128 threads.
#include "broken.h"

namespace broken {

__global__ void small_static_shared(const float* x, int n, float* out) {
  SHARED_ARRAY(float, array, 64);
  float* slot = array;
  const int t = threadIdx.x;
  slot[t] = t < n ? x[t] : 0;
  __syncthreads();
  for (int s = blockDim.x / 2; s > 0; s /= 2) {
    if (t < s) slot[t] += slot[t + s];
    __syncthreads();
  }
  if (t == 0) *out = slot[0];
}

const Kernel kernel_small_static_shared("small_static_shared", [](const float* x, int n, int threads, float* out) {
  return treduce::launch(&small_static_shared, one_block(threads, 0), x, n, out);
});

}  // namespace broken
