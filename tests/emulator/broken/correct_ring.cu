// The control of what is asynchronous: the ring as it should be.
#include "ring.cuh"

namespace broken {

__global__ void correct_ring(const CUtensorMap x, int n, float* out) { sum_through_ring<false>(x, n, out); }

const Kernel kernel_correct_ring("correct_ring", [](const float* x, int n, int threads, float* out) {
  return launch_with_tensor(&correct_ring, x, n, threads, out);
});

}  // namespace broken
