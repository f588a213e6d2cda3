// The one place where a kernel is launched. Kernels and launchers are free of torch: sizes and a stream in, cudaError_t out.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "launch_shape.h"

namespace treduce {

constexpr int kMaxBlock = 1024;  // threads: no kernel may use more registers than a block of that size has

constexpr size_t kSharedWithoutAsking = 48 * 1024;  // bytes a block; a kernel that wants more must say so first

struct Launch : LaunchShape {
  cudaStream_t stream = nullptr;
};

template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), const Launch& shape, Arguments... arguments) {
  if (static_cast<size_t>(shape.shared_bytes) > kSharedWithoutAsking) {
    const cudaError_t error =
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shape.shared_bytes));
    if (error != cudaSuccess) return error;
  }
  log_launch(shape);
  cudaLaunchAttribute attributes[3];
  unsigned count = 0;
  if (shape.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = static_cast<unsigned>(shape.cluster);
    attributes[count].val.clusterDim.y = 1;
    attributes[count].val.clusterDim.z = 1;
    ++count;
  }
  if (shape.cooperative) {
    attributes[count].id = cudaLaunchAttributeCooperative;
    attributes[count].val.cooperative = 1;
    ++count;
  }
  if (shape.overlapping) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count].val.programmaticStreamSerializationAllowed = 1;
    ++count;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(shape.grid), static_cast<unsigned>(shape.grid_y));
  config.blockDim = dim3(static_cast<unsigned>(shape.block), static_cast<unsigned>(shape.block_y));
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = shape.stream;
  config.attrs = attributes;
  config.numAttrs = count;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace treduce
