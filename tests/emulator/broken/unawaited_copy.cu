// Copies to shared memory are read behind a barrier of the block, but nobody has waited for them.
#include "../../../csrc/primitives/ptx/copy.cuh"
#include "broken.h"

namespace broken {

__global__ void unawaited_copy(const float* x, int n, float* out) {
  float* slot = treduce::dynamic_shared<float>();
  const int t = threadIdx.x;
  if (t < n) treduce::ptx::copy_async<4>(treduce::ptx::shared_address(slot + t), x + t);
  treduce::ptx::commit_copies();
  // wait_copies<0>() belongs here
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += slot[i];
  if (t == 0) *out = sum;
}

const Kernel kernel_unawaited_copy("unawaited_copy", [](const float* x, int n, int threads, float* out) {
  return treduce::launch(&unawaited_copy, one_block(threads, threads * sizeof(float)), x, n, out);
});

}  // namespace broken
