// The asynchronous copy of copy.cuh for the edge of an operand: what lies past it becomes zero. One wrapper.
#pragma once

#include "copy.cuh"

namespace treduce::ptx {

// Copies the first `bytes` (0 to kBytes, which is 4 or 16) of kBytes and fills the rest with zeros; reads nothing where `bytes` is 0.
// Both addresses are multiples of kBytes. cp.async with a source size (sm_80 and later); copies of 16 bytes bypass the L1.
template <int kBytes = 16>
TREDUCE_DEVICE void copy_async_part(SharedAddress to, const void* global, int bytes) {
  static_assert(kBytes == 4 || kBytes == 16);
#ifdef TREDUCE_EMULATOR
  emulator::copy_async(to, global, kBytes, bytes);
#elif !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
  }
#endif
}

// Copies kBytes (4, 8 or 16), to which both addresses are aligned, or where they do not exist writes as many zeros and reads nothing.
// kByL1: see copy_async. cp.async with a predicate (sm_80 and later): one instruction, where a part of the bytes takes many.
template <int kBytes, bool kByL1 = (kBytes < 16)>
TREDUCE_DEVICE void copy_async_or_zero(SharedAddress to, const void* global, bool exists) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  static_assert(kByL1 || kBytes == 16);
#ifdef TREDUCE_EMULATOR
  emulator::copy_async(to, global, kBytes, exists ? kBytes : 0);
#elif !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  if constexpr (kByL1) {
    asm volatile(
        "{\n.reg .pred missing;\nsetp.eq.u32 missing, %2, 0;\n"
        "cp.async.ca.shared.global [%0], [%1], %3, missing;\n}" ::"r"(to),
        "l"(global), "r"(static_cast<unsigned>(exists)), "n"(kBytes)
        : "memory");
  } else {
    asm volatile(
        "{\n.reg .pred missing;\nsetp.eq.u32 missing, %2, 0;\n"
        "cp.async.cg.shared.global [%0], [%1], 16, missing;\n}" ::"r"(to),
        "l"(global), "r"(static_cast<unsigned>(exists))
        : "memory");
  }
#endif
}

}  // namespace treduce::ptx
