// What a block releases and another one reads. One wrapper an instruction.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../../common/macros.h"

namespace treduce::ptx {

// *address; what was written before its value was released there is seen after. ld.acquire.gpu.global.u32 (sm_70 and later).
TREDUCE_DEVICE uint32_t load_acquire(const uint32_t* address) {
#ifdef TREDUCE_EMULATOR
  emulator::poll();
  return *address;
#else
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
#endif
}

// *address = value; who reads it by an acquire sees what this thread has written or seen before. st.release.gpu.global.u32 (sm_70 and
// later).
TREDUCE_DEVICE void store_release(uint32_t* address, uint32_t value) {
#ifdef TREDUCE_EMULATOR
  *address = value;
  emulator::overtake();
#else
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
#endif
}

}  // namespace treduce::ptx
