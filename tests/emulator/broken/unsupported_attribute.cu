// A launch with an attribute that the emulator does not know must fail, not run without it.
#include "broken.h"

namespace broken {

__global__ void unsupported_attribute(const float*, int, float*) {}

const Kernel kernel_unsupported("unsupported_attribute", [](const float* x, int n, int threads, float* out) {
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributePriority;
  attribute.val = {};
  cudaLaunchConfig_t config{};
  config.blockDim = threads;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, &unsupported_attribute, x, n, out);
});

}  // namespace broken
