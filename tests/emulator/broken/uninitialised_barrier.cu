// Threads arrive at a barrier in shared memory that nobody has initialised.
#include "../../../csrc/primitives/ptx/mbarrier.cuh"
#include "broken.h"

namespace broken {

__global__ void uninitialised_barrier(const float* x, int n, float* out) {
  SHARED(uint64_t, barrier);
  treduce::ptx::mbarrier_arrive(&barrier);
  treduce::ptx::mbarrier_wait(&barrier, 0);
  if (threadIdx.x == 0) *out = x[n - 1];
}

const Kernel kernel_uninitialised_barrier("uninitialised_barrier", [](const float* x, int n, int threads, float* out) {
  return treduce::launch(&uninitialised_barrier, one_block(threads, 0), x, n, out);
});

}  // namespace broken
