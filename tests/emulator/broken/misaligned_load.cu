// A 16-byte load that begins at an odd element.
#include "broken.h"

namespace broken {

__global__ void misaligned_load(const float* x, int n, float* out) {
  if (threadIdx.x == 0) {
    const float4 last = *reinterpret_cast<const float4*>(x + n - 5);
    *out = last.x + last.y + last.z + last.w;
  }
}

const Kernel kernel_misaligned_load("misaligned_load", [](const float* x, int n, int threads, float* out) {
  return treduce::launch(&misaligned_load, one_block(threads, 0), x, n, out);
});

}  // namespace broken
