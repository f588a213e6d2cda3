// Asynchronous copies from global to shared memory: no register holds the data, and no thread waits until it asks to. One
// wrapper an instruction; the emulator delivers a copy when it is waited for, and no sooner. Chips before sm_80 copy at once.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "shared_address.cuh"

namespace treduce::ptx {

// Copies kBytes (4, 8 or 16), to which both addresses are aligned. cp.async (sm_80 and later). kByL1: by way of the L1, which pays where
// blocks that share it read the same, and there is room beside shared memory; only copies of 16 bytes can bypass it.
template <int kBytes, bool kByL1 = (kBytes < 16)>
TREDUCE_DEVICE void copy_async(SharedAddress to, const void* global) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  static_assert(kByL1 || kBytes == 16);
#ifdef TREDUCE_EMULATOR
  emulator::copy_async(to, global, kBytes, kBytes);
#elif !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  if constexpr (kByL1) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(global), "n"(kBytes) : "memory");
  } else {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
  }
#else
  using Words = std::conditional_t<kBytes == 16, uint4, std::conditional_t<kBytes == 8, uint2, uint32_t> >;
  *static_cast<Words*>(__cvta_shared_to_generic(to)) = *static_cast<const Words*>(global);
#endif
}

// Closes a group: this thread's copies since the last call, of which there may be none. cp.async.commit_group.
TREDUCE_DEVICE void commit_copies() {
#ifdef TREDUCE_EMULATOR
  emulator::commit_copies();
#elif !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most the kLeft youngest groups of this thread are under way. The others' copies are there after a
// __syncthreads() that follows. cp.async.wait_group.
template <int kLeft>
TREDUCE_DEVICE void wait_copies() {
#ifdef TREDUCE_EMULATOR
  emulator::wait_copies(kLeft);
#elif !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
#endif
}

}  // namespace treduce::ptx
