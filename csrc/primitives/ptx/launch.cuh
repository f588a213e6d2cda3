// Launches that overlap (sm_90 and later; elsewhere nothing, because there they do not). One wrapper an instruction.
#pragma once

#include <cuda_runtime.h>

#include "../../common/macros.h"

namespace treduce::ptx {

// Waits until the launch before in the stream has ended and its writes are seen. A kernel that was launched as overlapping
// calls it before it touches what the launch before wrote or read, but after all that it can find out without. griddepcontrol.wait.
TREDUCE_DEVICE void wait_for_launch_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next launch, if it is overlapping, begin once every block has said so or ended. griddepcontrol.launch_dependents.
TREDUCE_DEVICE void allow_launch_after() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// blockIdx.x, read here and not kept from an earlier reading.
TREDUCE_DEVICE int block_index() {
#ifdef __CUDA_ARCH__
  int index;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
  return index;
#else
  return static_cast<int>(blockIdx.x);
#endif
}

}  // namespace treduce::ptx
