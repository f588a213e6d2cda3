// A barrier in shared memory expects every thread, and the last one does not arrive.
#include "../../../csrc/primitives/ptx/mbarrier.cuh"
#include "broken.h"

namespace broken {

__global__ void missing_arrival(const float* x, int n, float* out) {
  using namespace treduce;
  SHARED(uint64_t, barrier);
  float* slot = dynamic_shared<float>();
  const int t = threadIdx.x;
  if (t == 0) ptx::mbarrier_init(&barrier, blockDim.x);
  __syncthreads();
  slot[t] = t < n ? x[t] : 0;
  if (t + 1 < static_cast<int>(blockDim.x)) ptx::mbarrier_arrive(&barrier);
  if (t > 0) return;
  ptx::mbarrier_wait(&barrier, 0);
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += slot[i];
  *out = sum;
}

const Kernel kernel_missing_arrival("missing_arrival", [](const float* x, int n, int threads, float* out) {
  return treduce::launch(&missing_arrival, one_block(threads, threads * sizeof(float)), x, n, out);
});

}  // namespace broken
