// What the compiler shall not look through.
#pragma once

#include "../../common/macros.h"

namespace treduce::ptx {

// The same pointer, of which the compiler does not know how it was computed: it addresses what lies at constant distances by them.
template <class T>
TREDUCE_DEVICE T* opaque(T* p) {
#ifdef __CUDA_ARCH__
  asm("" : "+l"(p));
#endif
  return p;
}

// A value that the compiler computes nothing from in advance.
TREDUCE_DEVICE int kept(int value) {
#ifdef __CUDA_ARCH__
  int same;
  asm volatile("mov.b32 %0, %1;" : "=r"(same) : "r"(value));
  return same;
#else
  return value;
#endif
}

}  // namespace treduce::ptx
