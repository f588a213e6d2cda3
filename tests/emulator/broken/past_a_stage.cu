// An address in shared memory that a kernel computes lies past its array.
#include "../../../csrc/primitives/ptx/copy.cuh"
#include "broken.h"

namespace broken {

__global__ void past_a_stage(const float* x, int n, float* out) {
  float* slot = treduce::dynamic_shared<float>();
  const int t = threadIdx.x;
  treduce::ptx::copy_async<4>(treduce::ptx::shared_address(slot) + (t + 1) * 4, x + t % n);
  treduce::ptx::wait_copies<0>();
  if (t == 0) *out = slot[0];
}

const Kernel kernel_past_a_stage("past_a_stage", [](const float* x, int n, int threads, float* out) {
  return treduce::launch(&past_a_stage, one_block(threads, threads * sizeof(float)), x, n, out);
});

}  // namespace broken
