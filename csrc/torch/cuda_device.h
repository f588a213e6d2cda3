// The little that a CUDA binding needs of torch's CUDA side, without torch's CUDA headers: so the whole extension compiles and
// links against a CPU-only torch too. Torch-free counterparts (counters, device facts) stand in counters.h and device.h.
#pragma once

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <cuda_runtime.h>

#include <string>

#include "../common/counters.h"
#include "../common/device.h"
#include "checks.h"
#include "treduce_build.h"

namespace treduce {

// Makes the tensor's device current for a scope and knows the stream that torch uses there.
class CudaScope {
 public:
  explicit CudaScope(c10::Device device) : guard_(device), device_(device.index()) {
    const c10::impl::VirtualGuardImpl impl(c10::DeviceType::CUDA);
    stream_ = static_cast<cudaStream_t>(impl.getStream(device).native_handle());
  }
  cudaStream_t stream() const { return stream_; }
  int device() const { return device_; }

 private:
  c10::DeviceGuard guard_;
  int device_;
  cudaStream_t stream_;
};

inline void check_cuda(cudaError_t error, const std::string& what) {
  TORCH_CHECK(error == cudaSuccess, what, " failed on the GPU: ", cudaGetErrorString(error), " (",
              cudaGetErrorName(error), ")");
}

// Counters for a variant's next launch on `stream`; null if it has none.
inline unsigned* counters_of(const Variant& variant, int64_t count, int device, cudaStream_t stream) {
  if (count == 0) return nullptr;
  unsigned* first = nullptr;
  const cudaError_t error = counters_for(device, stream, count, &first);
  if (error != cudaSuccess) check_cuda(error, "counters for " + variant.name);
  return first;
}

// NotImplementedError when the device's compute capability is not one that the variant runs on.
inline void check_capability(const Variant& variant, int device) {
  check(refused_by(chip_of(device), variant));
  TORCH_CHECK_NOT_IMPLEMENTED(built_for(variant), "variant '", variant.name, "' is not in this build: it needs ",
                              variant.capability / 10, ".", variant.capability % 10,
                              "a in TORCH_CUDA_ARCH_LIST, which was ", TREDUCE_CUDA_ARCHITECTURES);
}

}  // namespace treduce
