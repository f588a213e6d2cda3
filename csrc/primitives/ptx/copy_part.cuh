// The asynchronous copy of copy.cuh for the edge of an operand: what lies past it becomes zero. One wrapper.
#pragma once

#include "copy.cuh"

namespace treduce::ptx {

// Copies the first `bytes` (0 to 16) of 16 bytes and fills the rest with zeros; reads nothing where `bytes` is 0. Both
// addresses are multiples of 16. cp.async with a source size (sm_80 and later); it bypasses the L1.
TREDUCE_DEVICE void copy_async_part(SharedAddress to, const void* global, int bytes) {
#ifdef TREDUCE_EMULATOR
  emulator::copy_async(to, global, 16, bytes);
#elif !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
#endif
}

}  // namespace treduce::ptx
